//! Checks of the pages about tests: they list each acceptance test that is only in the full tier.

use std::collections::BTreeSet;
use std::fs;

use testkit::{SMOKE, Setup, is_smoke, repository};

use crate::versions::tests;

/// Returns the names of this binary's tests, without runtimes.
fn names() -> BTreeSet<String> {
    let runtimes = Setup::read().unwrap().runtimes;
    let is_runtime = |last: &str| runtimes.iter().any(|runtime| runtime.name == last);
    let names = tests(&[])
        .into_iter()
        .map(|test| match test.rsplit_once("::") {
            Some((name, last)) if is_runtime(last) => name.to_owned(),
            _ => test,
        });
    names.collect()
}

/// The pages that list the tests of the full tier alone.
const PAGES: [&str; 2] = ["docs/testing-full.md", "docs/testing-commands.md"];

#[test]
fn each_entry_of_the_default_tier_is_a_test() {
    let names = names();
    for entry in SMOKE {
        let is_there = names.iter().any(|name| {
            let rest = name.strip_prefix(entry);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        });
        assert!(is_there, "testkit::SMOKE has {entry}, which is no test");
    }
}

#[test]
fn each_test_of_the_full_tier_alone_is_on_the_page() {
    let pages = PAGES.map(|page| fs::read_to_string(repository().join(page)).unwrap());
    let mut on_the_page = BTreeSet::new();
    for line in pages.iter().flat_map(|page| page.lines()) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [module, tests, cover] = cells[..] else {
            continue;
        };
        let module = module.trim_start_matches("| ");
        for test in tests.split(", ").filter(|test| test.starts_with('`')) {
            on_the_page.insert(format!("{module}::{}", test.trim_matches('`')));
        }
        let cover = cover.trim_end_matches(" |");
        assert!(!cover.is_empty(), "{module}: nothing covers it");
    }
    let full: BTreeSet<String> = names().into_iter().filter(|name| !is_smoke(name)).collect();
    // Tests of web servers exist only if a runtime has ASP.NET Core.
    let missing: Vec<_> = full.difference(&on_the_page).collect();
    assert!(missing.is_empty(), "{PAGES:?} lack {missing:?}");
    for name in &on_the_page {
        assert!(!is_smoke(name), "{name} is in the default tier");
    }
    assert!(on_the_page.len() > 100, "{}", on_the_page.len());
}
