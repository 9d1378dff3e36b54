//! The system calls, thin.
//!
//! Those used in the handler are marked so: they take no lock and allocate nothing; `libc`'s
//! wrapper may set `errno`, which the handler puts back.

use core::ffi::c_int;

use crate::config::Error;

/// `errno` of this thread.
pub(crate) fn errno() -> i32 {
    // SAFETY: `__errno_location` gives this thread's errno, always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`. Handler.
pub(crate) fn set_errno(value: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value }
}

/// The error of the call just made.
pub(crate) fn last_error(call: &'static str) -> Error {
    Error::Os {
        call,
        errno: errno(),
    }
}

/// Thread id of the caller.
pub(crate) fn own_tid() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// A clock in nanoseconds; 0 if the clock does not exist (a thread that is gone). Handler.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid out-pointer.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return 0;
    }
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// CLOCK_MONOTONIC. Handler (vdso).
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread. Handler.
pub(crate) fn own_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The CPU clock of another thread of this process: the kernel's encoding (include/linux/
/// posix-timers.h, `MAKE_THREAD_CPUCLOCK` with CPUCLOCK_SCHED).
pub(crate) fn cpu_clock_of(tid: u32) -> libc::clockid_t {
    const PER_THREAD: u32 = 4;
    const SCHED: u32 = 2;
    ((!tid << 3) | PER_THREAD | SCHED) as libc::clockid_t
}

/// Length of the kernel's tick: the resolution of the coarse clock.
pub(crate) fn tick_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid out-pointer.
    if unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) } != 0 {
        return 4_000_000;
    }
    (time.tv_nsec as u64).max(1)
}

/// What the kernel tells about a signal, as laid out on x86-64 (include/uapi/asm-generic/
/// siginfo.h): the parts that we use.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SignalInfo {
    pub(crate) signo: i32,
    pub(crate) errno: i32,
    pub(crate) code: i32,
    pub(crate) padding: i32,
    /// SI_QUEUE: pid. SI_TIMER: timer id. POLL_*: low half of the band.
    pub(crate) first: i32,
    /// SI_QUEUE: uid. SI_TIMER: overrun. POLL_*: high half of the band.
    pub(crate) second: i32,
    /// SI_QUEUE, SI_TIMER: the value. POLL_*: the file descriptor, in the low half.
    pub(crate) value: u64,
    pub(crate) rest: [u64; 12],
}

const _: () = assert!(size_of::<SignalInfo>() == size_of::<libc::siginfo_t>());

/// Whether `tid` is a thread of this process.
pub(crate) fn is_own_thread(pid: i32, tid: u32) -> bool {
    // SAFETY: signal 0 is not sent; the kernel only checks that the thread is there.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) == 0 }
}

/// Queues `signal` with `value` to one thread of this process. Not for the handler.
pub(crate) fn queue_signal(pid: i32, tid: u32, signal: i32, value: u64) -> Result<(), i32> {
    let info = SignalInfo {
        signo: signal,
        errno: 0,
        code: libc::SI_QUEUE,
        padding: 0,
        first: pid,
        second: 0,
        value,
        rest: [0; 12],
    };
    // SAFETY: the kernel reads a siginfo_t, which `info` has the size and layout of.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            pid,
            tid,
            signal,
            &raw const info,
        )
    };
    if result == 0 { Ok(()) } else { Err(errno()) }
}

/// `write` of one 8-byte count to an eventfd. Handler. The raw call, because `libc`'s `write` is
/// a cancellation point.
pub(crate) fn notify(eventfd: c_int) {
    let one: u64 = 1;
    // SAFETY: eight readable bytes. A failure (the counter is full, the fd is gone) needs no
    // answer: the reader also comes at intervals.
    unsafe { libc::syscall(libc::SYS_write, eventfd, &raw const one, 8usize) };
}

/// Waits while the word has this value, at most so long. May return early.
pub(crate) fn futex_wait(word: &core::sync::atomic::AtomicU32, value: u32, timeout_ns: u64) {
    let timeout = libc::timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as i64,
        tv_nsec: (timeout_ns % 1_000_000_000) as i64,
    };
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the word and the timeout, both alive during the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            op,
            value,
            &raw const timeout,
        )
    };
}

/// Wakes who waits on the word. Handler.
pub(crate) fn futex_wake(word: &core::sync::atomic::AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the word's address alone.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, i32::MAX) };
}

/// Fresh zeroed memory, or `None`.
pub(crate) fn map_memory(len: usize) -> Option<*mut u8> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches nothing
    // that exists.
    let memory = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    (memory != libc::MAP_FAILED).then_some(memory.cast::<u8>())
}

/// Closes a file descriptor of ours.
pub(crate) fn close(fd: c_int) {
    // SAFETY: the caller owns `fd` and forgets it.
    unsafe { libc::close(fd) };
}
