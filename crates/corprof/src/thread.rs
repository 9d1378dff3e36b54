//! The profiler's own native threads: all calls are synchronous, and may suspend the runtime.
//!
//! [`spawn_agent_thread`] starts one with signals blocked; its function gets an [`AgentCx`].
//!
//! Invariants: the thread has never run managed code. It is created natively, so the runtime has no
//! `Thread` object for it, unless the thread makes a call that documents this effect
//! ([`crate::Info::force_gc`], [`crate::Info::event_pipe_start_session`]).

use core::marker::PhantomData;
use std::io;
use std::thread::JoinHandle;

use crate::context::{AgentThread, Cx};
use crate::runtime::Runtime;

/// Proof that the code runs on a thread of [`spawn_agent_thread`]. Gives access to any runtime.
#[derive(Debug)]
pub struct AgentCx {
    not_send: PhantomData<*const ()>,
}

impl AgentCx {
    /// Runs `f` with the context token of one runtime. [`Cx::info`] gives access to the calls.
    ///
    /// The runtime must be initialised. A [`Runtime`] from a callback's [`crate::Info`] is.
    pub fn enter<R>(
        &mut self,
        runtime: &Runtime,
        f: impl for<'rt> FnOnce(&mut Cx<'rt, AgentThread>) -> R,
    ) -> R {
        // SAFETY: this token is not `Send` and was created on a thread of `spawn_agent_thread`,
        // which is native, runs no managed code and has no `Thread` object. If a call has given it
        // one (`force_gc`, an EventPipe session), it is still in preemptive mode outside of calls,
        // and may trigger a GC. `f` is generic over the brand.
        f(&mut unsafe { Cx::assert(runtime) })
    }
}

/// Starts a native thread of the profiler.
///
/// Signals are blocked on it from its first instruction on, so it receives no sampling signal.
/// Signals of faults (`SIGSEGV` and the like) are not blocked, because the runtime uses them to
/// handle its own faults. `f` must not call managed code.
///
/// A panic of `f` ends the thread; `join` returns it.
///
/// # Errors
/// The operating system's error if it cannot create a thread.
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

/// Starts a thread with signals blocked as documented at [`spawn_agent_thread`].
pub(crate) fn spawn_native_thread<R: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
    let mask = BlockedSignals::new();
    let handle = std::thread::Builder::new().name(name.to_owned()).spawn(f);
    drop(mask);
    handle
}

/// Blocks signals on the calling thread, so that a new thread inherits the mask. Restores the mask
/// when dropped.
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
