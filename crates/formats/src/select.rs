//! Which samples an output is about, and what one weighs.

use profile::Profile;
use profile::model::{Event, Sample};

use crate::options::{Options, Weight};

/// The word for an event, as the command line has it.
pub const fn event_name(event: Event) -> &'static str {
    match event {
        Event::Cpu => "cpu",
        Event::Wall => "wall",
        Event::Exception => "exception",
        Event::Alloc => "alloc",
        Event::Contention => "contention",
        Event::Gc => "gc",
        Event::Jit => "jit",
        Event::ClassLoad => "class-load",
        Event::ModuleLoad => "module-load",
    }
}

/// The unit of an event's values: `nanoseconds`, `bytes` or `count`.
pub const fn event_unit(event: Event) -> &'static str {
    match event {
        Event::Cpu | Event::Wall | Event::Contention | Event::Gc | Event::Jit => "nanoseconds",
        Event::Alloc => "bytes",
        Event::Exception | Event::ClassLoad | Event::ModuleLoad => "count",
    }
}

/// Totals of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventTotals {
    pub(crate) event: Event,
    pub(crate) samples: u64,
    pub(crate) value: u64,
}

/// The events of a profile, the one that outputs show first at the front.
pub(crate) fn events(profile: &Profile) -> Vec<EventTotals> {
    let mut found: Vec<EventTotals> = Vec::new();
    for sample in &profile.samples {
        let at = found
            .iter()
            .position(|t| t.event == sample.event)
            .unwrap_or_else(|| {
                found.push(EventTotals {
                    event: sample.event,
                    samples: 0,
                    value: 0,
                });
                found.len() - 1
            });
        found[at].samples += 1;
        found[at].value = found[at].value.saturating_add(sample.value);
    }
    found.sort_by_key(|t| {
        let rank = match t.event {
            Event::Cpu => 0,
            Event::Wall => 1,
            _ => 2,
        };
        (rank, std::cmp::Reverse(t.samples), t.event as u8)
    });
    found
}

/// The samples of one event, and what each weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) event: Event,
    /// Weighs by value, else each sample weighs 1.
    pub(crate) by_value: bool,
    pub(crate) samples: u64,
    pub(crate) value: u64,
}

impl Selection {
    /// What `options` ask for; `counts` says that the format's readers expect counts of CPU samples.
    pub(crate) fn new(profile: &Profile, options: &Options, counts: bool) -> Self {
        let all = events(profile);
        let event = options
            .event
            .or_else(|| all.first().map(|t| t.event))
            .unwrap_or(Event::Cpu);
        let totals = all
            .into_iter()
            .find(|t| t.event == event)
            .unwrap_or(EventTotals {
                event,
                samples: 0,
                value: 0,
            });
        let by_value = match options.weight {
            Weight::Samples => false,
            Weight::Value => true,
            Weight::Auto => totals.value > 0 && !(counts && event == Event::Cpu),
        };
        Self {
            event,
            by_value,
            samples: totals.samples,
            value: totals.value,
        }
    }

    /// What everything selected weighs.
    pub(crate) fn total(&self) -> u64 {
        if self.by_value {
            self.value
        } else {
            self.samples
        }
    }

    /// The unit of weights.
    pub(crate) fn unit(&self) -> &'static str {
        if self.by_value {
            event_unit(self.event)
        } else {
            "samples"
        }
    }

    /// What a sample weighs.
    pub(crate) fn weigh(&self, sample: &Sample) -> u64 {
        if self.by_value { sample.value } else { 1 }
    }

    /// The selected samples.
    pub(crate) fn samples<'p>(
        &self,
        profile: &'p Profile,
    ) -> impl Iterator<Item = &'p Sample> + use<'p> {
        let event = self.event;
        profile.samples.iter().filter(move |s| s.event == event)
    }
}
