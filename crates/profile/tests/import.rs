//! Recordings in, profiles out.

use profile::testing::{self, Scene};
use profile::{Import, LOST_FRAME, Profile};
use recording::{Reader, Record, WalkEnd};

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

#[test]
fn a_file_gives_the_same_profile_as_its_records() {
    for scene in [testing::tiny(), testing::two_runtimes(), testing::deep()] {
        let file = scene.file();
        let read = Import::read(Reader::open(file.as_slice()).unwrap()).unwrap();
        assert_eq!(read, scene.profile());
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
fn a_recording_without_its_end_says_so_and_keeps_its_samples() {
    let scene = testing::tiny();
    let mut import = Import::new();
    for (process, record) in scene.records() {
        if !matches!(record, Record::End { .. } | Record::Broken { .. }) {
            import.record(*process, record);
        }
    }
    let profile = import.finish();
    assert_eq!(profile.samples.len(), 100);
    // The stacks themselves say why they broke.
    assert_eq!(profile.health.broken, [("no unwind rule".to_owned(), 2)]);
    assert_eq!(
        profile.health.notes,
        [
            "process 4242 (sample.dll) did not say that it ended: it was killed, or the recording \
          was cut"
        ]
    );
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
