//! Operations on the JIT-compiled bodies of a code map, one or all.
//!
//! Every function takes the writers' mutex, so a stack walk must not call it. Invariant: an
//! iteration visits a body once, even if it spans several chunks.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::bucket::Bucket;
use super::{
    CHUNK_SHIFT, ChunkSlot, CodeMap, MapEntry, MapWriter, Region, Table, TakenBody, chunks_of,
    offset_in,
};

impl CodeMap {
    /// Removes the JIT body that starts at `start` if `is_it` accepts its caller's word. Returns
    /// the removed body. See [`CodeMap::remove`].
    pub fn take_jit_body(&self, start: u64, is_it: impl FnOnce(u64) -> bool) -> Option<TakenBody> {
        let mut writer = self.lock();
        let table = self.table(&writer)?;
        let chunk = start >> CHUNK_SHIFT;
        // SAFETY: as in `publish`.
        let bucket = unsafe { table.slot(chunk)?.bucket.load(Ordering::Relaxed).as_ref() }?;
        let entry = bucket.from(offset_in(chunk, start)).0?;
        // SAFETY: a bucket has it, and the caller has the `MapWriter`: no other code takes it out.
        let region = unsafe { (*entry).region() };
        if region.start != start || !is_it(region.user) {
            return None;
        }
        self.unpublish(&mut writer, table, entry);
        let was_walked = self.drop_entry(&mut writer, entry);
        Some(TakenBody { region, was_walked })
    }

    /// Removes the JIT bodies whose caller's word `is_gone` accepts. Returns their number. It
    /// checks all bodies.
    pub fn remove_jit_bodies(&self, is_gone: impl Fn(u64) -> bool) -> usize {
        let mut writer = self.lock();
        let mut gone = Vec::new();
        let Some(table) = self.table(&writer) else {
            return 0;
        };
        for slot in table.slots() {
            let bodies = own_bodies(&writer, slot);
            gone.extend(bodies.filter(|(_, region)| is_gone(region.user)));
        }
        for (entry, _) in &gone {
            self.unpublish(&mut writer, table, *entry);
            self.drop_entry(&mut writer, *entry);
        }
        gone.len()
    }

    /// Calls `each` for every JIT body, in no order, with the writers' mutex held: `each` must not
    /// use the map.
    pub fn each_jit_body(&self, mut each: impl FnMut(Region)) {
        let writer = self.lock();
        let slots = self.table(&writer).into_iter().flat_map(Table::slots);
        for slot in slots {
            own_bodies(&writer, slot).for_each(|(_, region)| each(region));
        }
    }

    /// Returns any JIT body that has an address in `range`.
    pub fn jit_body_in(&self, range: &Range<u64>) -> Option<Region> {
        let writer = self.lock();
        let table = self.table(&writer)?;
        let mut slots = table.slots_of(chunks_of(range));
        let found = slots.find_map(|slot| self.overlapping(&writer, slot, range));
        // SAFETY: as in `overlapping`.
        found.map(|entry| unsafe { (*entry).region() })
    }
}

/// Iterates over the bodies that begin in a chunk. A body that spans several chunks is in each of
/// their buckets, and skipped in all but the first.
fn own_bodies<'w>(
    _writer: &'w MapWriter,
    slot: &'w ChunkSlot,
) -> impl Iterator<Item = (*const MapEntry, Region)> + 'w {
    // SAFETY: as in `publish`.
    let bucket = unsafe { slot.bucket.load(Ordering::Relaxed).as_ref() };
    let chunk = slot.chunk.load(Ordering::Relaxed);
    let entries = bucket.into_iter().flat_map(Bucket::entries);
    // SAFETY: as in `overlapping`.
    let with_region = entries.map(|entry| (entry, unsafe { (*entry).region() }));
    with_region.filter(move |(_, region)| region.start >> CHUNK_SHIFT == chunk)
}
