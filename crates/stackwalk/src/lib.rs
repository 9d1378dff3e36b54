//! Registers and stack to frames: native, managed, and back.
//!
//! Its tasks: [`walk`] turns the registers of an interrupted thread into the addresses of all its
//! frames, leaf first, inside a signal handler. [`CodeMap`] is the table that it walks by: which
//! address belongs to which code, and how that code is unwound. It does not name anything, time
//! anything, or know what a runtime is.
//!
//! # How
//!
//! Each frame needs one *rule* (where the caller's registers are), found by one *lookup
//! address*: the instruction pointer itself where the instruction has not run yet (the leaf, a
//! frame interrupted by a signal), the return address − 1 for a caller. Rules are packed into 31
//! bits and kept in one cache for all threads; a hit costs one load. A miss asks the code map:
//!
//! | code | source of its rule |
//! | --- | --- |
//! | native | the module's `.eh_frame`, read from a mapping of its file (`cfi`, `native`) |
//! | … without tables | its own instructions, read once by the agent thread (`synthesis`) |
//! | JIT body | a copy of the UNWIND_INFO that lies beside the code, or its decoded prologue ([`jit`]) |
//! | ReadyToRun | the image's exception directory, in place ([`pe`]) |
//! | anything else | a return address on top of the stack behind a call; else the frame pointer |
//!
//! Why not framehop: it decides per module how to parse, keeps a cache per thread (300 KiB
//! each), and takes new modules only by `&mut`. JIT bodies come thousands of times a second and
//! must be visible at once to walks that run at that moment.
//!
//! # Invariants
//!
//! - [`walk`] takes no lock, allocates nothing, calls nothing of libc, takes at most 1,800 bytes of
//!   stack, and ends: each step goes up the stack or ends the walk.
//! - It reads stack memory only within the bounds it was given, by one function.
//! - It never panics, whatever the registers, the stack and the tables hold.

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

pub use map::{CodeMap, Kind, Memory, Region, Taken};
pub use native::{ModuleChange, NativeModule};
pub use unwind_info::Saved;
pub use walk::{
    ADDRESS, BY_FRAME_POINTER, EXACT, End, HEURISTIC, HIJACKS, Out, Reason, Regs, Scratch, Stack,
    Traced, Walk, hijack_offset, is_behind_unknown_call, lookup_address, regs_from_ucontext, trace,
    walk, walk_into,
};
