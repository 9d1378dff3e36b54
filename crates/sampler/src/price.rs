//! What a tick costs beside its handler: the way of a signal into the kernel and back, measured once on
//! this machine, and an interrupt, which cannot be measured from here.
//!
//! Runs on the agent thread, before a session's first tick or beside it; never in the handler. The
//! invariant: the signals that it sends are to the calling thread alone, are counted nowhere, and the
//! thread's mask is put back.

use core::sync::atomic::Ordering;

use crate::config::EngineKind;
use crate::global::GLOBAL;
use crate::sampler::{Holder, Sampler};
use crate::sys;

/// Signals in a batch, and batches, of which the cheapest counts: an interrupt in between makes the
/// others dearer.
const BATCH: u64 = 8;
const BATCHES: usize = 5;

/// A delivery where it cannot be measured, because somebody else has the signal: what it came to on the
/// virtual machine of docs/engines.md.
const DELIVERY_NS: u64 = 2_000;

impl EngineKind {
    /// The interrupts that a tick of this engine makes, nanoseconds of CPU time, on the virtual machine of
    /// docs/engines.md; less on a machine of one's own. A POSIX timer on a CPU clock rides on the kernel's
    /// tick, which comes anyway.
    pub const fn interrupt_ns(self) -> u64 {
        match self {
            Self::Timer => 0,
            // The thread runs on another processor, which is interrupted.
            Self::Clock | Self::Wall => 5_000,
            Self::PerfTaskClock | Self::PerfTaskClockUser => 25_000,
        }
    }
}

impl Sampler {
    /// CPU time that the delivery of one signal costs here, without the handler: the kernel's
    /// way to it and `rt_sigreturn`, nanoseconds. Takes some tens of microseconds. For the agent thread, which
    /// holds all signals off.
    pub fn delivery_ns(&self) -> u64 {
        let signal = GLOBAL.signal.load(Ordering::Relaxed);
        if !GLOBAL.running() || !matches!(self.holder(), Holder::Sampler) {
            return DELIVERY_NS;
        }
        let (pid, tid) = (GLOBAL.pid.load(Ordering::Relaxed), sys::own_tid());
        let was_held_off = sys::let_in(signal);
        let cheapest = |call: &dyn Fn() -> bool| {
            (0..BATCHES)
                .filter_map(|_| {
                    let before = sys::own_cpu_ns();
                    let all = (0..BATCH).all(|_| call());
                    all.then(|| sys::own_cpu_ns().saturating_sub(before))
                })
                .min()
        };
        let sent = cheapest(&|| sys::queue_priced(pid, tid, signal).is_ok());
        // What a call into the kernel costs anyway, clock readings included.
        let calls = cheapest(&|| sys::own_tid() == tid);
        if was_held_off {
            sys::hold_off(signal);
        }
        match (sent, calls) {
            (Some(sent), Some(calls)) => sent.saturating_sub(calls) / BATCH,
            _ => DELIVERY_NS,
        }
    }
}
