//! Keeps the sampler's handler first on the activation signal, which it shares with the CLRs.
//!
//! Ticks use the signal with which CLRs interrupt their own threads (docs/signals.md). Each CLR
//! installs its handler when it starts. The functions here then install the sampler's handler above
//! it, over a handler that serves all CLRs. They do not run in a signal handler, since they take
//! the loader's lock.

use sampler::{Holder, Sampler};

use super::AgentState;

/// Installs the sampler's handler above those of all CLRs, and ensures that all CLRs still get
/// their own signals. If a handler of other origin holds the signal, it stays in place.
pub fn install_on_top(agent: &AgentState) {
    let Some(sampler) = agent.sampler() else {
        // No session yet: only the CLRs share the signal.
        activation::serve_all();
        return;
    };
    let forwarding = activation::ForwardingHandler {
        handler: sampler.handler(),
        beneath: sampler.previous_handler(),
    };
    match activation::serve_beneath(forwarding) {
        // On failure the CLR's handler stays first and forwards the sampler's signals.
        Some(beneath) => drop(sampler.move_to_top(beneath)),
        None => sampler.yield_signal(),
    }
}

/// Moves the signal off the alternate stack, so that a CLR can stop its threads by it.
pub fn make_safe() {
    Sampler::move_off_alternate_stack(activation::signal_number());
}

/// As [`install_on_top`], if the holder has changed. Also rechecks what other code has done to the
/// sampler's signals.
pub(super) fn recheck(agent: &AgentState) {
    let Some(sampler) = agent.sampler().filter(|sampler| sampler.is_running()) else {
        return;
    };
    if matches!(sampler.holder(), Holder::Other(_)) {
        install_on_top(agent);
    }
    sampler.recheck_signals();
}
