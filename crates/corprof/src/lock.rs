//! Locks that cannot be held where they would deadlock, and pins that keep a walked thread alive.
//!
//! Both are for the profiler's own data; the runtime does not see them.
//!
//! Invariants: no [`AgentLockGuard`] lives across a call that may trigger a garbage collection, or
//! while the runtime is suspended. The guard borrows the context token, which such calls borrow
//! mutably. The `ThreadDestroyed` callback of a thread does not return while a [`ThreadPin`] of it
//! lives.

use core::ops::{Deref, DerefMut};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::context::{Callback, Cx, MayLock};
use crate::id::{RuntimeIndex, ThreadKey};
use crate::thread::AgentCx;

/// A mutex of the profiler, locked with a context token.
#[derive(Debug, Default)]
pub struct AgentLock<T> {
    inner: Mutex<T>,
}

/// Guard of a locked [`AgentLock`].
#[derive(Debug)]
pub struct AgentLockGuard<'g, T> {
    inner: MutexGuard<'g, T>,
}

impl<T> AgentLock<T> {
    /// Wraps a value in a lock.
    pub const fn new(value: T) -> Self {
        Self {
            inner: Mutex::new(value),
        }
    }

    /// Locks. Until the guard is dropped, the token permits no call that may trigger a collection.
    pub fn lock<'g, C: MayLock>(&'g self, _cx: &'g Cx<'_, C>) -> AgentLockGuard<'g, T> {
        AgentLockGuard {
            inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Locks on a thread of the profiler, outside any runtime. No runtime can be entered until the
    /// guard is dropped.
    pub fn lock_outside<'g>(&'g self, _cx: &'g AgentCx) -> AgentLockGuard<'g, T> {
        AgentLockGuard {
            inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl<T> Deref for AgentLockGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for AgentLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// The live managed threads, and which of them are being walked.
///
/// Report each thread with [`ThreadPins::created`] and [`ThreadPins::destroyed`]. Rule of the CLR
/// documentation: block in `ThreadDestroyed` until the walk of that thread is complete.
#[derive(Debug, Default)]
pub struct ThreadPins {
    /// Live threads, each with the number of its pins, or [`DYING`].
    threads: Mutex<HashMap<ThreadKey, u32>>,
    released: Condvar,
}

/// Keeps a thread's `ThreadDestroyed` callback from returning until it is dropped.
#[derive(Debug)]
pub struct ThreadPin<'p> {
    pins: &'p ThreadPins,
    thread: ThreadKey,
}

impl ThreadPins {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    fn threads(&self) -> MutexGuard<'_, HashMap<ThreadKey, u32>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a thread that was created, or found by enumeration.
    pub fn created(&self, thread: ThreadKey) {
        let mut threads = self.threads();
        let count = threads.entry(thread).or_insert(0);
        if *count == DYING {
            // The runtime reused the id after `destroyed_within` timed out.
            *count = 0;
        }
    }

    /// Removes the threads of a runtime from which the profiler was detached: their
    /// `ThreadDestroyed` callbacks do not come.
    pub fn forget_runtime(&self, runtime: RuntimeIndex) {
        let mut threads = self.threads();
        threads.retain(|thread, _| thread.runtime() != runtime);
        threads.shrink_to_fit();
    }

    /// Pins a thread; `None` if it has ended or is unknown.
    pub fn pin(&self, thread: ThreadKey) -> Option<ThreadPin<'_>> {
        let mut threads = self.threads();
        let count = threads.get_mut(&thread)?;
        if *count & DYING != 0 {
            return None;
        }
        *count += 1;
        drop(threads);
        Some(ThreadPin { pins: self, thread })
    }

    /// Removes a thread; call it in [`crate::Callbacks::thread_destroyed`]. From then on the thread
    /// cannot be pinned. Blocks until none of its pins is left.
    pub fn destroyed(&self, cx: &mut Cx<'_, Callback>, thread: ThreadKey) {
        while !self.destroyed_within(cx, thread, Duration::from_secs(3600)) {}
    }

    /// As [`ThreadPins::destroyed`], but blocks no longer than `limit`. Returns `false` if the
    /// thread is still being walked: a profiler that accepts this risk does not block the program's
    /// thread for ever. In both cases the thread cannot be pinned any more.
    pub fn destroyed_within(
        &self,
        _cx: &mut Cx<'_, Callback>,
        thread: ThreadKey,
        limit: Duration,
    ) -> bool {
        let mut threads = self.threads();
        match threads.get_mut(&thread) {
            // The usual case: the thread is not being walked.
            Some(0) => {
                threads.remove(&thread);
                return true;
            }
            Some(count) => *count |= DYING,
            None => return true,
        }
        // `pin` refuses from here on, so the count can only fall.
        let waited = self.released.wait_timeout_while(threads, limit, |threads| {
            threads.get(&thread).is_some_and(|count| *count != DYING)
        });
        let (mut threads, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let free = threads.get(&thread).is_none_or(|count| *count == DYING);
        if free {
            threads.remove(&thread);
        }
        free
    }
}

/// Set in the count of a thread whose `ThreadDestroyed` waits.
const DYING: u32 = 1 << 31;

impl Drop for ThreadPin<'_> {
    fn drop(&mut self) {
        let mut threads = self.pins.threads();
        if let Some(count) = threads.get_mut(&self.thread) {
            *count -= 1;
            if *count == DYING {
                self.pins.released.notify_all();
            }
        }
    }
}
