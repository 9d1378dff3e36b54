//! Recognises threads that wait where they waited before, so that no signal must wake them.
//!
//! The handler that answers a wall-clock signal records the stack of a thread that was waiting when
//! the signal was sent, with the addresses of the return addresses. At a later tick the reader asks
//! the kernel where the thread waits, and checks whether the same return addresses are still in
//! place. If so, the stack is the same. This module does no walks, and `clocks` accounts for the
//! time.
//!
//! Invariants: the recorded stack is written by a handler between SENT and NONE of
//! `Slot::wall_signal` and read outside of that. It does not change while time that was added to it
//! has not been reported. A thread is only considered waiting if its CPU clock has not moved from
//! before the request to the kernel until after its stack was read.
//!
//! | write | order | pairs with | so that |
//! | --- | --- | --- | --- |
//! | NONE in `wall_signal` by the handler | Release | the reader's Acquire in `clocks` | frames and depth are complete |

use core::sync::atomic::{AtomicU64, Ordering};

use crate::config::WalkResult;
use crate::counters::DiscardReason;
use crate::global::GLOBAL;
use crate::slot::{Slot, WAIT_FRAMES};
use crate::sys;

/// Maximum number of stack words, from the first return address to the last, that are compared.
const WAIT_WORDS: usize = 1024;
/// Number of consecutive checks at which it waited elsewhere, after which a thread is checked this
/// closely ...
const MAX_MISSES: u32 = 8;
/// ... only once in this number of times.
const RECHECK_EVERY: u32 = 16;

/// Where a thread waits, according to its last check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum WaitPlace {
    /// It does not wait.
    Moves = 0,
    /// At the place of its last sample.
    Last = 1,
    /// At the place that the handler has recorded.
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

/// Result of a check of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitState {
    /// It runs, or its state is unknown.
    Runs,
    /// It waits at a place that should be recorded.
    Elsewhere,
    /// It waits at the recorded place.
    Again,
}

/// Returns whether a thread waits at the recorded place; its clock has just shown `cpu`. Reader,
/// while no wall-clock signal is under way.
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
    // Time that was added to the recorded stack is reported first.
    if side.wait_ns.load(Ordering::Relaxed) > 0 {
        return WaitState::Runs;
    }
    WaitState::Elsewhere
}

/// Whether the stack of a thread that waits at these registers is the recorded one.
fn is_remembered(slot: &Slot, sp: u64, pc: u64) -> bool {
    /// Length of the system call instruction. If the call is restarted after a handler, the
    /// interrupted instruction is this one, not the next.
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

/// Returns the words of the recorded stack, leaf first. Reader.
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

/// Returns a frame of the recorded stack; `at` is below the depth.
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

/// Records the interrupted stack if requested: `walk` writes up to the given number of frames of
/// three words. Handler, inside the slot's gate, just after it has committed a sample of that
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
    // Data of the sample besides its frames is not in this stack, and may differ next time.
    if depth == slot.last_depth.load(Ordering::Relaxed) && depth as usize <= WAIT_FRAMES {
        slot.wait_end.store(end, Ordering::Relaxed);
        slot.wait_depth.store(depth, Ordering::Relaxed);
    }
}
