//! A fake CLR for tests: an `ICorProfilerInfo` in Rust that enforces the call rules of a real one.
//!
//! A test script drives it. It loads a profiler through its class factory, raises callbacks on any
//! thread, calls fast-path hooks as compiled code does, collects garbage, suspends and detaches.
//! Each method first makes the checks of the chosen runtime version, from the table
//! `corprof::sys::rules`. One process can have several fake CLRs.
//!
//! The script adds modules, classes, functions, threads and objects, with names, IL and callable
//! code. A method that would need more returns `E_NOTIMPL`, after the check.
//!
//! Calls wait as in the CLR (for a collection, for threads in cooperative mode). A wait that would
//! never end returns [`Deadlock`].

mod callbacks;
mod check;
mod code;
mod drive;
mod enumerators;
mod event_pipe;
mod finalizer;
mod image;
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
pub use image::small_image;
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
    /// Creates a runtime of this version, without a profiler.
    pub fn new(version: RuntimeVersion) -> Self {
        Self {
            shared: Shared::new(version),
        }
    }

    /// The simulated version.
    pub fn version(&self) -> RuntimeVersion {
        self.shared.version
    }

    /// Sets the major version that the runtime reports. Its call rules stay as they are.
    pub fn set_major(&self, major: u16) {
        self.shared.lock().major = Some(major);
    }

    /// The versions of `ICorProfilerInfo` that it implements.
    fn interfaces(&self) -> &'static [InterfaceVersion] {
        &ICorProfilerInfo15::VERSIONS[..self.shared.version.interface() as usize]
    }

    /// The `ICorProfilerInfo`, for raw calls; lives as long as the runtime.
    pub fn info(&self) -> *mut ICorProfilerInfo15 {
        self.shared.info().cast()
    }

    /// Number of calls that were refused with `CORPROF_E_UNSUPPORTED_CALL_SEQUENCE`.
    pub fn unsupported(&self) -> usize {
        self.refusals()
            .iter()
            .filter(|refusal| refusal.answer == Hresult::CORPROF_E_UNSUPPORTED_CALL_SEQUENCE)
            .count()
    }

    /// Every call that the check refused, in order.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.shared.lock().refusals.clone()
    }

    /// Number of calls, including refused ones.
    pub fn calls(&self) -> u64 {
        self.shared.lock().calls
    }

    /// Calls with an unknown id and the like, which would have crashed a real runtime.
    pub fn crashes(&self) -> Vec<String> {
        self.shared.lock().crashes.clone()
    }
}
