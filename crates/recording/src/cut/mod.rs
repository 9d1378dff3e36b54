//! Cuts a stream of records into intervals, each a recording that can be read alone.
//!
//! An agent defines names, frames and stacks once per stream. [`Cutter`] keeps the definitions and
//! repeats in each interval those that it needs. Totals since the start become totals of the
//! interval. It does no IO: the caller feeds records and takes blocks.
//!
//! Invariants: each sample is in exactly one interval, the one of its time, or the open one if that
//! is closed already. An interval begins where the one before it ends. Counts and totals of the
//! intervals add up to those of the stream. Memory is bounded by what the stream may still refer to
//! ([`limits`]) and by the open interval.

pub mod limits;
mod process;
mod table;
mod totals;

use std::collections::BTreeMap;

use self::process::{ProcessCut, Sorted};
use crate::record::{ProcessKey, Record};
use crate::writer::Writer;

/// Smallest change between the clocks that counts.
const CLOCK_STEP_NS: u64 = 1_000_000;

/// One instant by two clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockReading {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Nanoseconds since 1970.
    pub unix_ns: u64,
}

impl ClockReading {
    /// The reading at `time_ns`, if the clocks run alike until then.
    fn at(self, time_ns: u64) -> ClockReading {
        let unix_ns = self.unix_ns.saturating_add(time_ns);
        ClockReading {
            time_ns,
            unix_ns: unix_ns.saturating_sub(self.time_ns),
        }
    }
}

/// Cuts records into intervals.
///
/// ```
/// # use recording::{ClockReading, Cutter, ProcessKey, Reader, Record, Writer};
/// let mut cutter = Cutter::new(ClockReading { time_ns: 0, unix_ns: 1_700 }, 100);
/// let note = Record::Note { text: "a note".into() };
/// cutter.record(ProcessKey(7), &note);
/// let mut first = recording::file_header("an example");
/// cutter.cut(ClockReading { time_ns: 101, unix_ns: 1_801 }, 200, &mut first);
/// assert!(Reader::open(first.as_slice())?.next_item()?.is_some());
/// # Ok::<(), recording::OpenError>(())
/// ```
pub struct Cutter {
    processes: BTreeMap<ProcessKey, ProcessCut>,
    current: Interval,
    /// Records whose time is behind the end of the current interval. It is cut somewhat later than
    /// its end, because records arrive late.
    next: Interval,
}

/// An interval that is being written.
struct Interval {
    /// From 1, ascending.
    number: u32,
    start: ClockReading,
    writers: BTreeMap<ProcessKey, Writer>,
    /// Whole blocks.
    blocks: Vec<u8>,
}

/// The place of one process in an interval.
struct Out<'a> {
    number: u32,
    start: ClockReading,
    writer: &'a mut Writer,
    blocks: &'a mut Vec<u8>,
}

impl Out<'_> {
    fn push(&mut self, record: &Record<'_>) {
        self.writer.push_into(record, self.blocks);
    }
}

impl Interval {
    fn new(number: u32, start: ClockReading) -> Interval {
        Interval {
            number,
            start,
            writers: BTreeMap::new(),
            blocks: Vec::new(),
        }
    }

    /// The place of a process. Its first records are written if it has none yet.
    fn open(&mut self, key: ProcessKey, process: &mut ProcessCut) -> Out<'_> {
        let is_new = !self.writers.contains_key(&key);
        let mut out = Out {
            number: self.number,
            start: self.start,
            writer: self.writers.entry(key).or_insert_with(|| Writer::new(key)),
            blocks: &mut self.blocks,
        };
        if is_new {
            process.begin(&mut out);
        }
        out
    }

    /// The place of a process that has one.
    fn opened(&mut self, key: ProcessKey) -> Option<Out<'_>> {
        Some(Out {
            number: self.number,
            start: self.start,
            writer: self.writers.get_mut(&key)?,
            blocks: &mut self.blocks,
        })
    }

    fn take_all(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.blocks);
        for writer in self.writers.values_mut() {
            writer.take_block_into(out);
        }
    }
}

impl Cutter {
    /// Begins an interval from `start` to `end_ns` (CLOCK_MONOTONIC).
    #[must_use]
    pub fn new(start: ClockReading, end_ns: u64) -> Cutter {
        Cutter {
            processes: BTreeMap::new(),
            current: Interval::new(1, start),
            next: Interval::new(2, start.at(end_ns)),
        }
    }

    /// Adds a record of a process.
    pub fn record(&mut self, key: ProcessKey, record: &Record<'_>) {
        let end_ns = self.end_ns();
        let process = self.processes.entry(key).or_default();
        let is_late = process::time_of(record).is_some_and(|time_ns| time_ns >= end_ns);
        let in_next = is_late || process.begins_at() >= end_ns;
        match process.sort(record) {
            Sorted::Kept => {}
            Sorted::Heading => {
                for interval in [&mut self.current, &mut self.next] {
                    if let Some(mut out) = interval.opened(key) {
                        out.push(record);
                    }
                }
            }
            Sorted::Content => {
                process.count(record, in_next);
                let interval = match in_next {
                    true => &mut self.next,
                    false => &mut self.current,
                };
                let mut out = interval.open(key, process);
                process.write(&mut out, record);
            }
            Sorted::Snapshot => {
                let snapshot = process.take_snapshot();
                let (interval, other) = match in_next {
                    true => (&mut self.next, None),
                    // The next one began with the heap as it was before.
                    false => (&mut self.current, self.next.opened(key)),
                };
                let mut out = interval.open(key, process);
                process.write_all(&mut out, &snapshot);
                out.push(record);
                if let Some(mut out) = other {
                    process.write_all(&mut out, &snapshot);
                }
                process.apply_snapshot(snapshot);
            }
        }
    }

    /// Notes that a process's connection has closed. Without [`Record::End`] it was killed, or did
    /// not answer.
    pub fn disconnected(&mut self, key: ProcessKey) {
        if let Some(process) = self.processes.get_mut(&key) {
            process.is_disconnected = true;
        }
    }

    /// Moves the finished blocks of the current interval to `out`.
    pub fn take_blocks(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.current.blocks);
    }

    /// The number of definitions that are kept.
    #[must_use]
    pub fn definitions(&self) -> usize {
        self.processes.values().map(ProcessCut::definitions).sum()
    }

    /// The begin of the current interval.
    #[must_use]
    pub fn start(&self) -> ClockReading {
        self.current.start
    }

    /// The end of the current interval, by CLOCK_MONOTONIC.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.next.start.time_ns
    }

    /// Whether records have arrived that belong behind the end of the current interval.
    #[must_use]
    pub fn has_next(&self) -> bool {
        !self.next.writers.is_empty()
    }

    /// Ends the current interval and moves the rest of its blocks to `out`. The next one, which has
    /// begun at its end, lasts until `end_ns`. `now` ties the clocks together.
    pub fn cut(&mut self, now: ClockReading, end_ns: u64, out: &mut Vec<u8>) {
        let boundary = self.next.start;
        self.close(boundary.time_ns, false, out);
        let number = self.next.number;
        for process in self.processes.values_mut() {
            process.sweep(number);
        }
        let end_ns = end_ns.max(boundary.time_ns.saturating_add(1));
        // Less is the time between the readings of both clocks.
        let has_step = now.unix_ns.abs_diff(boundary.at(now.time_ns).unix_ns) >= CLOCK_STEP_NS;
        let clocks = if has_step { now } else { boundary };
        let after = Interval::new(number.wrapping_add(1), clocks.at(end_ns));
        self.current = std::mem::replace(&mut self.next, after);
    }

    /// Ends the last interval at `end_ns` and moves the rest of its blocks to `out`.
    pub fn finish(mut self, end_ns: u64, out: &mut Vec<u8>) {
        self.close(end_ns, true, out);
    }

    /// Closes the current interval, and drops the processes that have no part in the next.
    fn close(&mut self, end_ns: u64, is_last: bool, out: &mut Vec<u8>) {
        let (current, next) = (&mut self.current, &self.next);
        self.processes.retain(|key, process| {
            let has_part = current.writers.contains_key(key);
            if !is_last && !has_part && process.begins_at() >= end_ns {
                return true;
            }
            let has_next = !is_last && next.writers.contains_key(key);
            let mut place = current.open(*key, process);
            process.close(
                &mut place,
                end_ns,
                is_last || (process.is_over() && !has_next),
            );
            has_next || !process.is_over()
        });
        current.take_all(out);
    }
}
