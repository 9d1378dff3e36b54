//! The code map's modules (native and ReadyToRun), sorted by address.
//!
//! The modules themselves are in `native` and `pe`. Invariant: a list is immutable; a change
//! creates a new one.

use std::ops::Range;

use super::MapEntry;

/// Address range of a module, with its entry.
#[derive(Clone, Copy)]
pub(super) struct ModulePlace {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) entry: *const MapEntry,
}

/// Disjoint modules, sorted.
pub(super) struct Modules(Box<[ModulePlace]>);

// SAFETY: a `ModulePlace` points to an `MapEntry`, which is `Send` and `Sync`, and outlives every
// published list that names it (retired together, freed after a grace period).
unsafe impl Send for Modules {}
// SAFETY: as above.
unsafe impl Sync for Modules {}

impl Modules {
    /// Returns all modules.
    pub(super) fn places(&self) -> &[ModulePlace] {
        &self.0
    }

    /// Returns a list with one more module.
    pub(super) fn with(
        old: Option<&Modules>,
        range: &Range<u64>,
        entry: *const MapEntry,
    ) -> Modules {
        let old = old.map_or(&[][..], Modules::places);
        let (before, behind) = old.split_at(old.partition_point(|p| p.start < range.start));
        let Range { start, end } = *range;
        let new = [ModulePlace { start, end, entry }];
        Modules([before, &new, behind].concat().into())
    }

    /// Returns a list without some modules.
    pub(super) fn without(&self, gone: &[ModulePlace]) -> Modules {
        let stays = |place: &&ModulePlace| gone.iter().all(|other| other.entry != place.entry);
        Modules(self.0.iter().filter(stays).copied().collect())
    }

    /// Returns the size, bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0) + size_of::<Self>()
    }

    /// Returns the module that contains `address`. Async-signal-safe.
    pub(super) fn find(&self, address: u64) -> Option<*const MapEntry> {
        let behind = self.0.partition_point(|place| place.start <= address);
        let place = self.0.get(behind.checked_sub(1)?)?;
        (address < place.end).then_some(place.entry)
    }

    /// Whether any module has an address in common with `range`.
    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        let first = self.0.partition_point(|place| place.end <= range.start);
        self.0
            .get(first)
            .is_some_and(|place| place.start < range.end)
    }
}
