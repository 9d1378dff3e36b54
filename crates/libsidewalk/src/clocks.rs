//! The agent's own clock and wait functions, in place of the C library's.
//!
//! A program may run with replaced clock functions, such as libfaketime's. They would apply to the
//! agent too, and its CPU times, pauses and waits would be wrong. The functions here make the
//! system calls themselves and do all that the agent needs of the C library's. They are no
//! `pthread_cancel` cancellation points, because the agent's threads are never cancelled.
//! Invariant: nothing here allocates, locks or waits for other threads, because signal handlers
//! read clocks.

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, clockid_t, nfds_t, pollfd, sigset_t, timespec};

use crate::in_place::in_place_of;

in_place_of!("clock_gettime", own_clock_gettime);
in_place_of!("clock_nanosleep", own_clock_nanosleep);
in_place_of!("poll", own_poll);
in_place_of!("ppoll", own_ppoll);

/// Address of the kernel's `clock_gettime` in the process (vdso(7)), or 0 if there is none. It
/// reads most clocks without a system call, and makes one for the others.
static IN_PROCESS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the loader calls each word of `.init_array` as a function `extern "C" fn(c_int, argv,
// envp)`; one that takes no arguments may be called so on x86-64. It runs as this library is
// loaded, on the thread that does, which may call the loader then: its lock is recursive.
#[unsafe(link_section = ".init_array")]
#[used]
static FIND: extern "C" fn() = find;

extern "C" fn find() {
    // SAFETY: names that end with zero; the library is the kernel's, is there already or is not,
    // has no code that runs when it is opened, and is never unloaded.
    let found = unsafe {
        let flags = libc::RTLD_LAZY | libc::RTLD_LOCAL | libc::RTLD_NOLOAD;
        let library = libc::dlopen(c"linux-vdso.so.1".as_ptr(), flags);
        if library.is_null() {
            return;
        }
        libc::dlsym(library, c"__vdso_clock_gettime".as_ptr())
    };
    IN_PROCESS.store(found.addr(), Ordering::Relaxed);
}

type ClockGettime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;

unsafe extern "C" fn own_clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let known = IN_PROCESS.load(Ordering::Relaxed);
    if known == 0 {
        // SAFETY: the caller's promise.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as c_int;
    }
    // SAFETY: the address of the function of that name and contract, for as long as the process
    // lives.
    let read = unsafe { std::mem::transmute::<usize, ClockGettime>(known) };
    // SAFETY: the caller's promise.
    match unsafe { read(clock, time) } {
        0 => 0,
        // The vDSO returns the negated error, as a system call does.
        error => {
            // SAFETY: this thread's own.
            unsafe { *libc::__errno_location() = -error };
            -1
        }
    }
}

unsafe extern "C" fn own_clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    // SAFETY: the caller's promise; errno is this thread's own.
    unsafe {
        match libc::syscall(libc::SYS_clock_nanosleep, clock, flags, time, left) {
            0 => 0,
            // The function returns the error instead of setting errno.
            _ => *libc::__errno_location(),
        }
    }
}

unsafe extern "C" fn own_poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_poll, fds, count, timeout) as c_int }
}

unsafe extern "C" fn own_ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null or valid, as the caller guarantees. A copy, because the system call writes the
    // remaining time there, and the C library does not.
    let mut time = (!timeout.is_null()).then(|| unsafe { *timeout });
    let time = time
        .as_mut()
        .map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // Size of the kernel's signal set, bytes.
    const SET: usize = 8;
    // SAFETY: the caller's promise; the kernel reads the first 8 bytes of the C library's set.
    unsafe { libc::syscall(libc::SYS_ppoll, fds, count, time, mask, SET) as c_int }
}
