//! When which thread of the program collected garbage.
//!
//! The thread that stops the runtime for a collection is the one that collects, or waits for the
//! collector's own threads: what is on its stack then, in code without names, is the collector's.
//! Callbacks note when that was, the agent thread writes it down. Invariants: a callback never
//! waits here, and allocates nothing; what there is no room for is left out, and code of the
//! runtime then keeps its number.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use corprof::sys::CorPrfSuspendReason;

use crate::base::proc;

/// Most that are kept until the agent thread takes them: four in a millisecond of the longest
/// round.
const MAX_TIMES: usize = 2048;

/// Whether a runtime that stops for this reason does so to collect.
pub(crate) fn is_collection(reason: CorPrfSuspendReason) -> bool {
    [
        CorPrfSuspendReason::FOR_GC,
        CorPrfSuspendReason::FOR_GC_PREP,
    ]
    .contains(&reason)
}

/// One collection's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CollectionTime {
    pub(crate) tid: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub(crate) from_ns: u64,
    pub(crate) ns: u64,
}

/// Those of one CLR.
#[derive(Debug)]
pub(crate) struct CollectionTimes {
    /// Since when the runtime is stopped for a collection; 0 where it is not.
    from_ns: AtomicU64,
    /// By which thread.
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
    /// At the end of `RuntimeSuspendStarted`. The runtime lets one thread at a time come here.
    pub(crate) fn begin(&self, reason: CorPrfSuspendReason) {
        if is_collection(reason) {
            self.tid.store(proc::own_tid(), Relaxed);
            self.from_ns.store(proc::now_ns(), Relaxed);
        }
    }

    /// At the begin of `RuntimeResumeStarted` and `RuntimeSuspendAborted`. On the thread of
    /// [`CollectionTimes::begin`], or on one that took over from it.
    pub(crate) fn end(&self) {
        let from_ns = self.from_ns.swap(0, Relaxed);
        if from_ns == 0 {
            return;
        }
        // Held by the agent thread while it takes them, and by no other thread.
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

    /// Those that are over since the last call, into `all`. Agent thread only.
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
