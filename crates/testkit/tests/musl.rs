//! Programs on .NET for musl, recorded from their start and by an attach, on a machine with glibc
//! and in a root with nothing but musl.
//!
//! A trial exists for each runtime for musl that set-up has been given (`cargo xtask test --libc
//! musl`), and nowhere else one that would have to be skipped.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};
use serde_json::Value;
use testkit::{ProgramOutput, Recorded, Running, Runtime, Setup, chance, test_folder, workload};

/// A program, its arguments, and methods that its profile must name.
type Program = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const PROGRAMS: [Program; 5] = [
    ("shares", &["3"], &["Workloads.Shares.Rounds"]),
    (
        "exceptions",
        &["3"],
        &[
            "Workloads.Exceptions.ThrowDeep",
            "Workloads.Exceptions.Main",
        ],
    ),
    ("asyncchains", &["3"], &["Workloads.AsyncChains.Main"]),
    // Threads that wait, and threads that end.
    ("contention", &["2"], &[]),
    ("threadchurn", &["2"], &[]),
];

fn main() -> ExitCode {
    let mut trials = Vec::new();
    // Without a set-up there is none.
    let runtimes = Setup::read().unwrap_or_default().runtimes;
    for runtime in runtimes.into_iter().filter(Runtime::is_musl) {
        for program in PROGRAMS {
            let at = runtime.clone();
            trials.push(Trial::test(
                format!("{}::{}", program.0, runtime.name),
                move || {
                    a_program_runs_as_ever_and_is_seen(&at, program);
                    Ok(())
                },
            ));
        }
        for (how, script) in [
            ("started", STARTED),
            ("attached", ATTACHED),
            ("outside", OUTSIDE),
        ] {
            let at = runtime.clone();
            let name = format!("alone::{how}::{}", runtime.name);
            trials.push(Trial::test(name, move || {
                the_static_tool_needs_only_musl(&at, how, script);
                Ok(())
            }));
        }
        let at = runtime.clone();
        trials.push(Trial::test(format!("both::{}", runtime.name), move || {
            programs_on_both_libraries_are_recorded(&at);
            Ok(())
        }));
        trials.push(Trial::test(
            format!("attached::{}", runtime.name),
            move || {
                an_attach_comes_and_goes(&runtime);
                Ok(())
            },
        ));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The command that runs a workload.
fn program(runtime: &Runtime, name: &str, arguments: &[&str]) -> Command {
    let mut command = runtime.command(&workload(name).dll);
    command.args(arguments);
    command
}

/// The words that run it from a tool or a shell on glibc: its libraries are its alone.
fn words(runtime: &Runtime, program: &Command) -> Vec<OsString> {
    let mut words = Vec::new();
    if let Some(libraries) = &runtime.libraries {
        let mut word = OsString::from("LD_LIBRARY_PATH=");
        word.push(libraries);
        words.extend(["env".into(), word]);
    }
    words.push(program.get_program().to_owned());
    words.extend(program.get_args().map(OsString::from));
    words
}

/// Records a command line from its start.
fn record(name: &str, options: &[&str], words: &[OsString]) -> Recorded {
    let file = test_folder(name).join("recording.swk");
    let mut command = Command::new(testkit::sidewalk());
    command.arg("record").args(options).arg("--output");
    command.arg(&file).arg("--").args(words);
    command.env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1");
    Recorded::new(file, testkit::output_in_time(&mut command))
}

fn a_program_runs_as_ever_and_is_seen(runtime: &Runtime, of: Program) {
    let (name, arguments, methods) = of;
    let mut command = program(runtime, name, arguments);
    let bare = Recorded::new(PathBuf::new(), testkit::output_in_time(&mut command)).answer;
    bare.assert_complete();
    for event in ["cpu", "wall"] {
        let recorded = record(
            &format!("{name}-{}", runtime.name),
            &["--event", event],
            &words(runtime, &command),
        );
        recorded.answer.assert_complete();
        assert_eq!(recorded.answer.results(), bare.results(), "{event}");
        assert_eq!(recorded.answer.status, bare.status, "{event}");
        assert_names(&recorded.recording, methods, &recorded.answer);
        // musl's code has no tables, nor have the first instructions of a program.
        let inspected = recorded.inspect();
        inspected.assert_honest(1.0, 1.0);
        assert_not_guessed(&recorded, inspected.number("samples"));
    }
}

/// Asserts that callers are guessed, or may be missing, in hardly a stack.
fn assert_not_guessed(recorded: &Recorded, samples: f64) {
    let stacks = recorded.stacks();
    let of = |mark| stacks.with(mark).total();
    let guessed = of("[caller guessed]") + of("[callers may be missing here]");
    // Stacks count by their time.
    let share = guessed as f64 / stacks.total() as f64;
    chance::assert_at_most("guessed", share * samples, samples, 0.01);
}

/// Asserts that some samples are in each method.
fn assert_names(recording: &Path, methods: &[&str], answer: &ProgramOutput) {
    let recorded = Recorded {
        recording: recording.to_owned(),
        answer: answer.clone(),
    };
    let stacks = recorded.stacks();
    for method in methods {
        let samples = stacks.with(method).total();
        assert!(samples > 0, "no sample is in {method}: {}", answer.stderr);
    }
}

/// Makes the folders of a root what they are for; `in_root` runs a command inside, and `$4` is the
/// tool outside.
const ROOT: &str = "mount --make-rprivate /; mount --bind \"$1\" \"$3/dotnet\"
mount --bind \"$2\" \"$3/program\"; mount -t proc proc /proc
mount -t proc proc \"$3/proc\"; mount --rbind /dev \"$3/dev\"
root=$3; PATH=$PATH:/usr/sbin
in_root() { env --chdir=\"$root\" chroot \"$root\" \"$@\"; }\n";
const STARTED: &str =
    "in_root /sidewalk record -o /tmp/out.swk -- /dotnet/dotnet exec /program/shares.dll 2";
const ATTACHED: &str = "in_root /dotnet/dotnet exec /program/shares.dll 20000 & program=$!
until in_root /sidewalk list | grep -q shares.dll; do kill -0 $program; done
in_root /sidewalk record --pid shares -d 1s -o /tmp/out.swk; kill $program";
/// A container, seen from the host.
const OUTSIDE: &str = "unshare --mount env --chdir=\"$root\" chroot \"$root\" /dotnet/dotnet exec /program/shares.dll 20000 &
program=$!
until \"$4\" list | grep -q shares.dll; do kill -0 $program; done
\"$4\" record --pid shares -d 1s -o \"$root/tmp/out.swk\"; kill $program";

/// The same file runs where only musl, .NET and its libraries are, and needs no glibc here.
fn the_static_tool_needs_only_musl(runtime: &Runtime, how: &str, script: &str) {
    let root = test_folder(&format!("{how}-alone-{}", runtime.name));
    for folder in ["lib", "usr/lib", "dotnet", "program", "proc", "tmp", "dev"] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
    }
    let copy = |from: &Path, to: &str| {
        let copied = std::fs::copy(from, root.join(to).join(from.file_name().unwrap()));
        copied.unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    };
    copy(Path::new("/lib/ld-musl-x86_64.so.1"), "lib");
    let libraries = runtime.libraries.as_deref();
    for entry in std::fs::read_dir(libraries.unwrap_or(Path::new("/usr/lib"))).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains(".so") {
            copy(&path, "usr/lib");
        }
    }
    copy(&testkit::sidewalk(), "");
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--mount", "--pid", "--fork"])
        .args(["sh", "-euc", &format!("{ROOT}{script}"), "sh"])
        .arg(runtime.dotnet.parent().unwrap())
        .arg(workload("shares").dll.parent().unwrap())
        .arg(&root)
        .arg(testkit::sidewalk())
        .env_clear()
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
        .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1");
    let answer = testkit::output_in_time(&mut command);
    let recorded = Recorded::new(root.join("tmp/out.swk"), answer);
    let answer = &recorded.answer;
    assert!(answer.status.success(), "{}", answer.stderr);
    let methods = ["Workloads.Shares.BurnHalf", "Workloads.Shares.Rounds"];
    assert_names(&recorded.recording, &methods, answer);
}

/// A shell on glibc starts one program on each C library: they inherit the same environment.
fn programs_on_both_libraries_are_recorded(runtime: &Runtime) {
    let on_glibc = Runtime::net8().command(&workload("shares").dll);
    let mut all = [
        "sh",
        "-c",
        "\"$1\" \"$2\" \"$3\" \"$4\" \"$5\" 1 && shift 5 && \"$@\"",
        "sh",
    ]
    .map(OsString::from)
    .to_vec();
    all.push(on_glibc.get_program().to_owned());
    all.extend(on_glibc.get_args().map(OsString::from));
    all.extend(words(runtime, &program(runtime, "shares", &["1"])));
    let recorded = record(&format!("both-{}", runtime.name), &[], &all);
    recorded.answer.assert_complete();
    let inspected = recorded.inspect();
    let processes = inspected.json["processes"].as_array().unwrap();
    let sampled = |process: &&Value| process["samples"].as_u64() > Some(0);
    assert_eq!(
        processes.iter().filter(sampled).count(),
        2,
        "{}{processes:?}",
        recorded.answer.stderr
    );
}

fn an_attach_comes_and_goes(runtime: &Runtime) {
    let running = Running::start(program(runtime, "waits", &[]));
    let pid = running.pid().to_string();
    for round in ["first", "second"] {
        let file = test_folder(&format!("{round}-{}", runtime.name)).join("recording.swk");
        let mut command = Command::new(testkit::sidewalk());
        command.args(["record", "--pid", &pid, "--event", "wall", "-d", "1s"]);
        command.arg("--output").arg(&file);
        let recorded = Recorded::new(file, testkit::output_in_time(&mut command));
        let answer = &recorded.answer;
        assert!(answer.status.success(), "{}", answer.stderr);
        assert_names(&recorded.recording, &["Workloads.Waits.Main"], answer);
    }
    running.end_well();
}
