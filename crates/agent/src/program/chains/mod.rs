//! Chains of async methods: what the handler knows and does to find who awaits the method that it
//! interrupted.
//!
//! `bodies` says which frames are async methods' and where they have their state machine, `types`
//! what the objects are that refer to each other, `gate` when they may be read, `reader` how;
//! `finder` puts it together, while the stack is walked; `awaiter` finds who awaited a task that is
//! done; `suspended` reads the chains of all suspended methods, which no thread runs, in a walk of
//! the heap. All of it is learned in callbacks and on the agent thread (`clr::async_types`).
//! Nothing here names anything.
//!
//! Invariants: without [`prepare`] there are no tables, and no gate is ever open; tables are never
//! freed and only grow, so the handler needs no grace period, and their size is fixed.

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
pub use suspended::Survey;
pub use types::{LinkKind, SuspendedAt, TaskAt, Types};

/// The tables in which the handler looks things up.
#[derive(Debug, Default)]
pub struct ChainTables {
    /// Code.
    pub bodies: AsyncBodies,
    /// Objects.
    pub types: Types,
}

/// About 1.3 MiB, made when a session first asks for chains.
static TABLES: OnceLock<ChainTables> = OnceLock::new();

/// One for each CLR that runs at once, by its place in the row (`program::hijacks`).
static GATES: [HeapGate; HIJACKS] = [const { HeapGate::new() }; HIJACKS];

/// The tables, made where there are none yet. Not in a handler.
pub fn prepare() -> &'static ChainTables {
    TABLES.get_or_init(ChainTables::default)
}

/// The tables, where they have been made. Async-signal-safe: a load.
pub fn tables() -> Option<&'static ChainTables> {
    TABLES.get()
}

/// A session wants chains: what is compiled from now on is looked at.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Whether a session wants chains. Where it does, the tables are there.
pub fn set_wanted(wanted: bool) {
    if wanted {
        prepare();
    }
    WANTED.store(wanted, Ordering::Release);
}

/// The tables, where a session wants chains.
pub fn tables_if_wanted() -> Option<&'static ChainTables> {
    tables().filter(|_| WANTED.load(Ordering::Acquire))
}

/// A CLR's gate, by its place.
pub fn gate(place: usize) -> Option<&'static HeapGate> {
    GATES.get(place)
}
