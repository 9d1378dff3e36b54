//! Live heap of one process during import.
//!
//! Holds the sampled objects that the records report as alive and not yet as collected. Invariant:
//! each object left at the end becomes a sample of the profile, with its weight at the last
//! snapshot.

use std::collections::BTreeMap;

use crate::model::{LiveHeap, LiveInstant, LiveMoment, LiveSum, ProcessId, Sample, StringId};

/// Maximum number of snapshots: 80 hours at one every ten seconds.
const MAX_INSTANTS: usize = 30_000;

/// Maximum number of types in all snapshots together.
const MAX_SUMS: usize = 100_000;

/// A live object.
#[derive(Clone, Copy)]
pub(super) struct Survivor {
    pub(super) sample: Sample,
    /// Its type.
    pub(super) type_name: Option<StringId>,
    /// Its size in bytes; 0 if unknown.
    pub(super) size: u64,
}

/// A surviving object, and how often all had been thinned out when it was reported.
#[derive(Clone, Copy)]
struct LiveObject(Survivor, u32);

impl LiveObject {
    /// Bytes that it represents now.
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

/// The sum of the live objects of a type.
#[derive(Clone, Copy, Default)]
struct TypeSum {
    /// Objects of known size.
    sized: LiveSum,
    /// Objects of unknown size. Each counts as one.
    others: LiveSum,
    /// How often all objects had been thinned out when the sum was made.
    thinned: u32,
}

impl TypeSum {
    /// Returns the sum adjusted to `thinned` thinnings. Applied on reading, as with [`LiveObject`].
    fn now(mut self, thinned: u32) -> TypeSum {
        let times = thinned - self.thinned;
        self.sized.objects *= 2.0f64.powf(f64::from(times));
        for part in [&mut self.sized, &mut self.others] {
            part.bytes = doubled(part.bytes, times);
        }
        TypeSum { thinned, ..self }
    }

    fn sum_for(&mut self, size: u64) -> &mut LiveSum {
        match size {
            0 => &mut self.others,
            _ => &mut self.sized,
        }
    }

    fn whole(mut self) -> LiveSum {
        self.sized.join(self.others);
        self.sized
    }
}

/// Moments of which every so many instants is one, so many that there is room for all.
struct Moments {
    kept: Vec<LiveMoment>,
    /// In all of them.
    sums: usize,
    /// Every so many instants is kept.
    every: usize,
    /// Instants that there have been.
    seen: usize,
    room: usize,
}

impl Default for Moments {
    fn default() -> Moments {
        Moments {
            kept: Vec::new(),
            sums: 0,
            every: 1,
            seen: 0,
            room: MAX_SUMS,
        }
    }
}

impl Moments {
    fn instant(&mut self, make: impl FnOnce() -> LiveMoment) {
        let is_one = self.seen.is_multiple_of(self.every);
        self.seen += 1;
        if is_one {
            self.push(make());
        }
        while self.sums > self.room && self.kept.len() > 2 {
            self.every = self.every.saturating_mul(2);
            let mut at = 0;
            self.kept.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.sums = self.kept.iter().map(sums_of).sum();
        }
    }

    fn push(&mut self, moment: LiveMoment) {
        self.sums += sums_of(&moment);
        self.kept.push(moment);
    }
}

/// The sums of a moment; one without a type takes something too.
fn sums_of(moment: &LiveMoment) -> usize {
    moment.types.len() + 1
}

/// The live heap of a process, as known so far.
#[derive(Default)]
pub(super) struct LiveHeapImport {
    /// By number.
    alive: BTreeMap<u32, LiveObject>,
    /// How often all have been thinned out. Not done one by one: a hostile recording may say so a
    /// million times.
    thinned: u32,
    /// The bytes that the live ones stand for.
    bytes: u64,
    /// The same by type.
    types: BTreeMap<StringId, TypeSum>,
    instants: Vec<LiveInstant>,
    moments: Moments,
    /// How many collections had ended when, as samples and instants tell it.
    collections: Vec<(u64, u64)>,
}

impl LiveHeapImport {
    pub(super) fn add(&mut self, number: u32, survivor: Survivor, collections: u64) {
        let value = survivor.sample.value;
        self.collections
            .push((survivor.sample.time_ns, collections));
        self.bytes = self.bytes.saturating_add(value);
        if let Some(name) = survivor.type_name {
            let sum = self.types.entry(name).or_default();
            *sum = sum.now(self.thinned);
            sum.sum_for(survivor.size).add(value, survivor.size);
        }
        let before = self
            .alive
            .insert(number, LiveObject(survivor, self.thinned));
        self.subtract(before);
    }

    fn subtract(&mut self, object: Option<LiveObject>) {
        let Some(object) = object else { return };
        let bytes = object.bytes(self.thinned);
        self.bytes = self.bytes.saturating_sub(bytes);
        let Some(name) = object.0.type_name else {
            return;
        };
        if let Some(sum) = self.types.get_mut(&name) {
            *sum = sum.now(self.thinned);
            sum.sum_for(object.0.size).take(bytes, object.0.size);
            if sum.whole().samples == 0 {
                self.types.remove(&name);
            }
        }
    }

    pub(super) fn remove(&mut self, numbers: &[u32]) {
        for number in numbers {
            let object = self.alive.remove(number);
            self.subtract(object);
        }
    }

    pub(super) fn thin(&mut self, dropped: &[u32]) {
        self.remove(dropped);
        self.thinned = self.thinned.saturating_add(1);
        self.bytes = self.bytes.saturating_mul(2);
    }

    pub(super) fn instant(&mut self, time_ns: u64, collections: u64) {
        let (types, thinned) = (&self.types, self.thinned);
        self.moments
            .instant(|| moment((time_ns, collections), types, thinned));
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

    /// The objects that are left, in the order in which they were reported, and what else is known
    /// of the process; `None` where the live heap was not asked for.
    pub(super) fn finish(self, process: ProcessId) -> (Vec<Sample>, Option<LiveHeap>) {
        let samples = self.alive.values().map(|object| Sample {
            value: object.bytes(self.thinned),
            ..object.0.sample
        });
        let samples: Vec<Sample> = samples.collect();
        let mut collections = self.collections;
        collections.sort_unstable();
        collections.dedup_by_key(|(time_ns, _)| *time_ns);
        let mut moments = self.moments;
        let last = self.instants.last();
        // Objects that have gone since are not alive at the end; the last instant is at the end,
        // but in a recording that was cut.
        if let Some(last) =
            last.filter(|last| moments.kept.last().map(|m| m.time_ns) != Some(last.time_ns))
        {
            let at = (last.time_ns, last.collections);
            moments.push(moment(at, &self.types, self.thinned));
        }
        let heap = (!self.instants.is_empty() || !samples.is_empty()).then_some(LiveHeap {
            process,
            instants: self.instants,
            moments: moments.kept,
            collections,
        });
        (samples, heap)
    }
}

fn moment(
    (time_ns, collections): (u64, u64),
    types: &BTreeMap<StringId, TypeSum>,
    thinned: u32,
) -> LiveMoment {
    let types = types.iter();
    LiveMoment {
        time_ns,
        collections,
        types: types
            .map(|(name, sum)| (*name, sum.now(thinned).whole()))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{Event, StackId, ThreadId, WalkEnd};

    use super::*;

    /// The first one stays, and the others are as far apart as they have to be.
    #[test]
    fn moments_have_room() {
        let sum = LiveSum::default();
        let types: BTreeMap<_, _> = (0..9).map(|id| (StringId(id), sum)).collect();
        let at = |time_ns| LiveMoment {
            time_ns,
            collections: 0,
            types: types.clone(),
        };
        let mut moments = Moments {
            room: 100,
            ..Moments::default()
        };
        for time_ns in 0..1000 {
            moments.instant(|| at(time_ns));
        }
        let times: Vec<u64> = moments.kept.iter().map(|moment| moment.time_ns).collect();
        let wanted: Vec<u64> = (0..1000).step_by(moments.every).collect();
        assert_eq!(times, wanted);
        assert!((5..=10).contains(&times.len()), "{times:?}");
    }

    /// Sums and those that are summed up are thinned out alike, whenever that is done.
    #[test]
    fn sums_are_of_those_that_are_alive() {
        let name = StringId(7);
        let mut live = LiveHeapImport::default();
        let object = |value: u64, size| Survivor {
            sample: Sample {
                thread: ThreadId(0),
                stack: StackId(0),
                logical: None,
                time_ns: 0,
                event: Event::Live,
                value,
                end: WalkEnd::Root,
                detail: None,
            },
            type_name: Some(name),
            size,
        };
        live.add(0, object(1000, 100), 0);
        live.add(1, object(500, 0), 0);
        live.thin(&[]);
        live.thin(&[]);
        live.add(2, object(300, 100), 0);
        let now = |live: &LiveHeapImport| live.types[&name].now(live.thinned).whole();
        let sum = now(&live);
        assert_eq!((sum.bytes, sum.objects, sum.samples), (6300, 44.0, 3));
        assert_eq!(sum.bytes, live.bytes);
        live.remove(&[0]);
        let sum = now(&live);
        assert_eq!((sum.bytes, sum.objects, sum.samples), (2300, 4.0, 2));
        live.remove(&[1, 2, 9]);
        assert!(live.types.is_empty() && live.bytes == 0);
    }

    #[test]
    fn doubling_ends_at_what_a_number_holds() {
        assert_eq!((doubled(3, 0), doubled(3, 4)), (3, 48));
        assert_eq!(doubled(0, 5_000_000), 0);
        assert_eq!((doubled(1, 63), doubled(1, 64)), (1 << 63, u64::MAX));
    }
}
