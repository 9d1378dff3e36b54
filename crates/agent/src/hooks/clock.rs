//! Ticks for the shadow walker and for traced methods: the processor's time stamp counter where it
//! is a clock.
//!
//! It does not tell what time it is. A tick costs a few nanoseconds to read, without a system call;
//! what it is worth is found out by the agent thread, over the whole recording, so that its error
//! shrinks as the recording grows. Where the counter is no clock, ticks are nanoseconds of
//! CLOCK_MONOTONIC.

use std::arch::x86_64::{__cpuid, __get_cpuid_max, _rdtsc};

use crate::base::proc;

/// Where ticks come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TickSource {
    /// The time stamp counter.
    Tsc,
    /// CLOCK_MONOTONIC.
    Monotonic,
}

/// A clock, and when it was first looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    source: TickSource,
    begin_ticks: u64,
    begin_ns: u64,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        let source = if tsc_is_invariant() {
            TickSource::Tsc
        } else {
            TickSource::Monotonic
        };
        Clock::of(source)
    }

    fn of(source: TickSource) -> Clock {
        let mut clock = Clock {
            source,
            begin_ticks: 0,
            begin_ns: proc::now_ns(),
        };
        (clock.begin_ticks, clock.begin_ns) = clock.both();
        clock
    }

    /// Ticks, and nanoseconds of CLOCK_MONOTONIC at the same moment: the best of some looks, as a
    /// thread may be taken off its processor between the two.
    fn both(&self) -> (u64, u64) {
        const LOOKS: u32 = 8;
        let look = |_| {
            let before = proc::now_ns();
            let ticks = self.now();
            let took = proc::now_ns().saturating_sub(before);
            (took, (ticks, before + took / 2))
        };
        let best = (0..LOOKS).map(look).min_by_key(|(took, _)| *took);
        best.map_or((0, 0), |(_, both)| both)
    }

    /// For reports.
    pub(crate) fn name(&self) -> &'static str {
        match self.source {
            TickSource::Tsc => "hooks timed by the time stamp counter",
            TickSource::Monotonic => "hooks timed by CLOCK_MONOTONIC",
        }
    }

    /// Ticks now.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self.source {
            // SAFETY: x86-64 has the instruction; Linux lets every program use it, unless the
            // program has forbidden it to itself (PR_SET_TSC), which no CLR does.
            TickSource::Tsc => unsafe { _rdtsc() },
            TickSource::Monotonic => proc::now_ns(),
        }
    }

    /// Ticks are those of the processor.
    #[inline]
    pub(crate) fn is_tsc(&self) -> bool {
        self.source == TickSource::Tsc
    }

    /// Waits until the clock is so old, for its rate to be about right.
    pub(crate) fn has_run_for(&self, ns: u64) {
        while proc::now_ns().saturating_sub(self.begin_ns) < ns {
            std::hint::spin_loop();
        }
    }

    /// Returns the worth of ticks in nanoseconds, by all the time that has passed.
    pub(crate) fn rate(&self) -> TickRate {
        let (ticks, ns) = self.both();
        let ns = ns.saturating_sub(self.begin_ns);
        let ticks = ticks.saturating_sub(self.begin_ticks);
        if self.source == TickSource::Monotonic || ticks == 0 {
            return TickRate { ns: 1, ticks: 1 };
        }
        TickRate { ns, ticks }
    }
}

/// So many nanoseconds for so many ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickRate {
    ns: u64,
    ticks: u64,
}

impl TickRate {
    /// Ticks as nanoseconds.
    pub(crate) fn ns(self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * u128::from(self.ns) / u128::from(self.ticks.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Whether the counter runs at one rate in every state of the processor (AMD and Intel manuals:
/// CPUID 8000_0007h, EDX bit 8).
fn tsc_is_invariant() -> bool {
    const LEAF: u32 = 0x8000_0007;
    let (highest, _) = __get_cpuid_max(0x8000_0000);
    highest >= LEAF && __cpuid(LEAF).edx & (1 << 8) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_worth_what_the_kernel_says() {
        for clock in [Clock::new(), Clock::of(TickSource::Monotonic)] {
            let (ticks, before) = (clock.now(), proc::now_ns());
            // Some milliseconds by the kernel's clock, so that reading both costs nothing in
            // comparison.
            while proc::now_ns() < before + 20_000_000 {
                std::hint::spin_loop();
            }
            let (ticks, ns) = (clock.now() - ticks, proc::now_ns() - before);
            let error = clock.rate().ns(ticks).abs_diff(ns);
            assert!(error < ns / 50, "{clock:?}: {error} of {ns} ns");
        }
    }

    #[test]
    fn large_numbers_do_not_overflow() {
        let rate = TickRate {
            ns: u64::MAX / 3,
            ticks: u64::MAX,
        };
        assert_eq!(rate.ns(u64::MAX), u64::MAX / 3);
        assert_eq!(TickRate { ns: 1, ticks: 0 }.ns(7), 7);
    }
}
