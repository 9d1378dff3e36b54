//! Table of async calls whose returned task has not completed: pairs their starts and ends.
//!
//! A call has two ends. The method's return knows when the call began. The completion of the task,
//! on any thread, may come first. They are paired by the method's number and the task's id, which
//! is unique in its runtime. Only probes use the table, in preemptive mode. They may take a lock:
//! one of many, for the time of a look-up. The signal handler does not use it. Invariants: memory
//! is bounded and allocated once. An entry is returned once. A call for which there is no room is
//! counted.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::lock;

/// Number of parts of the table, each with its lock. Ids are assigned in order, so adjacent ids are
/// in different parts.
const PARTS: usize = 64;
/// Number of places in a part: a power of two.
const PLACES: usize = 2048;
/// Maximum number of waiting calls in a part.
const MAX_WAITING: usize = PLACES * 3 / 4;
/// Maximum number of completions in a part whose call has not returned yet, or whose start was
/// never recorded. The oldest is dropped for a new one.
const MAX_EARLY: usize = 64;
/// Maximum number of waiting calls.
#[cfg(test)]
const CAPACITY: usize = PARTS * MAX_WAITING;

/// The content of one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TableEntry {
    #[default]
    Free,
    /// The method has returned. Value: the start of the call.
    Waiting(u64),
    /// The task has completed before the return. Values: the time, and whether by an exception.
    Early(u64, bool),
}

#[derive(Debug)]
struct TableShard {
    /// Keys and entries; empty until a call waits.
    places: Vec<(u64, TableEntry)>,
    waiting: usize,
    /// Keys of the early completions, in order of arrival.
    early: [u64; MAX_EARLY],
    next_early: usize,
}

/// The table.
#[derive(Debug)]
pub(super) struct Pending {
    parts: Box<[Mutex<TableShard>]>,
    /// Number of calls for which there was no room.
    no_room: AtomicU64,
}

/// Outcome for a call whose method returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReturnOutcome {
    /// The call is kept until the task completes.
    Waits,
    /// The task has completed already. Values: the time, and whether by an exception.
    Completed(u64, bool),
    /// The end of the call will not be recorded.
    NoRoom,
}

/// Returns the key of a method's number and a task's id. Never 0, as the number is stored plus 1.
fn key(method: i32, task: i32) -> u64 {
    (u64::from(method.cast_unsigned()) + 1) << 32 | u64::from(task.cast_unsigned())
}

impl Pending {
    pub(super) fn new() -> Pending {
        let part = |_| {
            Mutex::new(TableShard {
                places: Vec::new(),
                waiting: 0,
                early: [0; MAX_EARLY],
                next_early: 0,
            })
        };
        Pending {
            parts: (0..PARTS).map(part).collect(),
            no_room: AtomicU64::new(0),
        }
    }

    fn part(&self, task: i32) -> Option<&Mutex<TableShard>> {
        self.parts.get(task.cast_unsigned() as usize % PARTS)
    }

    /// Enters the return of a task that has not completed, by a call that began at `began`.
    pub(super) fn returned(&self, method: i32, task: i32, began: u64) -> ReturnOutcome {
        let Some(part) = self.part(task) else {
            return ReturnOutcome::NoRoom;
        };
        let mut part = lock(part);
        let key = key(method, task);
        if let Some(at) = part.find(key)
            && let Some((_, TableEntry::Early(ended, is_error))) = part.places.get(at).copied()
        {
            part.remove(at);
            // A leftover entry of a task with the same id, four thousand million ids ago.
            if ended >= began {
                return ReturnOutcome::Completed(ended, is_error);
            }
        }
        if part.waiting >= MAX_WAITING {
            self.no_room.fetch_add(1, Relaxed);
            return ReturnOutcome::NoRoom;
        }
        part.put(key, TableEntry::Waiting(began));
        ReturnOutcome::Waits
    }

    /// Enters the completion of a task. Returns the start of its call, if the method has returned.
    pub(super) fn completed(
        &self,
        method: i32,
        task: i32,
        ended: u64,
        is_error: bool,
    ) -> Option<u64> {
        let mut part = lock(self.part(task)?);
        let key = key(method, task);
        if let Some(at) = part.find(key)
            && let Some((_, TableEntry::Waiting(began))) = part.places.get(at).copied()
        {
            part.remove(at);
            return Some(began);
        }
        part.put(key, TableEntry::Early(ended, is_error));
        let next = part.next_early % MAX_EARLY;
        part.next_early = next + 1;
        let oldest = part
            .early
            .get_mut(next)
            .map(|place| std::mem::replace(place, key));
        if let Some(oldest) = oldest.filter(|oldest| *oldest != 0 && *oldest != key)
            && let Some(at) = part.find(oldest)
            && matches!(part.places.get(at), Some((_, TableEntry::Early(..))))
        {
            part.remove(at);
        }
        None
    }

    /// Drops all entries. Returns the waiting calls that began at `since` or later, by method, and
    /// the number of calls for which there was no room.
    pub(super) fn clear(&self, since: u64) -> (BTreeMap<i32, u64>, u64) {
        let mut waiting = BTreeMap::new();
        for part in &self.parts {
            let mut part = lock(part);
            for (key, place) in &mut part.places {
                if let TableEntry::Waiting(began) = *place
                    && began >= since
                {
                    let method = (*key >> 32).wrapping_sub(1);
                    let method = i32::try_from(method).unwrap_or(i32::MAX);
                    *waiting.entry(method).or_default() += 1;
                }
                (*key, *place) = (0, TableEntry::Free);
            }
            part.waiting = 0;
            part.early = [0; MAX_EARLY];
        }
        (waiting, self.no_room.swap(0, Relaxed))
    }
}

impl TableShard {
    /// First place of a key's probe sequence.
    fn home(key: u64) -> usize {
        // The middle bits of a product depend on all of its bits.
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % PLACES
    }

    fn at(&self, place: usize) -> (u64, TableEntry) {
        self.places.get(place).copied().unwrap_or_default()
    }

    fn set(&mut self, place: usize, is: (u64, TableEntry)) {
        if let Some(place) = self.places.get_mut(place) {
            *place = is;
        }
    }

    fn find(&self, key: u64) -> Option<usize> {
        let mut place = TableShard::home(key);
        // Some places are always free: see `MAX_WAITING`, `MAX_EARLY`.
        loop {
            match self.at(place) {
                (_, TableEntry::Free) => return None,
                (there, _) if there == key => return Some(place),
                _ => place = (place + 1) % PLACES,
            }
        }
    }

    /// Sets the entry of a key.
    fn put(&mut self, key: u64, is: TableEntry) {
        if self.places.is_empty() {
            self.places = vec![(0, TableEntry::Free); PLACES];
        }
        if let Some(at) = self.find(key) {
            self.remove(at);
        }
        let mut place = TableShard::home(key);
        while self.at(place).1 != TableEntry::Free {
            place = (place + 1) % PLACES;
        }
        self.waiting += usize::from(matches!(is, TableEntry::Waiting(_)));
        self.set(place, (key, is));
    }

    /// Frees a place, and moves up the entries that it had displaced.
    fn remove(&mut self, place: usize) {
        self.waiting -= usize::from(matches!(self.at(place).1, TableEntry::Waiting(_)));
        let mut hole = place;
        let mut next = (hole + 1) % PLACES;
        loop {
            let (key, is) = self.at(next);
            if is == TableEntry::Free {
                break;
            }
            // Distance of each from the start of its probe sequence.
            let from_home = |place: usize| place.wrapping_sub(TableShard::home(key)) % PLACES;
            if from_home(hole) < from_home(next) {
                self.set(hole, (key, is));
                hole = next;
            }
            next = (next + 1) % PLACES;
        }
        self.set(hole, (0, TableEntry::Free));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_meet_whichever_comes_first() {
        let pending = Pending::new();
        assert_eq!(pending.returned(7, 1, 100), ReturnOutcome::Waits);
        // Another method or another task does not match.
        assert_eq!(pending.completed(8, 1, 150, false), None);
        assert_eq!(pending.completed(7, 2, 160, true), None);
        assert_eq!(pending.completed(7, 1, 170, false), Some(100));
        assert_eq!(
            pending.returned(7, 2, 110),
            ReturnOutcome::Completed(160, true)
        );
        // Each was returned once. A completion before the start of a call does not belong to it.
        assert_eq!(pending.returned(7, 2, 180), ReturnOutcome::Waits);
        assert_eq!(pending.returned(8, 1, 180), ReturnOutcome::Waits);
        assert_eq!(pending.returned(8, 65, 50), ReturnOutcome::Waits);
        let (waiting, no_room) = pending.clear(60);
        assert_eq!((waiting, no_room), (BTreeMap::from([(7, 1), (8, 1)]), 0));
        assert_eq!(pending.clear(0), (BTreeMap::new(), 0));
    }

    #[test]
    fn calls_that_want_one_place_are_found_in_any_order() {
        let home = TableShard::home(key(1, 0));
        // All in one part, which the task's id selects.
        let tasks = (0..).map(|number| number * PARTS as i32);
        let same = tasks.filter(|task| TableShard::home(key(1, *task)) == home);
        let tasks: Vec<i32> = same.take(4).collect();
        for order in [[0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0]] {
            let pending = Pending::new();
            for task in &tasks {
                assert_eq!(pending.returned(1, *task, 5), ReturnOutcome::Waits);
            }
            for at in order {
                assert_eq!(
                    pending.completed(1, tasks[at], 9, false),
                    Some(5),
                    "{order:?}"
                );
            }
        }
    }

    #[test]
    fn there_is_room_for_so_many_and_completions_of_others_take_none() {
        let pending = Pending::new();
        for task in 0..(PARTS * (MAX_WAITING + 2)) as i32 {
            let room = pending.returned(1, task, 5);
            let is_full = task as usize >= CAPACITY;
            assert_eq!(room == ReturnOutcome::NoRoom, is_full, "{task}");
            // Tasks of calls that had begun before.
            for other in 2..6 {
                assert_eq!(pending.completed(other, task, 9, false), None);
            }
        }
        for task in (0..CAPACITY as i32).rev() {
            assert_eq!(pending.completed(1, task, 9, false), Some(5), "{task}");
        }
        let (waiting, no_room) = pending.clear(0);
        assert_eq!((waiting.len(), no_room), (0, 2 * PARTS as u64));
    }

    #[test]
    fn no_call_is_lost_between_threads() {
        use std::sync::atomic::AtomicI32;
        const CALLS: i32 = 200_000;
        /// Maximum distance, as otherwise an early completion is dropped for others.
        const APART: i32 = (PARTS * MAX_EARLY / 2) as i32;
        let pending = Pending::new();
        let (met, ends) = (AtomicU64::new(0), [AtomicI32::new(0), AtomicI32::new(0)]);
        let run = |own: usize| {
            for task in 0..CALLS {
                while task - ends[1 - own].load(Relaxed) > APART {
                    std::hint::spin_loop();
                }
                let has_met = match own {
                    0 => pending.returned(3, task, 1) != ReturnOutcome::Waits,
                    _ => pending.completed(3, task, 2, false).is_some(),
                };
                met.fetch_add(u64::from(has_met), Relaxed);
                ends[own].store(task, Relaxed);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| run(0));
            scope.spawn(|| run(1));
        });
        assert_eq!(met.load(Relaxed), CALLS as u64);
        assert_eq!(pending.clear(0), (BTreeMap::new(), 0));
    }
}
