//! Live heap by type, for the table and for JSON: amount, age and growth.

use std::collections::HashMap;
use std::io::{self, Write};

use profile::Profile;
use profile::model::{LiveHeap, LiveSum, StringId};
use profile::ops::{LiveType, begin_ns, live_types};
use serde::Serialize;

use crate::table;
use crate::visible::visible;
use crate::wording::{amount, plural, seconds};

#[derive(Serialize)]
pub(crate) struct LiveJson {
    /// By process.
    processes: Vec<HeapJson>,
    /// Types, most bytes first.
    types: Vec<TypeJson>,
}

#[derive(Serialize)]
struct HeapJson {
    pid: u32,
    /// Start of its recording, in seconds since the start of the profile.
    start_s: f64,
    instants: Vec<InstantJson>,
    /// Some snapshots by type: the first, the last, and as many between them as fit.
    moments: Vec<MomentJson>,
}

#[derive(Serialize)]
struct MomentJson {
    /// Since the process is recorded.
    at_s: f64,
    /// Live types: index into `types`, and bytes.
    types: Vec<(usize, u64)>,
}

#[derive(Serialize)]
struct InstantJson {
    /// Since the process is recorded.
    at_s: f64,
    /// Collections that have ended since then.
    collections: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct TypeJson {
    name: String,
    bytes: u64,
    objects: u64,
    samples: u64,
    /// At the first and the last snapshot. Absent if there are fewer than two.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_bytes: Option<u64>,
    median_age_s: f64,
    oldest_s: f64,
    median_collections: u64,
    most_collections: u64,
}

/// Returns the live heap for JSON, or `None` if it was not recorded.
pub(crate) fn json(profile: &Profile) -> Option<LiveJson> {
    if profile.live.is_empty() {
        return None;
    }
    let types = live_types(profile);
    let places: HashMap<StringId, usize> = types.iter().map(|one| one.name).zip(0..).collect();
    let begin = begin_ns(profile);
    let heap = |heap: &LiveHeap| {
        let process = profile.process(heap.process);
        let before = heap.collections.first().map_or(0, |(_, ended)| *ended);
        let instants = heap.instants.iter().map(|instant| InstantJson {
            at_s: rounded(instant.time_ns.saturating_sub(process.start_ns)),
            collections: instant.collections.saturating_sub(before),
            bytes: instant.bytes,
        });
        let moments = heap.moments.iter().map(|moment| MomentJson {
            at_s: rounded(moment.time_ns.saturating_sub(process.start_ns)),
            // A type that came and went between the first and the last is not in the table.
            types: moment
                .types
                .iter()
                .filter_map(|(name, sum)| Some((*places.get(name)?, sum.bytes)))
                .collect(),
        });
        HeapJson {
            pid: process.pid,
            start_s: rounded(process.start_ns.saturating_sub(begin)),
            instants: instants.collect(),
            moments: moments.collect(),
        }
    };
    let of = |one: LiveType| TypeJson {
        name: visible(profile.string(one.name)).into_owned(),
        bytes: one.alive.bytes,
        objects: objects(one.alive),
        samples: one.alive.samples,
        first_bytes: one.grown.map(|(first, _)| first.bytes),
        last_bytes: one.grown.map(|(_, last)| last.bytes),
        median_age_s: rounded(one.median_age_ns),
        oldest_s: rounded(one.oldest_ns),
        median_collections: one.median_collections,
        most_collections: one.most_collections,
    };
    Some(LiveJson {
        processes: profile.live.iter().map(heap).collect(),
        types: types.iter().copied().map(of).collect(),
    })
}

/// The table: nothing where the live heap was not asked for.
pub(super) fn write(profile: &Profile, top: usize, out: &mut impl Write) -> io::Result<()> {
    if profile.live.is_empty() {
        return Ok(());
    }
    let types = live_types(profile);
    let alive = types.iter().filter(|one| one.alive.samples > 0).count();
    let mut all = LiveSum::default();
    for one in &types {
        all.join(one.alive);
    }
    let instants: usize = profile.live.iter().map(|heap| heap.instants.len()).sum();
    writeln!(
        out,
        "live heap at the end: {} in about {} of {} ({}, {})",
        amount(all.bytes, "bytes"),
        plural(objects(all), "object"),
        plural(alive as u64, "type"),
        plural(all.samples, "sample"),
        plural(instants as u64, "instant"),
    )?;
    let has_growth = types.iter().any(|one| one.grown.is_some());
    if let Some(says) = since(profile).filter(|_| has_growth) {
        writeln!(out, "grown: {says}")?;
    }
    let mut head = vec!["bytes", "objects"];
    if has_growth {
        head.push("grown");
    }
    head.extend(["median age", "oldest", "collections", "most", "type"]);
    let mut cells: Vec<Vec<String>> = vec![head.into_iter().map(str::to_owned).collect()];
    for one in types.iter().take(top) {
        let mut line = vec![
            amount(one.alive.bytes, "bytes"),
            objects(one.alive).to_string(),
        ];
        if has_growth {
            line.push(growth(one));
        }
        line.extend([
            format!("{:.1} s", seconds(one.median_age_ns)),
            format!("{:.1} s", seconds(one.oldest_ns)),
            one.median_collections.to_string(),
            one.most_collections.to_string(),
            visible(profile.string(one.name)).into_owned(),
        ]);
        cells.push(line);
    }
    if !types.is_empty() {
        table::write(&cells, None, out)?;
    }
    let hidden = types.len().saturating_sub(top);
    if hidden > 0 {
        writeln!(out, "… and {hidden} more")?;
    }
    writeln!(out)
}

/// From when to when things have grown: of one process its two instants.
fn since(profile: &Profile) -> Option<String> {
    let [heap] = &profile.live[..] else {
        return Some("from the first instant of each process to its last".to_owned());
    };
    let [first, .., last] = &heap.moments[..] else {
        return None;
    };
    let start = profile.process(heap.process).start_ns;
    let at = |ns: u64| seconds(ns.saturating_sub(start));
    Some(format!(
        "from {:.1} s to {:.1} s, {} apart",
        at(first.time_ns),
        at(last.time_ns),
        plural(
            last.collections - first.collections.min(last.collections),
            "collection"
        ),
    ))
}

fn growth(one: &LiveType) -> String {
    let (first, last) = one.grown.unwrap_or_default();
    let by = amount(first.bytes.abs_diff(last.bytes), "bytes");
    match first.bytes.cmp(&last.bytes) {
        std::cmp::Ordering::Less => format!("+{by}"),
        std::cmp::Ordering::Equal => "0".to_owned(),
        std::cmp::Ordering::Greater => format!("-{by}"),
    }
}

fn objects(sum: LiveSum) -> u64 {
    sum.objects.round() as u64
}

/// Seconds to the millisecond.
fn rounded(ns: u64) -> f64 {
    (ns as f64 / 1e6).round() / 1e3
}
