//! A sorted array of places, with room behind them.
//!
//! Not a map of anything: the code map decides which chunk has which bucket. Invariant: a place that
//! is published never changes, and the number of places only grows, so a reader that has seen a number
//! may read that many; whatever else is to change goes into a new bucket.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Entry;

/// A place in a [`Bucket`].
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) entry: *const Entry,
}

/// Disjoint places, sorted.
pub(super) struct Bucket {
    room: Box<[UnsafeCell<MaybeUninit<Place>>]>,
    /// How many of them are published.
    len: AtomicUsize,
}

// SAFETY: a `Place` points to an `Entry`, which is immutable, `Send` and `Sync`, and outlives
// every published bucket that names it (retired together, freed after a grace period). What is not yet
// published is written by the one writer alone (`append`).
unsafe impl Send for Bucket {}
// SAFETY: as above.
unsafe impl Sync for Bucket {}

impl Bucket {
    /// These places, which are sorted and disjoint, with room for `more`.
    pub(super) fn new(places: &[Place], more: usize) -> Bucket {
        let mut room = Vec::with_capacity(places.len() + more);
        room.extend(
            (places.iter())
                .map(|place| MaybeUninit::new(*place))
                .chain(std::iter::repeat_n(MaybeUninit::uninit(), more))
                .map(UnsafeCell::new),
        );
        Bucket {
            room: room.into_boxed_slice(),
            len: AtomicUsize::new(places.len()),
        }
    }

    /// What it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.room) + size_of::<Self>()
    }

    /// All that is published. Async-signal-safe.
    pub(super) fn places(&self) -> &[Place] {
        // Pairs with the store in `append`.
        let len = self.len.load(Ordering::Acquire);
        // SAFETY: the first `len` places were written before `len` was stored, are never written again
        // (the invariant above), and `len` is at most the room's.
        unsafe { std::slice::from_raw_parts(self.room.as_ptr().cast(), len) }
    }

    /// Adds a place behind all others: no reader is disturbed, nothing is copied. False, and nothing
    /// done, where it does not belong there or no room is left.
    ///
    /// # Safety
    /// One caller at a time.
    pub(super) unsafe fn append(&self, place: Place) -> bool {
        let places = self.places();
        if places.last().is_some_and(|last| place.start < last.end) {
            return false;
        }
        let len = places.len();
        let Some(free) = self.room.get(len) else {
            return false;
        };
        // SAFETY: nobody reads behind `len`, and the caller says that nobody else writes.
        unsafe { (*free.get()).write(place) };
        self.len.store(len + 1, Ordering::Release);
        true
    }

    /// The place that contains `address`. Async-signal-safe.
    pub(super) fn find(&self, address: u64) -> Option<Place> {
        let places = self.places();
        let behind = places.partition_point(|place| place.start <= address);
        let place = places.get(behind.checked_sub(1)?)?;
        (address < place.end).then_some(*place)
    }

    /// The places that have an address in common with `range`.
    pub(super) fn overlapping(&self, range: &Range<u64>) -> &[Place] {
        let places = self.places();
        // Code is made at ascending addresses, mostly.
        if places.last().is_none_or(|last| last.end <= range.start) {
            return &[];
        }
        let first = places.partition_point(|place| place.end <= range.start);
        let last = places.partition_point(|place| place.start < range.end);
        places.get(first..last).unwrap_or_default()
    }
}
