//! docs/compatibility.md: its table of tested runtimes is generated from the list of tests.
//!
//! Each row is the first sentence of an acceptance module and the runtimes on which it has tests.
//! No test is ignored, and CI requires all to pass. Only columns of runtimes on this machine are
//! checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use testkit::{Runtime, Setup, repository};

/// Environment variable. If 1, the test writes the page. All runtimes of the page are needed: see
/// CONTRIBUTING.md.
const WRITE: &str = "SIDEWALK_WRITE_COMPATIBILITY";
const PAGE: &str = "docs/compatibility.md";
const BEGIN: &str = "<!-- Written by the test versions::the_page_says_what_is_tested -->\n";

/// Returns the names of the tests in this binary.
pub(crate) fn tests(options: &[&str]) -> Vec<String> {
    let own = std::env::current_exe().unwrap();
    let output = Command::new(own)
        .args(["--list", "--format", "terse"])
        .args(options)
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    names.map(str::to_owned).collect()
}

/// Returns, for each area, the runtimes (by name in tests) on which it is tested.
fn areas(runtimes: &[Runtime]) -> BTreeMap<String, BTreeSet<String>> {
    let mut areas: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for test in tests(&[]) {
        let (area, _) = test.split_once("::").unwrap();
        let last = test.rsplit("::").next().unwrap();
        if runtimes.iter().any(|runtime| runtime.name == last) {
            areas
                .entry(area.to_owned())
                .or_default()
                .insert(last.to_owned());
        }
    }
    areas
}

/// Returns the first sentence of an area's source, which describes the area.
fn about(area: &str) -> String {
    let source = repository().join(format!("crates/testkit/tests/acceptance/{area}.rs"));
    let source = fs::read_to_string(source).unwrap();
    let words = source.lines().map_while(|line| line.strip_prefix("//!"));
    let words = words.take_while(|line| !line.is_empty()).map(str::trim);
    let paragraph = words.collect::<Vec<_>>().join(" ");
    let end = paragraph.find(". ").unwrap_or(paragraph.len());
    paragraph[..end].trim_end_matches('.').replace('|', "\\|")
}

/// Sorts runtimes by version, oldest first.
fn sorted(mut runtimes: Vec<Runtime>) -> Vec<Runtime> {
    let version = |runtime: &Runtime| -> Vec<u32> {
        let parts = runtime.version.split(['.', '-']);
        parts.map(|part| part.parse().unwrap_or(0)).collect()
    };
    runtimes.sort_by_key(version);
    runtimes
}

fn written(runtimes: &[Runtime]) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let versions = runtimes.iter().map(|runtime| match runtime.is_musl() {
        true => format!("{} for musl", runtime.version),
        false => runtime.version.clone(),
    });
    let mut table = row(std::iter::once("tested".to_owned())
        .chain(versions)
        .collect());
    table += &row(vec!["---".to_owned(); runtimes.len() + 1]);
    for (area, on) in areas(runtimes) {
        let cells = runtimes
            .iter()
            .map(|runtime| match on.contains(&runtime.name) {
                true => "yes".to_owned(),
                false => String::new(),
            });
        table += &row(std::iter::once(about(&area)).chain(cells).collect());
    }
    table
}

/// The columns (a version, and each area's cell) of a table.
fn columns(table: &str) -> BTreeMap<String, Vec<(String, String)>> {
    let rows = table.lines().filter(|line| line.starts_with('|'));
    let mut rows = rows.map(|line| -> Vec<String> {
        let cells = line.trim_matches('|').split(" | ");
        cells.map(|cell| cell.trim().to_owned()).collect()
    });
    let head = rows.next().unwrap();
    let rows: Vec<Vec<String>> = rows.skip(1).collect();
    let of = |at: usize| {
        let cells = rows.iter().map(|row| {
            let cell = row.get(at).cloned().unwrap_or_default();
            (row[0].clone(), cell)
        });
        // A page with more runtimes may have more areas.
        cells.filter(|(_, cell)| !cell.is_empty()).collect()
    };
    (1..head.len())
        .map(|at| (head[at].clone(), of(at)))
        .collect()
}

#[test]
fn the_page_says_what_is_tested() {
    // Ignored tests would be listed and not run.
    assert_eq!(tests(&["--ignored"]), [""; 0]);
    let runtimes = sorted(Setup::read().unwrap().runtimes);
    let table = written(&runtimes);
    let path = repository().join(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let (text, there) = page.split_once(BEGIN).unwrap();
    if std::env::var_os(WRITE).is_some_and(|value| value == "1") {
        fs::write(&path, format!("{text}{BEGIN}\n{table}")).unwrap();
        return;
    }
    let (here, there) = (columns(&table), columns(there));
    let mut compared = Vec::new();
    for (version, cells) in &here {
        // A runtime of a user's own is not on the page.
        if let Some(message) = there.get(version) {
            assert_eq!(
                message, cells,
                "{PAGE}, {version}: write it anew with {WRITE}=1"
            );
            compared.push(&**version);
        }
    }
    // The runtimes that set-up installs on every machine.
    assert!(
        compared.contains(&"3.1.23") && compared.contains(&"8.0.4"),
        "{compared:?}"
    );
}
