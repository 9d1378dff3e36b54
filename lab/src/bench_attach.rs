//! Times of an attach: part of `cargo xtask bench`.
//!
//! Measures, for processes with few and with many methods: the time from the start of the command
//! to the first sample, for the first attach and for later ones; the longest pause of a thread that
//! only reads the clock, with and without an attach; and the memory left after a hundred attaches.
//! `bench_switch` measures the cost of recording. Invariant: every recording has samples.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use recording::{Item, Reader, Record};
use rustix::time::{ClockId, clock_gettime};
use testkit::{Running, Runtime, sidewalk, workload};

/// Methods that the process has compiled.
const METHODS: [u32; 2] = [1_000, 50_000];

/// Rounds of attaching and leaving after which memory is looked at.
const ROUNDS: [u32; 3] = [1, 10, 100];

/// CLOCK_MONOTONIC, as recordings have it.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Attaches to a process and records it for so long.
fn record(pid: u32, duration: &str, events: &str, file: &Path) -> Result<()> {
    let _old = fs::remove_file(file);
    let mut command = Command::new(sidewalk());
    command
        .args(["record", "--quiet", "-d", duration, "-e", events])
        .args(["--pid", &pid.to_string(), "-o"])
        .arg(file)
        .stdin(Stdio::null());
    let status = command
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// Records a process for a second; milliseconds from the start of the command to the first sample.
fn first_sample(pid: u32, file: &Path) -> Result<f64> {
    let started = now_ns();
    record(pid, "1s", "cpu", file)?;
    let mut reader = Reader::open(BufReader::new(File::open(file)?))?;
    let mut first = None;
    while let Some(item) = reader.next_item()? {
        if let Item::Record(_, Record::Sample { time_ns, .. }) = item {
            first = Some(first.unwrap_or(u64::MAX).min(time_ns));
        }
    }
    let first = first.context("a recording without a sample")?;
    #[expect(clippy::cast_precision_loss, reason = "shown in milliseconds")]
    Ok(first.saturating_sub(started) as f64 / 1e6)
}

/// The rows of one runtime as text.
pub(crate) fn measure(runtime: &Runtime, folder: &Path) -> Result<String> {
    let mut out = String::new();
    let file = folder.join(format!("attach-{}.swk", runtime.version));
    for methods in METHODS {
        let start = || {
            let mut command = runtime.command(&workload("manymethods").dll);
            command.args(["attached", &format!("methods={methods}")]);
            Running::start(command)
        };
        let gap_ms = |running: Running| -> Result<f64> {
            let (output, status) = running.end();
            ensure!(status.success(), "the program ended with {status}");
            let gap = output
                .lines()
                .find_map(|line| line.strip_prefix("measured longest_gap_us "));
            let us: f64 = gap.context("it measured no gap")?.parse()?;
            Ok(us / 1e3)
        };
        eprintln!("attach to {methods} methods on {}", runtime.version);
        let bare = start();
        std::thread::sleep(std::time::Duration::from_secs(4));
        let bare = gap_ms(bare)?;
        let running = start();
        let first = first_sample(running.pid(), &file)?;
        let again = [
            first_sample(running.pid(), &file)?,
            first_sample(running.pid(), &file)?,
        ];
        let gap = gap_ms(running)?;
        let [again, once_more] = again;
        let _ = writeln!(
            out,
            "| {methods} | {} | {first:.0} ms | {again:.0} and {once_more:.0} ms | {gap:.1} ms | {bare:.1} ms |",
            runtime.version,
        );
    }
    Ok(out)
}

/// Head of the table of [`measure`].
pub(crate) const HEAD: &str = "\nFrom the start of `record --pid` to the first sample, the agent loaded for it, and twice again after it had left; the longest time for \
     which a thread that looks at the clock did not run meanwhile, and without an attach.\n\n\
     | methods | .NET | first sample | again | longest gap | without |\n\
     | --: | --- | --: | --: | --: | --: |\n";

/// Resident memory of a process, MiB: its own, and pages of files, which others may have too.
fn resident(pid: u32) -> Result<[f64; 2]> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let of = |name: &str| -> Result<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next());
        Ok(kib
            .with_context(|| format!("no {name} in /proc/{pid}/status"))?
            .parse::<f64>()?
            / 1024.0)
    };
    Ok([of("RssAnon:")?, of("RssFile:")? + of("RssShmem:")?])
}

/// The row of one runtime: memory of a program whose own does not change, before any attach and
/// after some.
pub(crate) fn memory(runtime: &Runtime, folder: &Path) -> Result<String> {
    let file = folder.join(format!("rounds-{}.swk", runtime.version));
    let mut command = runtime.command(&workload("shares").dll);
    command.arg("attached");
    let running = Running::start(command);
    let mut out = format!("| {} |", runtime.version);
    let mut tell = || -> Result<()> {
        let [own, files] = resident(running.pid())?;
        let _ = write!(out, " {own:.1} + {files:.1} |");
        Ok(())
    };
    tell()?;
    eprintln!("{} attaches on {}", ROUNDS[2], runtime.version);
    for round in 1..=ROUNDS[2] {
        record(running.pid(), "50ms", "cpu,exception", &file)?;
        if ROUNDS.contains(&round) {
            tell()?;
        }
    }
    let (_, status) = running.end();
    ensure!(status.success(), "the program ended with {status}");
    out.push('\n');
    Ok(out)
}

/// Head of the table of [`memory`].
pub(crate) const MEMORY_HEAD: &str = "\nResident memory of a program whose own does not change, MiB: its own + pages of files, before an attach and after rounds of attaching, \
     recording `-e cpu,exception` for 50 ms and leaving.\n\n\
     | .NET | before | after 1 | after 10 | after 100 |\n\
     | --- | --: | --: | --: | --: |\n";
