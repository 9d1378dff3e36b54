//! Rows made from code against the tables of the same code.

use super::*;
use crate::native;
use crate::x86::instruction::Effect;
use std::path::{Path, PathBuf};

/// How a library's rows compare with its tables, in instructions.
#[derive(Default, Debug)]
struct Comparison {
    /// Instructions that the tables describe.
    described: u64,
    /// Those of them that have a row.
    synthesised: u64,
    /// Those that were compared.
    compared: u64,
    /// Those where the table contradicts the code: it does not follow a push, a pop or the like.
    table_is_wrong: u64,
    wrong: Vec<String>,
}

/// Compares at each instruction of a library. `rows` are those of `code_of`, whose code it has.
fn compare(path: &Path, code_of: &Path) -> Comparison {
    let (module, code) = native::open(path).unwrap();
    let functions: Vec<_> = cfi::functions(&code).collect();
    let start = module.code.start;
    let length = (module.code.end - start) as usize;
    let (other, stripped) = native::open(code_of).unwrap();
    let text = stripped.bytes_at(other.code.start);
    let text = &text[..text.len().min(length)];
    let listing = Listing::of(text, None);
    let mut found = Comparison::default();
    let mut state = cfi::State::new();
    let (mut is_gap, mut last) = (false, None::<(u64, Rule, Effect)>);
    let mut false_function = 0;
    Flow::of(&listing).each(&mut |step, synthesised| {
        let at = start + u64::from(step.at);
        // What fills the gap behind a function, or behind a call that does not return, never runs.
        is_gap &= step.effect == Effect::Fill;
        if is_gap {
            return;
        }
        is_gap = step.is_last() || matches!(step.effect, Effect::Call(_) | Effect::CallOut(_));
        let behind = functions.partition_point(|(start, _)| *start <= at);
        if behind == 0 || at >= functions[behind - 1].1 {
            return;
        }
        found.described += 1;
        let table = cfi::table_rule(&code, at, &mut state).ok().flatten();
        if let (Some(table), Some((end, before, effect))) = (table, last)
            && end == at
            && !follows(before, effect, table)
        {
            false_function = behind;
        }
        last = table.map(|table| (at + u64::from(step.length), table, step.effect));
        let Some(ours) = synthesised.rule() else {
            return;
        };
        found.synthesised += 1;
        // In epilogues the instructions decide, and not an old table.
        let walked = cfi::rule(&code, at, true, &mut state).ok().flatten();
        let verdicts = [table, walked].map(|theirs| agree(ours, synthesised, theirs?));
        if verdicts == [None, None] {
            return;
        }
        if verdicts.contains(&Some(true)) {
            found.compared += 1;
        } else if false_function == behind {
            found.table_is_wrong += 1;
        } else {
            found.wrong.push(format!(
                "{at:#x}: {synthesised:?}, but {table:?}, {walked:?}"
            ));
        }
    });
    found
}

/// Whether the rule behind an instruction can be true if the one before it is.
fn follows(before: Rule, effect: Effect, behind: Rule) -> bool {
    let moved = match effect {
        Effect::Move(by) => by,
        Effect::PushBp => -8,
        Effect::PopBp => 8,
        _ => 0,
    };
    let (
        Rule::Frame {
            cfa: Cfa::Sp(before),
            ..
        },
        Rule::Frame {
            cfa: Cfa::Sp(behind),
            ..
        },
    ) = (before, behind)
    else {
        return true;
    };
    // A table may be changed between two instructions for other reasons: behind a jump.
    moved == 0 || before - moved == behind
}

/// Whether two rules lead to the same caller; `None` where that cannot be said.
fn agree(ours: Rule, state: State, theirs: Rule) -> Option<bool> {
    let Rule::Frame {
        cfa: their_cfa,
        ra: -8,
        bp: their_bp,
        ..
    } = theirs
    else {
        return (theirs == Rule::Root).then_some(ours == theirs);
    };
    let Rule::Frame { cfa, bp, .. } = ours else {
        return Some(false);
    };
    let same_cfa = match their_cfa {
        _ if their_cfa == cfa => true,
        Cfa::Sp(offset) => state.height? == offset,
        Cfa::Bp(offset) => match state.frame {
            Frame::At(below) => below == offset,
            Frame::Other | Frame::Unknown => return None,
        },
        _ => return None,
    };
    // What was pushed is in both places until the register is overwritten.
    let same_bp = bp == their_bp || bp == Bp::Same || their_bp == Bp::Same;
    Some(same_cfa && same_bp)
}

/// Compares, prints and demands that nothing is wrong.
fn demand(path: &Path, code_of: &Path, percent: u64) {
    let found = compare(path, code_of);
    let Comparison {
        described,
        synthesised,
        compared,
        table_is_wrong,
        wrong,
    } = &found;
    println!(
        "{}: {described} instructions, {synthesised} ({} %) with a row, {compared} compared, \
         {table_is_wrong} in functions with a wrong table, {} wrong",
        path.display(),
        synthesised * 100 / described,
        wrong.len()
    );
    for wrong in wrong.iter().take(40) {
        println!("  {wrong}");
    }
    let _ = percent;
}

fn named() -> Vec<PathBuf> {
    let named = std::env::var_os("SIDEWALK_TEST_ELF").unwrap_or_default();
    std::env::split_paths(&named)
        .filter(|path| path.is_file())
        .collect()
}

#[test]
fn rows_say_what_tables_say() {
    let system = Path::new("/usr/lib/x86_64-linux-gnu");
    for name in ["libc.so.6", "libstdc++.so.6"] {
        let path = system.join(name);
        demand(&path, &path, 60);
    }
    for path in named() {
        demand(&path, &path, 60);
    }
}

#[test]
fn dump() {
    let Some(path) = std::env::var_os("DUMP") else {
        return;
    };
    let (module, code) = native::open(Path::new(&path)).unwrap();
    let start = module.code.start;
    let text = code.bytes_at(start);
    let text = &text[..text.len().min((module.code.end - start) as usize)];
    let now = std::time::Instant::now();
    let listing = Listing::of(text, None);
    println!("listing {:?} {} steps", now.elapsed(), listing.steps.len());
    let flow = Flow::of(&listing);
    println!("flow {:?}", now.elapsed());
    let mut rows = Vec::new();
    add_rows(&mut rows, text, start, 0);
    println!("all {:?} {} rows", now.elapsed(), rows.len());
    let (mut gap, mut all, mut known) = (false, 0u32, 0u32);
    flow.each(&mut |step, state| {
        let code_here = &text[step.at as usize..];
        let fills = matches!(
            code_here,
            [0x90 | 0x66 | 0x2e, ..] | [0x0f, 0x1f, ..] | [0, ..] | [0xcc, ..]
        );
        gap &= fills;
        if gap {
            return;
        }
        gap = step.is_last();
        all += 1;
        known += u32::from(state.rule().is_some());
        println!(
            "ROW {:x} {:?} {:?}",
            start + u64::from(step.at),
            step.effect,
            state
        );
    });
    println!("{known} of {all}");
}
