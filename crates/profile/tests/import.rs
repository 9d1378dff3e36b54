//! Recordings in, profiles out.

use profile::model::{Event, FrameKind, Pauses};
use profile::ops::{Counts, StackView};
use profile::testing::{self, Scene};
use profile::{Import, LOST_FRAME, Profile, Totals};
use recording::{ProcessKey, Reader, Record, Tier, WalkEnd};

fn collapsed(profile: &Profile) -> Vec<String> {
    let mut lines = std::collections::BTreeMap::<String, u64>::new();
    for sample in &profile.samples {
        let mut names: Vec<_> = profile
            .frames_of(sample.stack)
            .map(|f| profile.name(f))
            .collect();
        names.reverse();
        *lines.entry(names.join(";")).or_default() += 1;
    }
    lines
        .into_iter()
        .map(|(stack, count)| format!("{stack} {count}"))
        .collect()
}

fn scenes() -> [Scene; 7] {
    [
        testing::tiny(),
        testing::two_runtimes(),
        testing::events(),
        testing::shadow(),
        testing::deep(),
        testing::awaits(),
        testing::live(),
    ]
}

#[test]
fn a_file_gives_the_same_profile_as_its_records() {
    for scene in scenes() {
        let file = scene.file();
        let read = Import::read(Reader::open(file.as_slice()).unwrap()).unwrap();
        assert_eq!(read, scene.profile());
    }
}

#[test]
fn totals_are_those_of_the_profile() {
    for scene in scenes() {
        let file = scene.file();
        // And one that lost its end, with the numbers that the rest would have needed.
        let cut = &file[..file.len() * 2 / 3];
        for file in [&file[..], cut] {
            let profile = Import::read(Reader::open(file).unwrap()).unwrap();
            let Totals {
                profile: alone,
                counts,
            } = Import::totals(Reader::open(file).unwrap()).unwrap();
            assert_eq!((alone.samples.len(), alone.stacks.len()), (0, 0));
            assert_eq!(alone.health, profile.health);
            assert_eq!(alone.runtimes, profile.runtimes);
            assert_eq!(alone.processes, profile.processes);
            assert_eq!(alone.threads, profile.threads);
            let expected = Counts::of(&profile);
            assert_eq!(counts.events, expected.events);
            assert_eq!(counts.by_process, expected.by_process);
            assert_eq!(counts.by_runtime, expected.by_runtime);
        }
    }
}

#[test]
fn health_counts_what_the_recording_says() {
    let health = testing::tiny().profile().health;
    assert_eq!(health.samples, 100);
    assert_eq!(
        health.lost,
        [
            ("ring full".to_owned(), 2),
            ("no stack bounds".to_owned(), 1)
        ]
    );
    assert_eq!(health.broken, [("no unwind rule".to_owned(), 2)]);
    assert_eq!(health.truncated, 1);
    assert_eq!(health.unknown_frames, 0);
    assert_eq!(health.notes, Vec::<String>::new());
}

#[test]
fn events_have_sources_limits_and_details() {
    let profile = testing::events().profile();
    let health = &profile.health;
    let sources: Vec<_> = health
        .sources
        .iter()
        .map(|source| (source.event.name(), source.by_time, source.interval))
        .collect();
    assert_eq!(
        sources,
        [
            ("cpu", true, testing::INTERVAL),
            ("wall", true, 2 * testing::INTERVAL),
            ("exception", false, 0),
            ("alloc", false, 100 << 10),
            ("gc", false, 0),
        ]
    );
    assert_eq!(health.event, Some(Event::Cpu));
    assert_eq!(health.interval_of(Event::Wall), Some(2 * testing::INTERVAL));
    assert_eq!(health.interval_of(Event::Alloc), None);
    let limited: Vec<_> = health
        .limited
        .iter()
        .map(|limited| (limited.event.name(), limited.count, limited.value))
        .collect();
    assert_eq!(limited, [("exception", 4, 4), ("alloc", 30, 3 << 20)]);
    assert_eq!(
        health.pauses,
        Pauses {
            count: 3,
            total_ns: 6_000_000,
            median_ns: 1_100_000,
            longest_ns: 4_000_000,
            stopping_ns: 150_000,
        }
    );
    let about = |event: Event| -> Vec<_> {
        let samples = profile.samples.iter().filter(|s| s.event == event);
        let details = samples.map(|s| s.detail.map(|id| profile.detail(id)));
        let texts = details.map(|d| d.map(|d| (profile.string(d.name), profile.string(d.text))));
        texts.collect()
    };
    assert_eq!(about(Event::Cpu), vec![None; 20]);
    assert_eq!(
        about(Event::Gc),
        [
            Some(("generation 0", "allocation")),
            Some(("generation 2", "induced"))
        ]
    );
}

/// Another process may tell the same: it is the same detail, the same source, and limits add up.
#[test]
fn processes_share_what_events_are_about() {
    let mut scene = Scene::new(1, &["x"]);
    for pid in [1, 2] {
        if pid == 2 {
            scene.process(2, 1, &["x"]);
        }
        let thread = scene.thread(pid, "main", true);
        let frame = scene.frame(recording::Frame::Unknown { address: 1 });
        let stack = scene.stack(&[frame]);
        // Ids are the process's own.
        if pid == 2 {
            scene.detail(Event::Exception, "Other", "");
        }
        let detail = scene.detail(Event::Exception, "Same", "text");
        scene.about(thread, stack, Event::Exception, 1, detail);
        scene.push(Record::Source {
            event: Event::Exception,
            source: "callback".into(),
            walker: "snapshot".into(),
            interval: 0,
        });
        scene.push(Record::Limited {
            event: Event::Exception,
            count: 2,
            value: u64::MAX,
        });
        scene.end();
    }
    let profile = scene.profile();
    assert_eq!(profile.samples[0].detail, profile.samples[1].detail);
    assert!(profile.samples[0].detail.is_some());
    // One by time and one not.
    assert_eq!(profile.health.sources.len(), 2);
    let limited = profile.health.limited[0];
    assert_eq!((limited.count, limited.value), (4, u64::MAX));
}

/// Ten seconds: an event for the middle two and the last one, another until the sixth.
#[test]
fn an_event_that_was_switched_says_for_how_long_it_was_on() {
    let mut scene = Scene::new(1, &["x"]);
    let start = scene
        .records()
        .iter()
        .find_map(|(_, record)| match record {
            Record::Process { time_ns, .. } => Some(*time_ns),
            _ => None,
        })
        .unwrap();
    let set = |events: &[Event]| events.iter().fold(0, |set, event| set | 1 << *event as u32);
    let (cpu, gc) = (Event::Cpu, Event::Gc);
    for (second, before, after) in [
        (4, set(&[cpu, gc]), set(&[cpu, gc, Event::Exception])),
        (6, set(&[cpu, gc, Event::Exception]), set(&[cpu])),
        (9, set(&[cpu]), set(&[cpu, Event::Exception])),
    ] {
        scene.push(Record::Change {
            time_ns: start + second * 1_000_000_000,
            before,
            after,
        });
    }
    scene.push(Record::End {
        time_ns: start + 10_000_000_000,
    });
    let profile = scene.profile();
    let partial: Vec<_> = profile
        .health
        .partial
        .iter()
        .map(|partial| (partial.event, partial.on_ns / 1_000_000_000))
        .collect();
    assert_eq!(partial, [(Event::Exception, 3), (gc, 6)]);
    let note = "exception was recorded for 3.0 s of 10.0 s";
    assert!(
        profile.health.notes.iter().any(|text| text.contains(note)),
        "{:?}",
        profile.health.notes
    );
    assert_eq!(testing::tiny().profile().health.partial, []);
}

/// Where the stack does not tell, or the class has a name, that is what it is called.
#[test]
fn objects_of_suspended_methods_are_named_by_their_methods() {
    let mut scene = Scene::new(1, &["x"]);
    let runtime = scene.runtime("11.0.0");
    let thread = scene.thread(1, "main", true);
    let own = scene.managed_module(runtime, "/app/shop.dll");
    let core = scene.managed_module(runtime, "/dotnet/System.Private.CoreLib.dll");
    let mut frame = |module, type_name, name| {
        let method = scene.method(runtime, module, type_name, name);
        scene.managed(method, Tier::Unknown, 0)
    };
    let main = frame(own, "Shop.Program", "Main");
    let buy = frame(own, "Shop.Cart", "BuyAsync");
    let makes = "System.Runtime.CompilerServices.AsyncHelpers";
    let [plain, of_class] =
        ["AllocContinuation", "AllocContinuationClass"].map(|name| frame(core, makes, name));
    let allocates = frame(core, "System.RuntimeTypeHandle", "InternalAllocNoChecks");
    let native = scene.frame(recording::Frame::Unknown { address: 1 });
    const BASE: &str = "System.Runtime.CompilerServices.Continuation";
    for (frames, event, class) in [
        (&[main, buy, plain, allocates][..], Event::Alloc, "?"),
        (
            &[main, buy, of_class, plain, allocates, native],
            Event::Alloc,
            BASE,
        ),
        (&[main, buy, plain], Event::Alloc, "Shop.Order"),
        (&[main, buy, allocates], Event::Alloc, "?"),
        (&[native, plain], Event::Alloc, "?"),
        (&[main, plain], Event::ClassLoad, "?"),
    ] {
        let (stack, detail) = (scene.stack(frames), scene.detail(event, class, "64 bytes"));
        scene.about(thread, stack, event, 64, detail);
    }
    scene.end();
    let profile = scene.profile();
    let details = profile
        .samples
        .iter()
        .map(|sample| profile.detail(sample.detail.unwrap()));
    let names: Vec<_> = details
        .map(|it| (profile.string(it.name), profile.string(it.text)))
        .collect();
    let suspended = "[suspended Shop.Cart.BuyAsync]";
    let expected = [suspended, suspended, "Shop.Order", "?", "?", "?"];
    assert_eq!(names, expected.map(|name| (name, "64 bytes")));
}

/// A detail that a lost block defined is not there; the sample is.
#[test]
fn an_unknown_detail_is_none() {
    let mut scene = Scene::new(1, &["x"]);
    let thread = scene.thread(1, "main", true);
    let frame = scene.frame(recording::Frame::Unknown { address: 1 });
    let stack = scene.stack(&[frame]);
    scene.about(thread, stack, Event::Alloc, 24, 99);
    scene.end();
    let profile = scene.profile();
    assert_eq!(profile.samples.len(), 1);
    assert_eq!(profile.samples[0].detail, None);
}

#[test]
fn a_recording_without_its_end_says_so_and_keeps_its_samples() {
    let scene = testing::tiny();
    let without_end = || {
        let mut import = Import::new();
        for (process, record) in scene.records() {
            if !matches!(record, Record::End { .. } | Record::Broken { .. }) {
                import.record(*process, record);
            }
        }
        import
    };
    let profile = without_end().finish();
    assert_eq!(profile.samples.len(), 100);
    // The stacks themselves say why they broke.
    assert_eq!(profile.health.broken, [("no unwind rule".to_owned(), 2)]);
    assert_eq!(
        profile.health.notes,
        [
            "process 4242 (sample.dll) did not say that it ended: it was killed, it ended without \
          shutting its runtime down, or the recording was cut; up to its last 0.1 s is missing"
        ]
    );
    assert_eq!(profile.health.abrupt, [4242]);
    // Of a process that goes on, its recorder has said so.
    let note = format!("process 4242 {}: it is frozen", profile::names::GOES_ON);
    let text = note.clone().into();
    let mut cut = without_end();
    cut.record(scene.records()[0].0, &Record::Note { text });
    let health = cut.finish().health;
    assert_eq!((health.notes, health.abrupt), (vec![note], vec![]));
}

#[test]
fn what_a_lost_block_defined_becomes_a_lost_frame_and_is_counted() {
    let mut scene = Scene::new(1, &["x"]);
    let thread = scene.thread(1, "main", true);
    for (parent, frame) in [(None, 7), (Some(9), 7)] {
        let stack = if parent.is_some() { 11 } else { 10 };
        scene.push(Record::Stack {
            stack,
            parent,
            frame,
        });
    }
    for stack in [10, 11, 99] {
        scene.samples(thread, stack, 1);
    }
    scene.samples(55, 10, 1);
    scene.end();
    let profile = scene.profile();
    assert_eq!(profile.samples.len(), 4);
    assert!(
        profile
            .samples
            .iter()
            .all(|sample| sample.end == WalkEnd::Broken)
    );
    assert_eq!(
        profile.health.broken,
        [("lost: damaged block".to_owned(), 4)]
    );
    assert_eq!(
        profile.health.notes,
        ["4 samples have frames that lay in a damaged block"]
    );
    assert_eq!(
        collapsed(&profile),
        [
            format!("{LOST_FRAME} 3"),
            format!("{LOST_FRAME};{LOST_FRAME} 1")
        ]
    );
}

#[test]
fn the_runtime_inside_a_single_file_app_is_the_runtime() {
    let mut scene = Scene::new(1, &["./publish/app", "--x"]);
    scene.runtime("10.0.12");
    let app = scene.native_module("/srv/publish/app");
    let other = scene.native_module("/usr/lib/libother.so");
    let thread = scene.thread(1, "main", true);
    let frames = [
        scene.native(other, 16, "below"),
        scene.native(app, 32, "gc"),
    ];
    let stack = scene.stack(&frames);
    scene.samples(thread, stack, 1);
    scene.end();
    let profile = scene.profile();
    let kinds: Vec<_> = profile
        .frames_of(profile.samples[0].stack)
        .map(|frame| (profile.name(frame), profile.frame(frame).kind))
        .collect();
    assert_eq!(
        kinds,
        [("gc", FrameKind::Runtime), ("below", FrameKind::Native)]
    );
}

#[test]
fn symbols_name_native_frames_and_put_inlined_ones_above() {
    let mut scene = Scene::new(1, &["x"]);
    let library = scene.native_module("/usr/lib/libwork.so");
    let agent = scene.native_module("/opt/sidewalk/lib/libsidewalk.so");
    let thread = scene.thread(1, "main", false);
    let frame = |svma| recording::Frame::Native {
        module: library,
        svma,
    };
    let root = scene.frame(frame(0x10));
    let leaf = scene.frame(frame(0x20));
    let own = scene.frame(recording::Frame::Native {
        module: agent,
        svma: 0x30,
    });
    let own_too = scene.frame(recording::Frame::Native {
        module: agent,
        svma: 0x40,
    });
    let stack = scene.stack(&[root, leaf, own, own_too]);
    scene.samples(thread, stack, 2);
    for (name, line) in [("inner", 3), ("middle", 7), ("outer", 11)] {
        let file = "work.c".into();
        scene.push(Record::Symbol {
            frame: leaf,
            name: name.into(),
            file,
            line,
        });
    }
    scene.end();
    let profile = scene.profile();
    let shown: Vec<_> = profile
        .frames_of(profile.samples[0].stack)
        .map(|frame| {
            let value = profile.frame(frame);
            (profile.name(frame), value.line, value.inlined)
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("[sidewalk agent]", 0, false),
            ("inner", 3, true),
            ("middle", 7, true),
            ("outer", 11, false),
            ("libwork.so+0x10", 0, false),
        ]
    );
    // Health counts the frames that were walked, not the inlined ones.
    assert_eq!(profile.health.frames, 6);
}

#[test]
fn a_symbol_of_a_managed_frame_is_its_line() {
    let mut scene = Scene::new(1, &["x"]);
    let runtime = scene.runtime("8.0.4");
    let module = scene.managed_module(runtime, "/app/App.dll");
    let thread = scene.thread(1, "main", true);
    let method = scene.method(runtime, module, "App.Program", "Main");
    let frame = scene.managed(method, recording::Tier::Tier1, 7);
    let stack = scene.stack(&[frame]);
    scene.samples(thread, stack, 1);
    scene.push(Record::Symbol {
        frame,
        name: "".into(),
        file: "/src/App.cs".into(),
        line: 12,
    });
    scene.end();
    let profile = scene.profile();
    let leaf = profile.frames_of(profile.samples[0].stack).next().unwrap();
    let file = profile.frame(leaf).file.map(|file| profile.string(file));
    assert_eq!(profile.name(leaf), "App.Program.Main");
    assert_eq!((file, profile.frame(leaf).line), (Some("/src/App.cs"), 12));
}

/// Two processes run the same library: each has the symbols, and they are not inlined frames.
#[test]
fn symbols_of_two_processes_for_the_same_code() {
    let mut scene = Scene::new(1, &["x"]);
    for pid in [1, 2] {
        if pid == 2 {
            scene.process(2, 1, &["y"]);
        }
        let module = scene.native_module("/usr/lib/libwork.so");
        let thread = scene.thread(pid, "main", false);
        let frame = scene.frame(recording::Frame::Native { module, svma: 0x10 });
        let stack = scene.stack(&[frame]);
        scene.samples(thread, stack, 1);
        for name in ["inner", "outer"] {
            scene.push(Record::Symbol {
                frame,
                name: name.into(),
                file: "".into(),
                line: 0,
            });
        }
        scene.end();
    }
    let profile = scene.profile();
    for sample in &profile.samples {
        let names: Vec<_> = profile
            .frames_of(sample.stack)
            .map(|f| profile.name(f))
            .collect();
        assert_eq!(names, ["inner", "outer"]);
    }
}

#[test]
fn processes_keep_their_own_ids_and_share_what_is_the_same() {
    let mut scene = Scene::new(10, &["/bin/sh", "-c", "dotnet app.dll"]);
    for pid in [10, 11] {
        if pid == 11 {
            scene.process(11, 10, &["dotnet", "app.dll"]);
        }
        let runtime = scene.runtime("8.0.4");
        let app = scene.managed_module(runtime, "/srv/app.dll");
        let thread = scene.thread(pid, "main", true);
        let method = scene.method(runtime, app, "App.Program", "Main");
        let frame = scene.managed(method, recording::Tier::Tier1, 1);
        let stack = scene.stack(&[frame]);
        scene.samples(thread, stack, pid);
        scene.end();
    }
    let profile = scene.profile();
    let names: Vec<_> = profile
        .processes
        .iter()
        .map(profile::model::Process::name)
        .collect();
    assert_eq!(names, ["sh", "app.dll"]);
    assert_eq!(
        (
            profile.modules.len(),
            profile.threads.len(),
            profile.runtimes.len()
        ),
        (1, 2, 2)
    );
    // One method in two processes is one row.
    let rows = profile::ops::totals(&profile, profile::ops::GroupBy::Method, |_| true);
    assert_eq!((rows.len(), rows[0].own.samples), (1, 21));
    let rows = profile::ops::totals(&profile, profile::ops::GroupBy::Process, |_| true);
    let rows: Vec<_> = rows
        .iter()
        .map(|row| (row.group.label.as_str(), row.own.samples))
        .collect();
    assert_eq!(rows, [("app.dll (11)", 11), ("sh (10)", 10)]);
}

/// Times of the samples of each process, from the begin of a recording of two processes. The second
/// begins a second after the first, by a clock that is moved; its wall clock is corrected.
fn line_of_time(clock_ns: i64, wall_ns: i64, second_comes_first: bool) -> Vec<(u32, u64)> {
    let mut scene = Scene::new(10, &["first"]);
    for pid in [10, 11] {
        if pid == 11 {
            scene.move_clock(clock_ns);
            scene.process(11, 10, &["second"]);
        }
        let thread = scene.thread(pid, "main", false);
        let module = scene.native_module("/lib/x.so");
        let frame = scene.native(module, 0x10, "x");
        let stack = scene.stack(&[frame]);
        scene.samples(thread, stack, 100);
        scene.end();
    }
    let mut records = scene.records().to_vec();
    if second_comes_first {
        records.sort_by_key(|(key, _)| std::cmp::Reverse(key.0));
    }
    let mut import = Import::new();
    for (key, record) in &mut records {
        if let (ProcessKey(11), Record::Process { unix_ns, .. }) = (*key, &mut *record) {
            *unix_ns = unix_ns.saturating_add_signed(wall_ns);
        }
        import.record(*key, record);
    }
    let profile = import.finish();
    let begin = profile::ops::begin_ns(&profile);
    let samples = profile.samples.iter();
    samples
        .map(|sample| (profile.thread(sample.thread).tid, sample.time_ns - begin))
        .collect()
}

#[test]
fn processes_of_other_time_namespaces_are_on_one_line_of_time() {
    const DAY: i64 = 86_400_000_000_000;
    let same = line_of_time(0, 0, false);
    assert_eq!(same.len(), 200);
    for clock_ns in [DAY, 365 * DAY] {
        for second_comes_first in [false, true] {
            let line = line_of_time(clock_ns, 0, second_comes_first);
            assert_eq!(line, same, "{clock_ns} {second_comes_first}");
        }
    }
    // The wall clock was corrected, or the machine was suspended: it is the same clock.
    for wall_ns in [-2_000_000_000, 2_000_000_000, DAY] {
        assert_eq!(line_of_time(0, wall_ns, false), same, "{wall_ns}");
    }
}

/// It is code, and its samples are whole.
#[test]
fn code_of_other_jits_is_native() {
    let mut scene = Scene::new(5, &["x"]);
    let thread = scene.thread(5, "main", true);
    let frames = ["generated code", "guess"]
        .map(|text| scene.frame(recording::Frame::Pseudo { text: text.into() }));
    let stack = scene.stack(&frames);
    scene.samples(thread, stack, 1);
    scene.end();
    let profile = scene.profile();
    let kind = |name: &str| {
        let mut all = profile.frames.iter();
        all.find(|frame| profile.string(frame.name) == name)
            .map(|frame| frame.kind)
    };
    assert_eq!(kind("[generated code]"), Some(FrameKind::Native));
    assert_eq!(kind("[caller guessed]"), Some(FrameKind::Pseudo));
}

#[test]
fn origins_are_what_a_tool_can_look_up_and_write_back() {
    let mut scene = Scene::new(5, &["x"]);
    let runtime = scene.runtime("8.0.4");
    let library = scene.native_module("/usr/lib/libwork.so");
    let app = scene.managed_module(runtime, "/srv/app.dll");
    let thread = scene.thread(5, "main", true);
    let method = scene.method(runtime, app, "App.Program", "Main");
    let managed = scene.managed(method, recording::Tier::Tier1, 4);
    let plain = scene.frame(recording::Frame::Native {
        module: library,
        svma: 0x20,
    });
    let named = scene.native(library, 0x30, "named");
    let pseudo = scene.frame(recording::Frame::Pseudo {
        text: "truncated".into(),
    });
    let stack = scene.stack(&[pseudo, managed, named, plain]);
    scene.samples(thread, stack, 1);
    scene.end();

    let mut import = Import::new();
    scene
        .records()
        .iter()
        .for_each(|(process, record)| import.record(*process, record));
    let origins = import.origins();
    let recorded: Vec<_> = origins.iter().map(|origin| origin.recorded).collect();
    assert_eq!(recorded, [managed, plain]);

    // Symbols that a tool finds are appended behind the end; reading them gives the names.
    let mut file = scene.file();
    let mut reader = Reader::open(file.as_slice()).unwrap();
    while reader.next_item().unwrap().is_some() {}
    let process = origins[0].process;
    let mut writer = recording::Writer::resume(process, reader.next_sequence(process));
    for (frame, name, file, line) in [(managed, "", "Program.cs", 12), (plain, "work", "", 0)] {
        let record = Record::Symbol {
            frame,
            name: name.into(),
            file: file.into(),
            line,
        };
        let _ = writer.push(&record);
    }
    writer.take_block_into(&mut file);
    let profile = Import::read(Reader::open(file.as_slice()).unwrap()).unwrap();
    assert_eq!(profile.health.notes, Vec::<String>::new());
    let shown: Vec<_> = profile
        .frames_of(profile.samples[0].stack)
        .map(|frame| (profile.name(frame), profile.frame(frame).line))
        .collect();
    assert_eq!(
        shown,
        [
            ("work", 0),
            ("named", 0),
            ("App.Program.Main", 12),
            ("[truncated]", 0)
        ]
    );
}

#[test]
fn an_empty_recording_says_so_and_a_hostile_one_is_bounded() {
    let profile = Import::new().finish();
    assert_eq!(
        profile.health.notes,
        ["the recording is empty: no .NET process ever sent anything"]
    );
    let mut import = Import::new();
    for number in 0..3_000u64 {
        let engine = Record::Engine {
            engine: format!("engine {number}").into(),
            walker: "signal".into(),
            event: recording::Event::Cpu,
            interval_ns: number,
            max_depth: 1,
        };
        import.record(recording::ProcessKey(number), &engine);
        let note = Record::Note {
            text: format!("note {number}").into(),
        };
        import.record(recording::ProcessKey(number), &note);
    }
    let profile = import.finish();
    assert_eq!(profile.processes.len(), 3_000);
    assert!(profile.health.notes.len() <= 101);
    assert!(profile.health.engine.len() < 1_100);
}

/// One thread, so many samples of 10 ms, so much CPU time due, and what the agent knows.
fn unseen_of(samples: u64, due_ms: u64, claims: &[(&'static str, u64, u64)]) -> Vec<(String, u64)> {
    let mut scene = Scene::new(1, &["x"]);
    let thread = scene.thread(1, "main", true);
    let frame = scene.frame(recording::Frame::Unknown { address: 1 });
    let stack = scene.stack(&[frame]);
    for _ in 0..samples {
        scene.sample(thread, stack, Event::Cpu, testing::INTERVAL, WalkEnd::Root);
    }
    for &(reason, threads, ms) in claims {
        scene.push(Record::Unseen {
            reason: reason.into(),
            threads,
            cpu_ns: ms * 1_000_000,
        });
    }
    scene.end_of(due_ms * 1_000_000, 0);
    let unseen = scene.profile().health.unseen.into_iter();
    unseen
        .map(|unseen| (unseen.reason, unseen.cpu_ns / 1_000_000))
        .collect()
}

#[test]
fn the_error_of_sampling_is_not_called_unseen() {
    // A few intervals of one thread, 50 ms, 2 %: whichever is most.
    assert_eq!(unseen_of(100, 1_040, &[]), []);
    assert_eq!(unseen_of(1_000, 10_190, &[]), []);
    assert_eq!(unseen_of(104, 1_000, &[]), []);
    assert_eq!(unseen_of(100, 1_100, &[]), [("unknown".to_owned(), 100)]);
    assert_eq!(unseen_of(1_000, 10_300, &[]), [("unknown".to_owned(), 300)]);
}

#[test]
fn reasons_add_up_to_what_is_unseen() {
    let blocks = ("threads that block our signal", 2, 300);
    let early = ("threads before they were sampled", 9, 100);
    let of = |reason: &str, ms| (reason.to_owned(), ms);
    assert_eq!(
        unseen_of(60, 1_100, &[blocks, early]),
        [of(blocks.0, 300), of(early.0, 100), of("unknown", 100)]
    );
    // A reason that is known of a thread holds, whatever the others were oversampled by.
    assert_eq!(unseen_of(100, 1_000, &[blocks]), [of(blocks.0, 300)]);
    // No reason stands for more than there is.
    assert_eq!(unseen_of(0, 200, &[blocks, early]), [of(blocks.0, 200)]);
}

#[test]
fn an_older_recording_has_nothing_to_hold_samples_against() {
    let profile = testing::tiny().profile();
    assert_eq!(profile.health.due_ns, None);
    assert_eq!(profile.health.unseen, []);
}

fn with_stack_view(profile: &Profile, stacks: StackView) -> Vec<String> {
    collapsed(&profile::ops::with_stack_view(profile.clone(), stacks))
}

#[test]
fn a_logical_stack_reads_as_the_source_does() {
    let profile = testing::awaits().profile();
    assert_eq!(
        with_stack_view(&profile, StackView::Logical),
        [
            "[async: gate closed];Shop.Cart.Buy;Shop.Cart.Burn 5",
            "[blocking wait];Shop.Program.Main;Shop.Cart.Checkout;[Task.Run];Shop.Cart.Buy;Shop.Cart.Burn 30",
            "start_thread;Shop.Cart.Burn 15",
            "start_thread;Shop.Program.Main;Shop.Cart.Checkout;Shop.Cart.Burn 10",
        ]
    );
    let physical = with_stack_view(&profile, StackView::Physical);
    assert_eq!(physical.len(), 3, "{physical:?}");
    assert!(physical.iter().any(|line| {
        line.starts_with("start_thread;System.Threading.ThreadPoolWorkQueue.Dispatch;")
    }));
    assert!(
        physical
            .iter()
            .any(|line| line.contains("AsyncMethodBuilderCore.Start"))
    );
}

#[test]
fn a_method_that_awaits_is_the_same_row_as_when_it_runs() {
    let profile = profile::ops::with_stack_view(testing::awaits().profile(), StackView::Logical);
    let rows = profile::ops::totals(&profile, profile::ops::GroupBy::Method, |_| true);
    let of = |name: &str| {
        let rows: Vec<_> = rows.iter().filter(|row| row.group.label == name).collect();
        assert_eq!(rows.len(), 1, "{name}");
        rows[0].total.samples
    };
    assert_eq!(
        (of("Shop.Program.Main"), of("Shop.Cart.Checkout")),
        (40, 40)
    );
    assert_eq!(of("Shop.Cart.Burn"), 60);
}

#[test]
fn chains_are_counted_and_cuts_by_reason() {
    let health = testing::awaits().profile().health;
    // 35 that samples have, and one of which nothing is there but its count.
    assert_eq!(health.chains, 36);
    let cut = |reason: &str, count| (reason.to_owned(), count);
    assert_eq!(
        health.chains_cut,
        [cut("gate closed", 5), cut("type not known yet", 1)]
    );
    let none = testing::tiny().profile().health;
    assert_eq!((none.chains, none.chains_cut.len()), (0, 0));
    // Of samples that were lost: no more than there are.
    let mut scene = testing::awaits();
    for (reason, count) in [("stale link", 20), ("class not known yet", 1000)] {
        scene.push(Record::AsyncCut {
            reason: reason.into(),
            count,
        });
    }
    let health = scene.profile().health;
    let cuts: u64 = health.chains_cut.iter().map(|(_, count)| count).sum();
    assert_eq!((health.samples, health.chains, cuts), (60, 60, 5 + 25));
}

/// Methods that complete at once look the same in a recording in which none was ever resumed.
#[test]
fn first_runs_are_folded_in_every_recording() {
    let scene = testing::awaits();
    let mut import = Import::new();
    for (process, record) in scene.records() {
        let mut record = record.clone();
        if let Record::Sample { logical, .. } = &mut record {
            *logical = None;
        }
        import.record(*process, &record);
    }
    let profile = import.finish();
    let first_run =
        "start_thread;Shop.Program.Main;Shop.Cart.Checkout;Shop.Cart.Burn 10".to_owned();
    let logical = with_stack_view(&profile, StackView::Logical);
    assert!(logical.contains(&first_run), "{logical:?}");
    let physical = with_stack_view(&profile, StackView::Physical);
    let of = |lines: &[String], name: &str| lines.iter().filter(|line| line.contains(name)).count();
    assert_eq!(of(&physical, "AsyncMethodBuilderCore.Start"), 1);
    assert_eq!(of(&logical, "AsyncMethodBuilderCore.Start"), 0);
    // A recording without async methods has one kind of stacks.
    assert!(!profile::ops::has_logical(&testing::tiny().profile()));
}

/// Recursion, overloads and who iterates stay; only what belongs to the one method goes.
#[test]
fn only_the_own_frames_of_a_first_run_are_folded() {
    let mut scene = Scene::new(1, &["x"]);
    let runtime = scene.runtime("8.0.33");
    let app = scene.managed_module(runtime, "/srv/app.dll");
    let other = scene.managed_module(runtime, "/srv/other.dll");
    let thread = scene.thread(1, "main", true);
    let mut frame = |module, type_name, name| {
        let method = scene.method(runtime, module, type_name, name);
        scene.managed(method, Tier::Tier1, 0)
    };
    let kick = frame(app, "A.P", "Walk");
    let overload = frame(app, "A.P", "Walk");
    let same_name = frame(other, "A.P", "Walk");
    let body = frame(app, "A.P+<Walk>d__1", "MoveNext");
    let start = frame(
        other,
        "System.Runtime.CompilerServices.AsyncTaskMethodBuilder`1[System.Int32]",
        "Start[A.P+<Walk>d__1]",
    );
    let not_it = frame(other, "A.AsyncMethodBuilderCore", "Start[System.Int32]");
    let iterator = frame(app, "A.P+<Numbers>d__2", "MoveNext");
    let step = frame(
        app,
        "A.P+<Numbers>d__2",
        "System.Collections.Generic.IAsyncEnumerator<System.Int32>.MoveNextAsync",
    );
    let iterate = frame(
        other,
        "System.Runtime.CompilerServices.AsyncIteratorMethodBuilder",
        "MoveNext[A.P+<Numbers>d__2]",
    );
    let mut stacks = Vec::new();
    for (frames, expected) in [
        (vec![kick, start, body], "A.P.Walk"),
        // Inlined into its caller.
        (
            vec![not_it, start, body],
            "A.AsyncMethodBuilderCore.Start<int>;A.P.Walk",
        ),
        (vec![kick, body, kick, start, body], "A.P.Walk;A.P.Walk"),
        (vec![overload, kick, start, body], "A.P.Walk;A.P.Walk"),
        (vec![same_name, start, body], "A.P.Walk;A.P.Walk"),
        (vec![body, body], "A.P.Walk;A.P.Walk"),
        (vec![body, step, iterate, iterator], "A.P.Walk;A.P.Numbers"),
        (vec![iterator, iterator], "A.P.Numbers;A.P.Numbers"),
        // The kickoff's own time is the method's.
        (vec![body, kick], "A.P.Walk;A.P.Walk"),
        (vec![body, kick, start], "A.P.Walk;A.P.Walk"),
    ] {
        stacks.push((scene.stack(&frames), expected));
    }
    let mark = scene.frame(recording::Frame::AsyncMark {
        text: "WhenAll".into(),
    });
    let any = scene.stack(&[mark, body]);
    for (stack, _) in &stacks {
        scene.samples(thread, *stack, 1);
    }
    scene.awaited(thread, any, any, 1);
    let profile = profile::ops::with_stack_view(scene.profile(), StackView::Logical);
    for (sample, (_, expected)) in profile.samples.iter().zip(&stacks) {
        let mut names: Vec<_> = profile
            .frames_of(sample.stack)
            .map(|f| profile.name(f))
            .collect();
        names.reverse();
        assert_eq!(names.join(";"), *expected);
    }
    let last = profile.samples.last().unwrap();
    let root = profile.frames_of(last.stack).last().unwrap();
    assert_eq!(
        (profile.name(root), profile.frame(root).kind),
        ("[WhenAll]", FrameKind::Async)
    );
}

/// A logical stack that lay in a damaged block is none, and the sample is whole all the same.
#[test]
fn a_logical_stack_that_nothing_defines_is_left_out() {
    let mut scene = Scene::new(1, &["x"]);
    let runtime = scene.runtime("8.0.33");
    let app = scene.managed_module(runtime, "/srv/app.dll");
    let thread = scene.thread(1, "main", true);
    let method = scene.method(runtime, app, "A.P+<Walk>d__1", "MoveNext");
    let frame = scene.managed(method, Tier::Tier1, 0);
    let stack = scene.stack(&[frame]);
    let undefined = scene.frame(recording::Frame::Async {
        method: 77,
        state: 0,
    });
    let lost = scene.stack(&[undefined, frame]);
    scene.awaited(thread, stack, 99, 1);
    scene.awaited(thread, stack, lost, 1);
    let profile = scene.profile();
    assert!(!profile::ops::has_logical(&profile));
    assert_eq!(profile.health.broken, []);
}

/// While a thread collects, what is behind its last managed frame is the collector's: of that
/// thread, in that time, and only where something of the runtime is there. The later step that
/// names the runtime's work says nothing twice.
#[test]
fn what_a_thread_does_while_it_collects_is_called_so() {
    let mut scene = Scene::new(1, &["x"]);
    let runtime = scene.runtime("8.0.33");
    let core = scene.native_module("/d/libcoreclr.so");
    let jit = scene.native_module("/d/libclrjit.so");
    let app = scene.managed_module(runtime, "/srv/app.dll");
    let main = scene.method(runtime, app, "A.P", "Main");
    let main = scene.managed(main, Tier::Tier1, 0);
    let native =
        |scene: &mut Scene, module| scene.frame(recording::Frame::Native { module, svma: 0x10 });
    let (r, j) = (native(&mut scene, core), native(&mut scene, jit));
    let stub = scene.frame(recording::Frame::Stub {
        runtime,
        name: "new".into(),
    });
    let (one, other) = (scene.thread(1, "main", true), scene.thread(2, "x", true));
    let server = scene.thread(3, ".NET Server GC", false);
    let stacks: [&[u32]; 5] = [
        &[main, stub, r, r],
        &[r, r],
        &[main],
        &[main, r, main, r],
        &[r, j],
    ];
    let stacks = stacks.map(|frames| scene.stack(frames));
    let start = scene.clock();
    for thread in [one, other, server] {
        for stack in stacks {
            scene.samples(thread, stack, 1);
        }
    }
    let until = scene.clock();
    // One from its second sample to before its last, and the third for as long as it is there.
    for (thread, time_ns, ns) in [
        (one, start + 20_000_000, 30_000_000),
        (server, start, until - start + 1),
        (one, u64::MAX, u64::MAX),
    ] {
        scene.push(Record::Collected {
            thread,
            time_ns,
            ns,
        });
    }
    let profile = profile::ops::with_runtime_work(scene.profile());
    let found: Vec<String> = profile
        .samples
        .iter()
        .map(|sample| {
            let names = profile.frames_of(sample.stack).map(|f| profile.name(f));
            let mut names: Vec<_> = names.collect();
            names.reverse();
            names.join(" ")
        })
        .collect();
    let found: Vec<String> = found
        .iter()
        .map(|text| {
            let text = text.replace("libcoreclr.so+0x10", "r");
            text.replace("libclrjit.so+0x10", "j")
                .replace("A.P.Main", "main")
        })
        .collect();
    let of_one = [
        "main [new] r r",
        "[GC] r r",
        "main",
        "main r main [GC] r",
        "r [JIT compiler] j",
    ];
    assert_eq!(found[..5], of_one);
    let of_other = [
        "main [new] r r",
        "r r",
        "main",
        "main r main r",
        "r [JIT compiler] j",
    ];
    assert_eq!(found[5..10], of_other);
    let of_server = [
        "main [new] [GC] r r",
        "[GC] r r",
        "main",
        "main r main [GC] r",
        "[GC] r [JIT compiler] j",
    ];
    assert_eq!(found[10..], of_server);
}

/// A traced method is reported once, its calls each second: of two runtimes, they stay apart;
/// numbers in a damaged recording of a method that it does not name are of none.
#[test]
fn calls_of_traced_methods_add_up_for_each_runtime() {
    let process = ProcessKey(1);
    let mut import = Import::new();
    let traced = |traced, runtime, refused: &'static str| Record::Traced {
        traced,
        runtime,
        token: 0x0600_0001,
        min_ns: 5,
        module: "/srv/shop.dll".into(),
        type_name: "Shop.Cart`1+Item".into(),
        name: "Open".into(),
        refused: refused.into(),
    };
    let calls = |traced, errors, buckets: &'static [(u32, u64)], max_ns| Record::Calls {
        traced,
        time_ns: 1,
        errors,
        sum_ns: max_ns,
        max_ns,
        buckets: buckets.into(),
    };
    for record in [
        traced(0, 0, ""),
        traced(1, 1, ""),
        calls(0, 1, &[(3, 2), (u32::MAX, 1)], u64::MAX),
        calls(0, 0, &[(3, 5), (4, 1)], 9),
        calls(1, 0, &[(7, 1)], 7),
        calls(2, 9, &[(7, 9)], 7),
        traced(1, 1, "the runtime answers no"),
    ] {
        import.record(process, &record);
    }
    let profile = import.finish();
    let [first, second] = &profile.traced[..] else {
        panic!("{:?}", profile.traced);
    };
    assert_eq!(profile.string(first.name), "Shop.Cart<_>.Item.Open");
    assert_eq!((first.calls(), first.errors), (9, 1));
    assert_eq!((first.sum_ns, first.max_ns), (u64::MAX, u64::MAX));
    let quantiles = [1, 500, 888, 1000].map(|part| first.quantile_ns(part));
    assert_eq!(quantiles, [3, 3, 4, u64::MAX]);
    assert_ne!(first.runtime, second.runtime);
    assert_eq!((second.calls(), second.max_ns), (1, 7));
    assert_eq!(second.refused, "the runtime answers no");
    // Of two recordings they stay apart too.
    let both = profile::merge(vec![
        ("a".to_owned(), profile.clone()),
        ("b".to_owned(), profile),
    ]);
    let names = both.traced.iter().map(|one| both.string(one.name));
    assert_eq!(names.collect::<Vec<_>>(), ["Shop.Cart<_>.Item.Open"; 4]);
    assert_ne!(both.traced[0].process, both.traced[2].process);
}

/// Objects that are alive at the end are samples, worth what they stood for then; growth is
/// reported from the first instant to the last.
#[test]
fn the_live_heap_is_what_was_told_and_is_not_gone() {
    let profile = testing::live().profile();
    let alive = profile.samples.iter().filter(|s| s.event == Event::Live);
    assert_eq!(alive.map(|s| s.value).collect::<Vec<_>>(), [1000]);
    assert_eq!(profile.health.samples, 6);
    let types = profile::ops::live_types(&profile);
    let [item, text] = &types[..] else {
        panic!("{types:?}");
    };
    assert_eq!(profile.string(item.name), "Shop.Cart.Item");
    assert_eq!((item.alive.bytes, item.alive.samples), (1000, 1));
    assert_eq!(item.alive.objects, 10.0);
    let (first, last) = item.grown.unwrap();
    assert_eq!((first.bytes, last.bytes), (1000, 1000));
    assert_eq!(
        (item.median_age_ns, item.oldest_ns),
        (2_500_000_000, 2_500_000_000)
    );
    assert_eq!((item.median_collections, item.most_collections), (6, 6));
    // A type that is gone is reported as that.
    assert_eq!(profile.string(text.name), "System.String");
    assert_eq!((text.alive.bytes, text.oldest_ns), (0, 0));
    let (first, last) = text.grown.unwrap();
    assert_eq!((first.bytes, last.bytes), (2000, 0));
    let instants = profile.live[0].instants.iter();
    let instants: Vec<_> = instants.map(|i| (i.collections, i.bytes)).collect();
    assert_eq!(instants, [(4, 3000), (9, 3000), (11, 1000)]);
    // Of a range of time, what grew in it.
    let begin = profile::ops::begin_ns(&profile);
    let grown = |from_ms: u64, until_ms: u64| {
        let filter = profile::ops::Filter {
            from_ns: Some(begin + from_ms * 1_000_000),
            until_ns: Some(begin + until_ms * 1_000_000),
            ..profile::ops::Filter::default()
        };
        let types = profile::ops::live_types(&filter.apply(profile.clone()));
        let grown = types.iter().filter_map(|one| one.grown);
        let grown =
            grown.map(|(first, last)| (first.bytes, last.bytes, first.objects, last.objects));
        grown.collect::<Vec<_>>()
    };
    assert_eq!(
        grown(0, 5_500),
        [(1000, 3000, 10.0, 30.0), (2000, 0, 50.0, 0.0)]
    );
    assert_eq!(grown(4_000, 7_000), [(3000, 1000, 30.0, 10.0)]);
    assert!(grown(3_500, 5_500).is_empty());
    // Of two recordings both are there, by their own names.
    let both = profile::merge(vec![
        ("a".to_owned(), profile.clone()),
        ("b".to_owned(), profile),
    ]);
    let types = profile::ops::live_types(&both);
    assert_eq!((types[0].alive.bytes, types[0].alive.samples), (2000, 2));
    let (first, last) = types[0].grown.unwrap();
    assert_eq!((first.bytes, last.bytes), (2000, 2000));
}
