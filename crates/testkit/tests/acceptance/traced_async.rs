//! Async methods that are traced: each call is counted once, and timed to the completion of the
//! task that it returned. The program's results are unchanged. Calls that do not end are reported.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use testkit::{
    AsyncKind, Machine, Recorded, Recorder, Running, Runtime, WebServer, load, test_folder,
    workload_of_kind,
};

use crate::attach::{start, until};
use crate::tracing::{assert_timed, counted, expected, has_begun, stop, traced};

on_each_runtime!(
    calls_are_counted_and_timed_to_their_end,
    those_of_a_running_program_are,
    methods_of_each_kind_are_counted,
    methods_of_each_kind_are_counted_in_a_running_program,
);
on_each_runtime_async!(
    runtime_async_is_timed_to_its_end,
    runtime_async_is_counted,
    runtime_async_is_counted_in_a_running_program,
    callers_in_other_modules_are_compiled_again,
);
on_each_web_runtime!(each_request_of_a_server_is_counted);
on_net8_and_core31!(state_machines_that_are_classes);

/// Traces all methods of the workload, two of them with stacks.
const ALL: [&str; 8] = [
    "--trace",
    "Workloads.TracedAsync.TimedTask",
    "--trace",
    "Workloads.TracedAsync.TimedValue",
    "--trace",
    "Workloads.TracedAsync.*:1h",
    "--trace",
    "Workloads.Async*.*:1h",
];
/// Traces all methods of the workload `tracedtasks`.
const TASKS: [&str; 2] = ["--trace", "Workloads.*Task*.*:1h"];
const TWICE: &str = "Workloads.AsyncSolo.Twice";

fn notes(recorded: &Recorded) -> String {
    recorded.inspect().json["notes"].to_string()
}

/// Returns the numbers of calls of the rows with this name, fewest first.
fn calls(traced: &[Value], name: &str) -> Vec<u64> {
    let rows = traced.iter().filter(|one| one["name"] == name);
    let mut calls: Vec<u64> = rows.map(|one| one["calls"].as_u64().unwrap()).collect();
    calls.sort_unstable();
    calls
}

/// A recording of a workload with async methods of `kind`.
fn program(runtime: &Runtime, name: &str, kind: AsyncKind) -> Recorder {
    Recorder::program(runtime, name, &workload_of_kind(name, kind).dll, &[])
}

fn calls_are_counted_and_timed_to_their_end(runtime: &Runtime) {
    counted_and_timed(runtime, AsyncKind::StateMachine);
}

/// Each method is one, which begins once and ends once, whatever it awaits.
fn runtime_async_is_timed_to_its_end(runtime: &Runtime) {
    counted_and_timed(runtime, AsyncKind::Runtime);
}

fn counted_and_timed(runtime: &Runtime, kind: AsyncKind) {
    // The state machine of one is counted itself, too.
    let machine = ["--trace", "Workloads.AsyncSolo.<Twice>d__0.MoveNext:1h"];
    let record = program(runtime, "tracedasync", kind)
        .options(machine)
        .options(ALL);
    let recorded = record.run_as(&record.run_bare_shared());
    let answer = &recorded.answer.stdout;
    let (traced, mut expected) = (traced(&recorded), expected(answer));
    assert_eq!(expected.len(), 25, "{answer}");
    if kind == AsyncKind::StateMachine {
        let (twice, _) = expected.remove(TWICE).unwrap();
        assert_eq!(calls(&traced, TWICE), [twice, 3 * twice]);
    }
    let notes = notes(&recorded);
    let counted = counted(&traced, &runtime.version, &expected);
    assert_eq!(counted, expected, "{notes}");
    assert_timed(&recorded, &traced, answer);
    for says in [
        "3 calls of async methods had not completed when tracing ended, and are not counted: \
         Workloads.TracedAsync.Never 3",
        "Workloads.TracedAsync.Void (it returns no task (async void))",
        "Workloads.TracedAsync.Numbers (they return iterators, which continue after the call)",
    ] {
        assert!(notes.contains(says), "{notes}");
    }
}

fn methods_of_each_kind_are_counted(runtime: &Runtime) {
    each_kind_is_counted(runtime, AsyncKind::StateMachine);
}

fn runtime_async_is_counted(runtime: &Runtime) {
    for kind in AsyncKind::WITH_RUNTIME_ASYNC {
        each_kind_is_counted(runtime, kind);
    }
}

fn each_kind_is_counted(runtime: &Runtime, kind: AsyncKind) {
    let record = program(runtime, "tracedtasks", kind).options(TASKS);
    let recorded = record.run_as(&record.run_bare_shared());
    let expected = expected(&recorded.answer.stdout);
    assert_eq!(expected.len(), 46);
    let counted = counted(&traced(&recorded), &runtime.version, &expected);
    assert_eq!(counted, expected, "{}", notes(&recorded));
}

fn methods_of_each_kind_are_counted_in_a_running_program(runtime: &Runtime) {
    of_a_running_program(runtime, "tracedtasks", AsyncKind::StateMachine);
}

/// Their code, and that of those who have them inlined, was compiled before.
fn runtime_async_is_counted_in_a_running_program(runtime: &Runtime) {
    of_a_running_program(runtime, "tracedasync", AsyncKind::Runtime);
    for kind in AsyncKind::WITH_RUNTIME_ASYNC {
        of_a_running_program(runtime, "tracedtasks", kind);
    }
}

/// A method of the framework, by a runtime-async method of the program that has it inlined: two of
/// its overloads, which call each other.
fn callers_in_other_modules_are_compiled_again(runtime: &Runtime) {
    const LOADS: &str = "System.Net.Http.HttpContent.LoadIntoBufferAsync";
    let folder = test_folder("traced-async-callers");
    let mut command = runtime.command(&workload_of_kind("tracedtasks", AsyncKind::Runtime).dll);
    command.arg(format!("asked={}", folder.display()));
    // Inlined from the first call on.
    command.env("DOTNET_TieredCompilation", "0");
    let (mut program, ()) = Running::start_when(command, |line| (line == "waits").then_some(()));
    let tool = start(program.pid(), &folder, &["--trace", LOADS]);
    until("traced methods", || has_begun(&folder));
    fs::write(folder.join("go-1"), "").unwrap();
    program.wait_for("passed 1");
    let answer = fs::read_to_string(folder.join("said-1")).unwrap();
    let (message, recorded) = stop(tool, &folder);
    assert!(recorded.answer.status.success(), "{message}");
    let (each, _) = expected(&answer)["Workloads.TracedTasks.Loads"];
    // The fourth one is not called.
    assert_eq!(calls(&traced(&recorded), LOADS), [0, each, each, each]);
    fs::write(folder.join("end"), "").unwrap();
    let (output, status) = program.end();
    assert!(status.success(), "{output}");
}

fn those_of_a_running_program_are(runtime: &Runtime) {
    of_a_running_program(runtime, "tracedasync", AsyncKind::StateMachine);
}

fn of_a_running_program(runtime: &Runtime, name: &str, kind: AsyncKind) {
    let is_timed = name == "tracedasync";
    let (options, never): (&[&str], _) = match is_timed {
        true => (&ALL, "Workloads.TracedAsync.Never 3\""),
        false => (&TASKS, "Workloads.TracedTasks.Never 1\""),
    };
    let folder = test_folder("traced-async");
    let mut command = runtime.command(&workload_of_kind(name, kind).dll);
    command.arg(format!("asked={}", folder.display()));
    let (mut program, ()) = Running::start_when(command, |line| (line == "waits").then_some(()));
    for pass in 1..=2 {
        let tool = start(program.pid(), &folder, options);
        until("traced methods", || has_begun(&folder));
        fs::write(folder.join(format!("go-{pass}")), "").unwrap();
        program.wait_for(&format!("passed {pass}"));
        let answer = fs::read_to_string(folder.join(format!("said-{pass}"))).unwrap();
        let (message, recorded) = stop(tool, &folder);
        assert!(recorded.answer.status.success(), "{message}");
        let (traced, expected) = (traced(&recorded), expected(&answer));
        let counted = counted(&traced, &runtime.version, &expected);
        assert_eq!(counted, expected, "{}", notes(&recorded));
        if is_timed {
            assert_timed(&recorded, &traced, &answer);
        }
        let notes = notes(&recorded);
        assert!(
            notes.contains(&format!("are not counted: {never}")),
            "{notes}"
        );
        fs::remove_file(&recorded.recording).unwrap();
    }
    fs::write(folder.join("end"), "").unwrap();
    let (output, status) = program.end();
    assert!(
        status.success() && output.contains("result checksum"),
        "{output}"
    );
}

/// As unoptimised code has them, here of Visual Basic.
fn state_machines_that_are_classes(runtime: &Runtime) {
    const ROUNDS: u64 = 3;
    let rounds = format!("rounds={ROUNDS}");
    let record = Recorder::workload(runtime, "asynclanguages", &[&rounds]);
    let record = record.options(["--trace", "*VisualBasic.Vb*"]);
    let recorded = record.run_as(&record.run_bare_shared());
    let traced = traced(&recorded);
    let notes = notes(&recorded);
    assert!(!notes.contains("had not completed"), "{notes}");
    for space in ["", "Unoptimised."] {
        let of = |name: &str| {
            let name = format!("Workloads.{space}VisualBasic.{name}");
            let found = traced.iter().find(|one| one["name"] == name.as_str());
            let found = found.unwrap_or_else(|| panic!("no {name} in {traced:?}"));
            assert_eq!(found["calls"], ROUNDS, "{found}");
            found["total_ns"].as_u64().unwrap()
        };
        let [root, middle, inner] = ["VbRoot", "VbMiddle", "VbInner"].map(of);
        // Each awaits the next, and the last one burns behind its await.
        assert!(root > middle && middle > inner, "{root} {middle} {inner}");
        assert!(inner > ROUNDS * 200_000, "{inner} ns");
    }
}

/// Its handlers, what they await, and the framework's own methods on the way.
fn each_request_of_a_server_is_counted(runtime: &Runtime) {
    let options = [
        "--trace",
        "/^Workloads\\./",
        "--trace",
        "Microsoft.AspNetCore.Routing.EndpointMiddleware.Invoke",
    ];
    let program = Recorder::workload(runtime, "webserver", &[]).options(options);
    let (command, recording) = program.prepare();
    let machine = Machine::exclusive();
    let server = WebServer::start(command);
    let of = |path: &str| {
        let loaded = load(server.port(), &[path], 12, Duration::from_secs(1)).unwrap();
        loaded.requests
    };
    let [carts, texts, plain] = ["cart", "json", "plain"].map(of);
    server.stop();
    drop(machine);
    let arguments = ["report", "--json", "--by", "detail", "--top", "10000"].map(Into::into);
    let arguments = arguments.into_iter().chain([recording.into_os_string()]);
    let report: Value = serde_json::from_str(&testkit::run_sidewalk(arguments)).unwrap();
    let traced = report["traced"].as_array().unwrap();
    let handlers: Vec<u64> = traced
        .iter()
        .filter(|one| {
            one["name"]
                .as_str()
                .unwrap()
                .starts_with("Workloads.WebServer.Main")
        })
        .map(|one| one["calls"].as_u64().unwrap())
        .collect();
    for requests in [carts, texts, plain] {
        assert!(handlers.contains(&requests), "{requests} of {handlers:?}");
    }
    for (name, requests) in [
        ("Workloads.Carts.CheckOut", carts),
        ("Workloads.Carts.AskPrice", carts),
        ("Workloads.Carts.ReserveLine", 4 * carts),
        ("Workloads.Json.RoundTrip", texts),
        // And the one that ends the server.
        (
            "Microsoft.AspNetCore.Routing.EndpointMiddleware.Invoke",
            carts + texts + plain + 1,
        ),
    ] {
        assert_eq!(calls(traced, name), [requests], "{name}");
    }
    println!("{carts} carts, {texts} texts, {plain} plain ones");
}
