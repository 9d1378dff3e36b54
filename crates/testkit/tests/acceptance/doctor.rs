//! `sidewalk doctor`: what it tries is really tried, so what is really missing is found.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use testkit::{
    Machine, Recorded, Recorder, Running, Runtime, agent, agent_variable, native_threads, sidewalk,
    test_folder, v2_agent, workload,
};

use crate::attach::{ends_well, record};
use crate::containers::empty_tmp;

on_each_runtime!(a_running_program_is_fit);
on_net8_and_core31!(a_crash_handler_is_told_once_an_agent_is_there);

/// The output of `sidewalk doctor`, and whether recording would work.
struct DoctorOutput {
    text: String,
    is_fit: bool,
}

impl DoctorOutput {
    fn by(command: &mut Command) -> DoctorOutput {
        let Output {
            status,
            stdout,
            stderr,
        } = command
            // The agent under test, not one beside a copy of the tool.
            .env(agent_variable(), agent())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&stderr), "");
        let code = status.code().unwrap();
        assert!(code <= 1, "{code}");
        DoctorOutput {
            text: String::from_utf8(stdout).unwrap(),
            is_fit: code == 0,
        }
    }

    /// Returns state and text of a check.
    fn check(&self, what: &str) -> (&str, &str) {
        let mut lines = self.text.lines();
        let found = lines.find_map(|line| {
            let (state, rest) = line.split_at_checked(9)?;
            let (name, text) = rest.split_at_checked(19)?;
            (name.trim() == what).then_some((state.trim(), text))
        });
        found.unwrap_or_else(|| panic!("no line about {what}:\n{}", self.text))
    }
}

fn doctor() -> Command {
    let mut command = Command::new(sidewalk());
    command.arg("doctor");
    command
}

fn doctor_of(pid: u32) -> DoctorOutput {
    DoctorOutput::by(doctor().arg(pid.to_string()))
}

#[test]
fn this_machine_is_fit() {
    let reported = DoctorOutput::by(&mut doctor());
    assert!(reported.is_fit, "{}", reported.text);
    for what in ["kernel", "agent", "environment", "socket", "timers"] {
        assert_eq!(reported.check(what).0, "ok", "{}", reported.text);
    }
}

#[test]
fn what_the_environment_forbids_is_found() {
    let reported = DoctorOutput::by(doctor().env("DOTNET_EnableDiagnostics", "0"));
    assert!(!reported.is_fit);
    let (state, text) = reported.check("environment");
    assert_eq!(state, "not ok");
    assert!(text.contains("DOTNET_EnableDiagnostics=0"), "{text}");
    // It does not count for what runs already.
    let running = Running::waits(&Runtime::net8());
    let pid = running.pid().to_string();
    let reported = DoctorOutput::by(doctor().arg(pid).env("DOTNET_EnableDiagnostics", "0"));
    assert!(reported.is_fit, "{}", reported.text);
    running.end_well();
}

#[test]
fn an_agent_that_cannot_be_loaded_is_found() {
    let mount = "mount -t tmpfs -o noexec none /mnt && cp \"$0\" /mnt/libsidewalk.so && \
                 SIDEWALK_AGENT=/mnt/libsidewalk.so exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", mount])
        .arg(agent())
        .arg(sidewalk())
        .arg("doctor");
    let reported = DoctorOutput::by(&mut command);
    assert!(!reported.is_fit);
    let (state, text) = reported.check("agent");
    assert_eq!(state, "not ok");
    assert!(
        text.contains("/mnt/libsidewalk.so") && text.contains("noexec"),
        "{text}"
    );
}

#[test]
fn limits_that_are_nearly_reached_are_told_and_do_not_count() {
    let mut command = Command::new("prlimit");
    command.args(["--sigpending=10", "--nofile=40"]);
    let reported = DoctorOutput::by(command.arg(sidewalk()).arg("doctor"));
    assert!(reported.is_fit, "{}", reported.text);
    for what in ["pending signals", "descriptors"] {
        assert_eq!(reported.check(what).0, "limited", "{}", reported.text);
    }
}

/// System calls that a container's profile may forbid.
const FORBIDDEN: [i64; 4] = [
    libc::SYS_timer_create,
    libc::SYS_perf_event_open,
    libc::SYS_process_vm_readv,
    libc::SYS_openat2,
];

/// And what is said to be no hindrance is none.
#[test]
fn system_calls_that_are_forbidden_are_found() {
    let (mut record, recording) = Recorder::workload(&Runtime::net8(), "shares", &["1"]).prepare();
    let mut command = doctor();
    for command in [&mut command, &mut record] {
        // SAFETY: between fork and exec, prctl alone is called, on what `forbid` has on its stack.
        unsafe { command.pre_exec(|| forbid(&FORBIDDEN, EPERM)) };
    }
    let reported = DoctorOutput::by(&mut command);
    assert!(reported.is_fit, "{}", reported.text);
    let machine = Machine::exclusive();
    let recorded = Recorded::new(recording, record.output().unwrap());
    drop(machine);
    recorded.answer.assert_complete();
    let inspected = recorded.inspect();
    assert!(inspected.number("samples") > 10.0, "{}", inspected.json);
    inspected.assert_honest(0.1, 0.1);
    for what in ["timers", "perf events", "process_vm_readv", "containers"] {
        let (state, text) = reported.check(what);
        assert_eq!(state, "limited", "{}", reported.text);
        assert!(text.contains("EPERM"), "{text}");
    }
    assert!(reported.check("seccomp").1.contains("are filtered"));
}

/// It is found out without harm.
#[test]
fn system_calls_that_would_end_a_program_are_found() {
    const ENDING: [i64; 3] = [
        libc::SYS_rt_tgsigqueueinfo,
        libc::SYS_perf_event_open,
        libc::SYS_process_vm_readv,
    ];
    let mut command = doctor();
    // SAFETY: between fork and exec, prctl alone is called, on what `forbid` has on its stack.
    unsafe { command.pre_exec(|| forbid(&ENDING, libc::SECCOMP_RET_KILL_PROCESS)) };
    let reported = DoctorOutput::by(&mut command);
    assert!(reported.is_fit, "{}", reported.text);
    for what in ["signals", "perf events", "process_vm_readv", "seccomp"] {
        assert_eq!(reported.check(what).0, "limited", "{}", reported.text);
    }
    let (_, text) = reported.check("seccomp");
    assert!(text.contains("process_vm_readv ends the program"), "{text}");
}

const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// Lets this process, and what it becomes, get this answer from these calls.
fn forbid(calls: &[i64], answer: u32) -> std::io::Result<()> {
    const LOAD_NUMBER: libc::sock_filter = libc::sock_filter {
        code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let give = |k| libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let mut program = [give(libc::SECCOMP_RET_ALLOW); 16];
    program[0] = LOAD_NUMBER;
    for (at, call) in calls.iter().enumerate() {
        // If it is this one, the next instruction; else the one behind that.
        program[1 + 2 * at] = libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: *call as u32,
        };
        program[2 + 2 * at] = give(answer);
    }
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the filter, which is as long as it says.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            ) == 0
    };
    if done {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

fn a_running_program_is_fit(runtime: &Runtime) {
    let running = Running::waits(runtime);
    let reported = doctor_of(running.pid());
    assert!(reported.is_fit, "{}", reported.text);
    let (_, text) = reported.check("process");
    assert!(
        text.ends_with(&format!(".NET {}", runtime.version)),
        "{text}"
    );
    for what in ["reach", "agent in it", "its signals", "its descriptors"] {
        assert_eq!(reported.check(what).0, "ok", "{}", reported.text);
    }
    running.end_well();
}

/// A handler's mask cannot be seen from outside.
fn a_crash_handler_is_told_once_an_agent_is_there(runtime: &Runtime) {
    const WHAT: &str = "its fault handlers";
    let library = native_threads();
    let mut command = runtime.command(&workload("unseen").dll);
    command
        .args(["60", "attached", "crashes"])
        .env("LD_LIBRARY_PATH", library.parent().unwrap());
    let program = Running::start(command);
    let reported = doctor_of(program.pid());
    let (state, text) = reported.check(WHAT);
    assert_eq!(state, "ok", "{}", reported.text);
    assert!(text.starts_with("known once"), "{text}");
    let folder = test_folder("crash-handler");
    record(program.pid(), &folder, &["-d", "200ms", "--stay"]);
    let reported = doctor_of(program.pid());
    let (_, text) = reported.check(WHAT);
    assert!(text.starts_with("the handler of SIGSEGV "), "{text}");
    assert!(reported.is_fit, "{}", reported.text);
    ends_well(program, "result missed 0");
    let waits = Running::waits(runtime);
    record(waits.pid(), &folder, &["-d", "200ms", "--stay"]);
    let reported = doctor_of(waits.pid());
    let (_, text) = reported.check(WHAT);
    assert!(text.starts_with("all hold off"), "{text}");
    waits.end_well();
}

#[test]
fn a_program_that_cannot_be_reached_is_told_why() {
    let refused = |command: Command, why: &str| {
        let running = Running::start(command);
        let reported = doctor_of(running.pid());
        assert!(!reported.is_fit, "{}", reported.text);
        let (state, text) = reported.check("reach");
        assert_eq!(state, "not ok");
        assert!(text.contains(why), "{text}");
        running
    };
    let waits = |runtime: &Runtime| runtime.command(&workload("waits").dll);
    let mut command = waits(&Runtime::net8());
    command.env("DOTNET_EnableDiagnostics", "0");
    refused(command, "switched off (DOTNET_EnableDiagnostics=0)").end_well();

    let mut command = waits(&Runtime::core31());
    command
        .env("CORECLR_ENABLE_PROFILING", "1")
        .env("CORECLR_PROFILER", "{846F5F1C-F9AE-4B07-969E-05C26BC060D8}")
        .env("CORECLR_PROFILER_PATH", v2_agent());
    refused(command, "supports only one").end_well();

    let mut command = Command::new("sh");
    command.args(["-c", "echo ready; read line"]);
    drop(refused(command, "runs no .NET"));
}

/// Only tmpfs that nothing can be loaded from.
#[test]
fn a_container_that_takes_no_agent_is_told() {
    let dotnet = Runtime::net8().command(&workload("waits").dll);
    let folder = agent().parent().unwrap().to_owned();
    let mounts = format!(
        "mount -t tmpfs none {}\n{}\nfor at in /dev/shm /var/tmp; do mount -t tmpfs -o noexec none $at; done",
        folder.display(),
        empty_tmp("-o noexec")
    );
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "sh",
            "-ec",
            &format!("{mounts}; exec \"$0\" \"$@\""),
        ])
        .arg(dotnet.get_program())
        .args(dotnet.get_args())
        .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1");
    // It takes the place of its starter.
    let running = Running::start(command);
    let reported = doctor_of(running.pid());
    assert!(!reported.is_fit, "{}", reported.text);
    let (state, text) = reported.check("agent in it");
    assert_eq!(state, "not ok");
    assert!(text.contains("/tmp is mounted noexec"), "{text}");
    running.end_well();
}

#[test]
fn another_users_program_is_told() {
    let running = Running::waits(&Runtime::net8());
    // A folder from which every user may run it.
    let folder = tempfile::tempdir().unwrap();
    let binary = folder.path().join("sidewalk");
    std::fs::copy(sidewalk(), &binary).unwrap();
    for path in [folder.path(), &binary] {
        std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&binary)
        .arg("doctor")
        .arg(running.pid().to_string());
    let reported = DoctorOutput::by(&mut command);
    assert!(!reported.is_fit, "{}", reported.text);
    let (state, text) = reported.check("reach");
    assert_eq!(state, "not ok");
    assert!(
        text.contains("another user") && text.contains("as root"),
        "{text}"
    );
    running.end_well();
}

/// .NET Core 3.1 under the version of a release that is not there yet: it is its folder that says
/// the version.
#[test]
fn a_runtime_that_is_newer_than_tested_is_named() {
    const VERSION: &str = "99.0.0";
    const NEWER: &str = "newer than the last version tested";
    let known = Runtime::core31();
    let root = test_folder("newer-runtime");
    let shared = root.join("shared/Microsoft.NETCore.App");
    std::fs::create_dir_all(&shared).unwrap();
    for (from, to) in [
        (known.dotnet.clone(), root.join("dotnet")),
        (known.root().join("host"), root.join("host")),
        (known.framework_dir(), shared.join(VERSION)),
    ] {
        let copied = Command::new("cp").arg("-a").args([from, to]).status();
        assert!(copied.unwrap().success());
    }
    let newer = Runtime {
        version: VERSION.to_owned(),
        dotnet: root.join("dotnet"),
        ..known
    };
    let running = Running::waits(&newer);
    let reported = doctor_of(running.pid());
    let (state, text) = reported.check("process");
    assert_eq!(state, "limited", "{}", reported.text);
    assert!(text.contains(VERSION) && text.contains(NEWER), "{text}");
    assert!(reported.is_fit, "{}", reported.text);
    let list = testkit::stdout_of(Command::new(sidewalk()).arg("list"));
    assert!(list.contains("99.0.0 (newer than tested)"), "{list}");
    running.end_well();
    let recorded = Recorder::workload(&newer, "shares", &["0.3"]).run_complete();
    let notes = recorded.answer.stderr.matches(NEWER).count();
    assert_eq!(notes, 1, "{}", recorded.answer.stderr);
    std::fs::remove_dir_all(root).unwrap();
}
