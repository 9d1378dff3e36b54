//! Several recordings as one profile.

use profile::model::Profile;
use profile::ops::{GroupBy, Weight, totals};
use profile::{merge, testing};

/// All that a recording says in the order of time, by the clock on the wall.
fn samples(profile: &Profile) -> Vec<(u64, String, &'static str, u64)> {
    let each = profile.samples.iter().map(|sample| {
        let frames = profile
            .frames_of(sample.stack)
            .map(|frame| profile.name(frame));
        let stack: Vec<&str> = frames.collect();
        let thread = profile.thread(sample.thread);
        let process = profile.process(thread.process);
        let wall = process.start_unix_ns + sample.time_ns - process.start_ns;
        (wall, stack.join(" < "), sample.event.name(), sample.value)
    });
    let mut all: Vec<_> = each.collect();
    all.sort();
    all
}

/// The same recording, so much later by both clocks or by one.
fn later(mut profile: Profile, wall: i64, own: i64) -> Profile {
    for process in &mut profile.processes {
        process.start_unix_ns = process.start_unix_ns.saturating_add_signed(wall);
        process.start_ns = process.start_ns.saturating_add_signed(own);
        process.end_ns = process.end_ns.saturating_add_signed(own);
    }
    for thread in &mut profile.threads {
        thread.start_ns = thread.start_ns.saturating_add_signed(own);
        thread.end_ns = thread.end_ns.map(|end| end.saturating_add_signed(own));
    }
    for sample in &mut profile.samples {
        sample.time_ns = sample.time_ns.saturating_add_signed(own);
    }
    profile
}

const HOUR: i64 = 3_600_000_000_000;

#[test]
fn every_sample_is_there_once_at_its_time() {
    let [tiny, events, awaits] =
        [testing::tiny(), testing::events(), testing::awaits()].map(|scene| scene.profile());
    // Machines that were started at other times, the last one after the recording before.
    for (wall, own) in [
        (0, 0),
        (HOUR, HOUR),
        (HOUR, -500),
        (-HOUR, 0),
        (-HOUR, HOUR),
    ] {
        let all = [
            tiny.clone(),
            later(events.clone(), wall, own),
            awaits.clone(),
        ];
        let mut expected: Vec<_> = all.iter().flat_map(samples).collect();
        expected.sort();
        let named = ["a.swk", "b.swk", "c.swk"].map(str::to_owned).into_iter();
        let merged = merge(named.zip(all.clone()).collect());
        assert_eq!(samples(&merged), expected, "{wall} {own}");
        assert!(merged.samples.is_sorted_by_key(|sample| sample.time_ns));
        assert!(
            merged
                .stacks
                .iter()
                .zip(0..)
                .all(|(stack, id)| { stack.parent.is_none_or(|parent| parent.0 < id) })
        );
        let sums = |of: fn(&Profile) -> u64| all.iter().map(of).sum::<u64>();
        assert_eq!(merged.health.samples, sums(|of| of.health.samples));
        assert_eq!(merged.health.frames, sums(|of| of.health.frames));
        assert_eq!(
            merged.threads.len(),
            all.iter().map(|of| of.threads.len()).sum()
        );
    }
}

#[test]
fn a_recording_stands_as_much_later_as_the_wall_clock_says() {
    let first = testing::tiny().profile();
    for (wall, own) in [
        (0, HOUR),
        (HOUR, 0),
        (HOUR, -500),
        (-HOUR, 0),
        (-HOUR, HOUR),
    ] {
        let second = later(first.clone(), wall, own);
        let named = ["a.swk", "b.swk"].map(str::to_owned).into_iter();
        let merged = merge(named.zip([first.clone(), second]).collect());
        let starts = merged.processes.iter().map(|process| process.start_ns);
        let starts: Vec<i64> = starts.map(u64::cast_signed).collect();
        assert_eq!(starts[1] - starts[0], wall, "{wall} {own}");
    }
}

#[test]
fn rows_are_those_of_all() {
    let one = testing::tiny().profile();
    let named = ["a.swk", "b.swk"].map(|name| (name.to_owned(), one.clone()));
    let twice = merge(named.to_vec());
    for by in GroupBy::ALL {
        let weights = |profile: &Profile, times: u64| -> Vec<(String, Weight, Weight)> {
            let rows = totals(profile, by, |_| true).into_iter();
            let doubled = |weight: Weight| Weight {
                samples: weight.samples * times,
                value: weight.value * times,
            };
            let row = |row: profile::ops::TotalsRow| {
                (row.group.label, doubled(row.own), doubled(row.total))
            };
            rows.map(row).collect()
        };
        match by {
            // These are as many as before in each.
            GroupBy::Process | GroupBy::Thread => {
                assert_eq!(
                    weights(&twice, 1).len(),
                    2 * weights(&one, 1).len(),
                    "{by:?}"
                );
            }
            GroupBy::Recording => {
                let names: Vec<_> = weights(&twice, 1).into_iter().map(|row| row.0).collect();
                assert_eq!(names, ["a.swk", "b.swk"]);
            }
            _ => assert_eq!(weights(&twice, 1), weights(&one, 2), "{by:?}"),
        }
    }
    assert_eq!(twice.modules.len(), one.modules.len());
    assert_eq!(twice.strings, one.strings);
    assert_eq!(twice.recordings, ["a.swk", "b.swk"]);
}

#[test]
fn what_is_not_comparable_is_said() {
    let [tiny, events] = [testing::tiny(), testing::events()].map(|scene| scene.profile());
    let mut slower = tiny.clone();
    slower.health.interval_ns *= 10;
    slower.health.notes.push("it ends in the middle".to_owned());
    let merged = merge(vec![
        ("a.swk".into(), tiny.clone()),
        ("b.swk".into(), slower),
    ]);
    let notes = merged.health.notes.join("\n");
    assert!(notes.contains("b.swk was sampled differently"), "{notes}");
    assert!(notes.contains("b.swk: it ends in the middle"), "{notes}");
    // One alone is as it was read.
    assert_eq!(merge(vec![("e.swk".into(), events.clone())]), events);
    assert_eq!(merge(Vec::new()), Profile::default());
}
