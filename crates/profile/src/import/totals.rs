//! Totals of a recording for `inspect` and the end of a report, without stacks and samples.
//!
//! A stack is kept as a [`StackSummary`] and samples as sums, so memory is proportional to the
//! recording's distinct stacks and much smaller than the profile's. Invariant: the totals equal the
//! profile's, except for the number of stack nodes, which is the recording's here.

use std::io;

use hashbrown::HashMap;
use recording::{Event, Reader, WalkEnd};

use super::process::{ProcessImport, lost_frame};
use super::{Import, MAX_VALUE};
use crate::builder::Builder;
use crate::clocks;
use crate::model::{FrameId, FrameKind, Health, Profile};
use crate::ops::{Counts, RuntimeSets, Weight, add, most_first};

/// A profile without stacks and samples, and their counts.
#[derive(Debug)]
pub struct Totals {
    /// The profile without stacks and samples.
    pub profile: Profile,
    /// Numbers of samples.
    pub counts: Counts,
}

/// The facts about a stack that sums need.
#[derive(Clone, Copy)]
pub(super) struct StackSummary {
    pub(super) frames: u16,
    pub(super) unknown: u16,
    pub(super) root: FrameId,
    /// Index of its set of runtimes in [`RuntimeSets`].
    set: u32,
    /// Whether the leaf is the agent's own frame.
    is_agent: bool,
    /// Whether part of it was in a damaged block.
    pub(super) lost: bool,
}

impl StackSummary {
    /// Returns the facts of `parent` with one more frame.
    pub(super) fn below(
        parent: Option<StackSummary>,
        frame: FrameId,
        kind: FrameKind,
    ) -> StackSummary {
        let (frames, unknown, root) = parent.map_or((0, 0, frame), |parent| {
            (parent.frames, parent.unknown, parent.root)
        });
        let set = parent.map_or(0, |parent| parent.set);
        StackSummary {
            frames: frames.saturating_add(u16::from(kind != FrameKind::Pseudo)),
            unknown: unknown.saturating_add(u16::from(kind == FrameKind::Unknown)),
            root,
            set,
            is_agent: false,
            lost: false,
        }
    }
}

/// Sums over samples, as the honest line has them.
#[derive(Default)]
pub(super) struct SampleSums {
    pub(super) broken: HashMap<FrameId, u64>,
    /// Number of chains by root frame, including complete ones.
    pub(super) chains: HashMap<FrameId, u64>,
    /// Values of CPU samples.
    pub(super) cpu: Vec<u64>,
}

impl SampleSums {
    /// Adds a sample with these stacks.
    pub(super) fn add(
        &mut self,
        health: &mut Health,
        (event, value, end): (Event, u64, WalkEnd),
        physical: StackSummary,
        logical: Option<StackSummary>,
    ) {
        if event == Event::Cpu {
            self.cpu.push(value);
        }
        // Suspended methods were found, not sampled: nothing is lost of them.
        if event == Event::Suspended {
            return;
        }
        health.samples += 1;
        health.frames += u64::from(physical.frames);
        health.unknown_frames += u64::from(physical.unknown);
        if let Some(logical) = logical {
            health.chains += 1;
            *self.chains.entry(logical.root).or_default() += 1;
        }
        match end {
            WalkEnd::Root => {}
            WalkEnd::Truncated => health.truncated += 1,
            WalkEnd::Broken => *self.broken.entry(physical.root).or_default() += 1,
        }
    }
}

/// Counts of samples that are not kept.
pub(super) struct SampleCounter {
    counts: Counts,
    /// By code.
    events: Vec<(Event, Weight)>,
    sets: RuntimeSets,
}

impl Default for SampleCounter {
    fn default() -> Self {
        let events = (0u8..).map_while(Event::from_code);
        Self {
            counts: Counts::default(),
            events: events.map(|event| (event, Weight::default())).collect(),
            sets: RuntimeSets::default(),
        }
    }
}

impl SampleCounter {
    /// A stack of the recording.
    pub(super) fn stack(
        &mut self,
        state: &mut ProcessImport,
        builder: &mut Builder,
        (stack, parent, frame): (u32, Option<u32>, u32),
    ) {
        self.counts.stacks += 1;
        let mut lost = false;
        let parent = parent.map(|parent| match state.nodes.get(parent) {
            Some(known) => known,
            None => lost_stack(builder),
        });
        lost |= parent.is_some_and(|parent| parent.lost);
        let frame = match state.frames.get(frame) {
            Some(frame) => frame,
            None => lost_frame(builder),
        };
        lost |= frame == lost_frame(builder);
        let is_agent = state.is_agent(frame);
        if let Some(parent) = parent.filter(|parent| is_agent && parent.is_agent) {
            state.nodes.set(stack, parent);
            return;
        }
        let known = builder.profile.frame(frame);
        let mut node = StackSummary::below(parent, frame, known.kind);
        node.set = self.sets.with(node.set, known.runtime);
        (node.is_agent, node.lost) = (is_agent, lost);
        state.nodes.set(stack, node);
    }

    /// A sample of the recording; whether part of it lay in a damaged block.
    pub(super) fn sample(
        &mut self,
        sample_sums: &mut SampleSums,
        state: &ProcessImport,
        builder: &mut Builder,
        (event, value, end): (Event, u64, WalkEnd),
        (stack, logical): (u32, Option<u32>),
    ) -> bool {
        let node = match state.nodes.get(stack) {
            Some(node) => node,
            None => lost_stack(builder),
        };
        let logical = logical.and_then(|id| state.nodes.get(id));
        let logical = logical.filter(|node| !node.lost);
        let end = if node.lost { WalkEnd::Broken } else { end };
        sample_sums.add(
            &mut builder.profile.health,
            (event, value, end),
            node,
            logical,
        );
        self.events[event as usize].1 += Weight::of(value);
        add(&mut self.counts.by_process, state.id.0);
        for runtime in self.sets.runtimes(node.set) {
            add(&mut self.counts.by_runtime, runtime.0);
        }
        node.lost
    }

    fn finish(mut self, profile: &Profile) -> Counts {
        most_first(&mut self.events);
        self.counts.events = self.events;
        self.counts.by_process.resize(profile.processes.len(), 0);
        self.counts.by_runtime.resize(profile.runtimes.len(), 0);
        self.counts
    }
}

fn lost_stack(builder: &mut Builder) -> StackSummary {
    let frame = lost_frame(builder);
    let mut node = StackSummary::below(None, frame, FrameKind::Pseudo);
    node.lost = true;
    node
}

impl Import {
    /// Reads a recording to its end and keeps its totals alone.
    ///
    /// # Errors
    /// Those of [`Import::read`].
    pub fn totals<R: io::Read>(reader: Reader<R>) -> io::Result<Totals> {
        let import = Import {
            keeps_locations: true,
            counting: Some(SampleCounter::default()),
            ..Import::default()
        };
        let mut import = import.with_all(reader)?;
        import.finish_sums();
        let counting = import.counting.take().unwrap_or_default();
        import.name_frames();
        clocks::align(&mut import.builder.profile);
        let profile = import.builder.finish();
        let counts = counting.finish(&profile);
        Ok(Totals { profile, counts })
    }

    /// Counts an object that is alive at the end.
    pub(super) fn count_live(
        &mut self,
        index: usize,
        (event, value, end): (Event, u64, WalkEnd),
        (stack, logical): (u32, Option<u32>),
    ) {
        let value = value.min(MAX_VALUE - self.values);
        self.values += value;
        let Import {
            builder,
            processes,
            sample_sums,
            counting,
            ..
        } = self;
        if let Some(counting) = counting {
            let what = (event, value, end);
            counting.sample(
                sample_sums,
                &processes[index],
                builder,
                what,
                (stack, logical),
            );
        }
    }
}
