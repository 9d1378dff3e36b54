//! The two handles: [`Sampler`] for everybody, [`Reader`] for the agent thread.

use core::ops::Range;

use crate::config::{Config, EngineKind, Error, WalkFn};
use crate::counters::Counters;

/// A registered thread. Stays unique when its slot is used again for another thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotId(pub(crate) u64);

impl SlotId {
    /// A dense index (below 4096), for tables. Used again after the slot was drained for the
    /// last time ([`Reader::drain_all`] says when).
    pub const fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// One sample, lent to the callback of [`Reader::drain_all`].
#[derive(Clone, Copy, Debug)]
pub struct SampleView<'a> {
    /// When, CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Nanoseconds of CPU time (wall engine: of elapsed time) it stands for.
    pub value: u64,
    /// Intervals it stands for: 1, or more where the timer ticks slower than asked, a signal
    /// was late, or an idle thread's samples were joined.
    pub count: u32,
    /// [`crate::WalkResult::end`].
    pub end: u8,
    /// The words that the walker wrote, leaf first.
    pub frames: &'a [u64],
}

/// The running sampler. Its methods may be called on any thread, but not in a signal handler.
#[derive(Debug)]
pub struct Sampler {
    _private: (),
}

impl Sampler {
    /// Installs the handler and chooses the engine. Samples nobody yet.
    ///
    /// One sampler per process: a second call gives [`Error::AlreadyStarted`] until
    /// [`Sampler::stop`] was called and the old [`Reader`] dropped.
    pub fn start(_config: Config, _walk: WalkFn) -> Result<(&'static Sampler, Reader), Error> {
        Err(Error::Config("not built yet"))
    }

    /// The engine at work.
    pub fn engine(&self) -> EngineKind {
        EngineKind::Timer
    }

    /// The engine's name for reports, e.g. `perf task-clock`.
    pub fn engine_name(&self) -> &'static str {
        self.engine().name()
    }

    /// Registers thread `tid` of this process and, if `stack` is given, starts to sample it.
    /// `stack` is the thread's whole stack, low address to end (exclusive). Costs some
    /// microseconds. The thread may be the calling one.
    ///
    /// Without `stack` the thread is not sampled until [`Sampler::set_stack`]; see
    /// [`Sampler::hello`].
    pub fn register(&self, _tid: u32, _stack: Option<Range<u64>>) -> Result<SlotId, Error> {
        Err(Error::TooManyThreads)
    }

    /// Stops sampling the thread. May be called by the thread itself or any other, while a
    /// signal is pending or being handled, after the thread is gone, and twice. What its ring
    /// holds is still given to [`Reader::drain_all`].
    pub fn unregister(&self, _slot: SlotId) {}

    /// Tells the stack of a thread that was registered without one, and starts to sample it.
    pub fn set_stack(&self, _slot: SlotId, _stack: Range<u64>) -> Result<(), Error> {
        Err(Error::StaleSlot)
    }

    /// Sends one signal to the thread, whose handler only notes its stack pointer.
    /// [`Reader::take_hello`] gives it, after a wake-up by [`Reader::wake_fd`]. Look the mapping
    /// up in `/proc/self/maps` and call [`Sampler::set_stack`].
    pub fn hello(&self, _slot: SlotId) -> Result<(), Error> {
        Err(Error::StaleSlot)
    }

    /// Whether the handler is still the one installed for the signal. If not, somebody replaced
    /// it: call [`Sampler::stop`].
    pub fn handler_in_place(&self) -> bool {
        false
    }

    /// Stops all timers. The handler stays installed and ignores what still arrives: putting
    /// SIG_DFL back would let a late signal end the process. Slots stay registered until
    /// unregistered; rings can still be drained.
    pub fn stop(&self) {}
}

/// The consumer's side: one per sampler, kept by the agent thread.
#[derive(Debug)]
pub struct Reader {
    _private: (),
}

impl Reader {
    /// A file descriptor (eventfd, close-on-exec) to poll for reading. It becomes readable when a
    /// ring is half full, a [`Sampler::hello`] was answered, or many threads have ended; then
    /// call [`Reader::clear_wake`] and drain. Drain at regular intervals all the same.
    pub fn wake_fd(&self) -> i32 {
        -1
    }

    /// Makes [`Reader::wake_fd`] unreadable again. Call it before draining.
    pub fn clear_wake(&mut self) {}

    /// Gives each sample of each slot in use to `sink`, oldest first within a slot, and frees the
    /// slots of unregistered threads once they are empty: `closed` is told, after which the
    /// slot's index may come back for another thread.
    pub fn drain_all(
        &mut self,
        _sink: impl FnMut(SlotId, SampleView<'_>),
        _closed: impl FnMut(SlotId),
    ) {
    }

    /// Gives the samples of one slot. Nothing for a stale one.
    pub fn drain(&mut self, _slot: SlotId, _sink: impl FnMut(SampleView<'_>)) {}

    /// Wall engine: call it once per interval. Signals each registered thread that has used CPU
    /// time since its last sample; for the others the time is added to a repeat of the last
    /// sample, which comes out of `drain*` when the thread moves, when it ends, or after about a
    /// second. `now_ns` is CLOCK_MONOTONIC. Does nothing with other engines.
    pub fn wall_tick(&mut self, _now_ns: u64) {}

    /// The stack pointer that a [`Sampler::hello`] brought, once.
    pub fn take_hello(&mut self, _slot: SlotId) -> Option<u64> {
        None
    }

    /// What happened since the last call.
    pub fn take_counters(&mut self) -> Counters {
        Counters::default()
    }
}
