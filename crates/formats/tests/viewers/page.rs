//! The page's own script, in node.

use std::collections::BTreeMap;
use std::path::Path;

use formats::{Format, visible};
use profile::model::{Event, FrameKind};
use profile::ops::{self, Direction, GroupBy, StackView};
use testkit::{Tools, stdout_of};

use crate::common::{RecordedProfile, profile_of};
use crate::scenes::{phased, scenes, waiting};
use crate::{file, node};

/// The parts of the page's script that have nothing to do with drawing.
const SCRIPTS: [&str; 5] = [
    "decode.js",
    "threads.js",
    "weights.js",
    "tree.js",
    "recursion.js",
];

/// Zoom, search, filters, table and keys do what they say; so do events, calls and several CLRs.
#[test]
fn the_page_can_be_used() {
    for (scene, profile) in scenes() {
        if !matches!(scene, "deep" | "hostile" | "awaits-hostile") {
            let path = file(&format!("ui-{scene}"), Format::Html, &profile);
            stdout_of(node(&Tools::get(), "ui.mjs").arg(path).arg(scene));
        }
    }
}

/// A range of time leaves the same in the page as in a report.
#[test]
fn a_range_of_the_page_is_that_of_the_report() {
    let tools = Tools::get();
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
    let all = [("phased", phased()), ("waiting", waiting())];
    for (scene, profile) in all.into_iter().chain(scenes()) {
        let path = file(&format!("range-{scene}"), Format::Html, &profile);
        let begin = ops::begin_ns(&profile);
        let last = profile.samples.iter().map(|s| s.time_ns).max();
        let end = (last.expect("there are samples") - begin) / 1_000 + 1;
        for (from, to) in [
            (0, end),
            (0, end / 3),
            (end / 3, end / 2),
            (end * 2 / 5, end * 3 / 5),
            (end / 10, end),
        ] {
            let filter = ops::Filter {
                from_ns: Some(begin + from * 1_000),
                until_ns: Some(begin + to * 1_000),
                ..ops::Filter::default()
            };
            let mut page = node(&tools, "page.mjs");
            page.arg(&path).arg("logical").arg(format!("{from}-{to}"));
            page.args(SCRIPTS.map(|script| assets.join(script)));
            let text = stdout_of(&mut page);
            let mut seen: Vec<&str> = text.lines().collect();
            let event = ops::main_event(&profile).expect("there are samples");
            let within = ops::with_stack_view(filter.apply(profile.clone()), StackView::Logical);
            let table = ops::totals(&within, GroupBy::Method, |sample| sample.event == event);
            let mut expected: Vec<String> = table
                .into_iter()
                .map(|row| {
                    let (own, total) = (row.own, row.total);
                    let name = visible(&row.group.label).into_owned();
                    format!(
                        "row {} {} {} {} {name}",
                        own.samples, own.value, total.samples, total.value
                    )
                })
                .collect();
            seen.sort_unstable();
            expected.sort_unstable();
            assert_eq!(seen, expected, "{scene} from {from} to {to}");
        }
    }
}

/// The trees and the table that the page draws are those that the library computes.
#[test]
fn the_page_draws_the_profile() {
    let tools = Tools::get();
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
    let views = scenes().into_iter().flat_map(|(scene, profile)| {
        let has_both = ops::has_logical(&profile);
        let views = StackView::ALL.into_iter().take(1 + usize::from(has_both));
        views.map(move |stacks| (scene, profile.clone(), stacks))
    });
    for (scene, profile, stacks) in views {
        let path = file(scene, Format::Html, &profile);
        let profile = ops::with_stack_view(profile, stacks);
        let mut page = node(&tools, "page.mjs");
        page.arg(path).arg(stacks.name()).arg("all");
        page.args(SCRIPTS.map(|script| assets.join(script)));
        let text = stdout_of(&mut page);
        let (managed, text): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with("managed "));
        let (threads, text): (Vec<&str>, Vec<&str>) = text
            .into_iter()
            .partition(|line| line.starts_with("thread"));
        let (rows, trees): (Vec<&str>, Vec<&str>) =
            text.into_iter().partition(|line| line.starts_with("row "));

        let event = ops::main_event(&profile).expect("there are samples");
        let mut expected = Vec::new();
        for (word, direction) in [
            ("callees", Direction::Callees),
            ("callers", Direction::Callers),
        ] {
            let tree = ops::Tree::new(&profile, GroupBy::Method, direction, |s| s.event == event);
            tree.walk(|at, depth| {
                let node = &tree.nodes[at as usize];
                let (total, own) = (node.total, node.own);
                expected.push(format!(
                    "{word} {depth} {} {} {} {} {}",
                    total.samples,
                    total.value,
                    own.samples,
                    own.value,
                    visible(tree.label(node))
                ));
                true
            });
        }
        let mut expected_threads: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for sample in profile
            .samples
            .iter()
            .filter(|sample| sample.event == event)
        {
            let thread = profile.thread(sample.thread);
            let process = profile.process(thread.process);
            let of = match profile.processes.len() {
                1 => String::new(),
                _ => format!("{} (pid {}): ", visible(&process.name()), process.pid),
            };
            let name = visible(&thread.name);
            let labels = [
                format!("thread {of}{name} (tid {})", thread.tid),
                format!("threads {of}{name}"),
            ];
            for label in labels {
                let sum = expected_threads.entry(label).or_default();
                sum.0 += 1;
                sum.1 += sample.value;
            }
        }
        let threads = threads.into_iter().map(|line| {
            let cells: Vec<&str> = line.splitn(4, ' ').collect();
            let number = |at: usize| cells[at].parse::<u64>().expect("a number");
            (format!("{} {}", cells[0], cells[3]), (number(1), number(2)))
        });
        assert_eq!(
            threads.collect::<BTreeMap<_, _>>(),
            expected_threads,
            "{scene}"
        );

        // Samples, and those of them without a managed frame.
        let is_managed = |frame| profile.frame(frame).kind == FrameKind::Managed;
        let taken = profile
            .samples
            .iter()
            .filter(|sample| sample.event == event);
        let without = taken
            .clone()
            .filter(|s| !profile.frames_of(s.stack).any(is_managed))
            .count();
        let taken = taken.count();
        for (line, direction) in managed.into_iter().zip(["callees", "callers"]) {
            assert_eq!(
                line,
                format!("managed {direction} {taken} {without}"),
                "{scene}"
            );
        }

        // Siblings of one weight may stand in another order.
        let sorted = |mut lines: Vec<String>| {
            lines.sort();
            lines
        };
        let trees: Vec<String> = trees.into_iter().map(str::to_owned).collect();
        assert_eq!(sorted(trees), sorted(expected), "{scene}");

        let table = ops::totals(&profile, GroupBy::Method, |sample| sample.event == event);
        let expected = table.into_iter().map(|row| {
            format!(
                "row {} {} {} {} {}",
                row.own.samples,
                row.own.value,
                row.total.samples,
                row.total.value,
                visible(&row.group.label)
            )
        });
        let rows: Vec<String> = rows.into_iter().map(str::to_owned).collect();
        assert_eq!(sorted(rows), sorted(expected.collect()), "{scene}");
    }
}

/// Recursion merged is what the words say: a method that comes again, where all since it came is on
/// the stack already, goes on from where it was.
#[test]
fn recursion_is_merged_whether_direct_or_not() {
    const NAMES: [&str; 6] = ["A", "B", "C", "D", "E", "F"];
    let mut random = 7_u64;
    let mut below = |bound: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    let mut stacks: Vec<Vec<usize>> = [
        "AAAA",
        "ABAB",
        "ABABAC",
        "ABCABCABC",
        "ABACAD",
        "ABACABAC",
        "DABABE",
        "ABCBCBA",
    ]
    .map(|names| names.bytes().map(|name| usize::from(name - b'A')).collect())
    .into();
    for _ in 0..400 {
        let (length, methods) = (1 + below(24), 2 + below(5));
        stacks.push((0..length).map(|_| below(methods) as usize).collect());
    }
    let taken = stacks
        .iter()
        .enumerate()
        .map(|(at, stack)| RecordedProfile {
            thread: (at % 3) as u32,
            stack: stack.clone(),
            event: Event::Cpu,
            value: 1,
        });
    let profile = profile_of(&NAMES, 3, &taken.collect::<Vec<_>>());
    let path = file("recursion", Format::Html, &profile);
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
    let mut page = node(&Tools::get(), "page.mjs");
    page.arg(path).arg("logical").arg("merged");
    page.args(SCRIPTS.map(|script| assets.join(script)));
    let text = stdout_of(&mut page);
    let mut seen: Vec<&str> = text.lines().collect();
    seen.sort_unstable();
    // From the definition, stack by stack.
    let mut expected: BTreeMap<Vec<usize>, u32> = BTreeMap::new();
    for stack in &stacks {
        let mut merged: Vec<usize> = Vec::new();
        for &method in stack {
            let again = (0..merged.len()).find(|&at| {
                let (until, since) = merged.split_at(at + 1);
                merged[at] == method && since.iter().all(|method| until.contains(method))
            });
            match again {
                Some(at) => merged.truncate(at + 1),
                None => merged.push(method),
            }
        }
        *expected.entry(merged).or_default() += 1;
    }
    let merged = |names: &str| {
        names
            .bytes()
            .map(|name| usize::from(name - b'A'))
            .collect::<Vec<_>>()
    };
    for (names, short) in [
        ("AAAA", "A"),
        ("ABABAC", "ABAC"),
        ("ABCABCABC", "ABC"),
        ("DABABE", "DABE"),
    ] {
        assert!(expected.contains_key(&merged(short)), "{names} is {short}");
    }
    let mut expected: Vec<String> = expected
        .into_iter()
        .map(|(stack, samples)| {
            let names: Vec<&str> = stack.iter().map(|&at| NAMES[at]).collect();
            format!("{} {samples}", names.join(";"))
        })
        .collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}
