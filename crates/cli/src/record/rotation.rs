//! Cuts a running recording into intervals (`record --every`).
//!
//! Receives the agents' blocks in place of the one file of an ordinary recording. At the end of
//! each interval its recording goes to the [`Worker`], which writes the outputs in a thread of its
//! own. Nothing of the agents changes.
//! Invariants: the thread that reads the agents' data does not wait for outputs. Memory is bounded:
//! samples of an interval are in its file alone, and of waiting intervals the oldest is dropped and
//! counted.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use recording::{Block, ClockReading, Cutter, Item, ProcessKey, Reader, file_header};
use rustix::time::ClockId;

use super::sink::{BlockSink, Sink};
use super::worker::{Finished, IntervalOutputs, Worker};
use crate::clock::kernel_ns;
use crate::console::Console;

/// Time from the end of an interval to its cut, in which its last records arrive. Agents send at
/// least every 0.1 s; later records go into the next interval.
const SETTLE: Duration = Duration::from_secs(1);

/// Maximum number of remembered notes. A note may be printed again after so many others.
const MAX_NOTES: usize = 1_000;

/// The intervals of a recording.
pub(super) struct Rotation {
    every: Duration,
    folder: PathBuf,
    reader: Reader<VecDeque<u8>>,
    cutter: Cutter,
    /// The recording of the current interval. `None` if its file could not be made.
    file: Option<Sink>,
    worker: Worker,
    /// Intervals without a file, and those whose file failed.
    lost: u64,
    length: u64,
    seen_notes: HashSet<String>,
    /// Whether an agent sent records of a newer version.
    has_newer: bool,
    blocks: Vec<u8>,
}

impl Rotation {
    /// Begins the first interval. Its length is a random part of `every`, so that the intervals of
    /// many machines end at different times. Temporary files are in `folder`.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(super) fn begin(
        every: Duration,
        folder: &Path,
        outputs: IntervalOutputs,
    ) -> Result<Rotation> {
        let now = now()?;
        let part = every.mul_f64(0.1 + 0.9 * fastrand::f64());
        let end_ns = now.time_ns.saturating_add(nanoseconds(part));
        let header = VecDeque::from(file_header("sidewalk"));
        Ok(Rotation {
            every,
            folder: folder.to_owned(),
            // Blocks are dropped when they are read, so the stream may be of any length.
            reader: Reader::open(header)?.with_unpack_limit(u64::MAX),
            cutter: Cutter::new(now, end_ns),
            file: Some(Sink::temporary_in(folder)?),
            worker: Worker::start(outputs)?,
            lost: 0,
            length: 0,
            seen_notes: HashSet::new(),
            has_newer: false,
            blocks: Vec::new(),
        })
    }

    /// Ends the last interval and waits until the outputs are written. Returns the number of
    /// intervals.
    ///
    /// # Errors
    /// Outputs of an interval are missing.
    pub(super) fn finish(mut self, console: &Console) -> Result<u64> {
        let now = now()?;
        while self.cutter.has_next() {
            self.cut(now, console);
        }
        let start = self.cutter.start();
        let mut blocks = std::mem::take(&mut self.blocks);
        self.cutter.finish(now.time_ns, &mut blocks);
        let file = self.file.take().map(|mut file| {
            file.append_blocks(&blocks);
            file
        });
        self.lost += hand_over(&self.worker, file, start, console);
        let outcome = self.worker.finish(console);
        let missing = self.lost + outcome.failed + outcome.dropped;
        if missing > 0 {
            bail!(
                "{} of {} were not written completely; the messages above say why",
                missing,
                formats::plural(outcome.written + missing, "interval"),
            );
        }
        if outcome.undelivered > 0 {
            let undelivered = formats::plural(outcome.undelivered, "pushed profile");
            bail!("{undelivered} did not arrive; the messages above say why");
        }
        Ok(outcome.written)
    }

    /// Ends the current interval and hands it over.
    fn cut(&mut self, now: ClockReading, console: &Console) {
        let start = self.cutter.start();
        let every = nanoseconds(self.every);
        let mut end_ns = self.cutter.end_ns().saturating_add(every);
        if end_ns <= now.time_ns {
            // The tool was stopped, or the machine slept.
            end_ns = now.time_ns.saturating_add(every);
        }
        self.cutter.cut(now, end_ns, &mut self.blocks);
        self.store_blocks();
        let next = Sink::temporary_in(&self.folder);
        let next = next
            .map_err(|error| console.warning(format_args!("an interval is lost: {error:#}")))
            .ok();
        let file = std::mem::replace(&mut self.file, next);
        self.lost += hand_over(&self.worker, file, start, console);
        // The next interval has begun before its cut.
        self.cutter.take_blocks(&mut self.blocks);
        self.store_blocks();
    }

    fn store_blocks(&mut self) {
        if let Some(file) = &mut self.file {
            file.append_blocks(&self.blocks);
        }
        self.length += self.blocks.len() as u64;
        self.blocks.clear();
    }
}

/// Hands an interval to the worker. Returns the number of intervals that are lost: 0 or 1.
fn hand_over(worker: &Worker, file: Option<Sink>, start: ClockReading, console: &Console) -> u64 {
    match file {
        None => 1,
        Some(file) if !file.has_blocks() => {
            file.discard();
            0
        }
        Some(file) => {
            let failure = file.failure().map(io::Error::to_string);
            if let Some(why) = &failure {
                console.warning(format_args!("an interval is incomplete: {why}"));
            }
            worker.hand_over(Finished {
                file,
                unix_ns: start.unix_ns,
            });
            u64::from(failure.is_some())
        }
    }
}

impl BlockSink for Rotation {
    fn append_block(&mut self, block: &Block<'_>) {
        self.reader.source_mut().extend(block.bytes);
        // The block is whole and its checksums are right, so reading cannot fail.
        while let Ok(Some(item)) = self.reader.next_item() {
            match item {
                Item::Record(process, record) => self.cutter.record(process, &record),
                Item::Newer(_) => self.has_newer = true,
                Item::Damage(_) => {}
            }
        }
        self.cutter.take_blocks(&mut self.blocks);
        self.store_blocks();
    }

    fn disconnected(&mut self, process: ProcessKey) {
        self.cutter.disconnected(process);
    }

    /// Never: an interval that cannot be written is lost, and the next one is tried.
    fn failure(&self) -> Option<&io::Error> {
        None
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn see_note(&mut self, text: &str) -> bool {
        if self.seen_notes.len() >= MAX_NOTES {
            self.seen_notes.clear();
        }
        self.seen_notes.insert(text.to_owned())
    }

    fn note(&mut self, text: &str) {
        self.see_note(text);
        if let Some(file) = &mut self.file {
            file.note(text);
        }
    }

    fn turn(&mut self, console: &Console) -> Result<Option<Instant>> {
        self.worker.print_messages(console);
        let newer = "an agent of a newer version of sidewalk sends records that are left out";
        if self.has_newer && self.seen_notes.insert(newer.to_owned()) {
            console.warning(newer);
        }
        let now = now()?;
        let settle = nanoseconds(SETTLE.min(self.every / 2));
        if now.time_ns >= self.cutter.end_ns().saturating_add(settle) {
            self.cut(now, console);
        }
        let cut_ns = self.cutter.end_ns().saturating_add(settle);
        let left = Duration::from_nanos(cut_ns.saturating_sub(now.time_ns));
        Ok(Instant::now().checked_add(left))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads both clocks.
fn now() -> Result<ClockReading> {
    Ok(ClockReading {
        time_ns: kernel_ns(ClockId::Monotonic)?,
        unix_ns: kernel_ns(ClockId::Realtime)?,
    })
}
