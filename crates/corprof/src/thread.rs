//! The profiler's own threads: the one place where every call is synchronous and may suspend the
//! runtime.
//!
//! The invariant: the thread is made here, natively, so the runtime has no `Thread` object for it
//! but by calls that say so ([`crate::Info::force_gc`], [`crate::Info::event_pipe_start_session`]),
//! and it has never run managed code.

use core::marker::PhantomData;
use std::io;
use std::thread::JoinHandle;

use crate::context::{AgentThread, Cx};
use crate::runtime::Runtime;

/// Proof that the code runs on a thread of [`spawn_agent_thread`]. It enters any runtime.
#[derive(Debug)]
pub struct AgentCx {
    not_send: PhantomData<*const ()>,
}

impl AgentCx {
    /// Runs `f` with the proof for one runtime, from which [`Cx::info`] makes the calls.
    ///
    /// The runtime must have been initialised: a [`Runtime`] that a callback's [`crate::Info`] gave
    /// is.
    pub fn enter<R>(
        &mut self,
        runtime: &Runtime,
        f: impl for<'rt> FnOnce(&mut Cx<'rt, AgentThread>) -> R,
    ) -> R {
        // SAFETY: this proof is not `Send` and was made on a thread of `spawn_agent_thread`, of
        // which no runtime knows: natively made, it runs no managed code. Where a call has made it
        // one of the runtime's (`force_gc`, a session with its events), it is in preemptive mode
        // outside of calls all the same, and may trigger a GC; `f` is generic over the brand.
        f(&mut unsafe { Cx::assert(runtime) })
    }
}

/// Starts a native thread of the profiler.
///
/// Signals that a thread can be sent are blocked on it from its first instruction on, so no
/// sampling signal is taken there; those that a fault raises (`SIGSEGV` and the like) are not,
/// because the runtime handles its own faults by them. `f` must not call managed code.
///
/// A panic of `f` ends the thread and is what joining it returns.
///
/// # Errors
/// The operating system's, when it makes no thread.
pub fn spawn_agent_thread<R: Send + 'static>(
    name: &str,
    f: impl FnOnce(&mut AgentCx) -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
    spawn_native_thread(name, move || {
        f(&mut AgentCx {
            not_send: PhantomData,
        })
    })
}

/// A thread on which the signals are blocked, as [`spawn_agent_thread`] says.
pub(crate) fn spawn_native_thread<R: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
    let mask = BlockedSignals::new();
    let handle = std::thread::Builder::new().name(name.to_owned()).spawn(f);
    drop(mask);
    handle
}

/// Blocks the signals of the calling thread, which a new thread inherits, and puts them back.
struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn new() -> Self {
        // SAFETY: plain libc calls on two live, local signal sets; `sigfillset` initialises the
        // first, `pthread_sigmask` the second. Neither fails with valid arguments.
        unsafe {
            let mut blocked: libc::sigset_t = core::mem::zeroed();
            let mut before: libc::sigset_t = core::mem::zeroed();
            libc::sigfillset(&mut blocked);
            for fault in [
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGFPE,
                libc::SIGILL,
                libc::SIGTRAP,
                libc::SIGABRT,
            ] {
                libc::sigdelset(&mut blocked, fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, &mut before);
            Self { before }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `before` was filled in by `pthread_sigmask`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, core::ptr::null_mut());
        }
    }
}
