//! A scripted CLR: an `ICorProfilerInfo` written in Rust that enforces the call rules as the
//! runtime does.
//!
//! It loads a profiler through its class factory, raises callbacks on any thread, plays the JIT for
//! fast-path hooks, collects garbage, suspends, detaches; and at the head of each method it checks
//! what the runtime of that version checks, from the same table (`corprof::sys::rules`). Several
//! can play in one process. It has modules, classes, functions, threads and objects as the script
//! says, with names, IL and code that can be called; a method that would need more answers
//! `E_NOTIMPL`, after the check.
//!
//! It waits as the CLR waits (for a collection, for threads in cooperative mode), and sees when the
//! waiting goes in a circle: [`Deadlock`].

mod callbacks;
mod check;
mod code;
mod drive;
mod enumerators;
mod event_pipe;
mod finalizer;
mod jit;
mod slots;
mod state;
mod wait;
mod world;

use std::sync::Arc;

use corprof::sys::rules::RuntimeVersion;
use corprof::sys::{Hresult, ICorProfilerInfo15, Interface, InterfaceVersion};

pub use check::Refusal;
pub use drive::{CallbackMode, GetClassObject};
pub use finalizer::Finalizer;
pub use jit::{Frame, HookedCode};
pub use state::journal::Call;
pub use state::{Status, Thread};
pub use wait::{Deadlock, WatchedLock};
pub use world::{Function, Ids};

use state::Shared;

/// One runtime. Cheap to clone; all clones are the same runtime.
#[derive(Clone)]
pub struct FakeClr {
    shared: Arc<Shared>,
}

impl FakeClr {
    /// A runtime of this version that has not loaded a profiler yet.
    pub fn new(version: RuntimeVersion) -> Self {
        Self {
            shared: Shared::new(version),
        }
    }

    /// The version that it plays.
    pub fn version(&self) -> RuntimeVersion {
        self.shared.version
    }

    /// The versions of `ICorProfilerInfo` that it answers for.
    fn interfaces(&self) -> &'static [InterfaceVersion] {
        &ICorProfilerInfo15::VERSIONS[..self.shared.version.interface() as usize]
    }

    /// Its `ICorProfilerInfo`, for the raw layer; lives as long as the runtime does.
    pub fn info(&self) -> *mut ICorProfilerInfo15 {
        self.shared.info().cast()
    }

    /// How many calls were refused with `CORPROF_E_UNSUPPORTED_CALL_SEQUENCE`.
    pub fn unsupported(&self) -> usize {
        self.refusals()
            .iter()
            .filter(|refusal| refusal.answer == Hresult::CORPROF_E_UNSUPPORTED_CALL_SEQUENCE)
            .count()
    }

    /// Every call that was refused at the door, in order.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.shared.lock().refusals.clone()
    }

    /// How many calls were made, refused ones included.
    pub fn calls(&self) -> u64 {
        self.shared.lock().calls
    }

    /// An id that the runtime never gave out: a real one would have crashed.
    pub fn crashes(&self) -> Vec<String> {
        self.shared.lock().crashes.clone()
    }
}
