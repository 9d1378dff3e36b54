//! ReadyToRun images: made by hand, and real ones where there are any.

use super::*;
use crate::oracle;

/// An image file laid out as the runtime maps it.
pub(crate) fn map(file: &[u8]) -> Vec<u8> {
    let u32_at = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().unwrap()) as usize;
    let u16_at = |at: usize| usize::from(u16::from_le_bytes(*file[at..].first_chunk().unwrap()));
    let pe = u32_at(0x3c);
    let optional = pe + 24;
    let mut image = vec![0; u32_at(optional + 56)];
    let headers = u32_at(optional + 60);
    image[..headers].copy_from_slice(&file[..headers]);
    for at in (0..u16_at(pe + 6)).map(|index| optional + u16_at(pe + 20) + index * 40) {
        let (to, from) = (u32_at(at + 12), u32_at(at + 20));
        let len = u32_at(at + 16).min(if u32_at(at + 8) == 0 {
            usize::MAX
        } else {
            u32_at(at + 8)
        });
        image[to..to + len].copy_from_slice(&file[from..from + len]);
    }
    image
}

/// Real images named by SIDEWALK_TEST_R2R (paths joined by colons); `cargo xtask test` names the
/// core libraries of its runtimes.
#[test]
fn rules_of_real_images_are_true_at_every_instruction() {
    let named = std::env::var_os("SIDEWALK_TEST_R2R").unwrap_or_default();
    for path in std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()) {
        let bytes = map(&std::fs::read(&path).unwrap());
        // SAFETY: laid out as the runtime does; outlives the image.
        let image = unsafe { r2r_image(bytes.as_ptr() as u64) }.unwrap();
        let (mut checked, mut unjudged, mut functions, mut bad) = (0, 0, 0, Vec::new());
        let (table, count) = image.functions;
        for index in 0..count {
            let entry = image.rva_bytes(table + index * 12);
            let field = |at: usize| u32::from_le_bytes(*entry[at..].first_chunk().unwrap());
            let (begin, end, unwind) = (field(0), field(4), field(8));
            let Some(info) = unwind_info::UnwindInfo::parse(image.rva_bytes(unwind)) else {
                bad.push((begin, 0, String::from("not parsed")));
                continue;
            };
            let code = &image.rva_bytes(begin)[..(end - begin) as usize];
            let start = image.base + u64::from(begin);
            let verdict = oracle::check(code, start, info.prologue_end().into(), |at, exact| {
                image.rule(at, exact)
            });
            functions += 1;
            checked += verdict.checked;
            unjudged += verdict.unjudged;
            bad.extend(
                verdict
                    .wrong
                    .into_iter()
                    .map(|(at, text)| (begin, at, text)),
            );
        }
        println!(
            "{}: {functions} functions, {checked} rules checked, {unjudged} unjudged, {} wrong",
            path.display(),
            bad.len()
        );
        for (begin, at, text) in bad.iter().take(40) {
            println!("  {begin:#x}+{at:#x} {text}");
        }
        assert!(functions > 1000 && bad.is_empty());
    }
}
