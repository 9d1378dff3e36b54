//! Clock of the shadow walker and of traced methods: the time stamp counter, if it is invariant.
//!
//! A tick costs a few nanoseconds to read, without a system call. Ticks are no time of day. The
//! agent thread computes their length over the whole recording, so that its error shrinks as the
//! recording grows. If the counter is not invariant, ticks are nanoseconds of CLOCK_MONOTONIC.

use std::arch::x86_64::{__cpuid, __get_cpuid_max, _rdtsc};

use crate::base::proc;

/// The source of ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TickSource {
    /// The time stamp counter.
    Tsc,
    /// CLOCK_MONOTONIC.
    Monotonic,
}

/// A clock, and its first reading.
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

    /// Returns ticks, and nanoseconds of CLOCK_MONOTONIC at the same moment. The best of several
    /// readings, as the thread may be descheduled between the two.
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

    /// Returns the clock's name in reports.
    pub(crate) fn name(&self) -> &'static str {
        match self.source {
            TickSource::Tsc => "hooks timed by the time stamp counter",
            TickSource::Monotonic => "hooks timed by CLOCK_MONOTONIC",
        }
    }

    /// Returns the current ticks.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self.source {
            // SAFETY: x86-64 has the instruction. Linux allows it in every program, unless the
            // program disabled it (PR_SET_TSC), which no CLR does.
            TickSource::Tsc => unsafe { _rdtsc() },
            TickSource::Monotonic => proc::now_ns(),
        }
    }

    /// Whether ticks are those of the time stamp counter.
    #[inline]
    pub(crate) fn is_tsc(&self) -> bool {
        self.source == TickSource::Tsc
    }

    /// Waits until the clock has run for `ns`, so that its rate is about right.
    pub(crate) fn has_run_for(&self, ns: u64) {
        while proc::now_ns().saturating_sub(self.begin_ns) < ns {
            std::hint::spin_loop();
        }
    }

    /// Returns the length of ticks in nanoseconds, from all the time that has passed.
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

/// Ratio of nanoseconds to ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickRate {
    ns: u64,
    ticks: u64,
}

impl TickRate {
    /// Converts ticks to nanoseconds.
    pub(crate) fn ns(self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * u128::from(self.ns) / u128::from(self.ticks.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Whether the counter has a constant rate in every state of the processor (AMD and Intel manuals:
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
            // Some milliseconds by the kernel's clock, so that the cost of reading both is
            // negligible.
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
