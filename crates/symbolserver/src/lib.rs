//! Gets debug files and PDBs from symbol servers, into a folder that `symbolize` looks in.
//!
//! Two protocols: what Microsoft's server speaks (SSQP: `docs/specs/SSQP_Key_Conventions.md` of
//! dotnet/diagnostics), and debuginfod (elfutils). It asks for nothing that it is not told to, and
//! tells a server nothing but ids and, for PDBs, the name that the module gives its PDB and the
//! sums that it names.
//!
//! The invariant: a file has its place in the folder only if `symbolize::check` has found it to be
//! the one that was asked for. Whatever a server sends, it costs bounded time and space: so many
//! bytes, so long a silence, so long a file.
#![forbid(unsafe_code)]

mod download;
mod failure;
mod folder;
mod http_client;
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
