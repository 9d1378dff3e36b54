//! System calls that the agent makes in a program and a CLR does not, and whether a filter of
//! system calls (seccomp) lets them through.
//!
//! A filter may end the program for a call that it has no need of itself. So where one is in force,
//! no such call is made before a throwaway child has made it (`trial`); what ends the child, or is
//! refused, the agent does without. Here it is decided which calls may be made; who makes them asks
//! ([`is_allowed`]), and knows what to do instead. The invariant: [`is_allowed`] allows nothing
//! that has not been let through by the filter that was in force at the last [`refresh`]; a thread
//! that had none then and has one now is allowed nothing that has not been tried.

#![no_std]

pub mod proc;
mod table;
mod trial;

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

pub use table::{COUNT, Call};

/// The known outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It was not tried, as there was no filter.
    Unfiltered,
    /// It is let through.
    LetThrough,
    /// It is refused, with this errno.
    Refused(i32),
    /// The program would end.
    Ends,
    /// There could be no child to try it in.
    Untried,
}

const UNFILTERED: i32 = 0;
const ALLOWED: i32 = -1;
const ENDS: i32 = -2;
const UNTRIED: i32 = -3;

/// Positive: an errno.
static VERDICTS: [AtomicI32; COUNT] = [const { AtomicI32::new(UNFILTERED) }; COUNT];

/// How many filters there were when calls were tried, and one more; 0: never.
static TRIED: AtomicU32 = AtomicU32::new(0);
const TRYING: u32 = u32::MAX;

/// Whether the calling thread's system calls are filtered. Async-signal-safe; errno stays.
///
/// `prctl`, which each runtime makes too: it names its threads.
pub fn is_filtered() -> bool {
    /// include/uapi/linux/prctl.h
    const PR_GET_SECCOMP: i64 = 21;
    // SAFETY: only asks.
    let mode = unsafe { trial::raw(libc::SYS_prctl, [PR_GET_SECCOMP, 0, 0, 0, 0]) };
    // A kernel without filters does not know the question; a filter may refuse it.
    mode != 0 && mode != -i64::from(libc::EINVAL)
}

/// How many filters the calling thread has; 0 where the kernel (before 5.9) does not tell.
fn filters() -> u32 {
    let mut text = [0_u8; 4096];
    let text = proc::read_file(c"/proc/thread-self/status", &mut text);
    proc::decimal(proc::field(text, b"Seccomp_filters:")).unwrap_or(0)
}

/// Looks whether the calling thread's system calls are filtered, by more filters than at the last
/// time, and tries all of the table if so. To be called before the first of them is made, and now
/// and then.
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
        return; // somebody else does it, and `is_allowed` allows nothing untried meanwhile
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

/// Whether the calling thread may make this call. Async-signal-safe; errno stays.
pub fn is_allowed(call: Call) -> bool {
    are_allowed(&[call])
}

/// Whether it may make each of these: the kernel is asked once for all of them, at most.
pub fn are_allowed(calls: &[Call]) -> bool {
    let all_are = |allowed: &[Verdict]| calls.iter().all(|call| allowed.contains(&verdict(*call)));
    all_are(&[Verdict::LetThrough])
        || all_are(&[Verdict::LetThrough, Verdict::Unfiltered]) && !is_filtered()
}

/// Returns the finding of the last [`refresh`].
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

/// The errno of a call that may not be made: what the filter answers, or EPERM where it would end
/// the program.
pub fn refusal(call: Call) -> i32 {
    match verdict(call) {
        Verdict::Refused(errno) => errno,
        _ => libc::EPERM,
    }
}

/// A call that the agent cannot do without and for which the filter would end the program.
pub fn first_fatal() -> Option<Call> {
    // Where the first child could not be taken in, the others are not known, and the filter is one
    // that ends programs.
    let is_unknown = verdict(Call::Wait4) == Verdict::Ends;
    Call::all().find(|call| {
        let verdict = verdict(*call);
        let may_end = verdict == Verdict::Ends || is_unknown && verdict == Verdict::Untried;
        !call.is_optional() && may_end
    })
}
