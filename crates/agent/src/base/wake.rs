//! Waking the agent thread, from callbacks and from the signal handler.
//!
//! Not a queue: it says "come", never what for. Invariants: it lives as long as the process, so
//! that a late signal finds it; ringing neither waits nor allocates; a descriptor that the program
//! has closed under us ([`libc::POLLNVAL`]) is not waited on again, so that the agent thread sleeps.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

/// The eventfd of [`Wake`] for the handler, -1 before there is one.
static FD: AtomicI32 = AtomicI32::new(-1);
/// The handler has called and nobody has come since.
static CALLED: AtomicBool = AtomicBool::new(false);

/// Wakes the agent thread. One per process.
#[derive(Debug)]
pub struct Wake {
    fd: OwnedFd,
    /// The descriptor is ours no more: a program may close what it does not know.
    lost: AtomicBool,
}

impl Wake {
    /// `None` where the kernel has no descriptor for us.
    pub fn new() -> Option<Wake> {
        // SAFETY: no preconditions; the descriptor is new and nobody else's.
        let fd = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        }?;
        Some(Wake {
            fd,
            lost: AtomicBool::new(false),
        })
    }

    /// From now on the handler reaches this one.
    pub fn serve_handler(&'static self) {
        FD.store(self.fd.as_raw_fd(), Ordering::Release); // pairs with `call_from_handler`
    }

    /// Makes [`Wake::wait`] return, now or when it is next called.
    pub fn ring(&self) {
        ring(self.fd.as_raw_fd());
    }

    /// Sleeps until somebody rings, one of `others` is readable (-1: none), or the time is over; for
    /// ever without a `timeout`. Takes note of the ringing: the next call sleeps again. Agent thread
    /// only.
    pub fn wait(&self, others: [RawFd; 2], timeout: Option<Duration>) {
        let own = if self.lost.load(Ordering::Relaxed) {
            -1
        } else {
            self.fd.as_raw_fd()
        };
        // The kernel passes over a negative descriptor.
        let mut fds = [own, others[0], others[1]].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        // Without a descriptor to be woken by, it looks by itself now and then.
        let timeout = timeout.or((own < 0).then_some(Duration::from_millis(100)));
        let limit = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: three pollfds and a timeout or none, alive during the call; no signal mask.
        unsafe { libc::ppoll(fds.as_mut_ptr(), 3, limit, std::ptr::null()) };
        let [wake, ..] = fds;
        if wake.revents & libc::POLLNVAL != 0 {
            self.lost.store(true, Ordering::Relaxed);
            FD.store(-1, Ordering::Relaxed);
        } else if wake.revents & libc::POLLIN != 0 {
            let mut count = 0u64;
            // SAFETY: reads at most the eight bytes of `count`; the eventfd does not block.
            unsafe { libc::read(own, (&raw mut count).cast(), 8) };
        }
    }
}

/// Wakes the agent thread to look for new modules: the handler has met code that nobody knows.
/// Once until [`hear_call`]. Async-signal-safe, but for errno, which the sampler keeps.
pub fn call_from_handler() {
    if !CALLED.swap(true, Ordering::Relaxed) {
        ring(FD.load(Ordering::Acquire)); // pairs with `serve_handler`
    }
}

/// Takes the handler's call: the next one wakes again. Agent thread.
pub fn hear_call() {
    CALLED.store(false, Ordering::Relaxed);
}

/// Makes an eventfd readable. Async-signal-safe, but for errno.
fn ring(eventfd: i32) {
    let one = 1u64;
    // SAFETY: reads eight bytes of `one`; the descriptor is [`Wake`]'s, which does not block, or
    // -1, which is an error without effect.
    unsafe { libc::write(eventfd, (&raw const one).cast(), 8) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_rings_before_the_wait_is_heard_once() {
        let wake = Wake::new().unwrap();
        wake.ring();
        wake.ring();
        // Would not return if it had not been heard.
        wake.wait([-1, -1], None);
        wake.wait([-1, -1], Some(Duration::ZERO));
    }

    #[test]
    fn a_descriptor_that_the_program_closed_is_waited_on_no_more() {
        let wake = Wake::new().unwrap();
        // What `closefrom` does to us. Another file has the number at once, so that no other test's
        // descriptor gets it, and is then taken away too.
        // SAFETY: the descriptor is this test's own; `wake` is forgotten, so nobody closes it again.
        unsafe { libc::close(wake.fd.as_raw_fd()) };
        wake.wait([-1, -1], Some(Duration::from_millis(1)));
        if wake.lost.load(Ordering::Relaxed) {
            wake.wait([-1, -1], None);
        }
        std::mem::forget(wake);
    }
}
