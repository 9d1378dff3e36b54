//! The stack of the article, frame by frame.

use testkit::{Record, Runtime, is_hole, is_method};

use crate::{LOST_LIMIT, broken_limit};

on_each_runtime!(mixed);

fn mixed(runtime: &Runtime) {
    let recorded = Record::workload(runtime, "mixed", &["5"])
        .frequency(1999)
        .run();
    recorded.answer.assert_complete();
    recorded
        .inspect()
        .assert_honest(broken_limit(runtime), LOST_LIMIT);
    let pattern = recorded.answer.lines("stack");
    let hot = recorded.stacks().with("Workloads.Mixed.D");
    assert!(hot.total() >= 1000, "{} samples are too few", hot.total());
    for (frames, count) in &hot.stacks {
        if let Err(why) = matches(frames, &pattern[0]) {
            panic!("{count} samples: {why}:\n{}", frames.join("\n"));
        }
    }
}

/// Whether a stack (leaf first) is the one in `pattern`: `unmanaged` stands
/// for one or more frames that are not the program's, `unmanaged?` for any
/// number. Below the last only the runtime's start may follow.
fn matches(frames: &[String], pattern: &[&str]) -> Result<(), String> {
    let own = |frame: &String| frame.starts_with("Workloads.");
    let mut rest = frames;
    for part in pattern.iter().chain(&["unmanaged"]) {
        let strangers = rest.iter().take_while(|f| !own(f)).count();
        match *part {
            "unmanaged" | "unmanaged?" => {
                if let Some(hole) = rest[..strangers].iter().find(|f| is_hole(f)) {
                    return Err(format!("a hole, {hole}"));
                }
                if strangers == 0 && *part == "unmanaged" {
                    return Err(format!("no unmanaged frame before {:?}", rest.first()));
                }
                rest = &rest[strangers..];
            }
            method => match rest.split_first() {
                Some((frame, others)) if is_method(frame, method) => rest = others,
                other => return Err(format!("{:?} where {method} should be", other.map(|o| o.0))),
            },
        }
    }
    match rest.first() {
        None => Ok(()),
        Some(frame) => Err(format!("{frame} below the root")),
    }
}

#[test]
fn the_pattern_itself() {
    let pattern = [
        "unmanaged?",
        "Workloads.Mixed.D",
        "unmanaged",
        "Workloads.Mixed.C",
        "Workloads.Mixed.B",
    ];
    let table: [(&str, bool); 7] = [
        (
            "Workloads.Mixed.D;qsort;Workloads.Mixed.C;Workloads.Mixed.B;start",
            true,
        ),
        (
            "memcmp;Workloads.Mixed.D;a;b;Workloads.Mixed.C;Workloads.Mixed.B;start",
            true,
        ),
        (
            "Workloads.Mixed.D;Workloads.Mixed.C;Workloads.Mixed.B;start",
            false,
        ),
        ("Workloads.Mixed.D;qsort;Workloads.Mixed.B;start", false),
        (
            "Workloads.Mixed.D;qsort;Workloads.Mixed.C;x;Workloads.Mixed.B;start",
            false,
        ),
        (
            "Workloads.Mixed.D;[broken: x];Workloads.Mixed.C;Workloads.Mixed.B;start",
            false,
        ),
        (
            "Workloads.Mixed.D;qsort;Workloads.Mixed.C;Workloads.Mixed.B",
            false,
        ),
    ];
    for (stack, expected) in table {
        let frames: Vec<String> = stack.split(';').map(str::to_owned).collect();
        assert_eq!(matches(&frames, &pattern).is_ok(), expected, "{stack}");
    }
}
