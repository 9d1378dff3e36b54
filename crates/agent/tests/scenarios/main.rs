//! The agent in scripted CLRs (`fake-clr`): attach, sessions, unload, ReJIT, detach.
//!
//! Only the CLR is simulated. The agent, its thread, its socket, the sampled threads, their code
//! and the recording are real. Each scenario checks exact results: calls and their order, records
//! and their number. The acceptance tests (`testkit`) check the same parts on real CLRs.
//!
//! The agent exists once per process, so each test needs its own: `cargo nextest run -p agent`.

mod attach;
mod catch_up;
mod peers;
mod program;
mod recorded;
mod runtimes;
mod sessions;
mod startup;
mod tracing;
mod unload;

corprof::export_profiler!(|request| agent::create(request, &agent::SIDEWALK));
