//! Waking the agent thread, from callbacks and from the signal handler.
//!
//! Not a queue: it says "come", never what for. No descriptor, as a program may close those that it does
//! not know (`closefrom`) and get the number for a file of its own: a word in memory that the kernel waits on
//! (futex). While a session waits for descriptors too, it lends what makes one of them readable
//! ([`Wake::also_by`]). Invariants: it lives as long as the process, so that a late signal finds it; ringing
//! neither waits nor allocates.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// Whom the handler wakes; null before there is anybody.
static SERVED: AtomicPtr<Wake> = AtomicPtr::new(std::ptr::null_mut());
/// The handler has called and nobody has come since.
static CALLED: AtomicBool = AtomicBool::new(false);

/// Wakes the agent thread. One per process.
#[derive(Debug, Default)]
pub struct Wake {
    /// Counts rings.
    rung: AtomicU32,
    /// Rings that the agent thread has come for.
    heard: AtomicU32,
    /// A function to call after a ring: its address, 0 for none.
    also: AtomicUsize,
}

impl Wake {
    /// Nobody has rung.
    pub fn new() -> Wake {
        Wake::default()
    }

    /// From now on the handler reaches this one.
    pub fn serve_handler(&'static self) {
        let pointer = std::ptr::from_ref(self).cast_mut();
        SERVED.store(pointer, Ordering::Release); // pairs with `call_from_handler`
    }

    /// Rings also by a function that is async-signal-safe but for errno, and stays loaded; `None`: no more.
    pub fn also_by(&self, ring: Option<fn()>) {
        let address = ring.map_or(0, |ring| ring as usize);
        self.also.store(address, Ordering::Release); // pairs with `ring`
    }

    /// Makes [`Wake::wait`] return, now or when it is next called. Async-signal-safe, but for errno.
    pub fn ring(&self) {
        self.rung.fetch_add(1, Ordering::Release); // pairs with `take`
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the kernel uses the word's address alone.
        unsafe { libc::syscall(libc::SYS_futex, self.rung.as_ptr(), op, 1) };
        let also = self.also.load(Ordering::Acquire); // pairs with `also_by`
        if also != 0 {
            // SAFETY: `also_by` stored the address of such a function.
            let also = unsafe { std::mem::transmute::<usize, fn()>(also) };
            also();
        }
    }

    /// Whether anybody has rung since the last call.
    fn take(&self) -> bool {
        let rung = self.rung.load(Ordering::Acquire); // pairs with `ring`
        self.heard.swap(rung, Ordering::Relaxed) != rung
    }

    /// Sleeps until somebody rings, one of `others` is readable (-1: none), or the time is over; for
    /// ever without a `timeout`. Takes note of the ringing: the next call sleeps again. False: it was the
    /// time. Agent thread only. Where there are `others` (16 at most), one of them is what [`Wake::also_by`] makes
    /// readable.
    pub fn wait(&self, others: &[RawFd], timeout: Option<Duration>) -> bool {
        if self.take() {
            return true;
        }
        let limit = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut readable = 0;
        if others.iter().all(|fd| *fd < 0) {
            let heard = self.heard.load(Ordering::Relaxed);
            let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            let word = self.rung.as_ptr();
            // SAFETY: the kernel reads the word and the timeout or none, alive during the call.
            unsafe { libc::syscall(libc::SYS_futex, word, op, heard, limit) };
        } else {
            // The kernel passes over a negative descriptor.
            let mut fds = [libc::pollfd {
                fd: -1,
                events: libc::POLLIN,
                revents: 0,
            }; 16];
            for (entry, fd) in fds.iter_mut().zip(others) {
                entry.fd = *fd;
            }
            let (start, length) = (fds.as_mut_ptr(), fds.len() as libc::nfds_t);
            // SAFETY: so many pollfds and a timeout or none, alive during the call; no signal mask.
            readable = unsafe { libc::ppoll(start, length, limit, std::ptr::null()) };
        }
        self.take() || readable > 0
    }
}

/// Wakes the agent thread to look for new modules: the handler has met code that nobody knows.
/// Once until [`hear_call`]. Async-signal-safe, but for errno, which the sampler keeps.
pub fn call_from_handler() {
    if CALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    let served = SERVED.load(Ordering::Acquire); // pairs with `serve_handler`
    // SAFETY: null, or what `serve_handler` was given, which lives as long as the process.
    if let Some(wake) = unsafe { served.as_ref() } {
        wake.ring();
    }
}

/// Takes the handler's call: the next one wakes again. Agent thread.
pub fn hear_call() {
    CALLED.store(false, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_rings_before_the_wait_is_heard_once() {
        let wake = Wake::new();
        wake.ring();
        wake.ring();
        // Would not return if it had not been heard.
        wake.wait(&[], None);
        wake.wait(&[], Some(Duration::ZERO));
        assert!(!wake.take());
    }

    #[test]
    fn who_rings_during_the_wait_is_heard() {
        let wake: &'static Wake = Box::leak(Box::new(Wake::new()));
        let rings = std::thread::spawn(|| wake.ring());
        wake.wait(&[], None);
        rings.join().unwrap();
    }

    #[test]
    fn one_who_waits_for_descriptors_is_woken_by_what_was_lent() {
        static PIPE: AtomicU32 = AtomicU32::new(0);
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        PIPE.store(ends[1].cast_unsigned(), Ordering::Relaxed);
        let wake: &'static Wake = Box::leak(Box::new(Wake::new()));
        wake.also_by(Some(|| {
            let end = PIPE.load(Ordering::Relaxed).cast_signed();
            // SAFETY: one byte of a static text.
            unsafe { libc::write(end, b"x".as_ptr().cast(), 1) };
        }));
        let rings = std::thread::spawn(|| wake.ring());
        wake.wait(&[ends[0]], None);
        rings.join().unwrap();
        wake.also_by(None);
        for end in ends {
            // SAFETY: this test's own.
            unsafe { libc::close(end) };
        }
    }
}
