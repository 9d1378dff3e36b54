//! Wakes the agent thread from callbacks and from the signal handler.
//!
//! A wake-up carries no data. It uses a futex, a word in memory that the kernel waits on. A
//! descriptor is not used, as a program may close unknown descriptors (`closefrom`) and reuse the
//! number for its own file. While a session also waits for descriptors, a wake-up calls a function
//! that makes one of them readable ([`Waker::forward_to`]).
//!
//! Invariants: a waker lives as long as the process, so that a late signal finds it. A wake-up
//! neither blocks nor allocates.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use syscalls::Call;

/// The instance that the signal handler wakes; null before there is one.
static HANDLER_WAKER: AtomicPtr<Waker> = AtomicPtr::new(std::ptr::null_mut());
/// Whether the handler's last wake-up has not been cleared yet.
static HANDLER_WOKE: AtomicBool = AtomicBool::new(false);

/// Wakes the agent thread. One per process.
#[derive(Debug, Default)]
pub struct Waker {
    /// Number of wake-ups.
    woken: AtomicU32,
    /// Number of wake-ups that the agent thread has handled.
    taken: AtomicU32,
    /// Address of a function to call after a wake-up, 0 for none.
    forward: AtomicUsize,
}

impl Waker {
    /// Creates a waker without a wake-up.
    pub fn new() -> Waker {
        Waker::default()
    }

    /// Sets this instance as the one that the signal handler wakes.
    pub fn register_for_handler(&'static self) {
        let pointer = std::ptr::from_ref(self).cast_mut();
        HANDLER_WAKER.store(pointer, Ordering::Release); // pairs with `wake_from_handler`
    }

    /// Makes wake-ups also call a function, which is async-signal-safe except for errno and never
    /// unloaded. `None` ends that.
    pub fn forward_to(&self, waker: Option<fn()>) {
        let address = waker.map_or(0, |waker| waker as usize);
        self.forward.store(address, Ordering::Release); // pairs with `wake`
    }

    /// Makes [`Waker::wait`] return, now or at its next call. Async-signal-safe, except for errno.
    pub fn wake(&self) {
        self.woken.fetch_add(1, Ordering::Release); // pairs with `take`
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the kernel uses only the word's address.
        unsafe { libc::syscall(libc::SYS_futex, self.woken.as_ptr(), op, 1) };
        let forward = self.forward.load(Ordering::Acquire); // pairs with `forward_to`
        if forward != 0 {
            // SAFETY: `forward_to` stored the address of such a function.
            let forward = unsafe { std::mem::transmute::<usize, fn()>(forward) };
            forward();
        }
    }

    /// Whether there was a wake-up since the last call.
    fn take(&self) -> bool {
        let woken = self.woken.load(Ordering::Acquire); // pairs with `wake`
        self.taken.swap(woken, Ordering::Relaxed) != woken
    }

    /// Blocks until a wake-up, until one of `others` is readable (-1: none), or until the timeout,
    /// if there is one. Returns false after the timeout. A wake-up is handled by one call: the next
    /// one blocks again. Agent thread only.
    ///
    /// With `others` (16 at most), one of them is the descriptor that [`Waker::forward_to`] makes
    /// readable. If the kernel cannot wait for them, the call blocks for at most `POLL_INTERVAL`
    /// and returns true: the caller must check every possible client.
    pub fn wait(&self, others: &[RawFd], timeout: Option<Duration>) -> bool {
        if self.take() {
            return true;
        }
        let mut fds = [libc::pollfd {
            fd: -1,
            events: libc::POLLIN,
            revents: 0,
        }; 16];
        let mut count = 0;
        // Only open ones: the kernel accepts no more entries than the program may have descriptors.
        for (entry, fd) in fds.iter_mut().zip(others.iter().filter(|fd| **fd >= 0)) {
            entry.fd = *fd;
            count += 1;
        }
        let fds = fds.get_mut(..count).unwrap_or_default();
        if fds.is_empty() {
            self.sleep(timeout);
            return self.take();
        }
        match poll(fds, timeout) {
            Some(is_readable) => self.take() || is_readable,
            None => {
                self.sleep(Some(
                    timeout.map_or(POLL_INTERVAL, |timeout| timeout.min(POLL_INTERVAL)),
                ));
                self.take();
                true
            }
        }
    }

    /// Blocks until a wake-up or the timeout.
    fn sleep(&self, timeout: Option<Duration>) {
        let limit = timeout.map(timespec);
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let taken = self.taken.load(Ordering::Relaxed);
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        let word = self.woken.as_ptr();
        // SAFETY: the kernel reads the word and the timeout or none, alive during the call.
        unsafe { libc::syscall(libc::SYS_futex, word, op, taken, limit) };
    }
}

/// Maximum wait if descriptors cannot be waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Blocks until one of these is readable and returns whether one is. `None` if the kernel cannot
/// wait for them (more than RLIMIT_NOFILE, no memory).
fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> Option<bool> {
    let length = fds.len() as libc::nfds_t;
    let readable = if syscalls::is_allowed(Call::Ppoll) {
        let limit = timeout.map(timespec);
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `length` pollfds and a timeout or none, alive during the call; no signal mask.
        unsafe { libc::ppoll(fds.as_mut_ptr(), length, limit, std::ptr::null()) }
    } else {
        let limit = timeout.map_or(-1, |timeout| {
            i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
        });
        // SAFETY: `length` pollfds, alive during the call.
        unsafe { libc::poll(fds.as_mut_ptr(), length, limit) }
    };
    if readable < 0 {
        let error = std::io::Error::last_os_error();
        return (error.kind() == std::io::ErrorKind::Interrupted).then_some(false);
    }
    Some(readable > 0)
}

/// Wakes the agent thread to search for new modules, because the handler found unknown code. Wakes
/// once until [`clear_handler_wake`]. Async-signal-safe, except for errno, which the sampler
/// preserves.
pub fn wake_from_handler() {
    if HANDLER_WOKE.swap(true, Ordering::Relaxed) {
        return;
    }
    let served = HANDLER_WAKER.load(Ordering::Acquire); // pairs with `register_for_handler`
    // SAFETY: null, or the argument of `register_for_handler`, which lives as long as the process.
    if let Some(waker) = unsafe { served.as_ref() } {
        waker.wake();
    }
}

/// Clears the handler's wake-up, so that the next one wakes again. Agent thread.
pub fn clear_handler_wake() {
    HANDLER_WOKE.store(false, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_before_the_wait_ends_it_once() {
        let waker = Waker::new();
        waker.wake();
        waker.wake();
        // Would block for ever without the wake-up.
        waker.wait(&[], None);
        waker.wait(&[], Some(Duration::ZERO));
        assert!(!waker.take());
    }

    /// In a forked child, as the limit is per process.
    #[test]
    fn without_descriptors_the_wait_polls() {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the child does little, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: a valid limit.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) };
            let waker = Waker::new();
            let before = std::time::Instant::now();
            let looks = (0..3).all(|_| waker.wait(&[-1, ends[0]], Some(Duration::from_secs(60))));
            let slept = before.elapsed() >= 3 * POLL_INTERVAL;
            // SAFETY: ends the child without the test harness's handlers.
            unsafe { libc::_exit(i32::from(!(looks && slept))) };
        }
        let mut status = 0;
        // SAFETY: our child, and a valid out-pointer; the descriptors are this test's own.
        unsafe {
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::close(ends[0]);
            libc::close(ends[1]);
        }
        assert_eq!(status, 0);
    }

    #[test]
    fn a_wake_during_the_wait_ends_it() {
        let waker: &'static Waker = Box::leak(Box::new(Waker::new()));
        let rings = std::thread::spawn(|| waker.wake());
        waker.wait(&[], None);
        rings.join().unwrap();
    }

    #[test]
    fn a_wait_for_descriptors_is_ended_by_the_forwarded_wake() {
        static PIPE: AtomicU32 = AtomicU32::new(0);
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        PIPE.store(ends[1].cast_unsigned(), Ordering::Relaxed);
        let waker: &'static Waker = Box::leak(Box::new(Waker::new()));
        waker.forward_to(Some(|| {
            let end = PIPE.load(Ordering::Relaxed).cast_signed();
            // SAFETY: one byte of a static text.
            unsafe { libc::write(end, b"x".as_ptr().cast(), 1) };
        }));
        let rings = std::thread::spawn(|| waker.wake());
        waker.wait(&[ends[0]], None);
        rings.join().unwrap();
        waker.forward_to(None);
        for end in ends {
            // SAFETY: this test's own.
            unsafe { libc::close(end) };
        }
    }
}
