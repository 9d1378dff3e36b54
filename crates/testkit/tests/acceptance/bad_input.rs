//! Error messages of the tool for invalid input: each states the cause and what to do.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use testkit::{Recorded, Recorder, Runtime, sidewalk, test_folder};

fn run(arguments: &[&str]) -> Output {
    Command::new(sidewalk()).args(arguments).output().unwrap()
}

/// Asserts the exit code, and that the message on stderr contains `words`.
fn assert_answer(output: &Output, code: i32, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    for word in words {
        assert!(message.contains(word), "no `{word}` in: {message}");
    }
    assert!(!message.contains("panicked"), "{message}");
}

fn small_recording() -> Recorded {
    Recorder::workload(&Runtime::net8(), "shares", &["1"])
        .frequency(499)
        .run_complete()
}

#[test]
fn wrong_usage_is_2() {
    for arguments in [
        &[][..],
        &["record"],
        &["record", "--frequency", "0", "--", "true"],
        &["record", "--frequency", "10001", "--", "true"],
        &["record", "--event", "coffee", "--", "true"],
        &["record", "--output", "x.gif", "--", "true"],
        &["report"],
        &["sing"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?} says nothing");
    }
}

#[test]
fn a_command_that_is_not_dotnet() {
    let folder = test_folder("not-dotnet");
    let out = folder.join("out.html");
    let output = run(&["record", "-o", out.to_str().unwrap(), "--", "echo", "hello"]);
    assert_answer(&output, 1, &[".NET"]);
    assert_eq!(output.stdout, b"hello\n");
}

#[test]
fn a_command_that_is_not_there() {
    let folder = test_folder("no-command");
    let out = folder.join("out.html");
    let output = run(&[
        "record",
        "-o",
        out.to_str().unwrap(),
        "--",
        "/no/such/program",
    ]);
    assert_answer(&output, 1, &["/no/such/program"]);
}

#[test]
fn a_missing_agent() {
    let folder = test_folder("no-agent");
    let out = folder.join("out.html");
    let output = Command::new(sidewalk())
        .args([
            "record",
            "-o",
            out.to_str().unwrap(),
            "--",
            "echo",
            "started",
        ])
        .env("SIDEWALK_AGENT", "/no/such/libsidewalk.so")
        .output()
        .unwrap();
    assert_answer(&output, 1, &["/no/such/libsidewalk.so"]);
    assert!(output.stdout.is_empty(), "the command was started");
}

#[test]
fn an_output_that_cannot_be_written() {
    let output = run(&[
        "record",
        "-o",
        "/no/such/folder/out.html",
        "--",
        "echo",
        "started",
    ]);
    assert_answer(&output, 1, &["/no/such/folder"]);
    assert!(output.stdout.is_empty(), "the command was started");
}

#[test]
fn a_missing_recording() {
    let file = "/no/such/file.swk";
    for arguments in [
        &["report", file][..],
        &["inspect", file],
        &["convert", file, "-o", "x.html"],
    ] {
        assert_answer(&run(arguments), 1, &[file]);
    }
}

#[test]
fn something_that_is_no_recording() {
    let folder = test_folder("no-recording");
    for (name, bytes) in [
        ("empty.swk", &b""[..]),
        ("text.swk", b"#!/bin/sh\n"),
        ("zero.swk", &[0; 4096]),
    ] {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        assert_answer(&run(&["report", path.to_str().unwrap()]), 1, &[name]);
    }
}

#[test]
fn a_truncated_recording_opens_up_to_there() {
    let recorded = small_recording();
    let whole = fs::read(&recorded.recording).unwrap();
    let all = recorded.inspect().number("samples");
    let path = recorded.recording.with_file_name("cut.swk");
    let mut last = 0.0;
    for tenth in 1..10 {
        fs::write(&path, &whole[..whole.len() * tenth / 10]).unwrap();
        let Some(samples) = opened(&path) else {
            continue;
        };
        assert!(
            samples >= last && samples <= all,
            "{tenth}/10: {samples} of {all}"
        );
        last = samples;
    }
    assert!(last > 0.0, "no cut recording had a sample");
}

/// Number of samples of a damaged recording; `None` if `sidewalk` says that it
/// cannot be read. Anything else fails.
fn opened(path: &Path) -> Option<f64> {
    let output = run(&["inspect", "--json", path.to_str().unwrap()]);
    let message = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => {
            let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            Some(json["samples"].as_f64().unwrap())
        }
        Some(1) => {
            assert!(
                message.contains(path.file_name().unwrap().to_str().unwrap()),
                "{message}"
            );
            None
        }
        other => panic!("{other:?} for a damaged recording: {message}"),
    }
}

#[test]
fn a_damaged_recording_is_read_or_refused() {
    let recorded = small_recording();
    let whole = fs::read(&recorded.recording).unwrap();
    let path = recorded.recording.with_file_name("damaged.swk");
    // A fixed sequence: the same damage in every run.
    let mut state = 1u64;
    let mut next = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut read = 0;
    for _ in 0..100 {
        let mut bytes = whole.clone();
        for _ in 0..=next(8) {
            let at = next(bytes.len());
            bytes[at] ^= 1 << next(8);
        }
        fs::write(&path, &bytes).unwrap();
        read += usize::from(opened(&path).is_some());
    }
    println!("{read} of 100 damaged recordings were read in part");
}
