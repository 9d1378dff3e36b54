//! Finds chains: the methods that await the async method which a sample interrupted.
//!
//! Runs in the signal handler, from tables that callbacks and the agent thread fill
//! (`clr::async_types`). A chain is a list of method tables and states; `record::chains` names
//! them.
//!
//! - `bodies`: which code is async methods', and the stack slots (homes) of their state machines.
//! - `types`: the kinds of objects in a chain.
//! - `gate`: when heap objects may be read.
//! - `reader`: reads a chain.
//! - `finder`: finds the start of a chain while the stack is walked.
//! - `awaiter`: finds what awaited a completed task.
//! - `suspended`: reads the chains of all suspended methods, which no thread runs, in a heap walk.
//!
//! Invariants: before [`prepare`] no tables exist and every gate is closed. Tables have a fixed
//! size, only grow and are never freed, so the handler needs no grace period.

mod awaiter;
pub mod bodies;
pub mod finder;
pub mod gate;
pub mod reader;
pub mod suspended;
pub mod types;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use stackwalk::HIJACKS;

pub use bodies::{AsyncBodies, AsyncBody, CodeRole, HeldIn, HeldTask, MachineHome, ObjectAt};
pub use gate::HeapGate;
pub use suspended::{AskedClasses, Survey};
pub use types::{LinkKind, SuspendedAt, TaskAt, Types};

/// The tables that the handler reads.
#[derive(Debug, Default)]
pub struct ChainTables {
    /// Async code, by address.
    pub bodies: AsyncBodies,
    /// Object kinds, by method table.
    pub types: Types,
}

/// About 1.3 MiB, allocated when a session first requests chains.
static TABLES: OnceLock<ChainTables> = OnceLock::new();

/// One for each CLR that can run at once, by the CLR's index (`program::hijacks`).
static GATES: [HeapGate; HIJACKS] = [const { HeapGate::new() }; HIJACKS];

/// Returns the tables, and allocates them on the first call. Not in a handler.
pub fn prepare() -> &'static ChainTables {
    TABLES.get_or_init(ChainTables::default)
}

/// Returns the tables, if allocated. Async-signal-safe: a load.
pub fn tables() -> Option<&'static ChainTables> {
    TABLES.get()
}

/// Whether a session requests chains, so that newly compiled code is examined.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Sets whether a session requests chains. If so, allocates the tables.
pub fn set_wanted(wanted: bool) {
    if wanted {
        prepare();
    }
    WANTED.store(wanted, Ordering::Release);
}

/// Returns the tables, if a session requests chains.
pub fn tables_if_wanted() -> Option<&'static ChainTables> {
    tables().filter(|_| WANTED.load(Ordering::Acquire))
}

/// Returns a CLR's gate, by the CLR's index.
pub fn gate(place: usize) -> Option<&'static HeapGate> {
    GATES.get(place)
}
