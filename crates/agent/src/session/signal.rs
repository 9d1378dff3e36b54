//! Who holds the signal that we share with the CLRs.
//!
//! A tick comes by the signal with which CLRs interrupt their own threads (docs/signals.md). Each CLR takes it for
//! itself when it starts; here the sampler's handler is put on top again, above a handler that serves them
//! all. Not in a signal handler: it takes the loader's lock.

use sampler::Holder;

use super::Parts;

/// Sees to it that the sampler's handler stands above those of all CLRs, each of which has taken the
/// signal for itself when it started, and that all of them get their own signals. Where somebody
/// else has taken it, the sampler leaves it to him.
pub fn settle(parts: &Parts) {
    let Some(sampler) = parts.sampler() else {
        // No session yet: the CLRs are among themselves.
        activation::serve_all();
        return;
    };
    let between = activation::Between {
        handler: sampler.handler(),
        beneath: sampler.beneath(),
    };
    match activation::serve_beneath(between) {
        // A failure leaves the CLR on top, which passes on what is ours.
        Some(beneath) => drop(sampler.come_up(beneath)),
        None => sampler.yield_signal(),
    }
}

/// As [`settle`], where something has changed. One system call where nothing has.
pub(super) fn look_after(parts: &Parts) {
    if let Some(sampler) = parts.sampler()
        && sampler.is_running()
        && matches!(sampler.holder(), Holder::Other(_))
    {
        settle(parts);
    }
}
