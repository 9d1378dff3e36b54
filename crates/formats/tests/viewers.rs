//! The programs that our files are for read them, and see what the report says.
//!
//! `go tool pprof` and speedscope's own importer here, the flame graph's own script in `page` (the
//! latter two in node), and a real browser in `browser`: `cargo xtask setup --all` brings them.

mod common;

#[path = "viewers/browser.rs"]
mod browser;
#[path = "viewers/page.rs"]
mod page;
#[path = "viewers/scenes.rs"]
mod scenes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use formats::{Format, OutputOptions, Profile, visible};
use profile::ops::{self, GroupBy, StackView};
use testkit::{Tools, stdout_of};

use scenes::scenes;

/// A file of our own in the folder for tests' files.
fn file(scene: &str, format: Format, profile: &Profile) -> PathBuf {
    file_with(scene, format, profile, &OutputOptions::default())
}

fn file_with(scene: &str, format: Format, profile: &Profile, options: &OutputOptions) -> PathBuf {
    let name = format!("viewers-{scene}{}", format.ending());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut out = Vec::new();
    formats::write(format, profile, options, &mut out).expect("a Vec");
    std::fs::write(&path, out).expect("the folder for tests' files takes files");
    path
}

fn node(tools: &Tools, script: &str) -> Command {
    let mut node = Command::new(&tools.node);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    node.arg(folder.join("tests/viewers").join(script));
    node
}

/// Self and total by name, as the report has them.
fn rows(profile: &Profile) -> BTreeMap<String, (u64, u64)> {
    let profile = &ops::with_stack_view(profile.clone(), StackView::Logical);
    let event = ops::main_event(profile).expect("there are samples");
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for row in ops::totals(profile, GroupBy::Method, |sample| sample.event == event) {
        let sum = sums
            .entry(visible(&row.group.label).into_owned())
            .or_default();
        sum.0 += row.own.value;
        sum.1 += row.total.value;
    }
    sums
}

#[test]
fn pprof_has_the_numbers_of_the_report() {
    let go = Tools::get().go;
    for (scene, profile) in scenes() {
        let path = file(scene, Format::Pprof, &profile);
        let mut pprof = Command::new(&go);
        // Go builds pprof once for each cache.
        pprof.env("GOCACHE", testkit::cache_dir().join("go-build"));
        pprof.args(["tool", "pprof", "-top", "-unit=ns", "-nodecount=1000000"]);
        pprof.args(["-nodefraction=0", "-edgefraction=0"]).arg(path);
        let text = stdout_of(&mut pprof);
        let table = text.split_once("cum%\n").expect("a table").1;
        let seen: BTreeMap<String, (u64, u64)> = table.lines().map(pprof_row).collect();
        assert_eq!(seen, rows(&profile), "{scene}");
        // In the same order, as far as rows have a self.
        let profile = ops::with_stack_view(profile, StackView::Logical);
        let event = ops::main_event(&profile).expect("there are samples");
        let report = ops::totals(&profile, GroupBy::Method, |sample| sample.event == event);
        let report = report.iter().filter(|row| row.own.value > 0);
        let report: Vec<String> = report
            .map(|row| visible(&row.group.label).into_owned())
            .collect();
        let shown = table.lines().map(|line| pprof_row(line).0);
        assert_eq!(
            shown.take(report.len()).collect::<Vec<_>>(),
            report,
            "{scene}"
        );
    }
}

/// `      20ms  2.00%   100%       20ms  2.00%  name`
fn pprof_row(line: &str) -> (String, (u64, u64)) {
    let mut rest = line;
    let mut cell = || {
        rest = rest.trim_start();
        let (cell, behind) = rest.split_once(' ').expect("six cells");
        rest = behind;
        cell.trim_end_matches("ns").parse::<u64>().unwrap_or(0)
    };
    let own = cell();
    cell();
    cell();
    let total = cell();
    cell();
    // Inlined functions say so behind their name.
    let name = rest.strip_prefix(' ').expect("two spaces before a name");
    (
        name.strip_suffix(" (inline)").unwrap_or(name).to_owned(),
        (own, total),
    )
}

#[test]
fn speedscope_has_the_numbers_of_the_report() {
    let tools = Tools::get();
    for (scene, profile) in scenes() {
        let event = ops::main_event(&profile).expect("there are samples");
        let open = |scene: &str, options: &OutputOptions| {
            let path = file_with(scene, Format::Speedscope, &profile, options);
            let mut importer = node(&tools, "speedscope.mjs");
            stdout_of(importer.arg(&tools.speedscope).arg(path))
        };
        // All events in one file: as many profiles as there are pairs of event and thread.
        let all = open(&format!("{scene}-all"), &OutputOptions::default());
        let pairs: std::collections::BTreeSet<_> = profile
            .samples
            .iter()
            .map(|sample| (sample.event as u8, sample.thread))
            .collect();
        let profiles = all.lines().filter(|line| line.starts_with("profile "));
        assert_eq!(profiles.count(), pairs.len(), "{scene}");
        let one = OutputOptions {
            event: Some(event),
            ..OutputOptions::default()
        };
        let text = open(scene, &one);
        let mut seen: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut threads = 0;
        for line in text.lines() {
            let cells: Vec<&str> = line.splitn(4, ' ').collect();
            match cells[0] {
                "profile" => {
                    assert_eq!(cells[2], "nanoseconds");
                    threads += 1;
                }
                "frame" => {
                    let number = |at: usize| cells[at].parse::<u64>().expect("whole nanoseconds");
                    let sum = seen.entry(cells[3].to_owned()).or_default();
                    sum.0 += number(1);
                    sum.1 += number(2);
                }
                _ => assert_eq!(cells[0], "group"),
            }
        }
        let rows = rows(&profile);
        let taken = profile
            .samples
            .iter()
            .filter(|sample| sample.event == event);
        let of: std::collections::BTreeSet<_> = taken.map(|sample| sample.thread).collect();
        assert_eq!(threads, of.len(), "{scene}");
        if scene == "deep" {
            // Callers beyond what speedscope can open are left out, and one frame says so.
            let own = |rows: BTreeMap<String, (u64, u64)>| -> BTreeMap<String, u64> {
                rows.into_iter()
                    .map(|(name, (own, _))| (name, own))
                    .filter(|r| r.1 > 0)
                    .collect()
            };
            assert!(seen.contains_key("[cut: too deep for speedscope]"));
            assert_eq!(own(seen), own(rows));
        } else {
            assert_eq!(seen, rows, "{scene}");
        }
    }
}
