//! Comparison of recordings: changes of each row, and whether they exceed chance.
//!
//! Invariants: the shares of all rows of a side add up to 1. The probability that any change called
//! certain is none is at most the one requested, for all of them together.
//!
//! A side is divided into units: its recordings if both sides have three or more, since runs of a
//! program differ; else slices of time. A row's share is its sum over the units divided by the sum
//! of all rows; its variance is estimated from the differences between units (the ratio estimator
//! of sampling theory). Welch's test compares two shares, and Holm's method corrects for the number
//! of tests. Samples taken by a clock vary less than random ones; the variance used is at least
//! half of that of random samples.

use hashbrown::HashMap;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::Weight;
use super::group::{Group, GroupBy, Groups};
use crate::builder::Builder;
use crate::merge;
use crate::model::{Event, Frame, FrameId, Module, Profile, StackId};

/// Minimum number of recordings of a side for a comparison run by run.
const ENOUGH_RUNS: usize = 3;
/// Number of slices of a side with fewer recordings. Each recording gets at least a fifth of them.
const SLICES: usize = 40;
/// Minimum share of a row on either side to be tested: a thousandth.
const LEAST_SHARE: f64 = 0.001;

/// The usual [`DiffRequest::error`].
pub const ERROR: f64 = 0.01;

/// How amounts of the two sides are made comparable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scaling {
    /// Shares of everything sampled. For runs that did different work.
    #[default]
    Whole,
    /// Amounts for a second of recording. For services under the same load.
    Second,
}

/// The comparison to make.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DiffRequest {
    /// Samples of this event.
    pub event: Event,
    /// The kind of a row: [`GroupBy::Method`], [`GroupBy::Line`] or [`GroupBy::Module`].
    pub by: GroupBy,
    /// How amounts of the two sides are made comparable.
    pub per: Scaling,
    /// Probability that any of the changes reported as certain is none. Default: [`ERROR`].
    pub error: f64,
}

/// One of the two sides.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Side {
    /// Recordings.
    pub recordings: usize,
    /// Units (recordings or slices) that are compared.
    pub units: usize,
    /// Weight of all samples of the event.
    pub weight: Weight,
    /// Total duration of the recordings, in seconds.
    pub seconds: f64,
}

/// A row's amount before and after.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AmountPair {
    /// As sampled.
    pub weights: [Weight; 2],
    /// Comparable amounts: shares of the whole, or units of the event per second.
    pub amounts: [f64; 2],
    /// With what probability chance makes a difference as large as this; 1 where that was not
    /// tested.
    pub chance: f64,
    /// It is more than chance.
    pub certain: bool,
}

impl AmountPair {
    /// By so much it grew.
    #[must_use]
    pub fn difference(&self) -> f64 {
        self.amounts[1] - self.amounts[0]
    }

    /// Returns the change relative to the amount before; infinite if that was 0.
    #[must_use]
    pub fn relative(&self) -> f64 {
        match self.difference() {
            0.0 => 0.0,
            difference => difference / self.amounts[0],
        }
    }
}

/// One row.
#[derive(Clone, PartialEq, Debug)]
pub struct DiffRow {
    /// The group that it is.
    pub group: Group,
    /// Samples whose leaf it is.
    pub own: AmountPair,
    /// Samples that have it anywhere in their stack.
    pub total: AmountPair,
}

/// The answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Diff {
    /// Before and after.
    pub sides: [Side; 2],
    /// The groups that have samples on any side: the certain changes first, those that grew most of
    /// their own at the front; then the others, by how much they differ.
    pub rows: Vec<DiffRow>,
    /// Comparisons that were made.
    pub tested: usize,
}

/// Both sides as one profile, as [`diff`] takes it, and the number of the first recording of
/// `after` in it. What differs between builds and machines is left out: folders of files,
/// build-ids, versions of the CLR.
#[must_use]
pub fn merge_sides(
    before: Vec<(String, Profile)>,
    after: Vec<(String, Profile)>,
) -> (Profile, usize) {
    let first_after = before.len();
    let all = before.into_iter().chain(after);
    let comparable = all.map(|(name, profile)| (name, comparable(profile)));
    (merge(comparable.collect()), first_after)
}

fn comparable(mut profile: Profile) -> Profile {
    for module in &mut profile.modules {
        *module = Module {
            path: module.file_name().to_owned(),
            managed: module.managed,
            id_bytes: Vec::new(),
            bias: 0,
            file_offset: 0,
        };
    }
    // Modules that are the same now become one.
    let mut first: HashMap<(String, bool), u32> = HashMap::new();
    let same: Vec<u32> = (0u32..)
        .zip(&profile.modules)
        .map(|(id, module)| {
            let key = (module.path.clone(), module.managed);
            *first.entry(key).or_insert(id)
        })
        .collect();
    let frames = std::mem::take(&mut profile.frames);
    let stacks = std::mem::take(&mut profile.stacks);
    let mut builder = Builder::from_profile(profile);
    let frames: Vec<FrameId> = frames
        .into_iter()
        .map(|frame| {
            let module = frame.module.map(|mut module| {
                module.0 = same[module.0 as usize];
                module
            });
            builder.frame(Frame {
                module,
                runtime: None,
                ..frame
            })
        })
        .collect();
    let mut of: Vec<StackId> = Vec::with_capacity(stacks.len());
    for stack in stacks {
        let parent = stack.parent.map(|parent| of[parent.0 as usize]);
        of.push(builder.stack(parent, frames[stack.frame.0 as usize]));
    }
    for sample in &mut builder.profile.samples {
        sample.stack = of[sample.stack.0 as usize];
        sample.logical = sample.logical.map(|stack| of[stack.0 as usize]);
    }
    builder.finish()
}

/// One unit of a side.
#[derive(Clone, Copy, Default)]
struct SideUnit {
    weight: Weight,
    seconds: f64,
}

/// The units of both sides.
struct Units {
    /// Those of both sides, before first.
    parts: Vec<SideUnit>,
    /// Number of those of before.
    before: usize,
    /// By recording: its first unit, how many it has, when it began, how long it took
    /// (nanoseconds).
    of: Vec<(usize, usize, u64, u64)>,
}

impl Units {
    fn new(profile: &Profile, first_after: usize) -> Units {
        let count = profile.recordings.len().max(1);
        let sides = [0..first_after.min(count), first_after.min(count)..count];
        let by_run = sides.iter().all(|side| side.len() >= ENOUGH_RUNS);
        let mut begin = vec![u64::MAX; count];
        let mut end = vec![0u64; count];
        for process in &profile.processes {
            let at = process.recording;
            begin[at] = begin[at].min(process.start_ns);
            end[at] = end[at].max(process.end_ns);
        }
        // A process without a goodbye ends with its last sample.
        for sample in &profile.samples {
            let at = profile
                .process(profile.thread(sample.thread).process)
                .recording;
            end[at] = end[at].max(sample.time_ns);
        }
        let mut units = Units {
            parts: Vec::new(),
            before: 0,
            of: Vec::new(),
        };
        for (number, side) in sides.into_iter().enumerate() {
            let each = match by_run {
                true => 1,
                false => SLICES.div_ceil(side.len().max(1)).max(SLICES / 5),
            };
            for at in side {
                let length = end[at].saturating_sub(begin[at]).max(1);
                units.of.push((units.parts.len(), each, begin[at], length));
                let part = SideUnit {
                    seconds: length as f64 / 1e9 / each as f64,
                    ..SideUnit::default()
                };
                units.parts.resize(units.parts.len() + each, part);
            }
            if number == 0 {
                units.before = units.parts.len();
            }
        }
        units
    }

    /// The unit of a sample.
    fn at(&self, recording: usize, time_ns: u64) -> usize {
        let (first, count, begin, length) = self.of[recording];
        let offset = u128::from(time_ns.saturating_sub(begin)) * count as u128;
        let slice = usize::try_from(offset / u128::from(length)).unwrap_or(count);
        first + slice.min(count - 1)
    }
}

/// Compares the recordings of `profile` (of [`merge_sides`]) from `first_after` on with those
/// before.
#[must_use]
pub fn diff(profile: &Profile, first_after: usize, request: DiffRequest) -> Diff {
    let mut units = Units::new(profile, first_after);
    let groups = Groups::new(profile, request.by);
    // The weight of each stack in each unit.
    let mut weights: HashMap<(StackId, usize), Weight> = HashMap::new();
    let of_event = |event| event == request.event;
    for sample in profile.samples.iter().filter(|s| of_event(s.event)) {
        let process = profile.thread(sample.thread).process;
        let unit = units.at(profile.process(process).recording, sample.time_ns);
        let weight = Weight::of(sample.value);
        *weights.entry((sample.stack, unit)).or_default() += weight;
        units.parts[unit].weight += weight;
    }
    let none = vec![Weight::default(); units.parts.len()];
    let mut own: HashMap<u32, Vec<Weight>> = HashMap::new();
    let mut total: HashMap<u32, Vec<Weight>> = HashMap::new();
    let mut seen: Vec<u32> = Vec::new();
    for (&(stack, unit), &weight) in &weights {
        seen.clear();
        for frame in profile.frames_of(stack) {
            let group = groups.of(frame);
            if seen.is_empty() {
                own.entry(group).or_insert_with(|| none.clone())[unit] += weight;
            }
            if !seen.contains(&group) {
                seen.push(group);
                total.entry(group).or_insert_with(|| none.clone())[unit] += weight;
            }
        }
    }
    let by_value = units.parts.iter().any(|part| part.weight.value > 0);
    let measure = Measure {
        units: &units,
        per: request.per,
        by_value,
    };
    let mut rows: Vec<DiffRow> = total
        .iter()
        .map(|(group, of)| DiffRow {
            group: groups.groups[*group as usize].clone(),
            own: measure.compare(own.get(group).unwrap_or(&none)),
            total: measure.compare(of),
        })
        .collect();
    let tested = apply_holm(&mut rows, request.error);
    let order = |row: &DiffRow| {
        let (own, total) = (row.own.difference(), row.total.difference());
        match row.own.certain {
            true => (false, -own, -total),
            false => (true, -own.abs(), -total.abs()),
        }
    };
    rows.sort_by(|a, b| {
        let (a_rest, a_own, a_total) = order(a);
        let (b_rest, b_own, b_total) = order(b);
        a_rest
            .cmp(&b_rest)
            .then(a_own.total_cmp(&b_own))
            .then(a_total.total_cmp(&b_total))
            .then_with(|| a.group.label.cmp(&b.group.label))
    });
    let side = |parts: &[SideUnit], recordings| {
        let mut weight = Weight::default();
        parts.iter().for_each(|part| weight += part.weight);
        Side {
            recordings,
            units: parts.len(),
            weight,
            seconds: parts.iter().map(|part| part.seconds).sum(),
        }
    };
    let (before, after) = units.parts.split_at(units.before);
    let count = units.of.len();
    Diff {
        sides: [
            side(before, first_after.min(count)),
            side(after, count.saturating_sub(first_after)),
        ],
        rows,
        tested,
    }
}

/// Holm's method: the smallest chance is held to the strictest limit. Answers how many were tested.
/// A row that is always a leaf is tested once.
fn apply_holm(rows: &mut [DiffRow], error: f64) -> usize {
    let is_leaf = |row: &DiffRow| row.own.weights == row.total.weights;
    let mut all: Vec<&mut AmountPair> = rows
        .iter_mut()
        .flat_map(|row| {
            let total = (!is_leaf(row)).then_some(&mut row.total);
            [Some(&mut row.own), total].into_iter().flatten()
        })
        .filter(|of| of.chance < 1.0)
        .collect();
    let count = all.len();
    all.sort_by(|a, b| a.chance.total_cmp(&b.chance));
    for (rank, of) in all.into_iter().enumerate() {
        if of.chance > error / (count - rank) as f64 {
            break;
        }
        of.certain = true;
    }
    for row in rows.iter_mut().filter(|row| is_leaf(row)) {
        row.total = row.own;
    }
    count
}

struct Measure<'u> {
    units: &'u Units,
    per: Scaling,
    by_value: bool,
}

/// A share, how much it varies, and from how many units that is known.
struct Share {
    amount: f64,
    variance: f64,
    units: usize,
}

impl Measure<'_> {
    fn amount(&self, weight: Weight) -> f64 {
        match self.by_value {
            true => weight.value as f64,
            false => weight.samples as f64,
        }
    }

    fn compare(&self, weights: &[Weight]) -> AmountPair {
        let sum = |weights: &[Weight]| {
            let mut sum = Weight::default();
            weights.iter().for_each(|weight| sum += *weight);
            sum
        };
        let (before, after) = weights.split_at(self.units.before);
        let sums = [sum(before), sum(after)];
        // The amount that a sample stands for, where one side has none.
        let all = self.amount(sums[0]) + self.amount(sums[1]);
        let each = all / (sums[0].samples + sums[1].samples).max(1) as f64;
        let (old, new) = self.units.parts.split_at(self.units.before);
        let shares = [
            self.share(before, old, sums[0], each),
            self.share(after, new, sums[1], each),
        ];
        let parts = [(old, sums[0]), (new, sums[1])].map(|(parts, own)| {
            let all: u64 = parts.iter().map(|part| part.weight.samples).sum();
            own.samples as f64 / all.max(1) as f64
        });
        let is_large = parts.into_iter().any(|part| part >= LEAST_SHARE);
        AmountPair {
            weights: sums,
            amounts: [shares[0].amount, shares[1].amount],
            chance: if is_large { chance(&shares) } else { 1.0 },
            certain: false,
        }
    }

    fn share(&self, weights: &[Weight], parts: &[SideUnit], sum: Weight, each: f64) -> Share {
        let base = |part: &SideUnit| match self.per {
            Scaling::Whole => self.amount(part.weight),
            Scaling::Second => part.seconds,
        };
        let whole: f64 = parts.iter().map(base).sum();
        if whole <= 0.0 {
            return Share {
                amount: 0.0,
                variance: 0.0,
                units: 0,
            };
        }
        let amount = self.amount(sum) / whole;
        let squares: f64 = weights
            .iter()
            .zip(parts)
            .map(|(weight, part)| (self.amount(*weight) - amount * base(part)).powi(2))
            .sum();
        let count = parts.len() as f64;
        let of_units = squares * count / (count - 1.0).max(1.0) / (whole * whole);
        let at_random = each * each * sum.samples.max(1) as f64 / (whole * whole);
        let at_random = match self.per {
            Scaling::Whole => at_random * (1.0 - amount),
            Scaling::Second => at_random,
        };
        Share {
            amount,
            variance: of_units.max(at_random / 2.0),
            units: parts.len(),
        }
    }
}

/// Welch's test: with what probability shares that are the same look as different as these.
fn chance(shares: &[Share; 2]) -> f64 {
    let [before, after] = shares;
    let variance = before.variance + after.variance;
    if before.units < 2 || after.units < 2 || variance <= 0.0 {
        return 1.0;
    }
    let freedom = |share: &Share| share.variance.powi(2) / (share.units - 1) as f64;
    let freedom = variance * variance / (freedom(before) + freedom(after));
    let distance = (after.amount - before.amount).abs() / variance.sqrt();
    StudentsT::new(0.0, 1.0, freedom).map_or(1.0, |known| 2.0 * known.sf(distance))
}
