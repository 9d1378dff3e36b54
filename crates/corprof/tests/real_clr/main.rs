//! Tests of the crate on real CLRs, with the profilers of `examples/`.
//!
//! `examples/minimal.rs` and `examples/probe` run on .NET 8 and .NET Core 3.1, with programs whose
//! result is known. `examples/counts.rs` runs on all installed runtimes.

mod calls;
mod rejit;
mod run;
mod walks;
