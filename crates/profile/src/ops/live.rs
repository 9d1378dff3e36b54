//! Live heap by type: amount, age and growth.
//!
//! Amount and age are computed from a profile's samples, so filters and ranges apply: a range of
//! time selects objects by when they were allocated. Growth is the change from the first to the
//! last snapshot in the range, of whole processes; other filters do not affect it.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::model::{DetailId, Event, LiveHeap, LiveSum, ProcessId, Profile, Sample, StringId};

/// The live objects of one type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LiveType {
    /// Its name.
    pub name: StringId,
    /// The live objects.
    pub alive: LiveSum,
    /// Live objects at the first and the last snapshot of all processes, if the time range has two.
    pub grown: Option<(LiveSum, LiveSum)>,
    /// Median age of the bytes at the last snapshot, in nanoseconds.
    pub median_age_ns: u64,
    /// Age of the oldest object, in nanoseconds.
    pub oldest_ns: u64,
    /// Median number of collections that the bytes have survived.
    pub median_collections: u64,
    /// Maximum number of collections that an object has survived.
    pub most_collections: u64,
}

/// Returns the size in the detail of an allocation, in bytes; 0 if it has none.
///
/// ```
/// assert_eq!(profile::ops::size_in("24 bytes"), 24);
/// assert_eq!(profile::ops::size_in("of no size"), 0);
/// ```
#[must_use]
pub fn size_in(text: &str) -> u64 {
    let number = text.strip_suffix(" bytes");
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

/// Returns the approximate number of objects that a sample of an allocation represents; 1 if its
/// size is unknown.
#[must_use]
pub fn objects_of(profile: &Profile, sample: &Sample) -> f64 {
    let text = sample.detail.map(|id| profile.detail(id).text);
    match text.map_or(0, |text| size_in(profile.string(text))) {
        0 => 1.0,
        size => sample.value as f64 / size as f64,
    }
}

/// Returns the types of the live objects, most bytes first.
#[must_use]
pub fn live_types(profile: &Profile) -> Vec<LiveType> {
    let heaps: HashMap<ProcessId, &LiveHeap> =
        profile.live.iter().map(|of| (of.process, of)).collect();
    // By type: age, collections, bytes.
    let mut objects: BTreeMap<StringId, Vec<(u64, u64, u64)>> = BTreeMap::new();
    let mut alive: HashMap<StringId, LiveSum> = HashMap::new();
    let mut sizes: HashMap<DetailId, u64> = HashMap::new();
    let samples = profile.samples.iter();
    for sample in samples.filter(|sample| sample.event == Event::Live) {
        let Some(id) = sample.detail else { continue };
        let detail = profile.detail(id);
        let size = *sizes
            .entry(id)
            .or_insert_with(|| size_in(profile.string(detail.text)));
        alive
            .entry(detail.name)
            .or_default()
            .add(sample.value, size);
        let heap = heaps.get(&profile.thread(sample.thread).process);
        let age = heap.map_or((0, 0), |heap| heap.age_of(sample.time_ns));
        let of = objects.entry(detail.name).or_default();
        of.push((age.0, age.1, sample.value));
    }
    let grown = grown(profile);
    // Types that are gone altogether are listed too.
    for name in grown.iter().flat_map(|grown| grown.keys()) {
        objects.entry(*name).or_default();
    }
    let each = objects.into_iter().map(|(name, mut of)| {
        let half = of.iter().fold(0u64, |sum, one| sum.saturating_add(one.2)) / 2;
        let mut median = |key: fn(&(u64, u64, u64)) -> u64| {
            of.sort_unstable_by_key(key);
            let mut below = 0u64;
            let middle = of.iter().find(|one| {
                below = below.saturating_add(one.2);
                below > half
            });
            (middle.map_or(0, key), of.last().map_or(0, key))
        };
        let (median_age_ns, oldest_ns) = median(|one| one.0);
        let (median_collections, most_collections) = median(|one| one.1);
        let grown = grown
            .as_ref()
            .map(|grown| grown.get(&name).copied().unwrap_or_default());
        LiveType {
            name,
            alive: alive.get(&name).copied().unwrap_or_default(),
            grown,
            median_age_ns,
            oldest_ns,
            median_collections,
            most_collections,
        }
    });
    let mut types: Vec<LiveType> = each.collect();
    types.sort_by(|a, b| {
        let names = || profile.string(a.name).cmp(profile.string(b.name));
        b.alive.bytes.cmp(&a.alive.bytes).then_with(names)
    });
    types
}

/// By type, what was alive at the first instant and at the last; `None` where no process has two.
fn grown(profile: &Profile) -> Option<BTreeMap<StringId, (LiveSum, LiveSum)>> {
    let with_two = profile
        .live
        .iter()
        .filter_map(|heap| match &heap.moments[..] {
            [first, .., last] => Some((first, last)),
            _ => None,
        });
    let mut with_two = with_two.peekable();
    with_two.peek()?;
    let mut types: BTreeMap<StringId, (LiveSum, LiveSum)> = BTreeMap::new();
    for (first, last) in with_two {
        for (name, sum) in &first.types {
            types.entry(*name).or_default().0.join(*sum);
        }
        for (name, sum) in &last.types {
            types.entry(*name).or_default().1.join(*sum);
        }
    }
    Some(types)
}
