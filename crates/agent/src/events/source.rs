//! Table of the event sources: what each event needs of a CLR, and how reports describe it.
//!
//! To add an event, write a module here with its callbacks and an `EventSource`, and enter that in
//! `SOURCES`. Used when a session subscribes, never while events happen.

use corprof::{EventMaskHigh, EventMaskLow};
use recording::Event;

use super::{alloc, contention, exception, gc, jit, live, loads};
use crate::model::Settings;

/// When a session subscribes to a CLR's events, which limits what it can request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubscribeTime {
    /// At the CLR's start: everything is available.
    Startup,
    /// In a running CLR, after an attach or for a later session: only what can be requested at any
    /// time (`COR_PRF_ALLOWABLE_AFTER_ATTACH`, src/coreclr/inc/corprof.idl).
    Attached,
}

/// Facts about a CLR, known before the subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeFacts {
    /// Version, such as `8.0.4`.
    pub version: String,
    /// Major version; 4 for .NET Core 3.1.
    pub major: u16,
    /// Whether a profiler can open EventPipe sessions (`ICorProfilerInfo12`, .NET 5 on).
    pub event_pipe: bool,
    /// Whether a profiler can create object handles (`ICorProfilerInfo13`, .NET 7 on).
    pub handles: bool,
    /// Whether an attach enabled stack snapshots, for the walkers that need them.
    pub snapshots: bool,
}

/// Input of [`EventSource::need`].
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceQuery<'a> {
    pub(super) settings: &'a Settings,
    pub(super) how: SubscribeTime,
    pub(super) runtime: &'a RuntimeFacts,
}

/// The needs of a source, and its description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Need {
    pub(super) low: EventMaskLow,
    pub(super) high: EventMaskHigh,
    /// Keywords and level of an EventPipe session; 0 for none.
    pub(super) keywords: u64,
    pub(super) level: u32,
    /// Whether the source needs a separate session, which may be paused and resumed (`duty_cycle`).
    pub(super) is_apart: bool,
    /// Name of the source in reports.
    pub(super) source: &'static str,
    /// Approximate weight of a sample, in the event's unit; 0 for one.
    pub(super) interval: u64,
}

impl Need {
    /// Returns the needs of a source that uses only callbacks that are always enabled.
    pub(super) const fn nothing(source: &'static str) -> Need {
        Need {
            low: EventMaskLow::empty(),
            high: EventMaskHigh::empty(),
            keywords: 0,
            level: 0,
            is_apart: false,
            source,
            interval: 0,
        }
    }
}

/// A source of samples of one event.
pub(super) trait EventSource: Sync {
    /// Returns the source's event.
    fn event(&self) -> Event;

    /// Returns its needs of a CLR.
    ///
    /// # Errors
    /// The event is unavailable there; the text explains it to users.
    fn need(&self, asked: SourceQuery<'_>) -> Result<Need, String>;
}

/// All event sources.
pub(super) const SOURCES: [&dyn EventSource; 8] = [
    &alloc::Allocations,
    &live::LiveHeap,
    &exception::Exceptions,
    &contention::Contentions,
    &gc::Collections,
    &jit::Compilations,
    &loads::ModuleLoads,
    &loads::ClassLoads,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_that_is_not_sampled_by_time_has_one_source() {
        for event in crate::model::EventSet::of_bits(u16::MAX).iter() {
            let sources = SOURCES.iter().filter(|source| source.event() == event);
            let expected = match event {
                // `Suspended` belongs to a dump.
                Event::Cpu | Event::Wall | Event::Call | Event::TracedCall | Event::Suspended => 0,
                _ => 1,
            };
            assert_eq!(sources.count(), expected, "{event:?}");
        }
    }
}
