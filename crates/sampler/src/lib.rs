//! Sampling of threads: timers, the signal handler, and the ring buffers from handler to agent.
//!
//! This crate decides *when* a thread is sampled, runs the signal handler on that thread, and
//! passes the walker's result to the agent thread. The walk itself is a function pointer given at
//! start. The crate handles addresses only: it does no symbolization and makes no calls into the
//! CLR.
//!
//! Invariant: code reachable from the handler takes no lock, allocates nothing, touches no
//! thread-local of this library, makes no call that could, and preserves `errno`. The crate is
//! `no_std` without `alloc`, so most code that would violate this does not compile.
//!
//! Callers of each part:
//! - [`Sampler`] is shared (`&'static`): any thread, never the handler;
//! - [`Reader`] is the one consumer: the agent thread;
//! - the handler calls the [`WalkFn`].
#![cfg_attr(not(test), no_std)]

mod clocks;
mod config;
mod counters;
mod due;
mod engine;
mod global;
mod guard;
mod handler;
mod maps;
mod price;
mod protocol;
mod reader;
mod sampler;
mod slot;
mod stack;
mod sys;
mod trace;
mod waiting;
mod waits;

/// The atomics that `protocol` is compiled with.
mod sync {
    pub(crate) use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

#[cfg(test)]
mod loom_model;
#[cfg(test)]
mod round_trip;

pub use config::{
    Config, EngineChoice, EngineKind, Error, HoldReason, Scratch, WalkFn, WalkResult,
};
pub use counters::{Counters, DiscardReason};
pub use guard::OpenHandlers;
pub use reader::{Reader, SampleEvent, SampleView};
pub use sampler::{Holder, Route, Sampler, SlotId, Unsent};
pub use sys::queued_ns;
pub use trace::{TraceRefused, TraceView};
