//! Method tracing (`record --trace`): each call is counted, for the runtime and the method that it
//! is of, and timed; the program's results are its own; and what cannot be traced is said.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Child;

use recording::Event;
use serde_json::Value;
use testkit::{Recorded, Recorder, Running, Runtime, test_folder, workload};

use crate::attach::{recording_in, running, send, start, until, until_samples};
use crate::records;
use crate::side_by_side::{SideBySide, both};

on_each_runtime!(
    calls_are_counted_and_timed,
    a_running_program_is_traced_and_traced_again,
    a_program_computes_the_same_with_all_its_methods_traced,
    samples_in_rewritten_code_are_whole,
    methods_that_cannot_be_wrapped_are_named_and_run_as_they_are,
);
on_net8_and_core31!(
    what_is_not_traced_is_said,
    the_slowest_calls_keep_their_stacks,
    each_output_has_the_calls,
);

/// Patterns for all methods of the workload. The first pattern that matches a method applies.
const ALL: [&str; 6] = [
    "--trace",
    "Workloads.Traced.Timed",
    "--trace",
    "Workloads.Traced.Slow:10ms",
    "--trace",
    "Workloads.Traced*.*:1h",
];

/// Calls and errors by method.
pub(crate) type Counts = BTreeMap<String, (u64, u64)>;

pub(crate) fn number(text: &str) -> u64 {
    text.parse().unwrap()
}

/// Returns the counts that the program printed.
pub(crate) fn expected(answer: &str) -> Counts {
    let lines = answer
        .lines()
        .filter_map(|line| line.strip_prefix("traced "));
    let each = lines.map(|line| {
        let [name, calls, errors] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        (name.to_owned(), (number(calls), number(errors)))
    });
    each.collect()
}

pub(crate) fn traced(recorded: &Recorded) -> Vec<Value> {
    let report = recorded.report(&["--by", "detail", "--top", "10000"]);
    report["traced"].as_array().cloned().unwrap_or_default()
}

/// Returns the counts of one runtime, for the methods that the program knows.
pub(crate) fn counted(traced: &[Value], version: &str, expected: &Counts) -> Counts {
    let of = |one: &Value| {
        let name = one["name"].as_str().unwrap().to_owned();
        let is_it = one["runtime"].as_str() == Some(version) && one["refused"].is_null();
        let counts = (one["calls"].as_u64()?, one["errors"].as_u64()?);
        (is_it && expected.contains_key(&name)).then_some((name, counts))
    };
    traced.iter().filter_map(of).collect()
}

/// Returns the durations of the recorded calls of a method, in the order of their ends.
fn kept(recording: &Path, method: &str) -> Vec<u64> {
    let (mut of_method, mut kept) = (Vec::new(), Vec::new());
    for record in records(recording).unwrap() {
        match record {
            recording::Record::Detail { detail, name, .. } if name == method => {
                of_method.push(detail);
            }
            recording::Record::Sample {
                event: Event::TracedCall,
                time_ns,
                value,
                detail: Some(detail),
                ..
            } if of_method.contains(&detail) => kept.push((time_ns, value)),
            _ => {}
        }
    }
    kept.sort_unstable();
    kept.into_iter().map(|(_, value)| value).collect()
}

/// The durations of a method with a stopwatch are those of the stopwatch, to 10 % or 200 ns: never
/// less, and no more but where the thread was taken off its processor between two looks at a clock.
/// The calls are so long that caches which others have emptied, and what an async method does in
/// unoptimised code behind its stopwatch (2.7 % on 11.0.0), cost less than that.
pub(crate) fn assert_timed(recorded: &Recorded, traced: &[Value], answer: &str) {
    let lines = answer
        .lines()
        .filter_map(|line| line.strip_prefix("timed "));
    let timed = lines.map(|line| assert_method_timed(recorded, traced, line));
    assert!(timed.count() > 0, "{answer}");
}

fn assert_method_timed(recorded: &Recorded, traced: &[Value], line: &str) {
    let (name, own) = line.split_once(' ').unwrap();
    let own: Vec<u64> = own.split(' ').map(number).collect();
    let ours = kept(&recorded.recording, name);
    assert_eq!(ours.len(), own.len());
    let is_off = |(ours, own): &(&u64, &u64)| ours.abs_diff(**own) > (**own / 10).max(200);
    let off: Vec<_> = ours.iter().zip(&own).filter(is_off).collect();
    let longest: i64 = ours
        .iter()
        .zip(&own)
        .map(|(ours, own)| ours.cast_signed() - own.cast_signed())
        .sum();
    println!("{} of {} calls, {longest} ns in all", off.len(), own.len());
    assert!(off.len() * 2 <= own.len(), "{off:?}");
    assert!(off.iter().all(|(ours, own)| ours > own), "{off:?}");
    // The table's numbers are those of the calls, to the width of a bucket.
    let found = traced.iter().find(|one| one["name"] == name).unwrap();
    let reported = |key: &str| found[key].as_u64().unwrap();
    let mut sorted = ours.clone();
    sorted.sort_unstable();
    assert_eq!(reported("calls"), sorted.len() as u64);
    assert_eq!(reported("total_ns"), sorted.iter().sum::<u64>());
    assert_eq!(reported("max_ns"), *sorted.last().unwrap());
    for (key, of_thousand) in [("p50_ns", 500), ("p90_ns", 900), ("p99_ns", 990)] {
        let value = sorted[(sorted.len() * of_thousand).div_ceil(1000) - 1];
        let error = reported(key).abs_diff(value);
        assert!(error * 100 <= value, "{key}: {} of {value}", reported(key));
    }
}

/// Short calls, of which no stack is kept, take what their stopwatch says: the middle one to 2 % or
/// 200 ns, nine of ten to twice that. The others meet what else goes on. Where the machine is so
/// slow that six looks at its clock take longer than 200 ns, to those six: between the two
/// stopwatches lie three to five looks, whatever one takes.
fn assert_short_ones_are_timed(traced: &[Value], answer: &str) {
    let sorted = |of: &str| {
        let mut of: Vec<u64> = of.split(' ').map(number).collect();
        of.sort_unstable();
        of
    };
    let line = |begin| answer.lines().find_map(|line| line.strip_prefix(begin));
    let looks = sorted(line("looks ").unwrap());
    let look = looks[looks.len() / 2];
    let (name, own) = line("short ").unwrap().split_once(' ').unwrap();
    let own = sorted(own);
    let found = traced.iter().find(|one| one["name"] == name).unwrap();
    for (key, of_ten, times) in [("p50_ns", 5, 1), ("p90_ns", 9, 2)] {
        let own = own[(own.len() * of_ten).div_ceil(10) - 1];
        let ours = found[key].as_u64().unwrap();
        println!("{name} {key}: {ours} for {own}, a look {look}");
        let most = times * (own / 50).max(200).max(6 * look);
        assert!(
            own >= 1_000 && ours.abs_diff(own) <= most,
            "{key}: {ours} for {own}"
        );
    }
}

fn calls_are_counted_and_timed(runtime: &Runtime) {
    let record = Recorder::workload(runtime, "traced", &["passes=2"]).options(ALL);
    let recorded = record.run_as(&record.run_bare_shared());
    let answer = &recorded.answer.stdout;
    let (traced, expected) = (traced(&recorded), expected(answer));
    assert_eq!(expected.len(), 13, "{answer}");
    assert_eq!(counted(&traced, &runtime.version, &expected), expected);
    assert_timed(&recorded, &traced, answer);
    assert_short_ones_are_timed(&traced, answer);
    // The options of the first pattern that matches apply.
    let min = |name: &str| {
        let found = traced.iter().find(|one| one["name"] == name).unwrap();
        found["min_ns"].as_u64().unwrap()
    };
    assert_eq!(min("Workloads.Traced.Slow"), 10_000_000);
    assert_eq!(min("Workloads.Traced.Node"), 3_600_000_000_000);
}

pub(crate) fn stop(mut tool: Child, folder: &Path) -> (String, Recorded) {
    send("-INT", tool.id());
    let output = {
        let status = tool.wait().unwrap();
        let message = std::io::read_to_string(tool.stderr.take().unwrap()).unwrap();
        std::process::Output {
            status,
            stdout: Vec::new(),
            stderr: message.into_bytes(),
        }
    };
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    (message, Recorded::new(recording_in(folder), output))
}

/// Whether an unfinished recording has calls.
pub(crate) fn has_counted(folder: &Path) -> bool {
    let records = records(&recording_in(folder)).unwrap();
    let is_one = |record| matches!(record, &recording::Record::Calls { .. });
    records.iter().any(is_one)
}

/// Whether a recording that is being made says that methods are traced.
pub(crate) fn has_begun(folder: &Path) -> bool {
    let records = records(&recording_in(folder)).unwrap();
    let is_one = |record| matches!(record, &recording::Record::Traced { .. });
    records.iter().any(is_one)
}

/// Far more than a round leaves behind, and far less than the agent's tables for one.
const MAX_KIB_A_ROUND: u64 = 4096;

/// Returns how often tracing is started and stopped. SIDEWALK_TRACE_ROUNDS changes it.
fn rounds() -> u32 {
    std::env::var("SIDEWALK_TRACE_ROUNDS").map_or(4, |rounds| rounds.parse().unwrap())
}

/// Returns the private memory of a process, KiB: without pages of files.
fn private_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    number(line.unwrap().split_whitespace().nth(1).unwrap())
}

fn a_running_program_is_traced_and_traced_again(runtime: &Runtime) {
    let rounds = rounds();
    let folder = test_folder("traced-again");
    let mut command = runtime.command(&workload("traced").dll);
    command.arg(format!("asked={}", folder.display()));
    let (mut program, ()) = Running::start_when(command, |line| (line == "waits").then_some(()));
    let mut pass = 0;
    let mut passes = |program: &mut Running| {
        pass += 1;
        fs::write(folder.join(format!("go-{pass}")), "").unwrap();
        program.wait_for(&format!("passed {pass}"));
        fs::read_to_string(folder.join(format!("said-{pass}"))).unwrap()
    };
    let mut memory = Vec::new();
    for round in 0..rounds {
        let tool = start(program.pid(), &folder, &ALL);
        until("traced methods", || has_begun(&folder));
        let answer = passes(&mut program);
        let (message, recorded) = stop(tool, &folder);
        // These calls are not counted.
        passes(&mut program);
        assert!(recorded.answer.status.success(), "{message}");
        assert!(message.contains("methods were traced in it"), "{message}");
        let (traced, expected) = (traced(&recorded), expected(&answer));
        let counted = counted(&traced, &runtime.version, &expected);
        assert_eq!(counted, expected, "round {round}");
        assert_timed(&recorded, &traced, &answer);
        assert_short_ones_are_timed(&traced, &answer);
        fs::remove_file(recording_in(&folder)).unwrap();
        memory.push(private_kib(program.pid()));
    }
    // Memory that the runtime never frees is a part of it: docs/tracing.md has what a round comes
    // to.
    println!("KiB after each round: {memory:?}");
    let [first, .., last] = memory[..] else {
        panic!("{rounds} rounds");
    };
    let most = first + u64::from(rounds) * MAX_KIB_A_ROUND;
    assert!(last < most, "KiB after each round: {memory:?}");
    fs::write(folder.join("end"), "").unwrap();
    let (output, status) = program.end();
    assert!(
        status.success() && output.contains("result checksum"),
        "{output}"
    );
}

/// In a running program, whose methods get other code twice while they are sampled.
fn samples_in_rewritten_code_are_whole(runtime: &Runtime) {
    for (name, pattern) in [
        ("calls", "Workloads.Calls.*"),
        ("framework", "System.Text.RegularExpressions.*"),
    ] {
        let program = running(runtime, name, &[]);
        let folder = test_folder(name);
        for _ in 0..3 {
            let options = ["-F", "999", "--engine", "clocks", "--trace", pattern];
            let tool = start(program.pid(), &folder, &options);
            until("traced calls", || has_counted(&folder));
            until_samples(&folder, 300);
            let (message, recorded) = stop(tool, &folder);
            assert!(recorded.answer.status.success(), "{message}");
            let inspected = recorded.inspect();
            inspected.assert_honest(crate::broken_limit(runtime), crate::LOST_LIMIT);
            let unknown = inspected.number("unknown_frames") * 100.0 / inspected.number("frames");
            assert!(unknown <= 0.1, "{unknown} % of frames are unknown");
            fs::remove_file(recording_in(&folder)).unwrap();
        }
        let (output, status) = program.end();
        assert!(status.success(), "{name} {status}: {output}");
    }
}

fn a_program_computes_the_same_with_all_its_methods_traced(runtime: &Runtime) {
    for (name, arguments) in [
        ("manymethods", &["rounds=1"][..]),
        ("calltree", &["depth=12", "rounds=2"]),
        ("exceptions", &["rounds=3"]),
        ("async", &["rounds=2"]),
        ("generic", &["rounds=2"]),
        ("calls", &["rounds=3"]),
    ] {
        let record = Recorder::workload(runtime, name, arguments);
        let bare = record.run_bare_shared();
        let record = record.options(["--trace", "Workloads.*", "--trace-limit", "16384"]);
        let recorded = record.run_as(&bare);
        let traced = traced(&recorded);
        let calls: u64 = traced
            .iter()
            .map(|one| one["calls"].as_u64().unwrap())
            .sum();
        println!("{name}: {} methods, {calls} calls", traced.len());
        assert!(traced.len() > 10 && calls > 10, "{name}");
    }
}

/// Rule 29: code of two runtimes counts for its own, though their methods have one name.
#[test]
fn rule_29_no_call_counts_for_another_runtime() {
    let (first, second) = both();
    let programs = [
        (&first, "traced", "passes=1"),
        (&second, "traced", "passes=3"),
    ];
    let side = SideBySide::new("traced-sxs", &[], &programs, true);
    for _ in 0..crate::side_by_side::runs() {
        let (recorded, answers) = side.recorded(&ALL);
        let traced = traced(&recorded);
        for ((runtime, ..), answer) in programs.iter().zip(&answers) {
            let expected = expected(&answer.stdout);
            assert_eq!(expected.len(), 13);
            let counted = counted(&traced, &runtime.version, &expected);
            assert_eq!(counted, expected, "{}", runtime.version);
        }
    }
}

/// An assembly with `tail.` and `jmp` where it has room for them.
fn with_tail_and_jump(dll: &[u8]) -> Vec<u8> {
    const RET: u8 = 0x2a;
    let at = |before: &[u8]| {
        let token = before.len() + 3;
        let found = dll.windows(token + 2).enumerate().filter(|(_, code)| {
            // A call of a method of this assembly, and then the return.
            code.starts_with(before) && code[token..] == [0x06, RET]
        });
        let found: Vec<usize> = found.map(|(at, _)| at).collect();
        assert_eq!(found.len(), 1, "{before:x?}");
        found[0]
    };
    // conv.i8; conv.i4; call; ret
    let tail = at(&[0x6a, 0x69, 0x28]);
    // ldarg.0; call; ret, and the tiny header of a method of these 7 bytes.
    let jump = at(&[7 << 2 | 2, 0x02, 0x28]);
    let mut dll = dll.to_vec();
    dll[tail..tail + 2].copy_from_slice(&[0xfe, 0x14]);
    // jmp has its token at once; the call's, a byte later, moves up, and leaves a nop.
    dll.copy_within(jump + 3..jump + 7, jump + 2);
    (dll[jump + 1], dll[jump + 6]) = (0x27, 0x00);
    dll
}

fn methods_that_cannot_be_wrapped_are_named_and_run_as_they_are(runtime: &Runtime) {
    let own = workload("traced").dll;
    let folder = test_folder(&format!("tail-and-jump-{}", runtime.version));
    let dll = folder.join("traced.dll");
    fs::write(&dll, with_tail_and_jump(&fs::read(&own).unwrap())).unwrap();
    let settings = "traced.runtimeconfig.json";
    fs::copy(own.with_file_name(settings), folder.join(settings)).unwrap();
    // So deep that there is no stack for it without tail calls.
    let record = Recorder::program(runtime, "unwrapped", &dll, &["unwrapped=10000000"]);
    let bare = record.run_bare_shared();
    let record = record.options(["--trace", "Workloads.Unwrapped.*:1h"]);
    let recorded = record.run_as(&bare);
    let reported: BTreeMap<String, String> = traced(&recorded)
        .iter()
        .map(|one| {
            let what = one["refused"].as_str().map_or_else(
                || one["calls"].to_string(),
                |why| why.rsplit(['(', ')']).nth(1).unwrap_or(why).to_owned(),
            );
            let name = one["name"].as_str().unwrap();
            (name.replace("Workloads.Unwrapped.", ""), what)
        })
        .collect();
    let expected = [
        ("Any", "vararg"),
        ("Jump", "jmp"),
        ("Landing", "1"),
        ("Print", "1"),
        ("Tail", "tail."),
    ];
    let expected = expected.map(|(name, what)| (name.to_owned(), what.to_owned()));
    assert_eq!(reported, BTreeMap::from(expected));
    let answer = recorded.answer.results();
    let answer = answer.iter().find(|words| words[0] == "unwrapped").unwrap();
    assert_eq!(answer[1..], ["-2004260032", "30000000"]);
}

fn what_is_not_traced_is_said(runtime: &Runtime) {
    let record = Recorder::workload(runtime, "traced", &[]);
    let recorded = record
        .options([
            "--trace",
            "System.String.Concat",
            "--trace",
            "Workloads.Clock.ClockGetTime",
            "--trace",
            "Workloads.Nothing.*",
            "--trace",
            "/^Workloads\\.Traced\\.(Node|Inner|Small)$/",
            "--trace",
            "Workloads.Traced.*",
            "--trace-limit",
            "2",
        ])
        .run();
    let traced = traced(&recorded);
    let refused = |name: &str| -> Vec<&str> {
        let of = traced.iter().filter(|one| one["name"] == name);
        of.filter_map(|one| one["refused"].as_str()).collect()
    };
    let concat = refused("System.String.Concat");
    assert!(
        concat.len() > 3
            && concat
                .iter()
                .all(|why| why.contains("System.Private.CoreLib")),
        "{concat:?}"
    );
    let native = refused("Workloads.Clock.ClockGetTime");
    assert!(
        native.len() == 1 && native[0].contains("no IL"),
        "{native:?}"
    );
    let counted = traced.iter().filter(|one| one["refused"].is_null());
    assert_eq!(counted.count(), 2);
    let inspected = recorded.inspect();
    let notes = inspected.json["notes"].to_string();
    for says in [
        "--trace Workloads.Nothing.*: no method of this name",
        "methods of --trace were not traced: 2 come first, and --trace-limit is 2",
    ] {
        assert!(notes.contains(says), "{notes}");
    }
}

fn the_slowest_calls_keep_their_stacks(runtime: &Runtime) {
    let options = ["--trace", "Workloads.Traced.Slow:10ms"];
    let recorded = Recorder::workload(runtime, "traced", &[])
        .options(options)
        .run_shared();
    let stacks = recorded.convert_event("traced-call", "slow.collapsed");
    let stacks = fs::read_to_string(stacks).unwrap();
    let report = recorded.report(&["--event", "traced-call"]);
    assert_eq!(report["samples"], 3, "{report}");
    let row = &report["rows"][0];
    assert_eq!(row["name"], "Workloads.Traced.Slow");
    let took = row["self"].as_u64().unwrap();
    // Three calls that sleep 30 ms each, within the program's time.
    let wall_ns = recorded.answer.measured("wall_ms") * 1e6;
    assert!(took >= 90_000_000 && took as f64 <= wall_ns, "{took} ns");
    let texts = row["texts"].to_string();
    assert!(
        texts.contains("ended by an exception") && texts.contains("returned"),
        "{texts}"
    );
    let caller = "Workloads.Traced.CallsSlow;Workloads.Traced.Slow";
    assert!(
        stacks.lines().all(|line| line.contains(caller)) && !stacks.is_empty(),
        "{stacks}"
    );
}

fn each_output_has_the_calls(runtime: &Runtime) {
    let options = ["--trace", "Workloads.Traced.Slow:10ms"];
    let recorded = Recorder::workload(runtime, "traced", &[])
        .options(options)
        .run_shared();
    let took = kept(&recorded.recording, "Workloads.Traced.Slow");
    assert_eq!(took.len(), 3);
    let sum: u64 = took.iter().sum();

    // JSON: each call is in one power of two.
    let traced = traced(&recorded);
    let slow = &traced[0];
    let spread = slow["spread"].as_array().unwrap();
    let calls = |cell: &Value| cell[1].as_u64().unwrap();
    assert_eq!(spread.iter().map(calls).sum::<u64>(), 12, "{slow}");
    let long = spread
        .iter()
        .filter(|cell| cell[0].as_u64().unwrap() > 10_000_000);
    assert_eq!(long.map(calls).sum::<u64>(), 3, "{slow}");

    // Text: bars in the strip; one may be of several powers of two.
    let arguments = ["report".as_ref(), recorded.recording.as_os_str()];
    let text = testkit::run_sidewalk(arguments);
    let row = text
        .lines()
        .find(|line| line.ends_with("Workloads.Traced.Slow") && line.contains('█'));
    let row = row.unwrap_or_else(|| panic!("{text}"));
    let bars = row
        .chars()
        .filter(|c| ('\u{2581}'..='\u{2588}').contains(c));
    assert!((2..=spread.len()).contains(&bars.count()), "{text}");

    // Firefox: a marker from the begin of each to its end.
    let file = recorded.convert_event("cpu", "recording.firefox.json");
    let json: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let mut marked = Vec::new();
    for thread in json["threads"].as_array().unwrap() {
        let markers = &thread["markers"];
        for (at, data) in markers["data"].as_array().unwrap().iter().enumerate() {
            if data.to_string().contains("Traced.Slow") || !data["cause"].is_null() {
                let time = |key: &str| markers[key][at].as_f64().unwrap();
                marked.push(((time("endTime") - time("startTime")) * 1e6).round() as u64);
            }
        }
    }
    marked.sort_unstable();
    let mut sorted = took.clone();
    sorted.sort_unstable();
    assert_eq!(marked.len(), 3, "{marked:?}");
    for (marked, took) in marked.iter().zip(&sorted) {
        assert!(marked.abs_diff(*took) < 1_000, "{marked} of {took}");
    }

    // pprof: a type of samples, in nanoseconds.
    let top = crate::outputs::pprof(&recorded, "traced-call", 10, &["-unit=ns"]);
    let row = top
        .lines()
        .find(|line| line.ends_with(" Workloads.Traced.Slow"));
    // Above it may be what stands between a method and a probe.
    let with_callees = row.and_then(|row| row.split_whitespace().nth(3));
    assert_eq!(with_callees, Some(format!("{sum}ns").as_str()), "{top}");

    // The page: the strip's cells are in it.
    let page = fs::read_to_string(recorded.convert("recording.html")).unwrap();
    assert!(page.contains("id=\"traced\"") && page.contains("function fillTraced"));
}
