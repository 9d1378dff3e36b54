//! Table of definitions by number, with the intervals in which each was written.
//!
//! Invariant: after a sweep it holds what was defined or written since the sweep before.

use std::collections::HashMap;

/// Definitions of one kind.
pub(super) struct Table<T> {
    entries: HashMap<u32, Entry<T>>,
    /// Definitions since the last sweep.
    defined: usize,
    /// Definitions after which a sweep is due.
    window: usize,
    /// The interval at the last sweep.
    swept_in: u32,
    /// The interval of new definitions.
    now: u32,
}

struct Entry<T> {
    value: T,
    /// The last interval in which it was defined or written.
    used_in: u32,
    /// The last odd and the last even interval in which it was written. Two are open at a time.
    written_in: [u32; 2],
}

impl<T> Table<T> {
    /// A table of definitions that are used while at most `limit` newer ones exist.
    pub(super) fn new(limit: usize) -> Table<T> {
        Table {
            entries: HashMap::new(),
            defined: 0,
            // A single sample may define some more than the agent's limit.
            window: limit.saturating_mul(2),
            swept_in: 0,
            now: 1,
        }
    }

    pub(super) fn define(&mut self, id: u32, value: T) {
        self.defined = self.defined.saturating_add(1);
        let entry = Entry {
            value,
            used_in: self.now,
            written_in: [0; 2],
        };
        self.entries.insert(id, entry);
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        self.entries.get(&id).map(|entry| &entry.value)
    }

    /// Returns the definition if it is not written in this interval yet, and counts it as written.
    pub(super) fn take_unwritten(&mut self, id: u32, interval: u32) -> Option<&T> {
        let entry = self.entries.get_mut(&id)?;
        entry.used_in = entry.used_in.max(interval);
        let written_in = entry.written_in.get_mut((interval % 2) as usize)?;
        if *written_in == interval {
            return None;
        }
        *written_in = interval;
        Some(&entry.value)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.entries.get_mut(&id).map(|entry| &mut entry.value)
    }

    /// Begins an interval, and drops old definitions that were not used since the last sweep if so
    /// many are newer that the agent has forgotten them.
    pub(super) fn sweep(&mut self, interval: u32) {
        self.now = interval;
        if self.defined < self.window {
            return;
        }
        let since = self.swept_in;
        self.entries.retain(|_, entry| entry.used_in > since);
        self.entries.shrink_to_fit();
        self.defined = 0;
        self.swept_in = interval.saturating_sub(1);
    }

    /// Drops the definitions that `keeps` refuses, given the last interval of their use.
    pub(super) fn retain(&mut self, keeps: impl Fn(&T, u32) -> bool) {
        self.entries
            .retain(|_, entry| keeps(&entry.value, entry.used_in));
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_is_written_once_in_each_of_two_open_intervals() {
        let mut table = Table::new(10);
        table.define(7, "seven");
        let mut take = |interval| table.take_unwritten(7, interval).copied();
        assert_eq!((take(1), take(2)), (Some("seven"), Some("seven")));
        assert_eq!((take(1), take(2), take(1)), (None, None, None));
        assert_eq!((take(3), take(2), take(3)), (Some("seven"), None, None));
    }

    #[test]
    fn what_is_used_survives_and_the_rest_goes() {
        let mut table = Table::new(10);
        let mut next = 0;
        for interval in 1..200 {
            for _ in 0..9 {
                table.define(next, ());
                // The agent's table.
                for id in next.saturating_sub(10)..=next {
                    assert!(table.get(id).is_some(), "{id} in {interval}");
                }
                next += 1;
            }
            assert!(interval == 1 || table.take_unwritten(0, interval).is_some());
            table.sweep(interval + 1);
            assert!(table.len() <= 60, "{}", table.len());
        }
    }
}
