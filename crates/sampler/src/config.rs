//! The caller's part: configuration, the walk function, and the errors it can get back.

use core::fmt;

use crate::counters::DiscardReason;

/// Why a thread is not signalled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum HoldReason {
    /// Other code has put the shared signal onto the alternate stack (SA_ONSTACK), as Go's runtime
    /// does: there may be stacks on these threads too on which no handler has room. Since then, to
    /// the end of the process.
    Alternate = 1,
    /// A handler of faults lets the shared signal in on the alternate stack, and cannot be made to
    /// hold it off: it may be left for good (SA_NODEFER).
    Fault = 2,
    /// Other code has our own signal, or there was none left.
    Taken = 3,
    /// The thread ran on a stack that is not its own, and has no alternate one.
    Strayed = 4,
}

impl HoldReason {
    pub(crate) const ALL: [Self; 4] = [Self::Alternate, Self::Fault, Self::Taken, Self::Strayed];

    pub(crate) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|held| *held as u8 == number)
    }

    /// The reason by which a sample is counted that was not taken because of it.
    pub const fn reason(self) -> DiscardReason {
        match self {
            Self::Alternate => DiscardReason::MovedSignal,
            Self::Fault => DiscardReason::FaultHandler,
            Self::Taken => DiscardReason::SignalTaken,
            Self::Strayed => DiscardReason::LeftStack,
        }
    }
}

/// How CPU samples are timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EngineChoice {
    /// [`EngineKind::Timer`] up to the rate of the kernel's tick and in virtual machines, else
    /// [`EngineKind::Clock`].
    #[default]
    Auto,
    /// perf_event or an error.
    Perf,
    /// `timer_create`.
    Timer,
    /// The threads' clocks, looked at by the agent thread: [`crate::Reader::tick`].
    Clock,
    /// No CPU samples; wall-clock samples by [`crate::Reader::wall_tick`] each
    /// [`Config::interval_ns`].
    Wall,
    /// No samples by time: stacks only by [`crate::Reader::request_trace`], or none. Works as
    /// [`EngineKind::Wall`] without ticks.
    None,
}

/// The engine at work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EngineKind {
    /// One perf_event task clock for each thread, kernel time counted.
    PerfTaskClock = 1,
    /// The same where the kernel forbids kernel time: a tick that falls into the kernel is not
    /// delivered.
    PerfTaskClockUser = 2,
    /// One POSIX timer on each thread's CPU clock. It ticks at the kernel's HZ at most.
    Timer = 3,
    /// Wall clock, driven by the agent thread.
    Wall = 4,
    /// The agent thread looks at the threads' CPU clocks once per interval and signals those that
    /// run.
    Clock = 5,
}

impl EngineKind {
    /// The name for reports, with what a reader must know.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PerfTaskClock => "perf task-clock",
            Self::PerfTaskClockUser => "perf task-clock, user time only",
            Self::Timer => "timer_create",
            Self::Wall => "wall",
            Self::Clock => "thread clocks",
        }
    }
}

/// The walker's private memory, one block per thread, aligned to a cache line (64 bytes), of
/// [`Config::scratch_len`] bytes behind this head. Those are zero when a thread is registered for
/// the first time; later they hold whatever the last walk (of this or an earlier thread) left.
#[repr(C, align(64))]
pub struct Scratch {
    /// Whom the handler runs for: [`crate::SlotId::index`]. A walk leaves it as it is.
    pub slot: usize,
}

/// The result of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct WalkResult {
    /// Frames written to `out`, leaf first. More than `cap` counts as `cap`.
    pub depth: u32,
    /// How the walk ended; the walker's own code, carried as it is.
    pub end: u8,
    /// Not 0: the walker refused and there is no sample; counted in
    /// [`crate::Counters::refused_by_walker`] under this code (codes from 16 on share the last
    /// counter).
    pub reason: u8,
}

/// The walk, called in the handler on the sampled thread.
///
/// `context` is the interrupted context; `stack_end` the upper end of the thread's stack
/// (exclusive, every read must lie below it); `scratch` as [`Scratch`] says; `out` has room for
/// `cap` words. It must hold every rule of a signal handler: no lock, no allocation, no
/// thread-local of a loaded library, no panic.
pub type WalkFn = unsafe extern "C" fn(
    context: *const libc::ucontext_t,
    stack_end: u64,
    scratch: *mut Scratch,
    out: *mut u64,
    cap: usize,
) -> WalkResult;

/// How to sample.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The engine.
    pub engine: EngineChoice,
    /// Nanoseconds of CPU time (of wall time for [`EngineChoice::Wall`]) per sample: 100,000
    /// (10,000 Hz) to 1,000,000,000 (1 Hz).
    pub interval_ns: u64,
    /// Wall-clock samples beside the CPU samples of the engine: nanoseconds between two
    /// [`crate::Reader::wall_tick`], in the same range; 0 for none.
    pub wall_interval_ns: u64,
    /// The signal, one of the real-time ones. By default that by which CoreCLR interrupts its own
    /// threads (SIGRTMIN): the runtime holds it off where a handler could overflow a signal stack,
    /// and lets it in again. docs/signals.md says more.
    pub signal: i32,
    /// Most frames in a stack, 1 to 32,768.
    pub max_depth: u32,
    /// Bytes of ring per thread; rounded up to a power of two, at least `4 * max_depth * 8`.
    pub ring_len: u32,
    /// Bytes of [`Scratch`] per thread.
    pub scratch_len: u32,
    /// Walk also when the interrupted code runs on the thread's alternate signal stack. When
    /// false such a sample is refused as [`crate::DiscardReason::AlternateStack`].
    pub walk_alternate_stack: bool,
    /// The walk that answers [`crate::Reader::request_trace`]: as [`WalkFn`], but `out` has room
    /// for `cap` frames of three words each. `None`: no traces are taken, and threads get no memory
    /// for them.
    pub trace: Option<WalkFn>,
    /// The walk by which a thread that waits is known again, so that it is not woken to say where
    /// ([`crate::Reader::tick`], of wall time): as [`WalkFn`], but `out` has room for `cap` frames
    /// of three words each. First the word of the frame, as the other walk writes it; then, of the
    /// leaf, the stack pointer and the next instruction, of any other frame the address from which
    /// the walk had it and what lies there. Depth 0: no thread is to be known again by this stack.
    /// `None`: each is woken. Not together with `trace`.
    pub wait: Option<WalkFn>,
    /// Bytes that must be left on the stack below the handler for the walk to be tried.
    pub min_stack_room: u32,
    /// As many more on threads of a CLR ([`crate::Route::Shared`]): for what a walk reads of
    /// managed code alone.
    pub shared_stack_room: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: EngineChoice::Auto,
            interval_ns: 10_000_000,
            wall_interval_ns: 0,
            signal: libc::SIGRTMIN(),
            max_depth: 2048,
            ring_len: 64 * 1024,
            scratch_len: 4096,
            walk_alternate_stack: false,
            trace: None,
            wait: None,
            min_stack_room: 3072,
            shared_stack_room: 0,
        }
    }
}

/// Why the sampler could not do what was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// A field of [`Config`] is out of range; its name.
    Config(&'static str),
    /// A sampler runs already in this process.
    AlreadyStarted,
    /// The sampler was stopped.
    Stopped,
    /// All slots are in use.
    TooManyThreads,
    /// The slot was unregistered, or belongs to another thread by now.
    StaleSlot,
    /// The thread may not be signalled.
    HoldReason(HoldReason),
    /// The thread does not exist (any more).
    NoSuchThread,
    /// This engine cannot be had here: a system call and its errno.
    Os {
        /// The system call.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(field) => write!(f, "sampler configuration: {field} is out of range"),
            Self::AlreadyStarted => f.write_str("a sampler runs already in this process"),
            Self::Stopped => f.write_str("the sampler was stopped"),
            Self::TooManyThreads => f.write_str("more threads than the sampler has slots"),
            Self::StaleSlot => f.write_str("the thread's slot has been given back"),
            Self::HoldReason(held) => f.write_str(held.reason().name()),
            Self::NoSuchThread => f.write_str("no such thread"),
            Self::Os { call, errno } => write!(f, "{call} failed with errno {errno}"),
        }
    }
}

impl core::error::Error for Error {}
