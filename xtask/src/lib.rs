//! Set-up, demo and tests: the commands that a newcomer and CI need.
//!
//! Every command does its own set-up, so each works as the first one in a fresh checkout. Cargo
//! builds. The long-running commands (benches, soak, packages) are in the crate `lab`, which
//! `cargo xtask` builds and starts on demand.

pub mod build;
mod demo;
pub mod fetch;
mod flakes;
pub mod musl;
mod musl_tables;
pub mod process;
mod runtime_async;
pub mod runtimes;
pub mod setup;
mod test;
pub mod tiers;
mod unpacked;
mod visual_basic;
mod workloads;
pub mod zig;

pub use demo::run_demo;
pub use flakes::{failed, run_flakes};
pub use test::{nextest_in, run_tests};
