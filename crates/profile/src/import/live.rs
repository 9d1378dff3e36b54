//! The live heap of one process, while its records come in.
//!
//! It holds who has been told to be alive and not to be gone. Invariant: whoever is left at the end is a sample of the profile,
//! worth what it stood for at the last instant.

use std::collections::BTreeMap;

use crate::model::{LiveHeap, LiveInstant, LiveSum, ProcessId, Sample, StringId};

/// The most instants that are kept: 80 hours at every ten seconds, told on.
const MAX_INSTANTS: usize = 30_000;

/// An object that is alive.
#[derive(Clone, Copy)]
pub(super) struct Survivor {
    pub(super) sample: Sample,
    /// Its type.
    pub(super) type_name: Option<StringId>,
    /// Its own size, bytes; 0 where that is not told.
    pub(super) size: u64,
}

/// A survivor, and how often all had been thinned out when it was told.
#[derive(Clone, Copy)]
struct Told(Survivor, u32);

impl Told {
    /// What it stands for now.
    fn bytes(&self, thinned: u32) -> u64 {
        doubled(self.0.sample.value, thinned - self.1)
    }
}

fn doubled(value: u64, times: u32) -> u64 {
    match value {
        0 => 0,
        value if times > value.leading_zeros() => u64::MAX,
        value => value << times,
    }
}

/// What is known of a process's live heap.
#[derive(Default)]
pub(super) struct Live {
    /// By number.
    alive: BTreeMap<u32, Told>,
    /// How often all have been thinned out. Not done one by one: a hostile recording may say so a million times.
    thinned: u32,
    /// What those that are alive stand for.
    bytes: u64,
    instants: Vec<LiveInstant>,
    first: BTreeMap<StringId, LiveSum>,
    /// How many collections had ended when, as samples and instants tell it.
    collections: Vec<(u64, u64)>,
}

impl Live {
    pub(super) fn survives(&mut self, number: u32, survivor: Survivor, collections: u64) {
        self.collections
            .push((survivor.sample.time_ns, collections));
        self.bytes = self.bytes.saturating_add(survivor.sample.value);
        let before = self.alive.insert(number, Told(survivor, self.thinned));
        self.left(before);
    }

    fn left(&mut self, told: Option<Told>) {
        let bytes = told.map_or(0, |told| told.bytes(self.thinned));
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub(super) fn gone(&mut self, numbers: &[u32]) {
        for number in numbers {
            let told = self.alive.remove(number);
            self.left(told);
        }
    }

    pub(super) fn thinned(&mut self, dropped: &[u32]) {
        self.gone(dropped);
        self.thinned = self.thinned.saturating_add(1);
        self.bytes = self.bytes.saturating_mul(2);
    }

    pub(super) fn instant(&mut self, time_ns: u64, collections: u64) {
        if self.instants.is_empty() {
            self.first = self.by_type();
        }
        self.collections.push((time_ns, collections));
        if self.instants.len() >= MAX_INSTANTS {
            self.instants.pop();
        }
        self.instants.push(LiveInstant {
            time_ns,
            collections,
            bytes: self.bytes,
        });
    }

    fn by_type(&self) -> BTreeMap<StringId, LiveSum> {
        let mut types: BTreeMap<StringId, LiveSum> = BTreeMap::new();
        for told in self.alive.values() {
            if let Some(name) = told.0.type_name {
                let sum = types.entry(name).or_default();
                sum.add(told.bytes(self.thinned), told.0.size);
            }
        }
        types
    }

    /// Who is left, in the order in which they were told, and what is known of the process beside; `None` where nobody asked
    /// for the live heap.
    pub(super) fn finish(self, process: ProcessId) -> (Vec<Sample>, Option<LiveHeap>) {
        let last = self.by_type();
        let samples = self.alive.values().map(|told| Sample {
            value: told.bytes(self.thinned),
            ..told.0.sample
        });
        let samples: Vec<Sample> = samples.collect();
        let mut collections = self.collections;
        collections.sort_unstable();
        collections.dedup_by_key(|(time_ns, _)| *time_ns);
        let heap = (!self.instants.is_empty() || !samples.is_empty()).then_some(LiveHeap {
            process,
            instants: self.instants,
            first: self.first,
            last,
            collections,
        });
        (samples, heap)
    }
}

#[cfg(test)]
mod tests {
    use super::doubled;

    #[test]
    fn doubling_ends_at_what_a_number_holds() {
        assert_eq!((doubled(3, 0), doubled(3, 4)), (3, 48));
        assert_eq!(doubled(0, 5_000_000), 0);
        assert_eq!((doubled(1, 63), doubled(1, 64)), (1 << 63, u64::MAX));
    }
}
