//! CPU time that no sample stands for: it is said, with the reason, and nothing is said where there
//! is none.

use testkit::chance::deviation_of_count;
use testkit::{Recorded, Recorder, Runtime, native_threads, run_sidewalk};

on_net8_and_core31!(
    native_threads_that_block_our_signal,
    a_managed_thread_that_blocks_our_signal,
    native_threads_that_end_before_we_find_them,
    a_program_that_takes_our_signal,
    a_program_that_forbids_itself_timers_and_signals,
    a_filter_that_would_end_the_program,
    a_filter_that_refuses_signals,
    a_program_that_allows_itself_no_more_descriptors,
    no_place_in_the_queue_of_signals,
    nothing_is_unseen_in_normal_programs,
    threads_of_a_millisecond_have_their_reasons,
    some_of_a_crowd_of_threads_stand_for_all,
);

/// Seconds for which each program uses the CPU.
const SECONDS: &str = "2";

fn program(runtime: &Runtime, mode: &str) -> Recorder {
    let library = native_threads();
    let folder = library.parent().unwrap().to_string_lossy().into_owned();
    Recorder::workload(runtime, "unseen", &[SECONDS, mode]).environment("LD_LIBRARY_PATH", &folder)
}

/// Returns the recording's honest line.
fn line(recorded: &Recorded) -> String {
    let text = run_sidewalk(["inspect".as_ref(), recorded.recording.as_os_str()]);
    text.lines().last().unwrap_or_default().to_owned()
}

/// Returns the unseen seconds for this reason, all unseen seconds, and the CPU seconds in all.
fn unseen(recorded: &Recorded, reason: &str) -> (f64, f64, f64) {
    let inspected = recorded.inspect();
    println!("{}", line(recorded));
    println!("{}", inspected.json["unseen_reasons"]);
    let by_reason = inspected.json["unseen_reasons"].as_object().unwrap();
    let of = by_reason
        .iter()
        .filter(|(known, _)| known.starts_with(reason));
    let of: f64 = of.map(|(_, ns)| ns.as_f64().unwrap()).sum();
    let all = inspected.number("unseen_ns");
    (of / 1e9, all / 1e9, inspected.number("due_ns") / 1e9)
}

/// Asserts that samples and unseen time are the whole CPU time of the program, within the error of
/// sampling at the default rate.
fn assert_whole(recorded: &Recorded, unseen: f64, due: f64) {
    const INTERVAL: f64 = 1.0 / 99.0;
    let seen = recorded.inspect().number("seen_ns") / 1e9;
    let error = deviation_of_count(due / INTERVAL + 1.0) * INTERVAL;
    assert!(
        (due - seen - unseen).abs() <= error,
        "{seen} s seen and {unseen} s unseen of {due} s"
    );
}

fn native_threads_that_block_our_signal(runtime: &Runtime) {
    let recorded = program(runtime, "blocked").run_complete();
    // The time of both threads is unseen: until the agent's first look at them as that of threads
    // that are not sampled yet.
    let (blocked, all, due) = unseen(&recorded, "threads that block our signal");
    assert!(blocked > 0.0, "{all} s");
    assert_whole(&recorded, all, due);
    let line = line(&recorded);
    assert!(line.contains("2 threads that block our signal"), "{line}");
    assert!(line.contains("not sampled: "), "{line}");
}

fn a_managed_thread_that_blocks_our_signal(runtime: &Runtime) {
    let recorded = program(runtime, "masked").run_complete();
    let used = recorded.answer.measured("cpu_ms") / 1e3;
    let (blocked, ..) = unseen(&recorded, "threads that block our signal");
    assert!(blocked > 0.0 && blocked <= used, "{blocked} s of {used} s");
    let (_, all, due) = unseen(&recorded, "");
    assert_whole(&recorded, all, due);
    let line = line(&recorded);
    assert!(line.contains("1 thread that blocks our signal"), "{line}");
    let notes = recorded.inspect().json["notes"].to_string();
    assert!(notes.contains(" blocks signal "), "{notes}");
}

fn native_threads_that_end_before_we_find_them(runtime: &Runtime) {
    let recorded = program(runtime, "short").run_complete();
    let (ended, ..) = unseen(&recorded, "threads that ended before they were sampled");
    let (_, all, due) = unseen(&recorded, "");
    assert!(ended > 0.0 && ended <= all, "{ended} s of {all} s");
    assert_whole(&recorded, all, due);
}

fn a_program_that_takes_our_signal(runtime: &Runtime) {
    let recorded = program(runtime, "taken").run_complete();
    let (taken, all, due) = unseen(&recorded, "signal taken by the program");
    assert!(taken > 0.0, "{all} s");
    assert_whole(&recorded, all, due);
}

fn a_program_that_forbids_itself_timers_and_signals(runtime: &Runtime) {
    let recorded = program(runtime, "shut").run_complete();
    assert_eq!(recorded.answer.results()[0], ["refused", "0"]);
    let reason =
        "threads that signals cannot be sent to: rt_tgsigqueueinfo: errno 1; timer_create: errno 1";
    let (unsent, all, due) = unseen(&recorded, reason);
    assert!(unsent > 0.0, "{all} s");
    assert_whole(&recorded, all, due);
}

/// The program below a filter that gives this answer for these system calls.
fn filtered(runtime: &Runtime, answer: &str, calls: &str, options: &[&str]) -> Recorded {
    let launcher = env!("CARGO_BIN_EXE_below-filter");
    let program = program(runtime, "plain").under([launcher, answer, calls]);
    program.options(options).run_complete()
}

/// It has been sampled whole, and the recording says without what.
fn assert_sampled(recorded: &Recorded, calls: &str) {
    let (_, all, due) = unseen(recorded, "");
    assert_eq!(all, 0.0, "{calls}: {}", line(recorded));
    assert_whole(recorded, all, due);
    let text = run_sidewalk(["inspect".as_ref(), recorded.recording.as_os_str()]);
    for call in calls.split(',') {
        assert!(text.contains(&format!("{call} (")), "{call}: {text}");
    }
}

fn a_filter_that_would_end_the_program(runtime: &Runtime) {
    for calls in [
        "process_vm_readv",
        "timer_create",
        "rt_tgsigqueueinfo,process_vm_readv,ppoll",
    ] {
        assert_sampled(&filtered(runtime, "kill", calls, &[]), calls);
    }
    // No sample without a signal that is sent.
    let calls = "rt_tgsigqueueinfo";
    let clocks = ["--engine", "clocks"];
    assert_sampled(&filtered(runtime, "kill", calls, &clocks), calls);
}

fn a_filter_that_refuses_signals(runtime: &Runtime) {
    let calls = "rt_tgsigqueueinfo";
    for (answer, error) in [("ENOSYS", libc::ENOSYS), ("EPERM", libc::EPERM)] {
        let recorded = filtered(runtime, answer, calls, &["--engine", "clocks"]);
        assert_sampled(&recorded, calls);
        let text = run_sidewalk(["inspect".as_ref(), recorded.recording.as_os_str()]);
        assert!(text.contains(&format!("(errno {error})")), "{text}");
    }
    // There is no other way, and that is said, also where nothing counts CPU time.
    let both = "rt_tgsigqueueinfo,timer_create";
    let recorded = filtered(runtime, "EPERM", both, &["-e", "wall"]);
    let text = run_sidewalk(["inspect".as_ref(), recorded.recording.as_os_str()]);
    let why = "signals cannot be sent to threads, so they have no stacks: rt_tgsigqueueinfo: errno 1; \
               timer_create: errno 1";
    assert!(text.contains(why), "{text}");
}

/// The kernel neither waits for more descriptors than a program may have nor lists its threads to
/// it.
fn a_program_that_allows_itself_no_more_descriptors(runtime: &Runtime) {
    let recorded = program(runtime, "few").run_complete();
    assert_eq!(recorded.answer.results()[0], ["limited", "0"]);
    let (ended, all, due) = unseen(&recorded, "threads that ended before they were sampled");
    assert_eq!(ended, 0.0, "{all} s");
    assert_whole(&recorded, all, due);
}

/// Either it is sampled all the same, or what is missing is said.
fn no_place_in_the_queue_of_signals(runtime: &Runtime) {
    let program = program(runtime, "plain").under(["sh", "-c", "ulimit -i 0; exec \"$@\"", "sh"]);
    let recorded = program.options(["--engine", "timer"]).run_complete();
    let (_, all, due) = unseen(&recorded, "");
    assert_whole(&recorded, all, due);
}

fn nothing_is_unseen_in_normal_programs(runtime: &Runtime) {
    for workload in ["shares", "gc", "async"] {
        for (hertz, engine) in [("99", "timer"), ("997", "clocks"), ("997", "timer")] {
            let program = Recorder::workload(runtime, workload, &[SECONDS]);
            let recorded = program
                .options(["--frequency", hertz, "--engine", engine])
                .run_complete();
            let inspected = recorded.inspect();
            let line = line(&recorded);
            println!("{workload} at {hertz} Hz by {engine}: {line}");
            assert!(
                inspected.number("due_ns") > 2e8,
                "{workload}: {}",
                inspected.json
            );
            assert_eq!(inspected.number("unseen_ns"), 0.0, "{workload}: {line}");
            assert!(!line.contains("not sampled"), "{workload}: {line}");
        }
    }
}

/// Threads that start and end all the time cannot be sampled whole, and then that is said; no lost
/// part is without a reason.
fn threads_of_a_millisecond_have_their_reasons(runtime: &Runtime) {
    for (hertz, engine) in [("99", "timer"), ("997", "clocks"), ("997", "timer")] {
        let program = Recorder::workload(runtime, "churn", &[SECONDS]);
        let recorded = program
            .options(["--frequency", hertz, "--engine", engine])
            .run_complete();
        let (unknown, all, due) = unseen(&recorded, "unknown");
        let seen = recorded.inspect().number("seen_ns") / 1e9;
        assert!(unknown <= due * 0.05, "{unknown} s unknown of {due} s");
        // Seen and unseen are the whole, but for the error of sampling: docs/engines.md.
        let error = deviation_of_count(due / 0.01 + 1.0) * 0.01;
        assert!(due - seen - all <= error, "{seen} s and {all} s of {due} s");
    }
}

/// Threads of a tenth of a millisecond, thousands in a second: most have no sample, and the picture
/// is the one that it is where each of them is sampled.
fn some_of_a_crowd_of_threads_stand_for_all(runtime: &Runtime) {
    let [crowd, each] = ["cpu", "cpu,gc"].map(|events| {
        // So much work, as what a busy machine gives to threads in so much time is another part
        // each time.
        let recorded = Recorder::workload(runtime, "threadchurn", &["rounds=600", "burning"])
            .options(["-F", "999", "--engine", "timer", "-e", events])
            .run_complete();
        let (unknown, all, due) = unseen(&recorded, "unknown");
        let inspected = recorded.inspect();
        let notes = inspected.json["notes"].to_string();
        let is_crowd = notes.contains("short-lived threads");
        assert_eq!(is_crowd, events == "cpu", "{notes}");
        let seen = inspected.number("seen_ns") / 1e9;
        println!("{events}: {seen} s seen, {all} s unseen of {due} s; {notes}");
        assert!(unknown <= due * 0.05, "{unknown} s unknown of {due} s");
        // Seen and unseen are the whole, but for the error of sampling.
        assert!(
            (due - seen - all).abs() <= due * 0.2,
            "{seen} s and {all} s of {due} s"
        );
        let report = run_sidewalk([
            "report".as_ref(),
            "--json".as_ref(),
            recorded.recording.as_os_str(),
        ]);
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let rows = report["rows"].as_array().unwrap().iter();
        let burn = rows.filter(|row| row["name"].as_str().unwrap().contains("ThreadChurn.Burn"));
        burn.map(|row| row["self"].as_f64().unwrap() / 1e9)
            .sum::<f64>()
    });
    // Some 70 samples where some stand for all: 12 % by chance.
    assert!(
        (crowd / each - 1.0).abs() <= 0.45,
        "{crowd} s where {each} s were to be"
    );
}
