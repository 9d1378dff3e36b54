//! Each output format, read by a third-party program.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use testkit::{Recorded, Recorder, Runtime, Tools, cache_dir, repository, stdout_of, target_dir};

fn recorded() -> Recorded {
    Recorder::workload(&Runtime::net8(), "mixed", &["3"])
        .frequency(997)
        .run_shared()
}

/// Returns the first rows of Go's pprof for an event.
pub(crate) fn pprof(recorded: &Recorded, event: &str, rows: usize, options: &[&str]) -> String {
    stdout_of(
        Command::new(Tools::get().go)
            .args(["tool", "pprof", "-top", "-nodefraction=0"])
            .arg(format!("-nodecount={rows}"))
            .arg(format!("-sample_index={event}"))
            .args(options)
            .arg(recorded.convert("recording.pb.gz"))
            .env("GOCACHE", cache_dir().join("go-build"))
            .env("GOTOOLCHAIN", "local")
            .env("PPROF_TMPDIR", target_dir().join("acceptance")),
    )
}

/// Returns the recording as speedscope's own importer reads it.
fn speedscope(recorded: &Recorded) -> serde_json::Value {
    let tools = Tools::get();
    let text = stdout_of(
        Command::new(tools.node)
            .arg(repository().join("crates/testkit/tests/acceptance/speedscope.js"))
            .arg(tools.speedscope)
            .arg(recorded.convert("recording.speedscope.json")),
    );
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Merges rows by name, as pprof does, largest first. pprof treats equal names as one function.
/// Sidewalk distinguishes the loader's `mmap` from the C library's, and the vDSO's `clock_gettime`
/// from the C library's.
fn one_row_a_name<'r>(rows: impl Iterator<Item = (&'r str, u64)>) -> Vec<(String, u64)> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, value) in rows {
        *sums.entry(name).or_default() += value;
    }
    let mut sums: Vec<_> = sums.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
    sums.sort_by_key(|&(_, value)| Reverse(value));
    sums
}

#[test]
fn functions_of_one_name_in_two_modules_are_one_to_pprof() {
    let rows = [("D", 5), ("mmap", 3), ("munmap", 4), ("mmap", 3)];
    let ours = one_row_a_name(rows.into_iter());
    let expected = [("mmap", 6), ("D", 5), ("munmap", 4)].map(|(n, v)| (n.to_owned(), v));
    assert_eq!(ours, expected);
}

#[test]
fn pprof_finds_the_same_top_10() {
    let recorded = recorded();
    let text = pprof(&recorded, "cpu", 10, &["-unit=ns"]);
    println!("{text}");
    let rows = text
        .lines()
        .skip_while(|l| !l.trim_start().starts_with("flat "))
        .skip(1);
    let theirs: Vec<(String, u64)> = rows
        .map(|row| {
            let words: Vec<&str> = row.split_whitespace().collect();
            let flat = words[0].trim_end_matches("ns").parse();
            (
                words[5..].join(" "),
                flat.unwrap_or_else(|e| panic!("{e}: {row}")),
            )
        })
        .collect();
    let report = recorded.report(&["--top", "1000"]);
    let ours = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["name"].as_str().unwrap(), row["self"].as_u64().unwrap()));
    let ours = one_row_a_name(ours);
    assert_eq!(theirs.len(), 10.min(ours.len()), "{text}");
    // Among equals any order is right, so compare counts, then names by count.
    let counts = |rows: &[(String, u64)]| rows.iter().map(|r| r.1).collect::<Vec<_>>();
    assert_eq!(
        counts(&theirs),
        counts(&ours[..theirs.len()]),
        "{text}\n{ours:?}"
    );
    for row in &theirs {
        assert!(ours.contains(row), "{row:?} is not in our report {ours:?}");
    }
}

#[test]
fn speedscope_imports_it() {
    let recorded = recorded();
    let imported = speedscope(&recorded);
    let profiles = imported["profiles"].as_array().unwrap();
    assert!(!profiles.is_empty(), "{imported}");
    let frames: Vec<&str> = profiles
        .iter()
        .flat_map(|p| p["frames"].as_array().unwrap())
        .filter_map(|f| f.as_str())
        .collect();
    for method in ["Workloads.Mixed.A", "Workloads.Mixed.D"] {
        assert!(frames.contains(&method), "no {method} in {frames:?}");
    }
    let deepest = profiles.iter().filter_map(|p| p["deepest"].as_u64()).max();
    assert!(deepest >= Some(8), "{imported}");
}

#[test]
fn a_flame_graph_tool_takes_the_collapsed_file() {
    let recorded = recorded();
    let file = recorded.convert("recording.collapsed");
    let text = fs::read_to_string(&file).unwrap();
    let mut picture = Vec::new();
    let mut options = inferno::flamegraph::Options::default();
    inferno::flamegraph::from_lines(&mut options, text.lines(), &mut picture).unwrap();
    let picture = String::from_utf8(picture).unwrap();
    assert!(
        picture.contains("Workloads.Mixed.D"),
        "no frame of the program in the picture"
    );
    let samples = recorded.inspect().number("samples");
    assert!(
        picture.contains(&format!("total_samples=\"{samples}\"")),
        "not {samples} samples"
    );
}

#[test]
fn the_firefox_profile_is_whole() {
    let recorded = recorded();
    let file = recorded.convert("recording.firefox.json");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let mut samples = 0;
    let mut names = BTreeSet::new();
    for thread in json["threads"].as_array().unwrap() {
        samples += thread["samples"]["length"].as_u64().unwrap();
        // Every index points into its table.
        let stacks = thread["stackTable"]["length"].as_u64().unwrap();
        for stack in thread["samples"]["stack"].as_array().unwrap() {
            assert!(stack.as_u64().is_none_or(|i| i < stacks), "{stack}");
        }
        for (i, prefix) in thread["stackTable"]["prefix"]
            .as_array()
            .unwrap()
            .iter()
            .enumerate()
        {
            assert!(
                prefix.as_u64().is_none_or(|p| p < i as u64),
                "stack {i} hangs on {prefix}"
            );
        }
        let strings = thread["stringArray"]
            .as_array()
            .or(json["shared"]["stringArray"].as_array());
        for name in strings.unwrap() {
            names.insert(name.as_str().unwrap().to_owned());
        }
    }
    assert_eq!(samples as f64, recorded.inspect().number("samples"));
    assert!(names.contains("Workloads.Mixed.D"), "{names:?}");
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let recorded = recorded();
    let file = recorded.convert("recording.html");
    let text = fs::read_to_string(&file).unwrap();
    for outside in [
        "src=\"http",
        "href=\"http",
        "@import",
        "fetch(",
        "XMLHttpRequest",
    ] {
        assert!(!text.contains(outside), "the page has {outside}");
    }
    // Its script is one that a JavaScript engine accepts.
    let script: String = text
        .split("<script")
        .skip(1)
        .filter_map(|part| part.split_once('>'))
        .filter(|(attributes, _)| {
            !attributes.contains("json") && !attributes.contains("text/plain")
        })
        .filter_map(|(_, rest)| rest.split_once("</script>"))
        .map(|(body, _)| format!("{body}\n"))
        .collect();
    assert!(script.len() > 1000, "no script in the page");
    let path = file.with_extension("js");
    fs::write(&path, script).unwrap();
    stdout_of(Command::new(Tools::get().node).arg("--check").arg(&path));
}

/// Time, exceptions and allocations at once: each output has all that belongs to it.
#[test]
fn each_output_shows_every_event() {
    const TYPE: &str = "Workloads.Exceptions.Expected";
    let recorded = Recorder::workload(&Runtime::net8(), "exceptions", &["2"])
        .options(["-e", "cpu,exception,alloc", "--event-limit", "0"])
        .run_complete();
    let rows = recorded.report(&["--by", "event"]);
    let of = |event: &str| -> (u64, u64) {
        let rows = rows["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == event);
        let row = row.unwrap_or_else(|| panic!("no {event} in {rows:?}"));
        let number = |key: &str| row[key].as_u64().unwrap();
        (number("self_samples"), number("self"))
    };
    let (cpu, exceptions, allocated) = (of("cpu"), of("exception"), of("alloc"));
    assert_eq!(exceptions.0, exceptions.1);
    assert!(cpu.1 > cpu.0 && allocated.1 > allocated.0);

    // The subject of such an event is shown in its report.
    let thrown = recorded.report(&["--event", "exception"]);
    assert_eq!(thrown["by"], "detail");
    assert_eq!(thrown["rows"][0]["name"], TYPE);
    let texts = thrown["rows"][0]["texts"].as_array().unwrap();
    let reported: u64 = texts
        .iter()
        .map(|text| text["samples"].as_u64().unwrap())
        .sum();
    assert_eq!(thrown["rows"][0]["self_samples"], reported);
    let first = texts[0]["text"].as_str().unwrap();
    assert!(
        first.starts_with("expected; caught by Workloads.Exceptions."),
        "{first}"
    );

    // pprof: a type of sample for each event, and the detail as a label that can be the leaf.
    let text = pprof(&recorded, "exception", 1000, &["-tagleaf=detail"]);
    let row = text.lines().find(|line| line.ends_with(TYPE));
    let row = row.unwrap_or_else(|| panic!("no {TYPE} in {text}"));
    assert_eq!(
        row.split_whitespace().next(),
        Some(exceptions.1.to_string().as_str())
    );
    let text = pprof(
        &recorded,
        "alloc_space",
        1000,
        &["-unit=B", "-tagleaf=detail"],
    );
    let total: u64 = text
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("flat "))
        .skip(1)
        .map(|line| {
            let flat = line.split_whitespace().next().unwrap_or_default();
            flat.trim_end_matches('B').parse::<u64>().unwrap_or(0)
        })
        .sum();
    assert_eq!(total, allocated.1, "{text}");

    // Collapsed stacks of the event that is asked for, its type on top.
    let file = recorded.convert_event("exception", "thrown.collapsed");
    let mut sum = 0;
    for line in fs::read_to_string(&file).unwrap().lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        assert!(stack.ends_with(TYPE), "{stack}");
        sum += count.parse::<u64>().unwrap();
    }
    assert_eq!(sum, exceptions.1);

    // Firefox: markers for what happens, a track for what is allocated.
    let file = recorded.convert("recording.firefox.json");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let (mut markers, mut bytes) = (0, 0);
    for thread in json["threads"].as_array().unwrap() {
        let stacks = thread["stackTable"]["length"].as_u64().unwrap();
        for marker in thread["markers"]["data"].as_array().unwrap() {
            markers += 1;
            let stack = marker["cause"]["stack"].as_u64();
            assert!(stack.is_some_and(|stack| stack < stacks), "{marker}");
        }
        if thread["samples"]["weightType"] == "bytes" {
            let weights = thread["samples"]["weight"].as_array().unwrap();
            bytes += weights.iter().map(|w| w.as_u64().unwrap()).sum::<u64>();
        }
    }
    assert_eq!(markers, exceptions.0 + allocated.0);
    assert_eq!(bytes, allocated.1);

    // speedscope: a profile for each event and thread.
    let imported = speedscope(&recorded);
    let weight = |event: &str| -> u64 {
        let profiles = imported["profiles"].as_array().unwrap().iter();
        profiles
            .filter(|p| {
                p["name"]
                    .as_str()
                    .unwrap()
                    .starts_with(&format!("{event}: "))
            })
            .map(|p| p["weight"].as_u64().unwrap())
            .sum()
    };
    for (event, (_, value)) in [
        ("cpu", cpu),
        ("exception", exceptions),
        ("alloc", allocated),
    ] {
        assert_eq!(weight(event), value, "{event}");
    }
}
