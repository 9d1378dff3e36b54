//! Cost of an exception and of an allocation sample: part of `cargo xtask bench`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use testkit::{Inspected, Runtime};

use crate::bench::{bare, median, pairs, recorded, work};

/// A program, and what is recorded of it.
struct Case {
    workload: &'static str,
    event: &'static str,
    options: &'static [&'static str],
}

const CASES: [Case; 5] = [
    Case {
        workload: "exceptions",
        event: "exception",
        options: &["--event-limit", "0"],
    },
    Case {
        workload: "exceptions",
        event: "exception",
        options: &[],
    },
    Case {
        workload: "alloc",
        event: "alloc",
        options: &[],
    },
    Case {
        workload: "alloc",
        event: "live",
        options: &[],
    },
    // Collections all the time, of all generations: each looks at the handles.
    Case {
        workload: "gc",
        event: "live",
        options: &["--alloc-interval", "100k"],
    },
];

struct EventRow {
    wall: f64,
    cpu: f64,
    samples: f64,
    happened: f64,
    us_per_event: f64,
    us_per_sample: f64,
}

/// Runs the programs bare and recorded in turn, and gives the table as text.
pub(crate) fn table(
    runtimes: &[Runtime],
    pairs: usize,
    seconds: f64,
    folder: &Path,
) -> Result<String> {
    let mut out = String::from(
        "\nWhat events cost. Time and CPU time are recorded \u{f7} bare, as above; what an event costs is the CPU time added by\n\
         the number of events (exceptions thrown), what a sample costs the same by the number of samples taken.\n\n\
         | program | .NET | recorded | time | CPU time | events | samples | an event | a sample |\n\
         | --- | --- | --- | --: | --: | --: | --: | --: | --: |\n",
    );
    for runtime in runtimes {
        for case in &CASES {
            if case.event == "live" && runtime.is_core31() {
                // It is told to lack it.
                continue;
            }
            let row = measure(runtime, case, pairs, seconds, folder)?;
            let _ = writeln!(
                out,
                "| {} | {} | -e {} {} | {:.3}\u{d7} | {:.3}\u{d7} | {} | {} | {} | {} |",
                case.workload,
                runtime.version,
                case.event,
                case.options.join(" "),
                row.wall,
                row.cpu,
                row.happened,
                row.samples,
                microseconds(row.us_per_event),
                microseconds(row.us_per_sample),
            );
        }
    }
    Ok(out)
}

/// Microseconds, where there was something that took them.
fn microseconds(value: f64) -> String {
    match value.is_finite() {
        true => format!("{value:.2} \u{b5}s"),
        false => "\u{2013}".to_owned(),
    }
}

fn measure(
    runtime: &Runtime,
    case: &Case,
    count: usize,
    seconds: f64,
    folder: &Path,
) -> Result<EventRow> {
    let work = work(runtime, case.workload, seconds)?;
    let recording = folder.join(format!("{}-{}.swk", case.workload, case.event));
    let mut options = vec!["--event", case.event];
    options.extend(case.options);
    let runs = pairs(
        count,
        &format!("{} -e {} on {}", case.workload, case.event, runtime.version),
        || bare(runtime, case.workload, &work),
        || recorded(runtime, case.workload, &work, &options, &recording),
    )?;
    let inspected = Inspected::of(&recording);
    let event = match case.event {
        // Nothing may be alive at the end; the number of examined objects is not reported.
        "live" => &serde_json::Value::Null,
        event => inspected
            .event(event)
            .with_context(|| format!("no {event} was recorded"))?,
    };
    let number = |name: &str| event[name].as_f64().unwrap_or_default();
    let samples = number("samples");
    let happened = samples + number("limited");
    let added_us = median(runs.iter().map(|(a, b)| (b.cpu_ms - a.cpu_ms) * 1000.0));
    Ok(EventRow {
        wall: median(runs.iter().map(|(a, b)| b.wall_ms / a.wall_ms)),
        cpu: median(runs.iter().map(|(a, b)| b.cpu_ms / a.cpu_ms)),
        samples,
        happened,
        us_per_event: added_us / happened,
        us_per_sample: added_us / samples,
    })
}
