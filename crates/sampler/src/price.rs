//! The cost of a tick beside its handler.
//!
//! That is the way of a signal into the kernel and back, measured once on this machine, and an
//! interrupt, which cannot be measured from here.
//!
//! Runs on the agent thread, before a session's first tick or beside it; never in the handler. The
//! invariant: the signals that it sends are to the calling thread alone, are counted nowhere, and
//! the thread's mask is put back.

use core::sync::atomic::Ordering;

use crate::config::EngineKind;
use crate::counters::Counters;
use crate::global::GLOBAL;
use crate::sampler::Sampler;
use crate::sys;

/// Signals in a batch, and batches, of which the cheapest counts: an interrupt in between makes the
/// others dearer.
const BATCH: u64 = 8;
const BATCHES: usize = 5;

/// A delivery where it cannot be measured, because other code has the signal: the result on the
/// virtual machine of docs/engines.md.
const DELIVERY_NS: u64 = 2_000;

/// CPU time of an interrupt: on the virtual machine of docs/engines.md, and less on a machine of
/// one's own. Another processor is interrupted for the sake of a signal that was sent ...
const SENT_NS: u64 = 5_000;
/// ... and this one by a clock of perf's, and once more by itself (O_ASYNC).
const PERF_NS: u64 = 25_000;

impl Sampler {
    /// CPU time that these ticks have cost beside their handlers, at so much for the delivery of
    /// one ([`Sampler::delivery_ns`]). Reckoned, not measured. A POSIX timer on a CPU clock rides
    /// on the kernel's own tick, and causes no interrupt of its own.
    pub fn ticks_ns(&self, counters: &Counters, delivery_ns: u64) -> u64 {
        let by_clock = match self.engine() {
            EngineKind::PerfTaskClock | EngineKind::PerfTaskClockUser => PERF_NS,
            EngineKind::Timer | EngineKind::Clock | EngineKind::Wall => 0,
        };
        tick_cost_ns(counters, delivery_ns, by_clock)
    }

    /// CPU time that the delivery of one signal costs here, without the handler: the kernel's way
    /// to it and `rt_sigreturn`, nanoseconds. Takes some tens of microseconds. For the agent
    /// thread, which holds all signals off.
    pub fn delivery_ns(&self) -> u64 {
        // To a thread that is no CLR's.
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
        // The cost of any call into the kernel, clock readings included.
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

/// The cost of ticks so far, where the interrupt of one that was not sent costs `by_clock`.
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
