//! Test library: makes CPU-time clocks run ten times as fast, as libfaketime does to a process.
//!
//! It is preloaded into a program (`LD_PRELOAD`) and replaces `clock_gettime`. Clocks of wall time
//! are unchanged, because every wait with a deadline would have to change with them. With
//! `MONOTONIC_AHEAD` in the environment `CLOCK_MONOTONIC` is an hour ahead of the kernel's, for
//! programs that wait by relative times alone.

const FASTER: i64 = 10;
/// Seconds by which `CLOCK_MONOTONIC` is ahead.
const AHEAD: i64 = 3600;

/// Replaces `clock_gettime` of the C library.
///
/// # Safety
/// As `clock_gettime`: `time` is a valid pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(
    clock: libc::clockid_t,
    time: *mut libc::timespec,
) -> libc::c_int {
    // SAFETY: the caller's promise; the system checks the clock.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    let is_cpu = matches!(
        clock,
        libc::CLOCK_PROCESS_CPUTIME_ID | libc::CLOCK_THREAD_CPUTIME_ID
    ) || clock < 0;
    if result == 0 && is_cpu {
        // SAFETY: the caller's promise; the system has just written it.
        let time = unsafe { &mut *time };
        let fraction = time.tv_nsec * FASTER;
        time.tv_sec = time.tv_sec * FASTER + fraction / 1_000_000_000;
        time.tv_nsec = fraction % 1_000_000_000;
    }
    // SAFETY: a string that ends with 0. Programs under test change no environment meanwhile.
    let is_ahead = || unsafe { !libc::getenv(c"MONOTONIC_AHEAD".as_ptr()).is_null() };
    if result == 0 && clock == libc::CLOCK_MONOTONIC && is_ahead() {
        // SAFETY: as above.
        unsafe { (*time).tv_sec += AHEAD };
    }
    result as libc::c_int
}
