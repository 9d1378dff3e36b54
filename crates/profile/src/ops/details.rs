//! Details of events (the allocated type, the exception's type) as leaf frames and as texts.
//!
//! Invariant: samples, their values and their order do not change; a stack grows by one leaf only.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::Weight;
use crate::builder::Builder;
use crate::model::{
    DetailId, Event, Frame, FrameKind, Location, Profile, Sample, StackId, StringId,
};

/// Whether samples of `event` have a subject ([`Sample::detail`](crate::model::Sample::detail)).
#[must_use]
pub fn has_details(profile: &Profile, event: Event) -> bool {
    let mut samples = profile.samples.iter();
    samples.any(|sample| sample.event == event && sample.detail.is_some())
}

/// Returns the profile with each sample's subject as the leaf of its stack: a type of object above
/// the method that allocates it.
///
/// The frames have the kind [`FrameKind::Detail`] and the names of the details. Details of one name
/// with different texts are different frames of one method.
#[must_use]
pub fn with_details(mut profile: Profile) -> Profile {
    if profile.samples.iter().all(|sample| sample.detail.is_none()) {
        return profile;
    }
    let mut samples = std::mem::take(&mut profile.samples);
    let mut builder = Builder::from_profile(profile);
    let mut known: HashMap<(StackId, DetailId), StackId> = HashMap::new();
    for sample in &mut samples {
        let Some(id) = sample.detail else { continue };
        let mut with = |stack: StackId| {
            *known.entry((stack, id)).or_insert_with(|| {
                let name = builder.profile.detail(id).name;
                let frame = builder.frame(Frame {
                    location: Location::Detail(id),
                    ..Frame::new(name, FrameKind::Detail)
                });
                builder.stack(Some(stack), frame)
            })
        };
        sample.stack = with(sample.stack);
        if let Some(logical) = sample.logical {
            sample.logical = Some(with(logical));
        }
    }
    builder.profile.samples = samples;
    builder.finish()
}

/// Returns the texts of the details with one name and their numbers of samples, most first, for
/// samples selected by `include`. Details without a text are left out.
#[must_use]
pub fn texts(
    profile: &Profile,
    include: impl Fn(&Sample) -> bool,
) -> HashMap<(Event, StringId), Vec<(StringId, Weight)>> {
    let mut by_detail: HashMap<DetailId, Weight> = HashMap::new();
    for sample in profile.samples.iter().filter(|sample| include(sample)) {
        if let Some(detail) = sample.detail {
            *by_detail.entry(detail).or_default() += Weight::of(sample.value);
        }
    }
    let mut texts: HashMap<(Event, StringId), Vec<(StringId, Weight)>> = HashMap::new();
    for (id, weight) in by_detail {
        let detail = profile.detail(id);
        if !profile.string(detail.text).is_empty() {
            let of = texts.entry((detail.event, detail.name)).or_default();
            of.push((detail.text, weight));
        }
    }
    for of in texts.values_mut() {
        of.sort_by_key(|(text, weight)| (Reverse(weight.samples), profile.string(*text)));
    }
    texts
}
