//! Requests of Pyroscope's push API (`push.v1.PusherService/Push`), with one profile each.
//!
//! A profile has the name and the types that Pyroscope's pages know for its event. One profile a
//! request, because the server may store some profiles of a request and refuse the others. Its
//! limits hold: depth (stacks are cut at the root side; the server would cut the leaf), number of
//! samples and size (a profile beyond them is split: the server adds the parts up).
//!
//! Invariant: labels are few, and the same for all profiles of a process but for the name.

use std::collections::BTreeMap;

use profile::Profile;
use profile::model::{Event, Process, ProcessId, StackId};
use profile::ops::{Weight, objects_of};
use prost::Message as _;

use crate::labels::Labels;
use crate::options::OutputOptions;
use crate::pprof::{Series, SeriesSample, of_objects};
use crate::select::with_stack_view;

/// Limits of a server as it is installed.
const MAX_DEPTH: u32 = 1_000;
const MAX_SAMPLES: usize = 16_000;
/// A larger profile exceeds the burst of the rate limit, and is refused each time.
const MAX_BYTES: usize = 2_000_000;
const MAX_LABELS: usize = 30;
const MAX_LABEL_NAME: usize = 1_024;
const MAX_LABEL_VALUE: usize = 2_048;

/// `PushRequest`. Field numbers are those of Pyroscope's `api/push/v1/push.proto`.
#[derive(Clone, PartialEq, prost::Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    series: Vec<RawProfileSeries>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawProfileSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawSample {
    /// A pprof.
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
}

/// The series of an event.
fn series_of(event: Event) -> Series {
    const TIME: (&str, &str) = ("cpu", "nanoseconds");
    const SPACE: (&str, &str) = ("space", "bytes");
    let (name, types, period): (_, &[(&str, &str)], _) = match event {
        Event::Cpu => ("process_cpu", &[("cpu", "nanoseconds")], TIME),
        Event::Wall => ("wall", &[("wall", "nanoseconds")], TIME),
        Event::Alloc => (
            "memory",
            &[("alloc_objects", "count"), ("alloc_space", "bytes")],
            SPACE,
        ),
        Event::Live => (
            "memory",
            &[("inuse_objects", "count"), ("inuse_space", "bytes")],
            SPACE,
        ),
        Event::Contention => (
            "lock",
            &[("lock_count", "count"), ("lock_time", "nanoseconds")],
            TIME,
        ),
        Event::Exception => ("exception", &[("exception", "count")], TIME),
        Event::Gc => ("gc", &[("gc", "nanoseconds")], TIME),
        Event::Jit => ("jit", &[("jit", "nanoseconds")], TIME),
        Event::ClassLoad => ("class_load", &[("class_load", "count")], TIME),
        Event::ModuleLoad => ("module_load", &[("module_load", "count")], TIME),
        Event::Call => ("call", &[("call", "count")], TIME),
        Event::TracedCall => ("traced_call", &[("traced_call", "nanoseconds")], TIME),
        Event::Suspended => ("suspended", &[("suspended", "count")], TIME),
    };
    Series {
        name,
        types,
        period,
    }
}

/// Returns the requests for a profile. `labels_of` has the labels of a process; those of Pyroscope
/// are added.
///
/// # Errors
/// Stacks cannot be cut to the depth that the server takes; the text says why.
pub fn requests(
    profile: &Profile,
    options: &OutputOptions,
    labels_of: &dyn Fn(&Process) -> Vec<(String, String)>,
) -> Result<Vec<Vec<u8>>, String> {
    let profile = with_stack_view(profile, options);
    let profile = profile::ops::with_details(profile.into_owned());
    // One more frame says that the stack is cut.
    let profile = profile::ops::cut(profile, MAX_DEPTH - 1)?;
    type Sums = BTreeMap<StackId, (Weight, f64)>;
    let mut sums: BTreeMap<(ProcessId, u8), (Event, Sums)> = BTreeMap::new();
    for sample in &profile.samples {
        let process = profile.thread(sample.thread).process;
        let (_, stacks) = sums
            .entry((process, sample.event as u8))
            .or_insert_with(|| (sample.event, BTreeMap::new()));
        let (sum, objects) = stacks.entry(sample.stack).or_default();
        *sum += Weight::of(sample.value);
        if of_objects(sample.event) {
            *objects += objects_of(&profile, sample);
        }
    }
    let names = Labels::new(&profile);
    let mut requests = Vec::new();
    for ((process, _), (event, stacks)) in sums {
        let process = profile.process(process);
        let series = series_of(event);
        let samples = stacks.into_iter().map(|(stack, (sum, objects))| {
            let count = match of_objects(event) {
                // A cast to the nearest whole number that there is.
                true => objects.round() as u64,
                false => sum.samples,
            };
            let values = match series.types.len() {
                1 => vec![sum.value],
                _ => vec![count, sum.value],
            };
            SeriesSample { stack, values }
        });
        let samples: Vec<SeriesSample> = samples.collect();
        let labels = labels(series.name, labels_of(process));
        let mut parts = vec![samples.as_slice()];
        while let Some(part) = parts.pop() {
            let raw_profile = crate::pprof::series(&profile, &names, process, event, &series, part);
            let is_too_large = part.len() > MAX_SAMPLES || raw_profile.len() > MAX_BYTES;
            if is_too_large && part.len() > 1 {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
                continue;
            }
            let request = Request {
                series: vec![RawProfileSeries {
                    labels: labels.clone(),
                    samples: vec![RawSample { raw_profile }],
                }],
            };
            requests.push(request.encode_to_vec());
        }
    }
    Ok(requests)
}

/// The labels of a series, sorted by name.
fn labels(name: &str, given: Vec<(String, String)>) -> Vec<LabelPair> {
    let own = [
        ("__name__", name),
        // Without it, a server may take values for running totals.
        ("__delta__", "false"),
        ("spy_name", "sidewalk"),
    ];
    let mut labels: BTreeMap<String, String> = own
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    for (name, value) in given {
        // Names with other characters are stored and never shown.
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name: String = name
            .chars()
            .map(|c| if is_word(c) { c } else { '_' })
            .take(MAX_LABEL_NAME)
            .collect();
        let value = &value[..value.floor_char_boundary(MAX_LABEL_VALUE)];
        if labels.len() < MAX_LABELS && !name.is_empty() && !value.is_empty() {
            labels.entry(name).or_insert_with(|| value.to_owned());
        }
    }
    let pairs = labels.into_iter();
    pairs
        .map(|(name, value)| LabelPair { name, value })
        .collect()
}

#[cfg(test)]
mod tests;
