//! Turns: a runtime that reports very many allocations is listened to for a part of the time only.
//!
//! .NET 6 and later report an object for each 100 KiB, and no fewer. That costs them some 7 µs each
//! (they write the type's name), whoever listens, so what a thread that allocates pays for can only
//! be had less often by not listening. A session of its own is begun and ended in turn, by a thread
//! that lives for that: the runtime makes it one of its own. Invariants: each sample stands for as
//! many times more as the time is less; by which part that is changes only while there is no
//! session, so no object is counted by another; none is taken of a runtime whose sessions may not
//! begin and end at any time; when a turn is, is random, and how long it was is made up for by
//! the time up to the next; a runtime that is asked for something else, or that ends, has no such
//! thread any more.

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

/// Objects a second from which on there is a duty cycle: they cost a hundredth of a processor.
const MANY: u64 = 1_500;
/// And for so many seconds in a row: a program that is short, or has a moment at which it
/// allocates, is listened to all the time.
const STEADY: u32 = 2;
/// The first major version of which sessions may begin and end at any time: before it, one that
/// does as the program ends may end it with an exception, as the runtime calls back into event
/// sources that have been disposed of (dotnet/runtime#80666).
const SAFE: u16 = 9;
/// Turns are for the sake of samples that would not be taken anyway, and of no more of them than
/// this.
const MOST_PARTS: u64 = 8;
/// How long a turn is: to begin and to end one costs some 0.5 ms.
const TURN_NS: u64 = 200_000_000;

/// The allocation events that a runtime was asked for, and those that it has reported.
#[derive(Debug, Default)]
pub(super) struct AllocSession {
    listener: EventListener,
    /// Objects.
    objects: AtomicU64,
    /// It is listened to for one of so many parts of the time; 0 and 1: for all of it.
    parts: AtomicU32,
}

impl AllocSession {
    /// Counts a reported object. Returns the number of objects for which it stands.
    pub(super) fn object(&self) -> u64 {
        self.objects.fetch_add(1, Ordering::Relaxed);
        u64::from(self.parts.load(Ordering::Relaxed).max(1))
    }

    /// Returns the keywords and level that are listened to all the time.
    pub(super) fn now(&self) -> Option<(u64, u32)> {
        self.listener.now()
    }

    /// Listens to this all the time, in place of what was listened to. No duty cycle.
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

/// For how many parts of the time a runtime may be listened to for one, where one sample is to
/// stand for `interval` bytes.
fn parts(interval: u64) -> u32 {
    (interval / TICK_BYTES).clamp(1, MOST_PARTS) as u32
}

/// The rate at which a runtime reports objects.
#[derive(Debug, Default)]
struct ObjectRate {
    objects: u64,
    time_ns: u64,
    /// Looks in a row at which they were many.
    many: u32,
}

impl ObjectRate {
    /// Takes the number of objects that were reported up to this time. Answers how many those are a
    /// second, where they are many for long enough.
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

/// Runtimes with a duty cycle, and those that may get one.
#[derive(Debug)]
pub(crate) struct DutyCycle {
    /// When the session began.
    begun_ns: u64,
    clrs: Vec<(u8, ObjectRate, Option<DutyThread>)>,
}

impl DutyCycle {
    /// Of a session that begins now.
    pub(crate) fn new(now_ns: u64) -> DutyCycle {
        DutyCycle {
            begun_ns: now_ns,
            clrs: Vec::new(),
        }
    }

    /// Looks how much these runtimes report, once a second or less often. Agent thread.
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

    /// None of these has a duty cycle any more: those that had one are not listened to until they
    /// are asked again. Agent thread.
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
    /// Waits until then, or until it is over, which it answers.
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

/// The thread that begins and ends turns of one runtime.
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
            // Before the agent thread lists threads again.
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

/// Turns, one of `parts` parts of the time, until it is over. One begins at a moment by chance in
/// each `parts` times its length; those are counted from what the turns so far have really taken,
/// so that a machine that is late makes no difference in the long run.
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
