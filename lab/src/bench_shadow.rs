//! Cost of a call under the walker `shadow`: part of `cargo xtask bench`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use testkit::{Inspected, Runtime};

use crate::bench::{bare, median, pairs, recorded, work};

/// Programs of many small methods, and of methods of all kinds.
const WORKLOADS: [&str; 2] = ["leaf", "calltree"];

/// How long a program runs bare: under hooks it takes many times that.
const SECONDS: f64 = 0.5;

/// Runs the programs bare and with hooks in turn, and gives the table as text.
pub(crate) fn table(runtimes: &[Runtime], pairs: usize, folder: &Path) -> Result<String> {
    let mut out = String::from(
        "\nWhat a call costs with the hooks of `--walker shadow`: the CPU time added by the number of calls counted. Code that is not\n\
         inlined any more and ReadyToRun code that is compiled anew are in it.\n\n\
         | program | .NET | clock | calls | CPU time | a call |\n\
         | --- | --- | --- | --: | --: | --: |\n",
    );
    for runtime in runtimes {
        for workload in WORKLOADS {
            for event in ["cpu", "wall"] {
                let row = measure(runtime, workload, event, pairs, folder)?;
                let _ = writeln!(
                    out,
                    "| {workload} | {} | -e {event} | {} | {:.2}\u{d7} | {:.1} ns |",
                    runtime.version, row.calls, row.cpu, row.ns_per_call
                );
            }
        }
    }
    Ok(out)
}

struct ShadowRow {
    calls: f64,
    cpu: f64,
    ns_per_call: f64,
}

fn measure(
    runtime: &Runtime,
    workload: &str,
    event: &str,
    count: usize,
    folder: &Path,
) -> Result<ShadowRow> {
    let work = work(runtime, workload, SECONDS)?;
    let recording = folder.join(format!("{workload}-shadow-{event}.swk"));
    let options = ["--walker", "shadow", "--event", event];
    let runs = pairs(
        count,
        &format!("{workload} under hooks on {}", runtime.version),
        || bare(runtime, workload, &work),
        || recorded(runtime, workload, &work, &options, &recording),
    )?;
    let calls = Inspected::of(&recording)
        .event("call")
        .and_then(|event| event["value"].as_f64())
        .context("no calls were recorded")?;
    let added_ns = median(runs.iter().map(|(a, b)| (b.cpu_ms - a.cpu_ms) * 1e6));
    Ok(ShadowRow {
        calls,
        cpu: median(runs.iter().map(|(a, b)| b.cpu_ms / a.cpu_ms)),
        ns_per_call: added_ns / calls,
    })
}
