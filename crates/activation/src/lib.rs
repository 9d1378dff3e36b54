//! One handler of the CLR's activation signal, `SIGRTMIN`, for every CLR of a process, and one of
//! faults.
//!
//! A CLR stops a thread that runs managed code without a call by sending it this signal
//! (src/coreclr/pal/src/exception/signal.cpp, `inject_activation_handler`). Each CLR installs its
//! handler when it is loaded, and a handler that the process itself signalled does not pass the
//! signal on: with two CLRs the first one's collections wait for seconds. [`serve_all`] puts one
//! handler in place that calls those of all CLRs.
//!
//! Faults (`SIGSEGV`, `SIGFPE`) are passed on by every CLR, but on a signal stack that is made for
//! one: so they are given to the CLR whose thread it is at once.
//!
//! It is not a signal library: it knows these signals and what CLRs do with them. The invariants: a
//! process with one CLR is left alone; what is called in the handler neither locks nor allocates,
//! and a CLR's handler is called only on threads that the CLR has seen, because on others its first
//! thread-local would be allocated there.

mod chain;
mod handler;
mod modules;

use std::sync::{Mutex, PoisonError};

pub use chain::ForwardingHandler;
pub use handler::signal_number;
pub use modules::symbol_of;

use handler::{ACTIVATION, FAULTS, SharedSignal};

/// The outcome of [`serve_all`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// At most one CLR has a handler: nothing was changed.
    AtMostOne,
    /// The handler of this library is in place, and serves so many CLRs.
    All(usize),
    /// A handler of other origin is in place; it was left there.
    Stranger,
}

/// Only one thread at a time changes the handler.
static CHANGE: Mutex<()> = Mutex::new(());

/// Looks which CLRs have installed handlers and, if there are at least two, puts one in place that
/// serves all of them: for the activation signal, about which it answers, and for faults.
///
/// To be called after each CLR has installed its own: when its `coreclr_initialize` has returned,
/// or in the profiler's `Initialize`. Costs three system calls when nothing has changed. Takes the
/// loader's lock and allocates: ordinary code only, never a signal handler.
pub fn serve_all() -> Served {
    let _one = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    for fault in &FAULTS {
        serve(fault);
    }
    serve(&ACTIVATION)
}

/// As [`serve_all`], for a process in which another handler shares the activation signal and is to
/// stand above those of the CLRs: nothing is installed for it. From here on a CLR that gives the
/// signal back before it aborts leaves it ignored, where it would end the process. Answers the
/// handler to which that one is to pass on what is not its own (it takes SA_SIGINFO); `None`: the
/// signal's handler is no CLR's.
pub fn serve_beneath(top: ForwardingHandler) -> Option<usize> {
    let _one = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    for fault in &FAULTS {
        serve(fault);
    }
    let found = ACTIVATION.current();
    let modules = modules::loaded();
    let chain = chain::of(found.handler(), found.flags(), &modules, top);
    ACTIVATION.handlers.add(&chain);
    for link in &chain {
        chain::restore_ignored(link.handler, &modules);
    }
    // The newest in place is a CLR's, or `top`, or neither.
    let newest = chain.last().map(|link| link.handler);
    match newest {
        _ if ACTIVATION.handlers.len() > 1
            && (newest.is_some() || found.handler() == top.handler) =>
        {
            Some(ACTIVATION.address())
        }
        Some(only) => Some(only),
        None if found.handler() == top.handler => Some(top.beneath),
        None => None,
    }
}

fn serve(signal: &SharedSignal) -> Served {
    let mut found = signal.current();
    // Ends soon: each further turn needs a CLR that was loaded in the moment of the one before.
    for _ in 0..8 {
        if signal.is_ours(&found) {
            return Served::All(signal.handlers.len());
        }
        let modules = modules::loaded();
        let chain = chain::of(
            found.handler(),
            found.flags(),
            &modules,
            ForwardingHandler::NONE,
        );
        if chain.is_empty() {
            return if found.is_default() {
                Served::AtMostOne
            } else {
                Served::Stranger
            };
        }
        if signal.handlers.len_with(&chain) < 2 {
            return Served::AtMostOne;
        }
        signal.handlers.add(&chain);
        let before = signal.replace(&found);
        if before.handler() == found.handler() {
            return Served::All(signal.handlers.len());
        }
        // A CLR has installed its handler since we looked, and ours has just taken its place.
        found = before;
    }
    Served::Stranger
}
