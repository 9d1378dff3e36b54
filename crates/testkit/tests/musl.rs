//! Programs on .NET for musl, recorded from their start and by an attach, and one on glibc, all by
//! the one tool that carries the agents.
//!
//! A trial exists for each runtime that `cargo xtask test --libc musl` has found, and nowhere else
//! one that would have to be skipped.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};
use testkit::{Answer, Recorded, Running, Runtime, agent, target_dir, test_folder, workload};

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
    if !trials.is_empty() {
        trials.push(Trial::test("the_same_tool_records_on_glibc", || {
            the_same_tool_records_on_glibc();
            Ok(())
        }));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// `sidewalk` as `cargo xtask musl` builds it. Libraries for musl are the program's alone: the tool
/// needs none, and passes their place on.
fn sidewalk() -> Command {
    let mut command = Command::new(target_dir().join("musl/sidewalk"));
    command.env("SIDEWALK_AGENT", agent());
    command
}

/// The command line that runs a workload, and its environment.
fn words(runtime: &Runtime, name: &str, arguments: &[&str]) -> (Vec<OsString>, Command) {
    let mut command = runtime.command(&workload(name).dll);
    command.args(arguments);
    if let Some(libraries) = std::env::var_os("SIDEWALK_MUSL_LIBRARIES") {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    let mut words = vec![command.get_program().to_owned()];
    words.extend(command.get_args().map(OsString::from));
    (words, command)
}

/// Records a workload from its start.
fn record(runtime: &Runtime, (name, arguments, _): Program, options: &[&str]) -> Recorded {
    let file = test_folder(name).join("recording.swk");
    let (words, like) = words(runtime, name, arguments);
    let mut command = sidewalk();
    for (key, value) in like.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command.arg("record").args(options).arg("--output");
    command.arg(&file).arg("--").args(words);
    Recorded::new(file, testkit::output_in_time(&mut command))
}

fn a_program_runs_as_ever_and_is_seen(runtime: &Runtime, program: Program) {
    let (name, arguments, methods) = program;
    let (_, mut bare) = words(runtime, name, arguments);
    let bare = Recorded::new(PathBuf::new(), testkit::output_in_time(&mut bare)).answer;
    bare.assert_complete();
    for event in ["cpu", "wall"] {
        let recorded = record(runtime, program, &["--event", event]);
        recorded.answer.assert_complete();
        assert_eq!(recorded.answer.results(), bare.results(), "{event}");
        assert_eq!(recorded.answer.status, bare.status, "{event}");
        assert_names(&recorded.recording, methods, &recorded.answer);
    }
}

/// Asserts that some samples are in each method.
fn assert_names(recording: &Path, methods: &[&str], answer: &Answer) {
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
    let (_, command) = words(runtime, "waits", &[]);
    let running = Running::start(command);
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

fn the_same_tool_records_on_glibc() {
    let runtime = Runtime::net8();
    let file = test_folder("glibc").join("recording.swk");
    let mut command = sidewalk();
    command.args(["record", "--output"]).arg(&file).arg("--");
    runtime.add_to(&mut command, &workload("shares").dll);
    command.arg("3");
    let recorded = Recorded::new(file, testkit::output_in_time(&mut command));
    recorded.answer.assert_complete();
    assert_names(
        &recorded.recording,
        &["Workloads.Shares.Rounds"],
        &recorded.answer,
    );
}
