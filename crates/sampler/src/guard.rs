//! Checks whether our signals may be sent, given the signal actions that other code has installed.
//!
//! The kernel writes a signal's frame before any code of ours runs, so the stack must have room for
//! it. Therefore there are two signals ([`crate::Route`]): the one by which CLRs interrupt their
//! threads, on the thread's current stack, and one of our own, on the thread's alternate stack. The
//! first is safe on a CLR's threads under two conditions. It has no SA_ONSTACK, which would
//! overwrite the alternate stack that a CLR still uses while it handles a fault. And no handler of
//! faults allows it on that stack. Other code can change both at any time.
//!
//! The handler and the reader apply the result. Invariants: the checks read the kernel's own data.
//! No handler is replaced; of other code's masks and flags only the necessary ones are changed.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::config::HoldReason;
use crate::global::{GLOBAL, Global};
use crate::slot::Slot;
use crate::sys::{self, Action};

/// Faults that CLRs turn into exceptions, and those that other code handles on alternate stacks.
pub(crate) const FAULTS: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGFPE,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGTRAP,
];
/// The number of these, from the first, that occur repeatedly in programs that continue.
const FREQUENT: usize = 2;
/// Addresses of the handlers of [`FAULTS`] to whose masks the shared signal was added; 0 for none.
static MASKED: [AtomicUsize; FAULTS.len()] = [const { AtomicUsize::new(0) }; FAULTS.len()];

/// Returns why the thread of a slot may not be signalled now. Handler.
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

/// Whether code that blocks these signals is in a handler of faults. Handler.
pub(crate) fn handles_fault(held_off: u64) -> bool {
    let frequent = FAULTS.iter().take(FREQUENT);
    frequent.fold(0, |set, fault| set | sys::bit(*fault)) & held_off != 0
}

/// Whether the kernel has ever written a signal's frame to this alternate stack. That of a managed
/// thread is for faults. Handler.
///
/// The frame's FPU state, whose end `FP_XSTATE_MAGIC2` marks, ends within 68 bytes below the end of
/// the stack (`fpu__alloc_mathframe`, arch/x86/kernel/fpu/signal.c). The mark stays when the frame
/// is left: frames of handlers are below it.
pub(crate) fn has_held_frame(alternate: &Range<u64>) -> bool {
    const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
    let mut last = [0u64; 9];
    let start = (alternate.end & !7).saturating_sub(size_of_val(&last) as u64);
    let is_mark = |word: &u64| [*word as u32, (*word >> 32) as u32].contains(&FP_XSTATE_MAGIC2);
    start >= alternate.start && sys::read_own(start, &mut last) && last.iter().any(is_mark)
}

/// As [`hold_reason`], after a check of what changes most often, cheap enough for each signal. Our
/// own signal needs no check. Handler.
pub(crate) fn hold_reason_now(global: &Global, slot: &Slot) -> Option<HoldReason> {
    if !slot.on_own_signal.load(Ordering::Relaxed) {
        check_signal(global, FAULTS.get(..FREQUENT).unwrap_or(&[]));
    }
    hold_reason(global, slot)
}

/// Checks everything. Returns true if threads that were held may be signalled again.
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

/// Returns what held the shared signal before.
fn check_signal(global: &Global, faults: &[i32]) -> u8 {
    let shared = global.signal.load(Ordering::Relaxed);
    let held = if undo_alternate_stack(global, shared) {
        Some(HoldReason::Alternate)
    } else {
        let lets_in = faults.iter().any(|fault| !is_settled(*fault, shared));
        lets_in.then_some(HoldReason::Fault)
    };
    let held = held.map_or(0, |held| held as u8);
    // A check of some faults does not clear the result of a check of all.
    if held == 0 && faults.len() < FAULTS.len() {
        return 0;
    }
    global.shared_held.swap(held, Ordering::Relaxed)
}

/// Whether other code has set SA_ONSTACK on the signal. Removes the flag: if a CLR interrupts a
/// thread that handles a fault, the frame would overwrite the alternate stack, even without signals
/// of ours. A CLR does not interrupt a thread in native code, on any stack.
pub(crate) fn undo_alternate_stack(global: &Global, shared: i32) -> bool {
    if let Some(found) = sys::action(shared).filter(|action| action.has(libc::SA_ONSTACK)) {
        global.moved.store(true, Ordering::Relaxed);
        replace(shared, &found, &found.without(libc::SA_ONSTACK));
    }
    global.moved.load(Ordering::Relaxed)
}

/// The measure for a handler of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Judgement {
    /// None: the signal cannot arrive on the alternate stack while the handler runs.
    Safe,
    /// The handler must be made to block the signal, which can arrive there.
    HoldOff,
    /// None possible: the signal can arrive there. If the program never returns from the handler,
    /// as the flag indicates, a mask would stay in force.
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

/// Whether the handler of a fault blocks the signal, now or after the necessary change.
fn is_settled(fault: i32, signal: i32) -> bool {
    let Some(found) = sys::action(fault) else {
        return true;
    };
    match judge(&found, signal) {
        Judgement::Safe => true,
        Judgement::Leave => false,
        Judgement::HoldOff => {
            let is_settled = replace(fault, &found, &found.blocking(signal))
                .is_some_and(|action| judge(&action, signal) == Judgement::Safe);
            if let Some(masked) = masked(fault).filter(|_| is_settled) {
                masked.store(found.handler, Ordering::Relaxed);
            }
            is_settled
        }
    }
}

fn masked(fault: i32) -> Option<&'static AtomicUsize> {
    let mut known = FAULTS.iter().zip(&MASKED);
    known
        .find(|(known, _)| **known == fault)
        .map(|(_, masked)| masked)
}

/// Signals of faults with a handler that was installed without the shared signal in its mask,
/// although it has the alternate stack. Bit N - 1 is signal N.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenHandlers {
    /// Those to whose masks the sampler adds the signal, or has added it.
    pub masked: u64,
    /// Those to whose masks it cannot be added ([`HoldReason::Fault`]).
    pub left: u64,
}

/// Looks for such handlers. Changes nothing.
pub(crate) fn open_handlers(shared: i32) -> OpenHandlers {
    let mut open = OpenHandlers::default();
    for fault in FAULTS {
        let Some(found) = sys::action(fault) else {
            continue;
        };
        let is_masked = |known: &AtomicUsize| known.load(Ordering::Relaxed) == found.handler;
        match judge(&found, shared) {
            Judgement::Leave => open.left |= sys::bit(fault),
            Judgement::HoldOff => open.masked |= sys::bit(fault),
            Judgement::Safe if found.is_handled() => {
                if masked(fault).is_some_and(is_masked) {
                    open.masked |= sys::bit(fault);
                }
            }
            Judgement::Safe => {}
        }
    }
    open
}

/// Changes an action that was just read. If other code has changed it in between, that action is
/// restored, and checked next time. Returns the present action.
fn replace(signal: i32, found: &Action, new: &Action) -> Option<Action> {
    let before = sys::set_action(signal, new)?;
    if before == *found {
        return Some(*new);
    }
    sys::set_action(signal, &before);
    Some(before)
}

/// Whether our handler has the signal; 0 means no signal.
fn is_ours(signal: i32) -> bool {
    let on_signal = GLOBAL.on_signal.load(Ordering::Relaxed);
    signal != 0 && sys::disposition(signal).sa_sigaction == on_signal
}

/// Returns a real-time signal without a handler, preferably that of an earlier sampler; 0 if there
/// is none.
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
    // From the middle, because programs use the first and the last ones.
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
    fn an_alternate_stack_tells_whether_it_has_held_a_frame() {
        extern "C" fn nothing(_: i32) {}
        // Its end has any alignment.
        for less in [0, 8, 40, 61] {
            std::thread::spawn(move || {
                let mut memory = vec![0u8; 64 * 1024];
                let stack = libc::stack_t {
                    ss_sp: memory.as_mut_ptr().cast(),
                    ss_flags: 0,
                    ss_size: memory.len() - less,
                };
                let none = libc::stack_t {
                    ss_flags: libc::SS_DISABLE,
                    ..stack
                };
                let low = memory.as_ptr() as u64;
                let alternate = low..low + stack.ss_size as u64;
                // SAFETY: all-zero is a valid sigaction; a handler that does nothing.
                let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
                action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
                action.sa_flags = libc::SA_ONSTACK;
                // SAFETY: memory of this function, which has another stack before that is freed.
                unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) };
                assert!(!has_held_frame(&alternate));
                // SAFETY: as above; the handler stays, and no other test has this signal.
                unsafe {
                    libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut());
                    libc::raise(libc::SIGUSR2);
                    libc::sigaltstack(&raw const none, std::ptr::null_mut());
                }
                assert!(has_held_frame(&alternate), "{less}");
            })
            .join()
            .unwrap();
        }
        assert!(!has_held_frame(&(0..0)));
        assert!(!has_held_frame(&(4096..8192)));
    }

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
