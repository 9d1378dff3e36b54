//! The agent: what a CLR loads as `libsidewalk.so`, without the library's one exported function.
//!
//! It samples the threads of the process it is in, walks their stacks in a signal handler, and
//! sends a recording to the tool. It is not a library for others: two use it, the crate
//! `libsidewalk` and the crate `oracle`, which holds its walkers against each other.
//!
//! Invariants: no panic leaves it; it holds no lock while it calls the CLR; it starts one thread,
//! and one for each CLR in which methods are traced; when the tool is gone it goes silent and the
//! program goes on.
//!
//! Each floor may use only those above it in this list; a test reads the arrows
//! (`crates/testkit/tests/acceptance/house.rs`). ARCHITECTURE.md has the picture.

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
