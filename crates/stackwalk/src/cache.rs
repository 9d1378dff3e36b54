//! The rule cache: maps a lookup address to a packed unwind rule, direct-mapped, for all threads.
//!
//! The signal handler's walks read and fill the cache; changes of the code map invalidate it. It
//! caches rules of the code map only, and any entry may be overwritten at any time. Invariant: one
//! atomic word is one whole entry (33 bits of address, 31 bits of rule; the index gives the other
//! 14 address bits). A reader sees a whole entry or none, whatever writers do.
//!
//! The cache is global, not per thread, because a hit is one load from memory that is rarely
//! written. All threads share the rules that one of them found, in 128 KiB.

use crate::rule::PACKED_BITS;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const INDEX_BITS: u32 = 14;
const SLOTS: usize = 1 << INDEX_BITS;
const INDEX_MASK: u64 = SLOTS as u64 - 1;
/// First address that does not fit: the end of x86-64 user space with four-level paging.
pub(crate) const ADDRESS_LIMIT: u64 = 1 << 47;

/// The rule cache; see the module's text.
pub(crate) struct RuleCache {
    slots: [AtomicU64; SLOTS],
}

/// Returns index and tag of an address below [`ADDRESS_LIMIT`]. The address can be computed from
/// both: the index is the low bits mixed with a function of the tag alone.
#[inline]
fn place(address: u64) -> (usize, u64) {
    let tag = address >> INDEX_BITS;
    (((address ^ mixed(tag)) & INDEX_MASK) as usize, tag)
}

/// Mixes the tag into an index by two shifts, without a multiplication, because it runs for every
/// frame.
#[inline]
fn mixed(tag: u64) -> u64 {
    tag ^ tag >> INDEX_BITS
}

impl RuleCache {
    pub(crate) const fn new() -> Self {
        Self {
            slots: [const { AtomicU64::new(0) }; SLOTS],
        }
    }

    /// Returns the packed rule for `address` if it is cached.
    #[inline(always)]
    pub(crate) fn get(&self, address: u64) -> Option<u32> {
        let (index, tag) = place(address);
        let word = self.slots.get(index)?.load(Ordering::Relaxed);
        // An empty word matches tag 0 only, the lowest 16 KiB, and its rule 0 is not a valid rule.
        (word >> PACKED_BITS == tag).then_some((word & ((1 << PACKED_BITS) - 1)) as u32)
    }

    /// Stores `packed` for `address`, replacing the present entry of its slot.
    pub(crate) fn put(&self, address: u64, packed: u32) {
        if address >= ADDRESS_LIMIT {
            return;
        }
        let (index, tag) = place(address);
        if let Some(slot) = self.slots.get(index) {
            slot.store(tag << PACKED_BITS | u64::from(packed), Ordering::Relaxed);
        }
    }

    /// Removes the entry of `address`.
    pub(crate) fn forget(&self, address: u64) {
        let (index, tag) = place(address);
        if let Some(slot) = self.slots.get(index) {
            let word = slot.load(Ordering::Relaxed);
            if word >> PACKED_BITS == tag {
                // If another address took the slot in the meantime, its entry remains.
                let _ = slot.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// Removes the entries of all addresses in `range`.
    pub(crate) fn invalidate(&self, range: &Range<u64>) {
        // Checks each address or each entry, whichever are fewer.
        if range.end.saturating_sub(range.start) <= SLOTS as u64 / 2 {
            range.clone().for_each(|address| self.forget(address));
            return;
        }
        for (index, slot) in self.slots.iter().enumerate() {
            let word = slot.load(Ordering::Relaxed);
            let tag = word >> PACKED_BITS;
            let address = tag << INDEX_BITS | ((index as u64 ^ mixed(tag)) & INDEX_MASK);
            if word != 0 && range.contains(&address) {
                let _ = slot.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cache() -> Box<RuleCache> {
        Box::new(RuleCache::new())
    }

    #[test]
    fn keeps_the_last_of_two_in_one_slot() {
        let cache = cache();
        let first = 0x7f12_3456_789a;
        let second = (1..)
            .map(|n| first + n)
            .find(|&n| place(n).0 == place(first).0)
            .unwrap();
        cache.put(first, 5);
        cache.put(second, 6);
        assert_eq!(cache.get(first), None);
        assert_eq!(cache.get(second), Some(6));
        cache.forget(first);
        assert_eq!(cache.get(second), Some(6));
        cache.forget(second);
        assert_eq!(cache.get(second), None);
    }

    #[test]
    fn a_large_range_is_forgotten_whole_and_nothing_beside_it() {
        let cache = cache();
        let range = 0x7f00_0000_1000..0x7f00_0000_1000 + 3 * SLOTS as u64;
        let (first, last) = (range.start, range.end - 1);
        let beside = [first - 1, last + 1];
        for address in [first, last].into_iter().chain(beside) {
            cache.put(address, 7);
        }
        cache.invalidate(&range);
        assert_eq!([first, last].map(|address| cache.get(address)), [None; 2]);
        assert_eq!(beside.map(|address| cache.get(address)), [Some(7); 2]);
    }

    proptest! {
        #[test]
        fn gives_back_what_was_put(address in 1u64 << 16..ADDRESS_LIMIT, packed in 1u32..1 << 31) {
            let cache = cache();
            cache.put(address, packed);
            prop_assert_eq!(cache.get(address), Some(packed));
            prop_assert_eq!(cache.get(address ^ 1 << 46), None);
            cache.invalidate(&(address + 1..address + 5000));
            prop_assert_eq!(cache.get(address), Some(packed));
            cache.invalidate(&(address.saturating_sub(5000)..address + 1));
            prop_assert_eq!(cache.get(address), None);
        }

        #[test]
        fn any_address_may_be_asked(address: u64, packed in 1u32..1 << 31) {
            let cache = cache();
            cache.put(address, packed);
            let expected = (address < ADDRESS_LIMIT).then_some(packed);
            prop_assert_eq!(cache.get(address), expected);
        }
    }
}
