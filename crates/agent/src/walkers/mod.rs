//! The walkers: implementations of `Walker`, which collect the stacks of samples.
//!
//! A walker returns stacks as lists of addresses with marks, each with a thread, a time and an
//! event. `record::resolve` makes named frames of them. The walkers:
//!
//! | walker | where it walks | module |
//! | --- | --- | --- |
//! | `signal` | in a signal handler on the walked thread; the module drains the ring buffers | `signal` |
//! | `suspend` | on the agent thread, with the runtime suspended: `DoStackSnapshot` of each thread | `suspend` |
//! | `seeded` | as `suspend`, with missing frames added from the agent's own walk of the same instant | `suspend`, `seed`, `merge` |
//! | `shadow` | in hooks on every call; the module writes their call trees | `shadow`, `crate::hooks` |
//! | `snapshot` | in callbacks, on the current thread, for events | `snapshot` |
//!
//! Without `snapshot`, `here` walks the current thread for events. The crate `oracle` compares the
//! walkers.
//!
//! Invariant: while a runtime is suspended, the agent thread takes no lock, allocates nothing and
//! calls nothing of the runtime but `EnumThreads`, `DoStackSnapshot`, `GetFunctionFromIP` and
//! `ResumeRuntime`. Everything else is done before and after (rules 15 to 20 of the articles).

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

/// The parts that a walker may use in one round (drain of the ring buffers) of the agent thread.
pub(crate) struct Round<'a, 'r> {
    pub(crate) program: &'static Program,
    pub(crate) runtimes: Runtimes<'r>,
    pub(crate) reader: &'a mut Reader,
    /// Slots that the sampler has closed. Their threads can be dropped.
    pub(crate) closed: Vec<SlotId>,
    /// CLOCK_MONOTONIC.
    pub(crate) now_ns: u64,
}

impl Round<'_, '_> {
    /// Drains the ring buffers, for a walker that does not use their samples.
    fn empty_rings(&mut self) {
        let closed = &mut self.closed;
        self.reader.drain_all(|_, _| {}, |slot| closed.push(slot));
    }
}

/// Converts the sampler's event to the recording's.
fn event_of(event: SampleEvent) -> Event {
    match event {
        SampleEvent::Cpu => Event::Cpu,
        SampleEvent::Wall => Event::Wall,
    }
}

/// A walker for time-based samples. Agent thread only.
pub(crate) trait Walker {
    /// Returns the latest time for the next [`Walker::round`], CLOCK_MONOTONIC. `None`: any round
    /// of the agent thread.
    fn due_ns(&self) -> Option<u64>;

    /// Signals threads for the samples that are due, if a round would do nothing else for this
    /// walker. Returns false otherwise.
    fn tick(&mut self, _reader: &mut Reader, _now_ns: u64) -> bool {
        false
    }

    /// Takes the stacks that are due, and drains the ring buffers.
    fn round(&mut self, round: &mut Round<'_, '_>, recorder: &mut Recorder);

    /// Whether a dump has the stack of this thread.
    fn has_stack_of(&self, _thread: u32) -> bool {
        false
    }

    /// Notes that a managed thread ended, with its total CPU time.
    fn thread_ended(&mut self, _thread: u32, _cpu_ns: u64) {}

    /// Returns the walker's name, for [`Record::Engine`].
    fn name(&self) -> &'static str;

    /// Returns the name of the engine that triggers its samples, for [`Record::Engine`].
    fn engine(&self, event: Event) -> &'static str;

    /// Writes what has been held back, as a runtime or the recording is about to end.
    fn finish(&mut self, _round: &mut Round<'_, '_>, _recorder: &mut Recorder) {}

    /// Takes the numbers of lost stacks since the last call, by reason.
    fn lost(&mut self) -> Vec<(Cow<'static, str>, u64)> {
        Vec::new()
    }

    /// Returns the bytes held.
    fn memory(&self) -> u64 {
        0
    }
}

/// Inputs for the creation of a walker.
pub(crate) struct WalkerInputs<'a> {
    pub(crate) program: &'static Program,
    pub(crate) settings: &'a Settings,
    pub(crate) sampler: &'static Sampler,
    /// Set if the process has hooks.
    pub(crate) shadow: Option<&'static ShadowStacks>,
    pub(crate) now_ns: u64,
}

/// Creates the walker of a session.
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
