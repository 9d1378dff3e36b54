//! Tests of `sidewalk record` on the player: a function for each behaviour.
//!
//! They synchronise on the programs' output, never on time.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use profile::Profile;
use tempfile::TempDir;
use testkit::{Deadline, output_in_time, start_in_time};

use crate::first_process;
use crate::player::PLAY;
use crate::terminal;

macro_rules! trials {
    ($($name:path),* $(,)?) => {
        vec![$(Trial::test(stringify!($name), || { $name(); Ok(()) })),*]
    };
}

/// Returns every test of this program.
pub(crate) fn all() -> Vec<Trial> {
    let mut trials = trials![
        exit_code_output_and_recording,
        the_childs_own_exit_code,
        command_without_dashes,
        killed_by_a_signal,
        stdin_stdout_stderr_are_the_childs,
        signal_state_and_descriptors_are_the_users,
        environment_of_the_child,
        path_of_two_agents,
        default_output_and_table,
        several_outputs,
        only_converted_outputs_leave_no_recording,
        nothing_recorded,
        nothing_recorded_keeps_the_childs_code,
        connected_but_silent,
        a_command_that_ends_at_once,
        a_native_aot_program_is_named_before_it_runs,
        terminate_is_forwarded,
        hangup_is_forwarded,
        interrupt_by_kill_is_forwarded,
        ignored_signals_stay_ignored,
        a_pipeline_that_ignores_sigpipe_ends_as_without_us,
        a_child_that_never_execs_does_not_delay_the_end,
        signals_to_the_tool_reach_the_program,
        a_signal_after_the_programs_end_does_not_replace_its_exit_code,
        an_alarm_set_before_the_tool_reaches_the_program,
        without_memory_the_recording_and_the_exit_code_stay,
        first_process::orphans_are_reaped,
        first_process::only_signals_that_the_program_catches_reach_it,
        notes_are_printed_when_they_come,
        killed_agent_leaves_whole_blocks,
        garbage_on_the_socket,
        several_processes,
        first_process_only,
        processes_by_name_only,
        a_command_without_dotnet_leaves_no_file_when_it_is_joined_later,
        the_socket_of_a_killed_process_is_removed,
        a_signal_stops_recording_not_the_program,
        a_process_that_outlives_the_command,
        duration_stops_recording_not_the_program,
        full_disk,
        full_disk_from_the_start,
        permissions,
        private_folder_is_gone,
        missing_agent,
        agent_that_is_none,
        missing_command,
        command_that_cannot_start,
        unwritable_output,
        another_profiler,
        profilers_forbidden,
        unsupported_values,
        output_that_fails_at_the_end,
        output_behind_a_link,
        output_to_stdout,
        a_policy_that_leaves_all_runtimes_out,
        no_method_is_traced,
        a_dll_is_started_by_dotnet,
        tool_killed,
        terminal::interrupt_reaches_the_program_once,
        terminal::second_interrupt_ends_the_recording,
        terminal::an_interrupt_ends_a_scripts_loop,
        terminal::a_hang_up_reaches_the_program,
        terminal::the_programs_screen_is_as_bare,
    ];
    // Only root can become another user.
    let dropped = Trial::test(
        "a_program_that_drops_its_rights_is_not_recorded_and_that_is_said",
        || {
            a_program_that_drops_its_rights_is_not_recorded_and_that_is_said();
            Ok(())
        },
    );
    trials.push(dropped.with_ignored_flag(!rustix::process::geteuid().is_root()));
    // Only root can make a link that is another user's.
    let planted = Trial::test("a_planted_link_is_not_followed", || {
        a_planted_link_is_not_followed();
        Ok(())
    });
    trials.extend(crate::servers::all());
    trials.push(planted.with_ignored_flag(!rustix::process::geteuid().is_root()));
    trials
}

/// A folder for runs and a command line in it.
pub(crate) struct Scene {
    pub(crate) folder: TempDir,
    pub(crate) command: Command,
}

/// The result of a run.
pub(crate) struct Ran {
    pub(crate) folder: TempDir,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn this_program() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// Makes `sidewalk record OPTIONS -- PLAYER ACTIONS`, in an empty folder.
pub(crate) fn scene(options: &[&str], actions: &[&str]) -> Scene {
    let mut scene = bare_scene(options);
    scene
        .command
        .arg("--")
        .arg(this_program())
        .arg(PLAY)
        .args(actions);
    scene
}

fn bare_scene(options: &[&str]) -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidewalk"));
    command
        .current_dir(folder.path())
        .env("SIDEWALK_AGENT", this_program())
        .env("TMPDIR", folder.path())
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("CORECLR_ENABLE_PROFILING")
        .env_remove("DOTNET_EnableDiagnostics")
        .stdin(Stdio::null())
        .arg("record")
        .args(options);
    Scene { folder, command }
}

/// The same command line, as the arguments of a script in Python.
pub(crate) fn by_python(script: &str, scene: Scene) -> Scene {
    let mut python = Command::new("python3");
    python.args(["-c", script]);
    by(python, scene)
}

/// The same command line, after that of another program.
pub(crate) fn by(mut program: Command, scene: Scene) -> Scene {
    let Scene { folder, command } = scene;
    program
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(folder.path());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => program.env(name, value),
            None => program.env_remove(name),
        };
    }
    Scene {
        folder,
        command: program,
    }
}

impl Scene {
    pub(crate) fn run(mut self) -> Ran {
        let Output {
            status,
            stdout,
            stderr,
        } = output_in_time(&mut self.command);
        Ran {
            folder: self.folder,
            status,
            stdout: String::from_utf8(stdout).unwrap(),
            stderr: String::from_utf8(stderr).unwrap(),
        }
    }

    pub(crate) fn start(mut self) -> Running {
        let (mut child, deadline) =
            start_in_time(self.command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Running {
            folder: self.folder,
            child,
            _deadline: deadline,
            stdout,
        }
    }
}

/// A running tool.
pub(crate) struct Running {
    folder: TempDir,
    child: Child,
    _deadline: Deadline,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn expect_line(&mut self, expected: &str) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), expected);
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub(crate) fn finish(mut self) -> Ran {
        let mut stdout = String::new();
        self.stdout.read_to_string(&mut stdout).unwrap();
        let output = self.child.wait_with_output().unwrap();
        Ran {
            folder: self.folder,
            status: output.status,
            stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn code(&self, expected: i32) -> &Self {
        assert_eq!(
            self.status.code(),
            Some(expected),
            "stderr: {}",
            self.stderr
        );
        self
    }

    /// The tool ended like the recorded program.
    #[track_caller]
    fn killed_by(&self, expected: Signal) -> &Self {
        let signal = self.status.signal();
        assert_eq!(signal, Some(expected as i32), "stderr: {}", self.stderr);
        assert!(!self.status.core_dumped());
        self
    }

    #[track_caller]
    fn says(&self, text: &str) -> &Self {
        assert!(
            self.stderr.contains(text),
            "no {text:?} in stderr: {}",
            self.stderr
        );
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn profile(&self, name: &str) -> Profile {
        read(&self.path(name))
    }

    /// Names in the folder, hidden ones too.
    fn files(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

pub(crate) fn read(path: &Path) -> Profile {
    let file = fs::File::open(path).unwrap();
    profile::Import::read(recording::Reader::open(file).unwrap()).unwrap()
}

fn exit_code_output_and_recording() {
    let ran = scene(&["-o", "x.swk"], &["connect", "samples=7", "end"]).run();
    ran.code(0).says("wrote x.swk");
    assert_eq!(ran.stdout, "");
    let profile = ran.profile("x.swk");
    assert_eq!(profile.samples.len(), 7);
    assert!(profile.processes[0].ended);
    assert_eq!(profile.health.notes, [""; 0]);
    assert_eq!(ran.files(), ["x.swk"]);
}

fn the_childs_own_exit_code() {
    for code in [0, 1, 2, 42, 255] {
        let exit = format!("exit={code}");
        let ran = scene(&["-o", "x.swk"], &["connect", "samples=1", "end", &exit]).run();
        ran.code(code);
        assert_eq!(ran.profile("x.swk").samples.len(), 1);
    }
}

fn command_without_dashes() {
    let mut scene = bare_scene(&["-q", "-o", "x.swk"]);
    scene
        .command
        .arg(this_program())
        .args([PLAY, "connect", "samples=1", "end", "exit=9"]);
    scene.run().code(9);
}

fn killed_by_a_signal() {
    let ran = scene(&["-o", "x.swk"], &["connect", "samples=1", "die=SIGTERM"]).run();
    ran.killed_by(Signal::SIGTERM)
        .says("the command was killed by SIGTERM");
    assert_eq!(ran.profile("x.swk").samples.len(), 1);

    // Before the agent connected.
    let ran = scene(&["-q", "-o", "x.swk"], &["die=SIGKILL"]).run();
    ran.killed_by(Signal::SIGKILL)
        .says("nothing was recorded")
        .says("the command was killed by SIGKILL");
    let ran = scene(&["-o", "x.swk"], &["die=SIGINT"]).run();
    ran.killed_by(Signal::SIGINT)
        .says("the command was killed by SIGINT");
    let ran = scene(&["-o", "x.swk"], &["die=SIGSYS"]).run();
    ran.killed_by(Signal::SIGSYS)
        .says("a system call filter (seccomp) ended it");
    // None of the tool's files remain.
    assert_eq!(ran.files().len(), 0);

    // At most the program's core, and none of the tool.
    scene(&["-o", "x.swk"], &["connect", "samples=1", "die=SIGABRT"])
        .run()
        .killed_by(Signal::SIGABRT);
}

fn stdin_stdout_stderr_are_the_childs() {
    let mut scene = scene(
        &["-q", "-o", "x.swk"],
        &["echo", "print-error=oops", "connect", "samples=1", "end"],
    );
    scene
        .command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let (mut child, _deadline) = start_in_time(&mut scene.command);
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"hello\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout, b"hello\n");
    assert_eq!(output.stderr, b"oops\n");
}

/// The output that a program would print without the tool.
fn signal_state_and_descriptors_are_the_users() {
    let actions = [
        "print-status=SigBlk",
        "print-status=SigIgn",
        "print-status=SigCgt",
        "print-descriptors",
    ];
    let direct = output_in_time(
        Command::new(this_program())
            .arg(PLAY)
            .args(actions)
            .stdin(Stdio::null()),
    );
    let ran = scene(&["-q", "-o", "x.swk"], &actions).run();
    let direct = String::from_utf8(direct.stdout).unwrap();
    assert_eq!(
        without_internal_signals(&ran.stdout),
        without_internal_signals(&direct)
    );
}

/// The same text, with signals 32 and 33 not ignored: glibc uses them for itself, and its
/// posix_spawn leaves them ignored (`__spawni_child` in spawni.c), which no program can tell.
fn without_internal_signals(status: &str) -> String {
    let lines = status.lines().map(|line| {
        let Some(set) = line.strip_prefix("SigIgn:") else {
            return format!("{line}\n");
        };
        let set = u64::from_str_radix(set.trim(), 16).unwrap();
        format!("SigIgn:\t{:016x}\n", set & !(3 << 31))
    });
    lines.collect()
}

fn environment_of_the_child() {
    let mut scene = scene(
        &[
            "-q",
            "-e",
            "wall,alloc",
            "-e",
            "exception",
            "--alloc-interval",
            "512k",
            "--event-limit",
            "0",
            "--walker",
            "suspend",
            "-F",
            "1000",
            "--max-depth",
            "64",
            "--runtimes",
            "many=3.1,8",
        ],
        &[
            "print-variable=CORECLR_ENABLE_PROFILING",
            "print-variable=CORECLR_PROFILER",
            "print-variable=CORECLR_PROFILER_PATH",
            "print-variable=CORECLR_PROFILER_PATH_64",
            "print-variable=SIDEWALK_CONFIG",
            "print-variable=KEPT",
        ],
    );
    scene
        .command
        .env("KEPT", "yes")
        .env("CORECLR_PROFILER_PATH_64", "/stale.so");
    let ran = scene.run();
    let agent = this_program();
    let expected = format!(
        "CORECLR_ENABLE_PROFILING=1\n\
         CORECLR_PROFILER={}\n\
         CORECLR_PROFILER_PATH={}\n\
         CORECLR_PROFILER_PATH_64=(not set)\n\
         SIDEWALK_CONFIG=event=wall,alloc,exception;interval_ns=1000000;max_depth=64;\
         runtimes=many=3.1,8;engine=auto;walker=suspend;find_code=3000;alloc_interval=524288;event_limit=0\n\
         KEPT=yes\n",
        sidewalk_cli::AGENT_CLSID,
        agent.to_string_lossy()
    );
    assert_eq!(ran.stdout, expected);
}

fn path_of_two_agents() {
    let mut scene = scene(&["-q"], &["print-variable=CORECLR_PROFILER_PATH"]);
    let cache = scene.folder.path().join("cache");
    scene
        .command
        .env("SIDEWALK_AGENT_MUSL", this_program())
        .env("XDG_CACHE_HOME", &cache);
    let ran = scene.run();
    let start = format!(
        "CORECLR_PROFILER_PATH={}/sidewalk/agents/links-",
        cache.to_str().unwrap()
    );
    assert!(
        ran.stdout.starts_with(&start) && ran.stdout.ends_with("/$LIB/libsidewalk.so\n"),
        "{}",
        ran.stdout
    );
}

fn default_output_and_table() {
    let actions = ["print=its own", "connect", "samples=7", "end"];
    let ran = scene(&["-q"], &actions).run();
    ran.code(0).says("App.Program.Main");
    assert_eq!(ran.stdout, "its own\n");
    let ran = scene(&[], &actions).run();
    ran.code(0).says("App.Program.Main");
    assert_eq!(ran.stdout, "its own\n");
    let files = ran.files();
    let [name] = &files[..] else {
        panic!("{files:?}");
    };
    assert!(
        name.starts_with("sidewalk-record-") && name.ends_with(".swk"),
        "{name}"
    );
    assert_eq!(ran.profile(name).samples.len(), 7);
    ran.says(name);
}

fn several_outputs() {
    let ran = scene(
        &[
            "-o",
            "a.collapsed",
            "-o",
            "b.swk",
            "-o",
            "c.html",
            "-o",
            "d.txt",
        ],
        &["connect", "samples=7", "end"],
    )
    .run();
    ran.code(0);
    assert_eq!(ran.stdout, "");
    assert_eq!(ran.files(), ["a.collapsed", "b.swk", "c.html", "d.txt"]);
    let collapsed = fs::read_to_string(ran.path("a.collapsed")).unwrap();
    assert_eq!(collapsed, "App.Program.Main 7\n");
    assert_eq!(ran.profile("b.swk").samples.len(), 7);
}

fn only_converted_outputs_leave_no_recording() {
    let ran = scene(&["-o", "a.collapsed"], &["connect", "samples=7", "end"]).run();
    ran.code(0);
    assert_eq!(ran.files(), ["a.collapsed"]);
}

fn nothing_recorded() {
    for options in [&[][..], &["-o", "x.swk"], &["-o", "x.html"]] {
        let ran = scene(options, &["print=not .NET"]).run();
        ran.code(1)
            .says("nothing was recorded: no .NET runtime loaded the agent");
        assert_eq!(ran.stdout, "not .NET\n");
        assert_eq!(ran.files(), [""; 0]);
    }
}

fn a_program_that_drops_its_rights_is_not_recorded_and_that_is_said() {
    let mut scene = bare_scene(&["-o", "x.swk"]);
    let drop = ["setpriv", "--reuid=65534", "--clear-groups", "id", "-u"];
    scene.command.arg("--").args(drop);
    let ran = scene.run();
    ran.code(1)
        .says("or a user, container or filter keeps the agent out");
    assert_eq!(ran.stdout, "65534\n");
}

fn nothing_recorded_keeps_the_childs_code() {
    let ran = scene(&["-o", "x.swk"], &["exit=150"]).run();
    ran.code(150).says("nothing was recorded");
}

/// The program may end before the tool polls signals again. The tool must not hang.
fn a_command_that_ends_at_once() {
    for _ in 0..40 {
        let mut scene = bare_scene(&["-q", "-o", "x.swk"]);
        scene.command.args(["--", "true"]);
        scene.run().code(1);
    }
}

fn connected_but_silent() {
    let ran = scene(&["-o", "x.swk"], &["connect", "half", "die=SIGKILL"]).run();
    ran.killed_by(Signal::SIGKILL);
    // The first block was complete.
    assert_eq!(ran.profile("x.swk").samples.len(), 0);
}

/// By the symbols that programs with a runtime of their own export.
fn a_native_aot_program_is_named_before_it_runs() {
    const SYMBOLS: &str = "#include <stdio.h>\nint DotNetRuntimeDebugHeader;\n";
    const MAIN: &str = "int main(void) { fputs(\"it runs\\n\", stderr); return 5; }\n";
    for (more, is_named) in [("", true), ("int DotNetRuntimeInfo;\n", false)] {
        let scene = bare_scene(&["-o", "x.swk", "--", "./program"]);
        let at = |name: &str| scene.folder.path().join(name);
        fs::write(at("program.c"), [SYMBOLS, more, MAIN].concat()).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-rdynamic", "-o"]);
        let made = compiler.arg(at("program")).arg(at("program.c")).status();
        assert!(made.unwrap().success());
        let ran = scene.run();
        ran.code(5).says("nothing was recorded");
        let (before, _) = ran.stderr.split_once("it runs\n").unwrap();
        assert_eq!(
            before.contains("./program is a native AOT program"),
            is_named,
            "{before}"
        );
    }
}

fn terminate_is_forwarded() {
    forwarded(Signal::SIGTERM);
}

fn hangup_is_forwarded() {
    forwarded(Signal::SIGHUP);
}

fn interrupt_by_kill_is_forwarded() {
    forwarded(Signal::SIGINT);
}

fn forwarded(signal: Signal) {
    let await_it = format!("signal={signal}");
    let mut running = scene(
        &["-o", "x.swk"],
        &[
            "connect",
            "samples=1",
            &await_it,
            "samples=2",
            "end",
            "exit=3",
        ],
    )
    .start();
    running.expect_line("ready");
    running.signal(signal);
    running.expect_line(signal.as_str());
    let ran = running.finish();
    ran.code(3);
    assert_eq!(ran.profile("x.swk").samples.len(), 3);
}

/// Runs a script whose `$0` is the command line and `$1` is this program.
fn by_shell(script: &str, folder: &Path) -> Output {
    output_in_time(
        Command::new("sh")
            .args(["-c", script])
            .arg(env!("CARGO_BIN_EXE_sidewalk"))
            .arg(this_program())
            .env("SIDEWALK_AGENT", this_program())
            .current_dir(folder)
            .stdin(Stdio::null()),
    )
}

/// `nohup sidewalk record -- …` must give a program that ignores SIGHUP.
fn ignored_signals_stay_ignored() {
    let folder = tempfile::tempdir().unwrap();
    // The player prints what it was started with, but for SIGPIPE, which Rust changes; so a shell
    // prints it for the program.
    let inside = "grep SigIgn /proc/self/status";
    for signals in ["", "HUP", "PIPE", "CHLD", "PIPE CHLD USR1 ALRM TSTP"] {
        let trap = if signals.is_empty() {
            String::new()
        } else {
            format!("trap '' {signals}; ")
        };
        let bare = by_shell(&format!("{trap}exec {inside}"), folder.path());
        let script = format!("{trap}exec \"$0\" record -q -o x.swk -- {inside}");
        let recorded = by_shell(&script, folder.path());
        let shown =
            |output: &Output| without_internal_signals(&String::from_utf8_lossy(&output.stdout));
        assert_eq!(shown(&recorded), shown(&bare), "{signals}");
        assert!(!bare.stdout.is_empty());
    }
}

fn a_pipeline_that_ignores_sigpipe_ends_as_without_us() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = |command: &str| {
        let script = format!(
            "exec bash -c 'trap \"\" PIPE; set -o pipefail; \"$@\" | head -n 1; echo $?' - {command}"
        );
        let output = by_shell(&script, folder.path());
        String::from_utf8(output.stdout).unwrap()
    };
    let bare = outcome("seq 1000000");
    assert_ne!(bare, "1\n0\n", "seq notices that nobody reads");
    assert_eq!(outcome("\"$0\" record -q -o x.swk -- seq 1000000"), bare);
}

/// The child holds the agent's socket, and outlives the program by far.
fn a_child_that_never_execs_does_not_delay_the_end() {
    let ran = scene(&["-o", "x.swk"], &["connect", "samples=7", "end", "fork"]).run();
    ran.code(0);
    assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    assert_eq!(ran.profile("x.swk").samples.len(), 7);
    // The child still exists, or the test would prove nothing.
    let pid = ran.stdout.trim().parse().unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

/// Limits the tool's memory to its use at the start, and some more.
fn without_memory_the_recording_and_the_exit_code_stay() {
    const LIMITED: &str = "
import os, resource, sys
limit = int(sys.argv[1]) << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
os.execv(sys.argv[2], sys.argv[2:])
";
    let mut actions = vec!["connect"];
    actions.extend(["samples=50000"; 40]);
    actions.extend(["end", "exit=5"]);
    // An output that is only kept is not read into memory.
    for (options, is_enough) in [
        (&["-q", "-o", "x.swk"][..], true),
        (&["-q", "-o", "x.swk", "-o", "x.collapsed"], false),
        // In a temporary file until then, which gets a name.
        (&["-q", "-o", "x.collapsed"], false),
    ] {
        let tool = std::fs::metadata(env!("CARGO_BIN_EXE_sidewalk")).unwrap();
        // Its own file, and 2,000,000 samples of 48 bytes are more than the rest.
        let limit = (tool.len() >> 20) + 80;
        let mut python = Command::new("python3");
        python.args(["-c", LIMITED]).arg(limit.to_string());
        let ran = by(python, scene(options, &actions)).run();
        ran.code(5);
        let says_so = ran.stderr.contains("not enough memory");
        assert_eq!(says_so, !is_enough, "{}", ran.stderr);
        let kept = ran.stderr.split_once("the recording is kept as ");
        let kept = kept.map_or("x.swk", |(_, name)| name.trim_end());
        assert_eq!(ran.profile(kept).samples.len(), 2_000_000);
    }
}

fn signals_to_the_tool_reach_the_program() {
    for signal in [
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
        Signal::SIGVTALRM,
        Signal::SIGPROF,
        Signal::SIGIO,
        Signal::SIGPWR,
        Signal::SIGSTKFLT,
    ] {
        let await_it = format!("signal={}", signal.as_str());
        let actions = [
            "connect",
            "samples=1",
            &await_it,
            "samples=2",
            "end",
            "exit=3",
        ];
        let mut running = scene(&["-o", "x.swk"], &actions).start();
        running.expect_line("ready");
        running.signal(signal);
        running.expect_line(signal.as_str());
        let ran = running.finish();
        ran.code(3);
        assert_eq!(ran.profile("x.swk").samples.len(), 3);
    }
}

/// Sends all signals that would end the tool, while it writes an output without a reader.
fn a_signal_after_the_programs_end_does_not_replace_its_exit_code() {
    let actions = ["print-status=Pid", "connect", "samples=1", "end", "exit=3"];
    let running = scene(&["-o", "x.swk", "-o", "pipe.txt"], &actions);
    let pipe = running.folder.path().join("pipe.txt");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut running = running.start();
    let mut line = String::new();
    running.stdout.read_line(&mut line).unwrap();
    let program = line.trim_start_matches("Pid:").trim();
    let program = Path::new("/proc").join(program);
    while program.exists() {
        std::thread::yield_now();
    }
    for signal in [
        Signal::SIGUSR1,
        Signal::SIGPROF,
        Signal::SIGALRM,
        Signal::SIGTERM,
    ] {
        running.signal(signal);
    }
    assert!(!fs::read(&pipe).unwrap().is_empty());
    running.finish().code(3);
}

/// `perl -e 'alarm 1; exec …'`: a timer that continues through exec, but not through fork.
fn an_alarm_set_before_the_tool_reaches_the_program() {
    let set = "import signal,os,sys; signal.setitimer(signal.ITIMER_REAL, 0.5); \
               os.execv(sys.argv[1], sys.argv[1:])";
    let scene = scene(
        &["-q", "-o", "x.swk"],
        &["connect", "samples=1", "signal=SIGALRM"],
    );
    let ran = by_python(set, scene).run();
    ran.code(0);
    assert_eq!(ran.stdout, "ready\nSIGALRM\n");
}

/// The program ends only when a note has been read, and then the note does not come again.
fn notes_are_printed_when_they_come() {
    let actions = [
        "connect",
        "samples=1",
        "note=counting distorts",
        "echo",
        "note=counting distorts",
        "note=another",
        "end",
    ];
    let mut scene = scene(&["-o", "x.swk"], &actions);
    scene.command.stdin(Stdio::piped());
    let mut running = scene.start();
    let mut messages = BufReader::new(running.child.stderr.take().unwrap());
    let mut message = String::new();
    messages.read_line(&mut message).unwrap();
    assert_eq!(message, "sidewalk: counting distorts\n");
    drop(running.child.stdin.take());
    running.finish().code(0);
    let mut more = String::new();
    messages.read_to_string(&mut more).unwrap();
    assert!(more.starts_with("sidewalk: another\n"), "{more}");
    assert!(!more.contains("distorts"), "{more}");
}

fn killed_agent_leaves_whole_blocks() {
    let ran = scene(
        &["-o", "x.swk"],
        &["connect", "samples=5", "half", "die=SIGKILL"],
    )
    .run();
    ran.killed_by(Signal::SIGKILL);
    let profile = ran.profile("x.swk");
    assert_eq!(profile.samples.len(), 5);
    assert!(!profile.processes[0].ended);
}

fn garbage_on_the_socket() {
    let ran = scene(
        &["-o", "x.swk"],
        &[
            "connect",
            "samples=5",
            "garbage",
            "child=connect,samples=2,end",
            "exit=4",
        ],
    )
    .run();
    ran.code(4)
        .says("is no longer recorded: the stream is not a recording");
    let profile = ran.profile("x.swk");
    assert_eq!(profile.samples.len(), 7);
    assert_eq!(profile.processes.len(), 2);
}

fn several_processes() {
    let ran = scene(
        &["-o", "x.swk"],
        &[
            "connect",
            "samples=1",
            "child=connect,samples=2,end",
            "child=connect,samples=4",
            "end",
        ],
    )
    .run();
    ran.code(0);
    let profile = ran.profile("x.swk");
    assert_eq!(profile.samples.len(), 7);
    let ended: Vec<_> = profile.processes.iter().map(|p| p.ended).collect();
    assert_eq!(ended, [true, true, false]);
    assert_eq!(profile.processes[1].parent, profile.processes[0].pid);
}

fn first_process_only() {
    let ran = scene(
        &["--no-children", "-o", "x.swk"],
        &["connect", "samples=1", "child=connect,samples=2,end", "end"],
    )
    .run();
    ran.code(0);
    assert_eq!(ran.stdout, "not recorded\n");
    assert_eq!(ran.profile("x.swk").samples.len(), 1);
}

fn a_process_that_outlives_the_command() {
    let ran = scene(
        &["-o", "x.swk"],
        &["daemon=connect,samples=2,print=x,stopped"],
    )
    .run();
    ran.code(0);
    let profile = ran.profile("x.swk");
    assert_eq!(profile.samples.len(), 3);
    assert!(profile.processes[0].ended);
}

fn duration_stops_recording_not_the_program() {
    let mut running = scene(
        &["-d", "50ms", "-o", "x.swk"],
        &[
            "connect",
            "samples=1",
            "stopped",
            "connect",
            "signal=SIGTERM",
            "exit=5",
        ],
    )
    .start();
    running.expect_line("tool said \"S\"");
    running.expect_line("no tool");
    running.expect_line("ready");
    // The recording is written while the program still runs.
    let mut stderr = BufReader::new(running.child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert_eq!(line, "sidewalk: wrote x.swk\n");
    assert_eq!(read(&running.folder.path().join("x.swk")).samples.len(), 2);
    running.signal(Signal::SIGTERM);
    running.expect_line("SIGTERM");
    assert_eq!(running.child.wait().unwrap().code(), Some(5));
}

fn a_signal_stops_recording_not_the_program() {
    let mut running = scene(
        &["--until-signal", "usr2", "-o", "x.swk"],
        &[
            "connect",
            "samples=1",
            "print=go",
            "stopped",
            "signal=SIGTERM",
            "exit=5",
        ],
    )
    .start();
    running.expect_line("go");
    running.signal(Signal::SIGUSR2);
    running.expect_line("tool said \"S\"");
    running.expect_line("ready");
    // A signal that would have killed the program.
    running.signal(Signal::SIGTERM);
    running.expect_line("SIGTERM");
    let ran = running.finish();
    ran.code(5);
    assert_eq!(ran.profile("x.swk").samples.len(), 2);
}

fn the_socket_of_a_killed_process_is_removed() {
    let actions = ["connect", "samples=1", "door", "die=SIGKILL"];
    let ran = scene(&["-o", "x.swk"], &actions).run();
    ran.killed_by(Signal::SIGKILL);
    let path = Path::new(ran.stdout.trim());
    assert!(path.is_absolute(), "{path:?}");
    assert!(!path.exists(), "{path:?}");
}

fn processes_by_name_only() {
    let name = this_program();
    let name = name.file_name().unwrap().to_str().unwrap().to_owned();
    let actions = ["connect", "samples=1", "end", "exit=3"];
    let ran = scene(
        &["--only", "other", "--only", &name, "-o", "x.swk"],
        &actions,
    )
    .run();
    ran.code(3);
    assert_eq!(ran.profile("x.swk").samples.len(), 1);
    let ran = scene(&["--only", "other", "-o", "x.swk"], &["connect", "exit=3"]).run();
    ran.code(3)
        .says("nothing was recorded: no .NET process is named 'other' (--only); there were")
        .says(&name);
}

/// The limit applies to the tool: `sh` raises it again for the program.
fn a_command_without_dotnet_leaves_no_file_when_it_is_joined_later() {
    let ran = scene(&["--start-after", "1ms", "-o", "x.swk"], &["exit=3"]).run();
    ran.code(3)
        .says("after its start the command runs no .NET process");
    assert_eq!(ran.files().len(), 0);
}

fn full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        "ulimit -S -f 64; exec \"$0\" record -o x.swk -- \"$1\" --play connect flood exit=6";
    let output = by_shell(script, folder.path());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6), "{stderr}");
    assert_eq!(output.stdout, b"flood is over\n");
    assert!(
        stderr.contains("recording stopped: cannot write x.swk: File too large"),
        "{stderr}"
    );
    let profile = read(&folder.path().join("x.swk"));
    assert!(profile.samples.len() >= 5_000);
    assert_eq!(profile.samples.len() % 5_000, 0, "whole blocks only");
}

fn full_disk_from_the_start() {
    let mut scene = bare_scene(&["-o", "x.swk"]);
    std::os::unix::fs::symlink("/dev/full", scene.folder.path().join("x.swk")).unwrap();
    scene.command.args(["--", "touch", "started"]);
    let ran = scene.run();
    ran.code(1)
        .says("cannot write /dev/full: No space left on device");
    assert_eq!(ran.files(), ["x.swk"]);
}

fn permissions() {
    let scene = scene(
        &["-o", "x.swk", "-o", "y.swk", "-o", "./x.swk"],
        &["connect", "samples=1", "end"],
    );
    let old = scene.folder.path().join("x.swk");
    fs::write(&old, "an older file that others may read").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o644)).unwrap();
    let ran = scene.run();
    ran.code(0);
    for name in ["x.swk", "y.swk"] {
        let mode = fs::metadata(ran.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
        assert_eq!(ran.profile(name).samples.len(), 1);
    }
}

fn private_folder_is_gone() {
    let mut running = scene(
        &["-o", "x.swk"],
        &[
            "connect",
            "print-variable=SIDEWALK_SOCKET",
            "signal=SIGTERM",
            "end",
        ],
    )
    .start();
    let mut line = String::new();
    running.stdout.read_line(&mut line).unwrap();
    let socket = PathBuf::from(line.trim_end().strip_prefix("SIDEWALK_SOCKET=").unwrap());
    let folder = socket.parent().unwrap();
    let mode = fs::metadata(folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    running.expect_line("ready");
    running.signal(Signal::SIGTERM);
    running.expect_line("SIGTERM");
    running.finish().code(0);
    assert!(!folder.exists());
}

fn missing_agent() {
    let mut scene = bare_scene(&["-o", "x.swk"]);
    let alone = scene.folder.path().join("sidewalk");
    fs::copy(env!("CARGO_BIN_EXE_sidewalk"), &alone).unwrap();
    let output = output_in_time(
        Command::new(&alone)
            .current_dir(scene.folder.path())
            .args(["record", "-o", "x.swk", "--", "touch", "started"])
            .stdin(Stdio::null()),
    );
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr.contains("the agent libsidewalk.so is missing"),
        "{stderr}"
    );
    assert!(!scene.folder.path().join("started").exists());

    scene
        .command
        .env("SIDEWALK_AGENT", "/nowhere/libsidewalk.so");
    scene.command.args(["--", "touch", "started"]);
    let ran = scene.run();
    ran.code(1)
        .says("SIDEWALK_AGENT names the agent /nowhere/libsidewalk.so");
    assert!(!ran.path("started").exists());
}

fn agent_that_is_none() {
    let mut scene = bare_scene(&["-o", "x.swk"]);
    let text = scene.folder.path().join("agent.so");
    fs::write(&text, "text").unwrap();
    scene.command.env("SIDEWALK_AGENT", &text);
    scene.command.args(["--", "touch", "started"]);
    let ran = scene.run();
    ran.code(1).says("it is not a shared library");
    assert!(!ran.path("started").exists());
}

fn missing_command() {
    for (command, text) in [
        (
            "no-such-program-anywhere",
            "there is no such program in PATH",
        ),
        ("./missing", "there is no such file"),
        ("./", "is a folder"),
        ("./App.dll", "sidewalk record -- dotnet ./App.dll"),
    ] {
        let mut scene = bare_scene(&["-o", "x.swk"]);
        fs::write(scene.folder.path().join("App.dll"), "MZ").unwrap();
        scene.command.args(["--", command]);
        let ran = scene.run();
        ran.code(1).says(text);
        assert_eq!(ran.files(), ["App.dll"]);
    }
    bare_scene(&[]).run().code(2);
}

/// Detected when the command is started. The older recording still exists.
fn command_that_cannot_start() {
    let mut scene = bare_scene(&["-o", "x.swk"]);
    let path = |name| scene.folder.path().join(name);
    fs::write(path("x.swk"), "an older one").unwrap();
    fs::write(path("program"), "\x7fELF but not really").unwrap();
    fs::set_permissions(path("program"), fs::Permissions::from_mode(0o755)).unwrap();
    scene.command.args(["--", "./program"]);
    let ran = scene.run();
    ran.code(1)
        .says("cannot start ./program: Exec format error");
    assert_eq!(fs::read(ran.path("x.swk")).unwrap(), b"an older one");
    assert_eq!(ran.files(), ["program", "x.swk"]);
}

fn unwritable_output() {
    for (output, text) in [
        ("missing/x.swk", "there is no folder missing"),
        ("missing/x.html", "there is no folder missing"),
        ("folder.html", "it is a folder"),
        ("file/x.html", "cannot write file/x.html"),
        ("fifo.swk", "it is a FIFO"),
    ] {
        let mut scene = bare_scene(&["-o", output]);
        fs::create_dir(scene.folder.path().join("folder.html")).unwrap();
        fs::write(scene.folder.path().join("file"), "").unwrap();
        let fifo = scene.folder.path().join("fifo.swk");
        assert!(
            Command::new("mkfifo")
                .arg(&fifo)
                .status()
                .unwrap()
                .success()
        );
        scene.command.args(["--", "touch", "started"]);
        let ran = scene.run();
        ran.code(1).says(text);
        assert!(!ran.path("started").exists());
    }
}

fn another_profiler() {
    let actions = [
        "print-variable=CORECLR_PROFILER",
        "connect",
        "samples=1",
        "end",
    ];
    for (options, code, stdout) in [
        (
            &["-o", "x.swk"][..],
            0,
            "CORECLR_PROFILER={846F5F1C-F9AE-4B07-969E-05C26BC060D8}\n".to_owned(),
        ),
        (
            &["-o", "x.swk", "--replace-profiler"],
            0,
            format!("CORECLR_PROFILER={}\n", sidewalk_cli::AGENT_CLSID),
        ),
    ] {
        let mut scene = scene(options, &actions);
        scene
            .command
            .env("CORECLR_ENABLE_PROFILING", "1")
            .env("CORECLR_PROFILER", "{846F5F1C-F9AE-4B07-969E-05C26BC060D8}");
        let ran = scene.run();
        ran.code(code)
            .says("{846F5F1C-F9AE-4B07-969E-05C26BC060D8}");
        assert_eq!(ran.stdout, stdout);
    }
}

fn profilers_forbidden() {
    let actions = [
        "print-variable=DOTNET_EnableDiagnostics",
        "connect",
        "samples=1",
        "end",
    ];
    for (options, code, stdout) in [
        (&["-o", "x.swk"][..], 1, ""),
        (
            &["-o", "x.swk", "--replace-profiler"],
            0,
            "DOTNET_EnableDiagnostics=(not set)\n",
        ),
    ] {
        let mut scene = scene(options, &actions);
        scene.command.env("DOTNET_EnableDiagnostics", "0");
        let ran = scene.run();
        ran.code(code).says("DOTNET_EnableDiagnostics=0");
        assert_eq!(ran.stdout, stdout);
    }
}

fn unsupported_values() {
    for options in [
        &["-e", "itimer"][..],
        &["-e", "cpu,call"],
        &["--alloc-interval", "1m"],
        &["--walker", "frame-pointer"],
        &["-F", "0"],
        &["-F", "10001"],
        &["-F", "99", "-i", "10ms"],
        &["-i", "10"],
        &["-d", "soon"],
        &["--runtimes", "some"],
        &["-o", "x.exe"],
        &["--pid", "1"],
    ] {
        let ran = scene(options, &["print=started"]).run();
        ran.code(2);
        assert_eq!(ran.stdout, "", "{options:?}");
    }
}

/// The recording is kept if the output fails.
fn output_that_fails_at_the_end() {
    let actions = ["connect", "samples=7", "end", "make-folder=x.html"];
    let ran = scene(&["-o", "x.html", "-o", "y.collapsed"], &actions).run();
    ran.code(1)
        .says("cannot write x.html")
        .says("the recording is kept as ");
    let files = ran.files();
    let [recording, _, other] = &files[..] else {
        panic!("{files:?}");
    };
    assert_eq!(ran.profile(recording).samples.len(), 7);
    assert_eq!(other, "y.collapsed");
}

/// The link's target is replaced, not the link.
fn output_behind_a_link() {
    let scene = scene(
        &["-o", "x.swk", "-o", "x.collapsed"],
        &["connect", "samples=7", "end"],
    );
    let folder = scene.folder.path().to_owned();
    for name in ["x.swk", "x.collapsed"] {
        let real = folder.join(format!("real-{name}"));
        fs::write(&real, "older").unwrap();
        std::os::unix::fs::symlink(&real, folder.join(name)).unwrap();
    }
    let ran = scene.run();
    ran.code(0);
    assert_eq!(ran.profile("real-x.swk").samples.len(), 7);
    assert_eq!(
        fs::read(ran.path("real-x.collapsed")).unwrap(),
        b"App.Program.Main 7\n"
    );
    assert!(
        fs::symlink_metadata(ran.path("x.swk"))
            .unwrap()
            .is_symlink()
    );
    assert_eq!(ran.files().len(), 4);
}

fn a_policy_that_leaves_all_runtimes_out() {
    let ran = scene(
        &["--runtimes", "one=3.1", "-o", "x.swk"],
        &["connect", "refused", "end"],
    )
    .run();
    ran.code(1)
        .says("nothing was recorded: --runtimes one=3.1 leaves out .NET 8.0.4");
}

fn no_method_is_traced() {
    let of = |options: &[&str], actions: &[&str]| {
        let options = [&["-o", "x.swk"][..], options].concat();
        let actions = [&["connect", "samples=3"][..], actions, &["end"]].concat();
        let ran = scene(&options, &actions).run();
        assert_eq!(ran.profile("x.swk").samples.len(), 3);
        ran
    };
    let trace = ["--trace", "App.*"];
    of(&trace, &["traced="]).code(0);
    of(&[], &["traced=no IL"]).code(0);
    of(&trace, &["traced=no IL"])
        .code(1)
        .says("no method was traced: App.Program.Main: no IL");
    let note = "--trace App.*: no method of this name in the 3 modules searched";
    of(&trace, &[&format!("note={note}")])
        .code(1)
        .says(&format!("no method was traced: {note}"));
    // The command's own exit code comes first.
    of(&trace, &["exit=7"]).code(7).says("no method was traced");
}

fn a_dll_is_started_by_dotnet() {
    // With the mode of a build, or unpacked with all bits set, or by the name alone.
    for (mode, program) in [
        (0o644, "./app.dll"),
        (0o755, "./app.dll"),
        (0o644, "app.dll"),
    ] {
        let mut scene = bare_scene(&[]);
        let dll = scene.folder.path().join("app.dll");
        fs::write(&dll, b"MZ\x90\0").unwrap();
        fs::set_permissions(&dll, fs::Permissions::from_mode(mode)).unwrap();
        scene.command.args(["--", program]);
        scene
            .run()
            .code(1)
            .says(&format!("sidewalk record -- dotnet {program}"));
    }
}

fn output_to_stdout() {
    let ran = scene(
        &["-q", "-o", "-"],
        &["print=x", "connect", "samples=7", "end"],
    )
    .run();
    ran.code(0);
    assert_eq!(ran.stdout, "x\nApp.Program.Main 7\n");
    assert_eq!(ran.files().len(), 0);
    let ran = scene(
        &["-o", "-", "--format", "txt"],
        &["connect", "samples=7", "end"],
    )
    .run();
    ran.code(0);
    assert!(ran.stdout.contains("App.Program.Main"), "{}", ran.stdout);
}

/// Another user's link to a file of ours has the name of an output, before or during the recording.
fn a_planted_link_is_not_followed() {
    use std::os::unix::fs::{lchown, symlink};
    for (output, is_early) in [("x.swk", true), ("x.html", true), ("x.html", false)] {
        let sticky = tempfile::tempdir().unwrap();
        fs::set_permissions(sticky.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let target = sticky.path().join(output);
        let mut running = scene(
            &["-o", target.to_str().unwrap()],
            &["connect", "samples=1", "print=ready", "echo", "end"],
        );
        running.command.stdin(Stdio::piped());
        let ours = running.folder.path().join("ours");
        fs::write(&ours, "precious").unwrap();
        let plant = || {
            symlink(&ours, &target).unwrap();
            lchown(&target, Some(65_534), None).unwrap();
        };
        if is_early {
            plant();
        }
        let mut running = running.start();
        if !is_early {
            running.expect_line("ready");
            plant();
        }
        drop(running.child.stdin.take());
        let folder = running.folder.path().to_owned();
        let ran = running.finish();
        ran.code(1).says("is a symbolic link of another user");
        assert_eq!(fs::read_to_string(folder.join("ours")).unwrap(), "precious");
        // The recording is kept.
        let kept = fs::read_dir(sticky.path()).unwrap().count();
        assert_eq!(kept, if is_early { 1 } else { 2 });
    }
}

/// Blocks written before the tool was killed can be read. The program continues.
fn tool_killed() {
    let mut running = scene(
        &["-o", "x.swk"],
        &[
            "connect",
            "samples=5",
            "child=connect,samples=3,end",
            "stopped",
            "print=on my own",
        ],
    )
    .start();
    let path = running.folder.path().join("x.swk");
    // The second process has ended, so its samples will reach the file.
    while !path.exists() || read(&path).samples.len() < 8 {
        std::thread::yield_now();
    }
    running.signal(Signal::SIGKILL);
    running.child.wait().unwrap();
    running.expect_line("tool said \"\"");
    running.expect_line("on my own");
    assert_eq!(read(&path).samples.len(), 8);
}
