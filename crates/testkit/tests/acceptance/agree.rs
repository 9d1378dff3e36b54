//! The walkers agree: a short run of `cargo xtask agree` on every workload.

use testkit::{Agreement, Machine, Runtime};

on_each_runtime!(
    walkers_agree,
    walkers_agree_after_an_attach,
    rule_13_the_runtime_finds_the_same_frames_with_a_seed_and_without,
);

/// Walks of each workload; `cargo xtask agree --walks N` takes more.
const WALKS: u64 = 120;

fn walkers_agree(runtime: &Runtime) {
    let machine = Machine::exclusive();
    let mut all = Agreement::default();
    for program in testkit::oracle_programs().unwrap() {
        all.merge(testkit::agree(runtime, &program, WALKS, 0));
    }
    drop(machine);
    println!("{}", all.text());
    assert!(all.suspend.walks >= 15 * WALKS);
    let [same, other, unread] = all.image_maps;
    println!("IL maps in images: {same} the same, {other} others, {unread} unread");
    assert!(
        same >= 200 && other == 0 && unread * 20 <= same,
        "{:?}",
        all.image_maps
    );
    // With few walks, one that differs has a large share. `cargo xtask agree` shows its class.
    assert!(all.suspend.percent_explained() >= 99.8, "{}", all.text());
    assert!(all.seeded.percent_explained() >= 99.8, "{}", all.text());
    assert!(all.snapshots.percent() >= 99.8, "{}", all.text());
}

/// Programs whose code exists at the attach: JIT-compiled, ReadyToRun, in exceptions, in waits.
fn walkers_agree_after_an_attach(runtime: &Runtime) {
    let machine = Machine::exclusive();
    let mut all = Agreement::default();
    for program in ["mixed", "generic", "exceptions", "locks"] {
        all.merge(testkit::agree_attached(runtime, program, WALKS, 0));
    }
    drop(machine);
    println!("{}", all.text());
    assert!(all.suspend.walks >= 4 * WALKS);
    assert!(all.suspend.percent_explained() >= 99.8, "{}", all.text());
    assert!(all.seeded.percent_explained() >= 99.8, "{}", all.text());
    assert!(all.snapshots.percent() >= 99.8, "{}", all.text());
}

/// Rule 13 of the articles: a seed (the context from which `DoStackSnapshot` begins) is a hint. On
/// stopped threads, walks with and without a seed return the same addresses.
fn rule_13_the_runtime_finds_the_same_frames_with_a_seed_and_without(runtime: &Runtime) {
    let machine = Machine::exclusive();
    let mut all = Agreement::default();
    for program in ["mixed", "generic", "locks"] {
        all.merge(testkit::agree(runtime, program, 300, 0));
    }
    drop(machine);
    let given = all.seeds.get("given").copied().unwrap_or(0);
    assert!(all.snapshots.walks >= 900 && given >= 300, "{}", all.text());
    assert_eq!(
        (all.snapshots.same, all.snapshots.same_addresses),
        (all.snapshots.walks, all.snapshots.walks),
        "{}",
        all.text()
    );
}

/// Random seeds of each program.
const SEEDS: u64 = 2500;

/// Rule 14 of the articles: a bad seed must not bring the process down. What our own walk has not
/// found to be a frame of that thread at that moment is refused before the runtime is asked.
#[test]
fn rule_14_random_seeds_are_refused_and_the_program_goes_on() {
    for runtime in Runtime::all() {
        for program in ["mixed", "gc"] {
            let machine = Machine::exclusive();
            let found = testkit::agree(&runtime, program, 50, SEEDS);
            drop(machine);
            let (refused, given) = found.random_seeds;
            // The seeds that were passed on are frames of the thread nevertheless.
            assert!(
                refused + given >= SEEDS && refused >= SEEDS / 5 * 4,
                "{found:?}"
            );
            assert!(
                found.suspend.percent_explained() >= 98.0,
                "{}",
                found.text()
            );
        }
    }
}
