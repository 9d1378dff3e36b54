//! Tests of ReadyToRun images: written ones, and those of installed runtimes.

use fake_clr::small_image;

use super::*;
use crate::{debug_info, oracle};

/// Lays out an image file like the runtime's mapping.
fn map(file: &[u8]) -> Vec<u8> {
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

/// A runtime's core library, in the runtime's memory layout.
pub(crate) struct CoreLibrary {
    /// The runtime's version.
    pub(crate) version: String,
    pub(crate) image: Image,
    /// The memory of the image.
    pub(crate) bytes: Vec<u8>,
}

/// Returns the core libraries of all installed runtimes.
pub(crate) fn core_libraries() -> impl Iterator<Item = CoreLibrary> {
    libraries(|_| "System.Private.CoreLib.dll")
}

/// Returns one library of each installed runtime.
pub(crate) fn libraries(
    name: impl Fn(&testkit::Runtime) -> &'static str,
) -> impl Iterator<Item = CoreLibrary> {
    testkit::Runtime::all().into_iter().map(move |runtime| {
        let path = runtime.framework_dir().join(name(&runtime));
        let bytes = map(&std::fs::read(&path).unwrap());
        // SAFETY: laid out as the runtime does; kept beside the image.
        let image = unsafe { r2r_image(bytes.as_ptr() as u64) }.unwrap();
        CoreLibrary {
            version: runtime.version,
            image,
            bytes,
        }
    })
}

/// An image of an unknown version is unwound by Windows' unwind data, and nothing else of it is
/// used.
#[test]
fn only_unwind_data_of_an_image_of_an_unknown_version_is_read() {
    for library in core_libraries() {
        let header = library.image.header().unwrap() as usize;
        for major in [0, 1, 27, 28, u16::MAX] {
            let mut bytes = library.bytes.clone();
            bytes[header + 4..][..2].copy_from_slice(&major.to_le_bytes());
            // SAFETY: laid out as the runtime does; kept beside the image.
            let image = unsafe { r2r_image(bytes.as_ptr() as u64) }.unwrap();
            assert_eq!(image.functions(), library.image.functions());
            let (mut rules, mut wrong) = (0, 0);
            for entry in library.image.table().iter().step_by(50) {
                let begin = u64::from(field(entry, 0));
                let (here, there) = (image.base + begin, library.image.base + begin);
                rules += 1;
                wrong += usize::from(image.rule(here, true) != library.image.rule(there, true));
                let gc_info = image.gc_info(here).map(drop);
                let refused = gc_info::Error::Malformed("an image of no known version");
                assert_eq!(gc_info, Err(refused), "{major}");
                let il_map = image.il_map(here, &mut Vec::new());
                assert_eq!(il_map, Err(debug_info::Error::Unknown), "{major}");
            }
            assert!(rules > 300 && wrong == 0, "{wrong} of {rules}");
        }
    }
}

#[test]
fn rules_of_real_images_are_true_at_every_instruction() {
    for library in core_libraries() {
        let image = &library.image;
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
            library.version,
            bad.len()
        );
        for (begin, at, text) in bad.iter().take(40) {
            println!("  {begin:#x}+{at:#x} {text}");
        }
        assert!(functions > 1000 && bad.is_empty());
    }
}

/// A function's start is found from its first and its last byte. Addresses between functions and
/// around all of them give none.
#[test]
fn functions_of_real_images_begin_where_their_table_says() {
    for library in core_libraries() {
        let image = &library.image;
        let mut behind = 0;
        for entry in image.table() {
            let (begin, end) = (field(entry, 0), field(entry, 4));
            let start = |rva: u32| image.function_start(image.base + u64::from(rva));
            let own = Some(image.base + u64::from(begin));
            assert_eq!((start(begin), start(end - 1)), (own, own));
            if begin > behind {
                assert_eq!(start(begin - 1), None, "{begin:#x}");
            }
            behind = end;
        }
        assert_eq!(image.function_start(image.base + u64::from(behind)), None);
        assert!(image.functions() > 1000);
    }
}

/// At each call, exactly the registers that the prologue pushes (decoded by iced) are found, at
/// their offset from the CFA.
#[test]
fn saved_registers_of_real_images_are_where_the_prologue_pushes_them() {
    use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
    for library in core_libraries() {
        let image = &library.image;
        let (mut calls, mut kept) = (0, [0; 5]);
        for entry in image.table() {
            let (begin, end) = (field(entry, 0), field(entry, 4));
            let code = &image.rva_bytes(begin)[..(end - begin) as usize];
            let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
            let (mut sp, mut expected, mut pushing) = (-8, [0; 5], true);
            for instruction in &mut decoder {
                if instruction.mnemonic() == Mnemonic::Push && pushing {
                    sp -= 8;
                    // Iced's numbers are those of instructions.
                    let number = instruction.op0_register().full_register().number() as u8;
                    let at = Saved::REGISTERS.iter().position(|known| *known == number);
                    if let Some(place) = at.map(|at| &mut expected[at]) {
                        *place = sp;
                    }
                } else {
                    pushing = false;
                }
                let flow = instruction.flow_control();
                if matches!(flow, FlowControl::Call | FlowControl::IndirectCall) {
                    let lookup = image.base + u64::from(begin) + instruction.next_ip() - 1;
                    let saved = image.saved(lookup).unwrap();
                    assert_eq!(saved.offsets(), expected, "{}: {begin:#x}", library.version);
                    calls += 1;
                    for (register, kept) in Saved::REGISTERS.iter().zip(&mut kept) {
                        *kept += i32::from(saved.from_cfa(*register).is_some());
                    }
                }
            }
        }
        println!("{}: {calls} calls, {kept:?}", library.version);
        assert!(calls > 50_000 && kept.iter().all(|kept| *kept > 5_000));
    }
}

/// A component of a composite image has no code and contains the name of the file with its code,
/// which that file contains too.
#[test]
fn a_component_names_its_composite_image() {
    let component = small_image((OWNER, b"all.r2r.dll\0"), b"one.dll\0", false);
    let composite = small_image((COMPONENTS, &[0; 16]), b"all.r2r.dll\0", true);
    let at = |image: &Vec<u8>| image.as_ptr() as u64;
    // SAFETY: laid out as the runtime does, and kept.
    let (owner, code) = unsafe { (composite_of(at(&component)), r2r_image(at(&component))) };
    assert_eq!(owner.as_deref(), Some("all.r2r.dll"));
    assert_eq!(code, Err(NotReadyToRun::NoCode));
    assert!(is_composite(at(&composite), "all.r2r.dll"));
    // SAFETY: as above.
    let (owner, code) = unsafe { (composite_of(at(&composite)), r2r_image(at(&composite))) };
    assert_eq!(owner, None);
    let code = code.unwrap();
    let start = at(&composite) + 0x1000;
    assert_eq!((code.functions(), code.major()), (1, Some(16)));
    assert_eq!(code.function_start(start + 8), Some(start));
    // Another name, the component, memory that is not an image, and unmapped memory.
    assert!(!is_composite(at(&composite), "all.r2r"));
    assert!(!is_composite(at(&component), "one.dll"));
    assert!(!is_composite(at(&composite) + 8, "all.r2r.dll"));
    assert!(!is_composite(4096, "all.r2r.dll"));
    // A name that does not end in its section, and a section outside of the image.
    let endless = small_image((OWNER, &[b'a'; 0x1800]), b"\0", false);
    let mut outside = component.clone();
    outside[0x620..0x624].copy_from_slice(&0x2000u32.to_le_bytes());
    for image in [endless, outside] {
        // SAFETY: as above.
        assert_eq!(unsafe { composite_of(at(&image)) }, None);
    }
}

proptest::proptest! {
    /// An image with any content gives a result without a fault.
    #[test]
    fn a_doctored_component_is_read_within_its_sections(at in 0usize..0x640, byte: u8) {
        let mut image = small_image((OWNER, b"all.r2r.dll\0"), b"one.dll\0", false);
        image[at] = byte;
        // SAFETY: kept; the sections may be said to be longer than it is, and are read by the
        // kernel.
        let _owner = unsafe { composite_of(image.as_ptr() as u64) };
        is_composite(image.as_ptr() as u64, "all.r2r.dll");
    }
}
