//! Configuration of a sampler: settings, the type of the walk function, and errors.

use core::fmt;

use crate::counters::DiscardReason;

/// Why a thread is not signalled at present.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum HoldReason {
    /// Other code has set SA_ONSTACK on the shared signal, as Go's runtime does, so these threads
    /// too may run on stacks without room for a handler. Applies to the end of the process.
    Alternate = 1,
    /// A handler of faults allows the shared signal on the alternate stack. It cannot be made to
    /// block the signal, because the program may never return from it (SA_NODEFER).
    Fault = 2,
    /// Other code handles the agent's own signal, or no signal was free.
    Taken = 3,
    /// The thread ran on a foreign stack, and has no alternate one.
    Strayed = 4,
}

impl HoldReason {
    pub(crate) const ALL: [Self; 4] = [Self::Alternate, Self::Fault, Self::Taken, Self::Strayed];

    pub(crate) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|held| *held as u8 == number)
    }

    /// Returns the reason under which samples lost this way are counted.
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
    /// perf_event, or an error.
    Perf,
    /// `timer_create`.
    Timer,
    /// The threads' clocks, read by the agent thread: [`crate::Reader::tick`].
    Clock,
    /// No CPU samples; wall-clock samples by [`crate::Reader::wall_tick`] each
    /// [`Config::interval_ns`].
    Wall,
    /// No samples by time: stacks only through [`crate::Reader::request_trace`], or none. Works
    /// like [`EngineKind::Wall`] without ticks.
    None,
}

/// The engine in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EngineKind {
    /// One perf_event task clock for each thread, counting kernel time too.
    PerfTaskClock = 1,
    /// As above without kernel time, where the kernel forbids it: a tick inside the kernel is not
    /// delivered.
    PerfTaskClockUser = 2,
    /// One POSIX timer on each thread's CPU clock. It ticks at the kernel's HZ at most.
    Timer = 3,
    /// Wall clock, driven by the agent thread.
    Wall = 4,
    /// The agent thread reads the threads' CPU clocks once per interval and signals those that run.
    Clock = 5,
}

impl EngineKind {
    /// Returns the name for reports, with important limitations.
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

/// The walker's private memory: one block per thread, aligned to a cache line (64 bytes), with
/// [`Config::scratch_len`] bytes after this head. They are zero when a thread is registered for the
/// first time. Later they contain what the last walk (of this or an earlier thread) left.
#[repr(C, align(64))]
pub struct Scratch {
    /// Slot of the interrupted thread: [`crate::SlotId::index`]. A walk must not change it.
    pub slot: usize,
}

/// The result of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct WalkResult {
    /// Number of frames written to `out`, leaf first. A value above `cap` counts as `cap`.
    pub depth: u32,
    /// How the walk ended; the walker's own code, passed on unchanged.
    pub end: u8,
    /// If not 0, the walker refused and there is no sample. Counted in
    /// [`crate::Counters::refused_by_walker`] under this code (codes from 16 on share the last
    /// counter).
    pub reason: u8,
}

/// The walk, called in the handler on the sampled thread.
///
/// `context` is the interrupted context. `stack_end` is the upper end of the thread's stack
/// (exclusive; every read must be below it). `scratch` is described at [`Scratch`]. `out` has room
/// for `cap` words. The function must follow every rule of a signal handler: no lock, no
/// allocation, no thread-local of a loaded library, no panic.
pub type WalkFn = unsafe extern "C" fn(
    context: *const libc::ucontext_t,
    stack_end: u64,
    scratch: *mut Scratch,
    out: *mut u64,
    cap: usize,
) -> WalkResult;

/// Settings of a sampler.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The engine.
    pub engine: EngineChoice,
    /// Nanoseconds of CPU time (of wall time for [`EngineChoice::Wall`]) per sample: 100,000
    /// (10,000 Hz) to 1,000,000,000 (1 Hz).
    pub interval_ns: u64,
    /// Wall-clock samples in addition to the CPU samples of the engine: nanoseconds between two
    /// [`crate::Reader::wall_tick`], in the same range; 0 for none.
    pub wall_interval_ns: u64,
    /// The signal, a real-time one. The default is the signal by which CoreCLR interrupts its own
    /// threads (SIGRTMIN): the runtime blocks it wherever a handler could overflow a signal stack,
    /// and unblocks it again. See docs/signals.md.
    pub signal: i32,
    /// Maximum number of frames in a stack, 1 to 32,768.
    pub max_depth: u32,
    /// Bytes of ring buffer per thread; rounded up to a power of two, at least `4 * max_depth * 8`.
    pub ring_len: u32,
    /// Bytes of [`Scratch`] per thread, after its head.
    pub scratch_len: u32,
    /// Whether to walk also when the interrupted code runs on the thread's alternate signal stack.
    /// If false, such a sample is refused as [`crate::DiscardReason::AlternateStack`].
    pub walk_alternate_stack: bool,
    /// The walk for [`crate::Reader::request_trace`]: as [`WalkFn`], but `out` has room for `cap`
    /// frames of three words each. `None`: no traces are taken, and threads get no memory for them.
    pub trace: Option<WalkFn>,
    /// The walk that records a waiting thread's stack, so that the thread is recognised later
    /// without waking it ([`crate::Reader::tick`], of wall time): as [`WalkFn`], but `out` has room
    /// for `cap` frames of three words each. The first word is that of the frame, as the other walk
    /// writes it. For the leaf, the stack pointer and the next instruction follow; for any other
    /// frame, the address from which the walk read it and the word there. Depth 0: the thread is
    /// not recognised by this stack. `None`: every thread is woken. Not together with `trace`.
    pub wait: Option<WalkFn>,
    /// Bytes that must be free on the stack below the handler for a walk.
    pub min_stack_room: u32,
    /// Additional bytes on threads of a CLR ([`crate::Route::Shared`]), which a walk needs for
    /// managed code only.
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

/// Why the sampler could not perform a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The named field of [`Config`] is out of range.
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
    /// The thread does not exist any more.
    NoSuchThread,
    /// The engine is not available here: a system call failed with this errno.
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
