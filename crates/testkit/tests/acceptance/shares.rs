//! CPU shares against those that the program measures itself.

use std::collections::BTreeMap;

use testkit::{Record, Recorded, Runtime};

use crate::{LOST_LIMIT, broken_limit};

on_each_runtime!(shares, shares_of_four_threads);
on_net8_and_core31!(lines);

/// Percentage points between our share and the program's.
const TOLERANCE: f64 = 1.5;

/// With 20,000 samples chance moves a share of one half by 0.35 points (one standard deviation);
/// with 4,000 it moved one by 2.1 once.
const HERTZ: u32 = 4999;

fn shares(runtime: &Runtime) {
    compare(&Record::workload(runtime, "shares", &["8"]), runtime);
}

fn shares_of_four_threads(runtime: &Runtime) {
    compare(
        &Record::workload(runtime, "shares", &["6", "threads"]),
        runtime,
    );
}

fn compare(record: &Record, runtime: &Runtime) {
    let recorded = record.clone().frequency(HERTZ).run_complete();
    recorded
        .inspect()
        .assert_honest(broken_limit(runtime), LOST_LIMIT);
    // The program measures what lies below `Rounds`.
    let total = assert_shares(&recorded, "Workloads.Shares.Rounds", TOLERANCE);
    assert!(total >= 500, "{total} samples are too few");
}

/// What the program says of the shares of methods below `root`, within so many percentage points. What all is, in the event's unit.
pub(crate) fn assert_shares(recorded: &Recorded, root: &str, tolerance: f64) -> u64 {
    let stacks = recorded.stacks().with(root);
    let total = stacks.total();
    for line in recorded.answer.lines("share") {
        let own: f64 = line[1].parse().unwrap();
        let ours = stacks.with(line[0]).total() as f64 * 100.0 / total as f64;
        println!("{} {own:.2} {ours:.2}", line[0]);
        assert!(
            (own - ours).abs() <= tolerance,
            "{}: the program measured {own:.2} %, we {ours:.2} % of {total}",
            line[0]
        );
    }
    total
}

fn lines(runtime: &Runtime) {
    let recorded = Record::workload(runtime, "lines", &["6"])
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
        assert!(
            (own - share).abs() <= TOLERANCE,
            "{}: {own:.2} %, we {share:.2} %",
            line[0]
        );
    }
}
