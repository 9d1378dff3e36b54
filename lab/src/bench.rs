//! `cargo xtask bench`: what recording costs, as ratios measured in one run.
//!
//! Not a test: nothing here fails because a number is large. A program runs
//! bare and recorded in turn, so that what the machine does meanwhile hits both
//! alike, and the median of the pairs' ratios counts.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use testkit::{Inspected, Machine, Runtime};
use xtask::build::{BuildProfile, build, cargo};
use xtask::setup;

use crate::bench_programs::{self, Headline};
use crate::{
    bench_attach, bench_events, bench_server, bench_shadow, bench_switch, bench_traced,
    bench_walkers,
};

const USAGE: &str = "usage: cargo xtask bench [--pairs N] [--seconds N] [--runtime VERSION] [--only ROW] [--perf] [--write]\n\
     rows: switch, attach, roslyn, threadchurn, jitchurn, idlethreads, webserver, loops, walks, chains, convert, walkers, events, shadow, traced";

/// Rows that `--only` takes.
const ROWS: [&str; 15] = [
    "switch",
    "attach",
    "roslyn",
    "threadchurn",
    "jitchurn",
    "idlethreads",
    "webserver",
    "loops",
    "walks",
    "chains",
    "convert",
    "walkers",
    "events",
    "shadow",
    "traced",
];

/// Rates at which each program is recorded, Hz.
const FREQUENCIES: [u32; 2] = [99, 999];

/// Programs of different kinds: loops, short calls, allocation, mixed stacks,
/// many methods at once.
const WORKLOADS: [&str; 5] = ["shares", "leaf", "gc", "mixed", "async"];

struct BenchOptions {
    pairs: usize,
    seconds: f64,
    write: bool,
    /// The only row to measure.
    only: Option<String>,
    /// Moments of the row `switch` are sampled by perf too.
    perf: bool,
    /// The only runtime to measure on.
    runtime: Option<String>,
}

impl BenchOptions {
    /// Whether a row is to be measured; a row's name may go on behind a blank.
    fn is_wanted(&self, row: &str) -> bool {
        let group = row.split(' ').next().unwrap_or(row);
        self.only.as_deref().is_none_or(|only| only == group)
    }
}

fn options(arguments: &[&str]) -> Result<BenchOptions> {
    let mut options = BenchOptions {
        // Long enough that a millisecond of start-up, or one busy second of the machine, is not
        // what is measured: runs of 3 s scatter by 5 %.
        pairs: 5,
        seconds: 8.0,
        write: false,
        only: None,
        perf: false,
        runtime: None,
    };
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        match argument {
            "--write" => options.write = true,
            "--perf" => options.perf = true,
            "--pairs" => options.pairs = rest.next().context(USAGE)?.parse().context(USAGE)?,
            "--seconds" => options.seconds = rest.next().context(USAGE)?.parse().context(USAGE)?,
            "--only" => options.only = Some((*rest.next().context(USAGE)?).to_owned()),
            "--runtime" => options.runtime = Some((*rest.next().context(USAGE)?).to_owned()),
            _ => bail!("{USAGE}"),
        }
    }
    ensure!(options.pairs > 0, "{USAGE}");
    let known = |only: &String| ROWS.contains(&only.as_str());
    ensure!(options.only.as_ref().is_none_or(known), "{USAGE}");
    ensure!(
        !options.perf || options.only.as_deref() == Some("switch"),
        "--perf goes with --only switch: it samples its moments"
    );
    ensure!(
        !options.write || (options.only.is_none() && options.runtime.is_none()),
        "--write writes the whole page: it goes with neither --only nor --runtime"
    );
    Ok(options)
}

/// A workload's report on one of its runs.
#[derive(Clone, Copy, Default)]
pub(crate) struct RunReport {
    pub(crate) rounds: f64,
    pub(crate) wall_ms: f64,
    pub(crate) cpu_ms: f64,
    start_cpu_ms: f64,
    peak_rss_kb: f64,
}

/// One program at one frequency.
struct LoopRow {
    runtime: String,
    workload: &'static str,
    frequency: u32,
    engine: String,
    wall: f64,
    cpu: f64,
    start_ms: f64,
    rss_kb: f64,
    samples: f64,
    bytes_per_sample: f64,
    handler_ns: f64,
    agent_cpu_percent: f64,
}

/// Measures, prints, and with `--write` writes `docs/measurements/DATE-bench.md`.
pub(crate) fn run(arguments: &[&str], roots: &[PathBuf]) -> Result<()> {
    let options = options(arguments)?;
    let mut setup = crate::set_up(setup::Scope::Workloads, roots)?;
    if let Some(version) = &options.runtime {
        setup.runtimes.retain(|runtime| runtime.version == *version);
    }
    build(BuildProfile::Release, false)?;
    crate::bench_ways::build_empty_profiler()?;
    let runtime = setup
        .runtimes
        .first()
        .context("set-up found no such runtime")?;
    let folder = testkit::target_dir().join("bench");
    fs::create_dir_all(&folder)?;
    let machine = Machine::exclusive();
    let mut lead = Vec::new();
    let programs = programs(&setup.runtimes, &options, &folder, &mut lead)?;
    let mut rows = Vec::new();
    if options.is_wanted("loops") {
        for runtime in &setup.runtimes {
            for workload in WORKLOADS {
                rows.extend(measure(runtime, workload, &options, &folder)?);
            }
        }
    }
    let convert = options
        .is_wanted("convert")
        .then(|| convert(runtime, &folder))
        .transpose()?;
    let mut walks = [Vec::new(), Vec::new()];
    if options.is_wanted("walks") {
        walks[0] = own_bench("stackwalk", "walk", "walk")?;
    }
    if options.is_wanted("chains") {
        walks[1] = own_bench("agent", "chain", "chains")?;
    }
    // These cost so much that they show in short runs.
    let (pairs, seconds) = (options.pairs.min(3), options.seconds.min(3.0));
    let mut slow = String::new();
    if options.is_wanted("walkers") {
        slow += &bench_walkers::table(&setup.runtimes, seconds, &folder)?;
    }
    if options.is_wanted("events") {
        slow += &bench_events::table(&setup.runtimes, pairs, seconds, &folder)?;
    }
    if options.is_wanted("shadow") {
        slow += &bench_shadow::table(&setup.runtimes, pairs, &folder)?;
    }
    drop(machine);
    if options.is_wanted("traced") {
        // Each of its runs takes the machine for itself.
        slow += &bench_traced::table(&setup.runtimes, options.pairs)?;
    }
    let mut text = headlines(&setup.runtimes, &options, lead);
    text += &programs;
    text += &table(&rows, convert.as_ref(), &walks);
    text += &slow;
    println!("{text}");
    if options.write {
        let date = today()?;
        let path = testkit::repository().join(format!("docs/measurements/{date}-bench.md"));
        let page = format!("# `cargo xtask bench` of {date}\n\n{text}");
        fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Today's date in UTC, as `2026-11-28`.
fn today() -> Result<String> {
    let date = std::process::Command::new("date")
        .args(["-u", "+%F"])
        .output()?;
    Ok(String::from_utf8(date.stdout)?.trim().to_owned())
}

/// The programs that are not loops: their tables, and what the page may lead with.
fn programs(
    runtimes: &[Runtime],
    options: &BenchOptions,
    folder: &Path,
    lead: &mut Vec<Headline>,
) -> Result<String> {
    let mut out = String::new();
    if options.is_wanted("switch") {
        out += bench_switch::HEAD;
        let how = bench_switch::SwitchOptions {
            pairs: options.pairs,
            perf: options.perf,
        };
        for runtime in runtimes {
            out += &bench_switch::measure(runtime, how, folder, lead)?;
        }
    }
    if options.is_wanted("attach") {
        out += bench_attach::HEAD;
        for runtime in runtimes {
            out += &bench_attach::measure(runtime, folder)?;
        }
        out += bench_attach::MEMORY_HEAD;
        for runtime in runtimes {
            out += &bench_attach::memory(runtime, folder)?;
        }
    }
    let mut rows = String::new();
    for program in &bench_programs::PROGRAMS {
        for runtime in runtimes {
            if options.is_wanted(program.row) && program.runs_on(runtime) {
                rows += &bench_programs::measure(runtime, program, options.pairs, folder, lead)?;
            }
        }
    }
    if !rows.is_empty() {
        out = out + bench_programs::HEAD + &rows;
    }
    if options.is_wanted("webserver") {
        out += bench_server::HEAD;
        let web = testkit::Workload::at("webserver");
        let able = runtimes.iter().filter(|runtime| web.runs_on(runtime));
        let mut any = false;
        for runtime in able {
            any = true;
            let burst = Duration::from_secs(2);
            out += &bench_server::measure(runtime, options.pairs, burst, folder, lead)?;
        }
        if !any {
            out += "| – | no runtime with ASP.NET Core is here (`--runtimes DIR`) | | | | | | |\n";
        }
    }
    if options.is_wanted("idlethreads") {
        out += bench_programs::IDLE_HEAD;
        for runtime in runtimes {
            out += &bench_programs::idle(runtime, options.pairs.min(3), 5.0, folder)?;
        }
    }
    Ok(out)
}

/// Head of the page: how it was measured, and all our rows by their cost, the worst
/// first.
fn headlines(runtimes: &[Runtime], options: &BenchOptions, mut lead: Vec<Headline>) -> String {
    let versions: Vec<&str> = runtimes.iter().map(|r| r.version.as_str()).collect();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let mut out = format!(
        "Measured by `cargo xtask bench --pairs {} --seconds {}` on .NET {} and {cores} cores.\n",
        options.pairs,
        options.seconds,
        versions.join(", ")
    );
    lead.sort_by(|a, b| b.cpu.median.total_cmp(&a.cpu.median));
    let Some(worst) = lead.first() else {
        return out;
    };
    let _ = writeln!(
        out,
        "\nThe worst: **{}: {:.2}× CPU time**. All of ours, the dearest first; beside what others cost further down:\n\n\
         | program | CPU time | time |\n| --- | --: | --: |",
        worst.what, worst.cpu.median
    );
    for row in &lead {
        let wall = row.wall.map_or(String::new(), |wall| wall.to_string());
        let _ = writeln!(out, "| {} | {} | {wall} |", row.what, row.cpu);
    }
    out
}

fn measure(
    runtime: &Runtime,
    workload: &'static str,
    options: &BenchOptions,
    folder: &Path,
) -> Result<Vec<LoopRow>> {
    let work = work(runtime, workload, options.seconds)?;
    let recording = |hertz: u32| folder.join(format!("{workload}-{}-{hertz}.swk", runtime.version));
    let mut pairs: Vec<Vec<(RunReport, RunReport)>> = vec![Vec::new(); FREQUENCIES.len()];
    // The frequencies take turns too.
    for number in 0..options.pairs {
        for (pairs, hertz) in pairs.iter_mut().zip(FREQUENCIES) {
            let at = hertz.to_string();
            let rate = ["--engine", "auto", "--frequency", &at];
            pairs.push(pair(
                number,
                options.pairs,
                &format!("{workload} at {hertz} Hz on {}", runtime.version),
                || bare(runtime, workload, &work),
                || recorded(runtime, workload, &work, &rate, &recording(hertz)),
            )?);
        }
    }
    let mut rows = Vec::new();
    for (pairs, &hertz) in pairs.iter().zip(&FREQUENCIES) {
        let inspected = Inspected::of(&recording(hertz)).json;
        let number = |name: &str| inspected[name].as_f64().unwrap_or_default();
        let samples = number("samples");
        let bytes = fs::metadata(recording(hertz))?.len() as f64;
        rows.push(LoopRow {
            runtime: runtime.version.clone(),
            workload,
            frequency: hertz,
            engine: inspected["engine"].as_str().unwrap_or_default().to_owned(),
            wall: median(pairs.iter().map(|(a, b)| b.wall_ms / a.wall_ms)),
            cpu: median(pairs.iter().map(|(a, b)| b.cpu_ms / a.cpu_ms)),
            start_ms: median(pairs.iter().map(|(a, b)| b.start_cpu_ms - a.start_cpu_ms)),
            rss_kb: median(pairs.iter().map(|(a, b)| b.peak_rss_kb - a.peak_rss_kb)),
            samples,
            bytes_per_sample: bytes / samples,
            handler_ns: number("handler_s") * 1e9 / samples,
            agent_cpu_percent: number("agent_cpu_s") * 100.0 / number("target_cpu_s"),
        });
    }
    Ok(rows)
}

/// The argument that makes a program do as much work as fills the time when it runs bare: the same
/// in every run.
pub(crate) fn work(runtime: &Runtime, workload: &str, seconds: f64) -> Result<String> {
    let trial = bare(runtime, workload, &seconds.to_string())?;
    Ok(format!("rounds={}", trial.rounds.max(1.0)))
}

/// One of `count` pairs, the first being number 0: what ran bare, and what ran recorded.
///
/// The order changes, so that neither always finds a warm machine.
fn pair(
    number: usize,
    count: usize,
    what: &str,
    bare: impl FnOnce() -> Result<RunReport>,
    recorded: impl FnOnce() -> Result<RunReport>,
) -> Result<(RunReport, RunReport)> {
    eprintln!("{what}: pair {} of {count}", number + 1);
    if number.is_multiple_of(2) {
        Ok((bare()?, recorded()?))
    } else {
        let with = recorded()?;
        Ok((bare()?, with))
    }
}

/// So many pairs, one after the other: see [`pair`].
pub(crate) fn pairs(
    count: usize,
    what: &str,
    bare: impl Fn() -> Result<RunReport>,
    recorded: impl Fn() -> Result<RunReport>,
) -> Result<Vec<(RunReport, RunReport)>> {
    (0..count)
        .map(|number| pair(number, count, what, &bare, &recorded))
        .collect()
}

pub(crate) fn bare(runtime: &Runtime, workload: &str, argument: &str) -> Result<RunReport> {
    run_report(
        runtime
            .command(&testkit::workload(workload).dll)
            .arg(argument),
    )
}

/// Records with these options beside those that all have, into `out`.
pub(crate) fn recorded(
    runtime: &Runtime,
    workload: &str,
    argument: &str,
    options: &[&str],
    out: &Path,
) -> Result<RunReport> {
    let mut command = Command::new(testkit::sidewalk());
    command.args(["record", "--quiet"]).args(options);
    command.arg("--output").arg(out).arg("--");
    runtime.add_to(&mut command, &testkit::workload(workload).dll);
    run_report(command.arg(argument))
}

fn run_report(command: &mut Command) -> Result<RunReport> {
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let measured = |name: &str| -> Result<f64> {
        text.lines()
            .find_map(|line| {
                line.strip_prefix("measured ")?
                    .strip_prefix(name)?
                    .trim()
                    .parse()
                    .ok()
            })
            .with_context(|| format!("the workload printed no {name}"))
    };
    Ok(RunReport {
        rounds: measured("rounds ")?,
        wall_ms: measured("wall_ms ")?,
        cpu_ms: measured("cpu_ms ")?,
        start_cpu_ms: measured("start_cpu_ms ")?,
        peak_rss_kb: measured("peak_rss_kb ")?,
    })
}

/// How fast a large recording becomes each format.
struct ConvertSpeed {
    samples: f64,
    bytes: u64,
    /// Format, seconds, bytes.
    formats: Vec<(&'static str, f64, u64)>,
}

fn convert(runtime: &Runtime, folder: &Path) -> Result<ConvertSpeed> {
    let recording = folder.join("large.swk");
    eprintln!("converting");
    let rate = ["--engine", "perf", "--frequency", "10000"];
    recorded(runtime, "async", "10", &rate, &recording)?;
    let mut formats = Vec::new();
    for ending in [
        "html",
        "pb.gz",
        "speedscope.json",
        "firefox.json",
        "collapsed",
        "txt",
    ] {
        let out: PathBuf = folder.join(format!("large.{ending}"));
        let start = Instant::now();
        testkit::run_sidewalk([
            "convert".as_ref(),
            recording.as_os_str(),
            "-o".as_ref(),
            out.as_os_str(),
        ]);
        formats.push((
            ending,
            start.elapsed().as_secs_f64(),
            fs::metadata(&out)?.len(),
        ));
    }
    Ok(ConvertSpeed {
        samples: Inspected::of(&recording).number("samples"),
        bytes: fs::metadata(&recording)?.len(),
        formats,
    })
}

/// One kind of stack, walked again and again: nanoseconds.
struct WalkTimes {
    kind: String,
    frames: String,
    p50: String,
    p99: String,
    max: String,
}

/// Runs a crate's own bench, which prints `PREFIX_ns_KIND_NUMBER=VALUE`.
fn own_bench(package: &str, prefix: &str, bench: &str) -> Result<Vec<WalkTimes>> {
    eprintln!("{bench} of {package}");
    let output = cargo(&["bench", "--quiet", "--package", package, "--bench", bench])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(
        output.status.success(),
        "the bench {bench} of {package} failed ({})",
        output.status
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let prefix = format!("{prefix}_ns_");
    let values: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix)?.split_once('='))
        .collect();
    let number = |key: String| {
        values
            .iter()
            .find(|(name, _)| *name == key)
            .map(|(_, value)| (*value).to_owned())
            .with_context(|| format!("the bench {bench} of {package} printed no {prefix}{key}"))
    };
    let kinds: Vec<&str> = values
        .iter()
        .filter_map(|(key, _)| key.strip_suffix("_p50"))
        .collect();
    ensure!(
        !kinds.is_empty(),
        "the bench {bench} of {package} printed no {prefix}KIND_p50"
    );
    kinds
        .into_iter()
        .map(|kind| {
            Ok(WalkTimes {
                kind: kind.replace('_', " "),
                frames: number(format!("{kind}_frames"))?,
                p50: number(format!("{kind}_p50"))?,
                p99: number(format!("{kind}_p99"))?,
                max: number(format!("{kind}_max"))?,
            })
        })
        .collect()
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.filter(|v| v.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

fn table(rows: &[LoopRow], convert: Option<&ConvertSpeed>, walks: &[Vec<WalkTimes>; 2]) -> String {
    let mut out = String::new();
    if !rows.is_empty() {
        out += &loops(rows);
    }
    let titles = [
        "One walk, by the walker's own bench",
        "What a chain of async methods adds to a walk, by the agent's own bench; cold: all its objects and classes come from memory",
    ];
    for (title, walks) in titles.iter().zip(walks) {
        if !walks.is_empty() {
            let _ = write!(out, "\n{title}:\n\n");
            out += "| stack | frames | p50 | p99 | max |\n| --- | --: | --: | --: | --: |\n";
        }
        for row in walks {
            let _ = writeln!(
                out,
                "| {} | {} | {} ns | {} ns | {} ns |",
                row.kind, row.frames, row.p50, row.p99, row.max
            );
        }
    }
    let Some(convert) = convert else {
        return out;
    };
    let _ = writeln!(
        out,
        "\nConverting a recording of {} samples ({:.1} MiB), names and lines looked up:\n",
        convert.samples,
        convert.bytes as f64 / f64::from(1 << 20)
    );
    out += "| to | time | samples a second | size |\n| --- | --: | --: | --: |\n";
    for (format, seconds, bytes) in &convert.formats {
        let _ = writeln!(
            out,
            "| {format} | {seconds:.2} s | {:.0} | {:.1} MiB |",
            convert.samples / seconds,
            *bytes as f64 / f64::from(1 << 20)
        );
    }
    out
}

fn loops(rows: &[LoopRow]) -> String {
    let mut out = String::from("\nPrograms that loop. ");
    out += "Time is the program's own from Main on, recorded ÷ bare, the median of interleaved pairs; CPU time is the\n";
    out += "process's from Main on, the agent's thread included. Start is the CPU time that was added before Main. Memory is what\n";
    out += "the peak of resident memory grew by. Time in the handler is by the wall clock: where other programs want the\n";
    out += "processors too, it holds their turns.\n\n";
    out += "| program | .NET | Hz | engine | time | CPU time | start | memory | samples | bytes a sample | in the handler, a sample | agent's CPU |\n";
    out += "| --- | --- | --: | --- | --: | --: | --: | --: | --: | --: | --: | --: |\n";
    for row in rows {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {:.3}× | {:.3}× | {:.0} ms | {:.1} MiB | {} | {:.0} | {:.1} µs | {:.2} % |",
            row.workload,
            row.runtime,
            row.frequency,
            row.engine,
            row.wall,
            row.cpu,
            row.start_ms,
            row.rss_kb / 1024.0,
            row.samples,
            row.bytes_per_sample,
            row.handler_ns / 1000.0,
            row.agent_cpu_percent
        );
    }
    let at = |hertz: u32| {
        let of = |pick: fn(&LoopRow) -> f64| {
            median(rows.iter().filter(|r| r.frequency == hertz).map(pick))
        };
        (of(|r| r.wall), of(|r| r.cpu))
    };
    for hertz in FREQUENCIES {
        let (wall, cpu) = at(hertz);
        let _ = writeln!(
            out,
            "| **median** | | {hertz} | | **{wall:.3}×** | {cpu:.3}× | | | | | | |"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_first_changes() {
        let order = std::cell::RefCell::new(String::new());
        let run = |who: char, rounds: f64| {
            order.borrow_mut().push(who);
            Ok(RunReport {
                rounds,
                ..RunReport::default()
            })
        };
        let runs = pairs(3, "a test", || run('b', 1.0), || run('r', 2.0)).unwrap();
        assert_eq!(order.into_inner(), "brrbbr");
        assert!(runs.iter().all(|(b, r)| (b.rounds, r.rounds) == (1.0, 2.0)));
    }

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }
}
