//! Tests with invented thread objects: their words are used for the slot they name only.

use super::super::tests::{Fake, NATIVE, RETURN, ROOT, STACK, framed, map_with, without_root};
use super::super::{ADDRESS, BY_FRAME_POINTER, EXACT, End, Regs, Scratch, Stack, walk_in};
use super::*;
use crate::cfi::tests::table;
use crate::map::CodeMap;
use proptest::prelude::*;
use std::cell::Cell;

/// The stub's code, up to the end of its first part.
pub(in crate::walk) const STUB: [u8; 16] = [
    0x50, 0x55, 0x53, 0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0x52, 0x50, 0x48, 0x89, 0xe7,
];
const STUB_AT: u64 = NATIVE.start + 0x800;
/// A runtime's thread object.
const THREAD: u64 = 0x5600_0000_0000;
const OTHER_THREAD: u64 = 0x5700_0000_0000;

/// The stub with its table, and before it a function that ends in `ret`, as in libcoreclr.
fn runtime() -> Vec<u8> {
    let mut bytes = table(
        NATIVE.start,
        b"zR",
        &[
            (STUB_AT - 0x10, 0x10, &[]),
            // def_cfa_offset 16 after the first push, 120 after all
            (STUB_AT, 0x40, &[0x41, 0x0e, 16, 0x4c, 0x0e, 120]),
        ],
    );
    bytes.resize((STUB_AT - NATIVE.start) as usize - 1, 0x90);
    bytes.push(0xc3);
    bytes.extend(STUB);
    bytes.resize(0x1000, 0x90);
    bytes
}

struct Case {
    map: Box<CodeMap>,
    /// Start of a body of `framed`.
    start: u64,
    words: Vec<u64>,
    regs: Regs,
}

/// A method in its body, its caller and the root. The method's return address is replaced.
fn hijacked() -> Case {
    let (start, body) = framed();
    let at = |word: u64| STACK + word * 8;
    //               0  1  2     3 (rbp)  4 (ra) 5  6  7 (rbp) 8 (ra)       9  10 (rbp) 11 (ra)
    let words = vec![
        0,
        0,
        0,
        at(7),
        STUB_AT,
        0,
        0,
        at(10),
        start + RETURN,
        0,
        0,
        ROOT,
    ];
    let regs = Regs {
        ip: start + 8,
        sp: STACK,
        bp: at(3),
        all: 0,
    };
    Case {
        map: map_with(&[body], runtime()),
        start,
        words,
        regs,
    }
}

impl Case {
    /// Walks with thread objects that contain this: the address and the slot it was taken from.
    fn walk(&self, regs: Regs, said: &[(u64, (u64, u64))]) -> (Vec<u64>, End) {
        let end = STACK + self.words.len() as u64 * 8;
        let stack = self.words[(regs.sp - STACK) as usize / 8..].to_vec();
        let mut parts = vec![(regs.sp..end, stack)];
        let mut scratch = Scratch::new();
        for (index, (thread, (address, slot))) in said.iter().enumerate() {
            parts.push((*thread..*thread + 16, vec![*address, *slot]));
            scratch.hijacks[HIJACKS - 1 - index] = *thread;
        }
        let fake = Fake {
            parts,
            reads: Cell::new(0),
        };
        let stack = Stack {
            low: STACK,
            end,
            alt: None,
        };
        let mut out = [0u64; 16];
        let walk = walk_in(&fake, &self.map, regs, &stack, &mut scratch, &mut out[..]);
        (without_root(out[..walk.depth].to_vec(), walk.end), walk.end)
    }
}

const SLOT: u64 = STACK + 4 * 8;

#[test]
fn the_true_return_address_takes_the_place_of_the_stub() {
    let case = hijacked();
    let caller = case.start + RETURN;
    let expected = (vec![case.regs.ip | EXACT, caller, caller], End::Root);
    let ours = (THREAD, (caller, SLOT));
    assert_eq!(case.walk(case.regs, &[ours]), expected);
    // Another runtime of the process has the thread too, and hijacked it earlier.
    for foreign in [(caller, SLOT + 32), (0xcccc_cccc, 0xcccc_cccc), (0, 0)] {
        let said = [(OTHER_THREAD, foreign), ours];
        assert_eq!(case.walk(case.regs, &said), expected, "{foreign:x?}");
    }
}

/// The function before the stub ends at the stub's start: its last instruction has the address at
/// which a return to the stub is looked up.
#[test]
fn a_sample_of_the_instruction_before_the_stub_leaves_nothing_behind() {
    let mut case = hijacked();
    let caller = case.start + RETURN;
    let ret = Regs {
        ip: STUB_AT - 1,
        sp: STACK + 8 * 8,
        bp: STACK + 10 * 8,
        all: 0,
    };
    for _ in 0..2 {
        let (frames, end) = case.walk(ret, &[]);
        assert_eq!((frames, end), (vec![ret.ip | EXACT, caller], End::Root));
        let (frames, _) = case.walk(case.regs, &[(THREAD, (caller, SLOT))]);
        assert_eq!(frames, [case.regs.ip | EXACT, caller, caller]);
    }
    // The same as a caller: a call that is the last instruction before the stub.
    let mut bytes = runtime();
    let before = (STUB_AT - NATIVE.start) as usize;
    bytes[before - 2..before].copy_from_slice(&[0xff, 0xd0]);
    let (start, body) = framed();
    case.map = map_with(&[body], bytes);
    case.start = start;
    case.words[4] = STUB_AT;
    case.words[5] = start + RETURN;
    case.words[8] = start + RETURN;
    let regs = Regs {
        ip: start + 8,
        ..case.regs
    };
    let (frames, _) = case.walk(regs, &[]);
    assert_eq!(frames[..3], [regs.ip | EXACT, STUB_AT, start + RETURN]);
}

/// Words that name another slot, or no return address, are ignored. The walk continues by the frame
/// pointer and marks the frame.
#[test]
fn what_does_not_fit_is_not_believed() {
    let case = hijacked();
    let caller = case.start + RETURN;
    let expected = [case.regs.ip | EXACT, STUB_AT, caller | BY_FRAME_POINTER];
    for said in [
        None,
        Some((caller, SLOT - 8)),
        Some((caller, SLOT + 1)),
        Some((caller - 1, SLOT)),
        Some((STACK, SLOT)),
        Some((0, SLOT)),
        Some((u64::MAX, SLOT)),
    ] {
        let said: Vec<_> = said.map(|said| (THREAD, said)).into_iter().collect();
        let (frames, end) = case.walk(case.regs, &said);
        assert_eq!((&frames[..], end), (&expected[..], End::Root), "{said:x?}");
    }
}

/// In the stub, before and after `OnHijackWorker` has restored the return address.
#[test]
fn the_stub_itself_is_left_by_the_true_return_address() {
    let mut case = hijacked();
    let caller = case.start + RETURN;
    // The method has returned: its frame is removed, and the stub pushes rax into the slot.
    let returned = Regs {
        ip: STUB_AT,
        sp: SLOT + 8,
        bp: STACK + 7 * 8,
        all: 0,
    };
    let pushed = |words: u64, ip: u64| Regs {
        ip: STUB_AT + ip,
        sp: SLOT + 8 - words * 8,
        ..returned
    };
    for (regs, word) in [
        (returned, STUB_AT),
        (pushed(1, 1), 42),
        (pushed(1, 1), u64::MAX),
        (pushed(1, 1), caller),
    ] {
        case.words[4] = word;
        let (frames, end) = case.walk(regs, &[(THREAD, (caller, SLOT))]);
        let expected = vec![regs.ip | EXACT, caller, caller];
        assert_eq!((frames, end), (expected, End::Root), "{regs:x?} {word:x}");
    }
    // Without a record of its slot, the word itself is used.
    case.words[4] = caller;
    let (frames, end) = case.walk(pushed(1, 1), &[]);
    let expected = vec![(STUB_AT + 1) | EXACT, caller, caller];
    assert_eq!((frames, end), (expected, End::Root));
    // Before the first push there is no such word.
    let (frames, _) = case.walk(returned, &[]);
    assert_eq!(frames[1] & ADDRESS, caller);
    assert_ne!(frames[1], caller, "marked as a guess");
}

/// The fields are found in a newly constructed object, and in no other.
#[test]
fn the_words_are_found_in_a_new_thread_object() {
    let mut object: Vec<u64> = (0..512).map(|word| word * 0x0101_0101).collect();
    let offset = |object: &[u64]| hijack_offset(object.as_ptr() as u64);
    assert_eq!(offset(&object), None);
    object[37] = UNSET;
    assert_eq!(offset(&object), None, "one word");
    object[38] = UNSET;
    assert_eq!(offset(&object), Some(37 * 8));
    object[39] = UNSET;
    assert_eq!(offset(&object), None, "three words");
    object[39] = 0;
    object[400] = UNSET;
    assert_eq!(offset(&object), Some(37 * 8), "what lies behind the object");
    assert_eq!(hijack_offset(8), None, "no memory");
}

proptest! {
    #[test]
    fn any_address_may_be_asked_for_its_words(address: u64) {
        let _ = hijack_offset(address);
    }
}

/// The runtimes' stub begins right after another function, whose rules must not be used.
#[test]
fn the_byte_before_the_stub_is_known() {
    let case = hijacked();
    let reader = case.map.grace.enter();
    let entry = case.map.find(&reader, STUB_AT).unwrap();
    let found: Vec<u64> = NATIVE
        .filter(|address| is_before_stub(&entry.code, *address))
        .collect();
    assert_eq!(found, [STUB_AT - 1]);
}
