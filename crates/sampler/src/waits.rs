//! Waits: a thread that waits where it has been seen to wait before is not woken to say so again.
//!
//! The handler that answers a wall-clock signal remembers the stack of a thread that waited when
//! the signal was sent, with the addresses at which the walk had found its return addresses. At a
//! later tick the reader asks the kernel where the thread waits, and looks whether the same return
//! addresses lie there still: then its stack is the same. It walks nothing, and decides about no
//! time; `clocks` does. The invariants: what is remembered is written by a handler between SENT and
//! NONE of `Slot::wall_signal` and read outside of that; it stays as it is while time that was
//! given to it has not been told; a thread is only said to wait if its CPU clock stood still from
//! before the kernel was asked until its stack had been read.
//!
//! | write | order | pairs with | so that |
//! | --- | --- | --- | --- |
//! | NONE in `wall_signal` by the handler | Release | the reader's Acquire in `clocks` | frames and depth are there |

use core::sync::atomic::{AtomicU64, Ordering};

use crate::config::WalkResult;
use crate::counters::DiscardReason;
use crate::global::GLOBAL;
use crate::slot::{Slot, WAIT_FRAMES};
use crate::sys;

/// Words of stack, from the first return address to the last, that are looked at at most.
const WAIT_WORDS: usize = 1024;
/// After so many looks in a row at which it waited elsewhere, a thread is looked at so closely ...
const MAX_MISSES: u32 = 8;
/// ... once in so many.
const RECHECK_EVERY: u32 = 16;

/// Where a thread waits, as far as its last look told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum WaitPlace {
    /// It moves.
    Moves = 0,
    /// Where its last sample was taken.
    Last = 1,
    /// Where the handler has remembered it.
    Known = 2,
}

impl WaitPlace {
    pub(crate) fn of(slot: &Slot) -> WaitPlace {
        match slot.reader.place.load(Ordering::Relaxed) {
            1 => WaitPlace::Last,
            2 => WaitPlace::Known,
            _ => WaitPlace::Moves,
        }
    }

    pub(crate) fn keep(self, slot: &Slot) {
        slot.reader.place.store(self as u8, Ordering::Relaxed);
    }
}

/// The result of a look at a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitState {
    /// It runs, or it is not known whether.
    Runs,
    /// It waits where it is worth remembering.
    Elsewhere,
    /// It waits where it did.
    Again,
}

/// Whether a thread waits where it did; its clock stood at `cpu` just now. Reader, while no
/// wall-clock signal is under way.
pub(crate) fn check_wait(slot: &Slot, tid: u32, clock: libc::clockid_t, cpu: u64) -> WaitState {
    let side = &slot.reader;
    let misses = side.wait_misses.load(Ordering::Relaxed);
    let missed = |misses: u32| side.wait_misses.store(misses, Ordering::Relaxed);
    if GLOBAL.wait.load(Ordering::Relaxed) == 0 || sys::clock_ns(clock) != cpu {
        return WaitState::Runs;
    }
    if misses >= MAX_MISSES && !misses.is_multiple_of(RECHECK_EVERY) {
        missed(misses.saturating_add(1));
        return WaitState::Runs;
    }
    let Some((sp, pc)) = sys::waits_at(tid) else {
        return WaitState::Runs;
    };
    if is_remembered(slot, sp, pc) && sys::clock_ns(clock) == cpu {
        missed(0);
        return WaitState::Again;
    }
    missed(misses.saturating_add(1));
    // Time that was given to what is remembered is to be told first.
    if side.wait_ns.load(Ordering::Relaxed) > 0 {
        return WaitState::Runs;
    }
    WaitState::Elsewhere
}

/// Whether the stack of a thread that waits at these registers is the one that is remembered.
fn is_remembered(slot: &Slot, sp: u64, pc: u64) -> bool {
    /// Length of the instruction that asks the kernel: where that begins anew behind a handler, the
    /// interrupted instruction is this one, and not the next.
    const SYSCALL: u64 = 2;
    let depth = depth(slot);
    if depth == 0 {
        return false;
    }
    let [_, known_sp, known_pc] = frame(slot, 0);
    if known_sp != sp || (known_pc != pc && known_pc.wrapping_add(SYSCALL) != pc) {
        return false;
    }
    if depth == 1 {
        return true;
    }
    let (first, last) = (frame(slot, 1)[1], frame(slot, depth - 1)[1]);
    let mut stack = [0; WAIT_WORDS];
    let words = last.wrapping_sub(first) / 8 + 1;
    let Some(stack) = usize::try_from(words)
        .ok()
        .and_then(|words| stack.get_mut(..words))
    else {
        return false;
    };
    sys::read_own(first, stack)
        && (1..depth).all(|at| {
            let [_, address, content] = frame(slot, at);
            let word = usize::try_from(address.wrapping_sub(first) / 8).ok();
            word.and_then(|word| stack.get(word)) == Some(&content)
        })
}

/// The words of the stack that is remembered, leaf first. Reader.
pub(crate) fn words<'a>(slot: &Slot, into: &'a mut [u64; WAIT_FRAMES]) -> &'a [u64] {
    let depth = depth(slot);
    for (at, word) in into.iter_mut().enumerate().take(depth) {
        *word = frame(slot, at)[0];
    }
    into.get(..depth).unwrap_or(&[])
}

fn depth(slot: &Slot) -> usize {
    (slot.wait_depth.load(Ordering::Relaxed) as usize).min(WAIT_FRAMES)
}

/// A frame that is remembered; `at` is below the depth.
fn frame(slot: &Slot, at: usize) -> [u64; 3] {
    let first = slot.wait_buffer().cast::<AtomicU64>().wrapping_add(3 * at);
    [0, 1, 2].map(|word| {
        // SAFETY: there is a depth, so the block was made with room for WAIT_FRAMES frames, and
        // `at` is below that; words at the end of a page-aligned block of whole pages are aligned.
        // No thread writes there meanwhile (the module's invariant), and it is mapped as long as
        // the slot is in use.
        unsafe { &*first.wrapping_add(word) }.load(Ordering::Relaxed)
    })
}

/// Remembers the interrupted stack if that was asked for: `walk` writes it, so many frames of three
/// words at most. Handler, inside the slot's gate, when it has just committed a sample of that
/// stack.
pub(crate) fn remember(
    slot: &Slot,
    walk: impl FnOnce(*mut u64, usize) -> Result<WalkResult, DiscardReason>,
) {
    if !slot.wait_asked.load(Ordering::Relaxed) {
        return;
    }
    slot.wait_asked.store(false, Ordering::Relaxed);
    slot.wait_depth.store(0, Ordering::Relaxed);
    let Ok(WalkResult {
        depth,
        end,
        reason: 0,
    }) = walk(slot.wait_buffer(), WAIT_FRAMES)
    else {
        return;
    };
    // The sample's parts beside its frames are not in this stack, and would be another one's the
    // next time.
    if depth == slot.last_depth.load(Ordering::Relaxed) && depth as usize <= WAIT_FRAMES {
        slot.wait_end.store(end, Ordering::Relaxed);
        slot.wait_depth.store(depth, Ordering::Relaxed);
    }
}
