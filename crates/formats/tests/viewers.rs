//! The programs that our files are for read them, and see what the report says.
//!
//! `go tool pprof`, speedscope's own importer and the flame graph's own script, the latter two in
//! node: `cargo xtask setup --all` brings them.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{HOSTILE, Taken, awaited, profile_of};
use formats::{Format, Options, Profile, visible};
use profile::model::{Event, FrameKind};
use profile::ops::{self, By, Direction, Stacks};
use testkit::{Tools, stdout_of};

/// Hostile names, several threads, recursion, frames that differ in nothing but the line.
fn hostile() -> Profile {
    let count = HOSTILE.len();
    let stacks = (0..4 * count).map(|at| Taken {
        thread: (at % 5) as u32,
        stack: (0..1 + at % 7).map(|level| at * level % count).collect(),
        event: if at % 9 == 8 {
            Event::Alloc
        } else {
            Event::Cpu
        },
        value: 1_000 + 13 * at as u64,
    });
    profile_of(HOSTILE, 5, &stacks.collect::<Vec<_>>())
}

fn scenes() -> [(&'static str, Profile); 8] {
    [
        ("tiny", profile::testing::tiny().profile()),
        ("two_runtimes", profile::testing::two_runtimes().profile()),
        ("deep", profile::testing::deep().profile()),
        ("hostile", hostile()),
        ("events", profile::testing::events().profile()),
        ("shadow", profile::testing::shadow().profile()),
        ("awaits", profile::testing::awaits().profile()),
        ("awaits-hostile", awaited(hostile(), HOSTILE)),
    ]
}

/// A file of our own in the folder for tests' files.
fn file(scene: &str, format: Format, profile: &Profile) -> PathBuf {
    file_with(scene, format, profile, &Options::default())
}

fn file_with(scene: &str, format: Format, profile: &Profile, options: &Options) -> PathBuf {
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
    let profile = &ops::seen_by(profile.clone(), Stacks::Logical);
    let event = ops::main_event(profile).expect("there are samples");
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for row in ops::totals(profile, By::Method, |sample| sample.event == event) {
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
        pprof.args(["tool", "pprof", "-top", "-unit=ns", "-nodecount=1000000"]);
        pprof.args(["-nodefraction=0", "-edgefraction=0"]).arg(path);
        let text = stdout_of(&mut pprof);
        let table = text.split_once("cum%\n").expect("a table").1;
        let seen: BTreeMap<String, (u64, u64)> = table.lines().map(pprof_row).collect();
        assert_eq!(seen, rows(&profile), "{scene}");
        // In the same order, as far as rows have a self.
        let profile = ops::seen_by(profile, Stacks::Logical);
        let event = ops::main_event(&profile).expect("there are samples");
        let report = ops::totals(&profile, By::Method, |sample| sample.event == event);
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
        let open = |scene: &str, options: &Options| {
            let path = file_with(scene, Format::Speedscope, &profile, options);
            let mut importer = node(&tools, "speedscope.mjs");
            stdout_of(importer.arg(&tools.speedscope).arg(path))
        };
        // All events in one file: as many profiles as there are pairs of event and thread.
        let all = open(&format!("{scene}-all"), &Options::default());
        let pairs: std::collections::BTreeSet<_> = profile
            .samples
            .iter()
            .map(|sample| (sample.event as u8, sample.thread))
            .collect();
        let profiles = all.lines().filter(|line| line.starts_with("profile "));
        assert_eq!(profiles.count(), pairs.len(), "{scene}");
        let one = Options {
            event: Some(event),
            ..Options::default()
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

/// A graph as strangers had it: deep, with a method that is hard to find, two tiers of one line,
/// thousands of small callers, and a thread without managed code.
fn large() -> Profile {
    use profile::model::Tier;
    use profile::testing::Scene;
    let leak = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    let mut scene = Scene::new(4711, &["dotnet", "app.dll"]);
    let clr = scene.runtime("8.0.4");
    let module = scene.managed_module(clr, "/app/app.dll");
    let libc = scene.native_module("/lib/libc.so.6");
    let main = scene.method(clr, module, "App.Program", "Main");
    let main = scene.managed(main, Tier::Tier1, 0);
    let thread = scene.thread(1, "main", true);
    let hot = scene.method(clr, module, "App.Hot", "Run");
    for (tier, count) in [(Tier::Tier0, 500), (Tier::Tier1, 4_000)] {
        let hot = scene.managed(hot, tier, 7);
        let stack = scene.stack(&[main, hot]);
        scene.samples(thread, stack, count);
    }
    let needle = scene.method(clr, module, "App.Deep", "Needle");
    let needle = scene.managed(needle, Tier::Tier1, 0);
    for branch in ["Left", "Right"] {
        let mut frames = vec![main];
        for depth in 0..150 {
            let name = leak(format!("{branch}{depth}"));
            let method = scene.method(clr, module, "App.Deep", name);
            frames.push(scene.managed(method, Tier::Tier1, 0));
        }
        let stack = scene.stack(&frames);
        scene.samples(thread, stack, 100);
        frames.push(needle);
        let stack = scene.stack(&frames);
        scene.samples(thread, stack, 1);
    }
    let shared = scene.method(clr, module, "App.Shared", "Log");
    let shared = scene.managed(shared, Tier::Tier1, 0);
    for caller in 0..4_000 {
        let name = leak(format!("Caller{caller}"));
        let method = scene.method(clr, module, "App.Callers", name);
        let frame = scene.managed(method, Tier::Tier1, 0);
        let stack = scene.stack(&[main, frame, shared]);
        scene.samples(thread, stack, 1);
    }
    let waiter = scene.thread(2, "waiter", false);
    let wait = scene.native(libc, 64, "native_wait");
    let stack = scene.stack(&[wait]);
    scene.samples(waiter, stack, 9_000);
    for _ in 0..2 {
        let overload = scene.method(clr, module, "App.Shop", "Print");
        let frame = scene.managed(overload, Tier::Tier1, 0);
        let stack = scene.stack(&[main, frame]);
        scene.samples(thread, stack, 300);
    }
    scene.end();
    let mut profile = scene.profile();
    let mut overloads = ["(int)", "(string)"].into_iter();
    for at in 0..profile.frames.len() {
        if profile.string(profile.frames[at].name) == "App.Shop.Print" {
            let text = overloads.next().expect("two overloads");
            profile.strings.push(text.to_owned());
            let id = profile::model::StringId(profile.strings.len() as u32 - 1);
            profile.frames[at].signature = Some(id);
        }
    }
    assert!(overloads.next().is_none());
    profile
}

/// A program before and after: one method takes more of it, one is new, one is gone, one is as it was.
fn compared() -> PathBuf {
    use profile::model::Tier;
    use profile::testing::Scene;
    let side = |takes: [(&'static str, u32); 4]| {
        let mut scene = Scene::new(4711, &["dotnet", "app.dll"]);
        let clr = scene.runtime("8.0.4");
        let module = scene.managed_module(clr, "/app/app.dll");
        let thread = scene.thread(1, "main", true);
        let frame = |scene: &mut Scene, name| {
            let method = scene.method(clr, module, "App.Shop", name);
            scene.managed(method, Tier::Tier1, 0)
        };
        let main = frame(&mut scene, "Main");
        let stacks = takes.map(|(name, count)| {
            let leaf = frame(&mut scene, name);
            (scene.stack(&[main, leaf]), count)
        });
        // Evenly over the time: what comes in one piece may be chance.
        for _ in 0..200 {
            for (stack, count) in stacks {
                scene.samples(thread, stack, count);
            }
        }
        scene.end();
        scene.profile()
    };
    let before = side([("Same", 4), ("More", 4), ("Gone", 2), ("Least", 10)]);
    let after = side([("Same", 4), ("More", 6), ("New", 1), ("Least", 9)]);
    let named = |name: &str, profile| vec![(name.to_owned(), profile)];
    let (profile, first_after) = ops::both(named("before.swk", before), named("after.swk", after));
    let question = ops::Question {
        event: Event::Cpu,
        by: By::Method,
        per: ops::Per::Whole,
        error: ops::ERROR,
    };
    let diff = ops::diff(&profile, first_after, question);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("viewers-compared.html");
    let mut out = Vec::new();
    formats::diff::html(&profile, &diff, question, &mut out).expect("a Vec");
    std::fs::write(&path, out).expect("the folder for tests' files takes files");
    path
}

/// In a real browser, as somebody at the screen would. Pictures are left beside the page.
#[test]
fn the_page_can_be_used_in_a_browser() {
    let page = file("browser", Format::Html, &large());
    let awaits = profile::testing::awaits().profile();
    let awaits = file("browser-awaits", Format::Html, &awaits);
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures");
    std::fs::create_dir_all(&pictures).expect("the folder for tests' files takes folders");
    let mut browser = node(&Tools::get(), "browser.mjs");
    stdout_of(
        browser
            .arg(testkit::chromium())
            .arg(pictures)
            .arg(page)
            .arg(awaits)
            .arg(compared()),
    );
}

/// Two seconds in one method, one in which it waits, two in another one that calls itself; a collection every
/// half second, exceptions, another process, lines. Times are exact.
fn phased() -> Profile {
    use profile::model::{Sample, StringId, Tier, WalkEnd};
    use profile::testing::Scene;
    const MS: u64 = 1_000_000;
    let mut scene = Scene::new(4711, &["dotnet", "app.dll"]);
    let clr = scene.runtime("8.0.4");
    let module = scene.managed_module(clr, "/app/app.dll");
    let coreclr = scene.native_module("/usr/share/dotnet/libcoreclr.so");
    let thread = scene.thread(1, "main", true);
    let collector = scene.thread(2, "collector", true);
    let method = |scene: &mut Scene, name| {
        let method = scene.method(clr, module, "App.Phases", name);
        scene.managed(method, Tier::Tier1, 0)
    };
    let frames = ["Main", "BurnFirst", "Inner", "Wait", "BurnSecond"];
    let [main, first, inner, wait, second] = frames.map(|name| method(&mut scene, name));
    let enter = scene.native(coreclr, 64, "CallDescrWorkerInternal");
    let more = scene.native(coreclr, 128, "MethodDescCallSite::CallTargetWorker");
    for stack in [
        vec![main, first, inner],
        vec![main, wait, enter, more],
        vec![main, second, second, second, inner],
    ] {
        let stack = scene.stack(&stack);
        scene.sample(thread, stack, Event::Wall, 10 * MS, WalkEnd::Root);
    }
    let collected = scene.stack(&[main]);
    let induced = scene.detail(Event::Gc, "gen 2", "Induced");
    scene.about(collector, collected, Event::Gc, 5 * MS, induced);
    let thrown = scene.detail(Event::Exception, "System.FormatException", "what was that?");
    scene.about(thread, collected, Event::Exception, 1, thrown);
    scene.end();
    scene.process(4712, 4711, &["dotnet", "worker.dll"]);
    let clr = scene.runtime("9.0.1");
    let module = scene.managed_module(clr, "/app/worker.dll");
    let thread = scene.thread(1, "idle", true);
    let method = scene.method(clr, module, "App.Worker", "Idle");
    let idle = scene.managed(method, Tier::Tier1, 0);
    let idle = scene.stack(&[idle]);
    scene.sample(thread, idle, Event::Wall, 10 * MS, WalkEnd::Root);
    scene.end();
    let mut profile = scene.profile();
    let kinds = std::mem::take(&mut profile.samples);
    let begin = profile.processes[0].start_ns;
    for process in &mut profile.processes {
        process.start_ns = begin;
        process.end_ns = begin + 5_000 * MS;
        // Twenty to two in the afternoon.
        process.start_unix_ns = 1_795_009_200_000 * MS;
    }
    let mut take = |kind: &Sample, ms: u64| {
        let time_ns = begin + ms * MS;
        profile.samples.push(Sample { time_ns, ..*kind });
    };
    for ms in (0..5_000).step_by(10) {
        take(&kinds[[0, 0, 1, 2, 2][ms as usize / 1000]], ms);
        if ms % 100 == 0 {
            take(kinds.last().expect("that of the other process"), ms);
        }
        if ms % 500 == 250 {
            take(&kinds[3], ms);
        }
        if ms == 4_100 {
            take(&kinds[4], ms);
        }
    }
    profile.strings.push("/src/app/Phases.cs".to_owned());
    let file = StringId(profile.strings.len() as u32 - 1);
    for at in 0..profile.frames.len() {
        let name = profile.string(profile.frames[at].name).to_owned();
        let lines = [
            "App.Phases.Main",
            "App.Phases.BurnFirst",
            "App.Phases.Inner",
        ];
        if let Some(line) = lines.iter().position(|line| *line == name) {
            profile.frames[at].file = Some(file);
            profile.frames[at].line = 10 * (line as u32 + 1);
        }
    }
    profile.health.interval_ns = 10 * MS;
    profile
}

/// The same, where a thread that waits has a sample in half a second, for all that has passed.
fn waiting() -> Profile {
    const MS: u64 = 1_000_000;
    let mut profile = phased();
    let begin = profile.processes[0].start_ns;
    let idle = profile.threads.iter().position(|t| t.name == "idle");
    let idle = idle.expect("a thread waits") as u32;
    profile.samples.retain_mut(|sample| {
        let at = sample.time_ns - begin;
        if sample.thread.0 == idle {
            sample.value = (500 * MS).min(at);
        }
        sample.thread.0 != idle || at % (500 * MS) == 400 * MS
    });
    profile.health.sources = vec![profile::model::Source {
        event: Event::Wall,
        source: "ticks".to_owned(),
        walker: "signal".to_owned(),
        interval: 10 * MS,
        by_time: true,
    }];
    profile
}

/// What a range of time leaves in the page is what it leaves in a report.
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
            page.args(
                ["decode.js", "threads.js", "weights.js", "tree.js"]
                    .map(|script| assets.join(script)),
            );
            let text = stdout_of(&mut page);
            let mut seen: Vec<&str> = text.lines().collect();
            let event = ops::main_event(&profile).expect("there are samples");
            let within = ops::seen_by(filter.apply(profile.clone()), Stacks::Logical);
            let table = ops::totals(&within, By::Method, |sample| sample.event == event);
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

/// A range of time, the heatmap, tracks, callers and callees, links: by mouse and by keyboard.
#[test]
fn the_page_shows_time_and_methods_in_a_browser() {
    let text = (1..60).map(|line| format!("\tline <b>{line}</b>; // \u{202e}\n"));
    let options = Options {
        sources: [("/src/app/Phases.cs".to_owned(), text.collect())].into(),
        ..Options::default()
    };
    let page = file_with("browser-phased", Format::Html, &phased(), &options);
    let inert = file("browser-hostile", Format::Html, &hostile());
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures");
    std::fs::create_dir_all(&pictures).expect("the folder for tests' files takes folders");
    let mut browser = node(&Tools::get(), "time.mjs");
    stdout_of(
        browser
            .arg(testkit::chromium())
            .arg(pictures)
            .arg(page)
            .arg(inert),
    );
}

/// The trees and the table that the page draws are those that the library computes.
#[test]
fn the_page_draws_the_profile() {
    let tools = Tools::get();
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets");
    let views = scenes().into_iter().flat_map(|(scene, profile)| {
        let has_both = ops::has_logical(&profile);
        let views = Stacks::ALL.into_iter().take(1 + usize::from(has_both));
        views.map(move |stacks| (scene, profile.clone(), stacks))
    });
    for (scene, profile, stacks) in views {
        let path = file(scene, Format::Html, &profile);
        let profile = ops::seen_by(profile, stacks);
        let mut page = node(&tools, "page.mjs");
        page.arg(path).arg(stacks.name()).arg("all");
        page.args(
            ["decode.js", "threads.js", "weights.js", "tree.js"].map(|script| assets.join(script)),
        );
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
            let tree = ops::Tree::new(&profile, By::Method, direction, |s| s.event == event);
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

        let table = ops::totals(&profile, By::Method, |sample| sample.event == event);
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
