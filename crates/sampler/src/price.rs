//! Estimates the CPU time that a tick costs in addition to its handler.
//!
//! This is the delivery of a signal by the kernel and the return from it, measured once on this
//! machine, and an interrupt, which cannot be measured here.
//!
//! Runs on the agent thread at a session's start; never in the handler.
//! Invariant: the signals it sends go to the calling thread only and are not counted, and the
//! thread's mask is restored.

use core::sync::atomic::Ordering;

use crate::config::EngineKind;
use crate::counters::Counters;
use crate::global::GLOBAL;
use crate::sampler::Sampler;
use crate::sys;

/// Number of signals in a batch, and number of batches. The cheapest batch counts, because
/// interrupts make the others more expensive.
const BATCH: u64 = 8;
const BATCHES: usize = 5;

/// Cost of a delivery if it cannot be measured because other code has the signal: the result on the
/// virtual machine of docs/engines.md.
const DELIVERY_NS: u64 = 2_000;

/// CPU time of an interrupt, measured on the virtual machine of docs/engines.md; less on a physical
/// machine. A sent signal interrupts another processor ...
const SENT_NS: u64 = 5_000;
/// ... and a clock of perf this one, followed by an interrupt of its own (O_ASYNC).
const PERF_NS: u64 = 25_000;

impl Sampler {
    /// Returns the CPU time of these ticks in addition to their handlers, with `delivery_ns` for
    /// each delivery ([`Sampler::delivery_ns`]). Estimated, not measured. A POSIX timer on a CPU
    /// clock uses the kernel's own tick, and causes no additional interrupt.
    pub fn ticks_ns(&self, counters: &Counters, delivery_ns: u64) -> u64 {
        let by_clock = match self.engine() {
            EngineKind::PerfTaskClock | EngineKind::PerfTaskClockUser => PERF_NS,
            EngineKind::Timer | EngineKind::Clock | EngineKind::Wall => 0,
        };
        tick_cost_ns(counters, delivery_ns, by_clock)
    }

    /// Returns the CPU time of the delivery of one signal on this machine, without the handler: the
    /// kernel's work and `rt_sigreturn`, nanoseconds. Takes some tens of microseconds. For the
    /// agent thread, which blocks all signals.
    pub fn delivery_ns(&self) -> u64 {
        // The signal for threads that are not a CLR's.
        let signal = GLOBAL.own_signal.load(Ordering::Relaxed);
        let is_held = GLOBAL.own_held.load(Ordering::Relaxed) != 0;
        if !GLOBAL.running() || is_held {
            return DELIVERY_NS;
        }
        let (pid, tid) = (GLOBAL.pid.load(Ordering::Relaxed), sys::own_tid());
        let was_held_off = sys::unblock_signal(signal);
        let cheapest = |call: &dyn Fn() -> bool| {
            (0..BATCHES)
                .filter_map(|_| {
                    let before = sys::own_cpu_ns();
                    let all = (0..BATCH).all(|_| call());
                    all.then(|| sys::own_cpu_ns().saturating_sub(before))
                })
                .min()
        };
        let sent = cheapest(&|| sys::queue_for_price(pid, tid, signal).is_ok());
        // The cost of any system call, clock readings included.
        let calls = cheapest(&|| sys::own_tid() == tid);
        if was_held_off {
            sys::block_signal(signal);
        }
        match (sent, calls) {
            (Some(sent), Some(calls)) => sent.saturating_sub(calls) / BATCH,
            _ => DELIVERY_NS,
        }
    }
}

/// Returns the cost of ticks, with `by_clock` for the interrupt of each that was not sent.
fn tick_cost_ns(counters: &Counters, delivery_ns: u64, by_clock: u64) -> u64 {
    let Counters { signals, sent, .. } = *counters;
    let clocks = signals.saturating_sub(sent);
    signals * delivery_ns + sent * SENT_NS + clocks * by_clock
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tick_costs_its_delivery_and_its_own_interrupt() {
        let counters = Counters {
            signals: 10,
            sent: 4,
            ..Counters::default()
        };
        assert_eq!(tick_cost_ns(&counters, 2_000, 0), 10 * 2_000 + 4 * SENT_NS);
        let by_perf = 10 * 2_000 + 4 * SENT_NS + 6 * PERF_NS;
        assert_eq!(tick_cost_ns(&counters, 2_000, PERF_NS), by_perf);
    }
}
