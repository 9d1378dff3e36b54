//! Events with stacks: exceptions, allocations, lock waits, collections, compilations, loads.
//!
//! A callback of the CLR (`Origin::happened`) decides whether to keep the event, walks the calling
//! thread's stack, and puts the addresses into a bounded queue. The agent thread resolves them as
//! it does those of CPU samples and writes records (`writer`). docs/events.md explains each event
//! to users.
//!
//! Invariants: only callbacks of the selected events are enabled ([`subscription`]). If a CLR
//! cannot deliver an event, a note in the recording reports it. No callback waits for the agent
//! thread, except briefly that of an uncaught exception. Nothing is kept without a session that
//! needs it.

pub(crate) mod alloc;
mod contention;
mod duty_cycle;
pub(crate) mod event_pipe;
pub(crate) mod exception;
mod exception_event;
pub(crate) mod gc;
pub(crate) mod jit;
mod live;
pub(crate) mod loads;
mod names;
mod queue;
pub(crate) mod sample;
pub mod source;
pub mod subscription;
mod writer;

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use corprof::Cx;
use corprof::context::{Callback, Context};
use corprof::id::EventPipeProviderId;
use recording::Event;

pub(crate) use self::duty_cycle::DutyCycle;
pub(crate) use self::names::NameCache;
pub(crate) use self::writer::EventWriter;

use self::exception::ExceptionFacts;
use self::exception_event::ThrownFacts;
use self::gc::Collector;
use self::live::Handles;
use self::queue::{Queue, QueuePlace};
use self::sample::EventSample;
use self::source::RuntimeFacts;
use self::subscription::Subscription;
use crate::base::proc;
use crate::base::waker::Waker;
use crate::clr::{Clr, Runtimes};
use crate::model::phase::PhaseReader;
use crate::model::{EndCode, EventSet, Settings, WalkerKind};
use crate::program::Program;
use crate::walkers::here::walk_here;
use crate::walkers::snapshot::snapshot_here;

/// A fact about the events for the recording, written once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventAnnouncement {
    /// The source of an event's samples, and the approximate weight of one.
    Source {
        /// The event.
        event: Event,
        /// Name of the source in reports.
        source: &'static str,
        /// Weight in the event's unit; 0 for one.
        interval: u64,
    },
    /// A note for users.
    Note(String),
}

/// Event state of the process: what the current session needs, and the queue to the agent thread.
/// CPU and wall-clock samples are not among the events.
#[derive(Debug)]
pub struct Events {
    phase: PhaseReader,
    waker: &'static Waker,
    /// Bits of an [`EventSet`].
    wanted: AtomicU16,
    max_depth: AtomicU32,
    by_snapshot: AtomicBool,
    alloc_interval: AtomicU64,
    live_interval_ns: AtomicU64,
    ticks: alloc::Ticks,
    queue: Queue,
    handles: Arc<Handles>,
    /// Number of collections of all CLRs that ended since the last write.
    collections: AtomicU64,
    news: Mutex<Vec<EventAnnouncement>>,
    /// Event state of each CLR, by number.
    clrs: Mutex<Vec<(u8, Arc<ClrEvents>)>>,
}

/// Event state of one CLR.
#[derive(Debug)]
pub(crate) struct ClrEvents {
    pub(crate) facts: RuntimeFacts,
    pub(crate) names: NameCache,
    exceptions: ExceptionFacts,
    thrown: ThrownFacts,
    collector: Collector,
    /// The provider of the runtime's own events; 0 before its first event.
    provider: AtomicUsize,
    session: event_pipe::EventListener,
    /// The session for allocations.
    alloc_session: duty_cycle::AllocSession,
}

/// The origin of an event: a CLR, and what its samples need. Created for each callback.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) program: &'static Program,
    pub(crate) events: &'a Events,
    pub(crate) clr: &'a Clr,
    pub(crate) own: &'a ClrEvents,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl ClrEvents {
    /// Creates the event state of a CLR with these facts.
    pub(crate) fn new(facts: RuntimeFacts) -> ClrEvents {
        ClrEvents {
            facts,
            names: NameCache::default(),
            exceptions: ExceptionFacts::default(),
            thrown: ThrownFacts::default(),
            collector: Collector::default(),
            provider: AtomicUsize::new(0),
            session: event_pipe::EventListener::default(),
            alloc_session: duty_cycle::AllocSession::default(),
        }
    }

    pub(crate) fn collector(&self) -> &Collector {
        &self.collector
    }

    /// Whether this provider's events are the runtime's own.
    fn is_runtime_provider<'rt>(
        &self,
        cx: &Cx<'rt, Callback>,
        provider: EventPipeProviderId<'rt>,
    ) -> bool {
        let known = self.provider.load(Ordering::Relaxed);
        if known != 0 {
            return known == provider.raw();
        }
        let is_ours = cx
            .info()
            .event_pipe_get_provider_info(cx, provider)
            .is_ok_and(|name| event_pipe::is_runtime(&name));
        if is_ours {
            self.provider.store(provider.raw(), Ordering::Relaxed);
        }
        is_ours
    }
}

impl Events {
    /// Creates the state without a session.
    pub fn new(phase: PhaseReader, waker: &'static Waker) -> Events {
        Events {
            phase,
            waker,
            wanted: AtomicU16::new(EventSet::NONE.bits()),
            max_depth: AtomicU32::new(0),
            by_snapshot: AtomicBool::new(false),
            alloc_interval: AtomicU64::new(0),
            live_interval_ns: AtomicU64::new(0),
            ticks: alloc::Ticks::new(),
            queue: Queue::new(0, proc::now_ns()),
            handles: Arc::default(),
            collections: AtomicU64::new(0),
            news: Mutex::default(),
            clrs: Mutex::default(),
        }
    }

    /// Applies the settings of a new session. Called before
    /// [`Phase::Recording`](crate::model::Phase).
    pub fn begin(&self, settings: &Settings) {
        lock(&self.news).clear();
        self.queue.begin(settings.event_limit, proc::now_ns());
        self.handles.begin();
        self.max_depth.store(settings.max_depth, Ordering::Relaxed);
        self.by_snapshot.store(
            settings.event_walker() == WalkerKind::Snapshot,
            Ordering::Relaxed,
        );
        self.alloc_interval
            .store(settings.alloc_interval, Ordering::Relaxed);
        self.live_interval_ns
            .store(settings.live_interval_ns, Ordering::Relaxed);
        // Release: pairs with `wants`; a thread that sees the events sees the other settings.
        self.wanted.store(settings.events.bits(), Ordering::Release);
    }

    /// Changes the event set of the running session.
    pub(crate) fn change(&self, events: EventSet) {
        // Release: pairs with `wants`, as in `begin`.
        self.wanted.store(events.bits(), Ordering::Release);
    }

    /// Ends the session: no event is needed and nothing is kept.
    pub fn forget_session(&self) {
        self.wanted.store(EventSet::NONE.bits(), Ordering::Relaxed);
        self.queue.begin(0, proc::now_ns());
        *lock(&self.news) = Vec::new();
    }

    /// Adds a recorded CLR.
    pub(crate) fn add(&self, number: u8, own: Arc<ClrEvents>) {
        let mut clrs = lock(&self.clrs);
        clrs.retain(|(other, _)| *other != number);
        clrs.push((number, own));
    }

    /// Removes a CLR that has ended or is not recorded after all.
    pub(crate) fn remove(&self, number: u8) {
        lock(&self.clrs).retain(|(other, _)| *other != number);
    }

    /// Returns a CLR's event state.
    pub(crate) fn of(&self, number: u8) -> Option<Arc<ClrEvents>> {
        let clrs = lock(&self.clrs);
        let found = clrs.iter().find(|(other, _)| *other == number);
        found.map(|(_, own)| Arc::clone(own))
    }

    /// Whether the session records this event.
    pub(crate) fn wants(&self, event: Event) -> bool {
        EventSet::of_bits(self.wanted.load(Ordering::Acquire)).has(event)
    }

    /// Whether samples are taken now. Checked before any expensive work.
    pub(crate) fn is_on(&self) -> bool {
        self.phase.is_recording()
    }

    /// Returns the interval between live-heap snapshots in nanoseconds.
    fn live_interval(&self) -> u64 {
        self.live_interval_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn alloc_interval(&self) -> u64 {
        self.alloc_interval.load(Ordering::Relaxed)
    }

    /// Counts a finished collection.
    pub(crate) fn collected(&self) {
        self.collections.fetch_add(1, Ordering::Relaxed);
    }

    /// Destroys unused handles: those of samples that were dropped on their way.
    pub(crate) fn release_handles(&self, runtimes: &mut Runtimes<'_>) {
        self.handles.release_unused(runtimes);
    }

    /// Whether handles remain without a session. Drops queued samples of the ended session, which
    /// belong to no session.
    pub(crate) fn has_late_handles(&self) -> bool {
        let is_any = self.handles.is_any();
        if is_any {
            drop(self.queue.take(proc::now_ns()));
        }
        is_any
    }

    /// Returns where to store a sample of this event, if it is to be taken.
    fn offer(&self, event: Event, value: u64) -> Option<QueuePlace> {
        if !self.wants(event) || !self.is_on() {
            return None;
        }
        self.queue.offer(event, value)
    }

    fn push(&self, place: QueuePlace, sample: EventSample) {
        if self.queue.push(place, sample) {
            self.waker.wake();
        }
    }

    /// Whether a traced call of this duration may be kept. Checked before any expensive work, with
    /// three loads.
    #[inline]
    pub(crate) fn may_keep_call_of(&self, ns: u64) -> bool {
        self.queue.is_slow(ns) && self.wants(Event::TracedCall) && self.is_on()
    }

    /// Records the end of a traced call on this thread, from native code that the method called.
    pub(crate) fn call_ended(
        &self,
        program: &'static Program,
        name: &Arc<str>,
        ns: u64,
        is_error: bool,
    ) {
        let max_depth = self.max_depth.load(Ordering::Relaxed);
        let time_ns = proc::now_ns();
        let hijacks = program.threads.own_hijacks();
        let (frames, end) = walk_here(program.code.map(), max_depth, hijacks);
        let text = if is_error {
            "ended by an exception"
        } else {
            "returned"
        };
        let sample = EventSample {
            event: Event::TracedCall,
            tid: proc::own_tid(),
            time_ns,
            value: ns,
            end,
            frames,
            name: Arc::clone(name),
            text: text.to_owned(),
            catcher: None,
            followed: None,
        };
        self.push(QueuePlace::Largest, sample);
    }

    /// Queues a sample as a callback does.
    #[cfg(test)]
    pub(crate) fn take_sample(&self, sample: EventSample) -> bool {
        let place = self.offer(sample.event, sample.value);
        if let Some(place) = place {
            self.push(place, sample);
        }
        place.is_some()
    }

    /// Queues an announcement for the recording; drops it without a session.
    pub(crate) fn announce(&self, news: EventAnnouncement) {
        if self.phase.get().is_session() {
            lock(&self.news).push(news);
        }
    }

    fn take_announcements(&self) -> Vec<EventAnnouncement> {
        std::mem::take(&mut *lock(&self.news))
    }

    /// Announces the sources of a CLR's events, and which events are unavailable.
    pub(crate) fn announce_sources(&self, subscription: &Subscription) {
        for news in &subscription.news {
            self.announce(news.clone());
        }
    }
}

impl Origin<'_> {
    /// Handles an event on the calling thread: takes a sample if one is to be kept. Only then,
    /// `say` is called for the name and the remaining text. Exceptions use the steps separately, as
    /// `exception::thrown` registers the search for their catcher in between.
    fn happened<'rt, C: Context>(
        self,
        cx: &mut Cx<'rt, C>,
        event: Event,
        value: u64,
        say: impl FnOnce(&Cx<'rt, C>) -> (Arc<str>, String),
    ) {
        // Callbacks of compilations and modules are enabled in every runtime.
        if !self.clr.is_recorded() {
            return;
        }
        if let Some(place) = self.events.offer(event, value) {
            let (name, text) = say(cx);
            let sample = self.sample(cx, event, value, name, text);
            self.events.push(place, sample);
        }
    }

    /// Walks the stack of the calling thread.
    fn walk<'rt, C: Context>(self, cx: &mut Cx<'rt, C>) -> (Box<[u64]>, EndCode) {
        let max_depth = self.events.max_depth.load(Ordering::Relaxed);
        let map = self.program.code.map();
        if self.events.by_snapshot.load(Ordering::Relaxed)
            && let Some(proof) = self.clr.snapshots()
        {
            let mut words = Vec::new();
            if let Ok(end) = snapshot_here(map, cx, proof, max_depth as usize, &mut words) {
                return (words.into(), end);
            }
            // The runtime refuses a snapshot now, for example while it dispatches an exception. The
            // agent's own walker is used instead.
        }
        walk_here(map, max_depth, self.program.threads.own_hijacks())
    }

    /// Takes a sample of the calling thread now.
    fn sample<'rt, C: Context>(
        self,
        cx: &mut Cx<'rt, C>,
        event: Event,
        value: u64,
        name: Arc<str>,
        text: String,
    ) -> EventSample {
        let time_ns = proc::now_ns();
        let (frames, end) = self.walk(cx);
        EventSample {
            event,
            tid: proc::own_tid(),
            time_ns,
            value,
            end,
            frames,
            name,
            text,
            catcher: None,
            followed: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Phase;
    use crate::model::phase::new_phase;

    #[test]
    fn a_new_clr_wakes_what_rests_but_not_what_is_over() {
        let (writer, phase) = new_phase();
        let waker = Box::leak(Box::new(Waker::new()));
        let events = Events::new(phase, waker);
        events.begin(&Settings::parse("event=exception"));
        writer.change(&[Phase::Idle], Phase::Recording).unwrap();
        assert!(events.is_on() && events.wants(Event::Exception));
        assert!(!events.wants(Event::Alloc));
        writer.change(&[Phase::Recording], Phase::Waiting).unwrap();
        assert!(events.offer(Event::Exception, 1).is_none());
        writer.change(&[Phase::Waiting], Phase::Recording).unwrap();
        assert!(events.offer(Event::Exception, 1).is_some());
        assert!(events.offer(Event::Alloc, 1).is_none());
        writer.change(&[Phase::Recording], Phase::Left).unwrap();
        assert!(events.offer(Event::Exception, 1).is_none());
    }

    #[test]
    fn nothing_is_kept_without_a_session() {
        let (writer, phase) = new_phase();
        let waker = Box::leak(Box::new(Waker::new()));
        let events = Events::new(phase, waker);
        events.begin(&Settings::parse("event=exception"));
        writer.change(&[Phase::Idle], Phase::Recording).unwrap();
        events.announce(EventAnnouncement::Note("kept".into()));
        let place = events.offer(Event::Exception, 1).unwrap();
        events.push(place, EventSample::for_test(Event::Exception, 1, 100));
        writer.change(&[Phase::Recording], Phase::Idle).unwrap();
        events.forget_session();
        for _ in 0..1000 {
            events.announce(EventAnnouncement::Note("lost".into()));
            assert!(events.offer(Event::Exception, 1).is_none());
        }
        assert_eq!(events.queue.bytes(), 0);
        assert!(events.take_announcements().is_empty());
        // A callback that was in progress at the session's end.
        events.push(place, EventSample::for_test(Event::Exception, 1, 100));
        events.begin(&Settings::parse("event=gc"));
        assert!(events.queue.take(1).samples.is_empty());
    }
}
