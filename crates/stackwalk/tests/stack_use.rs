//! Checks how much stack a walk uses.
//!
//! Handlers run on the interrupted thread's stack, which may be an alternate stack of a few KiB.

use stackwalk::survey::{LeaveMethod, survey};
use stackwalk::{CodeMap, ModuleChange, Regs, Scratch, Stack, Traced};
use std::collections::BTreeMap;

static MAP: CodeMap = CodeMap::new();
/// Limit of stack use, in bytes from the call of `walk` down. docs/unwinding.md documents it.
const LIMIT: usize = 1800;

const PAINT: u64 = 0xa5a5_a5a5_a5a5_a5a5;
const PAINTED: usize = 4096;

/// Fills the stack below the caller's frame with a pattern. Returns the start and the end.
#[inline(never)]
fn paint() -> (usize, usize) {
    let mut room = [0u64; PAINTED];
    for word in &mut room {
        // SAFETY: a word of `room`. Volatile: it is not read before this returns.
        unsafe { std::ptr::from_mut(word).write_volatile(PAINT) };
    }
    let start = room.as_ptr() as usize;
    (start, start + size_of_val(&room))
}

/// Returns how far below its end the painted part was overwritten since, bytes.
#[inline(never)]
fn used((start, end): (usize, usize), copy: &mut [u64; PAINTED]) -> usize {
    // Copied first, by a call that uses nearly no stack itself.
    // SAFETY: this thread's own stack, below the frames in use: mapped, as it was written to; the
    // copy is as large, and not on this stack.
    unsafe { libc::memcpy(copy.as_mut_ptr().cast(), start as *const _, end - start) };
    let untouched = copy.iter().take_while(|word| **word == PAINT).count();
    end - start - untouched * 8
}

#[inline(never)]
fn walk(regs: Regs, stack: &Stack, scratch: &mut Scratch, out: &mut [u64]) -> usize {
    // SAFETY: the registers lead into `words` of the caller, which are the stack; `all` is an array
    // of as many registers as there are.
    unsafe { stackwalk::walk(&MAP, regs, stack, scratch, out) }.depth
}

#[inline(never)]
fn trace(regs: Regs, stack: &Stack, scratch: &mut Scratch, out: &mut [Traced]) -> usize {
    // SAFETY: as above.
    unsafe { stackwalk::trace(&MAP, regs, stack, scratch, out) }.depth
}

#[test]
fn a_cold_walk_takes_at_most_1800_bytes_of_stack() {
    let mut modules = Vec::new();
    MAP.refresh_native(&mut |change| {
        if let ModuleChange::Loaded { module } = change {
            modules.push(module.clone());
        }
        0
    });
    // A stack on which each word is a return address, and a frame pointer that leads up it. A walk
    // from any start continues through known code.
    let here = a_cold_walk_takes_at_most_1800_bytes_of_stack as fn() as usize as u64;
    let known = (here..here + 4096)
        .find(|at| MAP.is_behind_call(*at))
        .unwrap();
    let mut words = [known; 256];
    let start = words.as_ptr() as u64;
    let stack = Stack {
        low: 0,
        end: start + 2048,
        alt: None,
    };
    for (index, word) in words
        .iter_mut()
        .enumerate()
        .filter(|(index, _)| index % 3 == 0)
    {
        *word = start + (index as u64 + 8).min(250) * 8;
    }
    let registers = [start + 800; 23];
    let regs = Regs {
        ip: 0,
        sp: start + 128,
        bp: start + 480,
        all: registers.as_ptr() as u64,
    };
    // Rows of every kind of every module of this process, first and later ones.
    let mut places: BTreeMap<LeaveMethod, Vec<u64>> = BTreeMap::new();
    for module in &modules {
        survey(&module.path, &mut |row| {
            let places = places.entry(row.way).or_default();
            if row.way != LeaveMethod::Packed || places.len() < 2000 {
                places.push(row.range.start + module.bias);
            }
        });
    }
    for way in [
        LeaveMethod::Packed,
        LeaveMethod::Evaluated,
        LeaveMethod::Register,
        LeaveMethod::Root,
    ] {
        assert!(places.contains_key(&way), "{way:?}: {:?}", places.keys());
    }
    // Unknown code, and a JIT body.
    places.insert(LeaveMethod::Malformed, vec![8, start, u64::MAX]);
    let body: &'static [u8] = vec![0x55, 0x48, 0x8b, 0xec, 0xff, 0xd0, 0x5d, 0xc3].leak();
    // SAFETY: the code lives forever.
    let jitted = unsafe { stackwalk::jit::body_from_code(body.as_ptr() as u64, 8) };
    assert!(MAP.add_jit_body(jitted, 1));
    let jitted = (0..8).map(|at| body.as_ptr() as u64 + at);
    places
        .entry(LeaveMethod::Unpacked)
        .or_default()
        .extend(jitted);
    let (mut scratch, mut out, mut traced) = (Scratch::new(), [0; 128], [Traced::default(); 128]);
    let mut copy = Box::new([0; PAINTED]);
    let mut most = 0;
    for (way, places) in places {
        let (mut deepest, mut frames) = (0, 0);
        for ip in places {
            let regs = Regs { ip, ..regs };
            MAP.forget_rules_in(0..1 << 47);
            let painted = paint();
            frames += walk(regs, &stack, &mut scratch, &mut out);
            deepest = deepest.max(used(painted, &mut copy));
            MAP.forget_rules_in(0..1 << 47);
            let painted = paint();
            frames += trace(regs, &stack, &mut scratch, &mut traced);
            deepest = deepest.max(used(painted, &mut copy));
        }
        println!("{way:?}: {deepest} bytes, {frames} frames");
        most = most.max(deepest);
    }
    assert!(most > 200, "{most} bytes are too few to be true");
    assert!(most <= LIMIT, "a walk took {most} bytes of stack");
}
