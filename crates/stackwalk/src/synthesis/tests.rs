//! Rows made from code against the tables of the same code.

use super::*;
use crate::native;
use crate::x86::instruction::Effect;
use proptest::prelude::*;
use std::path::Path;

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

/// Compares at each instruction of a library the rows that it has without its tables.
fn compare(path: &Path) -> Comparison {
    let (module, code) = native::open(path).unwrap();
    let (_, mut bare) = native::open(path).unwrap();
    bare.eh_frame_hdr = 0;
    bare.rows = rows(&module, &bare);
    let functions: Vec<_> = cfi::functions(&code).collect();
    let mut found = Comparison::default();
    let mut state = cfi::RowProgram::new();
    let mut last = None::<(u64, Rule, Effect)>;
    let mut table_is_doubted = false;
    let mut compare_piece = |start: u64, listing: &Listing| {
        let mut is_gap = false;
        Flow::of(listing).each(&mut |step, synthesised| {
            let at = start + u64::from(step.at);
            // The padding behind a function, or behind a call that does not return, never runs.
            is_gap &= step.effect == Effect::Fill;
            if is_gap {
                return;
            }
            is_gap = step.is_last() || matches!(step.effect, Effect::Call(_) | Effect::CallOut(_));
            let behind = functions.partition_point(|(start, _)| *start <= at);
            let function = functions[behind.saturating_sub(1)];
            if !(function.0..function.1).contains(&at) {
                return;
            }
            found.described += 1;
            let table = cfi::table_rule(&code, at, &mut state).ok().flatten();
            if let (Some(table), Some((end, before, effect))) = (table, last) {
                table_is_doubted |= end == at && !follows(before, effect, table);
            }
            last = table.map(|table| (at + u64::from(step.length), table, step.effect));
            let Some(ours) = bare.synthesised(at) else {
                return;
            };
            found.synthesised += 1;
            // In epilogues the instructions decide, and not an old table.
            let walked = cfi::rule(&code, at, true, &mut state).ok().flatten();
            let kept = || slot(&code, at..function.1);
            let verdicts = [table, walked].map(|theirs| agree(ours, synthesised, theirs?, &kept));
            if verdicts == [None, None] {
                return;
            }
            if verdicts.contains(&Some(true)) {
                found.compared += 1;
                table_is_doubted = false;
            } else if table_is_doubted {
                found.table_is_wrong += 1;
            } else {
                found.wrong.push(format!(
                    "{at:#x}: {ours:?} of {synthesised:?}, but {table:?}, {walked:?}"
                ));
            }
        });
    };
    let entry = entry(&module, &bare);
    read([module.code.clone()], &bare, entry, &mut compare_piece);
    found
}

/// Where the frame pointer is kept, by the first row of a table that says so.
fn slot(code: &NativeCode, mut at: Range<u64>) -> Option<Bp> {
    let mut state = cfi::RowProgram::new();
    at.find_map(|at| match cfi::table_rule(code, at, &mut state) {
        Ok(Some(Rule::Frame { bp, .. })) if bp != Bp::Same => Some(bp),
        _ => None,
    })
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

/// Whether two rules lead to the same caller; `None` where that cannot be said. `kept` finds where
/// the table says later that the frame pointer is.
fn agree(ours: Rule, state: State, theirs: Rule, kept: &dyn Fn() -> Option<Bp>) -> Option<bool> {
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
    let same_bp = match (bp, their_bp) {
        _ if bp == their_bp => true,
        // It has been popped, and the table goes on to say where it was.
        (Bp::Same, Bp::FromCfa(at)) => state.height.is_some_and(|height| height < -at),
        // It has been pushed, which the table says after other pushes.
        (Bp::FromCfa(_), Bp::Same) => kept() == Some(bp),
        _ => false,
    };
    Some(same_cfa && same_bp)
}

/// Demands that nothing is wrong, and that so much of the library's code has rows.
fn demand(path: &Path, percent: u64) {
    let found = compare(path);
    let Comparison {
        described,
        synthesised,
        compared,
        table_is_wrong,
        wrong,
    } = &found;
    println!(
        "{}: {described} instructions, {synthesised} ({:.1} %) with a row, {compared} compared, \
         {table_is_wrong} where the table is wrong, {} wrong",
        path.display(),
        *synthesised as f64 * 100.0 / *described as f64,
        wrong.len()
    );
    assert!(
        wrong.is_empty(),
        "{}",
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(synthesised * 100 >= described * percent, "{path:?}");
}

#[test]
fn rows_say_what_tables_say() {
    let system = Path::new("/usr/lib/x86_64-linux-gnu");
    demand(&system.join("libc.so.6"), 90);
    // Nothing here says which of the functions that throw come back.
    demand(&system.join("libstdc++.so.6"), 65);
    // `cargo xtask test --libc musl` names musl, compiled with tables.
    let named = std::env::var_os("SIDEWALK_TEST_ROWS").unwrap_or_default();
    for path in std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()) {
        demand(&path, 98);
    }
}

#[test]
fn functions_without_tables_are_known() {
    let rows_of = |code: &[u8]| {
        let mut rows = Vec::new();
        add_rows(&mut rows, 0x1000, &Listing::of(code, 0x1000, 0x1000, false));
        let find = |at: u64| {
            let row = rows.iter().rev().find(|(start, _)| *start <= 0x1000 + at);
            row.and_then(|(_, packed)| Rule::unpack(*packed))
        };
        (0..=code.len() as u64).map(find).collect::<Vec<_>>()
    };
    let frame = |cfa, bp| {
        Some(Rule::Frame {
            cfa,
            ra: -8,
            bp,
            assumed: false,
        })
    };
    // push rbp; sub rsp, 16; xor ebp, ebp; call rax; add rsp, 16; pop rbp; ret
    let code = [
        0x55, 0x48, 0x83, 0xec, 16, 0x31, 0xed, 0xff, 0xd0, 0x48, 0x83, 0xc4, 16, 0x5d, 0xc3,
    ];
    let rows = rows_of(&code);
    assert_eq!(rows[0], frame(Cfa::Sp(8), Bp::Same));
    assert_eq!(rows[1], frame(Cfa::Sp(16), Bp::FromCfa(-16)));
    assert_eq!(rows[8], frame(Cfa::Sp(32), Bp::FromCfa(-16)));
    assert_eq!(rows[14], frame(Cfa::Sp(8), Bp::Same));
    assert_eq!(rows[15], None);
    // The start of a program: xor ebp, ebp; and rsp, -16; call rax; hlt
    let code = [0x31, 0xed, 0x48, 0x83, 0xe4, 0xf0, 0xff, 0xd0, 0xf4];
    let rows = rows_of(&code);
    assert_eq!((rows[0], rows[7]), (Some(Rule::Root), Some(Rule::Root)));
    // The start of a program on musl: xor rbp, rbp; mov rdi, rsp; and rsp, -16; call to behind the
    // gap, where a function jumps out: mov esi, [rdi]; jmp [rip].
    let code = [
        0x48, 0x31, 0xed, 0x48, 0x89, 0xe7, 0x48, 0x83, 0xe4, 0xf0, 0xe8, 6, 0, 0, 0, // start
        0x66, 0x0f, 0x1f, 0x44, 0, 0, 0x8b, 0x37, 0xff, 0x25, 0, 0, 0, 0,
    ];
    let rows = rows_of(&code);
    assert!(rows[..15].iter().all(|row| *row == Some(Rule::Root)));
    assert_eq!(rows[21..29], [frame(Cfa::Sp(8), Bp::Same); 8]);
    // The start of a thread, as musl has it: test eax, eax; jne to the ret; xor ebp, ebp; pop rdi;
    // call r9; hlt; ret
    let code = [
        0x90, 0x85, 0xc0, 0x75, 7, 0x31, 0xed, 0x5f, 0x41, 0xff, 0xd1, 0xf4, 0xc3,
    ];
    let rows = rows_of(&code);
    assert_eq!(rows[1], frame(Cfa::Sp(8), Bp::Same));
    assert_eq!((rows[5], rows[10]), (Some(Rule::Root), Some(Rule::Root)));
    // A function that saves the frame pointer elsewhere and restores it is no root: mov rax, rbp;
    // xor ebp, ebp; call rdx; mov rbp, rax; ret
    let code = [
        0x48, 0x89, 0xe8, 0x31, 0xed, 0xff, 0xd2, 0x48, 0x89, 0xc5, 0xc3,
    ];
    assert!(!rows_of(&code).contains(&Some(Rule::Root)));
    // Two ways with different heights: push rax; je over the next push; push rax; add rsp, 16; ret
    let code = [0x50, 0x74, 1, 0x50, 0x48, 0x83, 0xc4, 16, 0xc3];
    assert_eq!(rows_of(&code)[1..8], [None; 7]);
    // Two functions that nothing here calls. The first ends in a call that does not return; the
    // second has an instruction of its body among its first. push rax; call rdx; nop; push rbp;
    // xor eax, eax; mov rbp, rsp; push rbx; call rax; leave; ret
    let code = [
        0x50, 0xff, 0xd2, 0x90, 0x55, 0x31, 0xc0, 0x48, 0x89, 0xe5, 0x53, 0xff, 0xd0, 0xc9, 0xc3,
    ];
    let rows = rows_of(&code);
    assert_eq!(rows[4], frame(Cfa::Sp(8), Bp::Same));
    assert_eq!(rows[11], frame(Cfa::Sp(24), Bp::FromCfa(-16)));
    // A loop that makes room page by page: push rbp; mov rbp, rsp; cmp rsp, rdi; je over the next
    // two; sub rsp, 4096; jmp back; call rax; leave; ret
    let code = [
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x39, 0xfc, 0x74, 9, 0x48, 0x81, 0xec, 0, 16, 0, 0, 0xeb,
        0xf2, 0xff, 0xd0, 0xc9, 0xc3,
    ];
    let rows = rows_of(&code);
    assert_eq!(rows[4..21], [frame(Cfa::Bp(16), Bp::FromCfa(-16)); 17]);
    assert_eq!(rows[21], frame(Cfa::Sp(8), Bp::Same));
}

/// Tables describe what a compiler made of a program, and not the few instructions that are its
/// start.
#[test]
fn a_program_s_start_has_rows_whatever_its_tables_describe() {
    // xor ebp, ebp; and rsp, -16; call [rip]; hlt
    let start = [
        0x31, 0xed, 0x48, 0x83, 0xe4, 0xf0, 0xff, 0x15, 0, 0, 0, 0, 0xf4,
    ];
    // A table at 0x10000, the module's first bytes, and its code, of which the table describes all
    // but the start.
    let rows_of = |entry: u64| {
        let described = [(0x20000, 0x100, &[][..]), (0x20120, 0x100, &[])];
        let mut bytes = cfi::tests::table(0x10000, b"zR", &described);
        bytes.resize(0xf000, 0);
        bytes.extend(b"\x7fELF");
        bytes.resize(0xf000 + 24, 0);
        bytes.extend(entry.to_le_bytes());
        bytes.resize(0x10100, 0xc3);
        bytes.extend(start);
        bytes.resize(0x10220, 0xc3);
        let module = NativeModule {
            path: "program".into(),
            bias: 0x1000,
            range: 0x1f000..0x21000,
            code: 0x20000..0x20220,
            build_id: Vec::new(),
        };
        rows(&module, &NativeCode::of_bytes(&bytes, 0x10000))
    };
    let found = rows_of(0x1f100);
    for at in 0x20100..0x2010c {
        assert_eq!(found.rule(at), Some(Rule::Root), "{at:#x}");
    }
    assert_eq!((found.rule(0x20000), found.rule(0x20120)), (None, None));
    // Of a library, or a program whose table describes its start, nothing is read.
    for entry in [0, 0x1f000, 0x1f120] {
        assert_eq!(rows_of(entry).bytes(), 0, "{entry:#x}");
    }
}

/// Pieces of what functions are made of, so that anything comes of it.
fn any_code() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<[u8; 3]>().prop_map(Vec::from),
        any::<u8>().prop_map(|by| vec![0x48, 0x83, 0xec, by]),
        any::<u8>().prop_map(|by| vec![0x48, 0x83, 0xc4, by]),
        any::<u8>().prop_map(|to| vec![0x74, to]),
        any::<u8>().prop_map(|to| vec![0xeb, to]),
        any::<i16>().prop_map(|to| [&[0xe8][..], &i32::from(to).to_le_bytes()].concat()),
        // With any number: sub, lea, and the frame pointer stored, loaded and made.
        (0..5usize, any::<i32>()).prop_map(|(kind, number)| {
            let codes: [&[u8]; 5] = [
                &[0x48, 0x81, 0xec],
                &[0x48, 0x8d, 0xa4, 0x24],
                &[0x48, 0x89, 0xac, 0x24],
                &[0x48, 0x8b, 0xac, 0x24],
                &[0x48, 0x8d, 0xac, 0x24],
            ];
            [codes[kind], &number.to_le_bytes()].concat()
        }),
        Just(vec![0x55]),
        Just(vec![0x5d]),
        Just(vec![0x48, 0x89, 0xe5]),
        Just(vec![0xc9, 0xc3]),
        Just(vec![0x31, 0xed]),
        Just(vec![0xc3]),
        Just(vec![0x0f, 0x1f, 0]),
    ];
    prop::collection::vec(piece, 0..400).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_code_gives_rows_in_order(code in any_code(), in_midst: bool) {
        let mut rows = Vec::new();
        add_rows(&mut rows, 0x1000, &Listing::of(&code, 0x1000, 0x1000, in_midst));
        prop_assert!(rows.is_sorted_by(|a, b| a.0 < b.0));
        for (_, packed) in rows {
            prop_assert!(packed == 0 || Rule::unpack(packed).is_some());
        }
    }
}
