//! Measures the cost of synchronous stack walks, in JIT callbacks on the program's threads.

use std::sync::atomic::{AtomicU64, Ordering};

use agent::base::proc;
use agent::clr::Clr;
use agent::session::AgentState;
use agent::walkers::here::walk_here;
use agent::walkers::snapshot::snapshot_here;
use corprof::Cx;
use corprof::context::Callback;

/// Sums of this process.
static COSTS: Costs = Costs {
    walks: AtomicU64::new(0),
    snapshot_frames: AtomicU64::new(0),
    snapshot_ns: AtomicU64::new(0),
    own_frames: AtomicU64::new(0),
    own_ns: AtomicU64::new(0),
};

/// Sums of `DoStackSnapshot` and of the agent's walk of the same stacks, since the last [`take`].
#[derive(Debug)]
struct Costs {
    walks: AtomicU64,
    snapshot_frames: AtomicU64,
    snapshot_ns: AtomicU64,
    own_frames: AtomicU64,
    own_ns: AtomicU64,
}

/// Walks the calling thread in both ways, twice, and counts the second round.
pub(crate) fn measure(agent: &'static AgentState, clr: &Clr, cx: &mut Cx<'_, Callback>) {
    let Some(proof) = clr.snapshots() else { return };
    let map = agent.program.code.map();
    let max_depth = agent.settings().max_depth;
    let mut words = Vec::new();
    for counted in [false, true] {
        let started = proc::now_ns();
        let walked = snapshot_here(map, cx, proof, max_depth as usize, &mut words);
        let between = proc::now_ns();
        let (own, _) = walk_here(map, max_depth, agent.program.threads.own_hijacks());
        let ended = proc::now_ns();
        if counted && walked.is_ok() {
            for (sum, more) in [
                (&COSTS.walks, 1),
                (&COSTS.snapshot_frames, words.len() as u64),
                (&COSTS.snapshot_ns, between.saturating_sub(started)),
                (&COSTS.own_frames, own.len() as u64),
                (&COSTS.own_ns, ended.saturating_sub(between)),
            ] {
                sum.fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}

/// Returns and clears the sums: walks, then frames and nanoseconds of `DoStackSnapshot` and of the
/// agent's walk.
pub(crate) fn take() -> [u64; 5] {
    [
        &COSTS.walks,
        &COSTS.snapshot_frames,
        &COSTS.snapshot_ns,
        &COSTS.own_frames,
        &COSTS.own_ns,
    ]
    .map(|sum| sum.swap(0, Ordering::Relaxed))
}
