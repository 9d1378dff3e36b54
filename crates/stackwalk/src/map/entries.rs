//! The memory of the entries of JITted bodies, in blocks.
//!
//! It publishes nothing and knows no walk: the code map frees an entry when no walk can hold it any more.
//! Invariants: an entry stays where it was put until it is freed; a place is in use or in the list of free ones.
//!
//! Why not one allocation each: a program that makes and collects methods all the time makes them on one thread and
//! frees them on another, so that the two would meet in `malloc`; and a piece of ours for each method that is compiled, among
//! the pieces that the compiler takes and gives back, leaves the program's own heap in shreds.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::Entry;

/// Entries of a block: some 8 KiB.
const BLOCK: usize = 64;

/// Where JIT entries lie. Memory goes back to the allocator when the last of them is freed: until then it is as
/// much as the most that there were at a time.
pub(super) struct Entries {
    /// Each of [`BLOCK`] places.
    blocks: Vec<NonNull<Entry>>,
    /// Places of the last block that were used.
    used: usize,
    /// Places that were used and are free.
    free: Vec<NonNull<Entry>>,
}

// SAFETY: the pointers are to memory of its own, which is reached through it alone or through what `add` answered, and an entry
// is `Send` itself (checked below).
unsafe impl Send for Entries {}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Entry>();
};

impl Entries {
    pub(super) const fn new() -> Self {
        Self {
            blocks: Vec::new(),
            used: 0,
            free: Vec::new(),
        }
    }

    /// A place for an entry, with the entry in it.
    pub(super) fn add(&mut self, entry: Entry) -> NonNull<Entry> {
        let place = self.free.pop().unwrap_or_else(|| self.fresh());
        // SAFETY: a place is as large and as aligned as an entry, and this one, out of no list now, is nobody else's.
        unsafe { place.write(entry) };
        place
    }

    /// A place that was never used.
    fn fresh(&mut self) -> NonNull<Entry> {
        let last = match self.blocks.last() {
            Some(last) if self.used < BLOCK => *last,
            _ => self.grow(),
        };
        self.used += 1;
        // SAFETY: `used` was below BLOCK, as many places as the block has.
        unsafe { last.add(self.used - 1) }
    }

    #[cold]
    fn grow(&mut self) -> NonNull<Entry> {
        let layout = layout();
        // SAFETY: the layout is of 64 entries, and not empty.
        let block = unsafe { alloc(layout) }.cast();
        let block = NonNull::new(block).unwrap_or_else(|| handle_alloc_error(layout));
        self.blocks.push(block);
        self.used = 0;
        block
    }

    /// Ends an entry.
    ///
    /// # Safety
    /// [`Entries::add`] of this answered it, it was not freed since, and nobody reads it any more.
    pub(super) unsafe fn free(&mut self, entry: NonNull<Entry>) {
        // SAFETY: it was written by `add`, and is dropped once, by the caller's word.
        unsafe { entry.drop_in_place() };
        self.free.push(entry);
        if self.in_use() == 0 && self.blocks.len() > 1 {
            *self = Self::new();
        }
    }

    fn in_use(&self) -> usize {
        let full = self.blocks.len().saturating_sub(1) * BLOCK;
        full + self.used - self.free.len()
    }

    /// Bytes beside those of entries in use.
    pub(super) fn spare_bytes(&self) -> usize {
        let spare = self.blocks.len() * BLOCK - self.in_use();
        let lists = self.blocks.capacity() + self.free.capacity();
        spare * size_of::<Entry>() + lists * size_of::<NonNull<Entry>>()
    }
}

impl Drop for Entries {
    /// Entries that are in use now are not dropped, and must not be reached any more.
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            // SAFETY: made by `alloc` in `grow` with this layout, and freed nowhere else.
            unsafe { dealloc(block.cast().as_ptr(), layout()) };
        }
    }
}

const fn layout() -> Layout {
    // Built by the compiler: an array of a sized type always has one of its length here.
    Layout::new::<[Entry; BLOCK]>()
}
