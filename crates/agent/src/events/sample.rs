//! One sample of an event, passed from a callback to the agent thread.
//!
//! `queue` transports it, and `writer` writes its record. For an exception, [`Catcher`] receives
//! the catching method while the sample is queued.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use recording::Event;

use super::live::Followed;
use crate::base::waker::Waker;
use crate::model::EndCode;

/// A sample with addresses; the agent thread resolves them as those of a CPU sample.
#[derive(Debug)]
pub(crate) struct EventSample {
    pub(crate) event: Event,
    /// Kernel's id of the thread.
    pub(crate) tid: u32,
    /// CLOCK_MONOTONIC, nanoseconds; the end of an event with a duration.
    pub(crate) time_ns: u64,
    /// Weight in the event's unit.
    pub(crate) value: u64,
    pub(crate) end: EndCode,
    /// Words of the walk, leaf first; behind them the async chain, if there is one
    /// (`model::chain`).
    pub(crate) frames: Box<[u64]>,
    /// The name under which samples are counted.
    pub(crate) name: Arc<str>,
    /// The remaining text.
    pub(crate) text: String,
    /// The catching method, for an exception.
    pub(crate) catcher: Option<Arc<Catcher>>,
    /// The handle of an object to track.
    pub(crate) followed: Option<Followed>,
}

/// The method that will catch an exception, set when the runtime has found it; or the fact that
/// there is none.
#[derive(Debug, Default)]
pub(crate) struct Catcher {
    name: OnceLock<Arc<str>>,
    /// Whether the class library has caught it, to pass it on to the awaiting method.
    is_passed_on: AtomicBool,
    /// State of the search's end: 0, [`UNCAUGHT`], then [`SENT`].
    end: AtomicU32,
}

/// The search has reached the end of the stack. The thread waits for the sample to be sent.
const UNCAUGHT: u32 = 1;
/// The sample has been sent.
const SENT: u32 = 2;

impl Catcher {
    /// Sets the catching method. The first call counts.
    pub(crate) fn found(&self, name: Arc<str>) {
        let _first = self.name.set(name);
    }

    /// Records that the exception was caught to be passed on: an awaiting method may still catch
    /// it.
    pub(crate) fn passed_on(&self) {
        self.is_passed_on.store(true, Ordering::Relaxed);
    }

    /// Whether it was caught to be passed on.
    pub(crate) fn is_passed_on(&self) -> bool {
        self.is_passed_on.load(Ordering::Relaxed)
    }

    /// Returns the catching method's name, once known.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.get().map(|name| &**name)
    }

    /// Whether the search has ended without a catcher.
    pub(crate) fn is_uncaught(&self) -> bool {
        self.end.load(Ordering::Acquire) != 0 // pairs with `wait_uncaught`
    }

    /// Records that there is no catcher, wakes the agent thread, and waits until it has sent the
    /// sample or `at_most` has passed.
    pub(crate) fn wait_uncaught(&self, waker: &Waker, at_most: Duration) {
        self.end.store(UNCAUGHT, Ordering::Release); // pairs with `is_uncaught`
        waker.wake();
        let start = Instant::now();
        while self.end.load(Ordering::Acquire) == UNCAUGHT // pairs with `sent`
            && let Some(left) = at_most.checked_sub(start.elapsed())
        {
            let left = libc::timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            let word = self.end.as_ptr();
            // SAFETY: the kernel reads the word and the timeout, which live during the call. A
            // signal ends it early.
            unsafe { libc::syscall(libc::SYS_futex, word, op, UNCAUGHT, &raw const left) };
        }
    }

    /// Records that the sample has been sent, and releases the waiting thread.
    pub(crate) fn sent(&self) {
        self.end.store(SENT, Ordering::Release); // pairs with `wait_uncaught`
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the kernel uses only the word's address.
        unsafe { libc::syscall(libc::SYS_futex, self.end.as_ptr(), op, 1) };
    }
}

impl EventSample {
    /// Returns the approximate memory that it holds.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<EventSample>() + size_of_val(&*self.frames) + self.text.len() + 64
    }

    /// Returns the complete text of the detail.
    pub(crate) fn full_text(&self) -> String {
        let Some(catcher) = &self.catcher else {
            return self.text.clone();
        };
        let outcome = match catcher.name() {
            Some(name) => format!("caught by {name}"),
            None if catcher.is_passed_on() => "passed on to the awaiting method".to_owned(),
            None => "unhandled by managed code".to_owned(),
        };
        if self.text.is_empty() {
            outcome
        } else {
            format!("{}; {outcome}", self.text)
        }
    }

    #[cfg(test)]
    pub(crate) fn for_test(event: Event, value: u64, frames: usize) -> EventSample {
        EventSample {
            event,
            tid: 1,
            time_ns: 0,
            value,
            end: EndCode(0),
            frames: vec![0; frames].into(),
            name: "x".into(),
            text: String::new(),
            catcher: None,
            followed: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    #[test]
    fn a_thread_waits_until_its_last_exception_is_sent_and_not_for_ever() {
        static WAKE: LazyLock<Waker> = LazyLock::new(Waker::new);
        let catcher = Catcher::default();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| catcher.wait_uncaught(&WAKE, Duration::from_secs(3600)));
            assert!(WAKE.wait(&[-1, -1], None));
            assert!(catcher.is_uncaught() && !thread.is_finished());
            catcher.sent();
        });
        assert!(catcher.is_uncaught());
        Catcher::default().wait_uncaught(&WAKE, Duration::from_millis(1));
    }

    #[test]
    fn an_exceptions_text_says_what_became_of_it() {
        let mut sample = EventSample::for_test(Event::Exception, 1, 0);
        assert_eq!(sample.full_text(), "");
        let catcher = Arc::new(Catcher::default());
        sample.catcher = Some(Arc::clone(&catcher));
        assert_eq!(sample.full_text(), "unhandled by managed code");
        catcher.passed_on();
        assert_eq!(sample.full_text(), "passed on to the awaiting method");
        sample.text = "No way".to_owned();
        catcher.found("A.B".into());
        catcher.found("C.D".into());
        assert_eq!(sample.full_text(), "No way; caught by A.B");
    }
}
