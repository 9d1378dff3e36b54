//! Thread that writes the outputs of finished intervals, in order.
//!
//! Invariants: handing an interval over never waits. At most [`MAX_WAITING`] intervals wait; the
//! oldest is dropped and counted. The thread prints nothing itself: the main thread owns the
//! terminal.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use formats::OutputOptions;
use profile::Profile;
use symbolize::Symbolizer;

use super::metrics::MetricsServer;
use super::pushes::Pushes;
use super::sink::Sink;
use super::symbols;
use crate::console::{Console, escaped};
use crate::names;
use crate::output::{Destination, ExistingMode, OutputKind, write_whole};
use crate::saved;

/// Maximum number of intervals that wait for the one being written.
const MAX_WAITING: usize = 64;

/// Outputs of each interval.
pub(super) struct IntervalOutputs {
    /// Files, with the time in their names.
    pub(super) files: Vec<Destination>,
    /// Places to push to.
    pub(super) pushes: Pushes,
    /// Answers with numbers about the intervals.
    pub(super) metrics: Option<MetricsServer>,
}

/// The recording of an interval.
pub(super) struct Finished {
    pub(super) file: Sink,
    /// Its begin, in nanoseconds since 1970.
    pub(super) unix_ns: u64,
}

/// Numbers of intervals.
#[derive(Clone, Copy, Default)]
pub(super) struct Outcome {
    pub(super) written: u64,
    /// Those of which an output is missing.
    pub(super) failed: u64,
    /// Those that were dropped because outputs took too long.
    pub(super) dropped: u64,
    /// Profiles that did not arrive at the stores that they were pushed to.
    pub(super) undelivered: u64,
}

/// A message for the user.
enum Message {
    Note(String),
    Warning(String),
}

/// The thread and what waits for it.
pub(super) struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Finished>,
    is_closed: bool,
    outcome: Outcome,
    messages: Vec<Message>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next interval. `None`: there will be none.
    fn next(&self) -> Option<Finished> {
        let mut state = self.state();
        loop {
            if let Some(next) = state.waiting.pop_front() {
                return Some(next);
            }
            if state.is_closed {
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(super) fn start(outputs: IntervalOutputs) -> Result<Worker> {
        let shared = Arc::<Shared>::default();
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("outputs".into())
            .spawn(move || run(&for_thread, outputs))
            .context("cannot start a thread")?;
        Ok(Worker {
            shared,
            thread: Some(thread),
        })
    }

    /// Hands an interval over.
    pub(super) fn hand_over(&self, finished: Finished) {
        let mut state = self.shared.state();
        if state.waiting.len() >= MAX_WAITING {
            // Its file goes with it.
            state.waiting.pop_front();
            state.outcome.dropped += 1;
            if state.outcome.dropped.is_power_of_two() {
                let text = format!(
                    "outputs take longer than an interval: {} dropped so far",
                    formats::plural(state.outcome.dropped, "interval")
                );
                state.messages.push(Message::Warning(text));
            }
        }
        state.waiting.push_back(finished);
        self.shared.changed.notify_one();
    }

    /// Prints what the thread has to say.
    pub(super) fn print_messages(&self, console: &Console) {
        let messages = std::mem::take(&mut self.shared.state().messages);
        for message in messages {
            match message {
                Message::Note(text) => console.note(text),
                Message::Warning(text) => console.warning(text),
            }
        }
    }

    /// Waits until all intervals are written.
    pub(super) fn finish(mut self, console: &Console) -> Outcome {
        self.shared.state().is_closed = true;
        self.shared.changed.notify_one();
        let has_panicked = self.thread.take().is_some_and(|it| it.join().is_err());
        self.print_messages(console);
        let mut outcome = self.shared.state().outcome;
        if has_panicked {
            console.warning("internal error in sidewalk: outputs are missing");
            outcome.failed += 1;
        }
        outcome
    }
}

fn run(shared: &Shared, mut outputs: IntervalOutputs) {
    // Names that were looked up serve all intervals.
    let mut symbolizer = Symbolizer::new(names::options());
    while let Some(mut finished) = shared.next() {
        let mut messages = Vec::new();
        let written = write(&mut finished, &mut outputs, &mut symbolizer, &mut messages);
        let mut state = shared.state();
        match written {
            Ok(()) => state.outcome.written += 1,
            Err(error) => {
                state.outcome.failed += 1;
                messages.push(Message::Warning(format!("{error:#}")));
            }
        }
        state.messages.append(&mut messages);
        let outcome = state.outcome;
        drop(state);
        if let Some(metrics) = &outputs.metrics {
            metrics.update(|numbers| numbers.set_outcome(outcome));
        }
    }
    let (missing, warnings) = outputs.pushes.finish();
    let mut state = shared.state();
    state.outcome.undelivered = missing;
    state
        .messages
        .extend(warnings.into_iter().map(Message::Warning));
}

/// Writes the outputs of an interval. A failure does not prevent the other outputs.
///
/// # Errors
/// The first failure.
fn write(
    finished: &mut Finished,
    outputs: &mut IntervalOutputs,
    symbolizer: &mut Symbolizer,
    messages: &mut Vec<Message>,
) -> Result<()> {
    let file = &mut finished.file;
    symbols::append(file, symbolizer).context("cannot name native frames")?;
    let stamp = push::utc_stamp(finished.unix_ns);
    let profile = OnceCell::new();
    let profile = || match profile.get() {
        Some(profile) => Ok(profile),
        None => {
            let read = saved::read(file.path(), Some(u64::MAX))?;
            Ok(profile.get_or_init(|| profile::ops::with_runtime_work(read)))
        }
    };
    let mut first_failure = Ok(());
    let mut add = |written: Result<PathBuf>| match written {
        Ok(path) => messages.push(Message::Note(format!("wrote {}", escaped(path)))),
        Err(error) if first_failure.is_ok() => first_failure = Err(error),
        Err(error) => messages.push(Message::Warning(format!("{error:#}"))),
    };
    if let Some(metrics) = &outputs.metrics {
        match profile() {
            Ok(profile) => metrics.update(|numbers| numbers.add(profile)),
            Err(error) => add(Err(error)),
        }
    }
    for output in &outputs.files {
        let output = output.stamped_with(&stamp);
        add(write_file(&output, file.path(), &profile));
    }
    if !outputs.pushes.is_empty() {
        let pushed = profile().and_then(|profile| outputs.pushes.push(profile, finished.unix_ns));
        match pushed {
            Ok(files) => files.into_iter().for_each(|file| add(Ok(file))),
            Err(error) => add(Err(error)),
        }
        let warnings = outputs.pushes.warnings();
        messages.extend(warnings.into_iter().map(Message::Warning));
    }
    first_failure
}

/// Writes an output of an interval whose recording is at `recording`.
fn write_file<'a>(
    output: &Destination,
    recording: &Path,
    profile: &dyn Fn() -> Result<&'a Profile>,
) -> Result<PathBuf> {
    let written = match output.kind {
        OutputKind::Recording => write_whole(&output.path, ExistingMode::Replaced, |out| {
            std::io::copy(&mut File::open(recording)?, out)?;
            Ok(())
        }),
        OutputKind::Converted(format) => {
            let options = OutputOptions::default();
            profile().and_then(|profile| {
                write_whole(&output.path, ExistingMode::Kept, |out| {
                    Ok(formats::write(format, profile, &options, out)?)
                })
            })
        }
    };
    written.with_context(|| format!("cannot write {}", escaped(&output.path)))?;
    Ok(output.path.clone())
}

impl Destination {
    /// The same with a time in its path.
    pub(super) fn stamped_with(&self, stamp: &str) -> Destination {
        Destination {
            path: self.stamped(stamp),
            kind: self.kind,
        }
    }

    /// The path with a time before its ending: `app.swk` becomes `app-20261129T003407.125Z.swk`.
    pub(super) fn stamped(&self, stamp: &str) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().as_bytes();
        let (stem, ending) = name.split_at(name.len().saturating_sub(self.ending().len()));
        let stamped = [stem, b"-", stamp.as_bytes(), ending].concat();
        self.path.with_file_name(OsStr::from_bytes(&stamped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamped_paths() {
        for (path, stamped) in [
            ("x.swk", "x-T.swk"),
            ("a b/my.app.PB.GZ", "a b/my.app-T.PB.GZ"),
            ("/tmp/x.speedscope.json", "/tmp/x-T.speedscope.json"),
        ] {
            let output = Destination::parse(path.into()).unwrap();
            assert_eq!(output.stamped("T"), PathBuf::from(stamped));
        }
    }

    /// The thread is busy for as long as the test.
    #[test]
    fn of_too_many_intervals_the_oldest_are_dropped_with_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let worker = Worker {
            shared: Arc::default(),
            thread: None,
        };
        for unix_ns in 0..70 {
            let file = Sink::temporary_in(folder.path()).unwrap();
            worker.hand_over(Finished { file, unix_ns });
        }
        let files = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files, MAX_WAITING);
        let oldest = worker.shared.next().unwrap();
        assert_eq!(oldest.unix_ns, 70 - MAX_WAITING as u64);
        // Warnings at 1, 2 and 4.
        assert_eq!(worker.shared.state().messages.len(), 3);
        assert_eq!(worker.shared.state().outcome.dropped, 6);
    }
}
