//! The holder of the signal that we share with the CLRs.
//!
//! A tick comes by the signal with which CLRs interrupt their own threads (docs/signals.md). Each
//! CLR takes it for itself when it starts; here the sampler's handler is put on top again, above a
//! handler that serves them all. Not in a signal handler: it takes the loader's lock.

use sampler::{Holder, Sampler};

use super::AgentState;

/// Puts the sampler's handler above those of all CLRs. Each CLR has taken the signal for itself
/// when it started. Ensures that all of them get their own signals. Where a handler of other origin
/// has taken it, the sampler leaves it there.
pub fn install_on_top(agent: &AgentState) {
    let Some(sampler) = agent.sampler() else {
        // No session yet: the CLRs are among themselves.
        activation::serve_all();
        return;
    };
    let forwarding = activation::ForwardingHandler {
        handler: sampler.handler(),
        beneath: sampler.previous_handler(),
    };
    match activation::serve_beneath(forwarding) {
        // A failure leaves the CLR on top, which passes on what is ours.
        Some(beneath) => drop(sampler.move_to_top(beneath)),
        None => sampler.yield_signal(),
    }
}

/// Ensures that a CLR can stop its threads although the signal was put onto the alternate stack:
/// from here on it does so for us.
pub fn make_safe() {
    Sampler::move_off_alternate_stack(activation::signal_number());
}

/// As [`install_on_top`], where something has changed; and what others have made of our signals is
/// seen.
pub(super) fn recheck(agent: &AgentState) {
    let Some(sampler) = agent.sampler().filter(|sampler| sampler.is_running()) else {
        return;
    };
    if matches!(sampler.holder(), Holder::Other(_)) {
        install_on_top(agent);
    }
    sampler.recheck_signals();
}
