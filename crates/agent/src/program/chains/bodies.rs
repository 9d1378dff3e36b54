//! Table of async methods' code, with the stack slots (homes) of their state machines' addresses.
//!
//! The signal handler reads it. It is open-addressed, by pieces of code of [`PIECE`] bytes, has a
//! fixed size and only grows: code that may be freed is never entered. The look-up of code that is
//! not an async method's is one load and a comparison. Invariant: a reader sees an entry whole or
//! not at all, without a lock or an allocation.

use std::ops::Range;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

const PIECE_BITS: u32 = 8;
/// Bytes of code per entry.
pub const PIECE: u64 = 1 << PIECE_BITS;
/// Maximum number of pieces, half the number of places.
const MAX_PIECES: usize = 32 * 1024;

/// Stack slot (home) of the state machine's address in a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineHome {
    /// Offset from the frame pointer.
    pub from_bp: i32,
    /// Code offsets in the body between which the address is live.
    pub live: Box<[Range<u32>]>,
    /// Whether only the slot's content shows that it is the home: it is one of several slots, any
    /// of which may hold something else.
    pub is_guess: bool,
}

/// Place where a frame that has made a call keeps an object, which may be the task that it resumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldTask {
    /// Code offsets in the body to which the call returns.
    pub at: Range<u32>,
    /// A callee-saved register, numbered as in instructions, or a stack slot.
    pub place: HeldIn,
}

/// See [`HeldTask`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeldIn {
    /// A register. The called frame has saved it if it uses it.
    Register(u8),
    /// Offset from the frame pointer.
    FromBp(i32),
}

/// Role of a method body in a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodeRole {
    /// `MoveNext` of a state machine that is a value: on the stack in its first run, then in its
    /// task.
    OfValue,
    /// `MoveNext` of a state machine that is an object: always in the heap.
    OfObject,
    /// Resumes async methods, and calls none for the first time.
    Resumer,
    /// A promise's own code, which a completed task runs: of `Task.WhenAll` and the like.
    Promise,
    /// Code into which the compiler may have inlined a promise's code. It then keeps the task.
    TaskHolder,
    /// Dispatches continuations of runtime async. Each home may hold the continuation of the method
    /// that awaits the running one, followed by the task that it runs (`AsyncDispatcherInfo`).
    Dispatcher,
    /// `Task.ExecuteWithThreadLocal`, which runs a task. Its home leads to the thread's reference
    /// to that task.
    OfTask,
}

impl CodeRole {
    /// Whether its frames may keep the task of the method that they resume.
    pub fn holds_tasks(self) -> bool {
        matches!(self, CodeRole::Resumer | CodeRole::TaskHolder)
    }
}

/// The offsets that a chain needs in a state machine that is an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectAt {
    /// Offset of `<>1__state` in the state machine.
    pub state: u16,
    /// Offset of an async iterator's promise, through which a caller waits for its next value; 0 if
    /// it is no iterator.
    pub promise: u16,
}

/// One body of an async method's `MoveNext`, or of code that resumes async methods.
#[derive(Debug)]
pub struct AsyncBody {
    /// Role of the body.
    pub code: CodeRole,
    /// Address range.
    pub range: Range<u64>,
    /// Index of its runtime's gate.
    pub gate: usize,
    /// Number of its runtime.
    pub runtime: u8,
    /// Homes of its state machine's address, best first.
    pub homes: Box<[MachineHome]>,
    /// For code that resumes tasks: the places where it keeps the resumed task, if any.
    pub held: Box<[HeldTask]>,
    /// For the code of a task or promise: its class; 0 if the runtime does not report it.
    pub class: u64,
    /// Offset of the builder in the state machine. The builder begins with the task or with the
    /// field before it. `None` if the runtime does not report it (code that several types share,
    /// before .NET 10).
    pub builder: Option<u16>,
    /// Offset in the state machine at which the task was found, plus 1; 0 if not searched. Types
    /// that share the code mostly have the same offset.
    pub task_found_at: AtomicU32,
    /// Fields of a state machine that is an object, if the runtime reports them.
    pub object: Option<ObjectAt>,
    /// Whether the runtime has ended.
    pub is_gone: AtomicBool,
}

impl AsyncBody {
    /// Whether it has the same code and facts as another.
    fn is_same(&self, other: &AsyncBody) -> bool {
        let facts = |body: &AsyncBody| {
            let of_runtime = (body.gate, body.runtime, body.class);
            (body.code, of_runtime, body.builder, body.object)
        };
        self.range == other.range
            && facts(self) == facts(other)
            && self.homes == other.homes
            && self.held == other.held
    }

    /// Returns the homes of its state machine's address that are live at an instruction.
    pub fn homes_at(&self, lookup: u64) -> impl Iterator<Item = &MachineHome> {
        let offset = lookup.wrapping_sub(self.range.start);
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        let is_live =
            move |home: &&MachineHome| home.live.iter().any(|range| range.contains(&offset));
        self.homes.iter().filter(is_live)
    }

    /// Returns the places where the resumed task may be when the call whose last byte is at
    /// `lookup` returns.
    pub fn held_at(&self, lookup: u64) -> impl Iterator<Item = HeldIn> {
        let offset = lookup.wrapping_add(1).wrapping_sub(self.range.start);
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        let is_there = move |held: &&HeldTask| held.at.contains(&offset);
        self.held.iter().filter(is_there).map(|held| held.place)
    }
}

#[derive(Debug)]
struct BodySlot {
    /// The piece's number + 1; 0 for a free one.
    piece: AtomicU64,
    body: AtomicPtr<AsyncBody>,
}

impl BodySlot {
    fn body(&self) -> Option<&'static AsyncBody> {
        // SAFETY: null, or from a box that was leaked.
        unsafe { self.body.load(Ordering::Acquire).as_ref() }
    }
}

/// The table.
#[derive(Debug)]
pub struct AsyncBodies {
    slots: Box<[BodySlot]>,
    taken: AtomicUsize,
    /// Lock of the writers; readers take none.
    writer: Mutex<()>,
}

impl AsyncBodies {
    /// Returns an empty table.
    pub fn new() -> AsyncBodies {
        let slot = || BodySlot {
            piece: AtomicU64::new(0),
            body: AtomicPtr::new(ptr::null_mut()),
        };
        AsyncBodies {
            slots: std::iter::repeat_with(slot).take(2 * MAX_PIECES).collect(),
            taken: AtomicUsize::new(0),
            writer: Mutex::default(),
        }
    }

    fn places(&self, piece: u64) -> impl Iterator<Item = &BodySlot> {
        let mask = self.slots.len().wrapping_sub(1);
        let start = (piece.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        (0..64usize).filter_map(move |step| self.slots.get(start.wrapping_add(step) & mask))
    }

    /// Returns the body that contains an instruction. Async-signal-safe.
    #[inline]
    pub fn at(&self, lookup: u64) -> Option<&'static AsyncBody> {
        let piece = (lookup >> PIECE_BITS) + 1;
        for slot in self.places(piece) {
            // Acquire: pairs with the Release in `add`.
            let found = slot.piece.load(Ordering::Acquire);
            if found == 0 {
                return None;
            }
            if found == piece {
                let is_it = |body: &&AsyncBody| {
                    body.range.contains(&lookup) && !body.is_gone.load(Ordering::Relaxed)
                };
                if let Some(body) = slot.body().filter(is_it) {
                    return Some(body);
                }
            }
        }
        None
    }

    /// Adds a body that lives as long as its runtime. Not in a handler. Returns false if there is
    /// no room, or if it exists already.
    pub fn add(&self, body: AsyncBody) -> bool {
        let _one_at_a_time = self.writer.lock().unwrap_or_else(|e| e.into_inner());
        let start = body.range.start;
        if body.range.is_empty() || self.at(start).is_some() {
            return false;
        }
        let first = (start >> PIECE_BITS) + 1;
        let pieces = first..=(body.range.end.saturating_sub(1) >> PIECE_BITS) + 1;
        let is_new = |piece: &u64| self.slots_of_gone(*piece).next().is_none();
        let count = pieces.clone().filter(is_new).count();
        if self.taken.load(Ordering::Relaxed).saturating_add(count) > MAX_PIECES {
            return false;
        }
        // The same body if the agent had left its runtime and is attached to it again. Never freed:
        // the handler may hold it at any time, and it lives as long as the code.
        let mut gone = self.slots_of_gone(first).filter_map(BodySlot::body);
        let same = gone.find(|gone| gone.is_same(&body));
        let body = same.unwrap_or_else(|| Box::leak(Box::new(body)));
        for piece in pieces {
            let is_of = |slot: &&BodySlot| slot.piece.load(Ordering::Relaxed) == piece;
            let has_it = |slot: &BodySlot| slot.body().is_some_and(|own| ptr::eq(own, body));
            if self.places(piece).filter(is_of).any(has_it) {
                continue;
            }
            let is_free = |slot: &&BodySlot| slot.piece.load(Ordering::Relaxed) == 0;
            let of_gone = self.slots_of_gone(piece).next();
            if let Some(slot) = of_gone.or_else(|| self.places(piece).find(is_free)) {
                // Release: pairs with the Acquire in `at`, as the next one does.
                let pointer = ptr::from_ref(body).cast_mut();
                slot.body.store(pointer, Ordering::Release);
                slot.piece.store(piece, Ordering::Release);
                self.taken
                    .fetch_add(usize::from(of_gone.is_none()), Ordering::Relaxed);
            }
        }
        body.is_gone.store(false, Ordering::Relaxed);
        true
    }

    /// Returns the slots of this piece whose bodies are gone.
    fn slots_of_gone(&self, piece: u64) -> impl Iterator<Item = &BodySlot> {
        let is_gone = |body: &AsyncBody| body.is_gone.load(Ordering::Relaxed);
        self.places(piece).filter(move |slot| {
            slot.piece.load(Ordering::Relaxed) == piece && slot.body().is_some_and(is_gone)
        })
    }

    /// Removes the bodies of a runtime that has ended. Its number and its code's addresses may be
    /// reused.
    pub fn forget(&self, runtime: u8) {
        let bodies = self.slots.iter().filter_map(BodySlot::body);
        for body in bodies.filter(|body| body.runtime == runtime) {
            body.is_gone.store(true, Ordering::Relaxed);
        }
    }
}

impl Default for AsyncBodies {
    fn default() -> AsyncBodies {
        AsyncBodies::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(range: Range<u64>, runtime: u8) -> AsyncBody {
        let home = |from_bp, live: &[Range<u32>]| MachineHome {
            from_bp,
            live: live.into(),
            is_guess: false,
        };
        AsyncBody {
            code: CodeRole::OfValue,
            range,
            gate: 0,
            runtime,
            homes: [home(-8, &[4..10, 20..30]), home(-16, &[25..40, 50..51])].into(),
            held: [].into(),
            class: 0,
            builder: Some(8),
            task_found_at: AtomicU32::new(0),
            object: None,
            is_gone: AtomicBool::new(false),
        }
    }

    #[test]
    fn a_body_is_found_at_all_its_addresses_and_at_no_other() {
        let bodies = AsyncBodies::new();
        // Two bodies in one piece of code, one body over several pieces.
        assert!(bodies.add(body(0x7f00_0010..0x7f00_0050, 0)));
        assert!(bodies.add(body(0x7f00_0060..0x7f00_0700, 1)));
        assert!(
            !bodies.add(body(0x7f00_0060..0x7f00_0700, 1)),
            "it is there"
        );
        let runtime_at = |at| bodies.at(at).map(|body| body.runtime);
        for at in 0x7f00_0000..0x7f00_0800 {
            let expected = match at {
                0x7f00_0010..0x7f00_0050 => Some(0),
                0x7f00_0060..0x7f00_0700 => Some(1),
                _ => None,
            };
            assert_eq!(runtime_at(at), expected, "{at:#x}");
        }
        bodies.forget(1);
        assert_eq!(runtime_at(0x7f00_0100), None);
        assert_eq!(runtime_at(0x7f00_0020), Some(0));
        // Reused memory.
        assert!(bodies.add(body(0x7f00_0060..0x7f00_0200, 2)));
        assert_eq!(runtime_at(0x7f00_0100), Some(2));
    }

    #[test]
    fn a_runtime_may_be_left_and_attached_to_any_number_of_times() {
        let bodies = AsyncBodies::new();
        let range = 0x7f00_0060..0x7f00_0700;
        for _ in 0..1_000 {
            assert!(bodies.add(body(range.clone(), 1)));
            let found = bodies.at(0x7f00_06ff).map(|body| body.range.clone());
            assert_eq!(found.as_ref(), Some(&range));
            bodies.forget(1);
        }
        let pieces = 7;
        assert_eq!(bodies.taken.load(Ordering::Relaxed), pieces);
        // Other code there each time.
        for end in 0x7f00_0100..0x7f00_0800 {
            assert!(bodies.add(body(0x7f00_0070..end, 1)));
            assert!(bodies.at(end - 1).is_some() && bodies.at(0x7f00_0060).is_none());
            bodies.forget(1);
        }
        assert_eq!(bodies.taken.load(Ordering::Relaxed), pieces + 1);
        // The first one again, in all its pieces.
        assert!(bodies.add(body(range.clone(), 1)));
        assert!(range.step_by(16).all(|at| bodies.at(at).is_some()));
    }

    #[test]
    fn a_home_is_one_where_it_is_live_only() {
        let body = body(0x1000..0x1100, 0);
        let at = |offset: u64| {
            let homes = body.homes_at(0x1000 + offset);
            homes.map(|home| home.from_bp).collect::<Vec<_>>()
        };
        assert_eq!(at(3), []);
        assert_eq!(at(4), [-8]);
        assert_eq!(at(10), []);
        assert_eq!(at(25), [-8, -16]);
        assert_eq!(at(39), [-16]);
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let bodies = AsyncBodies::new();
        let starts = (1u64..).map(|at| at * 0x400);
        let added = starts.take_while(|at| bodies.add(body(*at..at + 0x300, 0)));
        let added: Vec<u64> = added.collect();
        assert_eq!(added.len(), MAX_PIECES / 3);
        assert!(added.iter().all(|at| bodies.at(at + 0x2ff).is_some()));
    }
}
