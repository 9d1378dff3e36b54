//! The words that all floors share: what a sample, a method, a module, a thread and a session are.
//!
//! Values without behaviour: nothing here reads the program, calls a CLR or writes a record.

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
