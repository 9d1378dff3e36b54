//! Checks of docs/rules.md and docs/reliability.md against the tests.
//!
//! Each test that the pages name exists, and each test of the rules of walking is named.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use testkit::repository;

/// Number of the last rule about walking.
const OF_WALKING: u32 = 21;

/// Returns file and name of each test in the page's table, by rule.
fn on_the_page() -> BTreeMap<u32, BTreeSet<(String, String)>> {
    let page = fs::read_to_string(repository().join("docs/rules.md")).unwrap();
    let mut rules = BTreeMap::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, number, _, _, tests, _] = cells[..] else {
            continue;
        };
        let Ok(number) = number.parse() else { continue };
        let tests: BTreeSet<(String, String)> = tests
            .split("<br>")
            .map(|test| {
                let test = test.trim().trim_matches('`');
                let (file, name) = test.split_once(".rs::").unwrap_or_else(|| panic!("{test}"));
                (format!("{file}.rs"), name.to_owned())
            })
            .collect();
        assert!(rules.insert(number, tests).is_none(), "rule {number} twice");
    }
    rules
}

fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let short = path.strip_prefix(repository()).unwrap();
            found.push(short.to_str().unwrap().to_owned());
        }
    }
}

/// Returns the sources and tests of all crates.
fn all_sources() -> Vec<String> {
    let mut files = Vec::new();
    let crates = fs::read_dir(repository().join("crates")).unwrap();
    for entry in crates {
        let folder = entry.unwrap().path();
        for part in ["src", "tests"] {
            if folder.join(part).is_dir() {
                sources(&folder.join(part), &mut files);
            }
        }
    }
    files
}

/// The name of the test of a rule that a line defines: a function, or what a macro is told.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let at = line.find("rule_")?;
    let before = &line[..at];
    let makes_one = before == "fn " || before.starts_with('"') && !before.contains("::");
    makes_one.then(|| {
        line[at..]
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
    })?
}

#[test]
fn the_page_of_rules_names_the_tests_that_are_there() {
    let files = all_sources();
    let mut there: BTreeMap<u32, BTreeSet<(String, String)>> = BTreeMap::new();
    let mut functions: BTreeSet<(String, String)> = BTreeSet::new();
    for file in files {
        // Programs that must not compile are no tests themselves.
        if file.contains("/tests/ui/") {
            continue;
        }
        let text = fs::read_to_string(repository().join(&file)).unwrap();
        for line in text.lines() {
            if let Some(name) = line.trim_start().strip_prefix("fn ") {
                let name = name.split(['(', '<']).next().unwrap();
                functions.insert((file.clone(), name.to_owned()));
            }
            if let Some(name) = defined(line) {
                functions.insert((file.clone(), name.to_owned()));
                let number = name["rule_".len()..].split('_').next().unwrap();
                let number: u32 = number
                    .parse()
                    .unwrap_or_else(|_| panic!("{name} in {file}"));
                there
                    .entry(number)
                    .or_default()
                    .insert((file.clone(), name.to_owned()));
            }
        }
    }
    let page = on_the_page();
    for (rule, tests) in &page {
        assert!(!tests.is_empty(), "rule {rule} has no test");
        for test in tests {
            assert!(
                functions.contains(test),
                "rule {rule}: there is no {test:?}"
            );
        }
    }
    for (rule, tests) in there.range(..=OF_WALKING) {
        let named = page.get(rule);
        for test in tests {
            assert!(
                named.is_some_and(|named| named.contains(test)),
                "rule {rule}: the page does not name {test:?}"
            );
        }
    }
    for rule in 1..=OF_WALKING {
        assert!(page.contains_key(&rule), "rule {rule} is not on the page");
    }
}

#[test]
fn the_page_of_reliability_names_tests_that_are_there() {
    let page = fs::read_to_string(repository().join("docs/reliability.md")).unwrap();
    let files = all_sources();
    let (_, table) = page.split_once("## What strangers found").unwrap();
    let table = table.split("\n## ").next().unwrap();
    let mut named = 0;
    for row in table.lines().filter(|line| line.starts_with('|')) {
        let tests = row.split('|').nth(2).unwrap();
        let mut file = String::new();
        for word in tests.split('`').filter(|word| !word.trim().is_empty()) {
            let name = match word.split_once("::") {
                Some((end, name)) => {
                    file = format!("/{end}");
                    name
                }
                // Words between names, and commands.
                None if file.is_empty() || word.contains(' ') => continue,
                None => word,
            };
            let defined = format!("fn {name}(");
            let is_there = files
                .iter()
                .filter(|path| path.ends_with(&file))
                .any(|path| {
                    let text = fs::read_to_string(repository().join(path)).unwrap();
                    text.contains(&defined)
                });
            assert!(is_there, "there is no {name} in {file}: {row}");
            named += 1;
        }
    }
    assert!(named > 50, "{named}");
}
