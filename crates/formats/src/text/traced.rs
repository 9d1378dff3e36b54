//! Traced methods and their calls, for the table and for JSON.

use std::io::{self, Write};

use profile::Profile;
use profile::model::TracedMethod;
use profile::ops::runtime_labels;
use serde::Serialize;

use crate::spread::SpreadScale;
use crate::table;
use crate::visible::visible;
use crate::wording::plural;

/// The quantiles shown, in thousandths.
const QUANTILES: [u64; 3] = [500, 900, 990];
/// The meanings of [`numbers`].
pub(crate) const COLUMNS: [&str; 8] = [
    "calls", "errors", "total", "mean", "p50", "p90", "p99", "max",
];
/// Maximum number of cells of a strip.
const MAX_CELLS: u32 = 20;

#[derive(Serialize)]
pub(super) struct TracedJson {
    name: String,
    module: String,
    runtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// Minimum duration of a call for a sample. Shorter calls are only counted.
    min_ns: u64,
    /// Reason why the method was not traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    calls: u64,
    errors: u64,
    total_ns: u64,
    mean_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    /// Number of calls by minimum duration in nanoseconds, a power of two.
    spread: Vec<(u64, u64)>,
}

/// Returns the methods, most time first, then those that were not traced.
pub(crate) fn ranked(profile: &Profile) -> Vec<&TracedMethod> {
    let mut all: Vec<&TracedMethod> = profile.traced.iter().collect();
    let key = |one: &TracedMethod| {
        let refused = !one.refused.is_empty();
        (refused, std::cmp::Reverse((one.sum_ns, one.calls())))
    };
    all.sort_by(|a, b| {
        let names = || profile.string(a.name).cmp(profile.string(b.name));
        key(a).cmp(&key(b)).then_with(names)
    });
    all
}

/// Returns the traced methods for JSON, or `None` if none was to be traced.
pub(super) fn json(profile: &Profile) -> Option<Vec<TracedJson>> {
    let labels = runtime_labels(profile);
    let of = |one: &TracedMethod| {
        let [p50_ns, p90_ns, p99_ns] = QUANTILES.map(|part| one.quantile_ns(part));
        let process = profile.processes.get(one.process.0 as usize);
        TracedJson {
            name: visible(profile.string(one.name)).into_owned(),
            module: visible(profile.string(one.module)).into_owned(),
            runtime: labels
                .get(one.runtime.0 as usize)
                .cloned()
                .unwrap_or_default(),
            pid: process.map(|process| process.pid),
            min_ns: one.min_ns,
            refused: (!one.refused.is_empty()).then(|| visible(&one.refused).into_owned()),
            calls: one.calls(),
            errors: one.errors,
            total_ns: one.sum_ns,
            mean_ns: one.mean_ns(),
            p50_ns,
            p90_ns,
            p99_ns,
            max_ns: one.max_ns,
            spread: one
                .octaves()
                .into_iter()
                .map(|(octave, calls)| (TracedMethod::octave_ns(octave), calls))
                .collect(),
        }
    };
    (!profile.traced.is_empty()).then(|| ranked(profile).into_iter().map(of).collect())
}

/// The numbers of a method's calls, by column.
pub(crate) fn numbers(one: &TracedMethod) -> [String; COLUMNS.len()] {
    let [p50, p90, p99] = QUANTILES.map(|part| time(one.quantile_ns(part)));
    [
        one.calls().to_string(),
        one.errors.to_string(),
        time(one.sum_ns),
        time(one.mean_ns()),
        p50,
        p90,
        p99,
        time(one.max_ns),
    ]
}

/// The table: nothing where nothing was to be traced.
pub(super) fn write(profile: &Profile, top: usize, out: &mut impl Write) -> io::Result<()> {
    let all = ranked(profile);
    let (traced, refused): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|one| one.refused.is_empty());
    if traced.is_empty() && refused.is_empty() {
        return Ok(());
    }
    let calls = traced
        .iter()
        .fold(0u64, |sum, one| sum.saturating_add(one.calls()));
    writeln!(
        out,
        "{} traced, {}, each counted",
        plural(traced.len() as u64, "method"),
        plural(calls, "call")
    )?;
    let called: Vec<_> = traced.iter().filter(|one| one.calls() > 0).collect();
    let shown = || called.iter().take(top).map(|one| **one);
    let scale = SpreadScale::of(shown(), MAX_CELLS);
    let strip = COLUMNS.len();
    let mut head: Vec<String> = COLUMNS.map(str::to_owned).into();
    head.push(match scale.as_ref().map(SpreadScale::bounds).as_deref() {
        Some([first, .., last]) => format!("{} – {}", time(*first), time(*last)),
        _ => String::new(),
    });
    head.push("method".to_owned());
    let mut cells = vec![head];
    for one in shown() {
        let mut line: Vec<String> = numbers(one).into();
        let bars = scale.as_ref().map(|scale| scale.bars(one));
        line.extend([bars.unwrap_or_default(), name(profile, one)]);
        cells.push(line);
    }
    if !called.is_empty() {
        table::write(&cells, Some(strip), out)?;
    }
    let hidden = called.len().saturating_sub(top);
    if hidden > 0 {
        writeln!(out, "… and {hidden} more")?;
    }
    for one in refused.iter().take(top) {
        writeln!(
            out,
            "not traced: {}: {}",
            name(profile, one),
            visible(&one.refused)
        )?;
    }
    let hidden = refused.len().saturating_sub(top);
    if hidden > 0 {
        writeln!(out, "… and {hidden} more not traced")?;
    }
    writeln!(out)
}

/// Its name, and whose it is where there are several.
pub(crate) fn name(profile: &Profile, one: &TracedMethod) -> String {
    let mut name = visible(profile.string(one.name)).into_owned();
    if profile.runtimes.len() > 1 {
        let labels = runtime_labels(profile);
        let label = labels
            .get(one.runtime.0 as usize)
            .map_or("", String::as_str);
        name.push_str(&format!("  [.NET {}]", visible(label)));
    }
    if profile.processes.len() > 1
        && let Some(process) = profile.processes.get(one.process.0 as usize)
    {
        name.push_str(&format!("  [process {}]", process.pid));
    }
    name
}

/// Three digits and a unit: a call may take nanoseconds or minutes.
pub(crate) fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::model::{ProcessId, RuntimeId, StringId};

    #[test]
    fn each_column_has_its_own_number() {
        let method = TracedMethod {
            process: ProcessId(0),
            runtime: RuntimeId(0),
            name: StringId(0),
            module: StringId(0),
            token: 0x0600_0001,
            min_ns: 0,
            refused: String::new(),
            errors: 3,
            sum_ns: 20_000,
            max_ns: 63,
            // Buckets below 64 are nanoseconds.
            buckets: [(10, 500), (20, 400), (30, 90), (40, 10)].into(),
        };
        let numbers = numbers(&method);
        let named_numbers: Vec<_> = COLUMNS.into_iter().zip(&numbers).collect();
        let expected = [
            ("calls", "1000"),
            ("errors", "3"),
            ("total", "20.0 us"),
            ("mean", "20 ns"),
            ("p50", "10 ns"),
            ("p90", "20 ns"),
            ("p99", "30 ns"),
            ("max", "63 ns"),
        ];
        for ((column, number), expected) in named_numbers.into_iter().zip(expected) {
            assert_eq!((column, number.as_str()), expected);
        }
    }

    #[test]
    fn times_have_three_digits() {
        for (ns, says) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (12_345, "12.3 us"),
            (999_499, "999 us"),
            (50_000_000, "50.0 ms"),
            (1_234_567_890, "1.23 s"),
            (3_600_000_000_000, "3600 s"),
        ] {
            assert_eq!(time(ns), says);
        }
    }
}
