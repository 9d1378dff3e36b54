//! Grace periods: delayed freeing of code map memory that a walk may still be reading.
//!
//! A walk enters and exits. A writer that unpublishes an item passes it to [`Grace::retire`] and
//! never waits. No lock is involved: a walk is never delayed and never delays a writer. Invariant:
//! an item is freed only after both reader counters were seen at 0 after it was unpublished. A
//! reader increments a counter before it loads a pointer, so every reader that could have seen the
//! item has left by then. The second counter exists for progress only: new readers use one counter
//! while the other drains (SRCU, as in the Linux kernel).

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Reader counter. It has its own cache line, so that the two sides do not share one.
#[repr(align(64))]
struct Side(AtomicUsize);

/// An unpublished item that is freed later.
struct RetiredItem<T> {
    what: T,
    bytes: usize,
    /// The sides that were seen at 0 since the item was retired.
    seen: [bool; 2],
}

/// The readers and the retired items; see the module's text. `T` is the type of retired items.
pub(crate) struct Grace<T> {
    phase: AtomicUsize,
    sides: [Side; 2],
    retired: Mutex<Vec<RetiredItem<T>>>,
}

/// Guard of a walk that may hold pointers into the code map. Async-signal-safe.
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

    /// Registers a reader. Two atomic operations; async-signal-safe.
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

    /// Takes over an unpublished item, and passes items that can be freed by now to `free`. Not for
    /// signal handlers.
    pub(crate) fn retire(&self, what: T, bytes: usize, free: impl FnMut(T)) {
        let mut retired = self.lock();
        retired.push(RetiredItem {
            what,
            bytes,
            seen: [false; 2],
        });
        // Amortised: the list stays short although not every call checks it.
        if retired.len().is_multiple_of(32) {
            self.pass(&mut retired, free);
        }
    }

    /// Passes items that no walk can hold any more to `free`. Returns the number of remaining
    /// items. Never waits. Not for signal handlers.
    pub(crate) fn reclaim(&self, mut free: impl FnMut(T)) -> usize {
        let mut retired = self.lock();
        self.pass(&mut retired, &mut free);
        self.pass(&mut retired, &mut free);
        retired.len()
    }

    /// Returns the size of the items that are not freed yet, bytes.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().iter().map(|item| item.bytes).sum()
    }

    fn pass(&self, retired: &mut Vec<RetiredItem<T>>, free: impl FnMut(T)) {
        // Pairs with the fence in `enter`: a reader that is not yet in a count read below cannot
        // see items that were unpublished before.
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
        // New readers use a side that is empty now, so that the other one drains.
        let active = self.phase.load(Ordering::Relaxed) & 1;
        if empty.get(1 - active) == Some(&true) && empty.get(active) == Some(&false) {
            self.phase.store(1 - active, Ordering::Relaxed);
        }
        let gone = retired.extract_if(.., |item| item.seen == [true; 2]);
        gone.map(|item| item.what).for_each(free);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RetiredItem<T>>> {
        // A panic elsewhere cannot have left the list, a plain vector, inconsistent.
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
        // A reader that entered later does not delay it, because it uses the other side.
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
