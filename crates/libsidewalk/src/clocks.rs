//! The agent's own clocks and waits, in place of the C library's functions.
//!
//! A program may run with others before the C library's (libfaketime, to test what it does on
//! another day, or in a hurry), and then they are the agent's too: its CPU times, pauses and waits
//! were those of another world. So what is here must do all that the C library's does for us; it
//! ends no waits by `pthread_cancel`, as our threads are never cancelled. Invariant: nothing here
//! allocates, locks or waits for others, as handlers read clocks.

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, clockid_t, nfds_t, pollfd, sigset_t, timespec};

use crate::in_place::in_place_of;

in_place_of!("clock_gettime", own_clock_gettime);
in_place_of!("clock_nanosleep", own_clock_nanosleep);
in_place_of!("poll", own_poll);
in_place_of!("ppoll", own_ppoll);

/// Address of the kernel's function in the process (vdso(7)), which needs no system call for most
/// clocks, and makes one itself for others; 0 where there is none.
static IN_PROCESS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the loader calls each word of `.init_array` as a function `extern "C" fn(c_int, argv,
// envp)`; one that takes no arguments may be called so on x86-64. It runs as this library is
// loaded, on the thread that does, which may call the loader then: glibc's lock is recursive, musl
// has released its own (`dlopen`, ldso/dynlink.c).
#[unsafe(link_section = ".init_array")]
#[used]
static FIND: extern "C" fn() = find;

extern "C" fn find() {
    // SAFETY: names that end with zero; the library is the kernel's, is there already or is not,
    // has no code that runs when it is opened, and is never unloaded.
    let found = unsafe {
        let flags = libc::RTLD_LAZY | libc::RTLD_LOCAL | libc::RTLD_NOLOAD;
        // As glibc and as musl call it.
        let names = [c"linux-vdso.so.1", c"linux-gate.so.1"].into_iter();
        let mut libraries = names.map(|name| libc::dlopen(name.as_ptr(), flags));
        let Some(library) = libraries.find(|library| !library.is_null()) else {
            return;
        };
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
        // As a system call: the error, negated.
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
            // It answers the error itself.
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
    // SAFETY: null or valid, by the caller's promise. The system writes there what is left, the C
    // library does not: so a copy.
    let mut time = (!timeout.is_null()).then(|| unsafe { *timeout });
    let time = time
        .as_mut()
        .map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // Bytes of the kernel's signal set.
    const SET: usize = 8;
    // SAFETY: the caller's promise; the kernel reads the first 8 bytes of the C library's set.
    unsafe { libc::syscall(libc::SYS_ppoll, fds, count, time, mask, SET) as c_int }
}
