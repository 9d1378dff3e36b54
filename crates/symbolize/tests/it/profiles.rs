//! Whole profiles: inlined frames, functions without names, and their names found later.

use std::fs;
use std::path::Path;

use profile::Profile;
use profile::testing::Scene;
use recording::{Frame, Record};
use symbolize::{Options, symbolize};

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
    let report = symbolize(&mut profile, &Options::default());
    assert_eq!(
        stack(&profile),
        [
            "(innermost:6)",
            "(middle:10)",
            "work::outer:14",
            "plain_c:26"
        ]
    );
    assert_eq!((report.modules[0].asked, report.modules[0].found), (2, 2));
    // A second time there is nothing left to look up.
    assert_eq!(symbolize(&mut profile, &Options::default()).modules, []);
}

#[test]
fn places_in_one_function_without_a_name_are_one_frame() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("small.so");
    fs::copy(fixture("small.so"), &library).unwrap();
    let mut profile = profile(&library, &[0x102f, 0x1002, 0x1000], None);
    symbolize(&mut profile, &Options::default());
    assert_eq!(
        stack(&profile),
        ["small.so+0x1000", "small.so+0x1000", "small.so+0x102b"]
    );
    assert_eq!(profile.frames.len(), 2);
}

#[test]
fn a_recorded_place_gets_its_name_when_there_are_symbols() {
    let mut found = profile(&fixture("small.so"), &[0x1002], Some("small.so+0x1000"));
    symbolize(&mut found, &Options::default());
    assert_eq!(stack(&found), ["work::outer"]);
    // A real name stays.
    let mut named = profile(&fixture("small.so"), &[0x1002], Some("another"));
    symbolize(&mut named, &Options::default());
    assert_eq!(stack(&named), ["another"]);
    let mut gone = profile(
        Path::new("/gone/small.so"),
        &[0x1002],
        Some("small.so+0x1000"),
    );
    symbolize(&mut gone, &Options::default());
    assert_eq!(stack(&gone), ["small.so+0x1000"]);
}
