//! Garbage collection intervals of each program thread.
//!
//! The thread that suspends the runtime for a collection either runs the collection or waits for
//! the GC's own threads. During that interval, the unsymbolised frames on its stack belong to the
//! GC. Callbacks record the intervals; the agent thread writes them. Invariants: a callback never
//! blocks and never allocates here. If the buffer is full or the agent thread holds it, the
//! interval is dropped and the runtime's frames in it stay unnamed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use corprof::sys::CorPrfSuspendReason;

use crate::base::proc;

/// Maximum number of intervals until the agent thread takes them: four per millisecond of the
/// longest agent-thread round.
const MAX_TIMES: usize = 2048;

/// Whether a runtime that suspends for this reason does so for a collection.
pub(crate) fn is_collection(reason: CorPrfSuspendReason) -> bool {
    [
        CorPrfSuspendReason::FOR_GC,
        CorPrfSuspendReason::FOR_GC_PREP,
    ]
    .contains(&reason)
}

/// The interval of one collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CollectionTime {
    pub(crate) tid: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub(crate) from_ns: u64,
    pub(crate) ns: u64,
}

/// The collection intervals of one CLR.
#[derive(Debug)]
pub(crate) struct CollectionTimes {
    /// Start of the suspension for a collection in progress; 0 if there is none.
    from_ns: AtomicU64,
    /// The thread that suspended the runtime.
    tid: AtomicU32,
    times: Mutex<Vec<CollectionTime>>,
}

impl Default for CollectionTimes {
    fn default() -> CollectionTimes {
        CollectionTimes {
            from_ns: AtomicU64::new(0),
            tid: AtomicU32::new(0),
            times: Mutex::new(Vec::with_capacity(MAX_TIMES)),
        }
    }
}

impl CollectionTimes {
    /// Called at the end of `RuntimeSuspendStarted`. The runtime serialises these calls.
    pub(crate) fn begin(&self, reason: CorPrfSuspendReason) {
        if is_collection(reason) {
            self.tid.store(proc::own_tid(), Relaxed);
            self.from_ns.store(proc::now_ns(), Relaxed);
        }
    }

    /// Called at the start of `RuntimeResumeStarted` and `RuntimeSuspendAborted`, on the thread of
    /// [`CollectionTimes::begin`] or one that took over from it.
    pub(crate) fn end(&self) {
        let from_ns = self.from_ns.swap(0, Relaxed);
        if from_ns == 0 {
            return;
        }
        // The agent thread holds this lock while it takes the intervals; no other thread does.
        let Ok(mut times) = self.times.try_lock() else {
            return;
        };
        if times.len() < MAX_TIMES {
            times.push(CollectionTime {
                tid: self.tid.load(Relaxed),
                from_ns,
                ns: proc::now_ns().saturating_sub(from_ns),
            });
        }
    }

    /// Appends the intervals that ended since the last call to `all`. Agent thread only.
    pub(crate) fn take(&self, all: &mut Vec<CollectionTime>) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        all.append(&mut times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_collection_is_its_threads() {
        let collection_times = CollectionTimes::default();
        let mut all = Vec::new();
        collection_times.end();
        collection_times.begin(CorPrfSuspendReason::FOR_REJIT);
        collection_times.end();
        collection_times.take(&mut all);
        assert_eq!(all, []);
        let before = proc::now_ns();
        collection_times.begin(CorPrfSuspendReason::FOR_GC);
        std::thread::scope(|scope| drop(scope.spawn(|| collection_times.end())));
        collection_times.end();
        collection_times.take(&mut all);
        let [one] = all[..] else {
            panic!("{all:?}");
        };
        assert_eq!(one.tid, proc::own_tid());
        assert!(one.from_ns >= before && one.from_ns + one.ns <= proc::now_ns());
    }

    #[test]
    fn what_is_not_taken_does_not_grow() {
        let collection_times = CollectionTimes::default();
        for _ in 0..MAX_TIMES + 10 {
            collection_times.begin(CorPrfSuspendReason::FOR_GC);
            collection_times.end();
        }
        assert_eq!(collection_times.times.lock().unwrap().capacity(), MAX_TIMES);
        let mut all = Vec::new();
        collection_times.take(&mut all);
        assert_eq!(all.len(), MAX_TIMES);
    }
}
