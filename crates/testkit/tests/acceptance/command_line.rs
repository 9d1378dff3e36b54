//! `sidewalk record` changes nothing for the program that it starts.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use testkit::chance::deviation_of_count;

use crate::attach::send;
use testkit::{Inspected, Machine, Recorded, Recorder, Runtime, only_child, sidewalk, workload};

use crate::stress::wait_for_a_sample;

on_net8_and_core31!(a_launcher_below_record_may_set_the_main_profiler);

/// The words of `dotnet exec … WORKLOAD.dll ARGUMENT`.
fn words(name: &str, argument: &str) -> Vec<String> {
    let mut command = Command::new("unused");
    Runtime::net8().add_to(&mut command, &workload(name).dll);
    let mut words: Vec<String> = command
        .get_args()
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    words.push(argument.to_owned());
    words
}

/// A shell script with a workload's command line as its arguments.
fn script(name: &str, script: &str, workload: &str, argument: &str) -> Recorder {
    let mut command: Vec<String> = ["sh", "-c", script, "sh"].map(str::to_owned).to_vec();
    command.extend(words(workload, argument));
    Recorder::command(name, command).environment("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
}

#[test]
fn the_exit_code_is_the_programs() {
    let recorded = script("exit", "\"$@\"; exit 7", "shares", "0.5").run();
    assert_eq!(
        recorded.answer.status.code(),
        Some(7),
        "{:?}",
        recorded.answer
    );
    assert!(recorded.inspect().number("samples") > 0.0);
}

#[test]
fn a_killed_program_leaves_a_recording() {
    let program = Recorder::workload(&Runtime::net8(), "shares", &["60"]);
    let (recorded, ()) = program.run_beside(|recording, tool| {
        wait_for_a_sample(recording, tool);
        let program = only_child(tool.id()).expect("it runs for a minute");
        send("-KILL", program);
    });
    let status = recorded.answer.status;
    assert_eq!(status.signal(), Some(9), "{:?}", recorded.answer);
    // Blocks that were written before are kept.
    assert!(recorded.inspect().number("samples") > 0.0);
}

#[test]
fn stdin_and_stdout_are_the_programs() {
    let (mut command, recording) = script("pipes", "cat; \"$@\"", "shares", "0.5").prepare();
    let machine = Machine::exclusive();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"through and through\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    drop(machine);
    let recorded = Recorded::new(recording, output);
    recorded.answer.assert_complete();
    // Outputs were asked for: stdout is the program's alone.
    assert!(
        recorded
            .answer
            .stdout
            .starts_with("through and through\nshare "),
        "{:?}",
        recorded.answer
    );
    let last = recorded.answer.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("measured "), "{:?}", recorded.answer);
}

#[test]
fn a_browser_opens_what_was_recorded() {
    let record = script("open", "\"$@\"", "shares", "0.5").options(["--open"]);
    let folder = testkit::test_folder("browser");
    let (reported, browser) = (folder.join("told"), folder.join("browser"));
    let made = Command::new("mkfifo").arg(&reported).status().unwrap();
    assert!(made.success());
    let text = format!(
        "#!/bin/sh\necho \"$1\" > '{}'\n",
        reported.to_str().unwrap()
    );
    std::fs::write(&browser, text).unwrap();
    std::fs::set_permissions(&browser, std::fs::Permissions::from_mode(0o755)).unwrap();
    let recorded = record
        .environment("DISPLAY", ":9")
        .environment("BROWSER", browser.to_str().unwrap())
        .environment("TMPDIR", folder.to_str().unwrap())
        .run();
    recorded.answer.assert_complete();
    let path = std::fs::read_to_string(&reported).unwrap();
    let page = std::fs::read_to_string(path.trim_end()).unwrap();
    assert!(page.contains("shares.dll"), "{path}");
    let message = &recorded.answer.stderr;
    assert!(
        message.contains(&format!("opened {}", path.trim_end())),
        "{message}"
    );
}

#[test]
fn every_report_ends_with_the_summary() {
    let recorded = script("honest", "\"$@\"", "shares", "0.5").run();
    let report = testkit::run_sidewalk(["report".as_ref(), recorded.recording.as_os_str()]);
    let last: Vec<&str> = report.trim_end().lines().rev().take(2).collect();
    let counts = last.iter().find(|line| line.contains(" samples, "));
    let counts = counts.unwrap_or_else(|| panic!("{report}"));
    for word in [" lost", " broken", "; cost "] {
        assert!(
            counts.contains(word),
            "no `{word}` in the summary: {counts}"
        );
    }
    let columns = |line: &&str| line.chars().count();
    assert!(last.iter().map(columns).max() <= Some(100), "{report}");
}

#[test]
fn children_are_part_of_the_recording() {
    let both = "\"$@\" && \"$@\"";
    let recorded = script("children", both, "shares", "0.7").run();
    assert!(recorded.answer.status.success(), "{:?}", recorded.answer);
    let inspected = recorded.inspect();
    let sampled = |inspected: &Inspected| {
        inspected.json["processes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|p| p["samples"].as_u64().unwrap() > 0)
            .count()
    };
    assert_eq!(sampled(&inspected), 2, "{}", inspected.json);
    let rows = recorded.report(&["--by", "process"])["rows"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(rows, 2);

    let first = script("first", both, "shares", "0.7")
        .options(["--no-children"])
        .run();
    assert!(first.answer.status.success(), "{:?}", first.answer);
    assert_eq!(sampled(&first.inspect()), 1, "{}", first.inspect().json);
}

#[test]
fn duration_ends_the_recording_not_the_program() {
    let recorded = script("duration", "\"$@\"", "shares", "4")
        .options(["--duration", "2s"])
        .run_complete();
    let wall_s = recorded.answer.measured("wall_ms") / 1e3;
    assert!(wall_s >= 4.0, "{wall_s}");
    let inspected = recorded.inspect();
    assert!(
        inspected.number("duration_s") < wall_s,
        "{}",
        inspected.json
    );
    assert!(inspected.number("samples") > 0.0, "{}", inspected.json);
}

#[test]
fn a_recording_is_its_owners_alone() {
    let recorded = script("private", "\"$@\"", "shares", "0.3").run();
    let mode = std::fs::metadata(&recorded.recording)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn another_profiler_is_noticed() {
    let recorded = script("another", "\"$@\"", "shares", "0.3")
        .environment("CORECLR_ENABLE_PROFILING", "1")
        .environment("CORECLR_PROFILER", "{AF0CC8C4-F6DB-4F95-BF8A-C3BF1B1A4A80}")
        .run();
    let message = &recorded.answer.stderr;
    assert!(
        message.contains("asks for the profiler {AF0CC8C4-F6DB-4F95-BF8A-C3BF1B1A4A80}")
            && message.contains("recorded beside it"),
        "{message}"
    );
    assert!(recorded.inspect().number("samples") > 0.0);
}

/// An agent's own launcher: it replaces the main profiler after `record` has set it.
fn a_launcher_below_record_may_set_the_main_profiler(runtime: &Runtime) {
    const OTHER: &str = "{DB64E7B8-0E80-4F2E-9E87-6B0C2FB6DA21}";
    let log = testkit::test_folder("launcher").join("log");
    let launcher = format!(
        "CORECLR_ENABLE_PROFILING=1 CORECLR_PROFILER={OTHER} CORECLR_PROFILER_PATH={} exec \"$@\"",
        testkit::v2_agent().display()
    );
    let recorded = Recorder::workload(runtime, "shares", &["0.5"])
        .under(["sh", "-c", &launcher, "launcher"])
        .environment("V2_AGENT_LOG", log.to_str().unwrap())
        .run();
    assert_eq!(
        recorded.answer.lines("share").len(),
        4,
        "{:?}",
        recorded.answer
    );
    let log = std::fs::read_to_string(log).unwrap();
    assert!(
        log.contains("initialized"),
        "the other one was not there: {log}"
    );
    if runtime.is_core31() {
        let message = &recorded.answer.stderr;
        assert_eq!(recorded.answer.status.code(), Some(1), "{message}");
        assert!(
            message.contains("nothing was recorded: 1 .NET process was not recorded: ")
                && message.contains("shares.dll")
                && message.contains(&format!("CORECLR_PROFILER={OTHER}"))
                && message.contains("supports only one"),
            "{message}"
        );
        return;
    }
    recorded.answer.assert_complete();
    let inspected = recorded.inspect();
    // Once: one agent, which is beside the other profiler.
    for each in ["processes", "runtimes"] {
        let found = inspected.json[each].as_array().unwrap();
        assert_eq!(found.len(), 1, "{}", inspected.json);
    }
    inspected.assert_honest(crate::broken_limit(runtime), crate::LOST_LIMIT);
}

#[test]
fn without_output_a_table_and_a_file_are_left() {
    let folder = testkit::test_folder("default-output");
    let machine = Machine::exclusive();
    let output = Command::new(sidewalk())
        .args(["record", "--"])
        .args(words("shares", "1"))
        .current_dir(&folder)
        .output()
        .unwrap();
    drop(machine);
    assert!(output.status.success(), "{output:?}");
    // Stdout is the program's.
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(!stdout.contains(" samples, "), "{stdout}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let is_whole = stderr.contains("Workloads.Shares.BurnHalf") && stderr.contains(" samples, ");
    assert!(is_whole, "{stderr}");
    let files: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(
        files[0].starts_with("sidewalk-") && files[0].ends_with(".swk"),
        "{files:?}"
    );
}

#[test]
fn wall_samples_show_who_waits() {
    let recorded = Recorder::workload(&Runtime::net8(), "sleepy", &["3"])
        .options(["--event", "wall", "--frequency", "99"])
        .run_complete();
    let stacks = recorded.stacks();
    let mut counts = Vec::new();
    for line in recorded
        .answer
        .lines("waits")
        .iter()
        .chain(&recorded.answer.lines("burns"))
    {
        counts.push(stacks.with(line[1]).total());
    }
    // Each of the four threads is there all the time, waiting or not.
    let most = counts.iter().copied().max().unwrap_or_default();
    let least = counts.iter().copied().min().unwrap_or_default();
    let (most, least) = (most as f64 * 99.0 / 1e9, least as f64 * 99.0 / 1e9);
    assert!(
        least > 0.0 && most - least <= deviation_of_count(most),
        "samples of the threads: {counts:?}\n{}",
        stacks.show(8)
    );
}

#[test]
fn the_program_dies_of_its_own_signal() {
    let recorded = script("segv", "kill -SEGV $$", "shares", "0.1").run();
    let status = recorded.answer.status;
    assert_eq!(status.signal(), Some(11), "{:?}", recorded.answer);
}
