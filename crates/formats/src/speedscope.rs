//! speedscope: JSON with one sampled profile for each event and thread.
//!
//! Frames are methods: the lines of a method are one frame, as in a flame graph. Invariants: the
//! weights of an event's profiles add up to the event's total; a thread's samples are ordered by
//! time.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use profile::Profile;
use profile::model::{FrameId, StackId, ThreadId, Unit};
use profile::ops::Weight;
use serde::{Serialize, Serializer};

use crate::check_size;
use crate::labels::Labels;
use crate::options::OutputOptions;
use crate::select::{Selection, events, with_details_shown};
use crate::visible::{visible, write_json};

/// Maximum number of frames of a stack. speedscope sorts by recursion: version 1.25 opened stacks
/// of 3,000 frames and failed on 4,000. Of a deeper stack the part next to the leaf is written.
const DEEPEST: usize = 2_000;

#[derive(Serialize)]
struct SpeedscopeFile<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: String,
    #[serde(rename = "activeProfileIndex")]
    active_profile_index: u32,
    shared: Shared<'a>,
    profiles: Vec<Sampled<'a>>,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: &'a [SpeedscopeFrame],
}

#[derive(Serialize)]
struct SpeedscopeFrame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

#[derive(Serialize)]
struct Sampled<'a> {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start_value: u64,
    #[serde(rename = "endValue")]
    end_value: u64,
    samples: Samples<'a>,
    weights: Vec<u64>,
}

/// Stacks, whose frames are looked up when they are written.
struct Samples<'a> {
    frames: &'a FrameTable<'a, 'a>,
    stacks: Vec<StackId>,
}

impl Serialize for Samples<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.stacks.iter().map(|&stack| self.frames.stack(stack)))
    }
}

/// Writes the events of `profile`, the main one first, each with its threads, most samples first.
/// [`OutputOptions::event`] restricts them to one.
///
/// Options: `event`, `weight`, `details`, `title`.
///
/// # Errors
/// Those of `out`, and `FileTooLarge` before anything is written.
pub fn write(profile: &Profile, options: &OutputOptions, mut out: impl Write) -> io::Result<()> {
    let profile = &*with_details_shown(profile, options);
    // Unlike other formats it has each sample, not each stack.
    let depths = profile::ops::depths(profile);
    let frames = profile.samples.iter().fold(0_u64, |sum, sample| {
        sum.saturating_add(u64::from(depths[sample.stack.0 as usize]).min(DEEPEST as u64))
    });
    check_size(frames)?;
    let labels = Labels::new(profile);
    let mut selections: Vec<Selection> = events(profile)
        .into_iter()
        .filter(|(event, _)| options.event.is_none_or(|requested| requested == *event))
        .map(|(event, sum)| Selection::of(event, sum, options, false))
        .collect();
    let several = selections.len() > 1;
    if selections.is_empty() {
        selections.push(Selection::new(profile, options, false));
    }
    let mut frames = FrameTable {
        labels: &labels,
        profile,
        known: HashMap::new(),
        cut: None,
        list: Vec::new(),
        seen: vec![false; profile.stacks.len()],
    };
    let mut tracks = Vec::new();
    for selection in &selections {
        let before = if several {
            format!("{}: ", selection.event.name())
        } else {
            String::new()
        };
        tracks.extend(of_event(profile, &labels, &mut frames, selection, &before));
    }
    if tracks.is_empty() {
        // speedscope shows nothing at all, not even the name, without a profile.
        tracks.push(Track {
            name: "no samples".to_owned(),
            unit: unit(&selections[0]),
            end_value: 0,
            stacks: Vec::new(),
            weights: Vec::new(),
        });
    }
    let profiles = tracks.into_iter().map(|track| Sampled {
        r#type: "sampled",
        name: track.name,
        unit: track.unit,
        start_value: 0,
        end_value: track.end_value,
        samples: Samples {
            frames: &frames,
            stacks: track.stacks,
        },
        weights: track.weights,
    });
    let file = SpeedscopeFile {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: concat!("sidewalk ", env!("CARGO_PKG_VERSION")),
        name: labels.title(options.title.as_deref()),
        active_profile_index: 0,
        shared: Shared {
            frames: &frames.list,
        },
        profiles: profiles.collect(),
    };
    write_json(&mut out, &file)?;
    out.flush()
}

/// speedscope's word for what a selection's samples weigh.
fn unit(selection: &Selection) -> &'static str {
    match selection.event.unit() {
        _ if !selection.by_value => "none",
        Unit::Nanoseconds => "nanoseconds",
        Unit::Bytes => "bytes",
        Unit::Count => "none",
    }
}

/// A thread's samples of an event.
struct Track {
    name: String,
    unit: &'static str,
    end_value: u64,
    stacks: Vec<StackId>,
    weights: Vec<u64>,
}

/// The samples of one event, each thread a profile named `before` and the thread, most first.
fn of_event(
    profile: &Profile,
    labels: &Labels<'_>,
    frames: &mut FrameTable<'_, '_>,
    selection: &Selection,
    before: &str,
) -> Vec<Track> {
    let mut threads: BTreeMap<ThreadId, (Vec<StackId>, Vec<u64>)> = BTreeMap::new();
    for sample in selection.samples(profile) {
        let (stacks, weights) = threads.entry(sample.thread).or_default();
        let weight = selection.weigh(Weight::of(sample.value));
        // Neighbours of one stack are one, with the weight of both.
        match (stacks.last(), weights.last_mut()) {
            (Some(&last), Some(sum)) if last == sample.stack => *sum = sum.saturating_add(weight),
            _ => {
                stacks.push(sample.stack);
                weights.push(weight);
            }
        }
    }
    let mut tracks: Vec<Track> = threads
        .into_iter()
        .map(|(id, (stacks, weights))| {
            let thread = profile.thread(id);
            let mut name = format!("{} (tid {})", visible(&thread.name), thread.tid);
            if profile.processes.len() > 1 {
                name = format!("{}: {name}", labels.process(thread.process));
            }
            stacks.iter().for_each(|&stack| frames.add(stack));
            let end_value = weights.iter().fold(0, |sum: u64, &w| sum.saturating_add(w));
            Track {
                name: format!("{before}{name}"),
                unit: unit(selection),
                end_value,
                stacks,
                weights,
            }
        })
        .collect();
    tracks.sort_by_key(|track| std::cmp::Reverse(track.end_value));
    tracks
}

/// Frames in order of first use.
struct FrameTable<'a, 'p> {
    labels: &'a Labels<'p>,
    profile: &'p Profile,
    /// By method.
    known: HashMap<u32, u32>,
    /// The frame that stands for callers left out.
    cut: Option<u32>,
    list: Vec<SpeedscopeFrame>,
    /// By stack: whether its frames are in the table.
    seen: Vec<bool>,
}

impl FrameTable<'_, '_> {
    /// Adds the frames of a stack.
    fn add(&mut self, stack: StackId) {
        if std::mem::replace(&mut self.seen[stack.0 as usize], true) {
            return;
        }
        for frame in self.profile.frames_of(stack).take(DEEPEST) {
            self.frame(frame);
        }
        if self.cut.is_none() && self.is_too_deep(stack) {
            self.cut = Some(self.list.len() as u32);
            self.list.push(SpeedscopeFrame {
                name: "[cut: too deep for speedscope]".to_owned(),
                file: None,
            });
        }
    }

    fn is_too_deep(&self, stack: StackId) -> bool {
        self.profile.frames_of(stack).nth(DEEPEST).is_some()
    }

    /// Returns the frames of an added stack, root first.
    fn stack(&self, stack: StackId) -> Vec<u32> {
        let leaf_part = self.profile.frames_of(stack).take(DEEPEST);
        let mut frames: Vec<u32> = leaf_part
            .map(|frame| self.known[&self.labels.method(frame)])
            .collect();
        frames.extend(self.cut.filter(|_| self.is_too_deep(stack)));
        frames.reverse();
        frames
    }

    fn frame(&mut self, id: FrameId) -> u32 {
        let method = self.labels.method(id);
        if let Some(&at) = self.known.get(&method) {
            return at;
        }
        let frame = self.profile.frame(id);
        let at = self.list.len() as u32;
        self.known.insert(method, at);
        self.list.push(SpeedscopeFrame {
            name: self.labels.name(id).to_owned(),
            // Where no source is known, the file of code tells frames apart.
            file: self
                .labels
                .file(frame)
                .or_else(|| frame.module.map(|module| self.labels.module_path(module))),
        });
        at
    }
}
