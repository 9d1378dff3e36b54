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

mod answer;
mod client;
mod deploy;
mod error;
mod frame;
mod info;
mod interpreter;
mod reach;
mod socket;
mod survey;
mod target;

pub use answer::Answer;
pub use client::{Attach, Diagnostics, PerfMap};
pub use deploy::{DeployError, Deployed, UnpackError, Unpacked, hash_of};
pub use error::Error;
pub use info::{Generation, ProcessInfo};
pub use interpreter::{libc_of_machine, libc_of_program, loader};
pub use reach::{Reach, Refusal, Way};
pub use socket::connect_where;
pub use survey::{Libc, Profiler, Runtime, Survey, is_native_aot, newest_glibc, release};
pub use target::{Folder, Target};
