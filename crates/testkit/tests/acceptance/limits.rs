//! Every workload: nothing changes for it, and few samples break or get lost.

use testkit::{Record, Runtime, is_method};

use crate::{LOST_LIMIT, broken_limit};

on_each_runtime!(
    async_methods,
    churn,
    collectible,
    dynamic,
    exceptions,
    gc,
    generic,
    nullref,
    sleepy,
);

fn async_methods(runtime: &Runtime) {
    check(runtime, "async");
}

fn churn(runtime: &Runtime) {
    check(runtime, "churn");
}

fn collectible(runtime: &Runtime) {
    check(runtime, "collectible");
}

fn dynamic(runtime: &Runtime) {
    check(runtime, "dynamic");
}

fn exceptions(runtime: &Runtime) {
    check(runtime, "exceptions");
}

fn gc(runtime: &Runtime) {
    check(runtime, "gc");
}

fn generic(runtime: &Runtime) {
    check(runtime, "generic");
}

fn nullref(runtime: &Runtime) {
    check(runtime, "nullref");
}

fn sleepy(runtime: &Runtime) {
    check(runtime, "sleepy");
}

fn check(runtime: &Runtime, workload: &str) {
    let bare = Record::workload(runtime, workload, &["0.5"]).run_bare();
    let recorded = Record::workload(runtime, workload, &["4"])
        .frequency(997)
        .run_as(&bare);
    let inspected = recorded.inspect();
    println!("{workload} on {}: {}", runtime.version, inspected.json);
    inspected.assert_honest(broken_limit(runtime), LOST_LIMIT);
    let stacks = recorded.stacks();
    assert!(
        stacks.total() >= 200,
        "{} samples are too few",
        stacks.total()
    );
    // The methods that the workload names are there, under those names.
    for method in recorded.answer.lines("method") {
        let method = method.join(" ");
        let found = stacks
            .stacks
            .iter()
            .flat_map(|(frames, _)| frames)
            .any(|frame| is_method(frame, &method));
        assert!(found, "no frame {method} in\n{}", stacks.show(5));
    }
}
