//! Locks of the profiler's own that can never be held where holding them deadlocks, and pins that
//! keep a thread from going away under a walk.
//!
//! The invariants: no [`AgentLockGuard`] lives across a call that may trigger a garbage collection
//! or while the runtime is suspended, because it borrows the proof that those borrow mutably; no
//! thread is let go while a [`ThreadPin`] of it lives.

use core::ops::{Deref, DerefMut};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::context::{Callback, Cx, MayLock};
use crate::id::{RuntimeIndex, ThreadKey};
use crate::thread::AgentCx;

/// A mutex that is taken with the proof of the context.
#[derive(Debug, Default)]
pub struct AgentLock<T> {
    inner: Mutex<T>,
}

/// A taken [`AgentLock`].
#[derive(Debug)]
pub struct AgentLockGuard<'g, T> {
    inner: MutexGuard<'g, T>,
}

impl<T> AgentLock<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Self {
        Self {
            inner: Mutex::new(value),
        }
    }

    /// Takes the lock, and with it the right to trigger a collection until it is given back.
    pub fn lock<'g, C: MayLock>(&'g self, _cx: &'g Cx<'_, C>) -> AgentLockGuard<'g, T> {
        AgentLockGuard {
            inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Takes the lock on a thread of the profiler's own, outside any runtime. No runtime can be
    /// entered until it is given back.
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

/// The managed threads that are alive, and those that are being walked.
///
/// Tell it of each thread by [`ThreadPins::created`] and [`ThreadPins::destroyed`]. The article's
/// rule: block in `ThreadDestroyed` until that thread's walk is complete.
#[derive(Debug, Default)]
pub struct ThreadPins {
    /// Threads that are alive, each with the number of its pins.
    threads: Mutex<HashMap<ThreadKey, u32>>,
    released: Condvar,
}

/// While it lives, the thread's `ThreadDestroyed` callback does not return.
#[derive(Debug)]
pub struct ThreadPin<'p> {
    pins: &'p ThreadPins,
    thread: ThreadKey,
}

impl ThreadPins {
    /// No threads.
    pub fn new() -> Self {
        Self::default()
    }

    fn threads(&self) -> MutexGuard<'_, HashMap<ThreadKey, u32>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread was created, or found by enumeration.
    pub fn created(&self, thread: ThreadKey) {
        let mut threads = self.threads();
        let count = threads.entry(thread).or_insert(0);
        if *count == DYING {
            // The id was given out again; the end of the one before was not waited for.
            *count = 0;
        }
    }

    /// A runtime was left: no `ThreadDestroyed` of its threads will come.
    pub fn forget_runtime(&self, runtime: RuntimeIndex) {
        let mut threads = self.threads();
        threads.retain(|thread, _| thread.runtime() != runtime);
        threads.shrink_to_fit();
    }

    /// Keeps a thread from going; `None` when it has gone or was never there.
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

    /// For [`crate::Callbacks::thread_destroyed`]: from now on the thread cannot be pinned; returns
    /// when no pin of it is left.
    pub fn destroyed(&self, cx: &mut Cx<'_, Callback>, thread: ThreadKey) {
        while !self.destroyed_within(cx, thread, Duration::from_secs(3600)) {}
    }

    /// As [`ThreadPins::destroyed`], waiting no longer than `limit`. False: it is still being
    /// walked. For a profiler that would rather take that chance than hold the program's thread
    /// for ever; the thread cannot be pinned any more either way.
    pub fn destroyed_within(
        &self,
        _cx: &mut Cx<'_, Callback>,
        thread: ThreadKey,
        limit: Duration,
    ) -> bool {
        let mut threads = self.threads();
        match threads.get_mut(&thread) {
            // It is not being walked, mostly.
            Some(0) => {
                threads.remove(&thread);
                return true;
            }
            Some(count) => *count |= DYING,
            None => return true,
        }
        // From here on the count only falls: `pin` refuses.
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
