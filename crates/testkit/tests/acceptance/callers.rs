//! `leaf` and `frameless`: every method has one caller, and a walk that loses
//! it shows another.

use testkit::{Record, Runtime, is_method};

use crate::{LOST_LIMIT, broken_limit};

on_each_runtime!(leaf, frameless);

/// Percent of the frames of these methods that may have another caller.
const WRONG: f64 = 0.1;

fn leaf(runtime: &Runtime) {
    one_caller_each(runtime, "leaf");
}

fn frameless(runtime: &Runtime) {
    one_caller_each(runtime, "frameless");
}

fn one_caller_each(runtime: &Runtime, workload: &str) {
    let recorded = Record::workload(runtime, workload, &["6"])
        .frequency(4999)
        .run();
    recorded.answer.assert_complete();
    recorded
        .inspect()
        .assert_honest(broken_limit(runtime), LOST_LIMIT);
    let stacks = recorded.stacks();
    let pairs = recorded.answer.lines("caller");
    assert!(pairs.len() >= 20, "{} pairs", pairs.len());
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
    let percent = wrong as f64 * 100.0 / all as f64;
    assert!(
        percent <= WRONG,
        "{percent:.3} % of {all} callers are wrong or missing:\n{examples}"
    );
}
