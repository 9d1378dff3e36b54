//! One handler for all CLRs of a process, of their activation signal (`SIGRTMIN`) and of faults.
//!
//! A CLR stops a thread that runs managed code without calls by sending it the activation signal
//! (src/coreclr/pal/src/exception/signal.cpp, `inject_activation_handler`). Each CLR installs its
//! handler when it is loaded. A handler does not pass on a signal that the process itself sent:
//! with two CLRs, collections of the first one wait for seconds. [`serve_all`] installs one handler
//! that calls those of all CLRs.
//!
//! Faults (`SIGSEGV`, `SIGFPE`) are passed on by every CLR, but on an alternate signal stack sized
//! for one CLR. So the handler passes a fault directly to the CLR that owns the thread.
//!
//! This is not a general signal library: it handles these signals of CLRs only. Invariants: in a
//! process with one CLR nothing is changed. Code in the handler neither locks nor allocates. A
//! CLR's handler is called only on threads that the CLR has seen, because on others its first
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
    /// At most one CLR has a handler. Nothing was changed.
    AtMostOne,
    /// The handler of this library is installed and serves this many CLRs.
    All(usize),
    /// Another library's handler is installed. It was left in place.
    Stranger,
}

/// Lock of changes to the handler.
static CHANGE: Mutex<()> = Mutex::new(());

/// Finds the CLRs that have installed handlers and, if there are at least two, installs one handler
/// for all of them: for the activation signal and for faults. Returns the outcome for the
/// activation signal.
///
/// Call it after each CLR has installed its handler: when `coreclr_initialize` has returned, or in
/// the profiler's `Initialize`. Costs three system calls when nothing has changed. Takes the
/// loader's lock and allocates, so it must not be called in a signal handler.
pub fn serve_all() -> Served {
    let _one = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    for fault in &FAULTS {
        serve(fault);
    }
    serve(&ACTIVATION)
}

/// As [`serve_all`], for a process in which `top` shares the activation signal and must be called
/// before the CLRs' handlers. `top` is not installed here. After this call, a CLR that restores the
/// signal before it aborts leaves the signal ignored instead of at its default action, which would
/// end the process. Returns the handler to which `top` must pass on the signals that are not its
/// own (it takes SA_SIGINFO), or `None` if the signal's handler is not a CLR's.
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
    // The newest installed handler is a CLR's, `top`, or neither.
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
    // Bounded: each further iteration needs a CLR that was loaded during the one before.
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
        // A CLR has installed its handler since the check, and ours has just replaced that one.
        found = before;
    }
    Served::Stranger
}
