//! Cost of a traced call: part of `cargo xtask bench`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testkit::{Machine, ProgramOutput, Recorder, Runtime, output_in_time, target_dir};

use crate::bench::median;
use xtask::build::cargo;

/// The method that `calls` times: empty, in a loop.
const METHOD: &str = "Workloads.Calls.Empty";
/// How often it does so.
const CALLS: u64 = 2_000_000;
/// Another one of its type.
const OTHER: &str = "Workloads.Calls.Time";

/// How probes can be called, as corprof's example `counts` names it, and what that is.
const WAYS: [(&str, &str); 4] = [
    (
        "c",
        "as any native function, leaving managed code, as `--trace` does",
    ),
    (
        "no-transition",
        "as a native function that managed code is not left for (.NET 6 on)",
    ),
    (
        "managed",
        "as a managed method, which nobody promises to work",
    ),
    (
        "count-only",
        "nothing is called: the code adds to a number, and loses counts where threads meet",
    ),
];

/// Runs `calls` bare, with another method traced, with its method traced, and under the example in
/// each way, in turn; the program itself says what a call takes.
pub(crate) fn table(runtimes: &[Runtime], pairs: usize) -> Result<String> {
    let example = example()?;
    let mut out = String::from(
        "\nWhat a call of a traced method costs, by the program's own clock: a call of an empty method, best of 20 rounds of 100,000, median\n\
         of the runs, in nanoseconds. An untraced method is measured while another one of its type is traced. Beside `--trace`, which reads a\n\
         clock twice and keeps a histogram, the ways in which code can call what counts, by a profiler that does nothing but three\n\
         additions (corprof's example `counts`); all is added to the bare call.\n\n",
    );
    for (way, what) in WAYS {
        let _ = writeln!(out, "- {way}: {what}.");
    }
    out.push_str(
        "\n| .NET | bare | untraced | + `--trace` | + c | + no-transition | + managed | + count-only |\n\
         | --- | --: | --: | --: | --: | --: | --: | --: |\n",
    );
    for runtime in runtimes {
        let record = || Recorder::workload(runtime, "calls", &["rounds=1"]);
        // Without samples of time: they would be measured too.
        let traced = |pattern: &str| {
            let options = ["-e", "gc", "--trace", &format!("{pattern}:1h")];
            ns(&record().options(options).run().answer)
        };
        let [mut bare, mut untraced, mut with] = [(); 3].map(|()| Vec::new());
        let mut ways = WAYS.map(|(way, _)| (way, Vec::new()));
        for _ in 0..pairs.max(1) {
            bare.push(ns(&record().run_bare())?);
            untraced.push(traced(OTHER)?);
            with.push(traced(METHOD)?);
            for (way, found) in &mut ways {
                if *way != "no-transition" || !runtime.is_core31() {
                    found.push(counted(&example, &record(), way)?);
                }
            }
        }
        let [bare, untraced, with] = [bare, untraced, with].map(|ns| median(ns.into_iter()));
        let (version, added) = (&runtime.version, with - bare);
        let _ = write!(out, "| {version} | {bare:.1} | {untraced:.1} | {added:.1}");
        for (_, found) in ways {
            let _ = match found.is_empty() {
                true => write!(out, " | –"),
                false => write!(out, " | {:.1}", median(found.into_iter()) - bare),
            };
        }
        out.push_str(" |\n");
    }
    Ok(out)
}

/// The example as a library.
fn example() -> Result<PathBuf> {
    let built = cargo(&["build", "--release", "-p", "corprof", "--example", "counts"]).status()?;
    ensure!(built.success(), "corprof's example was not built");
    Ok(target_dir().join("release/examples/libcounts.so"))
}

/// A run under the example, which counts the method in one way.
fn counted(example: &Path, record: &Recorder, way: &str) -> Result<f64> {
    let counts = target_dir().join("bench/counts.txt");
    // Of an earlier run.
    fs::remove_file(&counts).ok();
    let mut command = record.bare();
    command
        .env("CORECLR_ENABLE_PROFILING", "1")
        .env("CORECLR_PROFILER", "{DB64E7B8-0E80-4F2E-9E87-6B0C2FB6DA21}")
        .env("CORECLR_PROFILER_PATH", example)
        .env("COUNTS_MODULE", "calls.dll")
        .env("COUNTS_METHOD", METHOD)
        .env("COUNTS_OUT", &counts)
        .env("COUNTS_CALL", way);
    let machine = Machine::exclusive();
    let output = output_in_time(&mut command);
    drop(machine);
    let counts_text = fs::read_to_string(&counts)?;
    let of_method = counts_text.lines().find(|line| line.contains(METHOD));
    let calls = of_method.and_then(|line| line.split(' ').nth(2)?.parse().ok());
    let calls: u64 =
        calls.with_context(|| format!("nothing was counted by {way}:\n{counts_text}"))?;
    ensure!(calls >= CALLS, "{way} counted {calls} of {CALLS} calls");
    ns(&ProgramOutput {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// The program's own measurements.
fn ns(answer: &ProgramOutput) -> Result<f64> {
    let mut lines = answer.lines("measured").into_iter();
    let line = lines.find(|line| line.first() == Some(&"ns_per_call"));
    let number = line.and_then(|line| line.get(1).copied());
    let number = number.context("calls measured nothing")?;
    number.parse().context("calls measured no number")
}
