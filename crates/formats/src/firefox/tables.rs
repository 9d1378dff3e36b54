//! Tables of strings, frames and stacks of a track: the format shares none between tracks.

use std::borrow::Cow;
use std::collections::HashMap;

use profile::Profile;
use profile::model::{Pause, Sample, StackId, StringId};

use super::categories::CategoryPair;
use super::{SamplesByThread, Track};
use crate::forest::{MergedStacks, NONE};
use crate::labels::FrameKeys;
use crate::select::unit_name;
use crate::visible::visible;
use crate::wording::amount;

/// The frames and stacks of all tracks.
pub(super) struct SharedTables {
    /// Labels and categories: the frames that differ in the file.
    frames: Vec<(String, CategoryPair)>,
    stacks: MergedStacks,
}

impl SharedTables {
    /// `frames`: what each of `keys` looks like.
    pub(super) fn new(
        profile: &Profile,
        keys: &FrameKeys,
        frames: impl Iterator<Item = (String, CategoryPair)>,
    ) -> Self {
        Self {
            frames: frames.collect(),
            stacks: MergedStacks::new(profile, &keys.of_frame),
        }
    }

    pub(super) fn category(&self, frame: u32) -> CategoryPair {
        self.frames[frame as usize].1
    }

    /// The stack of a caller ([`NONE`] at the root) and the frame.
    pub(super) fn stack(&self, stack: u32) -> (u32, u32) {
        self.stacks.nodes[stack as usize]
    }
}

/// The tables of one track. Everything is numbered in the order in which it first occurs.
#[derive(Default)]
pub(super) struct Tables {
    /// Of [`SharedTables`].
    pub(super) stacks: Numbering,
    /// Of [`SharedTables`].
    pub(super) frames: Numbering,
    /// By frame.
    pub(super) functions_of_frames: Vec<u32>,
    /// Numbers of the strings that name functions.
    pub(super) functions: Numbering,
    pub(super) strings: Strings,
    /// Values of the markers of samples, then of pauses: numbers of strings.
    pub(super) markers: Vec<MarkerStrings>,
    /// Number of samples.
    pub(super) samples: usize,
    missing: Vec<u32>,
}

/// The strings of a marker by their numbers.
#[derive(Clone, Copy)]
pub(super) struct MarkerStrings {
    pub(super) name: u32,
    pub(super) about: u32,
    pub(super) value: u32,
}

impl Tables {
    /// Replaces the tables by those of a track.
    pub(super) fn fill(
        &mut self,
        profile: &Profile,
        shared: &SharedTables,
        track: &Track,
        samples: &SamplesByThread,
    ) {
        self.clear();
        for sample in samples.of(profile, track.thread) {
            let is_marker = track.has_markers && super::is_marker(sample.event);
            let is_sample = sample.event == track.event;
            if is_marker || is_sample {
                self.add_stack(shared, sample.stack);
            }
            if is_marker {
                self.add_marker(&sample_texts(profile, sample));
            }
            self.samples += usize::from(is_sample);
        }
        for pause in &track.pauses {
            self.add_marker(&pause_texts(pause));
        }
    }

    fn clear(&mut self) {
        self.stacks.clear();
        self.frames.clear();
        self.functions_of_frames.clear();
        self.functions.clear();
        self.strings.clear();
        self.markers.clear();
        self.samples = 0;
    }

    /// The number of a sample's stack.
    pub(super) fn stack_of(&self, shared: &SharedTables, sample: &Sample) -> Option<u32> {
        let SharedTables { stacks, .. } = shared;
        self.stacks.get(stacks.of_stack[sample.stack.0 as usize])
    }

    fn add_stack(&mut self, shared: &SharedTables, stack: StackId) {
        // From the leaf to the first caller that is there, then back.
        let mut next = shared.stacks.of_stack[stack.0 as usize];
        while next != NONE && self.stacks.get(next).is_none() {
            self.missing.push(next);
            next = shared.stack(next).0;
        }
        while let Some(stack) = self.missing.pop() {
            self.stacks.number(stack);
            self.add_frame(shared, shared.stack(stack).1);
        }
    }

    fn add_frame(&mut self, shared: &SharedTables, frame: u32) {
        if self.frames.get(frame).is_some() {
            return;
        }
        self.frames.number(frame);
        let label = self.strings.number(&shared.frames[frame as usize].0);
        self.functions_of_frames.push(self.functions.number(label));
    }

    fn add_marker(&mut self, texts: &MarkerTexts) {
        self.markers.push(MarkerStrings {
            name: self.strings.number(texts.name),
            about: self.strings.number(&texts.about),
            value: self.strings.number(&texts.value),
        });
    }
}

/// Texts of a marker.
pub(super) struct MarkerTexts<'p> {
    name: &'static str,
    about: Cow<'p, str>,
    pub(super) text: Cow<'p, str>,
    value: String,
}

pub(super) fn sample_texts<'p>(profile: &'p Profile, sample: &Sample) -> MarkerTexts<'p> {
    let detail = sample.detail.map(|id| profile.detail(id));
    let shown = |string: Option<StringId>| {
        let text = string.map_or("", |id| profile.string(id));
        if text.is_empty() {
            Cow::Borrowed("")
        } else {
            visible(text)
        }
    };
    MarkerTexts {
        name: sample.event.name(),
        about: shown(detail.map(|detail| detail.name)),
        text: shown(detail.map(|detail| detail.text)),
        value: amount(sample.value, unit_name(sample.event.unit())),
    }
}

pub(super) fn pause_texts(pause: &Pause) -> MarkerTexts<'static> {
    let time = |ns| amount(ns, "nanoseconds");
    MarkerTexts {
        name: "runtime stopped",
        about: "for a walk".into(),
        text: format!("{} until it had stopped", time(pause.stopping_ns)).into(),
        value: time(pause.stopped_ns),
    }
}

/// Numbers for small integers, in the order in which they first occur.
#[derive(Default)]
pub(super) struct Numbering {
    /// By item; [`NONE`] where it has none.
    numbers: Vec<u32>,
    /// By number.
    pub(super) items: Vec<u32>,
}

impl Numbering {
    pub(super) fn get(&self, item: u32) -> Option<u32> {
        let number = self.numbers.get(item as usize).copied();
        number.filter(|number| *number != NONE)
    }

    fn number(&mut self, item: u32) -> u32 {
        if let Some(known) = self.get(item) {
            return known;
        }
        if self.numbers.len() <= item as usize {
            self.numbers.resize(item as usize + 1, NONE);
        }
        let number = self.items.len() as u32;
        self.numbers[item as usize] = number;
        self.items.push(item);
        number
    }

    /// Takes as long as there are items with a number.
    fn clear(&mut self) {
        for item in self.items.drain(..) {
            self.numbers[item as usize] = NONE;
        }
    }
}

/// Strings, numbered in the order in which they first occur.
#[derive(Default)]
pub(super) struct Strings {
    numbers: HashMap<String, u32>,
}

impl Strings {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(known) = self.numbers.get(text) {
            return *known;
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// By number.
    pub(super) fn list(&self) -> Vec<&str> {
        let mut list = vec![""; self.numbers.len()];
        for (text, number) in &self.numbers {
            list[*number as usize] = text;
        }
        list
    }

    fn clear(&mut self) {
        self.numbers.clear();
    }
}
