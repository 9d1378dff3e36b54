//! Reads a chain: from a method's task to the methods that await it, up to the root.
//!
//! Input: the address of a task. Output: links (method table and state) in a buffer, and the reason
//! of the end. There is one rule for each kind of continuation in `Task.RunContinuations`
//! (System.Private.CoreLib, Task.cs). Runs in the signal handler, inside the heap gate, with plain
//! loads: each address is that of an object to which the one before refers.
//!
//! Invariants: at most [`MAX_LINKS`] links of at most eight objects each, within the time limit of
//! the [`Heap`]. An unknown object ends the chain, with that reason.

use super::bodies::ObjectAt;
use super::types::{LinkKind, PARENT, Types};
use crate::model::chain::{ChainEnd, Link, MAX_LINKS, NO_STATE, Role};

/// Maximum number of objects between two tasks of a chain.
const MAX_HOPS: usize = 8;
/// Maximum number of parents of a class that are searched for a known class.
const MAX_PARENTS: usize = 6;
/// Maximum number of list entries that are read.
const MAX_ENTRIES: u64 = 8;
/// Bits of `Task.m_stateFlags` of a completed task: TASK_STATE_FAULTED, _CANCELED,
/// _RAN_TO_COMPLETION.
pub(super) const DONE: u64 = 0x160_0000;
/// `<>1__state` of a completed method.
const DONE_STATE: i32 = -2;
/// Mask of the method table in an object's first word. The lowest bits belong to the collector.
pub(super) const TABLE: u64 = !7;
/// Offset of `_continuationState` in a `ManualResetValueTaskSourceCore`, behind `_continuation`. If
/// the runtime lays out a value's fields, references come first, in the order of their declaration,
/// and these two are first (3.1 to 10). The field is used only if it leads to a task.
pub const PROMISE_STATE: u64 = 8;
/// Offset of the first element in an array of references.
const ARRAY: u64 = 16;
/// Maximum number of fields of a task, behind the method table, that are searched for its state
/// machine.
const MOST_FIELDS: u16 = 16;

/// Memory in which objects are read.
pub trait Heap {
    /// Returns the word at an address, or `None` if no object can be there or reading must stop.
    fn word(&self, at: u64) -> Option<u64>;
    /// Whether the time limit is reached.
    fn is_late(&self) -> bool;
}

/// Reads a chain into words.
pub struct ChainReader<'a, H> {
    /// The heap that is read.
    pub heap: &'a H,
    /// The known classes.
    pub types: &'a Types,
    /// Output buffer of the links.
    pub links: &'a mut [u64],
    /// Number of links.
    pub count: usize,
}

/// The object after a task.
pub(super) enum NextLink {
    Task(u64),
    End(ChainEnd),
}

impl<H: Heap> ChainReader<'_, H> {
    /// As [`ChainReader::read`], for a task whose state machine is the object at `machine`. `known`
    /// describes the state machine's class, for a task whose own class is not known.
    pub fn read_object(&mut self, task: u64, machine: u64, known: Option<ObjectAt>) -> ChainEnd {
        let Some((table, kind)) = self.object(task) else {
            return ChainEnd::Strange;
        };
        if self.types.get(table).is_some() {
            return self.read(task);
        }
        let mut places = (1..=MOST_FIELDS).map(|field| field * 8);
        let place = places.find(|place| self.field(task, *place) == Some(machine));
        let of_task = match kind {
            Some(LinkKind::Task(at)) => Some(at),
            _ => None,
        };
        match (of_task, place, known) {
            (Some(task_at), Some(machine), Some(known)) => {
                let own = LinkKind::Object {
                    task: task_at,
                    machine,
                    state: known.state,
                    promise: known.promise,
                };
                self.read_from(task, Some(own), true)
            }
            _ => self.last(table, ChainEnd::Unknown),
        }
    }

    /// Reads the chain from `task`, whose method runs, to the root.
    pub fn read(&mut self, task: u64) -> ChainEnd {
        self.read_from(task, None, true)
    }

    /// As [`ChainReader::read`], from a task's continuation. Appends to the existing links.
    pub fn read_on(&mut self, continuation: u64) -> ChainEnd {
        match self.task_of(continuation) {
            NextLink::Task(next) => self.read_waiting(next),
            NextLink::End(end) => end,
        }
    }

    /// As [`ChainReader::read`], from the task of a suspended method.
    fn read_waiting(&mut self, task: u64) -> ChainEnd {
        self.read_from(task, None, false)
    }

    /// As [`ChainReader::read`], with `own` as the kind of the first task.
    fn read_from(&mut self, task: u64, mut own: Option<LinkKind>, mut is_first: bool) -> ChainEnd {
        let mut at = task;
        loop {
            let Some((table, kind)) = self.object(at) else {
                return ChainEnd::Strange;
            };
            let own = own.take();
            let kind = own.or(kind);
            if let Some(LinkKind::Pooled { state, promise, .. }) = kind {
                let Some(state) = self.half(at, state).map(u32::cast_signed) else {
                    return ChainEnd::Strange;
                };
                if !is_first && state < 0 {
                    // It runs on another thread, or has been reused for another method.
                    return ChainEnd::Stale;
                }
                if !self.put(table, Role::Task, state) {
                    return ChainEnd::TooDeep;
                }
                if self.heap.is_late() {
                    return ChainEnd::TooSlow;
                }
                let next = at.checked_add(u64::from(promise) + PROMISE_STATE);
                match next.map_or(NextLink::End(ChainEnd::Strange), |next| {
                    self.after(next, state == DONE_STATE)
                }) {
                    NextLink::Task(next) => at = next,
                    NextLink::End(ChainEnd::Completing) if !is_first => return ChainEnd::Stale,
                    NextLink::End(end) => return end,
                }
                is_first = false;
                continue;
            }
            // Address of the next continuation.
            let (places, mut next) = match kind {
                Some(
                    LinkKind::Task(task)
                    | LinkKind::Runtime(task)
                    | LinkKind::Box { task, .. }
                    | LinkKind::Worker { task, .. }
                    | LinkKind::Object { task, .. },
                ) => (task, at.checked_add(task.continuation.into())),
                Some(_) => return ChainEnd::Strange,
                None => return self.last(table, ChainEnd::Unknown),
            };
            let mut state = Some(NO_STATE);
            let mut is_source = false;
            if let Some(
                LinkKind::Box { state: place, .. } | LinkKind::Worker { state: place, .. },
            ) = kind
            {
                state = self.half(at, place).map(u32::cast_signed);
            }
            if let Some(LinkKind::Object {
                machine,
                state: place,
                promise,
                ..
            }) = kind
            {
                let machine = self.field(at, machine).filter(|machine| *machine != 0);
                let found = machine.and_then(|machine| self.half(machine, place));
                state = found.map(u32::cast_signed);
                is_source = promise != 0;
                if is_source {
                    let place = u64::from(promise) + PROMISE_STATE;
                    next = machine.and_then(|machine| machine.checked_add(place));
                }
            }
            let Some((state, next)) = state.zip(next) else {
                return ChainEnd::Strange;
            };
            if !is_first && state == -1 {
                // It runs on another thread.
                return ChainEnd::Stale;
            }
            let Some(flags) = self.half(at, places.flags) else {
                return ChainEnd::Strange;
            };
            let is_done = u64::from(flags) & DONE != 0;
            if is_done && !is_first {
                return ChainEnd::Stale;
            }
            if !self.put(table, Role::Task, state) {
                return ChainEnd::TooDeep;
            }
            if self.heap.is_late() {
                return ChainEnd::TooSlow;
            }
            if places.state != 0 {
                let suspended = match self.field(at, places.state) {
                    Some(0) => 0,
                    // A state object of the program's is of another class.
                    Some(first) => match self.object(first) {
                        Some((_, Some(LinkKind::Suspended(_) | LinkKind::OfAwait { .. }))) => first,
                        _ => 0,
                    },
                    None => return ChainEnd::Strange,
                };
                if suspended == 0 && !is_first && matches!(kind, Some(LinkKind::Runtime(_))) {
                    // It runs on another thread.
                    return ChainEnd::Stale;
                }
                if let Some(end) = self.suspended(suspended) {
                    return end;
                }
            }
            // An iterator that has yielded or ended has already notified its awaiter.
            let mut after = self.after(next, is_source && state < -1);
            if let (Some(LinkKind::Worker { work, .. }), NextLink::End(ChainEnd::Root)) =
                (kind, &after)
            {
                // Its work object is the source of an awaited task.
                after = match self.field(at, work) {
                    Some(0) | None => after,
                    Some(work) => self.task_of(work),
                };
            }
            match after {
                // It may be an iterator's, whose continuation is elsewhere.
                NextLink::End(ChainEnd::Root)
                    if own.is_none() && self.types.get(table).is_none() =>
                {
                    return ChainEnd::Unknown;
                }
                NextLink::Task(next) => at = next,
                NextLink::End(ChainEnd::Completing) if !is_first => return ChainEnd::Stale,
                NextLink::End(end) => return end,
            }
            is_first = false;
        }
    }

    /// As [`ChainReader::read`], for a running runtime-async method: from its caller's continuation
    /// (0 for none) and the task that its dispatcher runs.
    pub fn read_dispatched(&mut self, next: u64, task: u64) -> ChainEnd {
        if let Some(end) = self.suspended(next) {
            return end;
        }
        // The method that the task had suspended is running, so its state is empty.
        let Some((_, Some(LinkKind::Runtime(at) | LinkKind::Task(at)))) = self.object(task) else {
            return ChainEnd::Strange;
        };
        let Some(next) = task.checked_add(at.continuation.into()) else {
            return ChainEnd::Strange;
        };
        match self.after(next, false) {
            NextLink::Task(next) => self.read_waiting(next),
            NextLink::End(end) => end,
        }
    }

    /// Appends the methods of a list of runtime-async continuations, the youngest first. Returns an
    /// end if the list does not lead to the expected one.
    fn suspended(&mut self, first: u64) -> Option<ChainEnd> {
        let mut at = first;
        for _ in 0..=MAX_LINKS {
            if at == 0 {
                return None;
            }
            let places = match self.object(at) {
                Some((
                    _,
                    Some(LinkKind::Suspended(at) | LinkKind::OfAwait { suspended: at, .. }),
                )) => at,
                // The class of a continuation is created for it and reported by no callback. Only
                // its parent is known.
                Some((table, None)) => {
                    let parent = self.types.has_parents().then_some(table + PARENT);
                    let parent = parent.and_then(|at| self.heap.word(at));
                    let Some(parent) = parent.filter(|parent| *parent != 0) else {
                        return Some(ChainEnd::Unknown);
                    };
                    return Some(self.last(parent, ChainEnd::Unknown));
                }
                _ => return Some(ChainEnd::Strange),
            };
            let code = match self.field(at, places.resume) {
                // Continuations that the runtime's library creates itself have none.
                Some(0) => Some(0),
                Some(resume) => self.field(resume, places.code),
                None => None,
            };
            let (Some(code), Some(next)) = (code, self.field(at, places.next)) else {
                return Some(ChainEnd::Strange);
            };
            if code != 0 && !self.put(code, Role::Suspended, NO_STATE) {
                return Some(ChainEnd::TooDeep);
            }
            if self.heap.is_late() {
                return Some(ChainEnd::TooSlow);
            }
            at = next;
        }
        Some(ChainEnd::TooDeep)
    }

    /// Returns the object after a task, whose continuation is at `next`. A completed task keeps its
    /// continuation until it removes it to run it, and has the sentinel from then on. A completed
    /// source of value tasks may have been reset for reuse (`is_reused`).
    fn after(&mut self, next: u64, is_reused: bool) -> NextLink {
        match self.heap.word(next) {
            None => NextLink::End(ChainEnd::Strange),
            Some(0) if is_reused => NextLink::End(ChainEnd::Completing),
            Some(0) => NextLink::End(ChainEnd::Root),
            Some(next) => self.task_of(next),
        }
    }

    /// Returns the task to which a continuation leads.
    pub(super) fn task_of(&mut self, continuation: u64) -> NextLink {
        let mut at = continuation;
        for _ in 0..MAX_HOPS {
            let Some((table, kind)) = self.object(at) else {
                return NextLink::End(ChainEnd::Strange);
            };
            let next = match kind {
                Some(kind) if kind.is_awaited() => return NextLink::Task(at),
                Some(
                    LinkKind::Action(place)
                    | LinkKind::Through(place)
                    | LinkKind::OfAwait { task: place, .. },
                ) => self.field(at, place),
                Some(LinkKind::ContinueWith(place)) => {
                    if !self.put(table, Role::Via, NO_STATE) {
                        return NextLink::End(ChainEnd::TooDeep);
                    }
                    self.field(at, place)
                }
                Some(LinkKind::List { items, size }) => match self.first_of(at, items, size) {
                    Some(0) => return NextLink::End(ChainEnd::Root),
                    next => next,
                },
                Some(LinkKind::Blocked) => return NextLink::End(ChainEnd::Blocked),
                Some(LinkKind::Sentinel) => return NextLink::End(ChainEnd::Completing),
                Some(LinkKind::Other) => return NextLink::End(self.last(table, ChainEnd::Other)),
                // Awaited objects are handled above.
                Some(_) => return NextLink::End(ChainEnd::Strange),
                None => return NextLink::End(self.last(table, ChainEnd::Unknown)),
            };
            match next {
                // A delegate without a target: of a static method.
                Some(0) => return NextLink::End(self.last(table, ChainEnd::Other)),
                Some(next) => at = next,
                None => return NextLink::End(ChainEnd::Strange),
            }
        }
        NextLink::End(ChainEnd::Strange)
    }

    /// Returns the first entry of a list that leads to a task, else the first entry, or 0 if the
    /// list is empty. Notes the number of other entries.
    fn first_of(&mut self, list: u64, items: u16, size: u16) -> Option<u64> {
        let array = self.field(list, items)?;
        let size = u64::from(self.half(list, size)?);
        if array == 0 {
            return Some(0);
        }
        // The array may be older than the size, so its own length is the limit.
        let length = u64::from(self.half(array, 8)?);
        let (mut found, mut first, mut others) = (0, 0, 0u64);
        for index in 0..size.min(length).min(MAX_ENTRIES) {
            let entry = self.heap.word(array.checked_add(ARRAY + index * 8)?)?;
            if entry == 0 {
                continue;
            }
            others += 1;
            if first == 0 {
                first = entry;
            }
            if found == 0 && self.leads_to_a_task(entry) {
                found = entry;
            }
        }
        let others = others.saturating_sub(1) + size.min(length).saturating_sub(MAX_ENTRIES);
        if others > 0 {
            let (table, _) = self.object(list)?;
            let others = i32::try_from(others)
                .unwrap_or(i32::MAX)
                .min(i32::from(i16::MAX));
            self.put(table, Role::Others, others);
        }
        Some(if found != 0 { found } else { first })
    }

    fn leads_to_a_task(&self, entry: u64) -> bool {
        let mut at = entry;
        for _ in 0..MAX_HOPS {
            let next = match self.object(at) {
                Some((_, Some(kind))) if kind.is_awaited() => return true,
                Some((
                    _,
                    Some(
                        LinkKind::Action(to)
                        | LinkKind::Through(to)
                        | LinkKind::ContinueWith(to)
                        | LinkKind::OfAwait { task: to, .. },
                    ),
                )) => self.field(at, to),
                _ => return false,
            };
            match next {
                Some(next) if next != 0 => at = next,
                _ => return false,
            }
        }
        false
    }

    /// Returns an object's method table, and its kind if known.
    pub(super) fn object(&self, at: u64) -> Option<(u64, Option<LinkKind>)> {
        let table = self.heap.word(at)? & TABLE;
        if table == 0 {
            return None;
        }
        Some((table, self.kind(table)))
    }

    pub(super) fn kind(&self, table: u64) -> Option<LinkKind> {
        if let Some(kind) = self.types.get(table) {
            return Some(kind);
        }
        if !self.types.has_parents() {
            return None;
        }
        let mut class = table;
        for _ in 0..MAX_PARENTS {
            class = self.heap.word(class.checked_add(PARENT)?)?;
            if class == 0 {
                return None;
            }
            if let Some(kind) = self.types.get(class).and_then(LinkKind::of_derived) {
                return Some(kind);
            }
        }
        None
    }

    /// Whether there is a class at `table`: one that derives from `object`, over others.
    pub(super) fn is_class(&self, table: u64) -> bool {
        let mut class = table;
        for _ in 0..MAX_PARENTS {
            let parent = class.checked_add(PARENT).and_then(|at| self.heap.word(at));
            let Some(parent) = parent.filter(|parent| *parent != 0 && self.types.has_parents())
            else {
                return false;
            };
            if self.types.get(parent) == Some(LinkKind::Sentinel) {
                return true;
            }
            class = parent;
        }
        false
    }

    pub(super) fn field(&self, object: u64, place: u16) -> Option<u64> {
        self.heap.word(object.checked_add(place.into())?)
    }

    /// Reads a 32-bit number.
    pub(super) fn half(&self, object: u64, place: u16) -> Option<u32> {
        let at = object.checked_add(place.into())?;
        let word = self.heap.word(at & !7)?;
        Some((word >> ((at & 4) * 8)) as u32)
    }

    pub(super) fn put(&mut self, table: u64, role: Role, state: i32) -> bool {
        let link = Link { table, role, state };
        match self
            .links
            .get_mut(self.count)
            .filter(|_| self.count < MAX_LINKS)
        {
            Some(word) => {
                *word = link.pack();
                self.count += 1;
                true
            }
            None => false,
        }
    }

    /// Ends the chain at an object of this class.
    pub(super) fn last(&mut self, table: u64, end: ChainEnd) -> ChainEnd {
        if self.put(table, Role::Last, NO_STATE) {
            end
        } else {
            ChainEnd::TooDeep
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::types::{SuspendedAt, TaskAt};
    use super::*;
    use std::cell::Cell;
    use std::collections::HashMap;

    pub(in super::super) const AT: TaskAt = TaskAt {
        continuation: 0x20,
        flags: 0x34,
        state: 0,
    };
    // Method tables.
    pub(in super::super) const TASK: u64 = 0x1000;
    pub(in super::super) const BOX: u64 = 0x1100;
    const ACTION: u64 = 0x1200;
    const AWAIT: u64 = 0x1300;
    const CONTINUE_WITH: u64 = 0x1400;
    const WRAPPER: u64 = 0x1500;
    const LIST: u64 = 0x1600;
    const BLOCKED: u64 = 0x1700;
    const OBJECT: u64 = 0x1800;
    pub(in super::super) const OTHER: u64 = 0x1900;
    pub(in super::super) const STRANGE: u64 = 0x2000;
    pub(in super::super) const DERIVED: u64 = 0x2100;
    pub(in super::super) const STATE: u16 = 0x48;
    pub(in super::super) const RUNTIME: u64 = 0x4200;
    const SUSPENDED: u64 = 0x4300;
    const OF_AWAIT: u64 = 0x4400;
    /// A class that the runtime creates for a method, of which only the parent is known.
    pub(in super::super) const SHAPE: u64 = 0x4500;
    const PLACES: SuspendedAt = SuspendedAt {
        next: 8,
        resume: 16,
        code: 8,
    };
    /// `m_stateObject`.
    pub(in super::super) const SUSPENDS: u16 = 0x18;

    /// Memory in which objects are made.
    #[derive(Default)]
    pub(in super::super) struct Made {
        pub(in super::super) words: HashMap<u64, u64>,
        next: u64,
        left: Option<Cell<u32>>,
    }

    impl Heap for Made {
        fn word(&self, at: u64) -> Option<u64> {
            assert!(at.is_multiple_of(8));
            self.words.get(&at).copied()
        }
        fn is_late(&self) -> bool {
            self.left.as_ref().is_some_and(|left| {
                left.set(left.get().saturating_sub(1));
                left.get() == 0
            })
        }
    }

    impl Made {
        pub(in super::super) fn object(&mut self, table: u64, fields: &[(u16, u64)]) -> u64 {
            self.next += 0x100;
            let at = 0x10_0000 + self.next;
            for word in 0..16 {
                self.words.insert(at + word * 8, 0);
            }
            // The collector's bit.
            self.words.insert(at, table | 1);
            for (place, value) in fields {
                self.words.insert(at + u64::from(*place), *value);
            }
            at
        }
        pub(in super::super) fn class(&mut self, table: u64, parent: u64) {
            self.words.insert(table + PARENT, parent);
        }
        pub(in super::super) fn boxed(&mut self, state: i32, continuation: u64) -> u64 {
            let state = u64::from(state.cast_unsigned());
            self.object(BOX, &[(AT.continuation, continuation), (STATE, state)])
        }
    }

    pub(in super::super) fn types() -> Types {
        let types = Types::new();
        for (table, kind) in [
            (TASK, LinkKind::Task(AT)),
            (
                BOX,
                LinkKind::Box {
                    task: AT,
                    state: STATE,
                    machine: 0x40,
                },
            ),
            (ACTION, LinkKind::Action(8)),
            (AWAIT, LinkKind::Through(16)),
            (CONTINUE_WITH, LinkKind::ContinueWith(24)),
            (WRAPPER, LinkKind::Through(32)),
            (LIST, LinkKind::List { items: 8, size: 16 }),
            (BLOCKED, LinkKind::Blocked),
            (OBJECT, LinkKind::Sentinel),
            (OTHER, LinkKind::Other),
            (
                RUNTIME,
                LinkKind::Runtime(TaskAt {
                    state: SUSPENDS,
                    ..AT
                }),
            ),
            (SUSPENDED, LinkKind::Suspended(PLACES)),
            (
                OF_AWAIT,
                LinkKind::OfAwait {
                    suspended: PLACES,
                    task: 32,
                },
            ),
        ] {
            types.learn(table, kind);
        }
        types
    }

    /// A runtime-async continuation, whose method has code at `code`; 0 for none.
    pub(in super::super) fn suspended(made: &mut Made, table: u64, code: u64, next: u64) -> u64 {
        made.class(SHAPE, SUSPENDED);
        let resume = made.object(0, &[(PLACES.code, code)]);
        made.object(table, &[(PLACES.next, next), (PLACES.resume, resume)])
    }

    fn code(at: u64) -> (Role, u64, i32) {
        (Role::Suspended, at, NO_STATE)
    }

    /// As [`read`], for the task that a dispatcher runs.
    fn read_dispatched(made: &Made, next: u64, task: u64) -> (Vec<(Role, u64, i32)>, ChainEnd) {
        let types = types();
        types.set_parents();
        chain_of(made, &types, |reader| reader.read_dispatched(next, task))
    }

    #[test]
    fn callers_of_runtime_async_are_in_the_list_and_behind_its_task() {
        let mut made = Made::default();
        // A state machine awaits the outer task of runtime async, whose methods await a state
        // machine that awaits the task of the method that runs.
        let root = made.boxed(3, 0);
        let outer = made.object(RUNTIME, &[(AT.continuation, root)]);
        let first = suspended(&mut made, SHAPE, 0x7001, 0);
        let second = suspended(&mut made, SHAPE, 0x7003, first);
        let awaits = suspended(&mut made, OF_AWAIT, 0, second);
        made.words.insert(awaits + 32, outer);
        made.words.insert(outer + u64::from(SUSPENDS), awaits);
        let between = made.boxed(1, awaits);
        let inner = made.object(RUNTIME, &[(AT.continuation, between)]);
        let caller = suspended(&mut made, SHAPE, 0x7005, 0);
        let runtime = (Role::Task, RUNTIME, NO_STATE);
        let behind = [
            task(BOX, 1),
            runtime,
            code(0x7003),
            code(0x7001),
            task(BOX, 3),
        ];
        let with_caller: Vec<_> = [code(0x7005)].into_iter().chain(behind).collect();
        assert_eq!(
            read_dispatched(&made, caller, inner),
            (with_caller, ChainEnd::Root)
        );
        // It is the oldest method of its task.
        assert_eq!(
            read_dispatched(&made, 0, inner),
            (behind.to_vec(), ChainEnd::Root)
        );
        // A list of awaiters, by their continuations.
        let array = made.object(0x3000, &[(8, 1), (16, awaits)]);
        let list = made.object(LIST, &[(8, array), (16, 1)]);
        made.words
            .insert(between + u64::from(AT.continuation), list);
        assert_eq!(
            read_dispatched(&made, 0, inner),
            (behind.to_vec(), ChainEnd::Root)
        );
        // It is being resumed on another thread.
        made.words.insert(outer + u64::from(SUSPENDS), 0);
        let (links, end) = read_dispatched(&made, 0, inner);
        assert_eq!((links.len(), end), (2, ChainEnd::Stale));
    }

    #[test]
    fn what_is_no_continuation_or_not_known_ends_a_list() {
        let mut made = Made::default();
        let task = made.object(RUNTIME, &[]);
        let strange = made.object(OTHER, &[]);
        let unknown = made.object(STRANGE, &[]);
        made.class(STRANGE, 0);
        for (end, next) in [(ChainEnd::Strange, strange), (ChainEnd::Unknown, unknown)] {
            let first = suspended(&mut made, SHAPE, 0x7001, next);
            assert_eq!(
                read_dispatched(&made, first, task),
                (vec![code(0x7001)], end)
            );
        }
        // Its class is unknown, and will be queried.
        made.class(STRANGE, DERIVED);
        made.class(DERIVED, OBJECT);
        let asked = (Role::Last, DERIVED, NO_STATE);
        assert_eq!(
            read_dispatched(&made, unknown, task),
            (vec![asked], ChainEnd::Unknown)
        );
        // A continuation that refers to itself and has no method.
        let endless = suspended(&mut made, SHAPE, 0, 0);
        made.words.insert(endless + u64::from(PLACES.next), endless);
        assert_eq!(
            read_dispatched(&made, endless, task),
            (vec![], ChainEnd::TooDeep)
        );
        // An object that is no task.
        assert_eq!(
            read_dispatched(&made, 0, strange),
            (vec![], ChainEnd::Strange)
        );
    }

    #[test]
    fn a_state_of_the_program_s_own_suspends_nothing() {
        let mut made = Made::default();
        let types = types();
        types.set_parents();
        let at = TaskAt {
            state: SUSPENDS,
            ..AT
        };
        types.learn(TASK, LinkKind::Task(at));
        let mine = made.object(OTHER, &[]);
        let second = made.object(TASK, &[(SUSPENDS, mine)]);
        let first = made.boxed(0, second);
        let (links, end) = read(&made, &types, first);
        assert_eq!((links.len(), end), (2, ChainEnd::Root));
        // A runtime-async task of an unknown class derives from a known one.
        let head = suspended(&mut made, SHAPE, 0x7001, 0);
        made.words.insert(second + u64::from(SUSPENDS), head);
        let (links, end) = read(&made, &types, first);
        assert_eq!((links.last(), end), (Some(&code(0x7001)), ChainEnd::Root));
    }

    /// The chain from `task`: role, table and state of each link.
    fn read(made: &Made, types: &Types, task: u64) -> (Vec<(Role, u64, i32)>, ChainEnd) {
        chain_of(made, types, |reader| reader.read(task))
    }

    fn chain_of(
        made: &Made,
        types: &Types,
        read: impl FnOnce(&mut ChainReader<'_, Made>) -> ChainEnd,
    ) -> (Vec<(Role, u64, i32)>, ChainEnd) {
        let mut links = [0; MAX_LINKS];
        let mut reader = ChainReader {
            heap: made,
            types,
            links: &mut links,
            count: 0,
        };
        let end = read(&mut reader);
        let count = reader.count;
        let links = links.iter().take(count).map(|word| {
            let link = Link::unpack(*word);
            (link.role, link.table, link.state)
        });
        (links.collect(), end)
    }

    fn reader<'a>(made: &'a Made, types: &'a Types) -> ChainReader<'a, Made> {
        ChainReader {
            heap: made,
            types,
            links: &mut [],
            count: 0,
        }
    }

    fn task(table: u64, state: i32) -> (Role, u64, i32) {
        (Role::Task, table, state)
    }

    #[test]
    fn every_kind_of_continuation_is_followed() {
        let types = types();
        let mut made = Made::default();
        let root = made.boxed(7, 0);
        let action = made.object(ACTION, &[(8, root)]);
        let awaits = made.object(AWAIT, &[(16, action)]);
        let second = made.boxed(3, awaits);
        let to_second = made.object(ACTION, &[(8, second)]);
        let wrapper = made.object(WRAPPER, &[(32, to_second)]);
        let outer = made.object(ACTION, &[(8, wrapper)]);
        let promise = made.object(TASK, &[(AT.continuation, outer)]);
        let holder = made.object(CONTINUE_WITH, &[(24, promise)]);
        let first = made.boxed(-1, holder);
        let (links, end) = read(&made, &types, first);
        assert_eq!(end, ChainEnd::Root);
        assert_eq!(
            links,
            [
                task(BOX, -1),
                (Role::Via, CONTINUE_WITH, NO_STATE),
                task(TASK, NO_STATE),
                task(BOX, 3),
                task(BOX, 7),
            ]
        );
    }

    #[test]
    fn a_chain_ends_where_nobody_awaits_and_says_why() {
        let types = types();
        for (table, end, last) in [
            (BLOCKED, ChainEnd::Blocked, None),
            (OTHER, ChainEnd::Other, Some(OTHER)),
            (STRANGE, ChainEnd::Unknown, Some(STRANGE)),
            (OBJECT, ChainEnd::Completing, None),
        ] {
            let mut made = Made::default();
            let what = made.object(table, &[]);
            let first = made.boxed(-1, what);
            let mut expected = vec![task(BOX, -1)];
            expected.extend(last.map(|table| (Role::Last, table, NO_STATE)));
            assert_eq!(read(&made, &types, first), (expected, end));
        }
        // A delegate of a static method.
        let mut made = Made::default();
        let what = made.object(ACTION, &[]);
        let first = made.boxed(-1, what);
        let (links, end) = read(&made, &types, first);
        assert_eq!((links.len(), end), (2, ChainEnd::Other));
    }

    #[test]
    fn one_that_does_not_await_any_more_is_no_caller() {
        let types = types();
        for (state, flags, sentinel) in [
            (-1i32, 0u64, false),
            (4, 0x100_0000, false),
            (4, 0x20_0000, false),
            (4, 0, true),
        ] {
            let mut made = Made::default();
            let done = made.object(OBJECT, &[]);
            let state = u64::from(state.cast_unsigned());
            let next = if sentinel { done } else { 0 };
            let stale = made.object(
                BOX,
                &[
                    (STATE, state),
                    (AT.flags & !7, flags << 32),
                    (AT.continuation, next),
                ],
            );
            let first = made.boxed(-1, stale);
            let (links, end) = read(&made, &types, first);
            assert_eq!(end, ChainEnd::Stale);
            assert_eq!(links.len(), 1 + usize::from(sentinel));
        }
        // The running task may be completed itself. It keeps its awaiters until it removes them to
        // run them.
        let mut made = Made::default();
        let waits = made.boxed(4, 0);
        let first = made.object(
            BOX,
            &[(AT.flags & !7, 0x100_0000 << 32), (AT.continuation, waits)],
        );
        let expected = (vec![task(BOX, 0), task(BOX, 4)], ChainEnd::Root);
        assert_eq!(read(&made, &types, first), expected);
        let sentinel = made.object(OBJECT, &[]);
        made.words
            .insert(first + u64::from(AT.continuation), sentinel);
        assert_eq!(
            read(&made, &types, first),
            (vec![task(BOX, 0)], ChainEnd::Completing)
        );
    }

    #[test]
    fn of_a_list_the_first_that_leads_on_is_followed_and_the_others_are_counted() {
        let types = types();
        let mut made = Made::default();
        let waits = made.boxed(2, 0);
        let action = made.object(ACTION, &[(8, waits)]);
        let other = made.object(OTHER, &[]);
        let array = made.object(
            STRANGE,
            &[(8, 4), (16, 0), (24, other), (32, action), (40, waits)],
        );
        let list = made.object(LIST, &[(8, array), (16, 4)]);
        let first = made.boxed(-1, list);
        assert_eq!(
            read(&made, &types, first),
            (
                vec![task(BOX, -1), (Role::Others, LIST, 2), task(BOX, 2)],
                ChainEnd::Root
            )
        );
        // A size that is newer than the array reads nothing behind it.
        made.words.insert(list + 16, 400);
        made.words.insert(array + 8, 1);
        let (links, end) = read(&made, &types, first);
        assert_eq!((links.len(), end), (1, ChainEnd::Root));
    }

    #[test]
    fn an_iterator_leads_to_who_waits_for_its_next_value() {
        const ITERATOR: u64 = 0x2200;
        let types = types();
        types.learn(
            ITERATOR,
            LinkKind::Object {
                task: AT,
                machine: 0x40,
                state: 0x10,
                promise: 0x20,
            },
        );
        let mut made = Made::default();
        let waits = made.boxed(6, 0);
        let machine = made.object(STRANGE, &[(0x10, 3), (0x20, 77), (0x28, waits)]);
        let iterator = made.object(ITERATOR, &[(0x40, machine)]);
        let expected = (vec![task(ITERATOR, 3), task(BOX, 6)], ChainEnd::Root);
        assert_eq!(read(&made, &types, iterator), expected);
        // An iterator from which no value is requested.
        made.words.insert(machine + 0x28, 0);
        let (links, end) = read(&made, &types, iterator);
        assert_eq!((links.len(), end), (1, ChainEnd::Root));
        // It has yielded a value, and notified its awaiter.
        let yielded = u64::from((-4i32).cast_unsigned());
        made.words.insert(machine + 0x10, yielded);
        assert_eq!(read(&made, &types, iterator).1, ChainEnd::Completing);
    }

    #[test]
    fn a_worker_that_nobody_awaits_leads_to_who_awaits_its_work() {
        const WORKER: u64 = 0x2500;
        const SOURCE: u64 = 0x2600;
        let types = types();
        let work = 0x58;
        types.learn(
            WORKER,
            LinkKind::Worker {
                task: AT,
                state: STATE,
                machine: 0x40,
                work,
            },
        );
        types.learn(SOURCE, LinkKind::Through(8));
        let mut made = Made::default();
        let waits = made.boxed(2, 0);
        let awaited = made.object(TASK, &[(AT.continuation, waits)]);
        let source = made.object(SOURCE, &[(8, awaited)]);
        let worker = made.object(WORKER, &[(STATE, 3), (work, source)]);
        let first = made.boxed(-1, worker);
        let chain = [
            task(BOX, -1),
            task(WORKER, 3),
            task(TASK, NO_STATE),
            task(BOX, 2),
        ];
        assert_eq!(read(&made, &types, first), (chain.to_vec(), ChainEnd::Root));
    }

    #[test]
    fn a_task_of_when_each_leads_to_who_waits_for_the_next_one() {
        const WHEN_EACH: u64 = 0x2700;
        let types = types();
        // `_waitForNextCompletedTask`, a source of value tasks.
        let source = 24;
        let waits = source + PROMISE_STATE as u16;
        types.learn(WHEN_EACH, LinkKind::Through(waits));
        let mut made = Made::default();
        let root = made.boxed(6, 0);
        let state = made.object(WHEN_EACH, &[(waits, root)]);
        let one = made.boxed(-1, state);
        let chain = vec![task(BOX, -1), task(BOX, 6)];
        assert_eq!(read(&made, &types, one), (chain, ChainEnd::Root));
        // No thread waits: another task has ended, and is being worked on.
        made.words.insert(state + u64::from(waits), 0);
        let chain = vec![task(BOX, -1), (Role::Last, WHEN_EACH, NO_STATE)];
        assert_eq!(read(&made, &types, one), (chain, ChainEnd::Other));
    }

    #[test]
    fn a_pooled_box_leads_to_who_waits_for_it() {
        const POOLED: u64 = 0x2400;
        let types = types();
        let (machine, state, promise) = (0x60, 0x60, 0x18);
        types.learn(
            POOLED,
            LinkKind::Pooled {
                machine,
                state,
                promise,
            },
        );
        let mut made = Made::default();
        let root = made.boxed(6, 0);
        let outer = made.object(POOLED, &[(state, 4), (promise + 8, root)]);
        let action = made.object(ACTION, &[(8, outer)]);
        let running = u64::from((-1i32).cast_unsigned());
        let inner = made.object(POOLED, &[(state, running), (promise + 8, action)]);
        let chain = vec![task(POOLED, -1), task(POOLED, 4), task(BOX, 6)];
        assert_eq!(read(&made, &types, inner), (chain, ChainEnd::Root));
        // The waiting method runs, or its box has been reused for another method.
        for state_of_outer in [-1i32, -2] {
            let value = u64::from(state_of_outer.cast_unsigned());
            made.words.insert(outer + u64::from(state), value);
            assert_eq!(read(&made, &types, inner).1, ChainEnd::Stale);
        }
        // It is completed itself, and notifies its awaiter or has done so.
        let done = u64::from((-2i32).cast_unsigned());
        made.words.insert(inner + u64::from(state), done);
        made.words.insert(inner + u64::from(promise) + 8, root);
        let chain = vec![task(POOLED, -2), task(BOX, 6)];
        assert_eq!(read(&made, &types, inner), (chain, ChainEnd::Root));
        made.words.insert(inner + u64::from(promise) + 8, 0);
        let chain = vec![task(POOLED, -2)];
        assert_eq!(read(&made, &types, inner), (chain, ChainEnd::Completing));
    }

    #[test]
    fn an_iterator_whose_task_is_of_a_class_that_is_not_known_is_known_by_its_code() {
        const ITERATOR: u64 = 0x2300;
        let types = types();
        types.set_parents();
        let mut made = Made::default();
        made.class(ITERATOR, STRANGE);
        made.class(STRANGE, TASK);
        let waits = made.boxed(6, 0);
        let machine = made.object(OTHER, &[(0x10, 3), (0x28, waits)]);
        let iterator = made.object(ITERATOR, &[(0x48, machine)]);
        let read = |machine, known| {
            let mut links = [0; MAX_LINKS];
            let mut reader = ChainReader {
                heap: &made,
                types: &types,
                links: &mut links,
                count: 0,
            };
            let end = reader.read_object(iterator, machine, known);
            let count = reader.count;
            (links.map(Link::unpack)[..count].to_vec(), end)
        };
        let known = ObjectAt {
            state: 0x10,
            promise: 0x20,
        };
        let link = |role, table, state| Link { table, role, state };
        let chain = [link(Role::Task, ITERATOR, 3), link(Role::Task, BOX, 6)];
        assert_eq!(read(machine, Some(known)), (chain.to_vec(), ChainEnd::Root));
        // The offset of its awaiter is unknown, or it is another task's.
        let unknown = (
            vec![link(Role::Last, ITERATOR, NO_STATE)],
            ChainEnd::Unknown,
        );
        assert_eq!(read(machine, None), unknown);
        assert_eq!(read(waits, Some(known)), unknown);
    }

    #[test]
    fn a_class_that_is_not_known_is_what_its_parent_is() {
        let types = types();
        let mut made = Made::default();
        made.class(DERIVED, STRANGE);
        made.class(STRANGE, TASK);
        made.class(TASK, OBJECT);
        made.class(OBJECT, 0);
        let root = made.boxed(1, 0);
        let promise = made.object(DERIVED, &[(AT.continuation, root)]);
        let first = made.boxed(-1, promise);
        assert_eq!(read(&made, &types, first).1, ChainEnd::Unknown);
        types.set_parents();
        assert_eq!(
            read(&made, &types, first),
            (
                vec![task(BOX, -1), task(DERIVED, NO_STATE), task(BOX, 1)],
                ChainEnd::Root
            )
        );
        types.forbid_parents();
        types.set_parents();
        assert_eq!(read(&made, &types, first).1, ChainEnd::Unknown);
        let types = super::tests::types();
        types.set_parents();
        assert!([STRANGE, DERIVED].map(|at| reader(&made, &types).is_class(at)) == [true; 2]);
        assert!(
            ![BOX, OBJECT, 0, 8]
                .iter()
                .any(|at| reader(&made, &types).is_class(*at))
        );
        // But not every object is an instance of `object` itself.
        made.class(STRANGE, OBJECT);
        assert_eq!(read(&made, &types, first).1, ChainEnd::Unknown);
    }

    #[test]
    fn a_chain_without_end_ends() {
        let types = types();
        let mut made = Made::default();
        let first = made.boxed(4, 0);
        let second = made.boxed(4, first);
        made.words
            .insert(first + u64::from(AT.continuation), second);
        let (links, end) = read(&made, &types, first);
        assert_eq!((links.len(), end), (MAX_LINKS, ChainEnd::TooDeep));
        made.left = Some(Cell::new(5));
        let (links, end) = read(&made, &types, first);
        assert_eq!((links.len(), end), (5, ChainEnd::TooSlow));
        // Delegates that call each other.
        let loops = made.object(ACTION, &[]);
        made.words.insert(loops + 8, loops);
        let first = made.boxed(-1, loops);
        made.left = None;
        assert_eq!(read(&made, &types, first).1, ChainEnd::Strange);
    }

    #[test]
    fn memory_that_is_no_object_is_not_followed() {
        let types = types();
        let mut made = Made::default();
        let first = made.boxed(-1, 0x5_0000);
        assert_eq!(
            read(&made, &types, first),
            (vec![task(BOX, -1)], ChainEnd::Strange)
        );
        assert_eq!(read(&made, &types, 0x77_0000).1, ChainEnd::Strange);
    }
}
