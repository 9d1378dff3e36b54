//! State of one process that its intervals share: definitions, live objects, totals.

use std::collections::BTreeMap;

use super::table::Table;
use super::totals::Totals;
use super::{Out, limits};
use crate::record::{Frame, ModuleKind, Record};

/// One process of the stream.
pub(super) struct ProcessCut {
    /// [`Record::Process`].
    process: Option<Record<'static>>,
    /// Difference of the clocks when the process was first written.
    clock_offset: Option<i128>,
    /// Records that every interval begins with: engines, sources, runtimes, native modules, traced
    /// methods.
    headings: BTreeMap<Heading, Record<'static>>,
    threads: Table<ThreadRecord>,
    managed_modules: Table<Record<'static>>,
    methods: Table<Record<'static>>,
    frames: Table<Frame<'static>>,
    /// Parent and frame.
    stacks: Table<(Option<u32>, u32)>,
    details: Table<Record<'static>>,
    live: LiveObjects,
    totals: Totals,
    /// The time of [`Record::End`].
    ended_at: Option<u64>,
    pub(super) is_disconnected: bool,
}

/// Key of a record that every interval begins with, in the order in which they are written.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Heading {
    Engine(u8),
    Source(u8, String),
    Runtime(u8),
    Module(u32),
    Traced(u32),
}

/// A [`Record::Thread`].
struct ThreadRecord {
    record: Record<'static>,
    began_ns: u64,
    has_ended: bool,
}

/// The live objects as of the last snapshot.
#[derive(Default)]
struct LiveObjects {
    /// [`Record::Survivor`]s, and how often all had been thinned out when each was reported.
    alive: BTreeMap<u32, (Record<'static>, u32)>,
    thinned: u32,
    /// Records for the snapshot that follows.
    waiting: Vec<Record<'static>>,
}

/// The way of a record into intervals.
pub(super) enum Sorted {
    /// Kept here, and written when an interval needs it.
    Kept,
    /// Kept here, and written to each open interval.
    Heading,
    /// Written to one interval.
    Content,
    /// Completes a snapshot of the live heap.
    Snapshot,
}

impl Default for ProcessCut {
    fn default() -> ProcessCut {
        ProcessCut {
            process: None,
            clock_offset: None,
            headings: BTreeMap::new(),
            threads: Table::new(usize::MAX),
            managed_modules: Table::new(limits::METHODS),
            methods: Table::new(limits::METHODS),
            frames: Table::new(limits::FRAMES),
            stacks: Table::new(limits::STACKS),
            details: Table::new(limits::DETAILS),
            live: LiveObjects::default(),
            totals: Totals::default(),
            ended_at: None,
            is_disconnected: false,
        }
    }
}

/// The time of a record that is put into an interval by its time.
pub(super) fn time_of(record: &Record<'_>) -> Option<u64> {
    match record {
        Record::Sample { time_ns, .. }
        | Record::ThreadEnd { time_ns, .. }
        | Record::Change { time_ns, .. }
        | Record::Pause { time_ns, .. }
        | Record::ThreadState { time_ns, .. }
        | Record::Calls { time_ns, .. }
        | Record::Collected { time_ns, .. }
        | Record::Instant { time_ns, .. } => Some(*time_ns),
        _ => None,
    }
}

impl ProcessCut {
    /// Keeps what later intervals need of a record.
    pub(super) fn sort(&mut self, record: &Record<'_>) -> Sorted {
        let owned = || record.clone().into_owned();
        let heading = match record {
            Record::Process { .. } => {
                self.process = Some(owned());
                return Sorted::Kept;
            }
            Record::Engine { event, .. } => Heading::Engine(*event as u8),
            Record::Source { event, source, .. } => {
                Heading::Source(*event as u8, source.to_string())
            }
            Record::Runtime { runtime, .. } => Heading::Runtime(*runtime),
            Record::Module { module, kind, .. } if *kind == ModuleKind::Native => {
                Heading::Module(*module)
            }
            Record::Traced { traced, .. } => Heading::Traced(*traced),
            Record::Module { module, .. } => {
                self.managed_modules.define(*module, owned());
                return Sorted::Kept;
            }
            Record::Thread {
                thread, time_ns, ..
            } => {
                let (record, began_ns) = (owned(), *time_ns);
                let has_ended = false;
                let known = ThreadRecord {
                    record,
                    began_ns,
                    has_ended,
                };
                self.threads.define(*thread, known);
                return Sorted::Kept;
            }
            Record::Method { method, .. } => {
                self.methods.define(*method, owned());
                return Sorted::Kept;
            }
            Record::Frame { frame, value } => {
                self.frames.define(*frame, value.clone().into_owned());
                return Sorted::Kept;
            }
            Record::Stack {
                stack,
                parent,
                frame,
            } => {
                self.stacks.define(*stack, (*parent, *frame));
                return Sorted::Kept;
            }
            Record::Detail { detail, .. } => {
                self.details.define(*detail, owned());
                return Sorted::Kept;
            }
            Record::Stats { .. } | Record::Unseen { .. } | Record::Cost { .. } => {
                self.totals.add(record);
                return Sorted::Kept;
            }
            Record::End { time_ns } => {
                self.ended_at = Some(*time_ns);
                return Sorted::Kept;
            }
            Record::Survivor { .. } | Record::Gone { .. } | Record::Thinned { .. } => {
                self.live.waiting.push(owned());
                return Sorted::Kept;
            }
            Record::Instant { .. } => return Sorted::Snapshot,
            Record::ThreadEnd { thread, .. } => {
                if let Some(known) = self.threads.get_mut(*thread) {
                    known.has_ended = true;
                }
                return Sorted::Content;
            }
            Record::Sample { .. }
            | Record::Limited { .. }
            | Record::Change { .. }
            | Record::Pause { .. }
            | Record::Lost { .. }
            | Record::Broken { .. }
            | Record::AsyncCut { .. }
            | Record::ThreadState { .. }
            | Record::Calls { .. }
            | Record::Collected { .. }
            | Record::Note { .. }
            | Record::Symbol { .. } => return Sorted::Content,
        };
        self.headings.insert(heading, owned());
        Sorted::Heading
    }

    /// The time of [`Record::Process`]; 0 if there was none.
    pub(super) fn begins_at(&self) -> u64 {
        match self.process {
            Some(Record::Process { time_ns, .. }) => time_ns,
            _ => 0,
        }
    }

    /// Counts a sample for the totals.
    pub(super) fn count(&mut self, record: &Record<'_>, in_next: bool) {
        if let Record::Sample { event, value, .. } = record {
            self.totals.sampled(*event, *value, in_next);
        }
    }

    /// Writes the first records of the process in an interval.
    pub(super) fn begin(&mut self, out: &mut Out<'_>) {
        if let Some(Record::Process {
            pid,
            parent,
            command,
            unix_ns,
            time_ns,
        }) = &self.process
        {
            let offset = i128::from(out.start.unix_ns) - i128::from(out.start.time_ns);
            let was = *self.clock_offset.get_or_insert(offset);
            let begin_ns = (*time_ns).max(out.start.time_ns);
            let unix = i128::from(*unix_ns) + i128::from(begin_ns - *time_ns) + offset - was;
            out.push(&Record::Process {
                pid: *pid,
                parent: *parent,
                command: (&**command).into(),
                unix_ns: u64::try_from(unix).unwrap_or(*unix_ns),
                time_ns: begin_ns,
            });
        }
        for record in self.headings.values() {
            out.push(record);
        }
        let thinned = self.live.thinned;
        let alive: Vec<Record<'static>> = self.live.alive.values().map(now(thinned)).collect();
        self.write_all(out, &alive);
    }

    /// Writes records and the definitions that they need.
    pub(super) fn write_all(&mut self, out: &mut Out<'_>, records: &[Record<'_>]) {
        for record in records {
            self.write(out, record);
        }
    }

    /// Writes a record and the definitions that it needs.
    pub(super) fn write(&mut self, out: &mut Out<'_>, record: &Record<'_>) {
        match record {
            Record::Sample {
                thread,
                stack,
                detail,
                logical,
                ..
            }
            | Record::Survivor {
                thread,
                stack,
                detail,
                logical,
                ..
            } => {
                self.write_thread(out, *thread);
                for stack in [Some(*stack), *logical].into_iter().flatten() {
                    self.write_stack(out, stack);
                }
                if let Some(detail) = detail
                    && let Some(record) = self.details.take_unwritten(*detail, out.number)
                {
                    out.push(record);
                }
            }
            Record::ThreadEnd { thread, .. } => {
                // Its CPU time is that since the thread began.
                let known = self.threads.get(*thread);
                if known.is_some_and(|known| known.began_ns < out.start.time_ns) {
                    return;
                }
                self.write_thread(out, *thread);
            }
            Record::ThreadState { thread, .. } | Record::Collected { thread, .. } => {
                self.write_thread(out, *thread);
            }
            _ => {}
        }
        out.push(record);
    }

    fn write_thread(&mut self, out: &mut Out<'_>, thread: u32) {
        if let Some(known) = self.threads.take_unwritten(thread, out.number) {
            out.push(&known.record);
        }
    }

    fn write_stack(&mut self, out: &mut Out<'_>, stack: u32) {
        // From the leaf to the first caller that is written, and back.
        let mut unwritten = Vec::new();
        let mut next = Some(stack);
        while let Some(stack) = next
            && let Some((parent, frame)) = self.stacks.take_unwritten(stack, out.number)
        {
            unwritten.push((stack, *parent, *frame));
            next = *parent;
        }
        for (stack, parent, frame) in unwritten.into_iter().rev() {
            self.write_frame(out, frame);
            out.push(&Record::Stack {
                stack,
                parent,
                frame,
            });
        }
    }

    fn write_frame(&mut self, out: &mut Out<'_>, frame: u32) {
        let Some(value) = self.frames.take_unwritten(frame, out.number) else {
            return;
        };
        if let Frame::Managed { method, .. } | Frame::Async { method, .. } = value
            && let Some(record) = self.methods.take_unwritten(*method, out.number)
        {
            if let Record::Method {
                module: Some(module),
                ..
            } = record
                && let Some(module) = self.managed_modules.take_unwritten(*module, out.number)
            {
                out.push(module);
            }
            out.push(record);
        }
        out.push(&Record::Frame {
            frame,
            value: value.clone(),
        });
    }

    /// Returns the changes of the live heap up to a snapshot.
    pub(super) fn take_snapshot(&mut self) -> Vec<Record<'static>> {
        std::mem::take(&mut self.live.waiting)
    }

    /// Applies the changes of the live heap that were written.
    pub(super) fn apply_snapshot(&mut self, changes: Vec<Record<'static>>) {
        for change in changes {
            self.live.apply(change);
        }
    }

    pub(super) fn definitions(&self) -> usize {
        let names = self.managed_modules.len() + self.methods.len() + self.details.len();
        names + self.threads.len() + self.frames.len() + self.stacks.len()
    }

    /// Whether no more records will come.
    pub(super) fn is_over(&self) -> bool {
        self.ended_at.is_some() || self.is_disconnected
    }

    /// Writes the last records of the process in an interval. `is_last`: it has no part in a later
    /// one.
    pub(super) fn close(&mut self, out: &mut Out<'_>, end_ns: u64, is_last: bool) {
        if is_last {
            let changes = self.take_snapshot();
            self.write_all(out, &changes);
        }
        let end_ns = match self.ended_at {
            Some(ended_at) if is_last => ended_at.min(end_ns).max(out.start.time_ns),
            _ => end_ns,
        };
        self.totals.write(out, end_ns);
        // A process that was killed has no end.
        if !is_last || self.ended_at.is_some() {
            out.push(&Record::End { time_ns: end_ns });
        }
    }

    /// Drops definitions that are of no use any more, as `interval` begins.
    pub(super) fn sweep(&mut self, interval: u32) {
        self.managed_modules.sweep(interval);
        self.methods.sweep(interval);
        self.frames.sweep(interval);
        self.stacks.sweep(interval);
        self.details.sweep(interval);
        self.threads.sweep(interval);
        // Samples of a thread may arrive somewhat after its end.
        let since = interval.saturating_sub(1);
        self.threads
            .retain(|thread, used_in| !thread.has_ended || used_in >= since);
    }
}

impl LiveObjects {
    fn apply(&mut self, change: Record<'static>) {
        match &change {
            Record::Survivor { allocation, .. } => {
                self.alive.insert(*allocation, (change, self.thinned));
            }
            Record::Gone { allocations, .. } => self.remove(allocations),
            Record::Thinned { allocations, .. } => {
                self.remove(allocations);
                self.thinned = self.thinned.saturating_add(1);
            }
            _ => {}
        }
    }

    fn remove(&mut self, allocations: &[u32]) {
        for allocation in allocations {
            self.alive.remove(allocation);
        }
    }
}

/// Returns a live object with the bytes that it stands for after so many thinnings.
fn now(thinned: u32) -> impl Fn(&(Record<'static>, u32)) -> Record<'static> {
    move |(record, then)| {
        let mut record = record.clone();
        if let Record::Survivor { bytes, .. } = &mut record {
            let times = thinned.saturating_sub(*then);
            *bytes = match *bytes {
                bytes if times <= bytes.leading_zeros() => bytes << times,
                _ => u64::MAX,
            };
        }
        record
    }
}
