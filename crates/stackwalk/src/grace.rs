//! Grace periods: when memory that a walk may still be reading can be freed.
//!
//! A walk enters and exits; a writer that unpublishes something hands it over with
//! [`Grace::retire`] and never waits. It is not a lock: a walk is never delayed and never delays a
//! writer. The invariant: something is freed only after both counters of readers were seen at 0 at
//! a time after it was unpublished. A reader counts itself before it loads a pointer, so a reader
//! that could have seen the thing has left by then. The two counters are there for progress only:
//! new readers count on one side while the other drains (SRCU, as in the Linux kernel).

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Its own cache line, so that the two sides do not disturb each other.
#[repr(align(64))]
struct Side(AtomicUsize);

/// Something that awaits its end.
struct RetiredItem<T> {
    what: T,
    bytes: usize,
    /// The sides that were seen empty since.
    seen: [bool; 2],
}

/// See the module's text. `T` is what is retired.
pub(crate) struct Grace<T> {
    phase: AtomicUsize,
    sides: [Side; 2],
    retired: Mutex<Vec<RetiredItem<T>>>,
}

/// A walk that may hold pointers into the code map. Async-signal-safe.
pub(crate) struct WalkGuard<'grace> {
    side: &'grace AtomicUsize,
}

impl Drop for WalkGuard<'_> {
    fn drop(&mut self) {
        self.side.fetch_sub(1, Ordering::Release);
    }
}

impl<T> Grace<T> {
    pub(crate) const fn new() -> Self {
        Self {
            phase: AtomicUsize::new(0),
            sides: [const { Side(AtomicUsize::new(0)) }; 2],
            retired: Mutex::new(Vec::new()),
        }
    }

    /// Counts a reader in. Two atomic operations; callable in a signal handler.
    #[inline]
    pub(crate) fn enter(&self) -> WalkGuard<'_> {
        let [even, odd] = &self.sides;
        let side = if self.phase.load(Ordering::Relaxed) & 1 == 0 {
            &even.0
        } else {
            &odd.0
        };
        side.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `reclaim`: the count is visible before any pointer is loaded.
        fence(Ordering::SeqCst);
        WalkGuard { side }
    }

    /// Takes over something that was unpublished. Hands to `free` what can be freed by now.
    /// Not in a signal handler.
    pub(crate) fn retire(&self, what: T, bytes: usize, free: impl FnMut(T)) {
        let mut retired = self.lock();
        retired.push(RetiredItem {
            what,
            bytes,
            seen: [false; 2],
        });
        // Amortised: the list stays short without a look at it on every call.
        if retired.len().is_multiple_of(32) {
            self.pass(&mut retired, free);
        }
    }

    /// Hands to `free` what no walk can hold any more; says how many things remain. Never waits.
    /// Not in a signal handler.
    pub(crate) fn reclaim(&self, mut free: impl FnMut(T)) -> usize {
        let mut retired = self.lock();
        self.pass(&mut retired, &mut free);
        self.pass(&mut retired, &mut free);
        retired.len()
    }

    /// Bytes that wait to be freed.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().iter().map(|item| item.bytes).sum()
    }

    fn pass(&self, retired: &mut Vec<RetiredItem<T>>, free: impl FnMut(T)) {
        // Pairs with the fence in `enter`: whatever was unpublished before is invisible to a
        // reader that is not yet in a count read below.
        fence(Ordering::SeqCst);
        let empty = self
            .sides
            .each_ref()
            .map(|side| side.0.load(Ordering::SeqCst) == 0);
        for item in retired.iter_mut() {
            for (seen, empty) in item.seen.iter_mut().zip(empty) {
                *seen |= empty;
            }
        }
        // New readers go to a side that is empty now, so that the other one drains.
        let active = self.phase.load(Ordering::Relaxed) & 1;
        if empty.get(1 - active) == Some(&true) && empty.get(active) == Some(&false) {
            self.phase.store(1 - active, Ordering::Relaxed);
        }
        let gone = retired.extract_if(.., |item| item.seen == [true; 2]);
        gone.map(|item| item.what).for_each(free);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RetiredItem<T>>> {
        // The list is a plain vector: a panic elsewhere cannot have left it half-made.
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_reader_holds_back_what_was_retired_while_it_ran() {
        let grace = Grace::new();
        let what = Arc::new(());
        let reader = grace.enter();
        grace.retire(what.clone(), 10, drop);
        assert_eq!((grace.reclaim(drop), grace.waiting()), (1, 10));
        assert_eq!(Arc::strong_count(&what), 2);
        // A reader that came after does not hold it back: it is on the other side.
        let later = grace.enter();
        assert_eq!(grace.reclaim(drop), 1);
        drop(reader);
        assert_eq!(grace.reclaim(drop), 0);
        assert_eq!(Arc::strong_count(&what), 1);
        drop(later);
    }

    #[test]
    fn readers_without_end_do_not_stop_reclaiming() {
        let grace = Grace::new();
        let what = Arc::new(());
        grace.retire(what.clone(), 0, drop);
        let mut reader = grace.enter();
        let mut left = 1;
        for _ in 0..10 {
            // There is always at least one reader.
            let next = grace.enter();
            drop(std::mem::replace(&mut reader, next));
            left = grace.reclaim(drop);
        }
        assert_eq!(left, 0);
        assert_eq!(Arc::strong_count(&what), 1);
    }
}
