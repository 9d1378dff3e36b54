//! The walkers that stop the runtime, in real recordings and under the oracle.

use std::time::Duration;

use testkit::{Agreement, Machine, Record, Recorded, Runtime, agree};

use crate::stress;

on_each_runtime!(
    rule_12_no_seed_no_walk_while_an_exception_is_dispatched,
    rule_15_the_ballet_agrees_with_our_own_walk,
    rule_16_a_refused_walk_is_counted_and_the_program_goes_on,
    rule_17_a_stop_ends_whatever_locks_the_stopped_threads_hold,
    rule_19_threads_that_end_are_waited_for,
    shares_of_a_stopped_program,
    seeded_stacks_have_no_holes,
);

fn walked(runtime: &Runtime, walker: &str, hertz: u32, workload: &str) -> Recorded {
    let bare = Record::workload(runtime, workload, &["0.5"]).run_bare();
    bare.assert_complete();
    let recorded = Record::workload(runtime, workload, &[&stress::seconds()])
        .options(["--walker", walker, "--frequency", &hertz.to_string()])
        .run();
    recorded.answer.assert_complete();
    assert_eq!(recorded.answer.results(), bare.results(), "{walker}");
    recorded
}

fn under_the_oracle(runtime: &Runtime, program: &str, walks: u64) -> Agreement {
    let _machine = Machine::alone();
    agree(runtime, program, walks, 0)
}

/// While an exception looks for its handler, the top of the stack is the runtime's own code: the
/// walk is refused by name, on a real CLR.
fn rule_12_no_seed_no_walk_while_an_exception_is_dispatched(runtime: &Runtime) {
    let found = under_the_oracle(runtime, "exceptions", 200);
    let refused = found.not_compared.get("UnmanagedContext");
    assert!(refused.is_some_and(|count| *count > 0), "{}", found.text());
}

/// `DoStackSnapshot` with the seed of our own walk, and that walk, frame by frame.
fn rule_15_the_ballet_agrees_with_our_own_walk(runtime: &Runtime) {
    let found = under_the_oracle(runtime, "mixed", 300);
    assert!(found.seeded.walks >= 300);
    assert!(found.seeded.percent_explained() >= 99.0, "{}", found.text());
    let given = found.seeds.get("given").copied().unwrap_or(0);
    assert!(given * 2 > found.seeded.walks, "{}", found.text());
}

/// A runtime that stops itself all the time refuses us now and then.
fn rule_16_a_refused_walk_is_counted_and_the_program_goes_on(runtime: &Runtime) {
    let recorded = walked(runtime, "suspend", 999, "gc");
    let inspected = recorded.inspect();
    let refused = &inspected.json["lost_reasons"]["the runtime is suspending for itself"];
    assert!(
        refused.as_u64().is_some_and(|count| count > 0),
        "{}",
        inspected.json
    );
    assert!(inspected.number("samples") > 50.0, "{}", inspected.json);
}

/// The watchdog: threads hold the locks of the allocator, the dynamic linker, the type loader and
/// the JIT when the runtime is stopped, a few hundred times a second. If the agent waited for one of
/// them, the runtime would stand for ever.
fn rule_17_a_stop_ends_whatever_locks_the_stopped_threads_hold(runtime: &Runtime) {
    // Far beyond what a loaded machine takes away from the agent's thread.
    let limit = Duration::from_secs(2).as_nanos() as u64;
    let found = under_the_oracle(runtime, "locks", 1000);
    let longest = found.stopped_ns.iter().max().copied().unwrap_or(u64::MAX);
    assert!(
        longest < limit,
        "stopped for {longest} ns\n{}",
        found.text()
    );
    assert!(found.stopped_ns.len() > 100);
    for walker in ["suspend", "seeded"] {
        let recorded = walked(runtime, walker, 999, "locks");
        let inspected = recorded.inspect();
        let pauses = &inspected.json["pauses"];
        assert!(
            pauses["count"].as_u64().is_some_and(|count| count > 100),
            "{pauses}"
        );
        assert!(
            pauses["longest_s"]
                .as_f64()
                .is_some_and(|longest| longest < 2.0),
            "{pauses}"
        );
    }
}

/// Threads that live for a millisecond, under a walk each millisecond.
fn rule_19_threads_that_end_are_waited_for(runtime: &Runtime) {
    for walker in ["suspend", "seeded"] {
        let recorded = walked(runtime, walker, 999, "churn");
        let inspected = recorded.inspect();
        assert!(inspected.number("threads") > 100.0, "{}", inspected.json);
        assert!(inspected.number("samples") > 100.0, "{}", inspected.json);
    }
}

fn shares_of_a_stopped_program(runtime: &Runtime) {
    let recorded = walked(runtime, "suspend", 299, "shares");
    let stacks = recorded.stacks();
    let all = stacks.with("Workloads.Shares.Rounds").total() as f64;
    let half = stacks.with("Workloads.Shares.BurnHalf").total() as f64;
    // Where a thread can be stopped is not everywhere, but each loop has such a place.
    assert!((0.40..0.60).contains(&(half / all)), "{half} of {all}");
    let inspected = recorded.inspect();
    assert_eq!(inspected.json["walker"], "suspend");
    assert!(
        inspected.json["pauses"]["count"]
            .as_u64()
            .is_some_and(|count| count > 50)
    );
}

/// The article's stack, D to Main, with what lies between told by our own walk.
fn seeded_stacks_have_no_holes(runtime: &Runtime) {
    let recorded = walked(runtime, "seeded", 299, "mixed");
    let stacks = recorded.stacks().with("Workloads.Mixed.D");
    assert!(stacks.total() > 0);
    let mut sorted = 0;
    for (frames, count) in &stacks.stacks {
        let at = |name: &str| frames.iter().position(|frame| frame.starts_with(name));
        let order = ["D", "C", "B", "A", "Main"].map(|m| at(&format!("Workloads.Mixed.{m}")));
        if let [Some(d), Some(c), Some(b), Some(a), Some(main)] = order {
            // qsort lies between D and C, and between B and A.
            assert!(
                d + 1 < c && c + 1 == b && b + 1 < a && a < main,
                "{frames:?}"
            );
            sorted += count;
        }
        assert!(
            !frames.iter().any(|frame| frame == "[native]"),
            "{frames:?}"
        );
    }
    assert!(
        sorted * 10 >= stacks.total() * 9,
        "{sorted} of {}",
        stacks.total()
    );
}
