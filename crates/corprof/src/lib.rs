//! The CLR Profiling API for Rust, with its call rules as types.
//!
//! A profiler is a library that CoreCLR loads into a .NET program. The CLR calls it
//! (`ICorProfilerCallback`) and it calls the CLR (`ICorProfilerInfo`), but not everything from
//! everywhere: from the wrong place a call answers `CORPROF_E_UNSUPPORTED_CALL_SEQUENCE`,
//! deadlocks, or crashes the program. Here such a call does not compile.
//!
//! # How it goes
//!
//! - Implement [`Callbacks`] and name a constructor in [`export_profiler!`]. Each CLR of the
//!   process gets an object of its own.
//! - Every callback is handed a [`Cx<'rt, C>`](Cx): the proof that the code runs in context `C`
//!   ([`context`]) of the runtime `'rt`. [`Cx::info`] gives the [`Info`], whose methods have the
//!   CLR's names in snake case and ask for the proof that they need.
//! - What can be done in no callback is done on a thread of the profiler's own:
//!   [`spawn_agent_thread`], [`AgentCx::enter`]. There every call is synchronous, and the runtime
//!   can be suspended ([`Info::suspend_runtime`]).
//! - Ids live as long as the callback. What is kept is a [`Key`], which [`Info::id`] turns back for
//!   the runtime that it belongs to, and for no other.
//! - What the runtime has not got so far (`CORPROF_E_DATAINCOMPLETE`) is `Ok(None)`; every other
//!   failure is an [`Hresult`] with its name, or an error type where the answer matters
//!   ([`WalkError`], [`SuspendError`]).
//! - IL is read, changed and written by [`il`], which needs no runtime. [`enable_rejit`] says how
//!   it gets into a program that runs; [`MetadataEmit`] gives the tokens that it needs.
//! - What is missing is in [`sys`], the raw contract, with the table of the rules in
//!   [`sys::rules`].
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
//! `examples/minimal.rs` is a whole one. In a fast-path hook the same call is refused by the
//! compiler:
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
//! # What it does not do
//!
//! It is no profiler: it samples, names and writes nothing. It is written for CoreCLR 3.1 and later
//! on 64-bit Unix and tested with 3.1.23 and 8.0.4 on x86-64 Linux, for which the stubs of the
//! hooks ([`elt`]) are. A panic in a callback is caught, counted ([`Runtime::panics`]) and answered
//! with `E_FAIL`; the panic hook, which prints, is the profiler's to replace.

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
