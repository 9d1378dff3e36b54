//! The stack of the article, frame by frame.

use testkit::{Recorder, Runtime, is_stack};

use crate::{LOST_LIMIT, broken_limit};

on_each_runtime!(mixed);

fn mixed(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "mixed", &["2"])
        .frequency(1999)
        .run_complete();
    recorded
        .inspect()
        .assert_honest(broken_limit(runtime), LOST_LIMIT);
    let pattern = recorded.answer.lines("stack");
    let hot = recorded.stacks().with("Workloads.Mixed.D");
    assert!(hot.total() >= 300, "{} samples are too few", hot.total());
    for (frames, count) in &hot.stacks {
        if let Err(why) = is_stack(frames, &pattern[0]) {
            panic!("{count} samples: {why}:\n{}", frames.join("\n"));
        }
    }
}
