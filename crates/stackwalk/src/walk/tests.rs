//! Walks over invented memory: no reads out of bounds, no panics, and known stacks are found.

use super::*;
use crate::cfi::tests::table;
use crate::jit;
use crate::map::CodeKind;
use crate::native::NativeCode;
use proptest::prelude::*;
use std::cell::Cell;

/// Memory of two stacks that detects every read out of bounds.
pub(super) struct Fake {
    pub(super) parts: Vec<(Range<u64>, Vec<u64>)>,
    pub(super) reads: Cell<usize>,
}

impl Load for Fake {
    fn reaches_below(&self, sp: u64, _: &Stack) -> bool {
        self.parts
            .iter()
            .any(|part| part.0.contains(&sp.wrapping_sub(RED_ZONE as u64)))
    }

    unsafe fn load(&self, address: u64) -> u64 {
        assert_eq!(address % 8, 0, "{address:#x} is not aligned");
        self.reads.set(self.reads.get() + 1);
        let part = self.parts.iter().find(|part| part.0.contains(&address));
        let (range, words) = part.unwrap_or_else(|| panic!("{address:#x} is outside"));
        words[(address - range.start) as usize / 8]
    }
}

pub(super) const STACK: u64 = 0x7ffd_0000_0000;
/// Address of a thread object's two words.
const THREAD: u64 = 0x5600_0000_0000;
/// Offset of the hijack stub in NATIVE.
const STUB: u64 = 0x800;
const ALT: u64 = 0x7f00_0000_0000;
/// Addresses of the native code in the code map of these tests.
pub(super) const NATIVE: Range<u64> = 0x55_0000_0000..0x55_0000_1000;

/// The code that calls a thread's first method. Its return address is undefined, like `_start`'s.
const OUTERMOST: Range<u64> = 0x55_1000_0000..0x55_1000_1000;
/// A return address in it.
pub(super) const ROOT: u64 = OUTERMOST.start + 0x805;

/// Removes the outermost frame of a complete stack.
pub(super) fn without_root(mut frames: Vec<u64>, end: End) -> Vec<u64> {
    if end == End::Root {
        assert_eq!(frames.pop(), Some(ROOT), "a whole stack ends at its root");
    }
    frames
}

pub(super) fn map_with(bodies: &[jit::Body], eh_frame: Vec<u8>) -> Box<CodeMap> {
    let map = Box::new(CodeMap::new());
    for body in bodies {
        assert!(map.add_jit_body(body.clone(), 1));
    }
    let code = NativeCode::of_bytes(&eh_frame, NATIVE.start);
    assert!(map.add_native(NATIVE, code));
    let root = (OUTERMOST.start + 0x800, 0x10, [0x07, 16].as_slice());
    let code = NativeCode::of_bytes(&table(OUTERMOST.start, b"zR", &[root]), OUTERMOST.start);
    assert!(map.add_native(OUTERMOST, code));
    map
}

#[derive(Clone, Debug)]
enum Word {
    Any(u64),
    OnStack(u64),
    InJit(u64),
    InNative(u64),
    HijackStub,
    Zero,
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        1 => any::<u64>().prop_map(Word::Any),
        4 => (0u64..60).prop_map(|at| Word::OnStack(at * 8)),
        1 => (0u64..480).prop_map(Word::OnStack),
        4 => (0u64..64).prop_map(Word::InJit),
        3 => (0u64..0x1000).prop_map(Word::InNative),
        1 => Just(Word::HijackStub),
        1 => Just(Word::Zero),
    ]
}

impl Word {
    fn value(&self, jit: u64) -> u64 {
        match self {
            Word::Any(word) => *word,
            Word::OnStack(at) => STACK + at,
            Word::InJit(at) => jit + at,
            Word::InNative(at) => NATIVE.start + at,
            Word::HijackStub => NATIVE.start + STUB,
            Word::Zero => 0,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Random registers, stacks, code bytes and unwind codes.
    #[test]
    fn nothing_is_read_outside_and_nothing_panics(
        ip in word(), sp in word(), bp in word(),
        words in proptest::collection::vec(word(), 60),
        bytes in proptest::collection::vec(any::<u8>(), 64),
        info in proptest::collection::vec(any::<u8>(), 4..64),
        mut tables in proptest::collection::vec(any::<u8>(), 64..400),
        replaced in (word(), word()),
        depth in 0usize..100,
        alt in any::<bool>(),
    ) {
        let code: &'static [u8] = bytes.leak();
        let jit = code.as_ptr() as u64;
        let body = jit::Body::of_parts(code, info);
        tables.resize(STUB as usize, 0);
        tables.extend(hijack::tests::STUB);
        let map = map_with(&[body], tables);
        let values: Vec<u64> = words.iter().map(|word| word.value(jit)).collect();
        let regs = Regs { ip: ip.value(jit), sp: sp.value(jit), bp: bp.value(jit), all: 0 };
        let end = STACK + values.len() as u64 * 8;
        // If there is an alternate stack, the walk begins on it and may cross over.
        let (stack, regs, low) = if alt {
            let stack = Stack { low: STACK, end, alt: Some(ALT..ALT + 480) };
            (stack, Regs { sp: ALT + ((regs.sp % 480) & 0xff8), ..regs }, STACK)
        } else {
            (Stack { low: STACK, end, alt: None }, regs, regs.sp.max(STACK))
        };
        let fake = Fake {
            parts: vec![(low..end, values[((low - STACK) as usize / 8).min(values.len())..].to_vec()), (regs.sp..ALT + 480, values.clone()), (THREAD..THREAD + 16, vec![replaced.0.value(jit), replaced.1.value(jit)])],
            reads: Cell::new(0),
        };
        let mut out = vec![0; depth];
        let mut scratch = Scratch::new();
        scratch.hijacks[2] = THREAD;
        for _ in 0..2 {
            // The second walk uses the rules that the first one cached.
            let walk = walk_in(&fake, &map, regs, &stack, &mut scratch, &mut out[..]);
            prop_assert!(walk.depth <= depth);
            prop_assert!(walk.depth == depth || walk.end != End::Truncated);
            // Every step reads a bounded number of words.
            prop_assert!(fake.reads.get() <= 2 * (walk.depth + 1) * 12);
        }
    }
}

/// Makes a stack of these words, from STACK up, and walks it. The root's frame is left out.
fn walk_words(map: &CodeMap, regs: Regs, words: &[u64]) -> (Vec<u64>, End) {
    let (frames, end) = walk_words_to(map, regs, words);
    (without_root(frames, end), end)
}

/// As [`walk_words`], to a root of any kind.
fn walk_words_to(map: &CodeMap, regs: Regs, words: &[u64]) -> (Vec<u64>, End) {
    let end = STACK + words.len() as u64 * 8;
    let fake = Fake {
        parts: vec![(
            regs.sp..end,
            words[(regs.sp - STACK) as usize / 8..].to_vec(),
        )],
        reads: Cell::new(0),
    };
    let stack = Stack {
        low: STACK,
        end,
        alt: None,
    };
    let mut out = [0; 32];
    let cold = walk_in(&fake, map, regs, &stack, &mut Scratch::new(), &mut out[..]);
    let frames = out[..cold.depth].to_vec();
    let warm = walk_in(&fake, map, regs, &stack, &mut Scratch::new(), &mut out[..]);
    assert_eq!(
        (warm, &out[..warm.depth]),
        (cold, &frames[..]),
        "with a warm cache"
    );
    let mut traced = [Traced::default(); 32];
    let trace = walk_in(
        &fake,
        map,
        regs,
        &stack,
        &mut Scratch::new(),
        &mut traced[..],
    );
    let traced = &traced[..trace.depth];
    assert_eq!(trace, cold, "with where each frame is");
    assert!(
        traced
            .iter()
            .map(|frame| frame.word)
            .eq(frames.iter().copied())
    );
    assert_eq!(
        traced.first().map(|leaf| (leaf.sp, leaf.bp)),
        frames.first().map(|_| (regs.sp, regs.bp))
    );
    assert!(traced.is_sorted_by(|callee, caller| callee.sp < caller.sp));
    (frames, cold.end)
}

/// `push rbp; mov rbp, rsp; sub rsp, 16; call rax; add rsp, 16; pop rbp; ret`
const FRAMED: [u8; 16] = [
    0x55, 0x48, 0x8b, 0xec, 0x48, 0x83, 0xec, 0x10, 0xff, 0xd0, 0x48, 0x83, 0xc4, 0x10, 0x5d, 0xc3,
];
/// Offset at which FRAMED's call returns.
pub(super) const RETURN: u64 = 10;

pub(super) fn framed() -> (u64, jit::Body) {
    let bytes: &'static [u8] = FRAMED.to_vec().leak();
    let start = bytes.as_ptr() as u64;
    // SAFETY: the bytes live forever.
    (start, unsafe {
        jit::body_from_code(start, bytes.len() as u32)
    })
}

#[test]
fn a_framed_callee_in_each_state_leads_to_its_caller() {
    let (start, body) = framed();
    let map = map_with(&[body], vec![0; 64]);
    let caller = start + RETURN;
    // The caller's own frame: two words, its rbp, the root's return address 0.
    let frame = |at: u64| STACK + at * 8;
    //            0  1  2     3 (rbp)    4 (ra)  5  6  7 (rbp) 8 (ra)
    let words = [0, 0, 0, frame(7), caller, 0, 0, 0, ROOT];
    for (ip, sp, bp) in [
        (0, 4, frame(7)),
        (1, 3, frame(7)),
        (4, 3, frame(3)),
        (8, 1, frame(3)),
        (10, 1, frame(3)),
        (14, 3, frame(3)),
        (15, 4, frame(7)),
    ] {
        let regs = Regs {
            ip: start + ip,
            sp: frame(sp),
            bp,
            all: 0,
        };
        let (frames, end) = walk_words(&map, regs, &words);
        assert_eq!(frames, [regs.ip | EXACT, caller], "at {ip}");
        assert_eq!(end, End::Root);
    }
}

#[test]
fn unknown_code_is_left_by_the_return_address_on_top() {
    let (start, body) = framed();
    let map = map_with(&[body], vec![0; 64]);
    let caller = start + RETURN;
    let bp = STACK + 5 * 8;
    for (pushed, words) in [
        (0u64, [caller, 0, 0, 0, 0, 0, ROOT]),
        (1, [7, caller, 0, 0, 0, 0, ROOT]),
        (2, [7, 7, caller, 0, 0, 0, ROOT]),
    ] {
        let regs = Regs {
            ip: 0x1234_5678,
            sp: STACK,
            bp,
            all: 0,
        };
        let (frames, end) = walk_words(&map, regs, &words);
        assert_eq!(
            frames,
            [regs.ip | EXACT, caller | HEURISTIC],
            "{pushed} words pushed"
        );
        assert_eq!(end, End::Root);
    }
    // An address in the code that follows no call is rejected; the frame pointer is used.
    let words = [start + 3, 0, 0, bp, caller, 0, ROOT];
    let regs = Regs {
        ip: 0x1234_5678,
        sp: STACK,
        bp: STACK + 24,
        all: 0,
    };
    let (frames, end) = walk_words(&map, regs, &words);
    assert_eq!(frames, [regs.ip | EXACT, caller | BY_FRAME_POINTER]);
    assert_eq!(end, End::Root);
}

/// Buffers of compiled functions contain old return addresses.
#[test]
fn compiled_code_without_rows_is_left_only_by_a_call_of_it() {
    // A direct call of code 64 KiB after it.
    const RETURN: u64 = 13;
    let bytes: &'static [u8] = &[
        0x55, 0x48, 0x8b, 0xec, 0x48, 0x83, 0xec, 0x10, 0xe8, 0, 0, 1, 0, 0x48, 0x83, 0xc4, 0x10,
        0x5d, 0xc3,
    ];
    let start = bytes.as_ptr() as u64;
    // SAFETY: the bytes live forever.
    let body = unsafe { jit::body_from_code(start, bytes.len() as u32) };
    let caller = start + RETURN;
    let called = caller + 0x1_0000;
    let map = map_with(&[body], vec![0; 64]);
    let native = NativeCode::of_bytes(&[0; 64], called);
    assert!(map.add_native(called..called + 0x1000, native));
    let at = |ip, words: &[u64], bp| {
        let regs = Regs {
            ip,
            sp: STACK,
            bp,
            all: 0,
        };
        let (mut frames, end) = walk_words(&map, regs, words);
        frames.remove(0);
        (frames, end)
    };
    let bp = STACK + 5 * 8;
    let none = STACK + 7 * 8;
    let no_rule = End::Broken(Reason::NoRule);
    let top = [caller, 0, 0, 0, 0, 0, ROOT];
    assert_eq!(
        at(called + 8, &top, bp),
        (vec![caller | HEURISTIC], End::Root)
    );
    // Another function; and one that has a frame.
    assert_eq!(at(NATIVE.start + 8, &top, none), (vec![], no_rule));
    let in_a_buffer = [7, caller, 0, 0, 0, 0, ROOT];
    assert_eq!(at(called + 8, &in_a_buffer, none), (vec![], no_rule));
    // The frame pointer is used, and its frame is marked. A zero is not the root.
    let framed = [7, 7, 0, bp, caller, 0, ROOT];
    assert_eq!(
        at(called + 8, &framed, STACK + 24),
        (vec![caller | BY_FRAME_POINTER], End::Root)
    );
    let zero = [7, 7, 0, bp, 0, 0, ROOT];
    assert_eq!(at(called + 8, &zero, STACK + 24), (vec![], no_rule));
}

#[test]
fn every_way_to_break_has_its_name() {
    let (start, body) = framed();
    let map = map_with(&[body], vec![0; 64]);
    let broken = |regs, words: &[u64]| match walk_words(&map, regs, words).1 {
        End::Broken(reason) => reason.name(),
        other => panic!("{other:?}"),
    };
    let regs = Regs {
        ip: start + 8,
        sp: STACK,
        bp: STACK + 16,
        all: 0,
    };
    let cases = [
        (
            Regs {
                sp: STACK + 8 * 6,
                ..regs
            },
            "stack pointer outside the stack",
        ),
        (
            Regs {
                sp: STACK + 4,
                ..regs
            },
            "stack pointer outside the stack",
        ),
        (
            Regs {
                bp: STACK - 64,
                ..regs
            },
            "frame outside the stack",
        ),
        (
            Regs {
                bp: STACK + 8 * 5,
                ..regs
            },
            "frame outside the stack",
        ),
        (
            Regs {
                bp: STACK + 20,
                ..regs
            },
            "frame outside the stack",
        ),
        (
            Regs {
                bp: u64::MAX - 7,
                ..regs
            },
            "frame outside the stack",
        ),
        (
            Regs {
                ip: NATIVE.start + 5,
                bp: 3,
                ..regs
            },
            "no unwind rule",
        ),
        (
            Regs {
                ip: 0x4444_0000,
                bp: 3,
                ..regs
            },
            "unknown code",
        ),
        (regs, "bad return address"),
    ];
    for (regs, name) in cases {
        if !regs.sp.is_multiple_of(8) || regs.sp >= STACK + 48 {
            let fake = Fake {
                parts: Vec::new(),
                reads: Cell::new(0),
            };
            let stack = Stack {
                low: STACK,
                end: STACK + 48,
                alt: None,
            };
            let walk = walk_in(
                &fake,
                &map,
                regs,
                &stack,
                &mut Scratch::new(),
                &mut [0u64; 4][..],
            );
            assert_eq!(
                walk,
                Walk {
                    depth: 1,
                    end: End::Broken(Reason::OffStack)
                }
            );
            continue;
        }
        assert_eq!(broken(regs, &[0, 0, 0, 1 << 50, 0, 0]), name, "{regs:x?}");
    }
}

#[test]
fn a_signal_frame_leads_to_the_interrupted_registers_on_the_other_stack() {
    // `__restore_rt`: a CIE with 'S' that covers one byte before the label.
    leads_out_of_a_handler(signal_table());
}

/// musl's, which no table speaks of.
#[test]
fn a_signal_frame_is_known_by_the_two_instructions_that_leave_it() {
    let mut bytes = vec![0x90; 0x900];
    bytes[0x801..0x80a].copy_from_slice(&x86::SIGNAL_RETURN);
    leads_out_of_a_handler(bytes);
}

/// A handler returns to `NATIVE.start + 0x801`, of whose module these are the bytes.
fn leads_out_of_a_handler(bytes: Vec<u8>) {
    let (start, body) = framed();
    let map = map_with(&[body], bytes);
    let (interrupted, caller) = (start + 8, start + RETURN);
    let handler = NATIVE.start + 0x801;
    let on_alt = |at: u64| ALT + at * 8;
    let mut alt = vec![0; 64];
    // The handler is FRAMED too: the kernel called it with the return address `__restore_rt`. The
    // context is above.
    (alt[0], alt[1], alt[2], alt[3]) = (0, 0, STACK, handler);
    let context = 4;
    let register = |n: i32| context + 5 + n as usize;
    alt[register(libc::REG_RIP)] = interrupted;
    alt[register(libc::REG_RSP)] = STACK + 8;
    alt[register(libc::REG_RBP)] = STACK + 24;
    alt[register(libc::REG_CSGSFS)] = 0x2b_0000_0000_0033;
    alt[context + 5 + 23] = on_alt(50);
    let main = vec![0, 0, 0, 0, caller, 0, 0, 0, 0];
    let end = STACK + 72;
    let stack = Stack {
        low: STACK,
        end,
        alt: Some(ALT..on_alt(64)),
    };
    let walk = |alt: &[u64]| {
        let fake = Fake {
            parts: vec![
                (ALT..on_alt(64), alt.to_vec()),
                (STACK + 8..end, main[1..].to_vec()),
            ],
            reads: Cell::new(0),
        };
        let regs = Regs {
            ip: start + RETURN,
            sp: ALT,
            bp: on_alt(2),
            all: 0,
        };
        let mut out = [0; 8];
        let walk = walk_in(&fake, &map, regs, &stack, &mut Scratch::new(), &mut out[..]);
        (out[..walk.depth].to_vec(), walk.end)
    };
    let frames = vec![
        (start + RETURN) | EXACT,
        handler,
        interrupted | EXACT,
        caller,
    ];
    assert_eq!(
        walk(&alt),
        (frames.clone(), End::Broken(Reason::OutOfBounds))
    );
    // Memory that does not have the form of a context is rejected.
    for spoiled in [
        register(libc::REG_CSGSFS),
        register(libc::REG_RIP),
        register(libc::REG_RSP),
    ] {
        let mut alt = alt.clone();
        alt[spoiled] = 1 << 60;
        assert_eq!(
            walk(&alt),
            (frames[..2].to_vec(), End::Broken(Reason::BadSignalFrame))
        );
    }
}

/// A table at NATIVE whose only FDE, of a signal frame, covers 0x800..0x810.
fn signal_table() -> Vec<u8> {
    // As the C library's `__restore_rt`: the CFA is *(rsp + 160), the return address at rsp + 168.
    let program = [
        0x0f, 4, 0x77, 0xa0, 0x01, 0x06, 0x10, 16, 3, 0x77, 0xa8, 0x01,
    ];
    let at = NATIVE.start + 0x800;
    let mut bytes = table(NATIVE.start, b"zRS", &[(at, 0x10, &program)]);
    bytes.resize(0x900, 0);
    bytes
}

/// The dynamic linker's trampoline keeps its frame in `rbx`, which its callee saves.
#[test]
fn a_frame_that_rbx_leads_to_is_found_by_what_the_callee_saved() {
    let (start, body) = framed();
    let caller = start + RETURN;
    let fdes: &[(u64, u32, &[u8])] = &[
        // The callee: push rbx, 16 more bytes.
        (NATIVE.start + 0x800, 0x10, &[0x0e, 32, 0x83, 2]),
        // The trampoline: CFA = rbx + 32.
        (NATIVE.start + 0x900, 0x10, &[0x0c, 3, 32]),
    ];
    let mut bytes = table(NATIVE.start, b"zR", fdes);
    bytes.resize(0xa00, 0x90);
    let map = map_with(&[body], bytes);
    let at = |word: u64| STACK + word * 8;
    let (callee, trampoline) = (NATIVE.start + 0x804, NATIVE.start + 0x905);
    // 0-1 the callee's own, 2 rbx, 3 return address; what the trampoline saved; 8 its rbx,
    // 9-10 two words of the PLT, 11 return address; the caller's frame: 14 rbp, 15.
    let mut words = [7; 18];
    (words[2], words[3], words[11]) = (at(8), trampoline, caller);
    (words[14], words[15]) = (0, ROOT);
    let regs = Regs {
        ip: callee,
        sp: at(0),
        bp: at(14),
        all: 0,
    };
    let (frames, end) = walk_words(&map, regs, &words);
    assert_eq!(frames, [callee | EXACT, trampoline, caller]);
    assert_eq!(end, End::Root);
    // A value that the callee saved is rejected if it leads nowhere.
    words[2] = at(30);
    words[14] = 1;
    let (_, end) = walk_words(&map, Regs { bp: 5, ..regs }, &words);
    assert_eq!(end, End::Broken(Reason::UnsupportedRule));
}

/// A stack of these words, from STACK up, and at THREAD the registers of a thread that was
/// interrupted there: all 0 except this one.
fn interrupted(words: &[u64], (register, value): (i32, u64)) -> (Fake, Stack) {
    let end = STACK + words.len() as u64 * 8;
    let mut registers = vec![0; 23];
    registers[register as usize] = value;
    let fake = Fake {
        parts: vec![
            (STACK..end, words.to_vec()),
            (THREAD..THREAD + 23 * 8, registers),
        ],
        reads: Cell::new(0),
    };
    let stack = Stack {
        low: STACK,
        end,
        alt: None,
    };
    (fake, stack)
}

/// Hand-written code keeps its caller's stack pointer in a slot, in a slot whose address it
/// computes, in a register, or below the stack pointer.
#[test]
fn frames_of_hand_written_code_are_found_by_their_expressions() {
    let (start, body) = framed();
    let caller = start + RETURN;
    let at = |word: u64| STACK + word * 8;
    let code = NATIVE.start + 0x800;
    // Two words at the top, the slot of the caller's stack pointer, then the caller's own frame.
    let words = [7, 7, at(4), 7, 7, caller, 7, 7, 0, ROOT];
    let programs: [(&[u8], u64, u64); 6] = [
        // CFA = *(rsp + 16) + 16
        (&[0x0f, 5, 0x77, 16, 0x06, 0x23, 16], 0, 0),
        // CFA = *(rsp + 8 + 8 × r9) + 16
        (
            &[0x0f, 10, 0x77, 8, 0x79, 0, 0x38, 0x1e, 0x22, 0x06, 0x23, 16],
            0,
            1,
        ),
        // CFA = r9 + 16
        (&[0x0c, 9, 16], 0, at(4)),
        // CFA = *(rsp − 8) + 16: the red zone
        (&[0x0f, 5, 0x77, 0x78, 0x06, 0x23, 16], 3, 0),
        // CFA = rsp + 48, the return address in r9
        (&[0x0e, 48, 0x09, 16, 9], 0, caller),
        // CFA = rsp + 48, the return address at the CFA − lit8
        (&[0x0e, 48, 0x10, 16, 2, 0x38, 0x1c], 0, 0),
    ];
    for (program, sp, r9) in programs {
        let mut bytes = table(NATIVE.start, b"zR", &[(code, 0x100, program)]);
        bytes.resize(0x1000, 0x90);
        let map = map_with(std::slice::from_ref(&body), bytes);
        let (mut fake, stack) = interrupted(&words, (libc::REG_R9, r9));
        fake.parts.push((STACK - 128..STACK, vec![7; 16]));
        let mut regs = Regs {
            ip: code + 0x10,
            sp: at(sp),
            bp: at(8),
            all: THREAD,
        };
        let walk = |regs| {
            let mut out = [0; 8];
            let walk = walk_in(&fake, &map, regs, &stack, &mut Scratch::new(), &mut out[..]);
            (without_root(out[..walk.depth].to_vec(), walk.end), walk.end)
        };
        for cache in ["cold", "warm"] {
            let (frames, end) = walk(regs);
            assert_eq!(frames, [regs.ip | EXACT, caller], "{program:x?} {cache}");
            assert_eq!(end, End::Root, "{program:x?} {cache}");
        }
        // Without the register no caller is invented: the frame pointer is used, and the frame is
        // marked.
        regs.all = 0;
        let (frames, end) = walk(regs);
        if r9 != 0 {
            assert_eq!(frames, [regs.ip | EXACT], "{program:x?}");
            assert_eq!(end, End::Broken(Reason::UnsupportedRule), "{program:x?}");
        }
    }
}

/// The frame that an unwinder jumps into is found by its registers. A jump to the jump itself is
/// followed once.
#[test]
fn the_frame_that_an_unwinder_jumps_into_is_its_caller() {
    let (start, body) = framed();
    let code = NATIVE.start + 0x800;
    let mut bytes = table(
        NATIVE.start,
        b"zR",
        &[(code, 0x100, &[0x0c, 6, 16, 0x86, 2])],
    );
    bytes.resize(0x800, 0x90);
    // mov rsp, rcx; pop rcx; jmp rcx
    bytes.extend([0x48, 0x89, 0xcc, 0x59, 0xff, 0xe1]);
    bytes.resize(0x1000, 0x90);
    let map = map_with(&[body], bytes);
    // The frame that catches, with its rbp in place: two words, its caller's rbp, the root.
    let words = [7, 7, 0, ROOT];
    let jump = code + 4;
    for (rcx, expected, how) in [
        (start + RETURN, &[(start + RETURN) | EXACT][..], End::Root),
        (jump, &[jump | EXACT], End::Broken(Reason::UnsupportedRule)),
        (0, &[], End::Broken(Reason::BadReturnAddress)),
    ] {
        let (fake, stack) = interrupted(&words, (libc::REG_RCX, rcx));
        let regs = Regs {
            ip: jump,
            sp: STACK,
            bp: STACK + 16,
            all: THREAD,
        };
        let mut out = [0; 8];
        for cache in ["cold", "warm"] {
            let walk = walk_in(&fake, &map, regs, &stack, &mut Scratch::new(), &mut out[..]);
            let frames = without_root(out[..walk.depth].to_vec(), walk.end);
            assert_eq!(frames, [&[jump | EXACT], expected].concat(), "{cache}");
            assert_eq!(walk.end, how, "{cache}");
        }
    }
}

#[test]
fn a_return_address_of_zero_is_the_root_only_at_the_top_of_the_stack() {
    let (start, body) = framed();
    let native = NATIVE.start + 0x500;
    let map = map_with(&[body], table(NATIVE.start, b"zR", &[(native, 0x10, &[])]));
    let zero = End::Broken(Reason::Zero);
    // Both return addresses are at STACK + 24.
    for ip in [native, start] {
        let regs = Regs {
            ip,
            sp: STACK + 24,
            bp: 0,
            all: 0,
        };
        for (above, end) in [(0, End::Root), (8, End::Root), (9, zero), (600, zero)] {
            let words = vec![0; 4 + above];
            let found = walk_words_to(&map, regs, &words);
            assert_eq!(found, (vec![ip | EXACT], end), "{above} words above");
        }
    }
    // A signal's stack is not where a thread begins.
    let alt = Fake {
        parts: vec![(ALT..ALT + 8, vec![0])],
        reads: Cell::new(0),
    };
    let stack = Stack {
        low: STACK,
        end: STACK + 8,
        alt: Some(ALT..ALT + 8),
    };
    let regs = Regs {
        ip: native,
        sp: ALT,
        bp: 0,
        all: 0,
    };
    let walk = walk_in(
        &alt,
        &map,
        regs,
        &stack,
        &mut Scratch::new(),
        &mut [0; 4][..],
    );
    assert_eq!(
        walk,
        Walk {
            depth: 1,
            end: zero
        }
    );
}

#[test]
fn kinds_and_reasons_have_distinct_names() {
    let mut names: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Reason::ALL.len());
    for (index, reason) in Reason::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, index);
    }
    assert_ne!(CodeKind::Jit, CodeKind::Native);
}
