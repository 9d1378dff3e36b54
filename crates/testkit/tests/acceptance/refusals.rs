//! `sidewalk record --pid` on processes that it cannot record: its message, and the unharmed
//! program.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use testkit::{
    Running, Runtime, agent, agent_variable, output_in_time, sidewalk, test_folder, v2_agent,
    workload,
};

use crate::attach::send;

use crate::containers::empty_tmp;

/// Returns the message of an attempt to record a process.
fn refusal(name: &str, pid: u32) -> String {
    refusal_by(name, Command::new(sidewalk()), &test_folder(name), pid)
}

fn refusal_by(name: &str, mut command: Command, folder: &Path, pid: u32) -> String {
    let recording = folder.join("recording.swk");
    command
        .args(["record", "--duration", "1s", "--pid"])
        .arg(pid.to_string())
        .arg("--output")
        .arg(&recording)
        .env(agent_variable(), agent());
    let output = output_in_time(&mut command);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{name}: {text}");
    assert!(!recording.exists(), "{name}: {text}");
    text
}

fn waits(runtime: &Runtime) -> Command {
    runtime.command(&workload("waits").dll)
}

#[test]
fn diagnostics_switched_off() {
    let mut command = waits(&Runtime::net8());
    command.env("DOTNET_EnableDiagnostics", "0");
    let running = Running::start(command);
    let text = refusal("diagnostics-off", running.pid());
    assert!(
        text.contains("switched off (DOTNET_EnableDiagnostics=0)"),
        "{text}"
    );
    assert!(text.contains("sidewalk record -- COMMAND"), "{text}");
    running.end_well();
}

/// A process without `libcoreclr.so`. It also stands for a native AOT program, for which no
/// compiler is available here. A test of exported symbols covers the distinction.
#[test]
fn no_dotnet() {
    let mut command = Command::new("sh");
    command.args(["-c", "echo ready; read line"]);
    let running = Running::start(command);
    let text = refusal("no-dotnet", running.pid());
    assert!(
        text.contains("runs no .NET") && text.contains("sidewalk list"),
        "{text}"
    );
}

#[test]
fn ended_meanwhile() {
    let running = Running::waits(&Runtime::net8());
    let pid = running.pid();
    running.end_well();
    let text = refusal("ended", pid);
    assert!(
        text.contains(&format!("there is no process {pid}")),
        "{text}"
    );
}

#[test]
fn stopped_by_a_signal() {
    let running = Running::waits(&Runtime::net8());
    let pid = running.pid();
    send("-STOP", pid);
    let text = refusal("stopped", pid);
    assert!(
        text.contains(&format!("process {pid} does not answer: it is stopped")),
        "{text}"
    );
    assert!(text.contains("kill -CONT"), "{text}");
    send("-CONT", pid);
    running.end_well();
}

#[test]
fn another_profiler_where_there_is_one_slot() {
    let mut command = waits(&Runtime::core31());
    command
        .env("CORECLR_ENABLE_PROFILING", "1")
        .env("CORECLR_PROFILER", "{846F5F1C-F9AE-4B07-969E-05C26BC060D8}")
        .env("CORECLR_PROFILER_PATH", v2_agent());
    let running = Running::start(command);
    let text = refusal("one-slot", running.pid());
    assert!(
        text.contains("libv2_agent.so") && text.contains("supports only one"),
        "{text}"
    );
    running.end_well();
}

/// Everything that it can write to is mounted so that nothing can be loaded from there.
#[test]
fn library_not_visible() {
    let dotnet = waits(&Runtime::net8());
    let agent = agent();
    let mounts = format!(
        "mount -t tmpfs none {}\n{}\nfor at in /dev/shm /var/tmp; do mount -t tmpfs -o noexec none $at; done",
        agent.parent().unwrap().display(),
        empty_tmp("-o noexec")
    );
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "sh",
            "-ec",
            &format!("{mounts}\nexec \"$0\" \"$@\""),
        ])
        .arg(dotnet.get_program())
        .args(dotnet.get_args())
        .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1");
    let running = Running::start(command);
    let text = refusal("not-visible", running.pid());
    assert!(
        text.contains("/tmp is mounted noexec") && text.contains("--tmpfs"),
        "{text}"
    );
    running.end_well();
}

#[test]
fn another_users_program() {
    let running = Running::waits(&Runtime::net8());
    // A folder in which every user may run it and write.
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("sidewalk");
    std::fs::copy(sidewalk(), &binary).unwrap();
    let library = folder.path().join("libsidewalk.so");
    std::fs::copy(agent(), &library).unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
    for path in [&binary, &library] {
        std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command
        .args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "env",
        ])
        .arg(format!("SIDEWALK_AGENT={}", library.display()))
        .arg(&binary);
    let text = refusal_by("another-user", command, folder.path(), running.pid());
    assert!(
        text.contains("another user") && text.contains("as root"),
        "{text}"
    );
    running.end_well();
}
