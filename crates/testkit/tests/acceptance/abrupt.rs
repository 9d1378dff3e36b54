//! Programs that end without telling their runtime: what was sampled until about a tenth of a
//! second before is kept, and what is missing is said.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use testkit::{Recorder, Runtime, Stacks, run_sidewalk};

use crate::held_up::hold_up_after;
use crate::stress::wait_for_a_sample;

on_net8_and_core31!(
    a_program_that_exits_past_its_runtime_keeps_its_samples,
    a_program_that_fails_fast_keeps_its_samples,
    a_program_that_faults_in_native_code_keeps_its_samples,
    a_program_that_is_killed_keeps_its_samples,
    an_unhandled_exception_keeps_the_samples_before_it,
);

on_each_runtime!(
    the_exception_that_ends_the_program_is_always_there,
    a_runtime_that_gives_the_signal_back_before_it_aborts,
);

/// Runs on one processor, which the agent thread gets only while the program's thread waits. Needs
/// the right to real-time scheduling; otherwise the priority is normal.
fn the_exception_that_ends_the_program_is_always_there(runtime: &Runtime) {
    let alone = "set -- taskset -c 0 \"$@\"; chrt -f 1 true && exec chrt -f 1 \"$@\"; exec \"$@\"";
    let program = Recorder::workload(runtime, "rude", &["0.05", "throws"])
        .options(["--event", "cpu,exception"])
        .under(["sh", "-c", alone, "sh"]);
    for run in 0..5 {
        let recorded = program.run();
        let stderr = &recorded.answer.stderr;
        assert_eq!(
            recorded.answer.status.signal(),
            Some(libc::SIGABRT),
            "{stderr}"
        );
        let inspected = recorded.inspect();
        let exceptions = inspected.event("exception");
        let samples = exceptions.and_then(|event| event["samples"].as_u64());
        assert_eq!(samples, Some(1), "run {run}: {}", inspected.json);
        let path = recorded.convert_event("exception", "exception.collapsed");
        let stacks = Stacks::from_collapsed(&std::fs::read_to_string(path).unwrap());
        assert_eq!(stacks.with("Workloads.Rude.EndAbruptly").total(), 1);
    }
}

/// .NET 8 restores the original actions of all signals and then calls `abort`. A tick in between
/// would end the program by our signal. This test delays the runtime there, so that ticks occur.
fn a_runtime_that_gives_the_signal_back_before_it_aborts(runtime: &Runtime) {
    const HELD: Duration = Duration::from_millis(100);
    let record = Recorder::workload(runtime, "rude", &["1", "failsfast"]).options([
        "--event",
        "cpu,wall",
        "--frequency",
        "500",
    ]);
    let (recorded, times) = record.run_beside(|recording, tool| {
        wait_for_a_sample(recording, tool);
        let signal = libc::SIGRTMIN().cast_unsigned().into();
        hold_up_after(tool, (libc::SYS_rt_sigaction, signal), HELD)
    });
    let stderr = &recorded.answer.stderr;
    assert_eq!(
        recorded.answer.status.signal(),
        Some(libc::SIGABRT),
        "{stderr}"
    );
    // It is about this.
    assert!(times > 0 || !runtime.version.starts_with("8."), "{times}");
    println!("{}: {times}", runtime.version);
}

fn a_program_that_exits_past_its_runtime_keeps_its_samples(runtime: &Runtime) {
    ends(runtime, "exits", (Some(7), None));
}

fn a_program_that_fails_fast_keeps_its_samples(runtime: &Runtime) {
    ends(runtime, "failsfast", (None, Some(libc::SIGABRT)));
}

fn a_program_that_faults_in_native_code_keeps_its_samples(runtime: &Runtime) {
    ends(runtime, "faults", (None, Some(libc::SIGSEGV)));
}

fn a_program_that_is_killed_keeps_its_samples(runtime: &Runtime) {
    ends(runtime, "kills", (None, Some(libc::SIGKILL)));
}

fn an_unhandled_exception_keeps_the_samples_before_it(runtime: &Runtime) {
    ends(runtime, "throws", (None, Some(libc::SIGABRT)));
}

/// The program burns, and says for how long before it ends so: with an exit code, or by a signal.
fn ends(runtime: &Runtime, how: &str, end: (Option<i32>, Option<i32>)) {
    // Shorter than what was missing once, and longer than the time in which the agent comes often.
    for seconds in ["0.4", "1.45"] {
        let recorded = Recorder::workload(runtime, "rude", &[seconds, how])
            .options(["--event", "cpu,wall", "--frequency", "500"])
            .run();
        let stderr = &recorded.answer.stderr;
        let status = recorded.answer.status;
        assert_eq!((status.code(), status.signal()), end, "{stderr}");
        let inspected = recorded.inspect();
        let processes = inspected.json["processes"].as_array().unwrap();
        assert_eq!(processes.len(), 1);
        assert_eq!(processes[0]["ended"], false);
        assert_eq!(inspected.json["ended_abruptly"][0], processes[0]["pid"]);
        let text = run_sidewalk(["inspect".as_ref(), recorded.recording.as_os_str()]);
        let line = text.lines().last().unwrap_or_default();
        let message = "ended abruptly: up to its last 0.1 s is missing";
        assert!(line.contains(message), "{line}");
        let path = recorded.convert_event("wall", "wall.collapsed");
        let wall = Stacks::from_collapsed(&std::fs::read_to_string(path).unwrap());
        let seen_ms = wall.with("Workloads.Spin.For").total() as f64 / 1e6;
        let burnt_ms = recorded.answer.measured("wall_ms");
        let queued_ms = recorded.answer.measured("queued_ms");
        println!("{how}: {seen_ms:.0} of {burnt_ms:.0} ms, {queued_ms:.0} ms without a processor");
        // The agent thread has not run while it waited for a processor.
        assert!(
            seen_ms * 2.0 + queued_ms > burnt_ms,
            "{seen_ms} of {burnt_ms} ms, {queued_ms} ms without a processor"
        );
    }
}
