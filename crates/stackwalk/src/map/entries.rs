//! Memory of the code map's entries of JITted bodies, in blocks.
//!
//! The code map publishes entries, and frees one when no walk can hold it any more. Invariants: an
//! entry keeps its address until it is freed. A block with a free place is in the list of such
//! blocks once. The memory of at most [`MAX_EMPTY`] empty blocks is kept.
//!
//! Single allocations would be slower: a program that creates and collects methods all the time
//! does so on different threads, which would contend in `malloc`. An allocation for each compiled
//! method would also lie among those that the compiler takes and frees.

use std::mem::MaybeUninit;

use super::MapEntry;

/// Entries of a block (4 KiB): one for each bit of a word.
const BLOCK: usize = u64::BITS as usize;
/// Maximum number of empty blocks whose memory is kept for new entries: 64 KiB.
const MAX_EMPTY: usize = 16;

/// The memory of a block.
type BlockPlaces = MaybeUninit<[MapEntry; BLOCK]>;

struct Block {
    /// The first of its [`BlockPlaces`]; null if it has no memory.
    places: *mut MapEntry,
    /// A bit for each free place.
    free: u64,
}

impl Block {
    const EMPTY: u64 = u64::MAX;

    fn give_back(&mut self) {
        if !self.places.is_null() {
            // SAFETY: made by `Box::into_raw` of this type in `Entries::add`, and null from here
            // on.
            drop(unsafe { Box::from_raw(self.places.cast::<BlockPlaces>()) });
            self.places = std::ptr::null_mut();
        }
    }
}

/// Storage of JIT entries.
pub(super) struct Entries {
    blocks: Vec<Block>,
    /// Blocks with a free place.
    roomy: Vec<u32>,
    /// Number of blocks that have memory and no entry.
    empty: usize,
}

// SAFETY: the pointers are to memory of its own, which is reached through it alone or through the
// result of `add`, and an entry is `Send` itself (checked below).
unsafe impl Send for Entries {}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<MapEntry>();
};

impl Entries {
    pub(super) const fn new() -> Self {
        Self {
            blocks: Vec::new(),
            roomy: Vec::new(),
            empty: 0,
        }
    }

    /// Stores an entry in a free place. Returns its address.
    pub(super) fn add(&mut self, mut entry: MapEntry) -> *const MapEntry {
        let number = self.roomy.last().copied().unwrap_or_else(|| {
            let number = self.blocks.len() as u32;
            self.blocks.push(Block {
                places: std::ptr::null_mut(),
                free: Block::EMPTY,
            });
            self.roomy.push(number);
            number
        });
        let block = &mut self.blocks[number as usize];
        if block.places.is_null() {
            block.places = Box::into_raw(Box::<[MapEntry; BLOCK]>::new_uninit()).cast();
        } else if block.free == Block::EMPTY {
            self.empty -= 1;
        }
        let at = block.free.trailing_zeros() as usize;
        block.free &= !(1 << at);
        if block.free == 0 {
            self.roomy.pop();
        }
        entry.block = number;
        // SAFETY: a block of `roomy` has a free place, so `at` is below BLOCK, as many as its
        // memory has; no other entry has a free one.
        unsafe {
            let place = block.places.add(at);
            place.write(entry);
            place
        }
    }

    /// Drops an entry and frees its place.
    ///
    /// # Safety
    /// [`Entries::add`] of this value returned it, it was not freed since, and nothing reads it any
    /// more.
    pub(super) unsafe fn free(&mut self, entry: *const MapEntry) {
        // SAFETY: it was written by `add`, and is dropped once, as the caller guarantees.
        let number = unsafe {
            let number = (*entry).block;
            entry.cast_mut().drop_in_place();
            number
        };
        let block = &mut self.blocks[number as usize];
        // SAFETY: `add` made it of this block's memory, which is there for as long as an entry is
        // in it.
        let at = unsafe { entry.offset_from(block.places) };
        if block.free == 0 {
            self.roomy.push(number);
        }
        block.free |= 1 << at;
        if block.free == Block::EMPTY {
            if self.empty < MAX_EMPTY {
                self.empty += 1;
            } else {
                block.give_back();
            }
        }
    }

    /// Returns the bytes that are not those of entries in use.
    pub(super) fn spare_bytes(&self) -> usize {
        let held = self.blocks.iter().filter(|block| !block.places.is_null());
        let free: usize = held.map(|block| block.free.count_ones() as usize).sum();
        let lists =
            self.blocks.capacity() * size_of::<Block>() + self.roomy.capacity() * size_of::<u32>();
        free * size_of::<MapEntry>() + lists
    }
}

impl Drop for Entries {
    /// Entries in use are not dropped, and must not be accessed any more.
    fn drop(&mut self) {
        self.blocks.iter_mut().for_each(Block::give_back);
    }
}
