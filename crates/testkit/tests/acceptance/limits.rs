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

/// By so many samples that the few instructions are among them by which an unwinder goes on in the
/// frame that catches: the tables of libgcc and of the runtime are wrong there, of 3 samples in
/// 10,000.
fn exceptions(runtime: &Runtime) {
    let often = ["--engine", "clocks", "-F", "4999"];
    limited(runtime, "exceptions", &often, 0.01);
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
    limited(runtime, workload, &["-F", "997"], broken_limit(runtime));
}

fn limited(runtime: &Runtime, workload: &str, options: &[&str], broken: f64) {
    let bare = Record::workload(runtime, workload, &["0.5"]).run_bare();
    let recorded = Record::workload(runtime, workload, &["4"])
        .options(options.iter().copied())
        .run_as(&bare);
    let inspected = recorded.inspect();
    println!("{workload} on {}: {}", runtime.version, inspected.json);
    // One sample is no share.
    let one = 100.0 / inspected.number("samples");
    inspected.assert_honest(broken.max(one), LOST_LIMIT);
    let stacks = recorded.stacks();
    // Threads of a millisecond beside others that want the processors are seen for a third (docs/engines.md).
    assert!(
        stacks.total() >= 80,
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
