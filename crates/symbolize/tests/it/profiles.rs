//! Whole profiles: inlined frames, functions without names, and their names found later.

use std::fs;
use std::path::Path;

use profile::Profile;
use profile::model::Location;
use profile::testing::Scene;
use proptest::collection::vec;
use proptest::prelude::*;
use recording::{Frame, Record};
use symbolize::{LookupOptions, symbolize};

use crate::common::fixture;

/// A profile with a sample in each place of the library at `path`, one called from the other.
fn profile(path: &Path, places: &[u64], named: Option<&str>) -> Profile {
    let mut scene = Scene::new(1, &["x"]);
    let thread = scene.thread(1, "main", false);
    let path: &'static str = path.to_str().unwrap().to_owned().leak();
    let module = scene.native_module(path);
    let frames: Vec<u32> = places
        .iter()
        .map(|svma| {
            scene.frame(Frame::Native {
                module,
                svma: *svma,
            })
        })
        .collect();
    let stack = scene.stack(&frames);
    scene.samples(thread, stack, 1);
    for frame in frames {
        if let Some(name) = named {
            scene.push(Record::Symbol {
                frame,
                name: name.to_owned().into(),
                file: "".into(),
                line: 0,
            });
        }
    }
    let mut profile = scene.profile();
    // The scene's modules have no build-id of theirs.
    for module in &mut profile.modules {
        module.id_bytes.clear();
    }
    profile
}

/// `name:line` of the only stack, leaf first; inlined frames in brackets.
fn stack(profile: &Profile) -> Vec<String> {
    let frames = profile.frames_of(profile.samples[0].stack);
    let shown = frames.map(|id| {
        let frame = profile.frame(id);
        let text = match frame.line {
            0 => profile.name(id).to_owned(),
            line => format!("{}:{line}", profile.name(id)),
        };
        if frame.inlined {
            format!("({text})")
        } else {
            text
        }
    });
    shown.collect()
}

#[test]
fn inlined_functions_become_frames() {
    // Root first: the call of outer in plain_c, then innermost inlined into outer.
    let mut profile = profile(&fixture("small.so"), &[0x1010, 0x1000], None);
    let report = symbolize(&mut profile, &LookupOptions::default());
    assert_eq!(
        stack(&profile),
        [
            "(innermost:6)",
            "(middle:10)",
            "work::outer:14",
            "plain_c:26"
        ]
    );
    assert_eq!((report.modules[0].lookups, report.modules[0].found), (2, 2));
    // A second time there is nothing left to look up.
    assert_eq!(
        symbolize(&mut profile, &LookupOptions::default()).modules,
        []
    );
}

#[test]
fn places_in_one_function_without_a_name_are_one_frame() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("small.so");
    fs::copy(fixture("small.so"), &library).unwrap();
    let mut profile = profile(&library, &[0x102f, 0x1002, 0x1000], None);
    symbolize(&mut profile, &LookupOptions::default());
    assert_eq!(
        stack(&profile),
        ["small.so+0x1000", "small.so+0x1000", "small.so+0x102b"]
    );
    assert_eq!(profile.frames.len(), 2);
}

#[test]
fn code_without_symbols_and_tables_is_one_frame_of_its_library() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("small.so");
    fs::copy(fixture("small.so"), &library).unwrap();
    let places = [0x1040, 0x1031, 0x1000];
    let mut found = profile(&library, &places, None);
    symbolize(&mut found, &LookupOptions::default());
    let unnamed = "small.so (no symbols)";
    assert_eq!(stack(&found), ["small.so+0x1000", unnamed, unnamed]);
    assert_eq!(found.frames.len(), 2);
    // Where the file is not here, there may be a symbol elsewhere.
    fs::remove_file(&library).unwrap();
    let mut gone = profile(&library, &places, None);
    symbolize(&mut gone, &LookupOptions::default());
    assert_eq!(
        stack(&gone),
        ["small.so+0x1000", "small.so+0x1031", "small.so+0x1040"]
    );
}

#[test]
fn a_recorded_place_gets_its_name_when_there_are_symbols() {
    let mut found = profile(&fixture("small.so"), &[0x1002], Some("small.so+0x1000"));
    symbolize(&mut found, &LookupOptions::default());
    assert_eq!(stack(&found), ["work::outer"]);
    let unnamed = Some("small.so (no symbols)");
    let mut found = profile(&fixture("small.so"), &[0x1010], unnamed);
    for frame in &mut found.frames {
        frame.location = Location::Svma(0x1010);
    }
    symbolize(&mut found, &LookupOptions::default());
    assert_eq!(stack(&found), ["plain_c:26"]);
    let mut gone = profile(Path::new("/gone/small.so"), &[0x1031, 0x1040], unnamed);
    symbolize(&mut gone, &LookupOptions::default());
    assert_eq!(gone.frames.len(), 1);
    // A real name stays.
    let mut named = profile(&fixture("small.so"), &[0x1002], Some("another"));
    symbolize(&mut named, &LookupOptions::default());
    assert_eq!(stack(&named), ["another"]);
    let mut gone = profile(
        Path::new("/gone/small.so"),
        &[0x1002],
        Some("small.so+0x1000"),
    );
    symbolize(&mut gone, &LookupOptions::default());
    assert_eq!(stack(&gone), ["small.so+0x1000"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A stack becomes what its frames become, in order, whatever stacks share with each other.
    #[test]
    fn stacks_are_rebuilt_frame_by_frame(
        stacks in vec(vec(prop::sample::select(vec![0x1000, 0x1002, 0x1010, 0x102b, 0x9999]), 1..8), 1..12)
    ) {
        let expansion = |svma| match svma {
            0x1000 => &["work::outer", "middle", "innermost"][..],
            0x1002 => &["work::outer"],
            0x1010 => &["plain_c"],
            0x102b => &["work::twice<long>"],
            _ => &["small.so (no symbols)"],
        };
        let mut scene = Scene::new(1, &["x"]);
        let thread = scene.thread(1, "main", false);
        let path: &'static str = fixture("small.so").to_str().unwrap().to_owned().leak();
        let module = scene.native_module(path);
        for stack in &stacks {
            let frames: Vec<u32> =
                stack.iter().map(|svma| scene.frame(Frame::Native { module, svma: *svma })).collect();
            let stack = scene.stack(&frames);
            scene.samples(thread, stack, 1);
        }
        let mut profile = scene.profile();
        profile.modules[0].id_bytes.clear();
        symbolize(&mut profile, &LookupOptions::default());
        for (index, stack) in profile.stacks.iter().enumerate() {
            prop_assert!(stack.parent.is_none_or(|parent| (parent.0 as usize) < index));
        }
        let mut samples = profile.samples.clone();
        samples.sort_by_key(|sample| sample.time_ns);
        prop_assert_eq!(samples.len(), stacks.len());
        for (sample, stack) in samples.iter().zip(&stacks) {
            let mut names: Vec<_> =
                profile.frames_of(sample.stack).map(|frame| profile.name(frame)).collect();
            names.reverse();
            let expected: Vec<_> =
                stack.iter().flat_map(|svma| expansion(*svma)).copied().collect();
            prop_assert_eq!(names, expected);
        }
    }
}
