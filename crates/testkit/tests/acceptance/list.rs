//! `sidewalk list` over real processes.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;
use testkit::{Running, Runtime, Tools, only_child, sidewalk, stdout_of, workload};

use crate::attach;
use crate::tracing::stop;

on_each_runtime!(a_running_program_is_listed);

/// Returns the entry of a process, or `None` if it is not listed.
pub(crate) fn listed(pid: u32) -> Option<Value> {
    let text = stdout_of(Command::new(sidewalk()).args(["list", "--json"]));
    let list: Value = serde_json::from_str(&text).unwrap();
    let mut rows = list["processes"].as_array().unwrap().iter();
    rows.find(|row| row["pid"] == pid).cloned()
}

/// Starts a program without output, and lists it until its row is the expected one.
fn listed_when(mut command: Command, is_it: impl Fn(&Value) -> bool) -> (Child, Value) {
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    loop {
        match listed(child.id()) {
            Some(row) if is_it(&row) => return (child, row),
            row => assert!(started.elapsed().as_secs() < 60, "{row:?}"),
        }
    }
}

fn a_running_program_is_listed(runtime: &Runtime) {
    let mut command = runtime.command(&workload("waits").dll);
    // The terminal escape in its name is shown, not executed.
    command.arg("\x1b]0;owned\x07\n");
    let running = Running::start(command);
    let row = listed(running.pid()).unwrap();
    assert_eq!(
        row["runtimes"],
        serde_json::json!([runtime.version]),
        "{row}"
    );
    assert_eq!(row["record"], "attach", "{row}");
    assert_eq!(row["container"], Value::Null, "{row}");
    assert_eq!(row["pid_inside"], running.pid(), "{row}");
    let text = stdout_of(Command::new(sidewalk()).arg("list"));
    let pid = running.pid().to_string();
    let mut lines = text.lines().map(|line| line.split_whitespace());
    assert!(
        lines.any(
            |mut words| words.next() == Some(&pid) && words.any(|word| word == runtime.version)
        ),
        "{text}"
    );
    assert!(!text.contains(['\x1b', '\x07']), "{text:?}");
    assert!(text.contains("\\u{1b}]0;owned\\u{7}\\u{a}"), "{text}");
    running.end_well();
}

/// Its CLR is in no file of its own, so only it knows the version.
#[test]
fn a_single_file_app_is_listed_with_its_version() {
    let app = Tools::get().app10;
    let command = Command::new(&app.executable);
    // The runtime makes its socket before it runs anything, and listens then.
    let (mut child, row) = listed_when(command, |row| row["record"] == "attach");
    assert_eq!(row["runtimes"], serde_json::json!([app.version]), "{row}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_process_with_a_view_of_its_own_is_listed() {
    let mut command = Command::new("unshare");
    let dotnet = Runtime::net8().command(&workload("waits").dll);
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(dotnet.get_program())
        .args(dotnet.get_args())
        .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
        .process_group(0);
    let running = Running::start(command);
    let row = listed(only_child(running.pid()).unwrap()).unwrap();
    assert_eq!(row["pid_inside"], 1, "{row}");
    assert_eq!(row["record"], "attach", "{row}");
    assert_eq!(row["container"], "as pid 1", "{row}");
    running.end_well();
}

#[test]
fn a_program_without_diagnostics_is_listed_with_why_not() {
    let mut command = Runtime::net8().command(&workload("waits").dll);
    command.env("DOTNET_EnableDiagnostics", "0");
    let running = Running::start(command);
    let row = listed(running.pid()).unwrap();
    assert_eq!(row["record"], Value::Null, "{row}");
    let why = row["why_not"].as_str().unwrap();
    assert!(why.contains("DOTNET_EnableDiagnostics=0"), "{why}");
    assert_eq!(row["runtimes"], serde_json::json!(["8.0.4"]), "{row}");
    running.end_well();
}

/// The answer of the runtime would be longer than a message can be.
#[test]
fn a_program_with_very_long_arguments_is_listed_and_recorded() {
    let mut command = Runtime::net8().command(&workload("waits").dll);
    command.arg("x".repeat(40_000));
    let running = Running::start(command);
    let row = listed(running.pid()).unwrap();
    assert_eq!(row["record"], "attach", "{row}");
    assert_eq!(row["runtimes"], serde_json::json!(["8.0.4"]), "{row}");
    let folder = testkit::test_folder("long");
    let tool = attach::start(running.pid(), &folder, &["-e", "wall"]);
    attach::until_samples(&folder, 1);
    let (message, recorded) = stop(tool, &folder);
    assert!(attach::has_left(&recorded), "{message}");
    running.end_well();
}

/// It says nothing and runs nothing until it is resumed; only its socket says that it is there.
#[test]
fn a_suspended_runtime_is_listed_as_one_that_waits() {
    let mut command = Runtime::net8().command(&workload("waits").dll);
    command.env("DOTNET_DefaultDiagnosticPortSuspend", "1");
    let (mut child, row) = listed_when(command, |row| {
        let why = row["why_not"].as_str();
        why.is_some_and(|why| why.contains("resumed"))
    });
    assert_eq!(row["record"], Value::Null, "{row}");
    let why = row["why_not"].as_str().unwrap();
    assert!(
        why.contains("DOTNET_DefaultDiagnosticPortSuspend=1"),
        "{why}"
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_stopped_program_is_listed_and_not_waited_for() {
    let running = Running::waits(&Runtime::net8());
    let pid = Pid::from_raw(running.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    let row = listed(running.pid()).unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(row["runtimes"], serde_json::json!(["8.0.4"]), "{row}");
    let why = row["why_not"].as_str().unwrap();
    assert!(why.contains("did not answer"), "{why}");
    running.end_well();
}

/// A library that says it is a profiler: only its being there counts here.
#[test]
fn another_profiler_is_named() {
    let mut command = Runtime::net8().command(&workload("waits").dll);
    command
        .env("CORECLR_ENABLE_PROFILING", "1")
        .env("CORECLR_PROFILER", "{846F5F1C-F9AE-4B07-969E-05C26BC060D8}")
        .env("CORECLR_PROFILER_PATH", testkit::v2_agent());
    let running = Running::start(command);
    let row = listed(running.pid()).unwrap();
    assert_eq!(row["record"], "beside another profiler", "{row}");
    let library = testkit::v2_agent();
    assert_eq!(row["profiler"], library.to_str().unwrap(), "{row}");
    running.end_well();
}

/// As a user who may not look at what others run: it is there, and why it cannot be recorded.
#[test]
fn another_users_program_is_listed_with_why_not() {
    let running = Running::waits(&Runtime::net8());
    // A folder from which every user may run it.
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("sidewalk");
    std::fs::copy(sidewalk(), &binary).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&binary, open).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&binary)
        .args(["list", "--json"]);
    let list: Value = serde_json::from_str(&stdout_of(&mut command)).unwrap();
    let mut rows = list["processes"].as_array().unwrap().iter();
    let row = rows.find(|row| row["pid"] == running.pid()).unwrap();
    assert_eq!(row["record"], Value::Null, "{row}");
    let why = row["why_not"].as_str().unwrap();
    assert!(
        why.contains("another user") && why.contains("root"),
        "{why}"
    );
    running.end_well();
}

/// Checks the state that the agent in it reports, while it records and afterwards.
#[test]
fn a_program_that_is_recorded_is_listed_with_by_whom() {
    let running = Running::waits(&Runtime::net8());
    let pid = running.pid().to_string();
    let recording = testkit::test_folder("listed").join("recording.swk");
    let mut recorder = Command::new(sidewalk())
        .args([
            "record", "--stay", "--event", "wall", "--pid", &pid, "--output",
        ])
        .arg(&recording)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let started = std::time::Instant::now();
    // The state of the agent is what is waited for.
    let wait_for = |agent: &str| loop {
        let row = listed(running.pid()).unwrap();
        if row["agent"] == agent {
            break row;
        }
        assert!(started.elapsed().as_secs() < 60, "{row}");
    };
    let row = wait_for("recording");
    assert_eq!(row["record"], "control socket", "{row}");
    let by = format!("process {}", recorder.id());
    assert_eq!(row["recorded_by"], by, "{row}");
    let text = stdout_of(Command::new(sidewalk()).arg("list"));
    assert!(text.contains(&format!("recorded by {by}")), "{text}");
    let tool = Pid::from_raw(recorder.id().cast_signed()).unwrap();
    kill_process(tool, Signal::INT).unwrap();
    assert!(recorder.wait().unwrap().success());
    let row = wait_for("idle");
    assert_eq!(row["record"], "control socket", "{row}");
    assert_eq!(row["recorded_by"], Value::Null, "{row}");
    running.end_well();
}
