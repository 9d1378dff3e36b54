//! What a traced call costs: part of `cargo xtask bench`.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use testkit::{Answer, Record, Runtime};

use crate::bench::median;

/// The method that `calls` times: empty, in a loop.
const METHOD: &str = "Workloads.Calls.Empty";

/// Runs `calls` bare, with the method traced, and with another one traced, in turn; the program itself says what a call takes.
pub(crate) fn table(runtimes: &[Runtime], pairs: usize) -> Result<String> {
    let mut out = String::from(
        "\nWhat a call of a traced method costs, by the program's own clock: a call of an empty method, best of 20 rounds of 100,000, median\n\
         of the runs. An untraced method is measured while another one of its type is traced.\n\n\
         | .NET | bare | untraced | traced | added |\n\
         | --- | --: | --: | --: | --: |\n",
    );
    for runtime in runtimes {
        let [mut bare, mut untraced, mut traced] = [(); 3].map(|()| Vec::new());
        for _ in 0..pairs.max(1) {
            let record = || Record::workload(runtime, "calls", &["rounds=1"]);
            // Without samples of time: they would be measured too.
            let of = |pattern: String| record().options(["-e", "gc", "--trace", &pattern]).run();
            bare.push(ns(&record().run_bare())?);
            untraced.push(ns(&of("Workloads.Calls.Time:1h".to_owned()).answer)?);
            traced.push(ns(&of(format!("{METHOD}:1h")).answer)?);
        }
        let [bare, untraced, traced] = [bare, untraced, traced].map(|ns| median(ns.into_iter()));
        let _ = writeln!(
            out,
            "| {} | {bare:.1} ns | {untraced:.1} ns | {traced:.1} ns | {:.1} ns |",
            runtime.version,
            traced - bare
        );
    }
    Ok(out)
}

/// What the program measured.
fn ns(answer: &Answer) -> Result<f64> {
    let mut lines = answer.lines("measured").into_iter();
    let line = lines.find(|line| line.first() == Some(&"ns_per_call"));
    let number = line.and_then(|line| line.get(1).copied());
    let number = number.context("calls measured nothing")?;
    number.parse().context("calls measured no number")
}
