//! Encoding of a profile for the page's script (`assets/decode.js` reads it).
//!
//! Bytes: a varint with the length of a JSON object, the object (strings and small tables), then
//! varints: nodes (parents, then frames), then the samples (`samples`). Varints are
//! little-endian groups of seven bits. Nodes are in preorder, so a chain of callers costs one
//! byte and a subtree is a range. Frames that look alike are one frame: addresses are left out.

use std::borrow::Cow;

use serde::Serialize;

use profile::Profile;
use profile::model::{Frame, FrameId, FrameKind, Location, Process, Tier};
use profile::ops::{self, Runtimes, StackView};

use super::samples::{self, EventHead};
use super::sources::{self, SourceHead};
use super::traced::{self, TracedHead};
use crate::forest::{MergedStacks, NONE};
use crate::health::honest_line;
use crate::labels::{FrameKeys, Labels, kind_name, runtime_versions, tier_name};
use crate::options::{OutputOptions, Sides};
use crate::select::{Selection, with_details};
use crate::text::{LiveJson, live_json, notes};
use crate::visible::visible;
use crate::wording::duration_ns;

/// The JSON object. Indices into `strings` are 1-based where 0 says `none`.
#[derive(Serialize)]
struct Head {
    title: String,
    honest: String,
    notes: Vec<String>,
    /// Nanoseconds, as a float: a page needs no more than 53 bits of it.
    duration: f64,
    /// Time 0, in milliseconds since 1970.
    start: f64,
    /// Resolution of sample times, in nanoseconds.
    tick: f64,
    interval: f64,
    /// Versions of the recorded CLRs.
    runtimes: Vec<String>,
    /// Names of the CLRs, if there are several; else empty.
    clrs: Vec<String>,
    processes: Vec<ProcessHead>,
    threads: Vec<ThreadHead>,
    events: Vec<EventHead>,
    /// Index into `events` of the event that is shown first.
    event: usize,
    by_value: bool,
    /// Names of the two stack views of samples in async methods, if they differ. The first is shown
    /// first.
    #[serde(skip_serializing_if = "Option::is_none")]
    views: Option<[&'static str; 2]>,
    /// Present if recordings are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    sides: Option<SidesHead>,
    /// Names of kinds and tiers, which frames refer to by index.
    kinds: Vec<&'static str>,
    tiers: Vec<&'static str>,
    strings: Vec<String>,
    frames: FrameColumns,
    nodes: usize,
    /// The live heap, if recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<LiveJson>,
    /// Source text, if given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<SourceHead>,
    /// Present if methods were traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    traced: Option<TracedHead>,
}

/// The two sides of a comparison.
#[derive(Serialize)]
struct SidesHead {
    names: [String; 2],
    /// By process: 0 before, 1 after.
    of: Vec<u8>,
    /// Names that have changed for certain: of their own, with what they call.
    own: Vec<String>,
    total: Vec<String>,
}

impl SidesHead {
    fn new(profile: &Profile, sides: &Sides) -> Self {
        let shown = |names: &[String]| {
            names
                .iter()
                .map(|name| visible(name).into_owned())
                .collect()
        };
        let after = |process: &Process| u8::from(process.recording >= sides.first_after);
        Self {
            names: sides
                .names
                .each_ref()
                .map(|name| visible(name).into_owned()),
            of: profile.processes.iter().map(after).collect(),
            own: shown(&sides.own),
            total: shown(&sides.total),
        }
    }
}

#[derive(Serialize)]
struct ProcessHead {
    name: String,
    pid: u32,
}

#[derive(Serialize)]
struct ThreadHead {
    name: String,
    tid: u32,
    process: u32,
}

#[derive(Serialize, Default)]
struct FrameColumns {
    name: Vec<u32>,
    kind: Vec<u8>,
    tier: Vec<u8>,
    /// 0: none.
    module: Vec<u32>,
    /// 0: none.
    file: Vec<u32>,
    /// 0: not known.
    line: Vec<u32>,
    inlined: Vec<u8>,
    /// Types of parameters. 0: not known.
    signature: Vec<u32>,
    /// 0: none; else one of `clrs`.
    clr: Vec<u32>,
    /// The text of a detail beside its name. 0: none.
    text: Vec<u32>,
}

const KINDS: [&str; 8] = [
    "managed", "runtime", "native", "stub", "pseudo", "unknown", "detail", "async",
];

/// The tier shown for a method that waits. Behind the tiers, which are by code.
const AWAITING: &str = "awaiting";

/// It does not run: it awaits the one above it.
fn awaits(frame: &Frame) -> bool {
    matches!(frame.location, Location::Await { .. })
}

/// Strings by order of first use.
#[derive(Default)]
struct StringTable {
    index: std::collections::HashMap<String, u32>,
    list: Vec<String>,
}

impl StringTable {
    fn intern(&mut self, text: String) -> u32 {
        if let Some(&at) = self.index.get(&text) {
            return at;
        }
        let at = self.list.len() as u32;
        self.list.push(text.clone());
        self.index.insert(text, at);
        at
    }

    fn optional(&mut self, text: Option<String>) -> u32 {
        text.map_or(0, |text| self.intern(text) + 1)
    }
}

/// The nodes in the order in which the page has them.
struct Nodes {
    /// By place: parent's place ([`NONE`] at a root) and frame key.
    list: Vec<(u32, u32)>,
    /// By stack: place.
    of_stack: Vec<u32>,
}

impl Nodes {
    fn new(profile: &Profile, keys: &FrameKeys) -> Self {
        let merged = MergedStacks::new(profile, &keys.of_frame);
        let mut place = vec![NONE; merged.nodes.len()];
        let mut list = Vec::with_capacity(merged.nodes.len());
        merged.children().preorder(|node| {
            let (parent, key) = merged.nodes[node as usize];
            let parent = if parent == NONE {
                NONE
            } else {
                place[parent as usize]
            };
            place[node as usize] = list.len() as u32;
            list.push((parent, key));
        });
        let of_stack = merged
            .of_stack
            .iter()
            .map(|&node| {
                if node == NONE {
                    NONE
                } else {
                    place[node as usize]
                }
            })
            .collect();
        Self { list, of_stack }
    }
}

/// Everything that the page shows of `profile`.
pub(super) fn encode(profile: &Profile, options: &OutputOptions, title: &str) -> Vec<u8> {
    let first = options.stacks;
    let second = ops::has_logical(profile).then(|| {
        let other = StackView::ALL.into_iter().find(|stacks| *stacks != first);
        other.unwrap_or(first)
    });
    let profile = &*with_details(Cow::Borrowed(profile), options);
    let labels = Labels::new(profile);
    let runtimes = Runtimes::new(profile);
    let keys = FrameKeys::new(profile, |id| {
        let f = profile.frame(id);
        let detail = match f.location {
            Location::Detail(detail) => Some(detail),
            _ => None,
        };
        (
            labels.method(id),
            f.tier,
            f.file,
            f.line,
            f.inlined,
            f.signature,
            detail,
            awaits(f),
        )
    });
    let nodes = Nodes::new(profile, &keys);

    // Frames by how often they occur: the common ones get one byte.
    let mut uses = vec![0_u32; keys.first.len()];
    for &(_, key) in &nodes.list {
        uses[key as usize] += 1;
    }
    let mut used: Vec<u32> = (0..uses.len() as u32)
        .filter(|&k| uses[k as usize] > 0)
        .collect();
    used.sort_by_key(|&k| (std::cmp::Reverse(uses[k as usize]), k));
    let mut number = vec![0_u32; keys.first.len()];
    for (at, &key) in used.iter().enumerate() {
        number[key as usize] = at as u32;
    }

    let mut strings = StringTable::default();
    let mut frames = FrameColumns::default();
    for &key in &used {
        push_frame(
            &mut frames,
            &mut strings,
            &labels,
            &runtimes,
            profile,
            keys.first[key as usize],
        );
    }

    let mut bytes = Vec::new();
    for (at, &(parent, _)) in nodes.list.iter().enumerate() {
        // A root's parent counts as -1.
        let up = if parent == NONE {
            at as u64
        } else {
            at as u64 - 1 - u64::from(parent)
        };
        varint(&mut bytes, up);
    }
    for &(_, key) in &nodes.list {
        varint(&mut bytes, u64::from(number[key as usize]));
    }
    let begin = ops::begin_ns(profile);
    let tick = samples::tick(profile.samples.len(), duration_ns(profile));
    let stacks = [Some(first), second];
    let heads: Vec<EventHead> =
        samples::push(&mut bytes, profile, &nodes.of_stack, stacks, (begin, tick));
    let views = second.map(|second| [first.name(), second.name()]);

    // A hostile recording may have such frames anywhere.
    let is_async = views.is_some()
        || used.iter().any(|&key| {
            let frame = profile.frame(keys.first[key as usize]);
            frame.kind == FrameKind::Async || awaits(frame)
        });
    let selection = Selection::new(profile, options, false);
    let head = Head {
        title: title.to_owned(),
        honest: honest_line(&profile.health),
        notes: notes(profile),
        duration: duration_ns(profile) as f64,
        start: ops::begin_unix_ns(profile).map_or(0.0, |ns| (ns / 1_000_000) as f64),
        tick: tick as f64,
        interval: if profile.health.is_slower_than_asked() {
            profile.health.achieved_ns
        } else {
            profile.health.interval_ns
        } as f64,
        runtimes: runtime_versions(profile),
        clrs: if runtimes.several {
            let visible = runtimes
                .labels
                .iter()
                .map(|label| visible(label).into_owned());
            visible.collect()
        } else {
            Vec::new()
        },
        processes: (0..profile.processes.len())
            .map(|at| ProcessHead {
                name: labels.process(profile::model::ProcessId(at as u32)),
                pid: profile.processes[at].pid,
            })
            .collect(),
        threads: profile
            .threads
            .iter()
            .map(|t| ThreadHead {
                name: visible(&t.name).into_owned(),
                tid: t.tid,
                process: t.process.0,
            })
            .collect(),
        event: heads
            .iter()
            .position(|h| h.name == selection.event.name())
            .unwrap_or(0),
        by_value: selection.by_value,
        events: heads,
        // The page of a profile without async methods is what it was.
        kinds: KINDS[..KINDS.len() - usize::from(!is_async)].to_vec(),
        tiers: {
            let tiers = Tier::ALL.into_iter().map(tier_name);
            tiers.chain(is_async.then_some(AWAITING)).collect()
        },
        views,
        sides: options
            .sides
            .as_ref()
            .map(|sides| SidesHead::new(profile, sides)),
        live: live_json(profile),
        sources: sources::parts(profile, &options.sources, |name| {
            strings.index.get(name).map(|at| at + 1)
        }),
        traced: traced::head(profile),
        strings: strings.list,
        frames,
        nodes: nodes.list.len(),
    };
    // Strings and numbers: there is nothing that could fail.
    let json = serde_json::to_vec(&head).unwrap_or_default();
    let mut payload = Vec::with_capacity(json.len() + bytes.len() + 5);
    varint(&mut payload, json.len() as u64);
    payload.extend(json);
    payload.extend(bytes);
    payload
}

fn push_frame(
    to: &mut FrameColumns,
    strings: &mut StringTable,
    labels: &Labels<'_>,
    runtimes: &Runtimes,
    profile: &Profile,
    id: FrameId,
) {
    let frame = profile.frame(id);
    let index = |found: Option<usize>| found.unwrap_or(0) as u8;
    to.name.push(strings.intern(labels.name(id).to_owned()));
    to.kind.push(index(
        KINDS.iter().position(|&k| k == kind_name(frame.kind)),
    ));
    to.tier.push(match awaits(frame) {
        true => Tier::ALL.len() as u8,
        false => frame.tier as u8,
    });
    let module = frame.module.map(|module| labels.module_path(module));
    to.module.push(strings.optional(module));
    to.file.push(strings.optional(labels.file(frame)));
    to.line.push(frame.line);
    to.inlined.push(u8::from(frame.inlined));
    let signature = frame
        .signature
        .map(|id| visible(profile.string(id)).into_owned());
    to.signature.push(strings.optional(signature));
    to.clr
        .push(runtimes.label_index(frame).map_or(0, |clr| clr + 1));
    to.text.push(strings.optional(labels.text(frame)));
}

pub(super) fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a payload the way the page does, and writes out what it says.
    fn read(payload: &[u8]) -> String {
        let mut at = 0;
        let mut next = || {
            let (mut value, mut place) = (0_u64, 0);
            loop {
                let byte = payload[at];
                at += 1;
                value |= u64::from(byte & 127) << place;
                place += 7;
                if byte < 128 {
                    return (value, at);
                }
            }
        };
        let (length, start) = next();
        let length = length as usize;
        let head: serde_json::Value =
            serde_json::from_slice(&payload[start..start + length]).expect("the head is JSON");
        let mut lines = vec![serde_json::to_string_pretty(&head).expect("it was JSON")];
        let rest = &payload[start + length..];
        let mut bytes = rest.iter();
        let mut varint = || {
            let (mut value, mut place) = (0_u64, 0);
            for &byte in bytes.by_ref() {
                value |= u64::from(byte & 127) << place;
                place += 7;
                if byte < 128 {
                    break;
                }
            }
            value
        };
        let nodes = head["nodes"].as_u64().expect("nodes");
        let up: Vec<u64> = (0..nodes).map(|_| varint()).collect();
        let frames: Vec<u64> = (0..nodes).map(|_| varint()).collect();
        for (at, (up, frame)) in up.into_iter().zip(frames).enumerate() {
            let parent = at as i64 - 1 - up as i64;
            let name = head["frames"]["name"][frame as usize]
                .as_u64()
                .expect("a string's index");
            lines.push(format!(
                "node {at} under {parent}: {}",
                head["strings"][name as usize]
            ));
        }
        let events = head["events"].as_array().expect("events");
        let both = head["views"].is_array();
        let count = varint();
        let mut row = |count: u64| -> Vec<u64> { (0..count).map(|_| varint()).collect() };
        let first = row(count);
        let second = if both { row(count) } else { Vec::new() };
        for event in events {
            let mut threads = Vec::new();
            loop {
                let thread = row(1)[0];
                if thread == 0 {
                    break;
                }
                threads.push((thread - 1, row(1)[0]));
            }
            let all = threads.iter().map(|(_, count)| count).sum();
            let (steps, stacks) = (row(all), row(all));
            let values = match event["constant"].as_u64() {
                Some(value) => vec![value; all as usize],
                None => row(all),
            };
            let scale = event["scale"].as_u64().expect("a scale");
            let mut at = 0;
            for (thread, count) in threads {
                let mut time = 0;
                for _ in 0..count {
                    time += steps[at];
                    let stack = stacks[at] as usize;
                    let other = second.get(stack).map(|node| format!(" or {node}"));
                    lines.push(format!(
                        "{} thread {thread}: at {time}, node {}{}, {}",
                        event["name"],
                        first[stack],
                        other.unwrap_or_default(),
                        values[at] * scale
                    ));
                    at += 1;
                }
            }
        }
        assert_eq!(bytes.len(), 0, "nothing follows");
        lines.join("\n")
    }

    #[test]
    fn payloads() {
        for (name, scene) in [
            ("tiny", profile::testing::tiny()),
            ("two_runtimes", profile::testing::two_runtimes()),
            ("events", profile::testing::events()),
            ("awaits", profile::testing::awaits()),
            ("live", profile::testing::live()),
        ] {
            let payload = encode(&scene.profile(), &OutputOptions::default(), "the title");
            insta::assert_snapshot!(name, read(&payload));
        }
    }
}
