//! The CLR Profiling API for Rust, with its call rules as types.
//!
//! A profiler implements [`Callbacks`] and exports a constructor by [`export_profiler!`]. Each
//! callback is handed a [`Cx`], the proof of the context that it runs in; [`Cx::info`] gives the
//! [`Info`], whose methods ask for the proof that they need. A call that the runtime would refuse
//! with `CORPROF_E_UNSUPPORTED_CALL_SEQUENCE` does not compile.

#[macro_use]
pub mod sys;

mod callbacks;
pub mod context;
pub mod elt;
mod factory;
pub mod id;
pub mod info;
mod lock;
mod metadata;
mod objects;
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
    GenericParamProps, MemberRefProps, MetadataImport, MethodProps, ScopeProps, TypeDefProps,
    TypeRefProps,
};
pub use objects::{AssemblyReferences, FunctionControl};
pub use runtime::{Capabilities, Info, Result, Runtime};
pub use snapshot::{
    FrameInfo, Registers, Seed, SeedRefused, SnapshotFrame, StackSnapshots, WalkError, Walked,
};
pub use suspension::{SuspendError, Suspension};
pub use sys::{EventMaskHigh, EventMaskLow, Guid, Hresult, ModuleFlags};
pub use thread::{AgentCx, spawn_agent_thread};
