//! CPU shares against those that the program measures itself.

use std::collections::BTreeMap;

use testkit::chance::percentage_points;
use testkit::{Recorded, Recorder, Runtime};

use crate::{LOST_LIMIT, broken_limit};

on_each_runtime!(shares, shares_of_four_threads);
on_net8_and_core31!(lines);

/// Error of the program's own clock readings, in percentage points, in addition to chance.
const OWN_ERROR: f64 = 0.5;

const HERTZ: u32 = 4999;

fn shares(runtime: &Runtime) {
    compare(&Recorder::workload(runtime, "shares", &["4"]), runtime);
}

fn shares_of_four_threads(runtime: &Runtime) {
    compare(
        &Recorder::workload(runtime, "shares", &["4", "threads"]),
        runtime,
    );
}

fn compare(record: &Recorder, runtime: &Runtime) {
    let recorded = record.clone().frequency(HERTZ).run_complete();
    recorded
        .inspect()
        .assert_honest(broken_limit(runtime), LOST_LIMIT);
    // The program measures the methods below `Rounds`.
    let total = assert_shares(&recorded, "Workloads.Shares.Rounds", 1.0);
    assert!(total >= 500, "{total} samples are too few");
}

/// Asserts the shares of methods below `root` that the program measured itself, within the bound of
/// chance for samples of `each` (in the event's unit). Returns the total of `root` in that unit.
pub(crate) fn assert_shares(recorded: &Recorded, root: &str, each: f64) -> u64 {
    let stacks = recorded.stacks().with(root);
    let total = stacks.total();
    for line in recorded.answer.lines("share") {
        let own: f64 = line[1].parse().unwrap();
        let ours = stacks.with(line[0]).total() as f64 * 100.0 / total as f64;
        assert_near(line[0], own, ours, total as f64 / each);
    }
    total
}

/// Asserts that two shares in percent are equal, within the bound of chance for the number of
/// samples.
pub(crate) fn assert_near(what: &str, own: f64, ours: f64, samples: f64) {
    let allowed = OWN_ERROR + percentage_points(samples, own / 100.0);
    println!(
        "{what}: {own:.2} % by the program, {ours:.2} % of {samples:.0} samples, allowed {allowed:.2}"
    );
    assert!(
        (own - ours).abs() <= allowed,
        "{what}: the program measured {own:.2} %, we {ours:.2} % of {samples:.0} samples"
    );
}

fn lines(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "lines", &["6"])
        .frequency(HERTZ)
        .run_complete();
    let report = recorded.report(&["--by", "line", "--top", "100"]);
    let text = report.to_string();
    let mut ours = BTreeMap::new();
    for row in report["rows"]
        .as_array()
        .unwrap_or_else(|| panic!("no rows: {text}"))
    {
        let file = row["file"].as_str().unwrap_or_default();
        let samples = row["self_samples"]
            .as_f64()
            .unwrap_or_else(|| panic!("no count: {text}"));
        if file.ends_with("Lines.cs") {
            *ours.entry(row["line"].to_string()).or_insert(0.0) += samples;
        }
    }
    let expected = recorded.answer.lines("line");
    let numbers: Vec<&str> = expected
        .iter()
        .map(|l| l[0].trim_start_matches("Lines.cs:"))
        .collect();
    let total: f64 = numbers.iter().filter_map(|n| ours.get(*n)).sum();
    assert!(
        total >= 500.0,
        "{total} samples on the burning lines are too few: {text}"
    );
    for (number, line) in numbers.iter().zip(&expected) {
        let own: f64 = line[1].parse().unwrap();
        let share = ours.get(*number).copied().unwrap_or_default() * 100.0 / total;
        assert_near(line[0], own, share, total);
    }
}
