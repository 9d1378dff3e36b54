//! Duty cycle of allocation events: in a program with many, pauses the session most of the time.
//!
//! .NET 6 and later report an object for each 100 KiB, and no fewer. Each costs the allocating
//! thread some 7 µs, whoever listens (the runtime writes the type's name). Less cost needs less
//! listening, so a separate session is resumed and paused in turn, for one random window of each
//! period. A dedicated thread does that, as the runtime registers the calling thread as its own.
//!
//! Invariants: each sample's weight is multiplied by the inverse of the listening fraction. The
//! fraction changes only while the session is paused, so every object is weighted by the fraction
//! under which it was reported. Only runtimes whose sessions may start and end at any time get a
//! duty cycle. The windows' times are random; their real length determines the time up to the next.
//! A runtime that gets another subscription, or ends, has no such thread any more.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use corprof::context::MayTriggerGc;
use corprof::{AgentCx, Cx, Runtime};

use super::alloc::TICK_BYTES;
use super::event_pipe::EventListener;
use super::{ClrEvents, EventAnnouncement, Events, lock};
use crate::base::proc;
use crate::base::random::next_random;
use crate::clr::Runtimes;
use crate::program::threads::Threads;

/// Objects per second from which a duty cycle is used: they cost a hundredth of a processor.
const MANY: u64 = 1_500;
/// Minimum duration of that rate, in consecutive updates of a second or more. A short program, or
/// one with a short burst, is listened to all the time.
const STEADY: u32 = 2;
/// First major version whose sessions may start and end at any time. In earlier versions, a session
/// that changes at the program's end may end the program with an exception: the runtime calls back
/// into disposed event sources (dotnet/runtime#80666).
const SAFE: u16 = 9;
/// Maximum inverse of the listening fraction. The duty cycle drops only samples that the interval
/// would drop too.
const MOST_PARTS: u64 = 8;
/// Length of a listening window; to start and end one costs some 0.5 ms.
const TURN_NS: u64 = 200_000_000;

/// The allocation events requested from a runtime, and the number it has reported.
#[derive(Debug, Default)]
pub(super) struct AllocSession {
    listener: EventListener,
    /// Number of reported objects.
    objects: AtomicU64,
    /// Inverse of the listening fraction; 0 and 1: always.
    parts: AtomicU32,
}

impl AllocSession {
    /// Counts a reported object. Returns the number of objects that it represents.
    pub(super) fn object(&self) -> u64 {
        self.objects.fetch_add(1, Ordering::Relaxed);
        u64::from(self.parts.load(Ordering::Relaxed).max(1))
    }

    /// Returns the keywords and level of the session, unless it is paused.
    pub(super) fn now(&self) -> Option<(u64, u32)> {
        self.listener.now()
    }

    /// Replaces the session by a permanent one of this kind, without a duty cycle.
    ///
    /// # Errors
    /// The runtime's error: it reports no events then.
    pub(super) fn listen<'rt, C: MayTriggerGc>(
        &self,
        cx: &mut Cx<'rt, C>,
        to: Option<(u64, u32)>,
    ) -> corprof::Result<()> {
        self.listener.pause(cx);
        self.parts.store(1, Ordering::Relaxed);
        self.objects.store(0, Ordering::Relaxed);
        self.listener.listen(cx, to)
    }
}

/// Returns the inverse of the listening fraction, if one sample is to represent `interval` bytes.
fn parts(interval: u64) -> u32 {
    (interval / TICK_BYTES).clamp(1, MOST_PARTS) as u32
}

/// The rate at which a runtime reports objects.
#[derive(Debug, Default)]
struct ObjectRate {
    objects: u64,
    time_ns: u64,
    /// Number of consecutive updates with a high rate.
    many: u32,
}

impl ObjectRate {
    /// Updates with the number of objects reported up to this time. Returns their rate per second,
    /// if it was high for long enough.
    fn update(&mut self, objects: u64, now_ns: u64) -> Option<u64> {
        let since = objects.saturating_sub(self.objects);
        let passed = now_ns.saturating_sub(self.time_ns).max(1);
        (self.objects, self.time_ns) = (objects, now_ns);
        let rate = u64::try_from(u128::from(since) * 1_000_000_000 / u128::from(passed))
            .unwrap_or(u64::MAX);
        self.many = if rate >= MANY { self.many + 1 } else { 0 };
        (self.many >= STEADY).then_some(rate)
    }
}

/// The duty cycles of the runtimes, and their rates.
#[derive(Debug)]
pub(crate) struct DutyCycle {
    /// Start of the session.
    begun_ns: u64,
    clrs: Vec<(u8, ObjectRate, Option<DutyThread>)>,
}

impl DutyCycle {
    /// Creates the state for a session that begins now.
    pub(crate) fn new(now_ns: u64) -> DutyCycle {
        DutyCycle {
            begun_ns: now_ns,
            clrs: Vec::new(),
        }
    }

    /// Updates the rates of these runtimes and starts duty cycles, at most once per second. Agent
    /// thread.
    pub(crate) fn update(
        &mut self,
        events: &Events,
        threads: &'static Threads,
        runtimes: &mut Runtimes<'_>,
        now_ns: u64,
    ) {
        let parts = parts(events.alloc_interval());
        for number in runtimes.recorded() {
            let Some(own) = events.of(number) else {
                continue;
            };
            if parts < 2 || own.facts.major < SAFE || own.alloc_session.now().is_none() {
                continue;
            }
            if !self.clrs.iter().any(|(other, ..)| *other == number) {
                let rate = ObjectRate {
                    time_ns: self.begun_ns,
                    ..ObjectRate::default()
                };
                self.clrs.push((number, rate, None));
            }
            let found = self.clrs.iter_mut().find(|(other, ..)| *other == number);
            let Some((_, rate, thread @ None)) = found else {
                continue;
            };
            let objects = own.alloc_session.objects.load(Ordering::Relaxed);
            let Some(objects) = rate.update(objects, now_ns) else {
                continue;
            };
            let note = format!(
                "allocations of .NET {}: at {objects} objects a second, only 1/{parts} of the time \
                 is recorded from here on (0.2 s at random moments), which costs less; each sample \
                 stands for {parts} times more",
                own.facts.version
            );
            if let Some(Ok(begun)) = DutyThread::spawn(threads, runtimes, number, own, parts) {
                *thread = Some(begun);
                events.announce(EventAnnouncement::Note(note));
            }
        }
    }

    /// Ends the duty cycles of these CLRs. Their sessions stay paused until the next subscription.
    /// Agent thread.
    pub(crate) fn end(&mut self, numbers: &[u8]) {
        self.clrs.retain(|(number, ..)| !numbers.contains(number));
    }
}

/// Stop flag of the duty-cycle thread.
#[derive(Debug, Default)]
struct StopFlag {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl StopFlag {
    /// Blocks until that time or the stop. Returns whether it is stopped.
    fn wait_until(&self, until_ns: u64) -> bool {
        let mut is_over = lock(&self.is_over);
        loop {
            let left = until_ns.saturating_sub(proc::now_ns());
            if *is_over || left == 0 {
                return *is_over;
            }
            let waited = self
                .changed
                .wait_timeout(is_over, Duration::from_nanos(left));
            is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn set(&self) {
        *lock(&self.is_over) = true;
        self.changed.notify_all();
    }
}

/// The thread that pauses and resumes one runtime's session.
#[derive(Debug)]
struct DutyThread {
    over: Arc<StopFlag>,
    handle: Option<JoinHandle<()>>,
}

impl DutyThread {
    fn spawn(
        threads: &'static Threads,
        runtimes: &mut Runtimes<'_>,
        number: u8,
        own: Arc<ClrEvents>,
        parts: u32,
    ) -> Option<io::Result<DutyThread>> {
        let over = Arc::new(StopFlag::default());
        let its = Arc::clone(&over);
        let (known, is_known) = sync_channel(1);
        let spawned = runtimes.spawn_runtime_thread(number, move |cx, runtime| {
            let _out = threads.exclude_calling_thread();
            let _gone = known.send(());
            run_duty_cycle(cx, runtime, &own.alloc_session, parts, &its);
        })?;
        if spawned.is_ok() {
            // The thread is excluded before the agent thread lists threads again.
            let _ended = is_known.recv();
        }
        Some(spawned.map(|handle| DutyThread {
            over,
            handle: Some(handle),
        }))
    }
}

impl Drop for DutyThread {
    fn drop(&mut self) {
        self.over.set();
        if let Some(handle) = self.handle.take()
            && let Err(panic) = handle.join()
        {
            // Dropping a panic's payload may panic again.
            std::mem::forget(panic);
        }
    }
}

/// Opens listening windows, in one of `parts` parts of the time, until the stop. A window begins at
/// a random moment of each period of `parts` times its length. Periods are computed from the real
/// lengths of earlier windows, so delays do not change the fraction in the long run.
fn run_duty_cycle(
    cx: &mut AgentCx,
    runtime: &Runtime,
    alloc_session: &AllocSession,
    parts: u32,
    over: &StopFlag,
) {
    let begun_ns = proc::now_ns();
    let mut random = begun_ns | 1;
    let mut taken_ns = 0;
    let parts_ = u64::from(parts);
    cx.enter(runtime, |cx| alloc_session.listener.pause(cx));
    alloc_session.parts.store(parts, Ordering::Relaxed);
    loop {
        let chance = next_random(&mut random) % (TURN_NS * (parts_ - 1)).max(1);
        if over.wait_until(begun_ns + taken_ns * parts_ + chance) {
            return;
        }
        let from_ns = proc::now_ns();
        if !cx.enter(runtime, |cx| alloc_session.listener.resume(cx)) {
            return;
        }
        let is_over = over.wait_until(from_ns + TURN_NS);
        let until_ns = proc::now_ns();
        cx.enter(runtime, |cx| alloc_session.listener.pause(cx));
        if is_over {
            return;
        }
        taken_ns += until_ns - from_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_duty_cycle_is_for_runtimes_that_allocate_much() {
        let second = 1_000_000_000;
        let mut rate = ObjectRate {
            time_ns: 9 * second,
            ..ObjectRate::default()
        };
        let mut alloc_session = 0;
        let mut look = |now: u64, more: u64| {
            alloc_session += more;
            rate.update(alloc_session, now * second)
        };
        assert_eq!([look(10, 3000), look(11, 100)], [None, None]);
        assert_eq!(look(12, 3000), None);
        assert_eq!(look(13, 3001), Some(3001));
        assert_eq!(look(14, 100), None);
        assert_eq!(look(15, 3000), None);
        assert_eq!(look(17, 3000), Some(1500));
    }

    #[test]
    fn an_interval_has_as_many_parts_as_the_runtimes_own_goes_into_it() {
        let kib = 1024;
        for (interval, expected) in [
            (0, 1),
            (100 * kib, 1),
            (199 * kib, 1),
            (512 * kib, 5),
            (100 << 20, 8),
        ] {
            assert_eq!(parts(interval), expected, "{interval}");
        }
    }

    #[test]
    fn a_wait_ends_when_the_stop_flag_is_set() {
        let over = StopFlag::default();
        assert!(!over.wait_until(proc::now_ns() + 1));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| over.wait_until(u64::MAX));
            over.set();
            assert!(waits.join().unwrap());
        });
    }
}
