//! Table from a recording's ids to values.
//!
//! Ids are dense, so a vector serves; but a damaged or hostile recording may use any id. Invariant:
//! memory is proportional to the number of ids set, whatever their values.

use hashbrown::HashMap;

/// A table from ids to values.
pub(crate) struct IdTable<T> {
    dense: Vec<Option<T>>,
    sparse: HashMap<u32, T>,
    set: usize,
}

impl<T> Default for IdTable<T> {
    fn default() -> IdTable<T> {
        IdTable {
            dense: Vec::new(),
            sparse: HashMap::new(),
            set: 0,
        }
    }
}

impl<T: Copy> IdTable<T> {
    pub(crate) fn get(&self, id: u32) -> Option<T> {
        match self.dense.get(id as usize) {
            Some(Some(value)) => Some(*value),
            _ if self.sparse.is_empty() => None,
            _ => self.sparse.get(&id).copied(),
        }
    }

    pub(crate) fn set(&mut self, id: u32, value: T) {
        self.set += 1;
        let index = id as usize;
        if index >= self.dense.len() && index < 4 * self.set + 1024 {
            self.dense.resize(index + 1, None);
        }
        match self.dense.get_mut(index) {
            Some(place) => *place = Some(value),
            None => {
                self.sparse.insert(id, value);
            }
        }
    }

    /// Ids and values, in arbitrary order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, T)> + '_ {
        let dense = (0u32..)
            .zip(&self.dense)
            .filter_map(|(id, value)| Some((id, (*value)?)));
        dense.chain(self.sparse.iter().map(|(id, value)| (*id, *value)))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = T> + '_ {
        self.dense
            .iter()
            .flatten()
            .chain(self.sparse.values())
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_far_apart_cost_no_memory_and_are_found() {
        let mut table = IdTable::default();
        let ids = [0, 1, 2, 5_000, u32::MAX, 3, 1_000_000_000, 1_500];
        for id in ids {
            assert_eq!(table.get(id), None);
            table.set(id, id);
        }
        for id in ids {
            assert_eq!(table.get(id), Some(id));
        }
        assert_eq!(table.get(4), None);
        assert!(table.dense.capacity() < 10_000);
        let mut values: Vec<_> = table.values().collect();
        values.sort_unstable();
        assert_eq!(values, [0, 1, 2, 3, 1_500, 5_000, 1_000_000_000, u32::MAX]);
        // Set again where the vector has grown past it: the newer value is found.
        for id in 0..6_000 {
            table.set(id, 7);
        }
        assert_eq!(table.get(5_000), Some(7));
    }
}
