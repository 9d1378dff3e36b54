//! Table of the object kinds in a chain, by method table: the handler reads it, callbacks fill it.
//!
//! A chain is the list of methods that await a resumed one. The table is open-addressed, has a
//! fixed size and only grows. Classes that may be unloaded are never entered, so an entry stays
//! true. Invariant: a reader sees an entry whole or not at all. No locks for readers, no allocation
//! after [`Types::new`].

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// Kind of an object, and the offset of the reference to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkKind {
    /// A task.
    Task(TaskAt),
    /// An async method's task: the box of its state machine.
    Box {
        /// Offsets of any task.
        task: TaskAt,
        /// Offset of `<>1__state` in the box.
        state: u16,
        /// Offset of the state machine in the box.
        machine: u16,
    },
    /// A task whose state machine is an object of its own: of async iterators and debug builds.
    Object {
        /// Offsets of any task.
        task: TaskAt,
        /// Offset of the task's reference to the state machine.
        machine: u16,
        /// Offset of `<>1__state` in the state machine.
        state: u16,
        /// Offset of an async iterator's promise, through which a caller waits for its next value;
        /// 0 if it is no iterator.
        promise: u16,
    },
    /// Box of an async method without a task: `PoolingAsyncValueTaskMethodBuilder`'s, which is
    /// reused.
    Pooled {
        /// Offset of the state machine in the box.
        machine: u16,
        /// Offset of `<>1__state` in the box.
        state: u16,
        /// Offset of its promise, as for an iterator.
        promise: u16,
    },
    /// The box of a worker of `Parallel.ForEachAsync`. It is not awaited itself, and has a
    /// reference to an awaited object.
    Worker {
        /// Offsets of any task.
        task: TaskAt,
        /// Offset of `<>1__state` in the box.
        state: u16,
        /// Offset of the state machine in the box.
        machine: u16,
        /// Offset of the box's reference to that object.
        work: u16,
    },
    /// `RuntimeAsyncTask`, the task of runtime-async methods. Its state object is the suspended
    /// continuation.
    Runtime(TaskAt),
    /// A suspended runtime-async method.
    Suspended(SuspendedAt),
    /// A suspended runtime-async method that is the continuation of a task.
    OfAwait {
        /// Offsets of any continuation.
        suspended: SuspendedAt,
        /// Offset of the task that continues, a `RuntimeAsyncTask`.
        task: u16,
    },
    /// `Action`, with the offset of its target.
    Action(u16),
    /// An object with the offset of its reference to the continuation: `AwaitTaskContinuation`,
    /// `ContinuationWrapper`.
    Through(u16),
    /// As [`Through`](LinkKind::Through), for a continuation with a task of its own:
    /// `ContinueWith`.
    ContinueWith(u16),
    /// `List<object>`: its array, and its size.
    List {
        /// `_items`.
        items: u16,
        /// `_size`.
        size: u16,
    },
    /// The object on which a blocked thread waits.
    Blocked,
    /// An instance of `object` itself: marks a task as completed.
    Sentinel,
    /// An object that continues nothing.
    Other,
}

/// Offsets of the fields of a task that a chain needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskAt {
    /// `m_continuationObject`.
    pub continuation: u16,
    /// `m_stateFlags`.
    pub flags: u16,
    /// `m_stateObject`, which may be the suspended continuation of a runtime-async task; 0 if the
    /// runtime has no such tasks, and for boxes.
    pub state: u16,
}

/// Offsets of the fields of a runtime-async continuation that a chain needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SuspendedAt {
    /// `Next`: the method that awaits this one.
    pub next: u16,
    /// `ResumeInfo`.
    pub resume: u16,
    /// Offset in `ResumeInfo` of the address of the method's code, `DiagnosticIP`.
    pub code: u16,
}

/// Bits of an offset.
const FIELD: u32 = 12;

impl LinkKind {
    /// Packs the kind into one word, which is never 0: four bits for the kind, five offsets of
    /// twelve bits. A kind with a larger offset is packed as another kind.
    fn pack(self) -> u64 {
        let fields = |kind: u64, places: &[u16], otherwise: LinkKind| {
            if places.iter().any(|at| u32::from(*at) >= 1 << FIELD) {
                return otherwise.pack();
            }
            let shifts = (0..).map(|index| 4 + FIELD * index);
            let places = places.iter().zip(shifts);
            places.fold(kind, |word, (at, shift)| word | u64::from(*at) << shift)
        };
        match self {
            LinkKind::Task(at) => {
                fields(1, &[at.continuation, at.flags, at.state], LinkKind::Other)
            }
            LinkKind::Runtime(at) => {
                fields(12, &[at.continuation, at.flags, at.state], LinkKind::Other)
            }
            LinkKind::Suspended(at) => fields(13, &[at.next, at.resume, at.code], LinkKind::Other),
            LinkKind::OfAwait {
                suspended: at,
                task,
            } => fields(14, &[at.next, at.resume, at.code, task], LinkKind::Other),
            LinkKind::Box {
                task: at,
                state,
                machine,
            } => {
                let places = [at.continuation, at.flags, state, machine];
                fields(2, &places, LinkKind::Task(at))
            }
            LinkKind::Worker {
                task: at,
                state,
                machine,
                work,
            } => {
                let places = [at.continuation, at.flags, state, machine, work];
                fields(15, &places, LinkKind::Task(at))
            }
            LinkKind::Object {
                task: at,
                machine,
                state,
                promise,
            } => {
                let places = [at.continuation, at.flags, machine, state, promise];
                // The offset of the next object is then unknown.
                fields(10, &places, LinkKind::Other)
            }
            LinkKind::Pooled {
                machine,
                state,
                promise,
            } => fields(11, &[machine, state, promise], LinkKind::Other),
            LinkKind::Action(at) => fields(3, &[at], LinkKind::Other),
            LinkKind::Through(at) => fields(4, &[at], LinkKind::Other),
            LinkKind::ContinueWith(at) => fields(5, &[at], LinkKind::Other),
            LinkKind::List { items, size } => fields(6, &[items, size], LinkKind::Other),
            LinkKind::Blocked => 7,
            LinkKind::Sentinel => 8,
            LinkKind::Other => 9,
        }
    }

    fn unpack(word: u64) -> Option<LinkKind> {
        let place = |index: u32| (word >> (4 + FIELD * index)) as u16 & ((1 << FIELD) - 1);
        let task = TaskAt {
            continuation: place(0),
            flags: place(1),
            state: 0,
        };
        let with_state = TaskAt {
            state: place(2),
            ..task
        };
        let suspended = SuspendedAt {
            next: place(0),
            resume: place(1),
            code: place(2),
        };
        Some(match word & 0xf {
            1 => LinkKind::Task(with_state),
            12 => LinkKind::Runtime(with_state),
            13 => LinkKind::Suspended(suspended),
            14 => LinkKind::OfAwait {
                suspended,
                task: place(3),
            },
            2 => LinkKind::Box {
                task,
                state: place(2),
                machine: place(3),
            },
            15 => LinkKind::Worker {
                task,
                state: place(2),
                machine: place(3),
                work: place(4),
            },
            3 => LinkKind::Action(place(0)),
            4 => LinkKind::Through(place(0)),
            5 => LinkKind::ContinueWith(place(0)),
            6 => LinkKind::List {
                items: place(0),
                size: place(1),
            },
            7 => LinkKind::Blocked,
            8 => LinkKind::Sentinel,
            9 => LinkKind::Other,
            10 => LinkKind::Object {
                task,
                machine: place(2),
                state: place(3),
                promise: place(4),
            },
            11 => LinkKind::Pooled {
                machine: place(0),
                state: place(1),
                promise: place(2),
            },
            _ => return None,
        })
    }

    /// Whether it stands for something that is awaited.
    pub fn is_awaited(self) -> bool {
        matches!(
            self,
            LinkKind::Task(_)
                | LinkKind::Runtime(_)
                | LinkKind::Box { .. }
                | LinkKind::Worker { .. }
                | LinkKind::Object { .. }
                | LinkKind::Pooled { .. }
        )
    }

    /// Returns the kind of an otherwise unknown class that derives from one of this kind.
    pub fn of_derived(self) -> Option<LinkKind> {
        match self {
            LinkKind::Task(_)
            | LinkKind::Box { .. }
            | LinkKind::Worker { .. }
            | LinkKind::Object { .. }
            | LinkKind::Suspended(_)
            | LinkKind::OfAwait { .. }
            | LinkKind::Through(_)
            | LinkKind::ContinueWith(_) => Some(self),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct TypeSlot {
    table: AtomicU64,
    kind: AtomicU64,
}

/// Maximum number of classes, half the number of places.
const MAX_TYPES: usize = 8192;

/// The table.
#[derive(Debug)]
pub struct Types {
    slots: Box<[TypeSlot]>,
    taken: AtomicUsize,
    /// Lock of the writers; readers take none.
    writer: Mutex<()>,
    /// Whether the word at [`PARENT`] of a method table was verified to be its parent's address:
    /// one of the constants below.
    parents: AtomicU8,
}

/// Whether parents are at the expected offset.
const NOT_SEEN: u8 = 0;
const SEEN: u8 = 1;
const OTHERWISE: u8 = 2;

/// Offset of the parent's address in a method table (src/coreclr/vm/methodtable.h,
/// `m_pParentMethodTable`, of 3.1 to 10).
pub const PARENT: u64 = 16;

impl Types {
    /// Returns an empty table.
    pub fn new() -> Types {
        let slot = || TypeSlot {
            table: AtomicU64::new(0),
            kind: AtomicU64::new(0),
        };
        Types {
            slots: std::iter::repeat_with(slot).take(2 * MAX_TYPES).collect(),
            taken: AtomicUsize::new(0),
            writer: Mutex::default(),
            parents: AtomicU8::new(NOT_SEEN),
        }
    }

    /// Returns the slot of a method table, or the free slot for it.
    fn slot(&self, table: u64) -> Option<&TypeSlot> {
        let mask = self.slots.len().wrapping_sub(1);
        let start = (table.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) as usize;
        (0..64).find_map(|step| {
            let slot = self.slots.get(start.wrapping_add(step) & mask)?;
            // Acquire: pairs with the Release in `learn`.
            let found = slot.table.load(Ordering::Acquire);
            (found == table || found == 0).then_some(slot)
        })
    }

    /// Returns the kind of objects with this method table, if known. Async-signal-safe.
    pub fn get(&self, table: u64) -> Option<LinkKind> {
        let slot = self.slot(table)?;
        if slot.table.load(Ordering::Acquire) != table {
            return None;
        }
        LinkKind::unpack(slot.kind.load(Ordering::Relaxed))
    }

    /// Enters the kind of objects with this method table. Not in a handler. Returns false if there
    /// is no room.
    pub fn learn(&self, table: u64, kind: LinkKind) -> bool {
        let _one_at_a_time = self.writer.lock().unwrap_or_else(|e| e.into_inner());
        let Some(slot) = self.slot(table).filter(|_| table != 0) else {
            return false;
        };
        let is_new = slot.table.load(Ordering::Relaxed) == 0;
        if is_new && self.taken.fetch_add(1, Ordering::Relaxed) >= MAX_TYPES {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        slot.kind.store(kind.pack(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `slot`.
        slot.table.store(table, Ordering::Release);
        true
    }

    /// Whether a class's parent may be read from its method table. Async-signal-safe.
    pub fn has_parents(&self) -> bool {
        self.parents.load(Ordering::Relaxed) == SEEN
    }

    /// Notes that a parent was found at the expected offset.
    pub fn set_parents(&self) {
        // Not if some class had its parent elsewhere.
        let (now, seen) = (NOT_SEEN, SEEN);
        let order = Ordering::Relaxed;
        let _once = self.parents.compare_exchange(now, seen, order, order);
    }

    /// Notes that a parent was not at the expected offset. Permanent.
    pub fn forbid_parents(&self) {
        self.parents.store(OTHERWISE, Ordering::Relaxed);
    }

    /// Returns the number of known classes.
    pub fn known(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Default for Types {
    fn default() -> Types {
        Types::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: TaskAt = TaskAt {
        continuation: 0x20,
        flags: 0x34,
        state: 0,
    };

    const SUSPENDED: SuspendedAt = SuspendedAt {
        next: 8,
        resume: 0x10,
        code: 8,
    };

    #[test]
    fn every_kind_is_what_it_was() {
        let kinds = [
            LinkKind::Task(AT),
            LinkKind::Runtime(TaskAt { state: 0x18, ..AT }),
            LinkKind::Suspended(SUSPENDED),
            LinkKind::OfAwait {
                suspended: SUSPENDED,
                task: 0x20,
            },
            LinkKind::Box {
                task: AT,
                state: 0x48,
                machine: 0x40,
            },
            LinkKind::Worker {
                task: AT,
                state: 0x48,
                machine: 0x40,
                work: 0xff8,
            },
            LinkKind::Object {
                task: AT,
                machine: 0x40,
                state: 0x10,
                promise: 0xff8,
            },
            LinkKind::Pooled {
                machine: 0x60,
                state: 0x68,
                promise: 0x18,
            },
            LinkKind::Action(8),
            LinkKind::Through(16),
            LinkKind::ContinueWith(24),
            LinkKind::List { items: 8, size: 16 },
            LinkKind::Blocked,
            LinkKind::Sentinel,
            LinkKind::Other,
        ];
        let types = Types::new();
        for (kind, at) in kinds.into_iter().zip(1u64..) {
            assert!(types.learn(at * 0x40, kind));
        }
        for (kind, at) in kinds.into_iter().zip(1u64..) {
            assert_eq!(types.get(at * 0x40), Some(kind));
        }
        assert_eq!(types.get(0x5000), None);
        assert_eq!(types.get(0), None);
        // A state behind 4 KiB of other fields is left out. The other fields stay.
        let far = LinkKind::Box {
            task: AT,
            state: 5000,
            machine: 0x40,
        };
        types.learn(0x40, far);
        assert_eq!(types.get(0x40), Some(LinkKind::Task(AT)));
    }

    #[test]
    fn a_full_table_takes_no_more_and_loses_nothing() {
        let types = Types::new();
        let all = MAX_TYPES as u64;
        let taken = (1..=2 * all).filter(|at| types.learn(at * 0x38, LinkKind::Other));
        let taken: Vec<u64> = taken.collect();
        assert!(taken.len() <= MAX_TYPES && taken.len() > MAX_TYPES / 2);
        assert!(
            taken
                .iter()
                .all(|at| types.get(at * 0x38) == Some(LinkKind::Other))
        );
    }
}
