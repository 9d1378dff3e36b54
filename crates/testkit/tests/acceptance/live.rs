//! The live heap: what a program keeps is found, with its age and by what it grows, and what it
//! drops is not.

use std::fs;

use serde_json::Value;
use testkit::chance::deviation_of_count;
use testkit::{Recorded, Recorder, Runtime, Stacks, logical_stacks, test_folder};

use crate::attach::{ends_well, has_left, record, recording_in, running, send, start, until};
use crate::{LOST_LIMIT, broken_limit, records};

on_each_runtime!(what_is_kept_and_what_is_dropped, of_a_program_that_runs);

/// The message about the feature that .NET Core 3.1 lacks.
const NONE: &str = "no live samples of .NET 3.1.23: it has no weak handles";

/// Returns the live heap in the report.
fn live(recorded: &Recorded) -> Value {
    let report = recorded.report(&["--event", "live", "--top", "100000"]);
    let live = report["live"].clone();
    println!("{live}");
    // The table of samples counts the same objects.
    let sum = |rows: &Value, key: &str| -> u64 {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row[key].as_u64().unwrap()).sum()
    };
    assert_eq!(sum(&report["rows"], "self"), sum(&live["types"], "bytes"));
    assert_eq!(
        sum(&report["rows"], "self_samples"),
        sum(&live["types"], "samples")
    );
    live
}

fn of_type<'a>(live: &'a Value, name: &str) -> Option<&'a Value> {
    let name = name.replace('+', ".");
    let mut types = live["types"].as_array().unwrap().iter();
    types.find(|row| row["name"] == name.as_str())
}

fn number(row: &Value, key: &str) -> f64 {
    row[key]
        .as_f64()
        .unwrap_or_else(|| panic!("no {key} in {row}"))
}

/// Returns a number of the row of a type, or 0 if no object of it is alive.
fn number_of(live: &Value, name: &str, key: &str) -> f64 {
    of_type(live, name).map_or(0.0, |row| number(row, key))
}

fn bytes(live: &Value, name: &str) -> f64 {
    number_of(live, name, "bytes")
}

fn what_is_kept_and_what_is_dropped(runtime: &Runtime) {
    let options = [
        "-e",
        "live",
        "--alloc-interval",
        "100k",
        "--live-interval",
        "1s",
    ];
    let seconds = if runtime.is_core31() { "1" } else { "5" };
    let recorded = Recorder::workload(runtime, "leak", &[seconds, "rate=24"])
        .options(options)
        .run_complete();
    println!("{}", recorded.answer.stdout);
    if runtime.is_core31() {
        let notes = recorded.inspect().json["notes"].to_string();
        assert!(notes.contains(NONE), "{notes}");
        assert!(
            recorded.answer.stderr.contains(NONE),
            "{}",
            recorded.answer.stderr
        );
        return;
    }
    let live = live(&recorded);
    let kept = recorded.answer.lines("kept");
    assert_eq!(kept.len(), 4);
    for words in kept {
        let (counted, row) = (words[1].parse::<f64>().unwrap(), of_type(&live, words[0]));
        let row = row.unwrap_or_else(|| panic!("no {} in {live}", words[0]));
        let error = (number(row, "bytes") - counted).abs() / counted;
        let samples = number(row, "samples");
        let limit = 0.05 + deviation_of_count(samples) / samples;
        println!("{}: off by {error:.3} of at most {limit:.3}", words[0]);
        assert!(error < limit, "{} is off by {error:.3}", words[0]);
        let objects = number(row, "objects");
        assert!((0.99..1.01).contains(&(number(row, "bytes") / objects / size_of(words[0]))));
    }
    for words in recorded.answer.lines("dropped") {
        let dropped: f64 = words[1].parse().unwrap();
        let found = bytes(&live, words[0]);
        assert!(
            found <= dropped / 100.0,
            "{}: {found} of {dropped}",
            words[0]
        );
    }
    // Age and growth: objects kept from the start are as old as the recording and do not grow.
    let early = of_type(&live, "Workloads.Leak+Early").unwrap();
    let kept = of_type(&live, "Workloads.Leak+Kept").unwrap();
    let collections = recorded.answer.measured("collections");
    assert!(
        number(early, "median_collections") >= collections,
        "{early}"
    );
    assert!(number(early, "median_age_s") > 1.4 * number(kept, "median_age_s"));
    assert!(number(kept, "most_collections") > 1.4 * number(kept, "median_collections"));
    assert_eq!(early["first_bytes"], early["last_bytes"]);
    assert!(number(kept, "last_bytes") > 2.0 * number(kept, "first_bytes"));
    let instants = live["processes"][0]["instants"].as_array().unwrap();
    assert!(instants.len() >= 4, "{instants:?}");
    // Stacks, also of who awaits.
    let file = recorded.convert_event("live", "live.collapsed");
    let stacks = Stacks::from_collapsed(&fs::read_to_string(file).unwrap());
    let by_keep = stacks.with("Workloads.Leak.Keep").total() as f64;
    assert_eq!(by_keep, number(kept, "bytes"));
    let awaited = logical_stacks(&recorded.recording, "live");
    let later = awaited.with("Workloads.Leak.KeepByTask").total() as f64;
    assert!(
        later > 0.9 * bytes(&live, "Workloads.Leak+KeptLater"),
        "{later}"
    );
    recorded
        .inspect()
        .assert_honest(broken_limit(runtime), LOST_LIMIT);
    // It implies no other allocation.
    assert!(recorded.inspect().event("alloc").is_none());
}

fn size_of(kept: &str) -> f64 {
    if kept == "System.Int64[]" {
        160_024.0
    } else {
        64.0
    }
}

/// Twice, so that what the first one leaves behind would be met; allocations beside it.
fn of_a_program_that_runs(runtime: &Runtime) {
    let folder = test_folder("live-attached");
    let program = running(runtime, "leak", &["soon", "rate=24"]);
    if runtime.is_core31() {
        let options = ["-e", "cpu,live", "--duration", "500ms"];
        let recorded = record(program.pid(), &folder, &options);
        assert!(
            recorded.answer.stderr.contains(NONE),
            "{}",
            recorded.answer.stderr
        );
        ends_well(program, "measured");
        return;
    }
    let options = [
        "-e",
        "live,alloc",
        "--alloc-interval",
        "100k",
        "--live-interval",
        "500ms",
        "--duration",
        "2s",
    ];
    for _ in 0..2 {
        let recorded = record(program.pid(), &folder, &options);
        assert!(has_left(&recorded), "{}", recorded.answer.stderr);
        let live = live(&recorded);
        // Allocated before the attach.
        assert_eq!(of_type(&live, "Workloads.Leak+Early"), None);
        let allocated = recorded.report(&["--event", "alloc", "--top", "100000"]);
        let allocated = |name: &str| {
            let name = name.replace('+', ".");
            let mut rows = allocated["rows"].as_array().unwrap().iter();
            let row = rows.find(|row| row["name"] == name.as_str());
            row.map_or(0.0, |row| number(row, "self"))
        };
        for name in ["Workloads.Leak+Kept", "System.Int64[]"] {
            // The same samples, except for those pending at the end.
            let (alive, made) = (bytes(&live, name), allocated(name));
            assert!(
                (0.9..1.01).contains(&(alive / made)),
                "{name}: {alive} of {made}"
            );
        }
        // The amount that waits for a collection, and its time, depend on the machine. Objects that
        // survived several are kept.
        let survived = |name| number_of(&live, name, "most_collections");
        let kept = survived("Workloads.Leak+Kept");
        let dropped = survived("Workloads.Leak+Dropped");
        assert!(kept >= 2.0, "{kept} collections are too few");
        assert!(dropped < kept, "{dropped} of {kept} collections");
        let name = "Workloads.Leak+Dropped";
        let (alive, made) = (bytes(&live, name), allocated(name));
        assert!(alive < made / 2.0, "{name}: {alive} of {made}");
    }
    ends_well(program, "measured");
}

fn instants(folder: &std::path::Path) -> usize {
    let records = records(&recording_in(folder)).unwrap();
    let is_one = |record: &&_| matches!(record, &&recording::Record::Instant { .. });
    records.iter().filter(is_one).count()
}

#[test]
fn a_program_that_is_killed_tells_of_its_last_instant() {
    let runtime = &Runtime::net8();
    let folder = test_folder("live-killed");
    let program = running(runtime, "leak", &["soon", "rate=24"]);
    let options = [
        "-e",
        "live",
        "--alloc-interval",
        "100k",
        "--live-interval",
        "300ms",
    ];
    let tool = start(program.pid(), &folder, &options);
    until("three instants", || instants(&folder) >= 3);
    send("-KILL", program.pid());
    let recorded = Recorded::new(recording_in(&folder), tool.wait_with_output().unwrap());
    let live = live(&recorded);
    assert!(bytes(&live, "Workloads.Leak+Kept") > 0.0);
    assert!(number(&live["types"][0], "oldest_s") > 0.0);
}
