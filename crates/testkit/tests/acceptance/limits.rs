//! Every workload: nothing changes for it, and few samples break or get lost.

use testkit::{Recorder, Runtime, is_method};

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

/// A fixed amount of work, four seconds on an idle machine. On a busy machine a third of it is
/// sampled (docs/engines.md), and a fixed time would reduce the work as well.
fn churn(runtime: &Runtime) {
    let options = ["-F", "997"];
    limited(
        runtime,
        "churn",
        "rounds=1000",
        &options,
        broken_limit(runtime),
    );
}

fn collectible(runtime: &Runtime) {
    check(runtime, "collectible");
}

fn dynamic(runtime: &Runtime) {
    check(runtime, "dynamic");
}

/// By so many samples that the few instructions are among them by which an unwinder goes on in the
/// frame that catches: the tables of libgcc and of the runtime are wrong there, of 3 samples in
/// 10,000. So much work as a quiet machine does in four seconds, as on another one there are fewer
/// in that time.
fn exceptions(runtime: &Runtime) {
    let often = ["--engine", "clocks", "-F", "4999"];
    // Since .NET 9 an exception costs a quarter of the time.
    let is_dear = ["3.1.", "8."].map(|before| runtime.version.starts_with(before));
    let work = match is_dear.contains(&true) {
        true => "rounds=1700",
        false => "rounds=7000",
    };
    limited(runtime, "exceptions", work, &often, 0.01);
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
    let options = ["-F", "997"];
    limited(runtime, workload, "4", &options, broken_limit(runtime));
}

/// `work`: for how many seconds, or how many rounds.
pub(crate) fn limited(
    runtime: &Runtime,
    workload: &str,
    work: &str,
    options: &[&str],
    broken: f64,
) {
    let bare = Recorder::workload(runtime, workload, &["0.5"]).run_bare_shared();
    let recorded = Recorder::workload(runtime, workload, &[work])
        .options(options.iter().copied())
        .run_as(&bare);
    let inspected = recorded.inspect();
    println!("{workload} on {}: {}", runtime.version, inspected.json);
    inspected.assert_honest(broken, LOST_LIMIT);
    let stacks = recorded.stacks();
    assert!(
        stacks.total() >= 20,
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
