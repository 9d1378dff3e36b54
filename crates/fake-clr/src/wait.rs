//! Waits of the fake CLR (collections, locks), with deadlock detection.
//!
//! Each waiting operating system thread is registered with the thread for which it waits.
//!
//! Invariant: a wait that would close a cycle does not begin. It returns [`Deadlock`] instead of
//! blocking for ever.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use crate::state::{ClrState, Shared, os_thread};
use crate::{FakeClr, Thread};

/// Error: a wait would be part of a cycle of threads that wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadlock;

/// The waiting threads, and the threads for which they wait.
#[derive(Default)]
pub(crate) struct Waits {
    for_thread: HashMap<u64, u64>,
    /// The operating system thread that collects garbage.
    collector: Option<u64>,
    /// Managed threads in cooperative mode, with their operating system threads.
    cooperative: HashMap<Thread, u64>,
    /// Owners of [`WatchedLock`]s.
    owners: HashMap<usize, u64>,
    /// Number of cycles so far.
    pub(crate) deadlocks: u32,
}

impl Waits {
    pub(crate) fn collector(&self) -> Option<u64> {
        self.collector
    }

    pub(crate) fn set_cooperative(&mut self, thread: Thread, cooperative: bool) {
        if cooperative {
            self.cooperative.insert(thread, os_thread());
        } else {
            self.cooperative.remove(&thread);
        }
    }

    fn would_deadlock(&self, from: u64, to: u64) -> bool {
        let mut at = to;
        // No cycle is longer than the number of waiting threads.
        for _ in 0..=self.for_thread.len() {
            if at == from {
                return true;
            }
            match self.for_thread.get(&at) {
                Some(next) => at = *next,
                None => return false,
            }
        }
        true
    }
}

impl Shared {
    /// Waits until `blocker` returns `None`.
    fn wait_while<'s>(
        &'s self,
        mut state: MutexGuard<'s, ClrState>,
        blocker: impl Fn(&Waits) -> Option<u64>,
    ) -> Result<MutexGuard<'s, ClrState>, Deadlock> {
        let here = os_thread();
        loop {
            let Some(other) = blocker(&state.waits) else {
                state.waits.for_thread.remove(&here);
                return Ok(state);
            };
            if state.waits.would_deadlock(here, other) {
                state.waits.for_thread.remove(&here);
                state.waits.deadlocks += 1;
                self.changed.notify_all();
                return Err(Deadlock);
            }
            state.waits.for_thread.insert(here, other);
            self.changed.notify_all();
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Begins a collection. First waits for a running one, and until every other thread has left
    /// cooperative mode.
    pub(crate) fn begin_collection(&self) -> Result<(), Deadlock> {
        let here = os_thread();
        let mut state = self.wait_while(self.lock(), |waits| {
            waits.collector.filter(|collector| *collector != here)
        })?;
        state.waits.collector = Some(here);
        let result = self.wait_while(state, |waits| {
            waits
                .cooperative
                .values()
                .copied()
                .find(|thread| *thread != here)
        });
        match result {
            Ok(_) => Ok(()),
            Err(deadlock) => {
                self.end_collection();
                Err(deadlock)
            }
        }
    }

    pub(crate) fn end_collection(&self) {
        self.lock().waits.collector = None;
        self.changed.notify_all();
    }

    /// Runs at the head of a call that may trigger a collection: waits for a running one, and makes
    /// one if the script requests it.
    pub(crate) fn may_collect(&self) -> Result<(), Deadlock> {
        let here = os_thread();
        let mut state = self.wait_while(self.lock(), |waits| {
            waits.collector.filter(|collector| *collector != here)
        })?;
        let collect = std::mem::take(&mut state.collect_next);
        drop(state);
        if collect {
            self.begin_collection()?;
            self.end_collection();
        }
        Ok(())
    }
}

/// A lock whose waits the fake runtime tracks, for tests with a profiler that breaks the rules.
#[derive(Clone)]
pub struct WatchedLock {
    shared: Arc<Shared>,
    id: usize,
}

impl FakeClr {
    /// Creates a lock that takes part in deadlock detection.
    pub fn watched_lock(&self) -> WatchedLock {
        WatchedLock {
            shared: self.shared.clone(),
            id: self.shared.lock().world.next_id(),
        }
    }

    /// Makes the next call that may trigger a collection trigger one.
    pub fn collect_at_next_chance(&self) {
        self.shared.lock().collect_next = true;
    }

    /// Number of deadlocks detected.
    pub fn deadlocks(&self) -> u32 {
        self.shared.lock().waits.deadlocks
    }

    /// Waits until some thread waits for the calling thread, directly or indirectly.
    pub fn wait_until_waited_for(&self) {
        let here = os_thread();
        let mut state = self.shared.lock();
        while !state.waits.for_thread.values().any(|other| *other == here) {
            state = self
                .shared
                .changed
                .wait(state)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

impl WatchedLock {
    /// Takes the lock, runs `f` and releases the lock.
    ///
    /// # Errors
    /// [`Deadlock`] if waiting for the lock would close a cycle; `f` has not run then.
    pub fn with<R>(&self, f: impl FnOnce() -> R) -> Result<R, Deadlock> {
        let mut state = self.shared.wait_while(self.shared.lock(), |waits| {
            waits.owners.get(&self.id).copied()
        })?;
        state.waits.owners.insert(self.id, os_thread());
        drop(state);
        let result = f();
        self.shared.lock().waits.owners.remove(&self.id);
        self.shared.changed.notify_all();
        Ok(result)
    }
}
