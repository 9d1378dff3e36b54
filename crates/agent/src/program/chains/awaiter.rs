//! Finds what awaited a completed task, by searching registers and stack for the awaiter.
//!
//! A task that completes removes its continuation from its field and runs it. Until the
//! continuation runs, its address is in registers and on the stack of the methods that run it, and
//! maybe nowhere else. So the words there are checked, including those left by old calls. A word is
//! accepted if it leads to a continuation that refers to the task at its present address: a
//! suspended state machine has its awaiter, a promise the tasks that it was made of. No other
//! object refers to the task in this way.
//!
//! Invariants: all memory is read through the kernel, as a word may be a stale address. The number
//! of words and of kernel calls is bounded. Runs in the signal handler, inside the heap gate.

use std::cell::{Cell, RefCell};

use stackwalk::own_memory;

use super::finder::{AsyncFrame, AsyncFrameFinder, CheckedHeap, KEPT, is_plausible};
use super::reader::{ChainReader, DONE, Heap, TABLE};
use super::types::LinkKind;
use crate::model::chain::{ChainEnd, NO_STATE, Role};

/// Maximum number of words that are checked in the younger frames, and in the method's own.
const MOST_WORDS: u64 = 128;
const MOST_OWN_WORDS: u64 = 48;
/// Number of words read by one kernel call.
const AT_ONCE: usize = 16;
/// Maximum number of kernel calls for the search, and again for the chain that it finds.
const MOST_QUESTIONS: u32 = 96;
/// Number of objects remembered as already checked.
const SEEN: usize = 16;
/// Registers that can hold an object: all but stack and frame pointer.
const REGISTERS: [u8; 14] = [0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// Number of words of an object that are read at once, and maximum number of such reads.
const PIECE: usize = 32;
const MOST_PIECES: u64 = 8;
/// Maximum number of checked entries of a list of continuations.
const MOST_LISTED: u32 = 4;
/// Offset of the first element in an array of references.
const ARRAY: u64 = 16;
/// Maximum number of checked entries of an array.
const MOST_ENTRIES: usize = 64;
/// Maximum number of objects (delegates and the like) between a continuation and the awaiter.
const MOST_HOPS: usize = 4;
/// Size of the word before an object's method table, which is part of the object's size.
const HEADER: u64 = 8;

/// Memory read through the kernel, a block at a time.
struct BlockReader<'a> {
    careful: &'a CheckedHeap,
    /// Address of the last block, and the number of its words that were read.
    known: Cell<(u64, usize)>,
    block: RefCell<[u64; PIECE]>,
}

impl<'a> BlockReader<'a> {
    fn new(careful: &'a CheckedHeap) -> BlockReader<'a> {
        BlockReader {
            careful,
            known: Cell::new((0, 0)),
            block: RefCell::new([0; PIECE]),
        }
    }
}

impl Heap for BlockReader<'_> {
    fn word(&self, at: u64) -> Option<u64> {
        if !is_plausible(at) {
            return None;
        }
        let mut block = self.block.try_borrow_mut().ok()?;
        let (start, count) = self.known.get();
        let index = |start: u64| usize::try_from(at.checked_sub(start)? / 8).ok();
        if let Some(index) = index(start).filter(|index| *index < count) {
            return block.get(index).copied();
        }
        let count = self.careful.words_into(at, &mut block)?;
        self.known.set((at, count));
        block.first().copied().filter(|_| count > 0)
    }

    fn is_late(&self) -> bool {
        self.careful.is_late()
    }
}

impl AsyncFrameFinder<'_> {
    /// Returns `chain`, the chain of a method's task or a dispatcher's. If it only shows that the
    /// task is completed, returns the chain of its awaiter, if that can be found.
    pub(super) fn or_awaiter(
        &mut self,
        frame: &AsyncFrame,
        task: u64,
        (links, end): (usize, ChainEnd),
    ) -> (usize, ChainEnd) {
        if end != ChainEnd::Completing {
            return (links, end);
        }
        self.careful.left.set(MOST_QUESTIONS);
        let Some((waits, promise)) = self.awaiter(frame, task) else {
            return (links, end);
        };
        self.careful.left.set(MOST_QUESTIONS);
        let heap = BlockReader::new(&self.careful);
        let mut reader = ChainReader {
            heap: &heap,
            types: &self.tables.types,
            links: self.out.get_mut(self.room..).unwrap_or_default(),
            count: links,
        };
        if promise != 0 && !reader.put(promise, Role::Task, NO_STATE) {
            return (links, ChainEnd::TooDeep);
        }
        let end = reader.read_on(waits);
        (reader.count, end)
    }

    /// Finds the object that waits for a task, and the class of the promise between them, in the
    /// contents of the youngest frames. 0 if there is none or it is not known.
    fn awaiter(&self, frame: &AsyncFrame, task: u64) -> Option<(u64, u64)> {
        // An async iterator is awaited by its state machine.
        let iterator = match self.kind_at(task) {
            Some(LinkKind::Object { machine, .. }) => {
                self.careful.words_at(task + u64::from(machine))
            }
            _ => None,
        };
        let is_it = |other| other == task || iterator == Some([other]);
        if let Some(found) = self.find(frame, task, |at, kind| {
            self.waits(at, kind, &is_it).then_some(at)
        }) {
            return found.ok().map(|waits| (waits, 0));
        }
        // A promise that the task has run completes in turn and drops the tasks that it was made
        // of. The awaiter of the promise is then the only object here that waits for a completed
        // promise, or the promise is the only one.
        let promise = self.promise?;
        let is_it = |table: u64, kind| {
            matches!(kind, LinkKind::Task(_)) && [0, table].contains(&promise.body.class)
        };
        let mut only = None;
        let conflict = self.find(frame, task, |at, kind| {
            let heap = BlockReader::new(&self.careful);
            let reader = self.reader(&heap);
            let waits = match kind {
                LinkKind::Task(places) => {
                    let (table, _) = reader.object(at)?;
                    let next = reader.field(at, places.continuation)?;
                    let is_awaited = is_it(table, kind) && next != 0;
                    let (_, kind) = reader.object(next).filter(|_| is_awaited)?;
                    self.waits(next, kind?, &|other| other == at)
                        .then_some(next)?
                }
                _ => {
                    let is_done = |other: u64| {
                        let Some((table, Some(kind @ LinkKind::Task(places)))) =
                            reader.object(other)
                        else {
                            return false;
                        };
                        let flags = reader.half(other, places.flags);
                        is_it(table, kind)
                            && flags.is_some_and(|flags| u64::from(flags) & DONE != 0)
                    };
                    self.waits(at, kind, &is_done).then_some(at)?
                }
            };
            match only {
                None => {
                    only = Some(waits);
                    None
                }
                Some(other) => (other != waits).then_some(at),
            }
        });
        only.filter(|_| conflict.is_none())
            .map(|waits| (waits, promise.body.class))
    }

    fn reader<'b>(&'b self, heap: &'b BlockReader<'b>) -> ChainReader<'b, BlockReader<'b>> {
        ChainReader {
            heap,
            types: &self.tables.types,
            links: &mut [],
            count: 0,
        }
    }

    /// Returns the first word of the frames, from a method's to the youngest, that is an object of
    /// a known kind for which `is_it` returns a result. `Err` if not all words could be checked.
    fn find(
        &self,
        frame: &AsyncFrame,
        task: u64,
        mut is_it: impl FnMut(u64, LinkKind) -> Option<u64>,
    ) -> Option<Result<u64, ()>> {
        let youngest = (frame.depth + 1).saturating_sub(KEPT);
        let low = *self.sps.get(youngest % KEPT)?;
        let registers = REGISTERS.iter().filter_map(|at| self.register(*at));
        // From the method's callee towards the youngest frame.
        let younger = (1..=MOST_WORDS).map_while(|back| {
            let at = frame.sp.checked_sub(8 * back)?;
            self.place(low, at)
        });
        let own = (0..MOST_OWN_WORDS).map_while(|word| {
            let at = frame.sp.checked_add(8 * word).filter(|at| *at < frame.bp)?;
            self.place(frame.sp, at)
        });
        let words = registers.chain(younger.chain(own).map(|place| place.read()));
        let stack = low..self.stack_end;
        let mut words = words.filter(|at| is_plausible(*at) && *at != task && !stack.contains(at));
        let mut seen = [0; SEEN];
        let mut next_seen = 0;
        loop {
            let mut some = [0; AT_ONCE];
            let mut count = 0;
            while let Some(slot) = some.get_mut(count)
                && let Some(word) = words.next()
            {
                *slot = word;
                count += usize::from(!some.get(..count)?.contains(&word));
            }
            if count == 0 {
                return None;
            }
            // An existing object.
            some.get_mut(count..)?.fill(task);
            let mut tables = [0; AT_ONCE];
            let asked = own_memory::peek_words(&some, &mut tables);
            let asked = u32::try_from(asked).unwrap_or(u32::MAX);
            if self.careful.spend(asked).is_none() {
                return Some(Err(()));
            }
            for (at, table) in some.into_iter().zip(tables).take(count) {
                let Some(kind) = self.tables.types.get(table & TABLE) else {
                    continue;
                };
                if seen.contains(&at) {
                    continue;
                }
                if let Some(slot) = seen.get_mut(next_seen % SEEN) {
                    *slot = at;
                }
                next_seen += 1;
                if let Some(found) = is_it(at, kind) {
                    return Some(Ok(found));
                }
            }
            if self.careful.is_late() {
                return Some(Err(()));
            }
            if count < AT_ONCE {
                return None;
            }
        }
    }

    /// Whether the object at an address leads to an awaiter of a task for which `is_it` holds.
    fn waits(&self, at: u64, kind: LinkKind, is_it: &dyn Fn(u64) -> bool) -> bool {
        match kind {
            LinkKind::List { items, size } => self.has_one_that_waits(at, (items, size), is_it),
            _ => self.is_one_that_waits(at, kind, is_it),
        }
    }

    /// The same for an object that is not a list of continuations and leads to none.
    fn is_one_that_waits(&self, at: u64, kind: LinkKind, is_it: &dyn Fn(u64) -> bool) -> bool {
        let heap = BlockReader::new(&self.careful);
        let reader = self.reader(&heap);
        let half = |at, place| reader.half(at, place);
        let is_suspended =
            |at, place| half(at, place).is_some_and(|state| state.cast_signed() >= 0);
        let is_done = |place| half(at, place).is_none_or(|flags| u64::from(flags) & DONE != 0);
        let (mut at, mut kind) = (at, kind);
        for _ in 0..MOST_HOPS {
            let next = match kind {
                LinkKind::Box { machine, state, .. }
                | LinkKind::Worker { machine, state, .. }
                | LinkKind::Pooled { machine, state, .. } => {
                    return is_suspended(at, state)
                        && Self::fields(&reader, at, machine.into(), is_it);
                }
                LinkKind::Object { machine, state, .. } => {
                    let machine = reader.field(at, machine).filter(|machine| *machine != 0);
                    return machine.is_some_and(|machine| {
                        is_suspended(machine, state) && Self::fields(&reader, machine, 8, is_it)
                    });
                }
                LinkKind::OfAwait { .. } => return Self::fields(&reader, at, 8, is_it),
                LinkKind::Task(places) | LinkKind::Runtime(places) => {
                    // A class derived from a task has its own fields behind the task's.
                    let own = (u64::from(places.flags) + 4).next_multiple_of(8);
                    return !is_done(places.flags) && self.is_made_of(&reader, at, own, is_it);
                }
                LinkKind::Action(place)
                | LinkKind::Through(place)
                | LinkKind::ContinueWith(place) => reader.field(at, place),
                _ => return false,
            };
            let Some(next) = next.filter(|next| *next != 0) else {
                return false;
            };
            let Some((_, Some(found))) = reader.object(next) else {
                return false;
            };
            (at, kind) = (next, found);
        }
        false
    }

    /// Whether an entry of a list leads to an awaiter of such a task.
    fn has_one_that_waits(
        &self,
        list: u64,
        (items, size): (u16, u16),
        is_it: &dyn Fn(u64) -> bool,
    ) -> bool {
        let heap = BlockReader::new(&self.careful);
        let reader = self.reader(&heap);
        let (Some(array), Some(size)) = (reader.field(list, items), reader.half(list, size)) else {
            return false;
        };
        let mut places = (0..u64::from(size.min(MOST_LISTED))).map(|index| ARRAY + 8 * index);
        places.any(|place| {
            let entry = array.checked_add(place).and_then(|at| reader.heap.word(at));
            let entry = entry.filter(|entry| *entry != 0);
            let kind = entry.and_then(|entry| reader.object(entry)?.1);
            entry
                .zip(kind)
                .is_some_and(|(entry, kind)| self.is_one_that_waits(entry, kind, is_it))
        })
    }

    /// Whether one of the words of an object, from one of them on, is such a one.
    fn fields(
        reader: &ChainReader<'_, BlockReader<'_>>,
        at: u64,
        from: u64,
        mut is_it: impl FnMut(u64) -> bool,
    ) -> bool {
        let Some(size) = reader
            .object(at)
            .and_then(|(table, _)| reader.heap.word(table))
            // `MethodTable::m_BaseSize`.
            .map(|first| first >> 32)
        else {
            return false;
        };
        let end = size
            .saturating_sub(HEADER)
            .min(from + MOST_PIECES * 8 * PIECE as u64);
        let mut places = (from.next_multiple_of(8)..end).step_by(8);
        places.any(|place| {
            let field = at
                .checked_add(place)
                .and_then(|field| reader.heap.word(field));
            field.is_some_and(|field| field != 0 && is_it(field))
        })
    }

    /// The same, or a reference to an array that has one.
    fn is_made_of(
        &self,
        reader: &ChainReader<'_, BlockReader<'_>>,
        at: u64,
        from: u64,
        is_it: &dyn Fn(u64) -> bool,
    ) -> bool {
        Self::fields(reader, at, from, is_it)
            || Self::fields(reader, at, from, |field| self.has_entry(field, is_it))
    }

    /// Whether a possible address is that of an array of references that contains a task.
    fn has_entry(&self, array: u64, is_it: &dyn Fn(u64) -> bool) -> bool {
        let mut words = [0; PIECE];
        let Some(count) = self.careful.words_into(array, &mut words) else {
            return false;
        };
        let [_, length, entries @ ..] = &words;
        let count = usize::try_from(*length as u32)
            .unwrap_or(0)
            .min(MOST_ENTRIES)
            .min(count.saturating_sub(2));
        entries.iter().take(count).any(|entry| is_it(*entry))
    }
}
