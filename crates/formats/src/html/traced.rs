//! Traced methods as the page has them: numbers, and how calls are spread over durations.

use profile::Profile;
use profile::model::TracedMethod;
use serde::Serialize;

use crate::spread::Scale;
use crate::text::traced::{TOLD, name, ranked, time};

/// Most cells of a strip.
const MOST_CELLS: u32 = 37;
/// Most methods that the page shows.
const MOST: usize = 1000;

#[derive(Serialize)]
pub(super) struct TracedHead {
    /// What the columns of `methods` are.
    columns: Vec<&'static str>,
    /// What each cell of a strip stands for.
    cells: Vec<String>,
    methods: Vec<MethodHead>,
}

#[derive(Serialize)]
struct MethodHead {
    name: String,
    says: Vec<String>,
    /// Calls by cell.
    cells: Vec<u64>,
}

/// `None` where nothing was counted.
pub(super) fn head(profile: &Profile) -> Option<TracedHead> {
    let called = |one: &&TracedMethod| one.refused.is_empty() && one.calls() > 0;
    let methods: Vec<_> = ranked(profile)
        .into_iter()
        .filter(called)
        .take(MOST)
        .collect();
    let scale = Scale::of(methods.iter().copied(), MOST_CELLS)?;
    let method = |one: &TracedMethod| {
        let [p50, p90, p99] = TOLD.map(|part| time(one.quantile_ns(part)));
        let counts = [one.calls().to_string(), one.errors.to_string()];
        let times = [
            time(one.sum_ns),
            time(one.mean_ns()),
            p50,
            p90,
            p99,
            time(one.max_ns),
        ];
        MethodHead {
            name: name(profile, one),
            says: counts.into_iter().chain(times).collect(),
            cells: scale.cells(one),
        }
    };
    let bounds = scale.bounds();
    let between = bounds.windows(2).filter_map(|pair| match pair {
        [from, to] => Some(format!("{} to {}", time(*from), time(*to))),
        _ => None,
    });
    Some(TracedHead {
        columns: vec![
            "calls", "errors", "total", "mean", "p50", "p90", "p99", "max",
        ],
        cells: between.collect(),
        methods: methods.iter().copied().map(method).collect(),
    })
}
