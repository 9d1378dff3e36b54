//! Data types that all layers share: samples, methods, modules, threads, session settings.
//!
//! Calls into a CLR and writing records are in other modules. Only `method` reads the program: a
//! module's file and metadata.

pub mod chain;
pub mod method;
pub mod phase;
pub mod settings;
pub mod stack;
pub mod thread;

pub use method::{CodeBody, CollectibleFacts, FileAtLoad, IlMap, ManagedModule, MethodNames};
pub use phase::Phase;
pub use settings::{EventSet, RuntimePolicy, Settings, TracePattern, WalkerKind};
pub use stack::{EndCode, NATIVE_RUN, WalkedStack};
pub use thread::{ManagedThread, ThreadTarget};
