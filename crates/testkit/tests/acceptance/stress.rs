//! 5,000 samples a second, and a recorder that is killed: the program neither
//! crashes nor hangs nor changes its answers.
//!
//! Each test takes a few seconds in `cargo xtask test`, and by default a minute in `cargo xtask
//! stress`.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use testkit::{Machine, ProgramOutput, Recorder, Running, Runtime, test_folder, workload};

use crate::attach::{ends_well, recording_in, start, until};
use crate::change::{changed, stop};
use crate::held_up::hold_up_agent;
use crate::records;

on_each_runtime!(collectible, churn, events_nullref, exceptions, gc, nullref,);
on_net8_and_core31!(
    events_churn,
    events_gc,
    recorder_killed_collectible,
    recorder_killed_churn,
    recorder_killed_nullref,
    recorder_killed_exceptions,
    recorder_killed_gc,
);

const HERTZ: u32 = 5000;

/// Returns the duration of each program: SIDEWALK_STRESS_SECONDS, or `usual`.
fn seconds_or(usual: &str) -> String {
    std::env::var("SIDEWALK_STRESS_SECONDS").unwrap_or_else(|_| usual.to_owned())
}

/// Returns the duration of each program: SIDEWALK_STRESS_SECONDS, or 2.
pub(crate) fn seconds() -> String {
    seconds_or("2")
}

fn collectible(runtime: &Runtime) {
    stress(runtime, "collectible");
}

fn churn(runtime: &Runtime) {
    stress(runtime, "churn");
}

fn nullref(runtime: &Runtime) {
    stress(runtime, "nullref");
}

fn exceptions(runtime: &Runtime) {
    stress(runtime, "exceptions");
}

fn gc(runtime: &Runtime) {
    stress(runtime, "gc");
}

fn stress(runtime: &Runtime, workload: &str) {
    let bare = Recorder::workload(runtime, workload, &["1"]).run_bare_shared();
    let recorded = Recorder::workload(runtime, workload, &[&seconds()])
        .frequency(HERTZ)
        .run_as(&bare);
    let inspected = recorded.inspect();
    println!("{}", inspected.json);
    assert!(inspected.number("samples") >= 100.0, "{}", inspected.json);
}

fn events_churn(runtime: &Runtime) {
    with_events(runtime, "churn");
}

fn events_gc(runtime: &Runtime) {
    with_events(runtime, "gc");
}

fn events_nullref(runtime: &Runtime) {
    with_events(runtime, "nullref");
}

/// The walkers that the tests with events use.
const WALKERS: [&str; 5] = ["signal", "snapshot", "suspend", "seeded", "shadow"];

/// Everything at once, by each walker in turn.
fn with_events(runtime: &Runtime, workload: &str) {
    let bare = Recorder::workload(runtime, workload, &["1"]).run_bare_shared();
    for walker in WALKERS {
        let events = match walker {
            // It walks in callbacks only.
            "snapshot" => "exception,alloc,gc,jit,class-load,module-load",
            _ => "cpu,wall,exception,alloc,gc,jit,class-load,module-load",
        };
        let options = ["-e", events, "--walker", walker, "--alloc-interval", "100k"];
        let recorded = Recorder::workload(runtime, workload, &[&seconds_or("1.5")])
            .options(options)
            .options(["--frequency", "997", "--engine", "clocks"])
            .run_as(&bare);
        let inspected = recorded.inspect();
        println!("{workload} by {walker}: {}", inspected.json);
        assert!(inspected.number("samples") >= 100.0, "{}", inspected.json);
    }
}

/// Collections without end, assemblies that go while their async methods are awaited and await, and
/// chains are read all the while. On the oldest runtime and 8.0.4; with SIDEWALK_STRESS_SECONDS on
/// all that there are, in each of [`COLLECTORS`]: then each run is so long.
#[test]
fn async_stacks_while_everything_moves() {
    let is_long = std::env::var_os("SIDEWALK_STRESS_SECONDS").is_some();
    let runtimes = match is_long {
        true => Runtime::all(),
        false => vec![Runtime::core31(), Runtime::net8()],
    };
    for (runtime, turn) in runtimes.iter().zip(0..) {
        let all = COLLECTORS.iter().zip(0..);
        for (collector, _) in all.filter(|(_, at)| is_long || *at == turn) {
            async_stacks(runtime, collector);
        }
    }
}

/// Settings of the collector: generation 0 of 256 KiB, one heap for each processor, nothing at the
/// same time as the program.
const COLLECTORS: [&[(&str, &str)]; 3] = [
    &[("GCgen0size", "40000")],
    &[("gcServer", "1"), ("GCgen0size", "40000")],
    &[("gcConcurrent", "0")],
];

fn async_stacks(runtime: &Runtime, collector: &[(&str, &str)]) {
    let record = |seconds: &str| {
        let words = ["collectible,asyncchains", "async", "collect", seconds];
        let mut record = Recorder::workload(runtime, "together", &words);
        for (name, value) in collector {
            for prefix in ["DOTNET", "COMPlus"] {
                record = record.environment(&format!("{prefix}_{name}"), value);
            }
        }
        record.frequency(HERTZ)
    };
    let bare = record("1").run_bare_shared();
    let recorded = record(&seconds_or("3")).run();
    let answer = &recorded.answer;
    assert!(answer.status.success(), "{answer:?}");
    // Two programs print at the same time.
    let results = |answer: &ProgramOutput| {
        let mut lines: Vec<String> = answer.results().iter().map(|l| l.join(" ")).collect();
        lines.sort();
        lines
    };
    assert_eq!(results(answer), results(&bare), "{answer:?}");
    assert!(
        results(&bare).contains(&"together 2".to_owned()),
        "{bare:?}"
    );
    let json = recorded.inspect().json;
    let chains = &json["async"];
    println!("{} {collector:?}: {chains}", runtime.version);
    let number = |name: &str| chains[name].as_u64().unwrap_or(0);
    let whole = number("samples") - number("cut");
    assert!(whole >= 50, "{whole} chains are whole: {json}");
    let cut = |reason: &str| chains["cut_reasons"].get(reason);
    // The runtime stops so often that some samples must have met it.
    let closed = cut("gate closed");
    assert!(closed.is_some(), "no gate was closed: {chains}");
    // An object never says another method than the frame that it was found in.
    assert!(cut("not its method").is_none(), "{chains}");
}

/// Creates and frees weak handles continuously during endless collections, and delays the agent
/// wherever it is inside the runtime. Without mutual exclusion, a handle freed while a collection
/// sorts the handle table hangs the program (within about a minute).
#[test]
fn live_while_the_agent_is_held_up() {
    with_own_events().iter().for_each(live_held_up);
}

/// 8.0.4; with SIDEWALK_STRESS_SECONDS all that tell events of their own.
fn with_own_events() -> Vec<Runtime> {
    let mut runtimes = match std::env::var_os("SIDEWALK_STRESS_SECONDS") {
        Some(_) => Runtime::all(),
        None => vec![Runtime::net8()],
    };
    runtimes.retain(|runtime| !runtime.is_core31());
    runtimes
}

fn live_held_up(runtime: &Runtime) {
    let options = ["-e", "live", "--alloc-interval", "100k"];
    let seconds = seconds();
    let record = Recorder::workload(runtime, "alloc", &[&seconds])
        .options(options)
        .options(["--live-interval", "100ms"])
        // A thousand collections a second.
        .environment("DOTNET_GCgen0size", "400000");
    let patience = Duration::from_secs_f64(60.0 + 3.0 * seconds.parse::<f64>().unwrap());
    let (recorded, held_up) = record.run_beside(|recording, tool| {
        wait_for(recording, tool, |record| {
            matches!(record, recording::Record::Instant { .. })
        });
        hold_up_agent(tool, patience)
    });
    println!("{}: {held_up:?}", runtime.version);
    recorded.answer.assert_complete();
    assert!(recorded.answer.stdout.contains("measured cpu_ms"));
    let message = &recorded.answer.stderr;
    assert!(!message.contains("did not finish"), "{message}");
    // The last instant has been told: the agent came to its end.
    let live = recorded.report(&["--event", "live"])["live"].clone();
    assert!(live["processes"][0]["instants"].is_array(), "{live}");
    // The instants of the checks are random. On a busy machine none may find the agent in the
    // runtime.
    assert!(held_up.looks > 0, "{held_up:?}");
}

/// Adds events to recordings of programs that collect continuously. An agent that waited for a
/// collection during code lookup would deadlock with the program (within a minute or two, on
/// 8.0.4).
#[test]
fn changes_while_code_comes_and_goes() {
    with_own_events().iter().for_each(changes);
}

fn changes(runtime: &Runtime) {
    let machine = Machine::exclusive();
    let end = Instant::now() + Duration::from_secs_f64(seconds().parse().unwrap());
    let rounds: u32 = thread::scope(|scope| {
        let in_turn = |number: u32| {
            let folder = test_folder(&format!("changes-{number}"));
            scope.spawn(move || {
                let mut rounds = 0;
                while Instant::now() < end {
                    rounds += changed_in_turn(runtime, &folder);
                }
                rounds
            })
        };
        let programs = [1, 2, 3].map(in_turn);
        programs.map(|rounds| rounds.join().unwrap()).iter().sum()
    });
    println!("{}: {rounds} rounds", runtime.version);
    drop(machine);
}

/// A program in which the agent has looked up little yet is recorded a few times.
fn changed_in_turn(runtime: &Runtime, folder: &Path) -> u32 {
    const ROUNDS: u32 = 3;
    let mut command = runtime.command(&workload("alloc").dll);
    command.args(["attached", "soon"]);
    let program = Running::start(command);
    let length = || fs::metadata(recording_in(folder)).unwrap().len();
    for _ in 0..ROUNDS {
        let tool = start(program.pid(), folder, &[]);
        changed(program.pid(), "cpu,alloc");
        let before = length();
        until("more of it", || length() > before + 600);
        let (_, inspected) = stop(tool, folder);
        assert!(inspected.event("alloc").is_some(), "{}", inspected.json);
        fs::remove_file(recording_in(folder)).unwrap();
    }
    ends_well(program, "\nallocated ");
    ROUNDS
}

fn recorder_killed_collectible(runtime: &Runtime) {
    recorder_killed(runtime, "collectible");
}

fn recorder_killed_churn(runtime: &Runtime) {
    recorder_killed(runtime, "churn");
}

fn recorder_killed_nullref(runtime: &Runtime) {
    recorder_killed(runtime, "nullref");
}

fn recorder_killed_exceptions(runtime: &Runtime) {
    recorder_killed(runtime, "exceptions");
}

fn recorder_killed_gc(runtime: &Runtime) {
    recorder_killed(runtime, "gc");
}

fn recorder_killed(runtime: &Runtime, workload: &str) {
    let bare = Recorder::workload(runtime, workload, &["1"]).run_bare_shared();
    let record = Recorder::workload(runtime, workload, &[&seconds()]).frequency(HERTZ);
    let (recorded, ()) = record.run_beside(|recording, recorder| {
        wait_for_a_sample(recording, recorder);
        recorder.kill().unwrap();
    });
    let answer = &recorded.answer;
    assert_eq!(answer.results(), bare.results(), "{answer:?}");
    // It prints this last: it came to its end.
    assert!(answer.stdout.contains("measured cpu_ms"), "{answer:?}");
    let inspected = recorded.inspect();
    assert!(inspected.number("samples") > 0.0, "{}", inspected.json);
}

/// Waits until there is a sample that the end of the tool cannot take away.
pub(crate) fn wait_for_a_sample(recording: &Path, recorder: &mut Child) {
    wait_for(recording, recorder, |record| {
        matches!(record, recording::Record::Sample { .. })
    });
}

/// Waits until the recording has such a record, in a block that is whole.
fn wait_for(
    recording: &Path,
    recorder: &mut Child,
    is_one: impl Fn(&recording::Record<'_>) -> bool,
) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !records(recording).is_some_and(|records| records.iter().any(&is_one)) {
        assert!(
            Instant::now() < deadline,
            "nothing was recorded for a minute"
        );
        assert!(
            recorder.try_wait().unwrap().is_none(),
            "the recorder ended by itself"
        );
        // Only so that waiting costs nothing; the condition is what counts.
        std::thread::sleep(Duration::from_millis(5));
    }
}
