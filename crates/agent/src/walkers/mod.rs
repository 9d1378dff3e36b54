//! The walkers: who takes the stacks of samples, behind one trait.
//!
//! A walker gives stacks as lists of addresses with marks, the shape that `resolve` makes frames
//! of, each for a thread, a time and an event. It names nothing. Which walkers there are:
//!
//! | walker | where it runs | module |
//! | --- | --- | --- |
//! | `signal` | in a handler on the thread that is walked; here its rings are emptied | `signal` |
//! | `suspend` | here: the runtime stands still, `DoStackSnapshot` of each thread | `suspend` |
//! | `seeded` | as `suspend`, its holes filled by our own walk of the same instant | `suspend`, `seed`, `merge` |
//! | `shadow` | in hooks on every call; here their trees are written | `shadow`, `crate::shadow` |
//! | `snapshot` | in callbacks, on the current thread, for events | `here` |
//!
//! `agree` is the oracle that holds them against each other.
//!
//! Invariant: while a runtime stands still the agent thread takes no lock, allocates nothing and
//! calls nothing of the runtime but `EnumThreads`, `DoStackSnapshot`, `GetFunctionFromIP` and
//! `ResumeRuntime`; everything else is done before and after (rules 15 to 20 of the articles).

pub(crate) mod agree;
pub(crate) mod here;
mod merge;
mod seed;
mod shadow;
mod signal;
mod stopped;
mod suspend;

use std::borrow::Cow;

use recording::{Event, Record};
use sampler::{Reader, SampleEvent, SlotId};

pub(crate) use stopped::Target;

use crate::agent::Agent;
use crate::config;
use crate::drain::Runtimes;
use crate::resolve::RawSample;
use crate::shadow::Pen;

/// A word of a stack stands for a whole run of unmanaged frames, of which a walker knows no more;
/// beside [`stackwalk::EXACT`] and its kin. The address is where the run begins, or 0.
pub(crate) const NATIVE_RUN: u64 = 1 << 60;

/// Where a walker's stacks go.
pub(crate) trait Sink {
    /// One stack, after the runtimes have resumed: names may be asked for now.
    fn stack(&mut self, runtimes: &mut Runtimes<'_>, stack: RawSample<'_>);
    /// A fact about the walks.
    fn record(&mut self, record: &Record<'_>);
    /// For a walker that writes its stacks itself.
    fn pen<'s, 'r>(&'s mut self, runtimes: &'s mut Runtimes<'r>) -> Pen<'s, 'r>;
}

/// What a walker works with in one round of the agent thread.
pub(crate) struct Round<'a, 'r> {
    pub(crate) agent: &'static Agent,
    pub(crate) runtimes: Runtimes<'r>,
    pub(crate) reader: &'a mut Reader,
    /// Slots that were given back; whose threads they were can be forgotten.
    pub(crate) closed: &'a mut Vec<SlotId>,
    /// CLOCK_MONOTONIC.
    pub(crate) now_ns: u64,
}

impl Round<'_, '_> {
    /// For a walker that takes nothing from the sampler's rings.
    fn empty_rings(&mut self) {
        let closed = &mut *self.closed;
        self.reader.drain_all(|_, _| {}, |slot| closed.push(slot));
    }
}

/// What the recording calls an event of the sampler's.
fn event_of(event: SampleEvent) -> Event {
    match event {
        SampleEvent::Cpu => Event::Cpu,
        SampleEvent::Wall => Event::Wall,
    }
}

/// What takes stacks by time. Agent thread only.
pub(crate) trait Walker {
    /// When [`Walker::round`] must be called at the latest, CLOCK_MONOTONIC; `None`: at any
    /// round of the agent thread.
    fn due_ns(&self) -> Option<u64>;

    /// Takes the stacks that are due, and empties the sampler's rings.
    fn round(&mut self, round: &mut Round<'_, '_>, sink: &mut dyn Sink);

    /// A managed thread ended, with so much CPU time used in all.
    fn thread_ended(&mut self, _thread: u32, _cpu_ns: u64) {}

    /// Its name, for [`Record::Engine`].
    fn name(&self) -> &'static str;

    /// How it takes its samples, for [`Record::Engine`].
    fn engine(&self, event: Event) -> &'static str;

    /// A runtime, or the recording, is about to end: writes what has been kept back.
    fn finish(&mut self, _round: &mut Round<'_, '_>, _sink: &mut dyn Sink) {}

    /// What could not be taken since the last call, by reason.
    fn lost(&mut self) -> Vec<(Cow<'static, str>, u64)> {
        Vec::new()
    }

    /// Bytes held.
    fn memory(&self) -> u64 {
        0
    }
}

/// The walker of this process.
pub(crate) fn of(agent: &'static Agent) -> Box<dyn Walker> {
    match agent.config.walker {
        config::Walker::Suspend => Box::new(suspend::Suspend::new(agent, false)),
        config::Walker::Seeded => Box::new(suspend::Suspend::new(agent, true)),
        config::Walker::Shadow => match &agent.shadow {
            Some(shadow) => Box::new(shadow::Shadow::new(agent, shadow)),
            None => Box::new(signal::Signal::new(agent)),
        },
        _ => Box::new(signal::Signal::new(agent)),
    }
}

/// The events that are sampled by time, by the walker of this process.
pub(crate) fn timed(config: &config::Config) -> Vec<Event> {
    [Event::Cpu, Event::Wall]
        .into_iter()
        .filter(|event| config.events.has(*event))
        .collect()
}
