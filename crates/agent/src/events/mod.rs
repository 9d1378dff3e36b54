//! Events with stacks: exceptions, allocations, lock waits, collections, compilations, loads.
//!
//! A callback of the CLR ([`Events::happened`]) decides whether the event is to be kept, walks the
//! calling thread's stack ([`here`]) and leaves addresses in a bounded queue; the agent thread
//! resolves them as it does those of CPU samples and writes records ([`writer`]). docs/events.md
//! says what each event means to users. Invariants: the CLR is asked for the callbacks of the chosen
//! events only; an event that a CLR cannot deliver is said in a note of the recording; no callback
//! waits for the agent thread.

pub(crate) mod alloc;
pub(crate) mod event_pipe;
pub(crate) mod exception;
pub(crate) mod gc;
mod here;
pub(crate) mod jit;
pub(crate) mod loads;
mod names;
mod queue;
mod sample;
mod setup;
mod writer;

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use corprof::Cx;
use corprof::context::Context;
use recording::Event;
use stackwalk::CodeMap;

pub(crate) use self::here::walk_here;
pub(crate) use self::names::NameCache;
pub(crate) use self::setup::{Setup, setup};
pub(crate) use self::writer::EventWriter;

use self::queue::{Place, Queue};
use self::sample::EventSample;
use crate::clr::Clr;
use crate::config::{Config, EventSet, Walker};
use crate::proc;
use crate::resolve::EndCode;
use crate::walkers::here::snapshot_here;

/// Something the recording is to be told about events, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EventNews {
    /// Where an event's samples come from, and about how much one stands for.
    Source {
        event: Event,
        source: &'static str,
        interval: u64,
    },
    /// What a user must know.
    Note(String),
}

/// Samples are taken.
const ON: u8 = 0;
/// Every CLR so far has ended.
const RESTING: u8 = 1;
/// The recording has ended.
const OVER: u8 = 2;

/// The events of the process that are not sampled by time.
pub(crate) struct Events {
    wanted: EventSet,
    /// [`ON`], [`RESTING`] or [`OVER`].
    state: AtomicU8,
    map: &'static CodeMap,
    max_depth: u32,
    walker: Walker,
    alloc_interval: u64,
    ticks: alloc::Ticks,
    queue: Queue,
    news: Mutex<Vec<EventNews>>,
    /// An eventfd of the agent thread.
    wake_fd: i32,
}

impl Events {
    pub(crate) fn new(config: &Config, map: &'static CodeMap, wake_fd: i32) -> Events {
        Events {
            wanted: config.events,
            state: AtomicU8::new(ON),
            map,
            max_depth: config.max_depth,
            walker: config.walker,
            alloc_interval: config.alloc_interval,
            ticks: alloc::Ticks::new(),
            queue: Queue::new(config.event_limit, proc::now_ns()),
            news: Mutex::default(),
            wake_fd,
        }
    }

    /// Whether samples of this event are asked for.
    pub(crate) fn wants(&self, event: Event) -> bool {
        self.wanted.has(event)
    }

    /// Whether the recording goes on. Asked before anything that costs time.
    pub(crate) fn is_on(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ON
    }

    /// No more samples until another CLR begins.
    pub(crate) fn rest(&self) {
        self.change(ON, RESTING);
    }

    /// A CLR begins: samples again, unless the recording is over.
    pub(crate) fn resume(&self) {
        self.change(RESTING, ON);
    }

    /// No more samples ever: nobody takes them from the queue any more.
    pub(crate) fn end(&self) {
        self.state.store(OVER, Ordering::Relaxed);
    }

    fn change(&self, from: u8, to: u8) {
        let _was_another =
            self.state
                .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn alloc_interval(&self) -> u64 {
        self.alloc_interval
    }

    /// An event happened. Answers where its sample is to go, if it is to be taken.
    fn offer(&self, event: Event, value: u64) -> Option<Place> {
        if !self.wants(event) || !self.is_on() {
            return None;
        }
        self.queue.offer(event, value)
    }

    /// An event happened on the calling thread: takes its sample, if one is to be taken. `say` is
    /// asked only then, for what is counted under one name, and the rest. Exceptions go step by
    /// step: `exception::thrown` notes the search for their catcher meanwhile.
    fn happened<'rt, C: Context>(
        &self,
        clr: &Clr,
        cx: &mut Cx<'rt, C>,
        event: Event,
        value: u64,
        say: impl FnOnce(&Cx<'rt, C>) -> (Arc<str>, String),
    ) {
        if let Some(place) = self.offer(event, value) {
            let (name, text) = say(cx);
            let sample = self.sample(clr, cx, event, value, name, text);
            self.push(place, sample);
        }
    }

    /// The walker that takes their stacks.
    pub(crate) fn walker(&self) -> Walker {
        match self.walker {
            Walker::Snapshot => Walker::Snapshot,
            _ => Walker::Signal,
        }
    }

    /// The stack of the calling thread.
    fn walk<'rt, C: Context>(&self, clr: &Clr, cx: &mut Cx<'rt, C>) -> (Box<[u64]>, EndCode) {
        if self.walker() == Walker::Snapshot
            && let Some(proof) = clr.snapshots()
        {
            let mut words = Vec::new();
            let max_depth = self.max_depth as usize;
            if let Ok(end) = snapshot_here(self.map, cx, proof, max_depth, &mut words) {
                return (words.into(), end);
            }
            // The runtime refuses to walk now, as it does while it dispatches an exception: we walk.
        }
        here::walk_here(self.map, self.max_depth, clr.own_hijacks())
    }

    /// A sample of the calling thread, now.
    fn sample<'rt, C: Context>(
        &self,
        clr: &Clr,
        cx: &mut Cx<'rt, C>,
        event: Event,
        value: u64,
        name: Arc<str>,
        text: String,
    ) -> EventSample {
        let time_ns = proc::now_ns();
        let (frames, end) = self.walk(clr, cx);
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
        }
    }

    fn push(&self, place: Place, sample: EventSample) {
        if self.queue.push(place, sample) {
            crate::agent::ring(self.wake_fd);
        }
    }

    /// Tells the recording something once.
    pub(crate) fn tell(&self, news: EventNews) {
        let mut all = self.news.lock().unwrap_or_else(|e| e.into_inner());
        all.push(news);
    }

    fn take_news(&self) -> Vec<EventNews> {
        std::mem::take(&mut *self.news.lock().unwrap_or_else(|e| e.into_inner()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static MAP: CodeMap = CodeMap::new();

    #[test]
    fn a_new_clr_wakes_what_rests_but_not_what_is_over() {
        let events = Events::new(&Config::parse("event=exception"), &MAP, -1);
        assert!(events.is_on() && events.wants(Event::Exception));
        assert!(!events.wants(Event::Alloc));
        events.rest();
        assert!(events.offer(Event::Exception, 1).is_none());
        events.resume();
        assert!(events.offer(Event::Exception, 1).is_some());
        assert!(events.offer(Event::Alloc, 1).is_none());
        events.end();
        events.resume();
        assert!(!events.is_on());
    }
}
