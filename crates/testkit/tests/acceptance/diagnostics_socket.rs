//! The client of the diagnostics socket, on real runtimes.

use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use diagnostics::{Attach, Diagnostics, Error, PerfMap, RefusalCode, Target};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use testkit::{Running, Runtime, only_child, v2_agent, workload};

on_each_runtime!(
    a_runtime_says_who_it_is,
    a_missing_library_is_told_by_name,
    a_library_that_cannot_be_attached_is_refused,
    a_perf_map_is_written_where_the_runtime_can,
);

/// Time limit, far longer than a response takes.
const WAIT: Duration = Duration::from_secs(20);

fn attach(library: &str) -> Attach<'_> {
    Attach {
        clsid: [1; 16],
        library,
        client_data: b"",
        collection: Duration::ZERO,
    }
}

fn a_runtime_says_who_it_is(runtime: &Runtime) {
    let running = Running::waits(runtime);
    let target = Target::new(running.pid()).unwrap();
    let diagnostics = Diagnostics::new(&target, WAIT);
    diagnostics.probe().unwrap();
    let info = diagnostics.process_info().unwrap();
    if runtime.is_core31() {
        assert_eq!(info, None);
    } else {
        let info = info.unwrap();
        assert_eq!(info.pid, u64::from(running.pid()));
        assert_eq!(info.version.as_deref(), Some(&*runtime.version));
        assert_eq!(info.entry_assembly.as_deref(), Some("waits"));
        let rid = if runtime.is_musl() {
            "linux-musl-x64"
        } else {
            "linux-x64"
        };
        assert_eq!(info.rid.as_deref(), Some(rid));
        assert_eq!((&*info.os, &*info.arch), ("Linux", "x64"));
        assert!(info.command_line.ends_with("/waits.dll"), "{info:?}");
        diagnostics.resume_runtime().unwrap();
        let again = diagnostics.process_info().unwrap().unwrap();
        assert_eq!(again.cookie, info.cookie);
    }
    running.end_well();
}

fn a_missing_library_is_told_by_name(runtime: &Runtime) {
    let running = Running::waits(runtime);
    let target = Target::new(running.pid()).unwrap();
    let diagnostics = Diagnostics::new(&target, WAIT);
    let error = diagnostics
        .attach_profiler(&attach("/nowhere/libsidewalk.so"))
        .unwrap_err();
    assert_eq!(
        error.answer(),
        Some(RefusalCode::LIBRARY_NOT_LOADED),
        "{error}"
    );
    assert!(error.to_string().contains("0x8007007e"), "{error}");
    // Nothing has happened to it.
    diagnostics.probe().unwrap();
    running.end_well();
}

fn a_library_that_cannot_be_attached_is_refused(runtime: &Runtime) {
    let running = Running::waits(runtime);
    let target = Target::new(running.pid()).unwrap();
    let diagnostics = Diagnostics::new(&target, WAIT);
    let library = v2_agent();
    let error = diagnostics
        .attach_profiler(&attach(library.to_str().unwrap()))
        .unwrap_err();
    assert_eq!(error.answer(), Some(RefusalCode::NOT_ATTACHABLE), "{error}");
    running.end_well();
}

fn a_perf_map_is_written_where_the_runtime_can(runtime: &Runtime) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = runtime.command(&workload("waits").dll);
    command.env("DOTNET_PerfMapJitDumpPath", folder.path());
    let running = Running::start(command);
    let target = Target::new(running.pid()).unwrap();
    let diagnostics = Diagnostics::new(&target, WAIT);
    let enabled = diagnostics.enable_perf_map(PerfMap::Map);
    if runtime.is_core31() {
        let error = enabled.unwrap_err();
        assert_eq!(
            error.answer(),
            Some(RefusalCode::UNKNOWN_COMMAND),
            "{error}"
        );
    } else {
        enabled.unwrap();
        diagnostics.disable_perf_map().unwrap();
        let map = folder.path().join(format!("perf-{}.map", running.pid()));
        let map = std::fs::read_to_string(map).unwrap();
        let main = |line: &&str| line.contains("WaitForTheEndOfInput");
        assert!(map.lines().any(|line| main(&line)), "{map}");
    }
    running.end_well();
}

/// Nothing may wait for it for ever: not its connection, not its answer.
#[test]
fn a_stopped_process_is_waited_for_no_longer_than_said() {
    let running = Running::waits(&Runtime::net8());
    let target = Target::new(running.pid()).unwrap();
    let pid = Pid::from_raw(running.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // All of its threads stand still.
    waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    let wait = Duration::from_millis(200);
    let before = Instant::now();
    let error = Diagnostics::new(&target, wait).process_info().unwrap_err();
    assert!(before.elapsed() >= wait);
    assert!(
        matches!(&error, Error::NoAnswer { command: "ProcessInfo3", waited, .. } if *waited == wait),
        "{error}"
    );
    kill_process(pid, Signal::CONT).unwrap();
    let info = Diagnostics::new(&target, WAIT).process_info().unwrap();
    assert!(info.is_some());
    running.end_well();
}

#[test]
fn a_runtime_without_diagnostics_has_no_socket() {
    let mut command = Runtime::net8().command(&workload("waits").dll);
    command.env("DOTNET_EnableDiagnostics", "0");
    let running = Running::start(command);
    let target = Target::new(running.pid()).unwrap();
    let error = Diagnostics::new(&target, WAIT).probe().unwrap_err();
    assert!(matches!(error, Error::NoSocket { .. }), "{error}");
    running.end_well();
}

#[test]
fn a_runtime_that_was_killed_leaves_a_socket_and_is_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Runtime::net8().command(&workload("waits").dll);
    command.env("TMPDIR", folder.path());
    let running = Running::start(command);
    let pid = running.pid();
    let target = Target::new(pid).unwrap();
    // Before anything else looks at it: the process is there when it is found, and not when it is
    // asked.
    drop(running);
    let left = std::fs::read_dir(folder.path()).unwrap().flatten();
    let is_socket = |name: &str| name.starts_with("dotnet-diagnostic-");
    let sockets = left.filter(|entry| entry.file_name().to_str().is_some_and(is_socket));
    assert_eq!(sockets.count(), 1);
    let error = Diagnostics::new(&target, WAIT).process_info().unwrap_err();
    assert!(matches!(error, Error::NoProcess { .. }), "{error}");
    assert!(matches!(Target::new(pid), Err(Error::NoProcess { .. })));
}

/// A socket in a folder of its own, in namespaces of its own, by a path that fits no address here.
#[test]
fn a_container_is_reached_by_a_path_longer_than_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let inside = "x".repeat(60);
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(folder.path().join(&inside))
        .unwrap();
    let runtime = Runtime::net8();
    let mut dotnet = Command::new("unused");
    runtime.add_to(&mut dotnet, &workload("waits").dll);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c"])
        // Its mounts are nowhere but in its own namespace. Its first process is told by its number.
        .arg("mount --bind \"$0\" /mnt && TMPDIR=/mnt/$1 && export TMPDIR && shift && exec \"$@\"")
        .arg(folder.path())
        .arg(&inside)
        .args(dotnet.get_args());
    for (name, value) in dotnet.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command.process_group(0);
    let running = Running::start(command);
    let target = Target::new(only_child(running.pid()).unwrap()).unwrap();
    assert!(!target.shares_our_files());
    assert_eq!(target.pid_inside(), 1);
    // exec keeps the environment of /proc: sh was started without that TMPDIR.
    assert_eq!(target.temporary_folder(), Path::new("/mnt").join(&inside));
    let info = Diagnostics::new(&target, WAIT).process_info().unwrap();
    assert_eq!(info.unwrap().pid, 1);
    running.end_well();
}
