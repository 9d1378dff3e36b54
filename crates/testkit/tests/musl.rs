//! Programs on .NET for musl, recorded from their start and by an attach, by a tool on glibc.
//!
//! A trial exists for each runtime that `cargo xtask test --libc musl` has found, and nowhere else
//! one that would have to be skipped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};
use testkit::{ProgramOutput, Recorded, Running, Runtime, target_dir, test_folder, workload};

/// A program, its arguments, and methods that its profile must name.
type Program = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const PROGRAMS: [Program; 3] = [
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
];

fn main() -> ExitCode {
    let mut trials = Vec::new();
    let runtimes = std::env::var("SIDEWALK_MUSL_RUNTIMES").unwrap_or_else(|_| "[]".to_owned());
    let runtimes: Vec<Runtime> =
        serde_json::from_str(&runtimes).expect("cargo xtask test --libc musl writes it");
    for runtime in runtimes {
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

/// `sidewalk` with the agent that `cargo xtask musl` builds.
fn sidewalk() -> Command {
    let mut command = Command::new(testkit::sidewalk());
    command.env("SIDEWALK_AGENT_MUSL", agent());
    command
}

fn agent() -> PathBuf {
    target_dir().join("musl/libsidewalk-musl.so")
}

/// The command that runs a workload.
fn program(runtime: &Runtime, name: &str, arguments: &[&str]) -> Command {
    let mut command = runtime.command(&workload(name).dll);
    command.args(arguments);
    if let Some(libraries) = std::env::var_os("SIDEWALK_MUSL_LIBRARIES") {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command
}

/// Records a workload from its start.
fn record(runtime: &Runtime, (name, arguments, _): Program, options: &[&str]) -> Recorded {
    let file = test_folder(name).join("recording.swk");
    let like = program(runtime, name, arguments);
    let mut command = sidewalk();
    command.arg("record").args(options).arg("--output");
    command.arg(&file).arg("--");
    let is_libraries = |(key, _): &(&OsStr, Option<&OsStr>)| *key == "LD_LIBRARY_PATH";
    if let Some((key, Some(value))) = like.get_envs().find(is_libraries) {
        // They are the program's alone: the tool is on glibc. `env` is too, so the agent is named.
        let mut word = key.to_owned();
        word.push("=");
        word.push(value);
        command
            .env("SIDEWALK_AGENT", agent())
            .args(["env"])
            .arg(word);
    }
    command.arg(like.get_program()).args(like.get_args());
    for (key, value) in like.get_envs().filter(|pair| !is_libraries(pair)) {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    Recorded::new(file, testkit::output_in_time(&mut command))
}

fn a_program_runs_as_ever_and_is_seen(runtime: &Runtime, of: Program) {
    let (name, arguments, methods) = of;
    let mut bare = program(runtime, name, arguments);
    let bare = Recorded::new(PathBuf::new(), testkit::output_in_time(&mut bare)).answer;
    bare.assert_complete();
    for event in ["cpu", "wall"] {
        let recorded = record(runtime, of, &["--event", event]);
        recorded.answer.assert_complete();
        assert_eq!(recorded.answer.results(), bare.results(), "{event}");
        assert_eq!(recorded.answer.status, bare.status, "{event}");
        assert_names(&recorded.recording, methods, &recorded.answer);
        // musl's code has no tables, nor have the first instructions of a program.
        recorded.inspect().assert_honest(1.0, 1.0);
    }
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

fn an_attach_comes_and_goes(runtime: &Runtime) {
    let running = Running::start(program(runtime, "waits", &[]));
    let pid = running.pid().to_string();
    for round in ["first", "second"] {
        let file = test_folder(round).join("recording.swk");
        let mut command = sidewalk();
        command.args(["record", "--pid", &pid, "--event", "wall", "-d", "1s"]);
        command.arg("--output").arg(&file);
        let recorded = Recorded::new(file, testkit::output_in_time(&mut command));
        let answer = &recorded.answer;
        assert!(answer.status.success(), "{}", answer.stderr);
        assert_names(&recorded.recording, &["Workloads.Waits.Main"], answer);
    }
    running.end_well();
}
