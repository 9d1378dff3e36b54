//! The program as far as it is known without a call into a CLR and without a record: which code is
//! where, which native modules are loaded, which threads there are.
//!
//! Callbacks keep it true at once, whether or not there is a session; a session reads it.
//! Invariant: its memory is bounded by what the program itself holds (live code, loaded modules,
//! threads that run), for as long as the process lives.

pub mod accounts;
pub mod chains;
pub mod code;
pub mod hijacks;
pub mod history;
pub mod natives;
pub mod threads;

use crate::base::waker::Waker;
use crate::model::phase::PhaseReader;

pub use code::CodeIndex;
pub use history::CodeHistory;
pub use natives::NativeModules;
pub use threads::Threads;

/// Facts about the program.
pub struct Program {
    /// Code that the runtimes have made.
    pub code: CodeIndex,
    /// Libraries.
    pub natives: NativeModules,
    /// Threads.
    pub threads: Threads,
}

impl Program {
    /// Nothing known yet. `waker` is rung when the agent thread should take what is queued.
    pub fn new(phase: PhaseReader, waker: &'static Waker) -> Program {
        Program {
            code: CodeIndex::new(phase, waker),
            natives: NativeModules::new(phase),
            threads: Threads::new(phase),
        }
    }
}
