//! Time that passes: what the picture says of a thread that works and waits, and what the thread notices.

use testkit::{Record, Runtime};

use crate::shares::assert_shares;
use crate::{LOST_LIMIT, broken_limit};

on_each_runtime!(a_worker_is_seen_where_it_waits_and_is_not_woken_for_it);

/// Percentage points between our share and the program's. Of 790 samples chance moves a third by 1.7 points (one standard
/// deviation).
const TOLERANCE: f64 = 8.0;

/// The same wait for two callers: the stacks are told apart by return addresses alone.
fn a_worker_is_seen_where_it_waits_and_is_not_woken_for_it(runtime: &Runtime) {
    let recorded = Record::workload(runtime, "worker", &["8"])
        .options(["--event", "wall", "--frequency", "99"])
        .run_complete();
    recorded
        .inspect()
        .assert_honest(broken_limit(runtime), LOST_LIMIT);
    let total = assert_shares(&recorded, "Workloads.Worker.Turns", TOLERANCE);
    let seconds = total as f64 / 1e9;
    assert!((7.9..=8.2).contains(&seconds), "{seconds} s of 8");
    // Two of three ticks find it waiting: woken each time, half of its waits would end by us.
    let (waits, interrupted) = (
        recorded.answer.measured("waits"),
        recorded.answer.measured("interrupted"),
    );
    println!("{interrupted} of {waits} waits interrupted");
    assert!(interrupted * 5.0 <= waits, "{interrupted} of {waits} waits");
}
