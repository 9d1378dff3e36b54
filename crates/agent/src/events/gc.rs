//! Garbage collection events: a sample of each pause, with its duration and trigger.
//!
//! A pause lasts from `RuntimeSuspendStarted` to `RuntimeResumeFinished`, both on the thread that
//! suspends the others. That is the thread that allocated or called `GC.Collect`, or a GC thread
//! under server or background collection. A background collection makes several pauses. Invariant:
//! the callbacks before the runtime resumes only record numbers, so that the stack walk lengthens
//! no pause.

use std::sync::{Arc, Mutex, MutexGuard};

use corprof::context::NoTrigger;
use corprof::sys::{CorPrfGcReason, CorPrfSuspendReason};
use corprof::{Cx, EventMaskHigh, EventMaskLow};
use recording::Event;

use super::Origin;
use super::source::{EventSource, Need, SourceQuery};
use crate::base::proc;
use crate::clr::collection_times::is_collection;

/// The source of collection events.
pub(super) struct Collections;

impl EventSource for Collections {
    fn event(&self) -> Event {
        Event::Gc
    }

    fn need(&self, _: SourceQuery<'_>) -> Result<Need, String> {
        Ok(Need {
            low: EventMaskLow::MONITOR_SUSPENDS,
            high: EventMaskHigh::BASIC_GC,
            ..Need::nothing("RuntimeSuspendStarted to RuntimeResumeFinished")
        })
    }
}

/// A collection that has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Collection {
    generation: usize,
    induced: bool,
}

#[derive(Debug, Default)]
struct CollectorState {
    /// Time at which the runtime began to suspend for a collection.
    stopping_ns: Option<u64>,
    /// The collection that started in this pause.
    begun: Option<Collection>,
    /// Unfinished collections, oldest first: a background one, and one inside it.
    running: Vec<Collection>,
}

/// The collector state of a CLR.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    state: Mutex<CollectorState>,
}

/// A finished pause.
#[derive(Debug, PartialEq, Eq)]
struct GcPause {
    ns: u64,
    collection: Option<Collection>,
    background: bool,
}

impl Collector {
    fn state(&self) -> MutexGuard<'_, CollectorState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// `RuntimeSuspendStarted`.
    pub(crate) fn stopping(&self, reason: CorPrfSuspendReason, now_ns: u64) {
        let mut state = self.state();
        state.stopping_ns = is_collection(reason).then_some(now_ns);
        state.begun = None;
    }

    /// `GarbageCollectionStarted`.
    pub(crate) fn started(&self, generations: &[bool], reason: CorPrfGcReason) {
        let mut state = self.state();
        // Generations above 2 are the heaps of large and of pinned objects.
        let collected = generations.iter().take(3).rposition(|is| *is);
        let collection = Collection {
            generation: collected.unwrap_or(0),
            induced: reason == CorPrfGcReason::INDUCED,
        };
        state.begun = Some(collection);
        if state.running.len() < 4 {
            state.running.push(collection);
        }
    }

    /// `GarbageCollectionFinished`.
    pub(crate) fn finished(&self) {
        self.state().running.pop();
    }

    /// `RuntimeResumeFinished`.
    fn resumed(&self, now_ns: u64) -> Option<GcPause> {
        let mut state = self.state();
        let since = state.stopping_ns.take()?;
        let begun = state.begun.take();
        let still = state.running.last().copied();
        Some(GcPause {
            ns: now_ns.saturating_sub(since),
            collection: begun.or(still),
            // It started in an earlier pause, or continues after this one.
            background: still.is_some() && begun.is_none_or(|begun| still == Some(begun)),
        })
    }
}

/// `RuntimeResumeFinished`: samples the finished pause, with the stack of now.
pub(crate) fn resumed<'rt>(origin: Origin<'_>, cx: &mut Cx<'rt, NoTrigger>) {
    let Some(pause) = origin.own.collector.resumed(proc::now_ns()) else {
        return;
    };
    origin.happened(cx, Event::Gc, pause.ns, |_| pause.texts());
}

impl GcPause {
    fn texts(&self) -> (Arc<str>, String) {
        let name = match self.collection {
            Some(collection) => format!("generation {}", collection.generation),
            None => "no collection".to_owned(),
        };
        let induced = self.collection.is_some_and(|collection| collection.induced);
        // The runtime reports a forced compacting collection as `other`, too.
        let mut text = if induced { "induced" } else { "other reason" }.to_owned();
        if self.background {
            text.push_str(", background");
        }
        (name.into(), text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GC: CorPrfSuspendReason = CorPrfSuspendReason::FOR_GC;

    #[test]
    fn a_blocking_collection_is_one_pause() {
        let collector = Collector::default();
        collector.stopping(GC, 100);
        collector.started(&[true, true, false, false], CorPrfGcReason::INDUCED);
        collector.finished();
        let pause = collector.resumed(350).unwrap();
        assert_eq!(pause.ns, 250);
        let (name, text) = pause.texts();
        assert_eq!((&*name, &*text), ("generation 1", "induced"));
        assert_eq!(collector.resumed(400), None);
    }

    #[test]
    fn a_background_collection_is_several() {
        let collector = Collector::default();
        let other = CorPrfGcReason::OTHER;
        let texts = |pause: Option<GcPause>| {
            let (name, text) = pause.unwrap().texts();
            format!("{name}: {text}")
        };
        collector.stopping(GC, 0);
        collector.started(&[true, true, true, true, true], other);
        assert_eq!(
            texts(collector.resumed(1)),
            "generation 2: other reason, background"
        );
        collector.stopping(GC, 2);
        collector.started(&[true, false, false], other);
        collector.finished();
        assert_eq!(texts(collector.resumed(3)), "generation 0: other reason");
        collector.stopping(CorPrfSuspendReason::FOR_GC_PREP, 4);
        assert_eq!(
            texts(collector.resumed(5)),
            "generation 2: other reason, background"
        );
        collector.finished();
        collector.stopping(GC, 6);
        assert_eq!(texts(collector.resumed(7)), "no collection: other reason");
    }

    #[test]
    fn a_walkers_pause_is_none() {
        let collector = Collector::default();
        collector.stopping(CorPrfSuspendReason::FOR_PROFILER, 0);
        assert_eq!(collector.resumed(9), None);
    }
}
