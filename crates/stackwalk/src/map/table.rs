//! Hash table of the address space's chunks, each with its bucket.
//!
//! The bodies are in [`super::bucket`]. Invariant: a used slot belongs to its chunk for as long as
//! the table is published, and a table is never full. So a reader finds a chunk or a free slot.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::bucket::Bucket;

/// One chunk of the address space.
pub(super) struct ChunkSlot {
    /// Address >> [`CHUNK_SHIFT`](super::CHUNK_SHIFT); 0 for a free slot. Written once, before the
    /// table's next probe.
    pub(super) chunk: AtomicU64,
    pub(super) bucket: AtomicPtr<Bucket>,
}

/// Maps chunks to buckets: open addressing, linear probing, never more than half full.
pub(super) struct Table(Box<[ChunkSlot]>);

impl Table {
    /// Creates a table of at least `slots` free slots.
    pub(super) fn with_capacity(slots: usize) -> Self {
        let free = || ChunkSlot {
            chunk: AtomicU64::new(0),
            bucket: AtomicPtr::new(std::ptr::null_mut()),
        };
        Self(
            std::iter::repeat_with(free)
                .take(slots.next_power_of_two())
                .collect(),
        )
    }

    /// Returns the slot of `chunk`, or the free one for it. Async-signal-safe.
    pub(super) fn slot(&self, chunk: u64) -> Option<&ChunkSlot> {
        let mask = self.0.len().checked_sub(1)?;
        let start = (chunk.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        (0..self.0.len()).find_map(|step| {
            let slot = self.0.get(start.wrapping_add(step) & mask)?;
            let found = slot.chunk.load(Ordering::Acquire);
            (found == chunk || found == 0).then_some(slot)
        })
    }

    /// Returns all slots.
    pub(super) fn slots(&self) -> &[ChunkSlot] {
        &self.0
    }

    /// Iterates over the slots of these chunks, or over all slots if those are fewer.
    pub(super) fn slots_of(&self, chunks: Range<u64>) -> impl Iterator<Item = &ChunkSlot> {
        let (chunks, all) = match chunks.end - chunks.start <= self.0.len() as u64 {
            true => (chunks, &[][..]),
            false => (0..0, self.slots()),
        };
        chunks.filter_map(|chunk| self.slot(chunk)).chain(all)
    }

    /// Returns the size, bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}
