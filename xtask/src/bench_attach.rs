//! How soon a program that runs is recorded, and how long it is kept waiting: part of `cargo xtask bench`.
//!
//! From the start of the command to the first sample, of processes with few and with many methods, the first
//! time, when the runtime has to load the agent, and again, after it has left. Beside it the longest time for
//! which a thread of the program that does nothing but look at the clock did not run, with and without an
//! attach. Not here: what recording costs (`bench_switch`). Invariant: every recording has samples.

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

/// CLOCK_MONOTONIC, as recordings have it.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Records a process for a second; milliseconds from the start of the command to the first sample.
fn first_sample(pid: u32, file: &Path) -> Result<f64> {
    let _old = fs::remove_file(file);
    let mut command = Command::new(sidewalk());
    command
        .args([
            "record",
            "--quiet",
            "-d",
            "1s",
            "--pid",
            &pid.to_string(),
            "-o",
        ])
        .arg(file)
        .stdin(Stdio::null());
    let started = now_ns();
    let status = command
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    let mut reader = Reader::open(BufReader::new(File::open(file)?))?;
    let mut first = None;
    while let Some(item) = reader.next_item()? {
        if let Item::Record(_, Record::Sample { time_ns, .. }) = item {
            first = Some(first.unwrap_or(u64::MAX).min(time_ns));
        }
    }
    let first = first.with_context(|| format!("{command:?} took no sample"))?;
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

/// What stands above the rows of [`measure`].
pub(crate) const HEAD: &str = "\nFrom the start of `record --pid` to the first sample, the agent loaded for it, and twice again after it had left; the longest time for \
     which a thread that looks at the clock did not run meanwhile, and without an attach.\n\n\
     | methods | .NET | first sample | again | longest gap | without |\n\
     | --: | --- | --: | --: | --: | --: |\n";
