//! The profiling agent: the code of `libsidewalk.so`, without the library's one exported function.
//!
//! It samples the threads of its process, walks their stacks in a signal handler, and sends a
//! recording to the tool. It is not a general library. Two crates use it: `libsidewalk`, which
//! exports the entry point, and `oracle`, a test profiler that compares the results of the agent's
//! walkers.
//!
//! Invariants: no panic leaves the agent. It holds no lock while it calls the CLR. It starts one
//! thread, and one for each CLR in which methods are traced. When the tool has ended, it stops
//! sampling and the program continues.
//!
//! Layers: each module group may use only the groups above it in this list. A test checks the
//! imports (`crates/testkit/tests/acceptance/house.rs`). ARCHITECTURE.md has the picture.

pub mod base;
pub mod model;
pub mod program;

pub mod clr;
mod hooks;
pub mod record;

mod handler;
pub mod walkers;

pub mod events;
mod trace;

pub mod session;

mod callbacks;
pub mod process;

pub use process::{SIDEWALK, create};
pub use session::Library;
