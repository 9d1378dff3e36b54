//! The invariants of ARCHITECTURE.md that dependencies can break.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use testkit::repository;

/// Package name → names of the packages it links (normal dependencies only).
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
    let tree = tree(&dependencies(), "agent");
    for forbidden in [
        "clap",
        "serde_json",
        "tokio",
        "profile",
        "symbolize",
        "formats",
    ] {
        assert!(
            !tree.contains(forbidden),
            "the agent depends on {forbidden}: {tree:?}"
        );
    }
    assert!(
        tree.len() <= 15,
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
        "recording",
        "activation",
        "agent",
        "runsxs",
        "v2-agent",
        "profile",
        "symbolize",
        "formats",
        "sidewalk",
        "testkit",
        "xtask",
    ];
    let table: [(&str, &[&str]); 12] = [
        ("corprof", &[]),
        ("sampler", &[]),
        ("stackwalk", &[]),
        ("recording", &[]),
        ("activation", &[]),
        (
            "agent",
            &["activation", "corprof", "sampler", "stackwalk", "recording"],
        ),
        ("runsxs", &["activation", "corprof"]),
        ("v2-agent", &["corprof"]),
        ("profile", &["recording"]),
        ("symbolize", &["profile", "recording"]),
        ("formats", &["profile", "recording"]),
        (
            "sidewalk",
            &["recording", "profile", "symbolize", "formats"],
        ),
    ];
    for (package, allowed) in table {
        for dependency in tree(&all, package) {
            let stranger = ours.contains(&dependency.as_str()) && !allowed.contains(&&*dependency);
            assert!(!stranger, "{package} depends on {dependency}");
        }
    }
}
