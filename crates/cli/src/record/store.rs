//! Place of a recording's blocks: one file, or one for each interval.
//!
//! Invariant: all that can be checked is checked before a command starts.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::metrics::MetricsServer;
use super::pushes::PushPlan;
use super::rotation::Rotation;
use super::signals::Signals;
use super::sink::{BlockSink, Sink};
use super::unrecorded::UnrecordedProcesses;
use super::worker::IntervalOutputs;
use super::{final_path, finish, make_sink, nothing_recorded};
use crate::args::RecordArgs;
use crate::console::Console;
use crate::output::{Destination, OutputKind, folder_of};

/// Intervals that have not begun.
pub(super) struct Prepared {
    every: Duration,
    /// The folder of temporary files, which can be written.
    folder: PathBuf,
    /// `None` once the first interval has begun.
    pushes: Option<PushPlan>,
    /// Listens already, until the first interval has begun.
    metrics: Option<TcpListener>,
}

/// Facts about a recording that has ended.
pub(super) struct RecordingEnd<'a> {
    /// The default name of its file.
    pub(super) name: &'a str,
    /// Number of processes that connected.
    pub(super) processes: u32,
    pub(super) unrecorded: &'a UnrecordedProcesses,
}

/// The place of what is recorded: one file, or one for each interval.
#[expect(clippy::large_enum_variant, reason = "there is one")]
pub(super) enum Store {
    Whole(Sink),
    /// Intervals before they begin.
    Prepared(Prepared),
    Intervals(Rotation),
}

/// Checks that the outputs can be written.
pub(super) fn check_outputs(args: &RecordArgs) -> Result<()> {
    for output in &args.outputs {
        match args.every() {
            None => output.check_writable()?,
            Some(_) => output.stamped_with("0").check_writable()?,
        }
    }
    Ok(())
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("cannot listen at {address} (--metrics)"))
}

impl Store {
    /// Checks and prepares the place before a command starts.
    pub(super) fn prepare(args: &RecordArgs) -> Result<Store> {
        let sink = make_sink(args)?;
        Ok(match args.every() {
            None => Store::Whole(sink),
            Some(every) => Store::Prepared(Prepared {
                every,
                folder: folder_of(sink.path()).to_owned(),
                pushes: Some(PushPlan::check(args)?),
                metrics: args.metrics.map(listen).transpose()?,
            }),
        })
    }

    /// Gives the recording its final name, or begins the first interval.
    pub(super) fn begin(&mut self, args: &RecordArgs, name: &str, console: &Console) {
        let begun = match self {
            Store::Whole(sink) => match final_path(args, name) {
                None => Ok(()),
                Some(path) => path.and_then(|path| sink.keep_as(&path)),
            },
            Store::Prepared(prepared) => {
                let mut files = args.outputs.clone();
                if files.is_empty() && args.pushes.is_empty() {
                    files.push(Destination {
                        path: prepared.folder.join(name),
                        kind: OutputKind::Recording,
                    });
                }
                let plan = prepared.pushes.take().unwrap_or_default();
                let pushes = plan.start(name.trim_end_matches(".swk"));
                let metrics = prepared.metrics.take();
                pushes
                    .and_then(|pushes| {
                        let metrics = metrics
                            .map(|listener| MetricsServer::start(listener, pushes.watches()))
                            .transpose()?;
                        let outputs = IntervalOutputs {
                            files,
                            pushes,
                            metrics,
                        };
                        Rotation::begin(prepared.every, &prepared.folder, outputs)
                    })
                    .map(|rotation| *self = Store::Intervals(rotation))
            }
            Store::Intervals(_) => Ok(()),
        };
        if let Err(error) = begun {
            console.warning(format_args!("{error:#}"));
        }
    }

    pub(super) fn blocks(&mut self) -> Result<&mut dyn BlockSink> {
        match self {
            Store::Whole(sink) => Ok(sink),
            Store::Intervals(rotation) => Ok(rotation),
            Store::Prepared(_) => bail!("nothing was recorded: the first interval did not begin"),
        }
    }

    /// Writes the outputs, or the rest of them.
    pub(super) fn finish(
        self,
        args: &RecordArgs,
        end: &RecordingEnd<'_>,
        signals: &Signals,
        console: &Console,
    ) -> Result<()> {
        match self {
            Store::Whole(sink) => finish(args, sink, end, signals, console),
            Store::Intervals(rotation) => {
                for text in end.unrecorded.texts() {
                    console.warning(text);
                }
                match rotation.finish(console) {
                    Ok(0) => Err(nothing_recorded(end.processes, end.unrecorded)),
                    other => other.map(|_| ()),
                }
            }
            Store::Prepared(_) => Ok(()),
        }
    }

    pub(super) fn discard(self) {
        if let Store::Whole(sink) = self {
            sink.discard();
        }
    }

    pub(super) fn discard_empty(self) {
        match self {
            Store::Whole(sink) if sink.has_blocks() => {}
            store => store.discard(),
        }
    }
}
