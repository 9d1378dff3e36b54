//! Programs with a view of their own: found, and given a library that they can load.
//!
//! The library is `v2_agent`, which every runtime loads and then refuses by name. The runtime's
//! message for a refused library differs from that for a missing one.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use diagnostics::{Attach, DeployError, DeployedLibrary, Diagnostics, RefusalCode, Survey, Target};
use testkit::{
    Machine, Recorded, Recorder, Running, Runtime, agent, agent_variable, only_child,
    output_in_time, repository, sidewalk, stdout_of, test_folder, v2_agent, workload,
};

/// Appends a program to the arguments of `starter`, with the same environment.
fn behind(mut starter: Command, program: &Command) -> Command {
    starter.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => starter.env(name, value),
            None => starter.env_remove(name),
        };
    }
    starter
}

/// Returns shell commands that mount an empty folder over `/tmp`. A clone of the repository below
/// it stays visible.
pub(crate) fn empty_tmp(options: &str) -> String {
    let mount = format!("mount -t tmpfs {options} none /tmp");
    let clone = repository();
    if !clone.starts_with("/tmp") {
        return mount;
    }
    let clone = clone.display();
    // Including the mounts in it.
    format!("mount --rbind {clone} /mnt\n{mount}\nmkdir -p {clone}\nmount --move /mnt {clone}")
}

/// Starts the program in new pid and mount namespaces, after running shell commands.
pub(crate) fn contained(runtime: &Runtime, mounts: &str) -> (Running, Target) {
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-ec", &format!("{mounts}\nexec \"$0\" \"$@\"")])
        .process_group(0);
    let running = Running::start(behind(unshare, &runtime.command(&workload("waits").dll)));
    let target = Target::new(only_child(running.pid()).unwrap()).unwrap();
    assert_eq!(target.pid_inside(), 1);
    (running, target)
}

/// Records a process by the wall clock for two seconds. Returns the number of samples in the wait
/// of `waits`.
fn record(name: &str, pid: u32) -> u64 {
    let recording = test_folder(name).join("recording.swk");
    let mut command = Command::new(sidewalk());
    command
        .args(["record", "--event", "wall", "--duration", "2s", "--pid"])
        .arg(pid.to_string())
        .arg("--output")
        .arg(&recording)
        .env(agent_variable(), agent());
    let machine = Machine::exclusive();
    let recorded = Recorded::new(recording, output_in_time(&mut command));
    drop(machine);
    assert!(recorded.answer.status.success(), "{:?}", recorded.answer);
    let waiting = "Workloads.Waits.WaitForTheEndOfInput";
    recorded.stacks().with(waiting).total()
}

fn deploy(target: &Target, library: &Path) -> Result<DeployedLibrary, DeployError> {
    DeployedLibrary::new(target, &Survey::of(target).unwrap(), library)
}

fn attach(target: &Target, library: &Path) -> Option<RefusalCode> {
    let diagnostics = Diagnostics::new(target, Duration::from_secs(20));
    let attached = diagnostics.attach_profiler(&Attach {
        clsid: [1; 16],
        library: library.to_str().unwrap(),
        client_data: b"",
        collection: Duration::ZERO,
    });
    attached.unwrap_err().answer()
}

on_each_runtime!(a_program_in_a_container_is_recorded_from_outside);

fn a_program_in_a_container_is_recorded_from_outside(runtime: &Runtime) {
    let agent = agent();
    let (running, target) = contained(
        runtime,
        &format!(
            "mount -t tmpfs none {}\n{}",
            agent.parent().unwrap().display(),
            empty_tmp("")
        ),
    );
    assert!(record("container", target.pid()) > 0);
    // Again: by the agent that is there, or a new one from the same copy.
    assert!(record("container-again", target.pid()) > 0);
    let copies = std::fs::read_dir(target.path_from_here(Path::new("/tmp"))).unwrap();
    let is_copy = |name: &str| name.starts_with("libsidewalk-");
    let copies = copies.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_str()
            .is_some_and(is_copy)
    });
    assert_eq!(copies.count(), 1);
    running.end_well();
}

/// Returns a recording of a program that has an empty `/tmp` of its own, in namespaces of its own
/// by `options`. The tool's socket is in `/tmp`.
fn with_a_tmp_of_its_own(options: &[&str]) -> Recorder {
    let script = format!("{}\nexec \"$0\" \"$@\"", empty_tmp(""));
    let starter = [&["unshare", "--mount"], options, &["sh", "-ec", &script]].concat();
    Recorder::workload(&Runtime::net8(), "shares", &["0.5"])
        .under(starter)
        .environment("XDG_RUNTIME_DIR", "")
        .environment("TMPDIR", "/tmp")
}

/// As with bwrap or `PrivateTmp`: the tool has a socket without a path, too.
#[test]
fn a_program_with_a_tmp_of_its_own_is_recorded() {
    let recorded = with_a_tmp_of_its_own(&[]).run_complete();
    assert!(recorded.inspect().number("samples") > 0.0);
}

#[test]
fn a_program_that_can_reach_no_socket_is_named_with_the_reason() {
    let recorded = with_a_tmp_of_its_own(&["--net"]).run();
    let message = &recorded.answer.stderr;
    assert_eq!(recorded.answer.status.code(), Some(1), "{message}");
    assert!(recorded.answer.measured("wall_ms") > 0.0, "it ran");
    assert!(
        message.contains("1 .NET process was not recorded: ")
            && message.contains("it has a root or a /tmp of its own, and cannot reach /tmp/"),
        "{message}"
    );
}

#[test]
fn a_tool_with_a_read_only_tmp_records() {
    // The runtime, too, wants a folder to write to.
    let program = Recorder::workload(&Runtime::net8(), "shares", &["0.5"]);
    let (command, recording) = program.under(["env", "TMPDIR=/dev/shm"]).prepare();
    let script = format!(
        "{}\nmount -o remount,ro /tmp\nexec \"$0\" \"$@\"",
        empty_tmp("")
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-ec", &script]);
    let mut command = behind(unshare, &command);
    command.env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
    let machine = Machine::exclusive();
    let recorded = Recorded::new(recording, output_in_time(&mut command));
    drop(machine);
    recorded.answer.assert_complete();
    assert!(recorded.inspect().number("samples") > 0.0);
}

#[test]
fn a_library_is_carried_into_a_container() {
    // The repository's folder of libraries is not in the container; /tmp cannot be loaded from.
    let release = v2_agent();
    let (running, target) = contained(
        &Runtime::net8(),
        &format!(
            "mount -t tmpfs none {}\n{}\nmount -t tmpfs none /dev/shm",
            release.parent().unwrap().display(),
            empty_tmp("-o noexec")
        ),
    );
    assert_eq!(
        attach(&target, &release),
        Some(RefusalCode::LIBRARY_NOT_LOADED)
    );
    let deployed = deploy(&target, &release).unwrap();
    assert!(deployed.is_copy());
    assert_eq!(deployed.library().parent(), Some(Path::new("/dev/shm")));
    assert!(!deployed.library().exists(), "it is in our view");
    let seen = target.path_from_here(deployed.library());
    assert_eq!(
        std::fs::read(&seen).unwrap(),
        std::fs::read(&release).unwrap()
    );
    assert_eq!(
        attach(&target, deployed.library()),
        Some(RefusalCode::NOT_ATTACHABLE)
    );
    // Again: the same file.
    let again = deploy(&target, &release).unwrap();
    assert_eq!(again.library(), deployed.library());
    // It stays as long as a process maps it.
    again.clean_up();
    deployed.clean_up();
    assert!(seen.exists());
    // A library that no process maps is removed, but not while another tool is about to attach it.
    let other = deploy(&target, &sidewalk()).unwrap();
    let seen = target.path_from_here(other.library());
    deploy(&target, &sidewalk()).unwrap().clean_up();
    assert!(seen.exists());
    other.clean_up();
    assert!(!seen.exists());
    running.end_well();
}

#[test]
fn a_container_with_no_place_for_a_library_is_told_why() {
    let (running, target) = contained(
        &Runtime::net8(),
        &format!(
            "{}\nmount -t tmpfs -o ro none /dev/shm\n\
             mount -t tmpfs none /var/tmp\nchmod 777 /var/tmp",
            empty_tmp("-o noexec")
        ),
    );
    let error = deploy(&target, &v2_agent()).unwrap_err();
    let DeployError::NoFolder { tried, .. } = &error else {
        panic!("{error}");
    };
    let tried: Vec<_> = tried
        .iter()
        .map(|(folder, why)| (folder.to_str().unwrap(), *why))
        .collect();
    assert_eq!(
        tried,
        [
            ("/tmp", "is mounted noexec"),
            ("/dev/shm", "is read-only"),
            ("/var/tmp", "lets other users replace files in it"),
        ]
    );
    assert!(error.to_string().contains("--tmpfs"), "{error}");
    running.end_well();
}

/// A link in a container leads where it leads there: not into a folder of ours.
#[test]
fn a_link_in_a_container_does_not_lead_out_of_it() {
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::set_permissions(outside.path(), Permissions::from_mode(0o1777)).unwrap();
    let (running, target) = contained(
        &Runtime::net8(),
        &format!(
            "mount -t tmpfs none /var/tmp\nmount -t tmpfs none /mnt\nmount -t tmpfs none /dev/shm\n\
         ln -s {} /mnt/tmp\nexport TMPDIR=/mnt/tmp",
            outside.path().display()
        ),
    );
    assert_eq!(target.temporary_folder(), Path::new("/mnt/tmp"));
    let deployed = deploy(&target, &v2_agent()).unwrap();
    assert!(!deployed.library().starts_with("/mnt"), "{deployed:?}");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    deployed.clean_up();
    running.end_well();
}

/// The agent lies in a home that the program's user may not enter.
#[test]
fn another_users_program_gets_a_copy_that_it_can_load() {
    // The runtimes of set-up lie in our home, too.
    let public = tempfile::tempdir().unwrap();
    std::fs::set_permissions(public.path(), Permissions::from_mode(0o755)).unwrap();
    let mut runtime = Runtime::net8();
    let program = workload("waits").dll;
    stdout_of(
        Command::new("cp")
            .arg("-r")
            .args([runtime.root(), program.parent().unwrap()])
            .arg(public.path()),
    );
    let inside = |path: &Path| {
        let folder = path.parent().unwrap().file_name().unwrap();
        public.path().join(folder).join(path.file_name().unwrap())
    };
    runtime.dotnet = inside(&runtime.dotnet);
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    let temporary = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temporary.path(), Permissions::from_mode(0o1777)).unwrap();
    setpriv.env("TMPDIR", temporary.path());
    let running = Running::start(behind(setpriv, &runtime.command(&inside(&program))));
    let target = Target::new(running.pid()).unwrap();
    assert!(target.shares_our_files());
    let home = tempfile::tempdir().unwrap();
    std::fs::set_permissions(home.path(), Permissions::from_mode(0o700)).unwrap();
    let library = home.path().join("libsidewalk.so");
    std::fs::copy(v2_agent(), &library).unwrap();
    assert_eq!(
        attach(&target, &library),
        Some(RefusalCode::LIBRARY_NOT_LOADED)
    );
    let deployed = deploy(&target, &library).unwrap();
    assert!(deployed.is_copy());
    assert_eq!(
        attach(&target, deployed.library()),
        Some(RefusalCode::NOT_ATTACHABLE)
    );
    assert_eq!(deployed.library().parent(), Some(temporary.path()));
    drop(deployed);
    assert!(record("another-user", running.pid()) > 0);
    running.end_well();
}
