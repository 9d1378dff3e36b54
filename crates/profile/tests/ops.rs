//! Sums and trees of the canonical scenes, and laws that hold for any profile.

use profile::model::{
    Detail, Event, Frame, FrameKind, Process, ProcessId, Profile, Sample, Thread, ThreadId, Tier,
    WalkEnd,
};
use profile::ops::{
    Direction, Filter, GroupBy, StackView, Tree, Weight, cut, events, has_details, has_logical,
    main_event, texts, totals, with_details, with_runtime_work, with_stack_view, without_native,
};
use profile::{Builder, testing};
use proptest::prelude::*;
use regex::Regex;

fn table(profile: &Profile, by: GroupBy) -> String {
    let line = |row: &profile::ops::TotalsRow| {
        let kind = row
            .group
            .kind
            .map_or(String::new(), |kind| format!("  {kind:?}"));
        let (own, total) = (row.own.samples, row.total.samples);
        format!("{own:>4} {total:>4}  {}{kind}\n", row.group.label)
    };
    totals(profile, by, |_| true).iter().map(line).collect()
}

fn drawn(tree: &Tree) -> String {
    let mut text = String::new();
    tree.walk(|index, depth| {
        let node = &tree.nodes[index as usize];
        let (own, total) = (node.own.samples, node.total.samples);
        text.push_str(&format!(
            "{own:>4} {total:>4}  {}{}\n",
            "  ".repeat(depth),
            tree.label(node)
        ));
        true
    });
    text
}

#[test]
fn tables_of_tiny() {
    let profile = testing::tiny().profile();
    let all = [
        GroupBy::Method,
        GroupBy::Module,
        GroupBy::Runtime,
        GroupBy::Thread,
        GroupBy::Event,
        GroupBy::Process,
    ];
    let tables: Vec<_> = all
        .into_iter()
        .map(|by| format!("{by:?}\n{}", table(&profile, by)))
        .collect();
    insta::assert_snapshot!(tables.join("\n"));
}

#[test]
fn trees_of_tiny() {
    let profile = testing::tiny().profile();
    let tree = |by, direction| drawn(&Tree::new(&profile, by, direction, |_| true));
    insta::assert_snapshot!("tiny_callees", tree(GroupBy::Method, Direction::Callees));
    insta::assert_snapshot!("tiny_callers", tree(GroupBy::Method, Direction::Callers));
    insta::assert_snapshot!("tiny_modules", tree(GroupBy::Module, Direction::Callees));
}

#[test]
fn two_runtimes_are_told_apart() {
    let profile = testing::two_runtimes().profile();
    insta::assert_snapshot!(drawn(&Tree::new(&profile, GroupBy::Method, Direction::Callees, |sample| {
        sample.event == Event::Cpu
    })), @r"
       0   40  all
       0   40    App.Program.Main [8.0.4]
      10   40      Shared.Step [8.0.4]
       0   30        bridge_call
      20   30          Shared.Step [3.1.23]
       0   10            bridge_call
      10   10              Shared.Step [8.0.4]
    ");
    insta::assert_snapshot!(table(&profile, GroupBy::Runtime), @r"
      30   40  .NET 3.1.23  Managed
      20   50  .NET 8.0.4  Managed
       0   40  [native]  Native
    ");
}

/// Two CLRs run the same file, and each has a `libcoreclr.so`.
#[test]
fn files_of_two_runtimes_are_told_apart() {
    let mut scene = testing::Scene::new(1, &["host"]);
    let thread = scene.thread(1, "main", true);
    let mut frames = Vec::new();
    for (version, clr) in [
        ("3.1.23", "/net/3.1.23/libcoreclr.so"),
        ("8.0.4", "/net/8.0.4/libcoreclr.so"),
    ] {
        let runtime = scene.runtime(version);
        let app = scene.managed_module(runtime, "/srv/app.dll");
        let clr = scene.native_module(clr);
        frames.push(scene.native(clr, 16, "coreclr_execute_assembly"));
        let main = scene.method(runtime, app, "App", "Main");
        frames.push(scene.managed(main, Tier::Tier1, 0));
    }
    let libc = scene.native_module("/usr/lib/libc.so.6");
    frames.push(scene.native(libc, 16, "write"));
    let stack = scene.stack(&frames);
    scene.samples(thread, stack, 1);
    scene.end();
    let profile = scene.profile();
    insta::assert_snapshot!(table(&profile, GroupBy::Module), @r"
    1    1  libc.so.6  Native
    0    1  app.dll [3.1.23]  Managed
    0    1  app.dll [8.0.4]  Managed
    0    1  libcoreclr.so [3.1.23]  Runtime
    0    1  libcoreclr.so [8.0.4]  Runtime
    ");
    insta::assert_snapshot!(table(&profile, GroupBy::Method), @r"
    1    1  write  Native
    0    1  App.Main [3.1.23]  Managed
    0    1  App.Main [8.0.4]  Managed
    0    1  coreclr_execute_assembly [3.1.23]  Runtime
    0    1  coreclr_execute_assembly [8.0.4]  Runtime
    ");
}

#[test]
fn what_events_are_about() {
    let profile = testing::events().profile();
    let of = |event: Event| {
        totals(&profile, GroupBy::Detail, |sample| sample.event == event)
            .iter()
            .map(|row| {
                format!(
                    "{} {}  {}\n",
                    row.own.samples, row.own.value, row.group.label
                )
            })
            .collect::<String>()
    };
    insta::assert_snapshot!(of(Event::Alloc), @r"
    1 5242880  System.Collections.Generic.Dictionary<int, Item>.Entry[]
    4 409600  System.String
    3 307200  Shop.Order
    ");
    insta::assert_snapshot!(of(Event::Exception), @r"
    4 4  System.FormatException
    2 2  System.IO.FileNotFoundException
    ");
    assert_eq!(of(Event::Wall), "10 200000000  [no detail]\n");
    assert!(has_details(&profile, Event::Jit) && !has_details(&profile, Event::Cpu));
    let texts = texts(&profile, |sample| sample.event == Event::Exception);
    let texts: Vec<_> = texts
        .values()
        .flatten()
        .map(|(text, weight)| (profile.string(*text).len(), weight.samples))
        .collect();
    assert_eq!(texts, [(77, 3), (76, 1)]);
    insta::assert_snapshot!(drawn(&Tree::new(
        &with_details(profile.clone()),
        GroupBy::Method,
        Direction::Callees,
        |sample| sample.event == Event::Exception
    )), @r"
       0    6  all
       0    6    Shop.Program.Main
       0    4      Shop.Order.Parse
       4    4        System.FormatException
       0    2      Shop.Catalog.Load
       2    2        System.IO.FileNotFoundException
    ");
    // Nothing is about anything: nothing changes.
    let tiny = testing::tiny().profile();
    assert_eq!(with_details(tiny.clone()), tiny);
}

/// Each sample's thread and stack, root first.
fn stacks(profile: &Profile) -> Vec<String> {
    let of = |stack| {
        let frames: Vec<_> = profile
            .frames_of(stack)
            .map(|frame| profile.name(frame))
            .collect();
        frames.into_iter().rev().collect::<Vec<_>>().join(" ")
    };
    profile
        .samples
        .iter()
        .map(|sample| of(sample.stack))
        .collect()
}

#[test]
fn what_the_runtime_is_at_is_named_where_it_is_known() {
    let mut scene = testing::Scene::new(1, &["x"]);
    let runtime = scene.runtime("8.0.33");
    let core = scene.native_module("/d/libcoreclr.so");
    let jit = scene.native_module("/d/libclrjit.so");
    let gc = scene.native_module("/d/libclrgc.so");
    let app = scene.managed_module(runtime, "/app/app.dll");
    let main = scene.method(runtime, app, "App", "Main");
    let main = scene.managed(main, recording::Tier::Tier1, 0);
    let [r, s] = [0x10, 0x20].map(|at| {
        scene.frame(recording::Frame::Native {
            module: core,
            svma: at,
        })
    });
    let [j, k] = [0x10, 0x20].map(|at| {
        scene.frame(recording::Frame::Native {
            module: jit,
            svma: at,
        })
    });
    let g = scene.frame(recording::Frame::Native {
        module: gc,
        svma: 0x10,
    });
    let programs = scene.thread(1, "main", true);
    let tiering = scene.thread(2, ".NET Tiered Com", false);
    let tiering_of_11 = scene.thread(4, ".NET Tiered JIT", false);
    let server = scene.thread(3, ".NET Server GC", false);
    for (thread, frames) in [
        (programs, &[main, r, j, k][..]),
        // Back in the runtime on the compiler's behalf, and managed code from there.
        (programs, &[main, r, j, s, k, main, r, j]),
        (programs, &[main, r, s]),
        (programs, &[r, g]),
        (tiering, &[r, s, j]),
        (tiering, &[r, s]),
        (tiering_of_11, &[r, s, k]),
        (server, &[r, g]),
        (server, &[r, main, s]),
    ] {
        let stack = scene.stack(frames);
        scene.samples(thread, stack, 1);
    }
    let before = scene.profile();
    let profile = with_runtime_work(before.clone());
    let short = |text: String| {
        let text = text
            .replace("libcoreclr.so+0x10", "r")
            .replace("libcoreclr.so+0x20", "s");
        let text = text
            .replace("libclrjit.so+0x10", "j")
            .replace("libclrjit.so+0x20", "k");
        text.replace("libclrgc.so+0x10", "g")
            .replace("App.Main", "main")
    };
    let found: Vec<String> = stacks(&profile).into_iter().map(short).collect();
    assert_eq!(
        found,
        [
            "main r [JIT compiler] j k",
            "main r [JIT compiler] j s k main r [JIT compiler] j",
            "main r s",
            "r [GC] g",
            "[tiered compilation] r s [JIT compiler] j",
            "[tiered compilation] r s",
            "[tiered compilation] r s [JIT compiler] k",
            "[GC] r g",
            "r main s",
        ]
    );
    let weights = |profile: &Profile| -> Vec<u64> {
        profile.samples.iter().map(|sample| sample.value).collect()
    };
    assert_eq!(weights(&profile), weights(&before));
    // Nothing to name, nothing changed.
    let other = testing::two_runtimes().profile();
    assert_eq!(with_runtime_work(other.clone()), other);
}

#[test]
fn recursion_counts_once_in_totals_and_no_depth_overflows() {
    let profile = testing::deep().profile();
    insta::assert_snapshot!(table(&profile, GroupBy::Method), @r"
      10   10  Deep.Program.Down  Managed
       0    8  Deep.Program.Main  Managed
       0    2  [truncated]  Pseudo
    ");
    let tree = Tree::new(&profile, GroupBy::Method, Direction::Callers, |_| true);
    let mut deepest = 0;
    tree.walk(|_, depth| {
        deepest = deepest.max(depth);
        true
    });
    assert_eq!(deepest, 5_001);
}

#[test]
fn without_native_keeps_every_sample() {
    let profile = without_native(testing::tiny().profile());
    insta::assert_snapshot!(drawn(&Tree::new(&profile, GroupBy::Method, Direction::Callees, |_| true)), @r"
       0  100  all
       0   48    Sample.Program.Main
      45   48      Sample.Worker.Hash
       3    3        [write barrier]
       0   45    System.Threading.Thread.StartCallback
      20   45      Sample.Worker.Hash
      25   25        Sample.Worker.Parse
       4    4    [native]
       2    2    [broken: no unwind rule]
       0    1    [truncated]
       0    1      Sample.Worker.Hash
       1    1        Sample.Worker.Parse
    ");
}

#[test]
fn filters() {
    let regex = |text: &str| vec![Regex::new(text).unwrap()];
    let table: [(&str, Filter, usize); 10] = [
        ("nothing set", Filter::default(), 100),
        (
            "thread by name",
            Filter {
                thread: regex("Server GC"),
                ..Filter::default()
            },
            6,
        ),
        (
            "thread by tid",
            Filter {
                thread: regex("^4250$"),
                ..Filter::default()
            },
            46,
        ),
        (
            "pid",
            Filter {
                process: regex("^4242$"),
                ..Filter::default()
            },
            100,
        ),
        (
            "no such pid",
            Filter {
                process: regex("^1$"),
                ..Filter::default()
            },
            0,
        ),
        (
            "event",
            Filter {
                event: Some(Event::Wall),
                ..Filter::default()
            },
            0,
        ),
        (
            "runtime",
            Filter {
                runtime: Some("8".into()),
                ..Filter::default()
            },
            94,
        ),
        (
            "other runtime",
            Filter {
                runtime: Some("8.0.41".into()),
                ..Filter::default()
            },
            0,
        ),
        (
            "frame",
            Filter {
                frame: regex("Parse$"),
                ..Filter::default()
            },
            26,
        ),
        (
            "no frame",
            Filter {
                no_frame: regex("Parse$"),
                ..Filter::default()
            },
            74,
        ),
    ];
    for (name, filter, expected) in table {
        let profile = filter.apply(testing::tiny().profile());
        assert_eq!(profile.samples.len(), expected, "{name}");
        assert_eq!(profile.health.samples, 100, "{name}");
    }
    let profile = testing::tiny().profile();
    let (from_ns, until_ns) = (profile.samples[10].time_ns, profile.samples[30].time_ns);
    let filter = Filter {
        from_ns: Some(from_ns),
        until_ns: Some(until_ns),
        ..Filter::default()
    };
    assert_eq!(filter.apply(profile).samples.len(), 20);
}

/// The rest of `testing::tree`: processes, threads, runtimes, pauses, samples.
#[test]
fn filters_of_a_tree_of_processes() {
    let regex = |text: &str| vec![Regex::new(text).unwrap()];
    let whole = Filter::default;
    let table: [(&str, Filter, [usize; 5]); 9] = [
        ("nothing set", whole(), [3, 6, 3, 3, 100]),
        (
            "a command of the SDK",
            Filter {
                process: regex("^dotnet run$"),
                ..whole()
            },
            [1, 2, 1, 1, 60],
        ),
        (
            "two by pid",
            Filter {
                process: regex("^1[12]$"),
                ..whole()
            },
            [2, 4, 2, 2, 40],
        ),
        (
            "threads of all processes",
            Filter {
                thread: regex("Main"),
                ..whole()
            },
            [3, 3, 3, 3, 50],
        ),
        (
            "a thread of one process",
            Filter {
                process: regex("^App$"),
                thread: regex("^112$"),
                ..whole()
            },
            [1, 1, 1, 1, 5],
        ),
        (
            "a thread of another process",
            Filter {
                process: regex("^App$"),
                thread: regex("^111$"),
                ..whole()
            },
            [1, 0, 1, 1, 0],
        ),
        (
            "threads without such a frame",
            Filter {
                frame: regex("^Tools.build$"),
                ..whole()
            },
            [3, 1, 3, 3, 30],
        ),
        (
            "stacks without a frame",
            Filter {
                no_frame: regex("^Tools.(build|compile)$"),
                ..whole()
            },
            [3, 4, 3, 3, 55],
        ),
        (
            "with one and without another",
            Filter {
                frame: regex("Step"),
                no_frame: regex("build|compile|Worker"),
                ..whole()
            },
            [3, 3, 3, 3, 50],
        ),
    ];
    for (name, filter, expected) in table {
        let profile = filter.apply(testing::tree().profile());
        let left = [
            profile.processes.len(),
            profile.threads.len(),
            profile.runtimes.len(),
            profile.pauses.len(),
            profile.samples.len(),
        ];
        assert_eq!(left, expected, "{name}");
        assert_eq!(profile.health.samples, 100, "{name}");
        // Each index is still that of the same thing.
        for sample in &profile.samples {
            let thread = profile.thread(sample.thread);
            let process = profile.process(thread.process);
            assert!(
                [process.pid, process.pid + 100].contains(&thread.tid),
                "{name}"
            );
            for frame in profile.frames_of(sample.stack) {
                let runtime = profile.frame(frame).runtime.unwrap();
                assert_eq!(profile.runtime(runtime).process, thread.process, "{name}");
            }
        }
    }
}

#[test]
fn frames_are_looked_for_in_the_stacks_that_are_shown_and_in_details() {
    let count = |profile: Profile, frame: &str, stacks| {
        let frame = vec![Regex::new(frame).unwrap()];
        let filter = Filter {
            frame,
            stacks,
            ..Filter::default()
        };
        filter.apply(profile).samples.len()
    };
    let awaits = || testing::awaits().profile();
    // A name that only the logical stack of some sample has.
    let profile = awaits();
    let only_there = profile.samples.iter().find_map(|sample| {
        let names = |stack| profile.frames_of(stack).map(|frame| profile.name(frame));
        let physical: Vec<&str> = names(sample.stack).collect();
        names(sample.logical?).find(|name| !physical.contains(name))
    });
    let only_there = format!("^{}$", regex::escape(only_there.unwrap()));
    let with = |stacks| count(awaits(), &only_there, stacks);
    assert!(with(StackView::Logical) > with(StackView::Physical));
    let events = testing::events().profile();
    let thrown = events
        .samples
        .iter()
        .filter(|sample| sample.event == Event::Exception);
    let detail = thrown.filter_map(|sample| sample.detail).next().unwrap();
    let name = regex::escape(events.string(events.detail(detail).name));
    let same = events.samples.iter().filter(|sample| {
        let of =
            |id| events.string(events.detail(id).name) == events.string(events.detail(detail).name);
        sample.detail.is_some_and(of)
    });
    let same = same.count();
    assert_eq!(
        count(events.clone(), &format!("^{name}$"), StackView::Logical),
        same
    );
}

#[test]
fn the_event_sampled_by_time_is_the_main_one() {
    let profile = testing::two_runtimes().profile();
    let cpu = Weight {
        samples: 40,
        value: 40 * testing::INTERVAL,
    };
    let thrown = Weight {
        samples: 10,
        value: 10,
    };
    assert_eq!(
        events(&profile),
        [(Event::Cpu, cpu), (Event::Exception, thrown)]
    );
    assert_eq!(main_event(&profile), Some(Event::Cpu));
    let only = Filter {
        event: Some(Event::Exception),
        ..Filter::default()
    }
    .apply(profile);
    assert_eq!(main_event(&only), Some(Event::Exception));
    assert_eq!(main_event(&Profile::default()), None);
}

/// Any profile: few names, so that recursion and shared prefixes happen.
fn any_profile() -> impl Strategy<Value = Profile> {
    let stack = proptest::collection::vec(0..6u32, 1..9);
    let detail = proptest::option::of(0..6u8);
    let sample = (stack, 0..2u32, 0..3u8, 0..1_000u64, detail);
    proptest::collection::vec(sample, 0..40).prop_map(|samples| {
        let mut builder = Builder::new();
        let process = |pid| Process {
            pid,
            parent: 0,
            command: vec!["x".into()],
            start_unix_ns: 0,
            start_ns: 0,
            end_ns: 0,
            ended: true,
            recording: 0,
        };
        builder.profile.processes = vec![process(1), process(2)];
        for process in 0..2 {
            builder.profile.threads.push(Thread {
                process: ProcessId(process),
                tid: process,
                name: format!("t{process}"),
                managed: true,
                start_ns: 0,
                end_ns: None,
                cpu_ns: None,
                state: None,
            });
        }
        for (time_ns, (stack, thread, event, value, detail)) in samples.into_iter().enumerate() {
            let frames: Vec<_> = stack
                .iter()
                .map(|&number| {
                    let name = builder.string(&format!("f{}", number / 2));
                    let kind = if number >= 4 {
                        FrameKind::Native
                    } else {
                        FrameKind::Managed
                    };
                    builder.frame(Frame {
                        line: number,
                        ..Frame::new(name, kind)
                    })
                })
                .collect();
            let stack = builder.stack_of(&frames).unwrap();
            // Some have another way up to the root.
            let logical = (time_ns % 3 == 0).then(|| {
                let name = builder.string("[awaited]");
                let root = builder.frame(Frame::new(name, FrameKind::Async));
                builder
                    .stack_of(&[&[root], &frames[frames.len() / 2..]].concat())
                    .unwrap()
            });
            let event = Event::from_code(event).unwrap();
            let detail = detail.map(|number| {
                let name = builder.string(&format!("f{}", number / 2));
                let text = builder.string(&number.to_string());
                builder.detail(Detail { event, name, text })
            });
            builder.profile.samples.push(Sample {
                thread: ThreadId(thread),
                stack,
                time_ns: time_ns as u64,
                event,
                value,
                end: WalkEnd::Root,
                detail,
                logical,
            });
        }
        builder.finish()
    })
}

fn sum(weights: impl IntoIterator<Item = Weight>) -> Weight {
    let mut sum = Weight::default();
    weights.into_iter().for_each(|weight| sum += weight);
    sum
}

proptest! {
    #[test]
    fn self_sums_are_all_samples_and_totals_never_more(profile in any_profile()) {
        let all = sum(profile.samples.iter().map(|sample| Weight::of(sample.value)));
        for by in GroupBy::ALL {
            let rows = totals(&profile, by, |_| true);
            prop_assert_eq!(sum(rows.iter().map(|row| row.own)), all, "{:?}", by);
            for row in &rows {
                prop_assert!(row.own.samples <= row.total.samples);
                prop_assert!(row.total.samples <= all.samples && row.total.value <= all.value);
            }
        }
    }

    #[test]
    fn totals_count_a_sample_once(profile in any_profile()) {
        // The slow way, straight from the definition.
        for row in totals(&profile, GroupBy::Line, |_| true) {
            let frame = row.group.frame.unwrap();
            let having = profile.samples.iter().filter(|sample| {
                profile.frames_of(sample.stack).any(|other| other == frame)
            });
            prop_assert_eq!(sum(having.map(|sample| Weight::of(sample.value))), row.total);
        }
    }

    #[test]
    fn a_tree_adds_up_both_ways(profile in any_profile()) {
        let all = sum(profile.samples.iter().map(|sample| Weight::of(sample.value)));
        for by in GroupBy::ALL {
            for direction in [Direction::Callees, Direction::Callers] {
                let tree = Tree::new(&profile, by, direction, |_| true);
                prop_assert_eq!(tree.root().total, all);
                let mut visited = 0;
                tree.walk(|_, _| { visited += 1; true });
                prop_assert_eq!(visited, tree.nodes.len());
                for (index, node) in tree.nodes.iter().enumerate() {
                    let children = tree.children(index as u32).iter();
                    let children: Vec<_> =
                        children.map(|&child| &tree.nodes[child as usize]).collect();
                    let mut below = sum(children.iter().map(|child| child.total));
                    below += node.own;
                    prop_assert_eq!(below, node.total);
                    prop_assert!(children.iter().all(|child| child.parent == Some(index as u32)));
                    prop_assert!(children.is_sorted_by(|a, b| a.total >= b.total));
                }
            }
        }
    }

    /// A stack grows by what its sample is about, and nothing else changes.
    #[test]
    fn details_are_one_leaf_more(profile in any_profile()) {
        let after = with_details(profile.clone());
        prop_assert_eq!(profile.samples.len(), after.samples.len());
        for (old, new) in profile.samples.iter().zip(&after.samples) {
            let (stack, logical) = (old.stack, old.logical);
            prop_assert_eq!(Sample { stack, logical, ..*new }, *old);
            let leaf = old.detail.map(|id| profile.string(profile.detail(id).name));
            let names = profile.frames_of(old.stack).map(|frame| profile.name(frame));
            let expected: Vec<_> = leaf.into_iter().chain(names).collect();
            let found: Vec<_> = after.frames_of(new.stack).map(|frame| after.name(frame)).collect();
            prop_assert_eq!(expected, found);
        }
        // Texts tell frames apart that are one method.
        let rows = totals(&after, GroupBy::Method, |sample| sample.detail.is_some());
        let own = rows.iter().filter(|row| row.own.samples > 0);
        prop_assert!(own.into_iter().all(|row| row.group.kind == Some(FrameKind::Detail)));
        prop_assert!(rows.iter().filter(|row| row.group.kind == Some(FrameKind::Detail)).count() <= 3);
    }

    /// Either view adds up to the same, and what is done to one stack of a sample is done to the
    /// other.
    #[test]
    fn both_views_have_the_same_samples(profile in any_profile(), depth in 1u32..6) {
        let all = sum(profile.samples.iter().map(|sample| Weight::of(sample.value)));
        let names = |profile: &Profile| -> Vec<Vec<String>> {
            let each = profile.samples.iter().map(|sample| {
                profile.frames_of(sample.stack).map(|f| profile.name(f).to_owned()).collect()
            });
            each.collect()
        };
        for stacks in StackView::ALL {
            let seen = with_stack_view(profile.clone(), stacks);
            prop_assert!(!has_logical(&seen));
            for by in GroupBy::ALL {
                let rows = totals(&seen, by, |_| true);
                prop_assert_eq!(sum(rows.iter().map(|row| row.own)), all);
            }
            for change in [
                &with_details as &dyn Fn(Profile) -> Profile,
                &without_native,
                &|profile| cut(profile, depth).unwrap(),
            ] {
                let first = names(&change(seen.clone()));
                prop_assert_eq!(names(&with_stack_view(change(profile.clone()), stacks)), first);
            }
        }
    }

    #[test]
    fn rewriting_keeps_samples_and_order(profile in any_profile()) {
        let before: Vec<_> = profile.samples.iter().map(|sample| sample.time_ns).collect();
        let after = without_native(profile.clone());
        prop_assert_eq!(after.samples.iter().map(|s| s.time_ns).collect::<Vec<_>>(), before);
        for (old, new) in profile.samples.iter().zip(&after.samples) {
            let kept: Vec<_> = profile
                .frames_of(old.stack)
                .filter(|frame| profile.frame(*frame).kind != FrameKind::Native)
                .map(|frame| profile.name(frame))
                .collect();
            let found: Vec<_> = after.frames_of(new.stack).map(|frame| after.name(frame)).collect();
            prop_assert_eq!(if kept.is_empty() { vec!["[native]"] } else { kept }, found);
        }
        let parents_first = after.stacks.iter().enumerate();
        for (index, stack) in parents_first {
            prop_assert!(stack.parent.is_none_or(|parent| (parent.0 as usize) < index));
        }
    }
}
