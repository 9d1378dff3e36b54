//! The agent that the CLR loads: `libsidewalk.so`.
//!
//! It samples the threads of the process it is in, walks their stacks in a signal handler, and
//! sends a recording to the tool. It is not a library for others: it exports what a CLR needs to
//! load it and nothing else.
//!
//! Invariants: no panic leaves it; it holds no lock while it calls the CLR; it starts one thread;
//! when the tool is gone it goes silent and the program goes on.

mod agent;
mod bodies;
mod channel;
mod clr;
mod config;
mod drain;
mod events;
mod hijacks;
mod intern;
mod names;
mod outlet;
mod proc;
mod random;
mod registry;
mod resolve;
mod shadow;
mod stubs;
mod threads;
mod tiers;
mod version;
mod walkers;

corprof::export_profiler!(agent::create);
