//! Finds suspended async methods in a heap walk, and counts them by equal chains.
//!
//! No thread runs a suspended method; its chain is the list of methods that await it. On request a
//! suspended runtime reports each surviving object at the end of a collection. Two such walks are
//! needed. The first lists classes, which the agent thread then queries from the runtime. The
//! second finds tasks whose method is suspended, and at its end reads the chains of those that no
//! other one awaits.
//!
//! Invariants: objects are read only between the start and the end of a collection of all
//! generations, so all of them are alive and none moves. Memory is bounded by `MAX_CLASSES`,
//! `MAX_TASKS`, `MAX_GROUPS` and `MAX_WORDS`, and what does not fit is counted.

use std::collections::{HashMap, HashSet};

use super::finder::is_plausible;
use super::reader::{ChainReader, DONE, Heap, NextLink, PROMISE_STATE, TABLE};
use super::types::{LinkKind, PARENT, TaskAt, Types};
use crate::base::numbers::NumberMap;
use crate::model::chain::{ChainBegin, ChainEnd, ChainHead, MAX_LINKS};

/// Maximum number of classes.
const MAX_CLASSES: usize = 64 * 1024;
/// Maximum number of suspended methods that are kept during a walk, 8 bytes each, and as many again
/// for those that await others.
const MAX_TASKS: usize = 8 << 20;
/// Maximum number of different chains.
const MAX_GROUPS: usize = 64 * 1024;
/// Maximum number of words of all chains together.
const MAX_WORDS: usize = 4 << 20;

/// The heap of a suspended runtime.
#[derive(Debug)]
pub struct StoppedHeap;

impl Heap for StoppedHeap {
    fn word(&self, at: u64) -> Option<u64> {
        if !is_plausible(at) {
            return None;
        }
        // SAFETY: the address is a field of an object that a live object refers to, or of its
        // class. The survey reads only while the runtime is suspended at the end of a collection of
        // all generations, so reported objects, and those that they refer to, are alive and do not
        // move.
        Some(unsafe { (at as *const u64).read_volatile() })
    }

    fn is_late(&self) -> bool {
        false
    }
}

/// Classes of heap objects about which the runtime was asked in earlier surveys.
#[derive(Debug, Default)]
pub struct AskedClasses {
    tables: HashSet<u64>,
    /// CLOCK_MONOTONIC. They are valid if no module was unloaded since.
    since_ns: u64,
}

impl AskedClasses {
    /// Returns those of the classes that are new. `may_be_gone`: whether a module was unloaded
    /// since a time, so that another class may have taken the place of one.
    pub fn new_among(
        &mut self,
        found: &[(u64, u64)],
        time_ns: u64,
        may_be_gone: impl FnOnce(u64) -> bool,
    ) -> Vec<(u64, u64)> {
        if may_be_gone(self.since_ns) {
            self.tables.clear();
            self.since_ns = time_ns;
        }
        let tables = &mut self.tables;
        let is_new = |(table, _): &(u64, u64)| {
            !tables.contains(table) && (tables.len() >= MAX_CLASSES || tables.insert(*table))
        };
        found.iter().copied().filter(is_new).collect()
    }
}

/// Chains as words with their counts, and the number of methods for which there was no room.
pub type ChainGroups = (Vec<(Box<[u64]>, u64)>, u64);

/// The purpose of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SurveyStep {
    Classes,
    Chains,
    /// None: the program may run another collection before the runtime's heap walks are turned off.
    Over,
}

/// The two walks and their results.
#[derive(Debug)]
pub struct Survey<'t, H> {
    heap: H,
    types: &'t Types,
    step: SurveyStep,
    /// Whether a collection of all generations is at its end.
    is_open: bool,
    /// Number of completed walks.
    walks: u32,
    /// Method tables, each with the word at the offset of its parent.
    classes: NumberMap<u64, u64>,
    /// Kind of the objects of each class that can be awaited.
    kinds: NumberMap<u64, Option<LinkKind>>,
    tasks: Vec<u64>,
    awaiting: Vec<u64>,
    groups: HashMap<Box<[u64]>, u64>,
    words: usize,
    left_out: u64,
}

impl<'t, H: Heap> Survey<'t, H> {
    /// Creates an empty survey of a heap whose classes are in `types`.
    pub fn new(heap: H, types: &'t Types) -> Survey<'t, H> {
        Survey {
            heap,
            types,
            step: SurveyStep::Classes,
            is_open: false,
            walks: 0,
            classes: NumberMap::default(),
            kinds: NumberMap::default(),
            tasks: Vec::new(),
            awaiting: Vec::new(),
            groups: HashMap::new(),
            words: 0,
            left_out: 0,
        }
    }

    /// Notes that a collection of `generations` has begun.
    pub fn collection_begins(&mut self, generations: &[bool]) {
        let all = generations.get(..3);
        self.is_open = all.is_some_and(|all| all.iter().all(|is_taken| *is_taken));
    }

    /// Handles a live object, reported by the walk at the end of a collection.
    pub fn object(&mut self, object: u64) {
        if !self.is_open {
            return;
        }
        let Some(table) = self.heap.word(object).map(|word| word & TABLE) else {
            return;
        };
        match self.step {
            SurveyStep::Classes => self.class(table),
            SurveyStep::Chains => self.candidate(object, table),
            SurveyStep::Over => {}
        }
    }

    /// Handles the end of a walk, while the runtime is still suspended.
    pub fn collection_ends(&mut self) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        self.walks += 1;
        if self.step == SurveyStep::Chains {
            self.step = SurveyStep::Over;
            self.group();
        }
    }

    /// Returns the number of completed walks.
    pub fn walks(&self) -> u32 {
        self.walks
    }

    /// Whether the walk for chains is completed.
    pub fn is_over(&self) -> bool {
        self.step == SurveyStep::Over
    }

    /// Returns the method tables of the found classes, each with the word at the offset of its
    /// parent. The next walk searches for chains.
    pub fn take_classes(&mut self) -> Vec<(u64, u64)> {
        self.step = SurveyStep::Chains;
        std::mem::take(&mut self.classes).into_iter().collect()
    }

    /// Returns the chains as words of [`crate::model::chain`], the head last, with the count of
    /// each, and the number of suspended methods for which there was no room.
    pub fn into_groups(self) -> ChainGroups {
        let mut groups: Vec<_> = self.groups.into_iter().collect();
        groups.sort_unstable_by(|(words, count), (others, other)| {
            other.cmp(count).then_with(|| words.cmp(others))
        });
        (groups, self.left_out)
    }

    fn class(&mut self, table: u64) {
        if self.classes.len() < MAX_CLASSES && !self.classes.contains_key(&table) {
            let parent = table.checked_add(PARENT).and_then(|at| self.heap.word(at));
            self.classes.insert(table, parent.unwrap_or(0));
        }
    }

    fn candidate(&mut self, object: u64, table: u64) {
        let kind = match self.kinds.get(&table) {
            Some(kind) => *kind,
            None => {
                let kind = self.reader(&mut []).kind(table);
                let kind = kind.filter(|kind| kind.is_awaited());
                if self.kinds.len() < MAX_CLASSES {
                    self.kinds.insert(table, kind);
                }
                kind
            }
        };
        let Some(kind) = kind else {
            return;
        };
        let mut links = [0; MAX_LINKS];
        let mut reader = self.reader(&mut links);
        if !is_suspended(&reader, object, kind) {
            return;
        }
        let next = awaiting(&mut reader, object, kind);
        if self.tasks.len() >= MAX_TASKS {
            self.left_out += 1;
            return;
        }
        self.tasks.push(object);
        self.awaiting.extend(next);
    }

    /// Reads the chains of the tasks that no other one awaits.
    fn group(&mut self) {
        let mut tasks = std::mem::take(&mut self.tasks);
        let mut awaiting = std::mem::take(&mut self.awaiting);
        // Mostly sorted already.
        tasks.sort_unstable();
        awaiting.sort_unstable();
        let mut others = awaiting.into_iter().peekable();
        let mut words = Vec::with_capacity(MAX_LINKS + 1);
        let mut links = [0; MAX_LINKS];
        for task in tasks {
            while others.next_if(|other| *other < task).is_some() {}
            if others.peek() == Some(&task) {
                continue;
            }
            let mut reader = self.reader(&mut links);
            let end = reader.read(task);
            let count = reader.count;
            words.clear();
            words.extend(links.iter().take(count));
            self.count(&mut words, end);
        }
    }

    fn count(&mut self, words: &mut Vec<u64>, end: ChainEnd) {
        let head = ChainHead {
            older: 0,
            links: u16::try_from(words.len()).unwrap_or(u16::MAX),
            end,
            begin: ChainBegin::Method,
        };
        words.push(head.pack());
        if let Some(count) = self.groups.get_mut(words.as_slice()) {
            *count += 1;
        } else if self.groups.len() < MAX_GROUPS && self.words + words.len() <= MAX_WORDS {
            self.words += words.len();
            self.groups.insert(words.as_slice().into(), 1);
        } else {
            self.left_out += 1;
        }
    }

    fn reader<'a>(&'a self, links: &'a mut [u64]) -> ChainReader<'a, H> {
        ChainReader {
            heap: &self.heap,
            types: self.types,
            links,
            count: 0,
        }
    }
}

/// Whether a task is one of a method that has begun and that no thread runs.
fn is_suspended<H: Heap>(reader: &ChainReader<'_, H>, task: u64, kind: LinkKind) -> bool {
    let is_done = |at: TaskAt| {
        let flags = reader.half(task, at.flags);
        flags.is_none_or(|flags| u64::from(flags) & DONE != 0)
    };
    // Negative while the method runs, and when it is completed.
    let waits = |object: u64, place: u16| {
        let state = reader.half(object, place).map(u32::cast_signed);
        state.is_some_and(|state| state >= 0)
    };
    match kind {
        LinkKind::Box {
            task: at, state, ..
        } => waits(task, state) && !is_done(at),
        LinkKind::Object {
            task: at,
            machine,
            state,
            ..
        } => {
            let machine = reader.field(task, machine).filter(|at| *at != 0);
            machine.is_some_and(|machine| waits(machine, state)) && !is_done(at)
        }
        LinkKind::Pooled { state, .. } => waits(task, state),
        LinkKind::Runtime(at) | LinkKind::Task(at) if at.state != 0 => {
            let first = reader.field(task, at.state).filter(|first| *first != 0);
            let kind = first.and_then(|first| reader.object(first)?.1);
            matches!(
                kind,
                Some(LinkKind::Suspended(_) | LinkKind::OfAwait { .. })
            ) && !is_done(at)
        }
        _ => false,
    }
}

/// Returns the next task of a suspended method in the chain from `task`.
fn awaiting<H: Heap>(reader: &mut ChainReader<'_, H>, task: u64, kind: LinkKind) -> Option<u64> {
    let (mut at, mut kind) = (task, kind);
    for _ in 0..MAX_LINKS {
        let place = match kind {
            LinkKind::Task(task) | LinkKind::Runtime(task) | LinkKind::Box { task, .. } => {
                at.checked_add(task.continuation.into())
            }
            LinkKind::Object {
                task, promise: 0, ..
            } => at.checked_add(task.continuation.into()),
            LinkKind::Object {
                machine, promise, ..
            } => reader
                .field(at, machine)?
                .checked_add(u64::from(promise) + PROMISE_STATE),
            LinkKind::Pooled { promise, .. } => at.checked_add(u64::from(promise) + PROMISE_STATE),
            _ => None,
        };
        let next = reader.heap.word(place?).filter(|next| *next != 0)?;
        // The links between are ignored here.
        reader.count = 0;
        let NextLink::Task(next) = reader.task_of(next) else {
            return None;
        };
        (at, kind) = (next, reader.object(next)?.1?);
        if is_suspended(reader, at, kind) {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::reader::tests::{
        AT, BOX, Made, OTHER, RUNTIME, SHAPE, STATE, SUSPENDS, TASK, suspended, types,
    };
    use super::*;
    use crate::model::chain::{Link, NO_STATE, Role, split};

    const ALL: [bool; 5] = [true; 5];

    type Groups = Vec<(Vec<(Role, u64, i32)>, ChainEnd, u64)>;

    /// Returns the findings of a second walk over these objects.
    fn found(made: Made, objects: &[u64]) -> Groups {
        let types = types();
        types.set_parents();
        let mut survey = Survey::new(made, &types);
        let _classes = survey.take_classes();
        walk(&mut survey, &ALL, objects);
        reported(survey)
    }

    fn walk(survey: &mut Survey<'_, Made>, generations: &[bool], objects: &[u64]) {
        survey.collection_begins(generations);
        for object in objects {
            survey.object(*object);
        }
        survey.collection_ends();
    }

    fn reported(survey: Survey<'_, Made>) -> Groups {
        let (groups, left_out) = survey.into_groups();
        assert_eq!(left_out, 0);
        let reported = groups.into_iter().map(|(words, count)| {
            let (_, chain) = split(&words);
            let chain = chain.unwrap();
            let links = chain.links.iter().map(|word| {
                let link = Link::unpack(*word);
                (link.role, link.table, link.state)
            });
            (links.collect(), chain.end, count)
        });
        reported.collect()
    }

    fn of_box(state: i32) -> (Role, u64, i32) {
        (Role::Task, BOX, state)
    }

    #[test]
    fn equal_chains_are_one_group_and_what_they_pass_through_is_none() {
        let mut made = Made::default();
        let mut all = Vec::new();
        for _ in 0..5 {
            let root = made.boxed(7, 0);
            let leaf = made.boxed(3, root);
            // In either order.
            all.extend([leaf, root]);
        }
        let alone = made.boxed(7, 0);
        // Two methods joined by a promise, which is no method.
        let joined = made.boxed(2, 0);
        let promise = made.object(TASK, &[(AT.continuation, joined)]);
        let left = made.boxed(3, promise);
        let right = made.boxed(3, promise);
        all.extend([alone, joined, promise, left, right]);
        let through = (Role::Task, TASK, NO_STATE);
        let mut expected = vec![
            (vec![of_box(3), of_box(7)], ChainEnd::Root, 5),
            (vec![of_box(3), through, of_box(2)], ChainEnd::Root, 2),
            (vec![of_box(7)], ChainEnd::Root, 1),
        ];
        let mut groups = found(made, &all);
        groups.sort_by_key(|(links, ..)| links.len());
        expected.sort_by_key(|(links, ..)| links.len());
        assert_eq!(groups, expected);
    }

    #[test]
    fn what_runs_or_is_done_is_not_suspended() {
        let mut made = Made::default();
        let flags = |flags: u64| (AT.flags & !7, flags << 32);
        let running = made.boxed(-1, 0);
        let done = made.boxed(-2, 0);
        let failed = made.object(BOX, &[(STATE, 4), flags(0x20_0000)]);
        let awaited = made.object(TASK, &[]);
        let resumed = made.object(RUNTIME, &[]);
        let other = made.object(OTHER, &[]);
        let all = [running, done, failed, awaited, resumed, other];
        assert_eq!(found(made, &all), []);
    }

    #[test]
    fn a_list_of_continuations_is_one_chain_with_who_awaits_its_task() {
        let mut made = Made::default();
        let root = made.boxed(3, 0);
        let outer = suspended(&mut made, SHAPE, 0x7001, 0);
        let inner = suspended(&mut made, SHAPE, 0x7003, outer);
        let task = made.object(RUNTIME, &[(AT.continuation, root), (SUSPENDS, inner)]);
        let code = |at| (Role::Suspended, at, NO_STATE);
        let links = vec![
            (Role::Task, RUNTIME, NO_STATE),
            code(0x7003),
            code(0x7001),
            of_box(3),
        ];
        let groups = found(made, &[root, outer, inner, task]);
        assert_eq!(groups, [(links, ChainEnd::Root, 1)]);
    }

    #[test]
    fn nothing_is_read_but_at_the_end_of_a_collection_of_all_generations() {
        let mut made = Made::default();
        let leaf = made.boxed(3, 0);
        made.class(BOX, TASK);
        let types = types();
        let mut survey = Survey::new(made, &types);
        survey.object(leaf);
        walk(&mut survey, &[true, true, false, false], &[leaf]);
        assert_eq!(survey.walks(), 0);
        walk(&mut survey, &ALL, &[leaf, leaf]);
        assert_eq!(survey.walks(), 1);
        assert_eq!(survey.take_classes(), [(BOX, TASK)]);
        walk(&mut survey, &[true, false, false], &[leaf]);
        survey.object(leaf);
        assert_eq!((survey.walks(), survey.is_over()), (1, false));
        // The program also causes a collection.
        for walks in 2..5 {
            walk(&mut survey, &ALL, &[leaf]);
            assert_eq!((survey.walks(), survey.is_over()), (walks, true));
        }
        assert_eq!(reported(survey), [(vec![of_box(3)], ChainEnd::Root, 1)]);
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let types = types();
        let mut survey = Survey::new(Made::default(), &types);
        for number in 0..MAX_GROUPS as u64 + 10 {
            survey.count(&mut vec![number], ChainEnd::Root);
        }
        survey.count(&mut vec![3], ChainEnd::Root);
        let (groups, left_out) = survey.into_groups();
        assert_eq!((groups.len(), left_out), (MAX_GROUPS, 10));
        // The largest first.
        assert_eq!(groups.first().map(|(_, count)| *count), Some(2));
    }

    #[test]
    fn a_class_is_asked_about_once_until_a_module_is_unloaded() {
        // Continuations have classes of their own, and one parent.
        let made: Vec<(u64, u64)> = (1..=100).map(|class| (class * 0x40, TASK)).collect();
        let mut asked = AskedClasses::default();
        let never = |_| false;
        assert_eq!(asked.new_among(&made, 10, never), made);
        assert_eq!(asked.new_among(&made, 20, never), []);
        let one_more = [(0x8000, TASK), made[0]];
        assert_eq!(asked.new_among(&one_more, 30, never), one_more[..1]);
        assert_eq!(asked.new_among(&made, 40, |since_ns| since_ns < 35), made);
        assert_eq!(asked.new_among(&made, 50, |since_ns| since_ns < 35), []);
    }
}
