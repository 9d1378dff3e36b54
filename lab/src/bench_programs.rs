//! Cost of recording programs that are not loops: part of `cargo xtask bench`.
//!
//! A compiler run, threads made and joined, code made while the program runs, threads that sleep;
//! each watched in several ways ([`Observer`]), in turn, round after round. What counts is the
//! median of the ratios to the bare run of the same round, with the quarters as spread. Invariant:
//! every run prints the same results as the first bare one, or the bench ends with an error.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use testkit::Runtime;

use crate::bench::median;
use crate::bench_ways::Observer;

/// A program and how it is run.
pub(crate) struct BenchProgram {
    /// Its row.
    pub(crate) row: &'static str,
    workload: &'static str,
    arguments: &'static [&'static str],
    /// Name of its unit of work, and of the number that it prints: added CPU time is given for
    /// each.
    each: Option<(&'static str, &'static str)>,
    ways: &'static [Observer],
}

const COMPILER: &[Observer] = &[
    Observer::None,
    Observer::NoneAgain,
    Observer::EmptyProfiler,
    Observer::Sidewalk("-F 99"),
    Observer::Sidewalk("-F 99 --engine timer"),
    Observer::Sidewalk("-F 99 --engine perf"),
    Observer::Sidewalk("-F 999"),
    Observer::Sidewalk("-F 99 -e wall"),
    // Nothing is sampled: what the callbacks cost.
    Observer::Sidewalk("-e exception"),
    Observer::EventPipe,
    Observer::Perf,
];
const CHURN: &[Observer] = &[
    Observer::None,
    Observer::NoneAgain,
    Observer::EmptyProfiler,
    Observer::Sidewalk("-F 99"),
    Observer::Sidewalk("-F 999"),
    Observer::Sidewalk("-e exception"),
    Observer::EventPipe,
    Observer::Perf,
];
/// With and without chains of async methods.
const CHAINS: &[Observer] = &[
    Observer::None,
    Observer::NoneAgain,
    Observer::Sidewalk("-F 99 --no-async-stacks"),
    Observer::Sidewalk("-F 99"),
    Observer::Sidewalk("-F 999 --no-async-stacks"),
    Observer::Sidewalk("-F 999"),
];
/// The same where hardly a sample is due: what being told that the runtime stops costs.
const SUSPENDS: &[Observer] = &[
    Observer::None,
    Observer::NoneAgain,
    Observer::Sidewalk("-F 1 --no-async-stacks"),
    Observer::Sidewalk("-F 1"),
];
const METHOD: Option<(&str, &str)> = Some(("jitted", "method"));

/// The programs that end by themselves.
pub(crate) const PROGRAMS: [BenchProgram; 9] = [
    BenchProgram {
        row: "roslyn",
        workload: "roslyn",
        arguments: &["rounds=1"],
        each: METHOD,
        ways: COMPILER,
    },
    BenchProgram {
        row: "threadchurn",
        workload: "threadchurn",
        arguments: &["rounds=400"],
        each: Some(("threads", "thread")),
        ways: CHURN,
    },
    churn("jitchurn expressions", &["rounds=1600", "only=expressions"]),
    churn("jitchurn dynamic", &["rounds=3000", "only=dynamic"]),
    churn("jitchurn regex", &["rounds=15", "only=regex"]),
    churn("jitchurn generics", &["rounds=25", "only=generics"]),
    churn("jitchurn contexts", &["rounds=40", "only=contexts"]),
    BenchProgram {
        row: "chains asyncchains",
        workload: "asyncchains",
        arguments: &["rounds=80"],
        each: None,
        ways: CHAINS,
    },
    BenchProgram {
        row: "chains collections",
        workload: "pauses",
        arguments: &["alone", "rounds=20000"],
        each: Some(("collections", "collection")),
        ways: SUSPENDS,
    },
];

const fn churn(row: &'static str, arguments: &'static [&'static str]) -> BenchProgram {
    BenchProgram {
        row,
        workload: "jitchurn",
        arguments,
        each: METHOD,
        ways: CHURN,
    }
}

impl BenchProgram {
    /// Whether it can run on a runtime.
    pub(crate) fn runs_on(&self, runtime: &Runtime) -> bool {
        testkit::Workload::at(self.workload).runs_on(runtime)
    }
}

/// A median with its quarters.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    low: f64,
    high: f64,
}

impl Spread {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let at = |share: usize| {
            let index = (values.len().saturating_sub(1) * share + 2) / 4;
            values.get(index).copied().unwrap_or(f64::NAN)
        };
        Spread {
            median: median(values.iter().copied()),
            low: at(1),
            high: at(3),
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3}× ({:.2}–{:.2})", self.median, self.low, self.high)
    }
}

/// A ratio that the page leads with.
pub(crate) struct Headline {
    pub(crate) what: String,
    pub(crate) cpu: Spread,
    pub(crate) wall: Option<Spread>,
}

/// One run.
struct WatchedRun {
    measured: HashMap<String, f64>,
    /// CPU time of everything that was started, in milliseconds.
    all_ms: f64,
}

impl WatchedRun {
    fn get(&self, name: &str) -> f64 {
        self.measured.get(name).copied().unwrap_or(f64::NAN)
    }

    /// The program's own CPU time, its start included.
    fn cpu_ms(&self) -> f64 {
        self.get("start_cpu_ms") + self.get("cpu_ms")
    }
}

/// Runs a workload once, and holds its `result` lines against those of the first run.
fn watch(mut command: Command, results: &mut Option<String>) -> Result<WatchedRun> {
    let before = children_ms()?;
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let all_ms = children_ms()? - before;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = |key: &'static str| {
        text.lines()
            .filter_map(move |line| line.strip_prefix(key)?.strip_prefix(' '))
    };
    let found = lines("result").collect::<Vec<_>>().join("\n");
    let known = results.get_or_insert_with(|| found.clone());
    ensure!(
        *known == found,
        "{command:?} printed other results:\n{found}\nnot\n{known}"
    );
    let measured = lines("measured")
        .filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect();
    Ok(WatchedRun { measured, all_ms })
}

/// CPU time of all children that have ended, theirs included.
fn children_ms() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // After the name in brackets, which may hold anything: state is field 3, cutime 16, cstime 17.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .context("/proc/self/stat names no program")?
        .1
        .split_whitespace()
        .collect();
    let ticks = |at: usize| {
        fields
            .get(at - 3)
            .and_then(|field| field.parse::<f64>().ok())
    };
    let (user, system) = ticks(16)
        .zip(ticks(17))
        .context("/proc/self/stat is short")?;
    // USER_HZ is 100 on every Linux on this processor.
    Ok((user + system) * 10.0)
}

/// Runs one program in all its ways on a runtime; the table's rows as text, and what the page may
/// lead with.
pub(crate) fn measure(
    runtime: &Runtime,
    program: &BenchProgram,
    pairs: usize,
    folder: &Path,
    lead: &mut Vec<Headline>,
) -> Result<String> {
    let workload = testkit::workload(program.workload);
    let ways: Vec<Observer> = (program.ways.iter().copied())
        .filter(|way| way.missing().is_none())
        .collect();
    let mut runs: Vec<Vec<WatchedRun>> = ways.iter().map(|_| Vec::new()).collect();
    let mut results = None;
    for number in 0..pairs {
        eprintln!(
            "{} on {}: round {} of {pairs}",
            program.row,
            runtime.version,
            number + 1
        );
        // The order changes, so that none always finds the same machine.
        for step in 0..ways.len() {
            let at = (step + number) % ways.len();
            let mut command = ways[at].command(runtime, &workload.dll, folder);
            command.args(program.arguments);
            runs[at].push(watch(command, &mut results)?);
        }
    }
    let mut out = String::new();
    for (way, own) in ways.iter().zip(&runs) {
        let ratio = |of: fn(&WatchedRun) -> f64| {
            Spread::of(
                own.iter()
                    .zip(&runs[0])
                    .map(|(with, bare)| of(with) / of(bare)),
            )
        };
        let (cpu, all) = (ratio(WatchedRun::cpu_ms), ratio(|run| run.all_ms));
        let wall = ratio(|run| run.get("wall_ms"));
        let each = program.each.map_or(String::new(), |(count, name)| {
            let added = own.iter().zip(&runs[0]);
            let us =
                median(added.map(|(with, bare)| {
                    (with.cpu_ms() - bare.cpu_ms()) * 1000.0 / bare.get(count)
                }));
            if us.is_finite() && *way != Observer::None {
                format!("{us:+.1} µs a {name}")
            } else {
                let of = median(own.iter().map(|run| run.get(count)));
                format!("{of:.0} {name}s")
            }
        });
        if *way == Observer::None {
            let cpu = median(own.iter().map(WatchedRun::cpu_ms));
            let wall = median(own.iter().map(|run| run.get("wall_ms")));
            let _ = writeln!(
                out,
                "| {} | {} | none | {cpu:.0} ms | | {wall:.0} ms | {each} |",
                program.row, runtime.version
            );
        } else {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {cpu} | {all} | {wall} | {each} |",
                program.row,
                runtime.version,
                way.name()
            );
        }
        if matches!(way, Observer::Sidewalk(_)) {
            lead.push(Headline {
                what: format!("{} on {}, {}", program.row, runtime.version, way.name()),
                cpu,
                wall: Some(wall),
            });
        }
    }
    for way in program.ways {
        if let Some(why) = way.missing() {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {why} | | | |",
                program.row,
                runtime.version,
                way.name()
            );
        }
    }
    Ok(out)
}

/// Head of the table of [`measure`].
pub(crate) const HEAD: &str = "\nPrograms that are not loops, watched in several ways in turn: ratios to the bare run of the same round, the median and \
     the middle half. CPU time is the program's own with its start, the agent's thread included; with the tool is all that was \
     started. What is added is CPU time of the program, by the number of methods that were JITted or of threads that were made.\n\n\
     | program | .NET | watched by | CPU time | with the tool | time | added |\n\
     | --- | --- | --- | --: | --: | --: | --: |\n";

/// How programs that only sleep are watched.
const IDLE: &[Observer] = &[
    Observer::None,
    Observer::Sidewalk("-F 99"),
    Observer::Sidewalk("-F 99 -e wall"),
    Observer::Sidewalk("-F 999 -e wall"),
    Observer::EventPipe,
    Observer::Perf,
];

/// Share of a processor that sleeping programs take: one thread, and 1,000.
pub(crate) fn idle(runtime: &Runtime, pairs: usize, seconds: f64, folder: &Path) -> Result<String> {
    let workload = testkit::workload("idlethreads");
    let mut out = String::new();
    for threads in [1, 1000] {
        for way in IDLE {
            if let Some(why) = way.missing() {
                let _ = writeln!(
                    out,
                    "| {threads} | {} | {} | {why} |",
                    runtime.version,
                    way.name()
                );
                continue;
            }
            eprintln!(
                "{threads} idle threads on {}, {}",
                runtime.version,
                way.name()
            );
            let mut percents = Vec::new();
            for _ in 0..pairs {
                let mut command = way.command(runtime, &workload.dll, folder);
                command
                    .arg(seconds.to_string())
                    .arg(format!("threads={threads}"));
                let run = watch(command, &mut None)?;
                percents.push(run.get("idle_cpu_ms") * 100.0 / run.get("idle_ms"));
            }
            let least = percents.iter().copied().fold(f64::INFINITY, f64::min);
            let most = percents.iter().copied().fold(0.0, f64::max);
            let _ = writeln!(
                out,
                "| {threads} | {} | {} | {:.2} % ({least:.2}–{most:.2}) |",
                runtime.version,
                way.name(),
                median(percents.iter().copied())
            );
        }
    }
    Ok(out)
}

/// Head of the table of [`idle`].
pub(crate) const IDLE_HEAD: &str = "\nPrograms that sleep: CPU time of the process by the wall clock, the median, least and most.\n\n\
     | threads | .NET | watched by | of a processor |\n\
     | --: | --- | --- | --: |\n";
