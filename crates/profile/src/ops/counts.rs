//! Sample counts by process, runtime and event.
//!
//! Invariant: a sample counts once for its process, once for its event, and once for each runtime
//! with a frame in its stack.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::{Weight, events};
use crate::model::{Event, Profile, RuntimeId};

/// Numbers of samples.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Events with samples and their weights, most samples first.
    pub events: Vec<(Event, Weight)>,
    /// By process.
    pub by_process: Vec<u64>,
    /// By runtime: samples with a frame of it anywhere in the stack.
    pub by_runtime: Vec<u64>,
    /// Number of nodes of the stack trees.
    pub stacks: u64,
}

impl Counts {
    /// Returns the counts of a profile with samples.
    #[must_use]
    pub fn of(profile: &Profile) -> Counts {
        let mut by_process = vec![0; profile.processes.len()];
        for sample in &profile.samples {
            let process = profile.threads[sample.thread.0 as usize].process;
            add(&mut by_process, process.0);
        }
        let mut sets = RuntimeSets::default();
        let mut set_of: Vec<u32> = Vec::with_capacity(profile.stacks.len());
        for stack in &profile.stacks {
            let above = stack.parent.map_or(0, |p| set_of[p.0 as usize]);
            set_of.push(sets.with(above, profile.frames[stack.frame.0 as usize].runtime));
        }
        let mut by_runtime = vec![0; profile.runtimes.len()];
        for sample in &profile.samples {
            for runtime in sets.runtimes(set_of[sample.stack.0 as usize]) {
                add(&mut by_runtime, runtime.0);
            }
        }
        Counts {
            events: events(profile),
            by_process,
            by_runtime,
            stacks: profile.stacks.len() as u64,
        }
    }
}

/// Increments the count at `index`, and grows `counts` if necessary.
pub(crate) fn add(counts: &mut Vec<u64>, index: u32) {
    let index = index as usize;
    if index >= counts.len() {
        counts.resize(index + 1, 0);
    }
    counts[index] += 1;
}

/// Sorts by number of samples, the order of [`Counts::events`].
pub(crate) fn most_first(weights: &mut Vec<(Event, Weight)>) {
    weights.retain(|(_, weight)| weight.samples > 0);
    weights.sort_by_key(|(_, weight)| Reverse(weight.samples));
}

/// The distinct sets of runtimes of all stacks.
pub(crate) struct RuntimeSets {
    /// The first set is empty.
    sets: Vec<Vec<RuntimeId>>,
    larger: HashMap<(u32, RuntimeId), u32>,
}

impl Default for RuntimeSets {
    fn default() -> Self {
        Self {
            sets: vec![Vec::new()],
            larger: HashMap::new(),
        }
    }
}

impl RuntimeSets {
    /// The set `above` and this runtime.
    pub(crate) fn with(&mut self, above: u32, runtime: Option<RuntimeId>) -> u32 {
        let Some(runtime) = runtime.filter(|of| !self.sets[above as usize].contains(of)) else {
            return above;
        };
        *self.larger.entry((above, runtime)).or_insert_with(|| {
            let mut set = self.sets[above as usize].clone();
            set.push(runtime);
            self.sets.push(set);
            self.sets.len() as u32 - 1
        })
    }

    pub(crate) fn runtimes(&self, set: u32) -> &[RuntimeId] {
        &self.sets[set as usize]
    }
}
