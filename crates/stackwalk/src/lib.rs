//! Stack walker: turns a thread's registers and stack into the addresses of its frames.
//!
//! [`walk`] runs in a signal handler. It takes the registers of an interrupted thread and writes
//! the addresses of all frames, native and managed, leaf first. [`CodeMap`] is the table behind it:
//! it maps an address to its code and to the rule by which that code is unwound. This crate does
//! not symbolize frames, schedule samples or call a runtime.
//!
//! # How
//!
//! Each frame needs one *rule* (where the caller's registers are). A rule is found by a *lookup
//! address*. For an instruction that has not run yet (the leaf, a frame interrupted by a signal) it
//! is the instruction pointer. For a caller it is the return address − 1. Rules are packed into 31
//! bits and stored in one cache for all threads. A hit costs one load. A miss looks the rule up in
//! the code map:
//!
//! | code | source of its rule |
//! | --- | --- |
//! | native | the module's `.eh_frame`, copied when the module is found (`cfi`, `native`) |
//! | … without tables | its own instructions, read when the module is found (`synthesis`) |
//! | JIT body | a copy of the UNWIND_INFO that lies beside the code, or its decoded prologue ([`jit`]) |
//! | ReadyToRun | the image's exception directory, in place ([`pe`]) |
//! | anything else | a return address on top of the stack after a call, or the frame pointer |
//!
//! Why not framehop: it decides per module how to parse, keeps a cache per thread (300 KiB each),
//! and takes new modules only by `&mut`. Thousands of JIT bodies can appear in a second, and each
//! must be visible at once to running walks.
//!
//! # Invariants
//!
//! - [`walk`] takes no lock, allocates nothing, calls nothing of libc, and uses at most 1,800 bytes
//!   of stack. It terminates: each step goes up the stack or ends the walk.
//! - It reads stack memory only within the bounds it was given, in one function.
//! - It never panics, for any content of the registers, the stack and the tables.

#![warn(missing_docs)]

mod cache;
mod cfi;
pub mod debug_info;
pub mod gc_info;
mod grace;
pub mod heaps;
pub mod jit;
mod map;
mod native;
#[cfg(test)]
mod oracle;
pub mod own_memory;
pub mod pe;
mod rule;
pub mod survey;
mod synthesis;
mod unwind_info;
mod walk;
mod x86;

pub use map::{CodeKind, CodeMap, Memory, Region, TakenBody};
pub use native::{ModuleChange, NativeModule};
pub use unwind_info::Saved;
pub use walk::{
    ADDRESS, BY_FRAME_POINTER, EXACT, End, HEURISTIC, HIJACKS, Out, Reason, Regs, Scratch, Stack,
    Traced, Walk, hijack_offset, is_behind_unknown_call, lookup_address, regs_from_ucontext, trace,
    walk, walk_into,
};
