//! Checks of the sources against the invariants of ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testkit::repository;

/// Returns, for each package, the names of the packages that it links (normal dependencies only).
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--filter-platform"])
        .arg("x86_64-unknown-linux-gnu")
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names: BTreeMap<String, String> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| (text(&package["id"]), text(&package["name"])))
        .collect();
    let procedural: BTreeSet<String> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|package| package["targets"][0]["kind"][0] == "proc-macro")
        .map(|package| text(&package["name"]))
        .collect();
    metadata["resolve"]["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| {
            let linked = node["deps"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|dep| {
                    dep["dep_kinds"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .any(|k| k["kind"].is_null())
                })
                .map(|dep| names[&text(&dep["pkg"])].clone())
                .filter(|name| !procedural.contains(name))
                .collect();
            (names[&text(&node["id"])].clone(), linked)
        })
        .collect()
}

/// Everything that `package` links, without itself.
fn tree(all: &BTreeMap<String, BTreeSet<String>>, package: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut next = vec![package.to_owned()];
    while let Some(name) = next.pop() {
        for dependency in &all[&name] {
            if seen.insert(dependency.clone()) {
                next.push(dependency.clone());
            }
        }
    }
    seen
}

#[test]
fn the_agent_stays_small() {
    let tree = tree(&dependencies(), "libsidewalk");
    for forbidden in [
        "clap",
        "serde_json",
        "tokio",
        "profile",
        "symbolize",
        "symbolserver",
        "ureq",
        "formats",
    ] {
        assert!(
            !tree.contains(forbidden),
            "the agent depends on {forbidden}: {tree:?}"
        );
    }
    assert!(
        tree.len() <= 16,
        "{} crates in the agent: {tree:?}",
        tree.len()
    );
}

#[test]
fn dependencies_go_one_way() {
    let all = dependencies();
    let ours = [
        "corprof",
        "fake-clr",
        "sampler",
        "stackwalk",
        "syscalls",
        "recording",
        "activation",
        "control",
        "diagnostics",
        "agent",
        "libsidewalk",
        "oracle",
        "runsxs",
        "v2-agent",
        "profile",
        "symbolize",
        "symbolserver",
        "formats",
        "sidewalk",
        "testkit",
        "xtask",
    ];
    let parts = [
        "activation",
        "control",
        "corprof",
        "sampler",
        "stackwalk",
        "syscalls",
        "recording",
    ];
    let with_agent = [&parts[..], &["agent"]].concat();
    let table: [(&str, &[&str]); 18] = [
        ("control", &[]),
        ("corprof", &[]),
        ("syscalls", &[]),
        ("sampler", &["syscalls"]),
        ("stackwalk", &["syscalls"]),
        ("recording", &[]),
        ("activation", &[]),
        ("diagnostics", &[]),
        ("agent", &parts),
        ("libsidewalk", &with_agent),
        ("oracle", &with_agent),
        ("runsxs", &["activation", "corprof"]),
        ("v2-agent", &["corprof"]),
        ("profile", &["recording"]),
        ("symbolize", &["profile", "recording"]),
        ("symbolserver", &["profile", "recording", "symbolize"]),
        ("formats", &["profile", "recording"]),
        (
            "sidewalk",
            &[
                "recording",
                "control",
                "syscalls",
                "diagnostics",
                "profile",
                "symbolize",
                "symbolserver",
                "formats",
            ],
        ),
    ];
    for (package, allowed) in table {
        for dependency in tree(&all, package) {
            let stranger = ours.contains(&dependency.as_str()) && !allowed.contains(&&*dependency);
            assert!(!stranger, "{package} depends on {dependency}");
        }
    }
}

/// The floors of the agent: each may use only those before it.
const FLOORS: [&str; 13] = [
    "base",
    "model",
    "program",
    "clr",
    "hooks",
    "record",
    "handler",
    "walkers",
    "events",
    "trace",
    "session",
    "callbacks",
    "process",
];

/// Circles among the top modules of other crates. The list may only become shorter.
const CIRCLES: [(&str, &[&str]); 5] = [
    ("corprof", &["context", "id", "info", "metadata", "runtime"]),
    ("fake-clr", &["check", "slots", "state", "wait"]),
    ("runsxs", &["chain", "run"]),
    ("sampler", &["handler", "reader", "sampler", "trace"]),
    ("symbolize", &["eh_frame", "elf", "symbolizer"]),
];

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().into_string().unwrap();
        if path.is_dir() {
            sources(&path, into);
        } else if name.ends_with(".rs") {
            into.push(path);
        }
    }
}

/// On .NET 11.0.0 the call alone makes precompiled code of the module fail.
#[test]
fn the_agent_applies_no_metadata() {
    let mut files = Vec::new();
    sources(&repository().join("crates/agent/src"), &mut files);
    assert!(files.len() > 100);
    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        assert!(!source.contains("apply_meta_data("), "{}", file.display());
    }
}

/// The paths in a piece of source, comments left out; `crate::{a, b::c}` is `crate::a` and
/// `crate::b`.
fn paths(source: &str) -> Vec<String> {
    let code = source.lines().map(|line| line.split("//").next().unwrap());
    let code = code.collect::<Vec<_>>().join("\n");
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut paths: Vec<String> = code
        .split(|c| !is_word(c))
        .filter(|word| word.contains("::"))
        .map(|word| word.trim_end_matches("::").to_owned())
        .collect();
    for (at, _) in code.match_indices("::{") {
        let before = code[..at].rsplit(|c| !is_word(c)).next().unwrap();
        if !before
            .split("::")
            .all(|part| part == "crate" || part == "super")
        {
            continue;
        }
        let (mut depth, mut name, mut names) = (0, String::new(), Vec::new());
        for c in code[at + 2..].chars() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            match c {
                '{' if depth == 1 => {}
                ',' | '}' if depth <= 1 => names.push(std::mem::take(&mut name)),
                _ => name.push(c),
            }
            if depth == 0 {
                break;
            }
        }
        let names = names.iter().map(|name| name.trim());
        paths.extend(
            names
                .filter(|name| !name.is_empty())
                .map(|name| format!("{before}::{name}")),
        );
    }
    paths
}

/// Top modules of a crate that use each other: from, to, and where.
fn arrows(source: &Path) -> Vec<(String, String, PathBuf)> {
    let mut files = Vec::new();
    sources(source, &mut files);
    let mut found = Vec::new();
    for file in files {
        let inside = file.strip_prefix(source).unwrap().with_extension("");
        let mut module: Vec<String> = inside
            .iter()
            .map(|part| part.to_str().unwrap().to_owned())
            .collect();
        if matches!(
            module.last().map(String::as_str),
            Some("mod" | "lib" | "main")
        ) {
            module.pop();
        }
        // Tests may look at everything.
        let Some(top) = module.first().cloned() else {
            continue;
        };
        let is_test = module.iter().any(|part| part == "tests");
        if is_test || module.last().is_some_and(|name| name == "decoded") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for word in paths(text) {
            let parts: Vec<&str> = word.split("::").collect();
            let ups = parts.iter().take_while(|part| **part == "super").count();
            let target = match parts[0] {
                "crate" => parts.get(1).copied(),
                // Out of the top module: its parent is the crate.
                "super" if ups == module.len() => parts.get(ups).copied(),
                _ => None,
            };
            if let Some(target) = target.filter(|target| *target != top) {
                found.push((top.clone(), target.to_owned(), file.clone()));
            }
        }
    }
    found
}

#[test]
fn no_arrow_runs_up_in_the_agent() {
    let source = repository().join("crates/agent/src");
    let floor = |name: &str| FLOORS.iter().position(|floor| *floor == name);
    let arrows = arrows(&source);
    for (from, to, file) in &arrows {
        let (Some(above), Some(below)) = (floor(from), floor(to)) else {
            panic!("{}: {from} or {to} is on no floor", file.display());
        };
        assert!(below < above, "{}: {from} uses {to}", file.display());
    }
    // It has read something.
    for floor in &FLOORS[2..] {
        assert!(arrows.iter().any(|(from, ..)| from == floor), "{floor}");
    }
}

#[test]
fn one_place_reaches_for_the_process_and_one_moves_its_phase() {
    let source = repository().join("crates/agent/src");
    let mut files = Vec::new();
    sources(&source, &mut files);
    let mut statics = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        let name = file.strip_prefix(&source).unwrap().display().to_string();
        if name.ends_with("tests.rs") {
            continue;
        }
        if text.contains("static PROCESS") || text.contains(": OnceLock<Option<&'static") {
            statics.push(name.clone());
        }
        assert!(
            !text.contains("PhaseWriter")
                || name == "session/phases.rs"
                || name.starts_with("model/"),
            "{name} moves the phase"
        );
        for begins in [
            "Sampler::start(",
            ".phases.drain()",
            ".phases.begin()",
            ".phases.over()",
        ] {
            assert!(
                !text.contains(begins) || name == "session/begin.rs",
                "{name} has {begins}"
            );
        }
    }
    assert_eq!(statics, ["process.rs"]);
}

/// Modules that use each other, directly or by others.
fn circles(arrows: &[(String, String, PathBuf)]) -> BTreeSet<String> {
    let names: BTreeSet<&String> = arrows.iter().flat_map(|(from, to, _)| [from, to]).collect();
    let reaches = |start: &String| {
        let mut seen: BTreeSet<&String> = BTreeSet::new();
        let mut next = vec![start];
        while let Some(at) = next.pop() {
            for (_, to, _) in arrows.iter().filter(|(from, ..)| from == at) {
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let found = names
        .into_iter()
        .filter(|name| reaches(name).contains(name));
    found.cloned().collect()
}

#[test]
fn no_other_crate_has_a_new_circle() {
    for entry in fs::read_dir(repository().join("crates")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let source = entry.path().join("src");
        let modules: BTreeSet<String> = fs::read_dir(&source)
            .unwrap()
            .flatten()
            .map(|entry| {
                entry
                    .path()
                    .file_stem()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        let mut arrows = arrows(&source);
        arrows.retain(|(_, to, _)| modules.contains(to));
        let known = CIRCLES.iter().find(|(of, _)| *of == name);
        let known: BTreeSet<String> = known
            .map(|(_, known)| known.iter().map(|name| (*name).to_owned()).collect())
            .unwrap_or_default();
        assert_eq!(circles(&arrows), known, "{name}");
    }
}
