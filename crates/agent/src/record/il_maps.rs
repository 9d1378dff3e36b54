//! Native-to-IL maps of the sampled method bodies, stored one after the other in one vector.
//!
//! Holds the maps of code that lives as long as its runtime; code that may be unloaded has its map
//! in `CollectibleFacts`. One vector instead of a box per map: some thousands of small boxes made
//! malloc request memory from the kernel page by page. Invariant: memory is bounded. When a limit
//! is reached, all maps are dropped and the runtime is queried again.

use crate::base::numbers::NumberMap;

/// Maximum number of maps.
const MAX_MAPS: usize = 8192;
/// Maximum number of entries of all maps, 8 bytes each. A map has about a dozen.
const MAX_ENTRIES: usize = 128 * 1024;

/// Maps by the start address of the body.
#[derive(Debug, Default)]
pub(super) struct IlMaps {
    /// Index of a map's first entry in `entries`, and its number of entries.
    places: NumberMap<u64, (u32, u32)>,
    /// Native offset and IL offset, sorted by native offset.
    entries: Vec<(u32, u32)>,
}

impl IlMaps {
    /// Returns the map of the body that begins at `code_start`.
    pub(super) fn get(&self, code_start: u64) -> Option<&[(u32, u32)]> {
        let (first, length) = *self.places.get(&code_start)?;
        self.entries.get(first as usize..)?.get(..length as usize)
    }

    /// Stores a map, unless it exceeds the limit by itself. The map may be empty.
    pub(super) fn insert(&mut self, code_start: u64, map: &[(u32, u32)]) {
        if map.len() > MAX_ENTRIES {
            return;
        }
        if self.places.len() >= MAX_MAPS || self.entries.len() + map.len() > MAX_ENTRIES {
            self.places.clear();
            self.entries.clear();
        }
        let place = (self.entries.len() as u32, map.len() as u32);
        self.entries.extend_from_slice(map);
        self.places.insert(code_start, place);
    }

    /// Removes the map of an unloaded body.
    pub(super) fn remove(&mut self, code_start: u64) {
        // Its entries remain until all maps are dropped.
        self.places.remove(&code_start);
    }

    /// Returns the bytes held.
    pub(super) fn memory(&self) -> usize {
        self.places.capacity() * 17 + self.entries.capacity() * size_of::<(u32, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_kept_until_there_is_no_room() {
        let mut maps = IlMaps::default();
        maps.insert(0x1000, &[(0, 0), (8, 3)]);
        maps.insert(0x2000, &[]);
        maps.insert(0x3000, &[(0, 7)]);
        assert_eq!(maps.get(0x1000), Some(&[(0, 0), (8, 3)][..]));
        assert_eq!(maps.get(0x2000), Some(&[][..]));
        assert_eq!(maps.get(0x3000), Some(&[(0, 7)][..]));
        assert_eq!(maps.get(0x4000), None);
        maps.remove(0x1000);
        assert_eq!(maps.get(0x1000), None);
        for body in 0..3 * MAX_MAPS as u64 {
            let at = 0x10_0000 + body * 64;
            maps.insert(at, &[(1, 2); 5]);
            assert_eq!(maps.get(at).map(<[_]>::len), Some(5));
        }
        assert!(maps.memory() < MAX_MAPS * 17 * 4 + MAX_ENTRIES * 16);
        maps.insert(1, &vec![(0, 0); MAX_ENTRIES]);
        assert_eq!(maps.get(1).map(<[_]>::len), Some(MAX_ENTRIES));
        maps.insert(2, &vec![(0, 0); MAX_ENTRIES + 1]);
        assert_eq!(maps.get(2), None);
    }
}
