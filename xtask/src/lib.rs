//! Set-up, demo and tests: what a newcomer and CI need to run.
//!
//! Not a build system: cargo builds. Every command does the set-up that it needs by itself, so that
//! each works as the first one in a fresh checkout. What takes long (benches, soak, packages) is
//! the `lab` crate, which `cargo xtask` builds and starts when it is asked for.

pub mod build;
mod demo;
pub mod fetch;
mod flakes;
pub mod musl;
pub mod process;
mod runtime_async;
pub mod runtimes;
pub mod setup;
mod test;
pub mod tiers;
mod visual_basic;
mod workloads;

pub use demo::run_demo;
pub use flakes::{failed, run_flakes};
pub use test::{nextest_in, run_tests};
