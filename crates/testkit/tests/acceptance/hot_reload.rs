//! Methods that hot reload has changed or added: their names, and right lines or none.

use std::fs;

use testkit::{Recorded, Recorder, Running, Runtime, test_folder, workload};

use crate::attach::{record, start, until_samples};
use crate::tracing::{stop, traced};

on_each_web_runtime!(
    a_started_program_shows_changed_methods,
    a_running_program_shows_changed_methods,
    methods_that_may_change_are_not_traced,
);

/// Lines of the loop in the first body. Those of later bodies are below them.
const FIRST_BODY: std::ops::RangeInclusive<u64> = 3..=11;

/// Of each changed body, at least (`LeastRounds` of the workload).
const CALLS: u64 = 10;

/// Returns the lines that samples of the edited method have, and the number of all its samples,
/// for those that `caller` has called.
fn lines(recorded: &Recorded, caller: &str) -> (Vec<u64>, f64) {
    let focus = format!("Workloads[.]Reload[.]{caller}$");
    let report = recorded.report(&["--by", "line", "--top", "100", "--focus", &focus]);
    let rows = report["rows"].as_array().unwrap();
    let (mut lines, mut samples) = (Vec::new(), 0.0);
    for row in rows {
        samples += row["self_samples"].as_f64().unwrap();
        if row["file"]
            .as_str()
            .is_some_and(|file| file.ends_with("edited.cs"))
        {
            lines.extend(row["line"].as_u64());
        }
    }
    (lines, samples)
}

fn assert_before(recorded: &Recorded) {
    let (lines, samples) = lines(recorded, "Before");
    assert!(samples > 0.0, "no sample");
    assert!(!lines.is_empty(), "no lines before the update");
    let is_own = |line: &u64| FIRST_BODY.contains(line);
    assert!(lines.iter().all(is_own), "{lines:?}");
}

/// Asserts that samples below `caller` are in this method of a new body, and have no line of the
/// first one.
fn assert_changed(recorded: &Recorded, caller: &str, method: &str) {
    let (lines, samples) = lines(recorded, caller);
    assert!(samples > 0.0, "no sample");
    let is_wrong = |line: &u64| FIRST_BODY.contains(line);
    assert!(!lines.iter().any(is_wrong), "{lines:?}");
    let all = recorded
        .stacks()
        .with(&format!("Workloads.Reload.{caller}"));
    let named = all.with("Edited.Burn").with(method);
    assert!(named.total() > 0, "{}", all.show(20));
    // Others are in the compiler, or on the way through a stub: at most one for each call.
    let is_stub = |frames: &[String]| frames[0] == "[runtime stub]";
    let stubs = all.stacks.iter().filter(|(frames, _)| is_stub(frames));
    let samples = stubs.map(|(_, count)| count).sum::<u64>();
    assert!(samples <= CALLS, "{}", all.show(20));
}

fn assert_after(recorded: &Recorded) {
    assert_changed(recorded, "After", "Edited.Burn");
    assert_changed(recorded, "Later", "Edited.Added");
}

const SAMPLED: [&str; 4] = ["-F", "999", "--engine", "clocks"];

/// Records the program from its start, and asserts what the samples show.
fn started(runtime: &Runtime, options: &[&str]) -> Recorded {
    let folder = test_folder("edited");
    fs::write(folder.join("go"), "").unwrap();
    let argument = format!("reload={}", folder.display());
    let recorded = Recorder::workload(runtime, "roslyn", &[&argument, "1"])
        .environment("DOTNET_MODIFIABLE_ASSEMBLIES", "debug")
        .options(SAMPLED)
        .options(options.iter().copied())
        .run_complete();
    assert_eq!(recorded.answer.results(), [["updated", "True"]]);
    assert_before(&recorded);
    assert_after(&recorded);
    recorded
}

fn a_started_program_shows_changed_methods(runtime: &Runtime) {
    started(runtime, &[]);
}

/// Tracing writes into a module's metadata, and an update refers to the metadata of the file.
fn methods_that_may_change_are_not_traced(runtime: &Runtime) {
    let options = ["--trace", "Edited.*", "--trace", "Workloads.Reload.After"];
    let recorded = started(runtime, &options);
    let said = &recorded.answer.stderr;
    assert!(
        said.contains("methods of edited.dll: hot reload may change its module"),
        "{said}"
    );
    let traced = traced(&recorded);
    let calls = traced.iter().filter_map(|one| one["calls"].as_u64());
    assert_eq!(calls.sum::<u64>(), CALLS, "{traced:?}");
}

/// The updates come in the first recording, and before the second.
fn a_running_program_shows_changed_methods(runtime: &Runtime) {
    let folder = test_folder("edited");
    let mut command = runtime.command(&workload("roslyn").dll);
    command
        .arg(format!("reload={}", folder.display()))
        .arg("attached")
        .env("DOTNET_MODIFIABLE_ASSEMBLIES", "debug");
    let (mut program, ()) = Running::start_when(command, |line| (line == "waits").then_some(()));
    let recording = test_folder("recorded");
    let tool = start(program.pid(), &recording, &SAMPLED);
    until_samples(&recording, 100);
    fs::write(folder.join("go"), "").unwrap();
    program.wait_for("updated");
    let (message, recorded) = stop(tool, &recording);
    assert!(recorded.answer.status.success(), "{message}");
    assert_before(&recorded);
    assert_after(&recorded);
    let options = [&["-d", "1s"], &SAMPLED[..]].concat();
    let again = record(program.pid(), &recording, &options);
    assert_changed(&again, "Later", "Edited.Added");
    let (output, status) = program.end();
    assert!(
        status.success() && output.contains("result updated True"),
        "{status}: {output}"
    );
}
