//! Selection of an output's samples by event, and the weight of a sample.

use std::borrow::Cow;

use profile::Profile;
use profile::model::{Event, Sample, Unit};
use profile::ops::{self, Weight as Sum};

use crate::options::{OutputOptions, WeightBy};

/// Returns the word for a unit.
pub(crate) const fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Nanoseconds => "nanoseconds",
        Unit::Bytes => "bytes",
        Unit::Count => "count",
    }
}

/// Returns the events of a profile. The first is the one that outputs show first.
pub(crate) fn events(profile: &Profile) -> Vec<(Event, Sum)> {
    let mut events = ops::events(profile);
    let main = ops::main_event(profile);
    // A stable sort keeps the order of the others.
    events.sort_by_key(|(event, _)| Some(*event) != main);
    events
}

/// Returns the profile with only the stack of each sample that the output shows.
pub(crate) fn with_stack_view<'p>(
    profile: &'p Profile,
    options: &OutputOptions,
) -> Cow<'p, Profile> {
    if ops::has_logical(profile) {
        Cow::Owned(ops::with_stack_view(profile.clone(), options.stacks))
    } else {
        Cow::Borrowed(profile)
    }
}

/// The same with frames for the subjects of events, if the options select them.
pub(crate) fn with_details_shown<'p>(
    profile: &'p Profile,
    options: &OutputOptions,
) -> Cow<'p, Profile> {
    with_details(with_stack_view(profile, options), options)
}

/// Adds frames for the subjects of events, if the options select them.
pub(crate) fn with_details<'p>(
    profile: Cow<'p, Profile>,
    options: &OutputOptions,
) -> Cow<'p, Profile> {
    if options.details && profile.samples.iter().any(|s| s.detail.is_some()) {
        Cow::Owned(ops::with_details(profile.into_owned()))
    } else {
        profile
    }
}

/// The samples of one event, and the weight of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) event: Event,
    /// Whether a sample weighs its value. Otherwise it weighs 1.
    pub(crate) by_value: bool,
    pub(crate) sum: Sum,
}

impl Selection {
    /// Returns the selection of `options`. `counts`: the format's readers expect counts of CPU
    /// samples.
    pub(crate) fn new(profile: &Profile, options: &OutputOptions, counts: bool) -> Self {
        let all = events(profile);
        let event = options
            .event
            .or_else(|| all.first().map(|(event, _)| *event));
        // Of a recording without samples, the event that was to be sampled.
        let sources = &profile.health.sources;
        let meant = profile.health.event;
        let meant = meant.or_else(|| sources.first().map(|source| source.event));
        let event = event.or(meant).unwrap_or(Event::Cpu);
        let found = all.into_iter().find(|(e, _)| *e == event);
        let sum = found.map(|(_, sum)| sum).unwrap_or_default();
        Self::of(event, sum, options, counts)
    }

    /// The same of one event, whose samples sum up to `sum`.
    pub(crate) fn of(event: Event, sum: Sum, options: &OutputOptions, counts: bool) -> Self {
        let by_value = match options.weight {
            WeightBy::Samples => false,
            WeightBy::Value => true,
            WeightBy::Auto => sum.value > 0 && !(counts && event == Event::Cpu),
        };
        Self {
            event,
            by_value,
            sum,
        }
    }

    /// The weight of everything selected.
    pub(crate) fn total(&self) -> u64 {
        self.weigh(self.sum)
    }

    /// The unit of weights.
    pub(crate) fn unit(&self) -> &'static str {
        if self.by_value {
            unit_name(self.event.unit())
        } else {
            "samples"
        }
    }

    /// The weight of a sum.
    pub(crate) fn weigh(&self, sum: Sum) -> u64 {
        if self.by_value {
            sum.value
        } else {
            sum.samples
        }
    }

    /// Whether it is about a sample.
    pub(crate) fn includes(&self, sample: &Sample) -> bool {
        sample.event == self.event
    }

    /// The samples that it is about.
    pub(crate) fn samples<'p>(
        &self,
        profile: &'p Profile,
    ) -> impl Iterator<Item = &'p Sample> + use<'p> {
        let event = self.event;
        profile.samples.iter().filter(move |s| s.event == event)
    }
}
