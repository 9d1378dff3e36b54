//! Rows made from code against the tables of the same code.

use super::*;
use crate::native;
use std::path::{Path, PathBuf};

/// How a library's rows compare with its tables, in instructions.
#[derive(Default, Debug)]
struct Comparison {
    described: u64,
    synthesised: u64,
    both: u64,
    wrong: Vec<String>,
}

fn compare(path: &Path) -> Comparison {
    let (module, code) = native::open(path).unwrap();
    let functions: Vec<_> = cfi::functions(&code).collect();
    let start = module.code.start;
    let text = code.bytes_at(start);
    let text = &text[..text.len().min((module.code.end - start) as usize)];
    let listing = Listing::of(text, None);
    let mut found = Comparison::default();
    let mut state = cfi::State::new();
    let mut dead = false;
    let mut last = 0;
    Flow::of(&listing).each(&mut |step, synthesised| {
        // What fills the gap behind a function never runs.
        let fills = matches!(text[step.at as usize..], [0x90, ..] | [0x0f, 0x1f, ..] | [0x66 | 0x2e, ..]);
        dead = dead && fills && step.effect == Effect::None;
        if dead { return; }
        dead = step.is_last() || matches!(step.effect, Effect::Call(_) | Effect::CallOut(_));
        let at = start + u64::from(step.at);
        let behind = functions.partition_point(|(start, _)| *start <= at);
        let inside = behind > 0 && at < functions[behind - 1].1;
        if !inside {
            return;
        }
        found.described += 1;
        let Some(ours) = synthesised.rule() else { return };
        found.synthesised += 1;
        let Ok(Some(theirs)) = cfi::rule(&code, at, true, &mut state) else {
            return;
        };
        let right = agree(ours, synthesised, theirs);
        found.both += u64::from(right.is_some());
        if right == Some(false) && std::mem::replace(&mut last, behind) != behind {
            found.wrong.push(format!("{at:#x}: {synthesised:?}, but {theirs:?}"));
        }
    });
    found
}

/// Whether two rules lead to the same caller; `None` where that cannot be said.
fn agree(ours: Rule, state: State, theirs: Rule) -> Option<bool> {
    let (Rule::Frame { cfa, bp, .. }, Rule::Frame { cfa: their_cfa, ra, bp: their_bp, .. }) = (ours, theirs)
    else {
        return (!matches!(theirs, Rule::Evaluate | Rule::Landing(_) | Rule::HijackStub(_)))
            .then_some(ours == theirs);
    };
    let same_cfa = match their_cfa {
        Cfa::Sp(_) | Cfa::Bp(_) if their_cfa == cfa => true,
        Cfa::Sp(offset) => state.height? == offset,
        Cfa::Bp(offset) => match state.frame {
            Frame::At(below) => below == offset,
            Frame::Other | Frame::Unknown => return None,
        },
        _ => return None,
    };
    // A register that was pushed is in both places until it is overwritten.
    let same_bp = bp == their_bp || matches!((bp, their_bp), (Bp::FromCfa(_), Bp::Same) | (Bp::Same, Bp::FromCfa(_)));
    Some(same_cfa && ra == -8 && same_bp)
}

fn named() -> Vec<PathBuf> {
    let named = std::env::var_os("SIDEWALK_TEST_ELF").unwrap_or_default();
    std::env::split_paths(&named).filter(|path| path.is_file()).collect()
}

#[test]
fn rows_say_what_tables_say() {
    let system = Path::new("/usr/lib/x86_64-linux-gnu");
    let mut paths = named();
    if paths.is_empty() { paths.extend(["libc.so.6", "libstdc++.so.6"].map(|name| system.join(name)));}
    for path in paths {
        let found = compare(&path);
        println!("{}: {} described, {} synthesised, {} both, {} wrong", path.display(), found.described, found.synthesised, found.both, found.wrong.len());
        for wrong in found.wrong.iter().take(std::env::var("SHOW").map_or(10, |n| n.parse().unwrap())) {
            println!("  {wrong}");
        }
    }
}
