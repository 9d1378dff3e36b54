//! Cost of the walkers that stop the runtime or ask it: part of `cargo xtask bench`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use testkit::{Costs, Inspected, Runtime};

use crate::bench::recorded;

/// One thread, several threads that allocate, threads that live for a millisecond.
const PROGRAMS: [&str; 3] = ["shares", "gc", "churn"];
const WALKERS: [&str; 2] = ["suspend", "seeded"];

/// How often a program is stopped for one row, Hz.
const FREQUENCY: &str = "99";

/// A program that compiles for ever, so that there are callbacks to walk in.
const COMPILES: &str = "collectible";
/// Walks of stopped threads for which the oracle runs it.
const WALKS: u64 = 2000;

/// Measures, and gives the tables as text.
pub(crate) fn table(runtimes: &[Runtime], seconds: f64, folder: &Path) -> Result<String> {
    let mut out = String::from(
        "\nOne synchronous walk of the same stack, in callbacks of the JIT: by `DoStackSnapshot`, which tells managed frames\n\
         alone, and by our own walk, which tells all. Means.\n\n\
         | .NET | walks | frames | DoStackSnapshot | frames, native too | our own |\n\
         | --- | --: | --: | --: | --: | --: |\n",
    );
    for runtime in runtimes {
        eprintln!("walks of {COMPILES} on {}", runtime.version);
        let Costs {
            walks,
            snapshot_frames,
            snapshot_ns,
            own_frames,
            own_ns,
        } = testkit::agree(runtime, COMPILES, WALKS, 0).costs;
        let mean = |sum: u64| sum as f64 / walks.max(1) as f64;
        let _ = writeln!(
            out,
            "| {} | {walks} | {:.1} | {:.2} \u{b5}s | {:.1} | {:.2} \u{b5}s |",
            runtime.version,
            mean(snapshot_frames),
            mean(snapshot_ns) / 1000.0,
            mean(own_frames),
            mean(own_ns) / 1000.0
        );
    }
    let _ = writeln!(
        out,
        "\nPauses by walkers that stop the runtime, at {FREQUENCY} Hz: from the wish to stop it until it stood, and how long it\n\
         stood. `seeded` waits for each thread that it has walk itself.\n\n\
         | program | .NET | walker | pauses | stopping, mean | stood, median | stood, longest |\n\
         | --- | --- | --- | --: | --: | --: | --: |"
    );
    for runtime in runtimes {
        for program in PROGRAMS {
            for walker in WALKERS {
                eprintln!("{program} --walker {walker} on {}", runtime.version);
                let recording = folder.join(format!("{program}-{walker}.swk"));
                let options = ["--walker", walker, "--frequency", FREQUENCY];
                recorded(runtime, program, &seconds.to_string(), &options, &recording)?;
                let pauses = Inspected::of(&recording).json["pauses"].clone();
                let number = |name: &str| pauses[name].as_f64().unwrap_or_default();
                let count = number("count");
                let _ = writeln!(
                    out,
                    "| {program} | {} | {walker} | {count} | {:.0} \u{b5}s | {:.0} \u{b5}s | {:.1} ms |",
                    runtime.version,
                    number("stopping_s") * 1e6 / count.max(1.0),
                    number("median_s") * 1e6,
                    number("longest_s") * 1e3
                );
            }
        }
    }
    Ok(out)
}
