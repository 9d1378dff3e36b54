//! Every format of one profile adds up to the same totals, whatever the profile.

mod common;

use std::collections::BTreeMap;
use std::io::Read;

use common::{HOSTILE, INTERVAL, RecordedProfile, awaited, profile_of};
use formats::{Format, GroupBy, OutputOptions, Profile, StackView, WeightBy};
use profile::model::{Event, ThreadId};
use profile::ops;
use proptest::prelude::*;

fn written(format: Format, profile: &Profile, options: &OutputOptions) -> String {
    let mut out = Vec::new();
    formats::write(format, profile, options, &mut out).expect("a Vec takes everything");
    String::from_utf8(out).expect("text formats are UTF-8")
}

fn any_event() -> impl Strategy<Value = Event> {
    prop::sample::select(vec![
        Event::Cpu,
        Event::Cpu,
        Event::Wall,
        Event::Alloc,
        Event::Live,
        Event::Exception,
    ])
}

fn any_sample() -> impl Strategy<Value = RecordedProfile> {
    (
        0_u32..6,
        prop::collection::vec(0..HOSTILE.len(), 1..12),
        any_event(),
        0_u64..5_000_000,
    )
        .prop_map(|(thread, stack, event, value)| RecordedProfile {
            thread,
            stack,
            event,
            value,
        })
}

fn any_profile() -> impl Strategy<Value = Profile> {
    let taken = (prop::collection::vec(any_sample(), 0..60), any::<bool>());
    taken.prop_map(|(taken, is_async)| {
        let profile = profile_of(HOSTILE, 6, &taken);
        if is_async {
            awaited(profile, HOSTILE)
        } else {
            profile
        }
    })
}

/// The weight of the samples of one event.
fn total(profile: &Profile, event: Event, weight: WeightBy) -> u64 {
    let samples = profile.samples.iter().filter(|s| s.event == event);
    samples
        .map(|s| {
            if weight == WeightBy::Value {
                s.value
            } else {
                1
            }
        })
        .sum()
}

fn collapsed_total(text: &str) -> u64 {
    let count = |line: &str| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok());
    text.lines()
        .map(|line| count(line).expect("every line has a count"))
        .sum()
}

/// The sums of a pprof file's samples, by sample type.
fn pprof_totals(profile: &Profile, options: &OutputOptions) -> BTreeMap<String, u64> {
    #[derive(Clone, PartialEq, prost::Message)]
    struct File {
        #[prost(message, repeated, tag = "1")]
        types: Vec<Type>,
        #[prost(message, repeated, tag = "2")]
        samples: Vec<Values>,
        #[prost(string, repeated, tag = "6")]
        strings: Vec<String>,
    }
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    struct Type {
        #[prost(int64, tag = "1")]
        name: i64,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct Values {
        #[prost(int64, repeated, tag = "2")]
        of_type: Vec<i64>,
    }
    let mut packed = Vec::new();
    formats::write(Format::Pprof, profile, options, &mut packed).expect("a Vec takes everything");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_end(&mut bytes)
        .expect("it is gzip");
    let file = <File as prost::Message>::decode(&bytes[..]).expect("it is a profile");
    let names = file
        .types
        .iter()
        .map(|t| file.strings[t.name as usize].clone());
    let sums = (0..file.types.len()).map(|at| {
        file.samples
            .iter()
            .map(|sample| sample.of_type[at] as u64)
            .sum()
    });
    names.zip(sums).collect()
}

/// The weights of the samples of a Firefox file's tracks of the main event, by thread, the least
/// first; and how many markers an event has.
fn firefox_totals(profile: &Profile, options: &OutputOptions, event: Event) -> (Vec<u64>, u64) {
    let text = written(Format::Firefox, profile, options);
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let strings = file["shared"]["stringArray"].as_array();
    let (mut tracks, mut markers) = (Vec::new(), 0);
    for thread in file["threads"].as_array().unwrap() {
        let strings = strings.or(thread["stringArray"].as_array()).unwrap();
        let names = thread["markers"]["name"].as_array().unwrap().iter();
        let names = names.map(|at| strings[at.as_u64().unwrap() as usize].as_str().unwrap());
        markers += names.filter(|name| *name == event.name()).count() as u64;
        let name = thread["name"].as_str().unwrap();
        let is_beside = (0..)
            .map_while(Event::from_code)
            .any(|event| name.ends_with(&format!(" ({})", event.name())));
        if !is_beside {
            let weights = thread["samples"]["weight"].as_array().unwrap().iter();
            tracks.push(weights.map(|weight| weight.as_u64().unwrap()).sum());
        }
    }
    tracks.retain(|weight| *weight > 0);
    tracks.sort_unstable();
    (tracks, markers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn collapsed(profile in any_profile(), threads: bool, processes: bool, annotate: bool) {
        for event in [Event::Cpu, Event::Wall, Event::Alloc, Event::Live, Event::Exception] {
            for weight in [WeightBy::Samples, WeightBy::Value] {
                let options = OutputOptions {
                    event: Some(event), weight, threads, processes, annotate, ..OutputOptions::default()
                };
                let text = written(Format::Collapsed, &profile, &options);
                prop_assert_eq!(collapsed_total(&text), total(&profile, event, weight));
                let mut stacks: Vec<_> = text.lines().map(|l| l.rsplit_once(' ').unwrap().0).collect();
                let lines = stacks.len();
                stacks.dedup();
                prop_assert_eq!(lines, stacks.len());
            }
        }
    }

    #[test]
    fn speedscope(profile in any_profile()) {
        for weight in [WeightBy::Samples, WeightBy::Value] {
            let options = OutputOptions { event: Some(Event::Cpu), weight, ..OutputOptions::default() };
            let text = written(Format::Speedscope, &profile, &options);
            let file: serde_json::Value = serde_json::from_str(&text).unwrap();
            let frames = file["shared"]["frames"].as_array().unwrap().len() as u64;
            let mut sum = 0;
            for thread in file["profiles"].as_array().unwrap() {
                let weights = thread["weights"].as_array().unwrap();
                let samples = thread["samples"].as_array().unwrap();
                prop_assert_eq!(weights.len(), samples.len());
                let of_thread: u64 = weights.iter().map(|w| w.as_u64().unwrap()).sum();
                prop_assert_eq!(thread["endValue"].as_u64(), Some(of_thread));
                sum += of_thread;
                for stack in samples {
                    for frame in stack.as_array().unwrap() {
                        prop_assert!(frame.as_u64().unwrap() < frames);
                    }
                }
            }
            prop_assert_eq!(sum, total(&profile, Event::Cpu, weight));
        }
    }

    #[test]
    fn firefox(profile in any_profile()) {
        let options = OutputOptions { event: Some(Event::Wall), weight: WeightBy::Samples, ..OutputOptions::default() };
        let text = written(Format::Firefox, &profile, &options);
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut sum = 0;
        for thread in file["threads"].as_array().unwrap() {
            let samples = &thread["samples"];
            let length = samples["length"].as_u64().unwrap();
            for column in ["stack", "timeDeltas", "weight", "threadCPUDelta"] {
                prop_assert_eq!(samples[column].as_array().unwrap().len() as u64, length);
            }
            let weights = samples["weight"].as_array().unwrap();
            sum += weights.iter().map(|w| w.as_u64().unwrap()).sum::<u64>();
            // Every index is one of its table.
            for (table, column, into) in [
                ("samples", "stack", "stackTable"),
                ("stackTable", "frame", "frameTable"),
                ("frameTable", "func", "funcTable"),
            ] {
                let bound = thread[into]["length"].as_u64().unwrap();
                for index in thread[table][column].as_array().unwrap() {
                    prop_assert!(index.as_u64().unwrap() < bound);
                }
            }
        }
        // Other events that add up over time have tracks of their own.
        let tracks = [Event::Wall, Event::Cpu, Event::Alloc, Event::Live];
        let samples = tracks.map(|event| total(&profile, event, WeightBy::Samples));
        prop_assert_eq!(sum, samples.iter().sum::<u64>());
        // All others are markers, as allocations are too.
        let markers = file["threads"].as_array().unwrap().iter();
        let markers = markers.map(|thread| thread["markers"]["length"].as_u64().unwrap());
        let events = [Event::Alloc, Event::Live, Event::Exception];
        let events = events.map(|event| total(&profile, event, WeightBy::Samples));
        prop_assert_eq!(markers.sum::<u64>(), events.iter().sum::<u64>());
    }

    /// Intervals of each track add up to its time, whatever single samples stand for.
    #[test]
    fn firefox_weighs_time(profile in any_profile()) {
        let text = written(Format::Firefox, &profile, &OutputOptions::default());
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut time: BTreeMap<ThreadId, u64> = BTreeMap::new();
        let cpu = profile.samples.iter().filter(|sample| sample.event == Event::Cpu);
        for sample in cpu {
            *time.entry(sample.thread).or_default() += sample.value;
        }
        let mut expected: Vec<u64> =
            time.into_values().map(|ns| (ns + INTERVAL / 2) / INTERVAL).collect();
        expected.retain(|intervals| *intervals > 0);
        let mut found: Vec<u64> = Vec::new();
        for thread in file["threads"].as_array().unwrap() {
            let samples = &thread["samples"];
            let cpu = samples["threadCPUDelta"].as_array().unwrap();
            if cpu.iter().any(|delta| delta.as_u64() > Some(0)) {
                let weights = samples["weight"].as_array().unwrap().iter();
                found.push(weights.map(|weight| weight.as_u64().unwrap()).sum());
            }
        }
        found.retain(|intervals| *intervals > 0);
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }

    /// All events are there unless one is asked for.
    #[test]
    fn speedscope_has_all_events(profile in any_profile()) {
        let options = OutputOptions { weight: WeightBy::Samples, ..OutputOptions::default() };
        let text = written(Format::Speedscope, &profile, &options);
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        let profiles = file["profiles"].as_array().unwrap().iter();
        let sum = profiles.map(|thread| thread["endValue"].as_u64().unwrap()).sum::<u64>();
        prop_assert_eq!(sum, profile.samples.len() as u64);
    }

    /// Self adds up to everything, whatever a row is.
    #[test]
    fn report(profile in any_profile(), samples: bool) {
        let weight = if samples { WeightBy::Samples } else { WeightBy::Value };
        for by in GroupBy::ALL {
            let options = OutputOptions {
                event: Some(Event::Cpu), weight, by: Some(by), json: true, tree: true, top: 1000,
                ..OutputOptions::default()
            };
            let text = written(Format::Text, &profile, &options);
            let report: serde_json::Value = serde_json::from_str(&text).unwrap();
            let rows = report["rows"].as_array().unwrap();
            let sum = |key: &str| rows.iter().map(|row| row[key].as_u64().unwrap()).sum::<u64>();
            if by == GroupBy::Event {
                prop_assert_eq!(sum("self_samples"), profile.samples.len() as u64);
            } else {
                prop_assert_eq!(sum("self"), total(&profile, Event::Cpu, weight));
                prop_assert_eq!(sum("self_samples"), total(&profile, Event::Cpu, WeightBy::Samples));
            }
            let tree = report["tree"].as_array().unwrap();
            let own: u64 = tree.iter().map(|node| node["self"].as_u64().unwrap()).sum();
            prop_assert_eq!(own, tree[0]["total"].as_u64().unwrap());
            prop_assert_eq!(own, total(&profile, Event::Cpu, weight));
        }
    }

    /// Both views of an async program add up to the same, in every format that can be added up
    /// here.
    #[test]
    fn both_views_add_up_to_the_same(profile in any_profile()) {
        let profile = awaited(profile, HOSTILE);
        for stacks in StackView::ALL {
            let options = OutputOptions {
                event: Some(Event::Cpu), weight: WeightBy::Value, stacks, json: true, ..OutputOptions::default()
            };
            let all = total(&profile, Event::Cpu, WeightBy::Value);
            let text = written(Format::Collapsed, &profile, &options);
            prop_assert_eq!(collapsed_total(&text), all);
            let text = written(Format::Speedscope, &profile, &options);
            let file: serde_json::Value = serde_json::from_str(&text).unwrap();
            let profiles = file["profiles"].as_array().unwrap().iter();
            prop_assert_eq!(profiles.map(|p| p["endValue"].as_u64().unwrap()).sum::<u64>(), all);
            let text = written(Format::Text, &profile, &OutputOptions { by: Some(GroupBy::Method), top: 1000, ..options });
            let report: serde_json::Value = serde_json::from_str(&text).unwrap();
            let rows = report["rows"].as_array().unwrap();
            prop_assert_eq!(rows.iter().map(|row| row["self"].as_u64().unwrap()).sum::<u64>(), all);
        }
    }

    /// A range of time adds up to the same in every format: what was in it, and of samples that
    /// stand for the time before them the part that is in it. Two ranges beside each other have the
    /// time of both.
    #[test]
    fn a_range_of_time(profile in any_profile(), from in 0_u64..70, length in 1_u64..70) {
        const MS: u64 = 1_000_000;
        let range = |from: u64, until: u64| ops::Filter {
            from_ns: Some(from * MS), until_ns: Some(until * MS), ..ops::Filter::default()
        };
        let within = range(from, from + length).apply(profile.clone());
        for event in [Event::Cpu, Event::Wall, Event::Alloc, Event::Live, Event::Exception] {
            let long = |value: u64| event == Event::Wall && value >= 2 * INTERVAL;
            let part = |time: u64, value: u64| if long(value) {
                let (time, value) = (i128::from(time), i128::from(value));
                let [from, until] = [from * MS, (from + length) * MS].map(i128::from);
                (time.min(until) - (time - value).max(from)).max(0) as u64
            } else if (from * MS..(from + length) * MS).contains(&time) { value } else { 0 };
            let taken = profile.samples.iter().filter(|sample| sample.event == event);
            let all: u64 = taken.map(|sample| part(sample.time_ns, sample.value)).sum();
            let options = OutputOptions {
                event: Some(event), weight: WeightBy::Value, json: true, by: Some(GroupBy::Method), top: 1000, ..OutputOptions::default()
            };
            prop_assert_eq!(collapsed_total(&written(Format::Collapsed, &within, &options)), all);
            let file: serde_json::Value =
                serde_json::from_str(&written(Format::Speedscope, &within, &options)).unwrap();
            let profiles = file["profiles"].as_array().unwrap().iter();
            prop_assert_eq!(profiles.map(|p| p["endValue"].as_u64().unwrap()).sum::<u64>(), all);
            let report: serde_json::Value =
                serde_json::from_str(&written(Format::Text, &within, &options)).unwrap();
            let rows = report["rows"].as_array().unwrap();
            prop_assert_eq!(rows.iter().map(|row| row["self"].as_u64().unwrap()).sum::<u64>(), all);
            let pprof = pprof_totals(&within, &options);
            let in_pprof = |name: String| pprof.get(&name).copied().unwrap_or(0);
            let count = total(&within, event, WeightBy::Samples);
            // Of memory there are objects beside bytes, which are no samples.
            let (value, samples) = match event {
                Event::Alloc => ("alloc_space".to_owned(), None),
                Event::Live => ("inuse_space".to_owned(), None),
                Event::Cpu => ("cpu".to_owned(), Some("samples".to_owned())),
                Event::Exception => ("exception".to_owned(), None),
                _ => (event.name().to_owned(), Some(format!("{}-samples", event.name()))),
            };
            prop_assert_eq!(in_pprof(value), all);
            if let Some(samples) = samples {
                prop_assert_eq!(in_pprof(samples), count);
            }
            // Tracks weigh intervals or bytes, events that are counted are markers.
            let (tracks, markers) = firefox_totals(&within, &options, event);
            if matches!(event, Event::Alloc | Event::Live | Event::Exception) {
                prop_assert_eq!(markers, count);
            }
            if event != Event::Exception {
                let mut expected: BTreeMap<ThreadId, u64> = BTreeMap::new();
                for sample in within.samples.iter().filter(|sample| sample.event == event) {
                    *expected.entry(sample.thread).or_default() += sample.value;
                }
                let weigh = |sum: u64| if matches!(event, Event::Alloc | Event::Live) { sum } else { (sum + INTERVAL / 2) / INTERVAL };
                let mut expected: Vec<u64> = expected.into_values().map(weigh).filter(|weight| *weight > 0).collect();
                expected.sort_unstable();
                prop_assert_eq!(tracks, expected);
            }
            let behind = range(from + length, 200).apply(profile.clone());
            let both = range(from, 200).apply(profile.clone());
            prop_assert_eq!(
                total(&both, event, WeightBy::Value),
                all + total(&behind, event, WeightBy::Value)
            );
        }
    }

    /// Nothing panics, and the same profile makes the same file.
    #[test]
    fn every_format_is_the_same_twice(profile in any_profile()) {
        for format in Format::ALL {
            let mut twice = [Vec::new(), Vec::new()];
            for out in &mut twice {
                formats::write(format, &profile, &OutputOptions::default(), out).unwrap();
            }
            prop_assert!(twice[0] == twice[1], "{format:?}");
        }
    }
}

/// A flame graph tool takes what we write, and sees as many samples.
#[test]
fn inferno_takes_collapsed_stacks() {
    let stacks = (0..HOSTILE.len()).map(|at| RecordedProfile {
        thread: at as u32,
        stack: vec![at, at + 1],
        event: Event::Cpu,
        value: 1,
    });
    let hostile = profile_of(HOSTILE, 6, &stacks.collect::<Vec<_>>());
    let scenes = [
        profile::testing::tiny().profile(),
        profile::testing::two_runtimes().profile(),
        profile::testing::deep().profile(),
        hostile,
    ];
    for profile in scenes {
        for (annotate, threads) in [(false, false), (true, true)] {
            let options = OutputOptions {
                annotate,
                threads,
                ..OutputOptions::default()
            };
            let text = written(Format::Collapsed, &profile, &options);
            let mut svg = Vec::new();
            let mut flame = inferno::flamegraph::Options::default();
            flame.colors = inferno::flamegraph::color::Palette::Multi(
                inferno::flamegraph::color::MultiPalette::Java,
            );
            inferno::flamegraph::from_lines(&mut flame, text.lines(), &mut svg).expect("accepted");
            let svg = String::from_utf8(svg).expect("SVG is UTF-8");
            let samples = total(&profile, Event::Cpu, WeightBy::Samples);
            let all = format!("<title>all ({samples} samples, 100%)</title>");
            assert!(
                svg.contains(&all),
                "{all} is not in {}",
                &svg[..svg.len().min(4000)]
            );
        }
    }
}
