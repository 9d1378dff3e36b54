//! Code shared by tests, benches and `cargo xtask`: finds and starts runtimes, workloads and tools.
//!
//! Workloads are the C# test programs of `workloads/`. `cargo xtask setup` downloads and builds
//! everything, and writes the [`Setup`] file that this crate reads. Invariant: if something that a
//! test needs is missing, the test fails with a message that names the command to run. No test is
//! skipped.

mod agree;
pub mod chance;
mod layout;
mod load;
mod oracle;
mod picture;
mod record;
mod running;
mod runtime;
mod shared;
mod stacks;
mod started;
mod tiers;
mod workload;

pub use agree::{
    Agreement, Class, Costs, PairCounts, agree, agree_attached, attached_programs, oracle_programs,
};
pub use layout::{
    agent, agent_variable, cache_dir, chromium, fast_clocks, find_chromium, is_on_musl, musl_dir,
    native_threads, profile_dir, repository, runsxs, sidewalk, target_dir, unpacked, v2_agent,
    watched_malloc,
};
pub use load::{Client, Loaded, SERVING, load, own_address};
pub use oracle::{JitBodies, JitBody};
pub use picture::{CpuShare, ShareComparison, compare_shares, compare_shares_in_turn};
pub use record::{
    Inspected, Machine, ProgramOutput, Recorded, Recorder, logical_stacks, output_in_time,
    physical_stacks, run_sidewalk, smallest_signal_stacks, stdout_of, test_folder,
};
pub use running::{Running, WebServer, only_child};
pub use runtime::{App10, DumpReader, Runtime, Setup, Tools};
pub use stacks::{Stacks, is_hole, is_method, is_stack};
pub use started::{Deadline, start_in_time, with_default_signals};
pub use tiers::{SMOKE, is_smoke};
pub use workload::{
    AsyncKind, Needs, OF_EACH_KIND, Workload, workload, workload_names, workload_of_kind,
};
