//! Our signal in the recorded program: it is not hurt, whatever it does to signals and descriptors,
//! and however little room its signal stacks leave.

use std::time::Duration;

use testkit::{Inspected, Machine, Recorder, Runtime, WebServer, load, smallest_signal_stacks};

on_each_runtime!(
    a_program_that_becomes_another,
    a_program_that_closes_descriptors_it_does_not_know,
    a_program_that_gives_sigprof_its_default_action,
    faults_under_ticks_at_every_rate,
    faults_with_no_more_room_than_the_runtime_needs,
    few_descriptors_are_the_programs,
    more_threads_than_descriptors,
    throws_under_ticks_at_every_rate,
);

on_each_web_runtime!(a_web_server_whose_requests_fault);

/// All engines, and the wall clock.
const WAYS: [&[&str]; 4] = [
    &["--engine", "clocks"],
    &["--engine", "perf"],
    &["--engine", "timer"],
    &["--event", "wall"],
];

fn faults_under_ticks_at_every_rate(runtime: &Runtime) {
    every_rate(runtime, "nullref");
}

fn throws_under_ticks_at_every_rate(runtime: &Runtime) {
    every_rate(runtime, "calltree");
}

/// Runs each combination once. `cargo xtask faults` repeats them.
fn every_rate(runtime: &Runtime, workload: &str) {
    let program = Recorder::workload(runtime, workload, &["0.4"]);
    let bare = program.run_bare_shared();
    for hertz in ["99", "999", "5000", "10000"] {
        for way in WAYS {
            let recorded = program
                .clone()
                .options(["--frequency", hertz])
                .options(way.iter().copied())
                .run_as(&bare);
            assert!(recorded.inspect().number("samples") > 0.0);
        }
    }
}

/// A short form of `cargo xtask faults`: every response is checked.
fn a_web_server_whose_requests_fault(runtime: &Runtime) {
    for (way, hertz) in WAYS.into_iter().zip(["99", "999", "5000", "10000"]) {
        let program = Recorder::workload(runtime, "webserver", &[])
            .options(["--frequency", hertz])
            .options(way.iter().copied());
        let (command, recording) = program.prepare();
        let machine = Machine::exclusive();
        let server = WebServer::start(command);
        let duration = Duration::from_millis(800);
        let loaded = load(server.port(), &["nullref"], 4, duration).unwrap();
        println!("{way:?} {hertz}: {} requests", loaded.requests);
        server.stop();
        drop(machine);
        assert!(Inspected::of(&recording).number("samples") > 0.0);
    }
}

/// closefrom(3), and then the numbers are the program's: nothing is written to its file, and no
/// thread waits on them in a loop.
fn a_program_that_closes_descriptors_it_does_not_know(runtime: &Runtime) {
    let program = Recorder::workload(runtime, "rude", &["0.5", "closes"]);
    let bare = program.run_bare_shared();
    assert!(bare.results().contains(&vec!["in_the_file", "0"]));
    for way in WAYS {
        let program = program.clone().options(["--frequency", "999"]);
        let recorded = program.options(way.iter().copied()).run_as(&bare);
        // A thread that spins would use as much again.
        let measured = |name| recorded.answer.measured(name);
        let (cpu, wall) = (measured("cpu_ms"), measured("wall_ms"));
        assert!(cpu < wall * 1.5, "{way:?}: {cpu} of {wall} ms");
    }
}

/// The smallest signal stacks on which the runtime alone handles a fault: a machine with the
/// largest signal frames that it can run on. Nothing of ours may need room there. More runs: `cargo
/// xtask faults`.
fn faults_with_no_more_room_than_the_runtime_needs(runtime: &Runtime) {
    let good = smallest_signal_stacks(runtime);
    println!("{}: {} bytes can be taken", runtime.version, good);
    assert!(good > 1024, "no room is left that a tick could need");
    for way in WAYS {
        for hertz in ["99", "10000"] {
            let recorded = Recorder::workload(runtime, "nullref", &["0.5"])
                .on_stacks_smaller_by(good)
                .options(["--frequency", hertz])
                .options(way.iter().copied())
                .run_complete();
            let inspected = recorded.inspect();
            assert!(inspected.number("samples") > 0.0);
            // No tick comes there at all.
            let reasons = inspected.json["reasons"].to_string();
            assert!(!reasons.contains("alternate"), "{way:?} {hertz}: {reasons}");
        }
    }
}

/// Not with perf, whose pending tick outlives execve: docs/signals.md.
fn a_program_that_becomes_another(runtime: &Runtime) {
    for way in [WAYS[0], WAYS[2], WAYS[3]] {
        for hertz in ["99", "9999"] {
            for _ in 0..2 {
                Recorder::workload(runtime, "rude", &["0.15", "exec"])
                    .options(["--frequency", hertz])
                    .options(way.iter().copied())
                    .run_complete();
            }
        }
    }
}

fn a_program_that_gives_sigprof_its_default_action(runtime: &Runtime) {
    // So long that one sample is less than what may be lost: a tick by `wall` may be on its way to
    // a thread that ends.
    let program = Recorder::workload(runtime, "rude", &["1.5", "default"]);
    let bare = program.run_bare_shared();
    for way in WAYS {
        let program = program.clone().options(["--frequency", "999"]);
        let recorded = program.options(way.iter().copied()).run_as(&bare);
        let inspected = recorded.inspect();
        inspected.assert_honest(1.0, 0.1);
        assert!(inspected.number("samples") > 20.0, "{}", inspected.json);
    }
}

/// `PosixSignalRegistration`, which .NET Core 3.1 does not have.
#[test]
fn a_program_that_registers_for_sigprof_hears_only_its_own() {
    let program = Recorder::workload(&Runtime::net8(), "rude", &["0.5", "registered"]);
    let bare = program.run_bare_shared();
    assert_eq!(bare.results()[0], ["callbacks", "1"]);
    for way in WAYS {
        let program = program.clone().options(["--frequency", "999"]);
        program.options(way.iter().copied()).run_as(&bare);
    }
}

/// It has two less than bare while it is recorded, three where there are many.
fn few_descriptors_are_the_programs(runtime: &Runtime) {
    for (limit, ours) in [(100, 2.0), (1000, 3.0)] {
        let limit = format!("ulimit -n {limit}; exec \"$@\"");
        let program = Recorder::workload(runtime, "rude", &["0.3", "counts"]);
        let limited = program.under(["sh", "-c", &limit, "sh"]);
        let bare = limited.run_bare().measured("descriptors");
        for way in [WAYS[0], WAYS[2], WAYS[3]] {
            let recorded = limited.clone().options(way.iter().copied()).run_complete();
            let left = recorded.answer.measured("descriptors");
            println!("{limit} {way:?}: {left} of {bare}");
            assert!(bare - left <= ours, "{limit} {way:?}: {left} of {bare}");
            assert!(recorded.inspect().number("samples") > 0.0);
        }
    }
}

/// A limit that suffices for the program alone suffices for both.
fn more_threads_than_descriptors(runtime: &Runtime) {
    let program = Recorder::workload(
        runtime,
        "rude",
        &["threads=512", "files=614", "0.5", "handles"],
    );
    let limited = program.under(["sh", "-c", "ulimit -n 1024; exec \"$@\"", "sh"]);
    let bare = limited.run_bare_shared();
    for way in WAYS {
        let recorded = limited
            .clone()
            .options(["--frequency", "999"])
            .options(way.iter().copied())
            .run_as(&bare);
        assert!(recorded.inspect().number("samples") > 0.0);
    }
}
