//! `libsidewalk.so`: the agent of the crate `agent`, with the one function that a CLR looks for.
//!
//! Invariant: it exports that function and nothing else.

mod clocks;

corprof::export_profiler!(|request| agent::create(request, &agent::SIDEWALK));
