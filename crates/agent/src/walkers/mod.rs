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
//! | `shadow` | in hooks on every call; here their trees are written | `shadow`, `crate::hooks` |
//! | `snapshot` | in callbacks, on the current thread, for events | `snapshot` |
//!
//! For the stacks of events without it, our own walk of the current thread is in `here`. The crate
//! `oracle` holds them against each other.
//!
//! Invariant: while a runtime stands still the agent thread takes no lock, allocates nothing and
//! calls nothing of the runtime but `EnumThreads`, `DoStackSnapshot`, `GetFunctionFromIP` and
//! `ResumeRuntime`; everything else is done before and after (rules 15 to 20 of the articles).

mod dump;
pub mod here;
mod merge;
pub mod seed;
mod shadow;
mod signal;
pub mod snapshot;
pub mod stopped;
mod suspend;

use std::borrow::Cow;

use recording::Event;
use sampler::{Reader, SampleEvent, Sampler, SlotId};

use crate::clr::Runtimes;
use crate::hooks::ShadowStacks;
use crate::model::{Settings, WalkerKind};
use crate::program::Program;
use crate::record::Recorder;

/// The means of a walker in one round of the agent thread.
pub(crate) struct Round<'a, 'r> {
    pub(crate) program: &'static Program,
    pub(crate) runtimes: Runtimes<'r>,
    pub(crate) reader: &'a mut Reader,
    /// Slots that were given back; whose threads they were can be forgotten.
    pub(crate) closed: Vec<SlotId>,
    /// CLOCK_MONOTONIC.
    pub(crate) now_ns: u64,
}

impl Round<'_, '_> {
    /// For a walker that takes nothing from the sampler's rings.
    fn empty_rings(&mut self) {
        let closed = &mut self.closed;
        self.reader.drain_all(|_, _| {}, |slot| closed.push(slot));
    }
}

/// Returns the recording's name of an event of the sampler's.
fn event_of(event: SampleEvent) -> Event {
    match event {
        SampleEvent::Cpu => Event::Cpu,
        SampleEvent::Wall => Event::Wall,
    }
}

/// A walker of stacks that are taken by time. Agent thread only.
pub(crate) trait Walker {
    /// When [`Walker::round`] must be called at the latest, CLOCK_MONOTONIC; `None`: at any
    /// round of the agent thread.
    fn due_ns(&self) -> Option<u64>;

    /// Asks threads for the samples that are due, where that is all that a round would have to do
    /// for it; else false.
    fn tick(&mut self, _reader: &mut Reader, _now_ns: u64) -> bool {
        false
    }

    /// Takes the stacks that are due, and empties the sampler's rings.
    fn round(&mut self, round: &mut Round<'_, '_>, recorder: &mut Recorder);

    /// Whether a dump has the stack of this thread.
    fn has_stack_of(&self, _thread: u32) -> bool {
        false
    }

    /// A managed thread ended, with so much CPU time used in all.
    fn thread_ended(&mut self, _thread: u32, _cpu_ns: u64) {}

    /// Its name, for [`Record::Engine`].
    fn name(&self) -> &'static str;

    /// How it takes its samples, for [`Record::Engine`].
    fn engine(&self, event: Event) -> &'static str;

    /// A runtime, or the recording, is about to end: writes what has been kept back.
    fn finish(&mut self, _round: &mut Round<'_, '_>, _recorder: &mut Recorder) {}

    /// Takes the numbers of stacks that could not be taken since the last call, by reason.
    fn lost(&mut self) -> Vec<(Cow<'static, str>, u64)> {
        Vec::new()
    }

    /// Bytes held.
    fn memory(&self) -> u64 {
        0
    }
}

/// The parts of which a walker is made.
pub(crate) struct WalkerInputs<'a> {
    pub(crate) program: &'static Program,
    pub(crate) settings: &'a Settings,
    pub(crate) sampler: &'static Sampler,
    /// Where the process has hooks.
    pub(crate) shadow: Option<&'static ShadowStacks>,
    pub(crate) now_ns: u64,
}

/// The walker of a session: the table in which a new one is entered.
pub(crate) fn make(inputs: &WalkerInputs<'_>) -> Box<dyn Walker> {
    if inputs.settings.dump {
        return Box::new(dump::DumpWalker::new(inputs));
    }
    match (inputs.settings.walker, inputs.shadow) {
        (WalkerKind::Suspend, _) => Box::new(suspend::SuspendWalker::new(inputs, false)),
        (WalkerKind::Seeded, _) => Box::new(suspend::SuspendWalker::new(inputs, true)),
        (WalkerKind::Shadow, Some(stacks)) => Box::new(shadow::ShadowWalker::new(inputs, stacks)),
        // `snapshot` takes the stacks of events only.
        (WalkerKind::Signal | WalkerKind::Snapshot | WalkerKind::Shadow, _) => {
            Box::new(signal::SignalWalker::new(inputs))
        }
    }
}
