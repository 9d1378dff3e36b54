//! Counters of discarded samples by reason, and of the cost of sampling.

/// Why a signal of ours gave no sample. Each reason has a counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum DiscardReason {
    /// The thread's ring had no room: the agent thread did not keep up.
    RingFull = 0,
    /// The slot named by the signal is free or belongs to another thread (the signal was on its way
    /// when the thread was unregistered).
    UnknownThread = 1,
    /// The thread's stack bounds are not known yet.
    NoStackBounds = 2,
    /// The handler was already running on this thread.
    Nested = 3,
    /// Too little room below the stack pointer for a safe walk.
    StackNearlyFull = 4,
    /// The stack pointer is neither on the thread's stack nor on its alternate stack.
    OffStack = 5,
    /// The interrupted code ran on the alternate signal stack.
    AlternateStack = 6,
    /// A signal with our number from other code, and no earlier handler to pass it to.
    Foreign = 7,
    /// A signal with our number from other code, passed to the handler installed before ours. No
    /// sample is lost.
    Chained = 8,
    /// The walker refused; [`Counters::refused_by_walker`] has its reasons.
    Walker = 9,
    /// Wall clock: the last signal has not been handled yet (the thread blocks it, or waits in the
    /// kernel uninterruptibly). No time is lost: the next sample's value covers it.
    SignalPending = 10,
    /// A ring buffer contained invalid data (the program wrote into its memory). One count for all
    /// of its content.
    RingDamaged = 11,
    /// Another handler has taken the signal, so no thread is sampled any more. Counted once in each
    /// [`crate::Reader::take_counters`] since then.
    SignalTaken = 12,
    /// The user's queue of signals was full: none could be sent to the thread or, with perf, the
    /// kernel sent SIGIO instead.
    QueueFull = 13,
    /// Other code set SA_ONSTACK on the signal of the CLR's threads.
    MovedSignal = 14,
    /// A handler of faults allows that signal on the alternate stack.
    FaultHandler = 15,
    /// The thread has run on a foreign stack, and has no alternate one.
    LeftStack = 16,
    /// The context is not that of the interrupted code: other code has held the signal back and
    /// called our handler later.
    StaleContext = 17,
}

impl DiscardReason {
    /// Number of reasons.
    pub const COUNT: usize = 18;

    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::RingFull,
        Self::UnknownThread,
        Self::NoStackBounds,
        Self::Nested,
        Self::StackNearlyFull,
        Self::OffStack,
        Self::AlternateStack,
        Self::Foreign,
        Self::Chained,
        Self::Walker,
        Self::SignalPending,
        Self::RingDamaged,
        Self::SignalTaken,
        Self::QueueFull,
        Self::MovedSignal,
        Self::FaultHandler,
        Self::LeftStack,
        Self::StaleContext,
    ];

    /// Returns the name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring full",
            Self::UnknownThread => "after the runtime had released the thread",
            Self::NoStackBounds => "no stack bounds",
            Self::Nested => "nested signal",
            Self::StackNearlyFull => "stack nearly full",
            Self::OffStack => "stack pointer off the stack",
            Self::AlternateStack => "on the alternate stack",
            Self::Foreign => "foreign signal",
            Self::Chained => "foreign signal, passed on",
            Self::Walker => "refused by the walker",
            Self::SignalPending => "signal still pending",
            Self::RingDamaged => "ring damaged",
            Self::SignalTaken => "signal taken by the program",
            Self::QueueFull => "signal queue full",
            Self::MovedSignal => "another library put the runtime's signal on the alternate stack",
            Self::FaultHandler => "a fault handler lets our signal in on the alternate stack",
            Self::LeftStack => "the thread had left its stack before",
            Self::StaleContext => "stale context: the signal was held back",
        }
    }

    /// Whether a sample was lost for this reason.
    pub const fn loses_sample(self) -> bool {
        !matches!(self, Self::Foreign | Self::Chained | Self::SignalPending)
    }
}

/// Counts of events since the last reading of the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Samples committed to a ring buffer.
    pub samples: u64,
    /// Intervals those samples stand for (more than `samples` if a timer ticks slower than
    /// requested or a signal was late).
    pub intervals: u64,
    /// CPU time (wall time for the wall engine) those samples stand for, nanoseconds.
    pub value_ns: u64,
    /// Time in the handler from its first to its last instruction, nanoseconds, for samples and
    /// refusals. Each run counts at most 200 µs, because a longer one was preempted. Entering and
    /// leaving the kernel is not included; see [`crate::Sampler::delivery_ns`].
    pub handler_ns: u64,
    /// Time that the samples lost in the handler would have stood for, nanoseconds.
    pub lost_ns: u64,
    /// Number of handler runs for a signal of ours.
    pub signals: u64,
    /// Number of those signals that the reader sent ([`crate::Reader::tick`]), in most cases to a
    /// thread on another processor.
    pub sent: u64,
    /// Signals that gave no sample, by [`DiscardReason`].
    pub discarded: [u64; DiscardReason::COUNT],
    /// Count of [`DiscardReason::Walker`], by [`crate::WalkResult::reason`].
    pub refused_by_walker: [u64; 16],
}

impl Counters {
    /// Returns the count of one reason.
    pub fn discarded(&self, reason: DiscardReason) -> u64 {
        self.discarded.get(reason as usize).copied().unwrap_or(0)
    }

    /// Returns the number of lost samples: the sum over the reasons for which
    /// [`DiscardReason::loses_sample`].
    pub fn lost(&self) -> u64 {
        DiscardReason::ALL
            .iter()
            .filter(|r| r.loses_sample())
            .map(|r| self.discarded(*r))
            .sum()
    }
}
