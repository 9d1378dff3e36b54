//! Client for the diagnostics socket of a CLR: process info, profiler attach, perf map.
//!
//! Every CLR since .NET Core 3.0 listens on such a socket. The crate also determines whether a
//! process can be recorded (`reach`) and copies the agent to where it can be loaded (`deploy`). It
//! starts no thread and needs no managed tool.
//! Sources: `documentation/design-docs/ipc-protocol.md` of dotnet/diagnostics,
//! `src/native/eventpipe/ds-*.c` of dotnet/runtime.
//! Invariants: no call blocks longer than its timeout, even if the other side is stopped, stuck, or
//! an impostor. A reply is read up to the length that the protocol allows, and none of its content
//! is trusted. No command is sent to a socket whose listener is not the requested process.
#![forbid(unsafe_code)]

mod client;
mod deploy;
mod error;
mod info;
mod interpreter;
mod protocol;
mod reach;
mod refusal_code;
mod socket;
mod survey;
mod target;

pub use client::{Attach, Diagnostics, PerfMap};
pub use deploy::{
    DeployError, DeployedLibrary, LibraryLinks, UnpackLibraryError, UnpackedLibrary, hash_of,
};
pub use error::Error;
pub use info::{ProcessInfo, ProcessInfoVersion};
pub use interpreter::{libc_of_machine, libc_of_program, loader};
pub use reach::{Reach, RecordingRoute, Refusal};
pub use refusal_code::RefusalCode;
pub use socket::connect_to_newest;
pub use survey::{Libc, LoadedRuntime, Profiler, Survey, is_native_aot, newest_glibc, release};
pub use target::{Folder, Target};
