//! System calls that only the agent makes, not a CLR, and whether a seccomp filter allows them.
//!
//! A filter may end the program for a call that the program itself does not need. So if a filter is
//! in force, a throwaway child makes each call first (`trial`). A call that ends the child, or is
//! refused, is not allowed to the agent. This crate decides which calls are allowed. A caller
//! checks [`is_allowed`] and has its own fallback.
//!
//! Invariants: [`is_allowed`] returns true only for calls that the filter in force at the last
//! [`refresh`] let through. A thread that had no filter then and has one now may make only tried
//! calls.

#![no_std]

pub mod proc;
mod table;
mod trial;

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

pub use table::{COUNT, Call};

/// The known outcome of a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Not tried, because there was no filter.
    Unfiltered,
    /// Let through by the filter.
    LetThrough,
    /// Refused by the filter, with this errno.
    Refused(i32),
    /// The filter ends the program.
    Ends,
    /// Not tried, because no child could be created.
    Untried,
}

const UNFILTERED: i32 = 0;
const ALLOWED: i32 = -1;
const ENDS: i32 = -2;
const UNTRIED: i32 = -3;

/// Outcomes by row of the table. Positive: an errno.
static VERDICTS: [AtomicI32; COUNT] = [const { AtomicI32::new(UNFILTERED) }; COUNT];

/// Number of filters when the calls were last tried, plus one; 0 if they were never tried.
static TRIED: AtomicU32 = AtomicU32::new(0);
const TRYING: u32 = u32::MAX;

/// Whether the calling thread's system calls are filtered. Async-signal-safe; preserves errno.
///
/// Uses `prctl`, which each runtime uses too, to name its threads.
pub fn is_filtered() -> bool {
    /// include/uapi/linux/prctl.h
    const PR_GET_SECCOMP: i64 = 21;
    // SAFETY: a query only.
    let mode = unsafe { trial::raw(libc::SYS_prctl, [PR_GET_SECCOMP, 0, 0, 0, 0]) };
    // A kernel without seccomp returns EINVAL. A filter may refuse the call.
    mode != 0 && mode != -i64::from(libc::EINVAL)
}

/// Returns the number of filters of the calling thread, or 0 if the kernel (before 5.9) does not
/// report it.
fn filters() -> u32 {
    let mut text = [0_u8; 4096];
    let text = proc::read_file(c"/proc/thread-self/status", &mut text);
    proc::decimal(proc::field(text, b"Seccomp_filters:")).unwrap_or(0)
}

/// Tries all calls of the table again if the calling thread has more filters than at the last call.
/// Call it before the first of these system calls is made, and periodically after that.
pub fn refresh() {
    if !is_filtered() {
        return;
    }
    let now = filters().saturating_add(1);
    let tried = TRIED.load(Ordering::Acquire);
    if tried == now || tried == TRYING {
        return;
    }
    let claimed = TRIED.compare_exchange(tried, TRYING, Ordering::AcqRel, Ordering::Relaxed);
    if claimed.is_err() {
        return; // another thread tries them; `is_allowed` allows nothing untried meanwhile
    }
    let mut answers = [trial::UNANSWERED; COUNT];
    let known = trial::try_all(&mut answers, trial::may_share_memory());
    for (at, (row, answer)) in table::TABLE.iter().zip(answers).enumerate() {
        let verdict = match answer {
            _ if at >= known => UNTRIED,
            trial::UNANSWERED => ENDS,
            0.. => ALLOWED,
            error => match i32::try_from(-error) {
                Ok(errno) if !row.answers.contains(&errno) => errno,
                _ => ALLOWED,
            },
        };
        if let Some(place) = VERDICTS.get(at) {
            place.store(verdict, Ordering::Relaxed);
        }
    }
    TRIED.store(now, Ordering::Release);
}

/// Whether the calling thread may make this call. Async-signal-safe; preserves errno.
pub fn is_allowed(call: Call) -> bool {
    are_allowed(&[call])
}

/// Whether the calling thread may make all these calls. Asks the kernel at most once.
pub fn are_allowed(calls: &[Call]) -> bool {
    let all_are = |allowed: &[Verdict]| calls.iter().all(|call| allowed.contains(&verdict(*call)));
    all_are(&[Verdict::LetThrough])
        || all_are(&[Verdict::LetThrough, Verdict::Unfiltered]) && !is_filtered()
}

/// Returns the outcome that the last [`refresh`] found.
pub fn verdict(call: Call) -> Verdict {
    let verdict = VERDICTS.get(call as usize);
    match verdict.map_or(UNTRIED, |verdict| verdict.load(Ordering::Relaxed)) {
        UNFILTERED => Verdict::Unfiltered,
        ALLOWED => Verdict::LetThrough,
        ENDS => Verdict::Ends,
        errno @ 1.. => Verdict::Refused(errno),
        _ => Verdict::Untried,
    }
}

/// Returns the errno for a call that is not allowed: the filter's, or EPERM if the filter would end
/// the program.
pub fn refusal(call: Call) -> i32 {
    match verdict(call) {
        Verdict::Refused(errno) => errno,
        _ => libc::EPERM,
    }
}

/// Returns a call that the agent requires and for which the filter would end the program.
pub fn first_fatal() -> Option<Call> {
    // If the first child could not be reaped, the other calls are unknown, and the filter is one
    // that ends programs.
    let is_unknown = verdict(Call::Wait4) == Verdict::Ends;
    Call::all().find(|call| {
        let verdict = verdict(*call);
        let may_end = verdict == Verdict::Ends || is_unknown && verdict == Verdict::Untried;
        !call.is_optional() && may_end
    })
}
