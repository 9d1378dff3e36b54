//! Events with stacks: exceptions, allocations, lock waits, collections, compilations, loads.
//!
//! A callback of the CLR (`Origin::happened`) decides whether the event is to be kept, walks the
//! calling thread's stack and leaves addresses in a bounded queue; the agent thread resolves them
//! as it does those of CPU samples and writes records (`writer`). docs/events.md says what each
//! event means to users. Invariants: the CLR is asked for the callbacks of the chosen events only
//! ([`subscription`]); an event that a CLR cannot deliver is said in a note of the recording; no
//! callback waits for the agent thread, but that of an exception that ends its thread, for a
//! moment; nothing is kept unless a session takes it.

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

/// Something the recording is to be told about events, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventAnnouncement {
    /// Where an event's samples come from, and about how much one stands for.
    Source {
        /// The event.
        event: Event,
        /// For reports.
        source: &'static str,
        /// In the event's unit; 0 for one.
        interval: u64,
    },
    /// A note for users.
    Note(String),
}

/// The events of the process that are not sampled by time: what the session in force wants of them,
/// and the queue to the agent thread.
#[derive(Debug)]
pub struct Events {
    phase: PhaseReader,
    waker: &'static Waker,
    /// An [`EventSet`].
    wanted: AtomicU16,
    max_depth: AtomicU32,
    by_snapshot: AtomicBool,
    alloc_interval: AtomicU64,
    live_interval_ns: AtomicU64,
    ticks: alloc::Ticks,
    queue: Queue,
    handles: Arc<Handles>,
    /// Collections that have ended, of all CLRs, since they were last written.
    collections: AtomicU64,
    news: Mutex<Vec<EventAnnouncement>>,
    /// Each CLR's own state here, by number.
    clrs: Mutex<Vec<(u8, Arc<ClrEvents>)>>,
}

/// The needs of the events of one CLR.
#[derive(Debug)]
pub(crate) struct ClrEvents {
    pub(crate) facts: RuntimeFacts,
    pub(crate) names: NameCache,
    exceptions: ExceptionFacts,
    thrown: ThrownFacts,
    collector: Collector,
    /// The provider of the runtime's own events, once it has been met.
    provider: AtomicUsize,
    session: event_pipe::EventListener,
    /// The session of allocations.
    alloc_session: duty_cycle::AllocSession,
}

/// Where an event comes from: a CLR, with what its samples need. Made anew for each callback.
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
    /// Of a CLR that has just been asked what it is.
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

    /// Whether events of this provider are the runtime's own.
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
    /// None wanted yet.
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

    /// A session begins: these settings are in force. Before
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
        // Release: pairs with `wants`; who sees the events sees the rest.
        self.wanted.store(settings.events.bits(), Ordering::Release);
    }

    /// Other events from here on, in the session that runs.
    pub(crate) fn change(&self, events: EventSet) {
        // Release: pairs with `wants`, as in `begin`.
        self.wanted.store(events.bits(), Ordering::Release);
    }

    /// The session is over: nothing is wanted, and nothing is kept.
    pub fn forget_session(&self) {
        self.wanted.store(EventSet::NONE.bits(), Ordering::Relaxed);
        self.queue.begin(0, proc::now_ns());
        *lock(&self.news) = Vec::new();
    }

    /// A CLR that is recorded.
    pub(crate) fn add(&self, number: u8, own: Arc<ClrEvents>) {
        let mut clrs = lock(&self.clrs);
        clrs.retain(|(other, _)| *other != number);
        clrs.push((number, own));
    }

    /// It has ended, or was not recorded after all.
    pub(crate) fn remove(&self, number: u8) {
        lock(&self.clrs).retain(|(other, _)| *other != number);
    }

    /// Returns a CLR's own state here.
    pub(crate) fn of(&self, number: u8) -> Option<Arc<ClrEvents>> {
        let clrs = lock(&self.clrs);
        let found = clrs.iter().find(|(other, _)| *other == number);
        found.map(|(_, own)| Arc::clone(own))
    }

    /// Whether samples of this event are asked for.
    pub(crate) fn wants(&self, event: Event) -> bool {
        EventSet::of_bits(self.wanted.load(Ordering::Acquire)).has(event)
    }

    /// Whether samples are taken now. Asked before anything that costs time.
    pub(crate) fn is_on(&self) -> bool {
        self.phase.is_recording()
    }

    /// Nanoseconds between two instants at which it is told what is alive.
    fn live_interval(&self) -> u64 {
        self.live_interval_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn alloc_interval(&self) -> u64 {
        self.alloc_interval.load(Ordering::Relaxed)
    }

    /// A collection has ended.
    pub(crate) fn collected(&self) {
        self.collections.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives back the handles that are no longer followed: those of samples that were dropped on
    /// their way.
    pub(crate) fn release_handles(&self, runtimes: &mut Runtimes<'_>) {
        self.handles.release_unused(runtimes);
    }

    /// Whether there are any where there is no session: samples that were on their way when it
    /// ended belong to no session, and are dropped.
    pub(crate) fn has_late_handles(&self) -> bool {
        let is_any = self.handles.is_any();
        if is_any {
            drop(self.queue.take(proc::now_ns()));
        }
        is_any
    }

    /// An event happened. Answers where its sample is to go, if it is to be taken.
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

    /// Whether a call of a traced method that took so long may be kept. Asked before anything that
    /// costs time: three loads.
    #[inline]
    pub(crate) fn may_keep_call_of(&self, ns: u64) -> bool {
        self.queue.is_slow(ns) && self.wants(Event::TracedCall) && self.is_on()
    }

    /// A call of a traced method is over, on this thread, in native code that the method has
    /// called.
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

    /// A sample as a callback leaves it.
    #[cfg(test)]
    pub(crate) fn take_sample(&self, sample: EventSample) -> bool {
        let place = self.offer(sample.event, sample.value);
        if let Some(place) = place {
            self.push(place, sample);
        }
        place.is_some()
    }

    /// Queues a piece of news for the recording, once; drops it where there is no session.
    pub(crate) fn announce(&self, news: EventAnnouncement) {
        if self.phase.get().is_session() {
            lock(&self.news).push(news);
        }
    }

    fn take_announcements(&self) -> Vec<EventAnnouncement> {
        std::mem::take(&mut *lock(&self.news))
    }

    /// Tells where a CLR's events come from, and what cannot be had of it.
    pub(crate) fn announce_sources(&self, subscription: &Subscription) {
        for news in &subscription.news {
            self.announce(news.clone());
        }
    }
}

impl Origin<'_> {
    /// An event happened on the calling thread: takes its sample, if one is to be taken. `say` is
    /// asked only then, for what is counted under one name, and the rest. Exceptions go step by
    /// step: `exception::thrown` notes the search for their catcher meanwhile.
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

    /// The stack of the calling thread.
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
            // The runtime refuses to walk now, as it does while it dispatches an exception: we
            // walk.
        }
        walk_here(map, max_depth, self.program.threads.own_hijacks())
    }

    /// A sample of the calling thread, now.
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
        // A callback that was on its way when the session ended.
        events.push(place, EventSample::for_test(Event::Exception, 1, 100));
        events.begin(&Settings::parse("event=gc"));
        assert!(events.queue.take(1).samples.is_empty());
    }
}
