//! Time that passes: what the picture says of a thread that works and waits, and what the thread
//! notices.

use testkit::chance::deviation;
use testkit::{Recorder, Runtime};

use crate::shares::assert_shares;
use crate::{LOST_LIMIT, broken_limit};

on_each_runtime!(a_worker_is_seen_where_it_waits_and_is_not_woken_for_it);

const HERTZ: u32 = 99;

/// Two callers have the same wait. Only return addresses distinguish their stacks.
fn a_worker_is_seen_where_it_waits_and_is_not_woken_for_it(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "worker", &["8"])
        .options(["--event", "wall", "--frequency", &HERTZ.to_string()])
        .run_complete();
    recorded
        .inspect()
        .assert_honest(broken_limit(runtime), LOST_LIMIT);
    let interval_ns = 1e9 / f64::from(HERTZ);
    let total = assert_shares(&recorded, "Workloads.Worker.Turns", interval_ns);
    // All of its time is recorded, except for both ends and the chance in the last samples.
    let wall_ns = recorded.answer.measured("wall_ms") * 1e6;
    let off = (total as f64 - wall_ns).abs() / interval_ns;
    assert!(
        off <= deviation(wall_ns / interval_ns, 0.01),
        "{total} ns of {wall_ns}"
    );
    // Two of three ticks occur while it waits. If each woke it, half of its waits would end early.
    let (waits, interrupted) = (
        recorded.answer.measured("waits"),
        recorded.answer.measured("interrupted"),
    );
    println!("{interrupted} of {waits} waits interrupted");
    assert!(interrupted * 5.0 <= waits, "{interrupted} of {waits} waits");
}
