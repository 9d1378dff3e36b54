//! The agent's model of the program: its code, native modules and threads.
//!
//! Callbacks update it at once, with or without a session; a session reads it. Nothing here calls
//! into a CLR or writes a record. Invariant: memory is bounded by the program's own live code,
//! loaded modules and running threads, for as long as the process lives.

pub mod accounts;
pub mod chains;
pub mod code;
pub mod hijacks;
pub mod history;
pub mod natives;
#[cfg(test)]
mod tests;
pub mod threads;

use crate::base::waker::Waker;
use crate::model::phase::PhaseReader;

pub use code::CodeIndex;
pub use history::CodeHistory;
pub use natives::NativeModules;
pub use threads::Threads;

/// Facts about the program.
pub struct Program {
    /// Code that the runtimes compiled.
    pub code: CodeIndex,
    /// Native modules.
    pub natives: NativeModules,
    /// Threads.
    pub threads: Threads,
}

impl Program {
    /// Returns empty tables. `waker` wakes the agent thread when it should take queued changes.
    pub fn new(phase: PhaseReader, waker: &'static Waker) -> Program {
        Program {
            code: CodeIndex::new(phase, waker),
            natives: NativeModules::new(phase),
            threads: Threads::new(phase),
        }
    }
}
