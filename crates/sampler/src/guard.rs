//! Whether our signals may be sent: what others have made of them, and of the handlers of faults.
//!
//! A signal's frame may only be written where there is room for it, and the kernel writes it before
//! any code of ours runs. So there are two signals ([`crate::Route`]): the one by which CLRs
//! interrupt their threads, on the stack where the thread is, and one of our own, on the thread's
//! alternate stack. The first is safe on a CLR's threads as long as it has no SA_ONSTACK, which
//! would write over the alternate stack that a CLR still uses while it handles a fault, and as long
//! as no handler of faults lets it in on that stack. Both can be changed by others at any time.
//!
//! It asks and judges; who is not signalled, the handler and the reader see to. The invariants:
//! what it asks are the kernel's own words; no handler is changed, of others' masks and flags no
//! more than that.

use core::sync::atomic::Ordering;

use crate::config::HoldReason;
use crate::global::{GLOBAL, Global};
use crate::slot::Slot;
use crate::sys::{self, Action};

/// Faults of which CLRs make exceptions, and those that others handle on alternate stacks.
pub(crate) const FAULTS: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGFPE,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGTRAP,
];
/// Those of them that come again and again in programs that go on.
const FREQUENT: usize = 2;

/// Why the thread of a slot may not be signalled now. Handler.
pub(crate) fn hold_reason(global: &Global, slot: &Slot) -> Option<HoldReason> {
    if slot.strayed.load(Ordering::Relaxed) {
        return Some(HoldReason::Strayed);
    }
    let held = if slot.on_own_signal.load(Ordering::Relaxed) {
        &global.own_held
    } else {
        &global.shared_held
    };
    HoldReason::of(held.load(Ordering::Relaxed))
}

/// Whether code that holds off these signals is in a handler of faults. Handler.
pub(crate) fn handles_fault(held_off: u64) -> bool {
    let frequent = FAULTS.iter().take(FREQUENT);
    frequent.fold(0, |set, fault| set | sys::bit(*fault)) & held_off != 0
}

/// As [`hold_reason`], after a look at what most often changes, which is cheap enough for each
/// signal; none is needed for our own. Handler.
pub(crate) fn hold_reason_now(global: &Global, slot: &Slot) -> Option<HoldReason> {
    if !slot.on_own_signal.load(Ordering::Relaxed) {
        check_signal(global, FAULTS.get(..FREQUENT).unwrap_or(&[]));
    }
    hold_reason(global, slot)
}

/// Looks at all. True: threads that were held may be signalled again.
pub(crate) fn check_all(global: &Global) -> bool {
    let own = global.own_signal.load(Ordering::Relaxed);
    let own_held = if is_ours(own) {
        0
    } else {
        HoldReason::Taken as u8
    };
    let was_own_held = global.own_held.swap(own_held, Ordering::Relaxed);
    let was_shared_held = check_signal(global, &FAULTS);
    let is_free = |was: u8, held: u8| was != 0 && held == 0;
    is_free(was_own_held, own_held)
        || is_free(was_shared_held, global.shared_held.load(Ordering::Relaxed))
}

/// Answers what held the shared signal before.
fn check_signal(global: &Global, faults: &[i32]) -> u8 {
    let shared = global.signal.load(Ordering::Relaxed);
    let held = if undo_alternate_stack(global, shared) {
        Some(HoldReason::Alternate)
    } else {
        let lets_in = faults.iter().any(|fault| !is_settled(*fault, shared));
        lets_in.then_some(HoldReason::Fault)
    };
    let held = held.map_or(0, |held| held as u8);
    // A look at some of the faults does not clear what a look at all has found.
    if held == 0 && faults.len() < FAULTS.len() {
        return 0;
    }
    global.shared_held.swap(held, Ordering::Relaxed)
}

/// Whether other code has put the signal onto the alternate stack. Puts it back: where a CLR
/// interrupts a thread that handles a fault, the frame would overwrite that stack, whether we send
/// anything or not; and it interrupts none that runs native code, on whatever stack.
pub(crate) fn undo_alternate_stack(global: &Global, shared: i32) -> bool {
    if let Some(found) = sys::action(shared).filter(|action| action.has(libc::SA_ONSTACK)) {
        global.moved.store(true, Ordering::Relaxed);
        replace(shared, &found, &found.without(libc::SA_ONSTACK));
    }
    global.moved.load(Ordering::Relaxed)
}

/// The measure to take about a handler of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Judgement {
    /// The signal does not come on the alternate stack where the handler runs.
    Safe,
    /// It does, until the handler holds it off.
    HoldOff,
    /// It does. Where the handler is left for good, which the flag says, a mask would stay.
    Leave,
}

fn judge(action: &Action, signal: i32) -> Judgement {
    if !action.is_handled() || !action.has(libc::SA_ONSTACK) || action.blocks(signal) {
        Judgement::Safe
    } else if action.has(libc::SA_NODEFER) {
        Judgement::Leave
    } else {
        Judgement::HoldOff
    }
}

/// Whether the handler of a fault holds the signal off by now.
fn is_settled(fault: i32, signal: i32) -> bool {
    let Some(found) = sys::action(fault) else {
        return true;
    };
    match judge(&found, signal) {
        Judgement::Safe => true,
        Judgement::Leave => false,
        Judgement::HoldOff => replace(fault, &found, &found.blocking(signal))
            .is_some_and(|action| judge(&action, signal) == Judgement::Safe),
    }
}

/// Changes an action that was just found. Where other code has changed it between the two, its
/// action is put back, and looked at next time. Answers which one is there now.
fn replace(signal: i32, found: &Action, new: &Action) -> Option<Action> {
    let before = sys::set_action(signal, new)?;
    if before == *found {
        return Some(*new);
    }
    sys::set_action(signal, &before);
    Some(before)
}

/// Whether our handler has the signal; 0 is none.
fn is_ours(signal: i32) -> bool {
    let on_signal = GLOBAL.on_signal.load(Ordering::Relaxed);
    signal != 0 && sys::disposition(signal).sa_sigaction == on_signal
}

/// A real-time signal that has no handler, the one of an earlier sampler first; 0 where there is
/// none.
pub(crate) fn choose_own_signal(shared: i32) -> i32 {
    let known = GLOBAL.own_signal.load(Ordering::Relaxed);
    if is_ours(known) {
        return known;
    }
    let is_free = |signal: &i32| {
        *signal != shared
            && sys::disposition(*signal).sa_sigaction == libc::SIG_DFL
            && sys::action(*signal).is_some_and(|action| !action.is_handled())
    };
    // From the middle: the first and the last are those that programs take.
    let (first, last) = (libc::SIGRTMIN(), libc::SIGRTMAX());
    let middle = first + (last - first) / 2;
    (middle..=last)
        .chain(first..middle)
        .find(is_free)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_of_faults_is_safe_where_it_holds_the_signal_off_or_has_no_stack_of_its_own() {
        const SIGNAL: i32 = 34;
        let action = |handler, flags: i32| Action {
            handler,
            flags: flags as u64,
            restorer: 0,
            mask: 0,
        };
        let on_alternate = action(0x1000, libc::SA_ONSTACK);
        for (action, judgement) in [
            (action(libc::SIG_DFL, libc::SA_ONSTACK), Judgement::Safe),
            (action(libc::SIG_IGN, libc::SA_ONSTACK), Judgement::Safe),
            (action(0x1000, libc::SA_SIGINFO), Judgement::Safe),
            (on_alternate, Judgement::HoldOff),
            (on_alternate.blocking(SIGNAL), Judgement::Safe),
            (on_alternate.blocking(SIGNAL + 1), Judgement::HoldOff),
            (
                action(0x1000, libc::SA_ONSTACK | libc::SA_NODEFER),
                Judgement::Leave,
            ),
        ] {
            assert_eq!(judge(&action, SIGNAL), judgement, "{action:?}");
        }
    }
}
