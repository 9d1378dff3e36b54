//! `leaf`, `frameless`, `roomy` and `storm`: every method has one caller, and a walk that
//! loses it shows another.

use testkit::chance::assert_at_most;
use testkit::{Recorded, Recorder, Runtime, is_method};

use crate::{LOST_LIMIT, broken_limit};

on_each_runtime!(leaf, frameless, roomy, storm);

/// Maximum percentage of frames of these methods with another caller.
const WRONG: f64 = 0.1;

fn leaf(runtime: &Runtime) {
    one_caller_each(runtime, "leaf", "3", 20);
}

fn frameless(runtime: &Runtime) {
    one_caller_each(runtime, "frameless", "3", 20);
}

/// Frames of many pages. Their prologues touch each page, in .NET Core 3.1 by moving the stack
/// pointer. A walk from there could read a return address of 0 and mistake it for the root.
fn roomy(runtime: &Runtime) {
    let recorded = one_caller_each(runtime, "roomy", "3", 10);
    recorded.inspect().assert_honest(WRONG, LOST_LIMIT);
    let stacks = recorded.stacks();
    let deep = stacks.with("Workloads.Roomy.TwoHundred");
    let whole = deep.with("Workloads.Roomy.Main").total();
    assert_eq!(whole, deep.total(), "all stacks go down to Main");
}

/// Continuous garbage collections. To stop a thread the runtime replaces (hijacks) return
/// addresses. A walk without the original ones loses one caller of a hundred here.
fn storm(runtime: &Runtime) {
    let recorded = one_caller_each(runtime, "storm", "6", 12);
    let collections = recorded.answer.measured("collections");
    assert!(collections >= 500.0, "only {collections} collections");
}

fn one_caller_each(runtime: &Runtime, workload: &str, seconds: &str, least: usize) -> Recorded {
    let recorded = Recorder::workload(runtime, workload, &[seconds])
        .frequency(4999)
        .run_complete();
    recorded
        .inspect()
        .assert_honest(broken_limit(runtime), LOST_LIMIT);
    let stacks = recorded.stacks();
    let pairs = recorded.answer.lines("caller");
    assert!(pairs.len() >= least, "{} pairs", pairs.len());
    let (mut all, mut wrong) = (0, 0);
    let mut examples = String::new();
    for pair in pairs {
        let [callee, caller] = pair[..] else {
            panic!("not a pair: {pair:?}")
        };
        for (found, count) in stacks.callers(callee) {
            all += count;
            if !is_method(&found, caller) {
                wrong += count;
                examples += &format!("{count}: {callee} under {found}\n");
            }
        }
    }
    println!("{wrong} of {all} callers are wrong\n{examples}");
    assert!(all >= 2000, "{all} frames are too few");
    assert_at_most("wrong callers", wrong as f64, all as f64, WRONG / 100.0);
    recorded
}
