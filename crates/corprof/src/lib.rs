//! The CLR Profiling API for Rust, with its call rules as types.
//!
//! A profiler is a library that CoreCLR loads into a .NET program. The CLR calls the profiler
//! (`ICorProfilerCallback`) and the profiler calls the CLR (`ICorProfilerInfo`). The CLR has call
//! rules: from the wrong place a call returns `CORPROF_E_UNSUPPORTED_CALL_SEQUENCE`, deadlocks, or
//! crashes the program. With this crate such a call does not compile.
//!
//! # Overview
//!
//! - Implement [`Callbacks`] and name a constructor in [`export_profiler!`]. Each CLR of the
//!   process gets its own object.
//! - Every callback gets a context token, [`Cx<'rt, C>`](Cx). It proves that the code runs in
//!   context `C` ([`context`]) of the runtime `'rt`. [`Cx::info`] returns the [`Info`], whose
//!   methods have the CLR's names in snake case and take the token that they require.
//! - Work that no callback permits runs on a thread of the profiler: [`spawn_agent_thread`],
//!   [`AgentCx::enter`]. On that thread every call is synchronous, and the runtime can be suspended
//!   ([`Info::suspend_runtime`]).
//! - Ids live as long as the callback. To store one, make a [`Key`]. [`Info::id`] turns it back
//!   into an id, only for the runtime to which it belongs.
//! - Data that the runtime does not have yet (`CORPROF_E_DATAINCOMPLETE`) is `Ok(None)`. Every
//!   other failure is a named [`Hresult`], or an error type where the caller must distinguish
//!   causes ([`WalkError`], [`SuspendError`]).
//! - [`il`] reads, changes and writes IL without a runtime. [`enable_rejit`] prepares a running
//!   program for new IL; [`MetadataEmit`] makes the metadata tokens for it.
//! - [`sys`] has the raw FFI definitions of everything else, and [`sys::rules`] the table of the
//!   call rules.
//!
//! # A profiler
//!
//! ```
//! use corprof::context::{Callback, Startup};
//! use corprof::*;
//!
//! struct Tiers;
//!
//! impl Callbacks for Tiers {
//!     fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> Result<()> {
//!         let (low, high) = (EventMaskLow::MONITOR_JIT_COMPILATION, EventMaskHigh::empty());
//!         cx.info().set_event_mask2(cx, low, high)
//!     }
//!     fn jit_compilation_finished<'rt>(
//!         &self,
//!         cx: &mut Cx<'rt, Callback>,
//!         function: FunctionId<'rt>,
//!         _status: Hresult,
//!         _is_safe_to_block: bool,
//!     ) -> Result<()> {
//!         let bodies =
//!             cx.info().get_native_code_start_addresses(cx, function, RejitId::ORIGINAL)?;
//!         // One body for each tier so far.
//!         let _ = bodies.len();
//!         Ok(())
//!     }
//! }
//!
//! fn create(_request: &ClassRequest) -> Result<Box<dyn Callbacks>> {
//!     Ok(Box::new(Tiers))
//! }
//!
//! export_profiler!(create);
//! # fn main() {}
//! ```
//!
//! `examples/minimal.rs` is a complete profiler. The compiler refuses a synchronous call in a
//! fast-path hook:
//!
//! ```compile_fail,E0277
//! use corprof::context::Async;
//! use corprof::*;
//!
//! fn enter<'rt>(cx: &mut Cx<'rt, Async>, thread: ThreadId<'rt>) {
//!     // error[E0277]: this CLR call is synchronous: it can't be made in the context `Async`
//!     let _ = cx.info().get_thread_info(cx, thread);
//! }
//! ```
//!
//! # Scope
//!
//! The crate is the API only: it does not sample, resolve names or write files. It supports CoreCLR
//! 3.1 and later on 64-bit Unix, and is tested with 3.1.23 and 8.0.4 on x86-64 Linux. The fast-path
//! hook stubs ([`elt`]) are x86-64 Unix only. A panic in a callback is caught, counted
//! ([`Runtime::panics`]) and returned as `E_FAIL`. The panic hook still prints; a profiler may
//! replace it.

#[macro_use]
pub mod sys;

mod callbacks;
pub mod context;
pub mod elt;
mod factory;
pub mod id;
pub mod il;
pub mod info;
mod lock;
mod metadata;
mod meter;
mod objects;
mod rejit;
mod runtime;
mod snapshot;
mod suspension;
mod thread;
mod thunks;

pub use callbacks::{Callbacks, EventPipeEvent, RootReferences};
pub use context::Cx;
pub use factory::{ClassRequest, Constructor, callback_object, class_object};
pub use id::{
    AppDomainId, AssemblyId, ClassId, ClassKey, FunctionId, FunctionKey, Id, Key, ModuleId,
    ModuleKey, ObjectId, RejitId, RuntimeIndex, ThreadId, ThreadKey, Token,
};
pub use lock::{AgentLock, AgentLockGuard, ThreadPin, ThreadPins};
pub use metadata::{
    GenericParamProps, MemberRefProps, MetadataEmit, MetadataImport, MethodProps, MethodSpecProps,
    ScopeProps, TypeDefProps, TypeRefProps,
};
pub use meter::{CallbackKind, Calls};
pub use objects::{AssemblyReferences, FunctionControl};
pub use rejit::{PreparedBodies, PreparedBody, Rejit, RejitCx, RejitRefused, enable_rejit};
pub use runtime::{Capabilities, Info, Result, Runtime};
pub use snapshot::{
    FrameInfo, Registers, Seed, SeedRefused, SnapshotFrame, StackSnapshots, WalkError, Walked,
};
pub use suspension::{SuspendError, Suspension};
pub use sys::{CodegenFlags, EventMaskHigh, EventMaskLow, Guid, Hresult, ModuleFlags, RejitFlags};
pub use thread::{AgentCx, spawn_agent_thread};
