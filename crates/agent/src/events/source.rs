//! The sources of events, in one table: what each needs of a CLR, and what it says of itself.
//!
//! To add an event: a module here with its callbacks and an `EventSource`, entered in `SOURCES`.
//! Nothing here is asked while events happen.

use corprof::{EventMaskHigh, EventMaskLow};
use recording::Event;

use super::{alloc, contention, exception, gc, jit, live, loads};
use crate::model::Settings;

/// How a session comes to a CLR: what it can ask for depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubscribeTime {
    /// The CLR starts: everything can be had.
    Startup,
    /// The CLR runs, because we were attached or because this is another session: only what can be
    /// asked for at any time (`COR_PRF_ALLOWABLE_AFTER_ATTACH`, src/coreclr/inc/corprof.idl).
    Attached,
}

/// Facts about a CLR, known before it is asked for events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeFacts {
    /// `8.0.4`.
    pub version: String,
    /// Its first part; 4 for .NET Core 3.1.
    pub major: u16,
    /// It lets a profiler listen to its own events (`ICorProfilerInfo12`, .NET 5 on).
    pub event_pipe: bool,
    /// It gives a profiler handles of objects (`ICorProfilerInfo13`, .NET 7 on).
    pub handles: bool,
    /// We came to it while it ran, and have asked for stack snapshots then: the walkers that need
    /// them have them.
    pub snapshots: bool,
}

/// The question that a source is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceQuery<'a> {
    pub(super) settings: &'a Settings,
    pub(super) how: SubscribeTime,
    pub(super) runtime: &'a RuntimeFacts,
}

/// The needs of a source, and its description of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Need {
    pub(super) low: EventMaskLow,
    pub(super) high: EventMaskHigh,
    /// Keywords and level of a session with the runtime's own events; 0 for none.
    pub(super) keywords: u64,
    pub(super) level: u32,
    /// That session is one of its own, which may be ended and begun again meanwhile (`duty_cycle`).
    pub(super) is_apart: bool,
    /// For reports.
    pub(super) source: &'static str,
    /// About how much one sample stands for, in the event's unit; 0 for one.
    pub(super) interval: u64,
}

impl Need {
    /// Nothing that is not told in any case.
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

/// Where samples of an event come from.
pub(super) trait EventSource: Sync {
    /// Returns the source's event.
    fn event(&self) -> Event;

    /// Returns its needs of a CLR.
    ///
    /// # Errors
    /// It cannot be had there; the text says so to users.
    fn need(&self, asked: SourceQuery<'_>) -> Result<Need, String>;
}

/// All of them.
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
                // The last one is a part of a dump.
                Event::Cpu | Event::Wall | Event::Call | Event::TracedCall | Event::Suspended => 0,
                _ => 1,
            };
            assert_eq!(sources.count(), expected, "{event:?}");
        }
    }
}
