//! Time that passes: what the picture says of a thread that works and waits, and what the thread
//! notices.

use std::time::{Duration, Instant};

use testkit::chance::deviation;
use testkit::{Recorder, Runtime, test_folder};

use crate::attach::{ends_well, running, send, start, until, until_samples};
use crate::shares::assert_shares;
use crate::tracing::stop;
use crate::{LOST_LIMIT, broken_limit};

on_each_runtime!(a_worker_is_seen_where_it_waits_and_is_not_woken_for_it);
on_net8_and_core31!(time_for_which_a_program_stood_still_is_in_no_wait);

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

/// The agent finds all of the time but for one of its own waits, of half a second at most.
fn time_for_which_a_program_stood_still_is_in_no_wait(runtime: &Runtime) {
    let folder = test_folder("stood");
    let program = running(runtime, "worker", &[]);
    let pid = program.pid();
    let begin = Instant::now();
    let tool = start(pid, &folder, &["--event", "wall"]);
    until_samples(&folder, 20);
    send("-STOP", pid);
    let stopped = Instant::now();
    until("three seconds", || {
        stopped.elapsed() >= Duration::from_secs(3)
    });
    let stood = stopped.elapsed();
    send("-CONT", pid);
    let (message, recorded) = stop(tool, &folder);
    let most_ns = (begin.elapsed() - stood + Duration::from_millis(500)).as_nanos() as f64;
    assert!(
        message.contains("sidewalk: the program stood still for "),
        "{message}"
    );
    let focus = ["--top", "1000", "--focus", "Workloads.Worker.Turns$"];
    let report = recorded.report(&focus);
    let rows = report["rows"].as_array().unwrap().iter();
    let total_ns: f64 = rows.map(|row| row["self"].as_f64().unwrap()).sum();
    assert!(
        total_ns > 0.0 && total_ns <= most_ns,
        "{total_ns} of {most_ns}"
    );
    ends_well(program, "measured");
}
