//! Profiles that viewers are tried on.

use std::path::{Path, PathBuf};

use formats::Profile;
use profile::model::Event;
use profile::ops::{self, GroupBy};

use crate::common::{HOSTILE, RecordedProfile, awaited, profile_of};

/// Hostile names, several threads, recursion, frames that differ in nothing but the line.
pub(crate) fn hostile() -> Profile {
    let count = HOSTILE.len();
    let stacks = (0..4 * count).map(|at| RecordedProfile {
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

pub(crate) fn scenes() -> [(&'static str, Profile); 8] {
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

/// A graph as strangers had it: deep, with a method that is hard to find, two tiers of one line,
/// thousands of small callers, and a thread without managed code.
pub(crate) fn large() -> Profile {
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

/// A program before and after: one method takes more of it, one is new, one is gone, one is as it
/// was.
pub(crate) fn compared() -> PathBuf {
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
    let (profile, first_after) =
        ops::merge_sides(named("before.swk", before), named("after.swk", after));
    let request = ops::DiffRequest {
        event: Event::Cpu,
        by: GroupBy::Method,
        per: ops::Scaling::Whole,
        error: ops::ERROR,
    };
    let diff = ops::diff(&profile, first_after, request);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("viewers-compared.html");
    let mut out = Vec::new();
    formats::diff::html(&profile, &diff, request, &mut out).expect("a Vec");
    std::fs::write(&path, out).expect("the folder for tests' files takes files");
    path
}

/// Two seconds in one method, one in which it waits, two in another one that calls itself; a
/// collection every half second, exceptions, another process, lines. Times are exact.
pub(crate) fn phased() -> Profile {
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
pub(crate) fn waiting() -> Profile {
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
    profile.health.sources = vec![profile::model::SampleSource {
        event: Event::Wall,
        source: "ticks".to_owned(),
        walker: "signal".to_owned(),
        interval: 10 * MS,
        by_time: true,
    }];
    profile
}
