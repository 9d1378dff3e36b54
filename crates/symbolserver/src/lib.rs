//! Client of symbol servers: downloads debug files and PDBs into a folder that `symbolize` reads.
//!
//! It has two protocols: Microsoft's (SSQP: `docs/specs/SSQP_Key_Conventions.md` of
//! dotnet/diagnostics), and debuginfod (elfutils). Only files that the caller names are requested.
//! A server learns ids and, for PDBs, the file name and checksums in the module; nothing else.
//!
//! Invariants: a file gets its final name in the folder only after `symbolize::check` accepted it.
//! Any response costs bounded time and space ([`Limits`]).
#![forbid(unsafe_code)]

mod download;
mod failure;
mod folder;
mod partial;
mod run;
mod server;
#[cfg(feature = "testing")]
pub mod testing;

pub use failure::Failure;
pub use folder::find as find_folder;
pub use run::{Fetch, FetchedFrom, FileOutcome, Progress};
pub use server::Server;

use std::time::Duration;

/// Limits on a server's time and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a file.
    pub bytes: u64,
    /// Until a connection is made, until an answer begins, and between two parts of it.
    pub silence: Duration,
    /// For one file.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 2 << 30,
            silence: Duration::from_secs(30),
            time: Duration::from_secs(15 * 60),
        }
    }
}
