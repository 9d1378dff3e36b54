//! The crate against real CLRs: `examples/minimal.rs` and `examples/probe` loaded into .NET 8 and
//! .NET Core 3.1, with programs whose answer is known; `examples/counts.rs` on all that are there.

mod calls;
mod rejit;
mod run;
mod walks;
