//! Cost of recording, by switching it on and off in one process: part of `cargo xtask bench`.
//!
//! The same process under the same load, recorded for a moment and left alone for a moment, in
//! turn: what one start of a program has over another (where its code came to lie, what was
//! compiled when) is in none of the ratios, and what the machine does hits both moments of a pair
//! alike. Not in it: what starting with a profiler costs, and the attach itself, which is told
//! apart. Invariant: the load checks every answer, and every recording has samples, or the bench
//! ends with an error.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use testkit::{Inspected, Runtime, Workload, sidewalk};

use crate::bench_perf::PerfSession;
use crate::bench_programs::{Headline, Spread};
use crate::bench_server::BenchServer;
use crate::bench_ways::Observer;

/// Options that are switched on; `None` is the noise.
const SWITCHED: [Option<&str>; 6] = [
    None,
    Some("-F 99"),
    Some("-F 999"),
    Some("-F 999 --engine clocks"),
    Some("-F 99 -e wall"),
    Some("-F 99 -e cpu,exception,alloc,contention,gc"),
];

/// How long a moment is: what the begin of a session costs (some 20 ms for its names and classes)
/// is little beside it, and some of a compiler's rounds, of which only whole ones count, are in it.
const MOMENT: Duration = Duration::from_secs(8);
/// An attach takes some milliseconds; this is far beyond.
const ATTACH_TIME: Duration = Duration::from_secs(20);

/// A process that works all the time, and what a piece of its work costs.
trait Worker {
    fn pid(&self) -> u32;
    /// CPU time of a piece of work, microseconds, measured for a moment from now on.
    fn measure(&self) -> Result<f64>;
}

impl Worker for BenchServer {
    fn pid(&self) -> u32 {
        BenchServer::pid(self)
    }

    fn measure(&self) -> Result<f64> {
        let burst = self.burst(MOMENT)?;
        Ok(burst.cpu_us / burst.requests)
    }
}

/// The compiler, which compiles the same program again and again.
struct Compiler {
    child: Child,
    /// When each round ended, and the CPU time of the process until then, microseconds.
    rounds: Arc<Mutex<Vec<(Instant, f64)>>>,
}

impl Compiler {
    fn start(runtime: &Runtime) -> Result<Compiler> {
        let workload = testkit::workload("roslyn");
        let mut command = runtime.command(&workload.dll);
        command.args(["100000", "files=2", "tell"]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        let output = child.stdout.take().context("the compiler has no output")?;
        let rounds = Arc::new(Mutex::new(Vec::new()));
        let finished = Arc::clone(&rounds);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let us = line.strip_prefix("round ").and_then(|us| us.parse().ok());
                if let Some(us) = us {
                    let mut finished = finished.lock().unwrap_or_else(PoisonError::into_inner);
                    finished.push((Instant::now(), us));
                }
            }
        });
        let compiler = Compiler { child, rounds };
        // Compiled anew by then, all that is hot.
        let deadline = Instant::now() + Duration::from_secs(60);
        while compiler.finished_rounds() < 12 {
            ensure!(Instant::now() < deadline, "the compiler does not come on");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(compiler)
    }

    fn finished_rounds(&self) -> usize {
        self.rounds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }
}

impl Worker for Compiler {
    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn measure(&self) -> Result<f64> {
        let start = Instant::now();
        std::thread::sleep(MOMENT);
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let mut whole = rounds.iter().filter(|(ended, _)| *ended >= start);
        let (Some(first), Some(last)) = (whole.next(), rounds.last()) else {
            bail!("no round of the compiler ended in {MOMENT:?}");
        };
        let count = rounds.iter().filter(|(ended, _)| *ended > first.0).count();
        ensure!(count > 0, "one round of the compiler in {MOMENT:?}");
        #[expect(clippy::cast_precision_loss, reason = "some dozens")]
        Ok((last.1 - first.1) / count as f64)
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// How it is measured.
#[derive(Clone, Copy)]
pub(crate) struct SwitchOptions {
    /// Moments with and without, of each way.
    pub(crate) pairs: usize,
    /// perf samples each moment of a pair too: for a machine that others use.
    pub(crate) perf: bool,
}

/// Measurements of a moment.
#[derive(Clone, Copy)]
struct MomentMeasure {
    /// CPU time of a piece of work, microseconds.
    cost: f64,
    /// All samples of perf ÷ those in managed code, where it took any.
    by_perf: Option<f64>,
}

fn moment(worker: &dyn Worker, how: SwitchOptions, folder: &Path) -> Result<MomentMeasure> {
    let watched = how
        .perf
        .then(|| PerfSession::start(worker.pid(), MOMENT, folder))
        .transpose()?;
    let cost = worker.measure()?;
    let by_perf = watched.map(PerfSession::end).transpose()?;
    Ok(MomentMeasure { cost, by_perf })
}

/// A recording of a process that runs, under way.
struct Recording {
    tool: Child,
    file: PathBuf,
    /// From the start of the tool until the agent had said yes.
    attached_ms: f64,
}

impl Recording {
    fn start(pid: u32, options: &str, file: PathBuf) -> Result<Recording> {
        let _old = fs::remove_file(&file);
        let mut command = Command::new(sidewalk());
        command
            .args(["record", "--quiet", "--stay", "--pid", &pid.to_string()])
            .args(options.split(' '))
            .arg("-o")
            .arg(&file)
            .stdin(Stdio::null());
        let start = Instant::now();
        let mut tool = command
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        // The file gets its name when the agent has said yes.
        while !file.exists() {
            if let Some(status) = tool.try_wait()? {
                bail!("{command:?} ended with {status}");
            }
            if start.elapsed() > ATTACH_TIME {
                let _ended = tool.kill();
                bail!("{command:?} did not begin within {ATTACH_TIME:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Recording {
            tool,
            file,
            attached_ms: start.elapsed().as_secs_f64() * 1e3,
        })
    }

    fn stop(mut self) -> Result<()> {
        let pid = Pid::from_child(&self.tool);
        // Not an interrupt: a shell has that ignored in what it runs in the background.
        kill_process(pid, Signal::TERM)?;
        let status = self.tool.wait()?;
        ensure!(status.success(), "a recording ended with {status}");
        let inspected = Inspected::of(&self.file);
        ensure!(
            inspected.number("samples") > 0.0,
            "a recording without a sample"
        );
        Ok(())
    }
}

/// The rows of one runtime as text, and what the page may lead with.
pub(crate) fn measure(
    runtime: &Runtime,
    how: SwitchOptions,
    folder: &Path,
    lead: &mut Vec<Headline>,
) -> Result<String> {
    let mut out = String::new();
    if Workload::at("webserver").runs_on(runtime) {
        let [one, other] = [(); 2].map(|()| BenchServer::start(runtime, Observer::None, folder));
        let (one, other) = (one?, other?);
        one.warm_up()?;
        other.warm_up()?;
        out += &measure_pair(
            runtime,
            "webserver, a request",
            (&one, &other),
            how,
            folder,
            lead,
        )?;
        one.stop();
        other.stop();
    }
    if Workload::at("roslyn").runs_on(runtime) {
        let (one, other) = (Compiler::start(runtime)?, Compiler::start(runtime)?);
        // Two compilers are never measured at once, but both run: on two cores each has one.
        out += &measure_pair(
            runtime,
            "roslyn, a compilation",
            (&one, &other),
            how,
            folder,
            lead,
        )?;
    }
    Ok(out)
}

fn measure_pair(
    runtime: &Runtime,
    what: &str,
    (worker, other): (&dyn Worker, &dyn Worker),
    how: SwitchOptions,
    folder: &Path,
    lead: &mut Vec<Headline>,
) -> Result<String> {
    let pairs = how.pairs;
    let mut out = String::new();
    let file = folder.join(format!("switch-{}.swk", runtime.version));
    let beside = || -> Result<f64> { Ok(worker.measure()? / other.measure()?) };
    let mut before = Vec::new();
    for _ in 0..pairs {
        before.push(beside()?);
    }
    let mut attached = Vec::new();
    for options in SWITCHED {
        let mut ratios = Vec::new();
        let mut by_perf = Vec::new();
        let mut bare = Vec::new();
        for number in 0..pairs {
            let name = options.unwrap_or("none, none again");
            eprintln!(
                "{what} on {}: {name}, pair {} of {pairs}",
                runtime.version,
                number + 1
            );
            let without = || moment(worker, how, folder);
            let with = || -> Result<(MomentMeasure, f64)> {
                let Some(options) = options else {
                    return Ok((without()?, 0.0));
                };
                let recording = Recording::start(worker.pid(), options, file.clone())?;
                let measured = without();
                let took = recording.attached_ms;
                recording.stop()?;
                Ok((measured?, took))
            };
            let (off, (on, took)) = if number.is_multiple_of(2) {
                let off = without()?;
                (off, with()?)
            } else {
                let on = with()?;
                (without()?, on)
            };
            ratios.push(on.cost / off.cost);
            let both = on.by_perf.zip(off.by_perf);
            by_perf.extend(both.map(|(on, off)| on / off));
            bare.push(off.cost);
            if options.is_some() {
                attached.push(took);
            }
        }
        let ratio = Spread::of(ratios.into_iter());
        let by_perf = match by_perf.is_empty() {
            true => String::new(),
            false => Spread::of(by_perf.into_iter()).to_string(),
        };
        let row = format!(
            "| {what} | {} | {} | {:.1} µs | {ratio} | {by_perf} |\n",
            runtime.version,
            options.unwrap_or("none, none again"),
            Spread::of(bare.into_iter()).median,
        );
        // Said now too: what follows may be cut off.
        eprint!("{row}");
        out += &row;
        if let Some(options) = options {
            lead.push(Headline {
                what: format!("{what} on {}, switched on: {options}", runtime.version),
                cpu: ratio,
                wall: None,
            });
        }
    }
    // The agent is in one of the two now, and does nothing.
    let mut after = Vec::new();
    for _ in 0..pairs {
        after.push(beside()?);
    }
    let (before, after) = (
        Spread::of(before.into_iter()),
        Spread::of(after.into_iter()),
    );
    let first = attached.first().copied().unwrap_or(f64::NAN);
    let again = Spread::of(attached.into_iter().skip(1));
    let _ = writeln!(
        out,
        "| {what} | {} | idle agent, to a process without one | | {:.3}× (before it came {:.3}×) | |\n\
         | {what} | {} | until the agent has said yes, milliseconds: the first time {first:.0}, then | | {:.0} | |",
        runtime.version,
        after.median / before.median,
        before.median,
        runtime.version,
        again.median,
    );
    Ok(out)
}

/// Head of the table of [`measure`].
pub(crate) const HEAD: &str = "\nRecording switched on and off in one process under load (`record --pid --stay`), moment by moment: CPU time of a \
     piece of work with it by that without it just before or after. No noise of one start against another is in it. By perf \
     (`--perf`): the ratio of all its samples ÷ those in managed code.\n\n\
     | work | .NET | switched on | CPU time without | ratio | by perf |\n\
     | --- | --- | --- | --: | --: | --: |\n";
