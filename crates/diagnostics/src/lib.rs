//! A client for the diagnostics socket that every CLR since .NET Core 3.0 listens on: who it is,
//! attach a profiler, write a perf map.
//!
//! It knows nothing of recordings or of our agent, starts no thread and needs no managed tool.
//! Sources: `documentation/design-docs/ipc-protocol.md` of dotnet/diagnostics,
//! `src/native/eventpipe/ds-*.c` of dotnet/runtime. The invariants: no call waits longer than it
//! was told to, whatever the other side does (it may be stopped, stuck, or an impostor); what it
//! answers is read up to the length that the protocol allows and trusted in nothing; nothing is
//! sent to a socket whose listener is not the process that was asked for.
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
pub use deploy::{DeployError, DeployedLibrary, UnpackLibraryError, UnpackedLibrary, hash_of};
pub use error::Error;
pub use info::{ProcessInfo, ProcessInfoVersion};
pub use interpreter::{libc_of_machine, libc_of_program, loader};
pub use reach::{Reach, RecordingRoute, Refusal};
pub use refusal_code::RefusalCode;
pub use socket::connect_to_newest;
pub use survey::{Libc, LoadedRuntime, Profiler, Survey, is_native_aot, newest_glibc, release};
pub use target::{Folder, Target};
