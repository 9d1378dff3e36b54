//! `--find-code`: once a runtime is asked to report code no longer, its code is found where samples
//! meet it. On runtimes whose internal records are unknown the option changes nothing.

use std::collections::BTreeSet;

use testkit::{Recorder, Runtime};

use crate::broken_limit;
use crate::limits::limited;
use crate::names::assert_passed;

on_each_runtime!(
    dynamic_methods_have_names,
    few_of_many_methods_are_told_of,
    nothing_changes_for_the_program,
    tiers_are_seen,
);

/// Disables reports from the first method on.
const AT_ONCE: &str = "--find-code=0";

/// Whether the agent can find code in the runtime's own records.
fn finds_code(runtime: &Runtime) -> bool {
    let major = runtime.version.split('.').next();
    major.and_then(|major| major.parse::<u32>().ok()) >= Some(10)
}

fn few_of_many_methods_are_told_of(runtime: &Runtime) {
    let record = Recorder::workload(runtime, "jitchurn", &["rounds=10000", "only=dynamic"]);
    let bare = record.run_bare_shared();
    let recorded = record.run_as(&bare);
    let made = recorded.answer.measured("made");
    let inspected = recorded.inspect();
    inspected.assert_honest(broken_limit(runtime), 0.1);
    let reported = &inspected.json["cost"]["callbacks"]["compilation"]["count"];
    let reported = reported.as_f64().unwrap();
    // Two events for each method: start and end of its compilation.
    match finds_code(runtime) {
        // 3,000 methods, plus those compiled until the agent thread's next check.
        true => assert!(reported < made, "{reported} of {made}"),
        false => assert!(reported >= 2.0 * made, "{reported} of {made}"),
    }
}

/// As `limits`, which see to names of methods, broken walks and results.
fn nothing_changes_for_the_program(runtime: &Runtime) {
    let programs = ["async", "collectible", "dynamic", "exceptions", "generic"];
    for program in programs {
        let options = ["-F", "997", AT_ONCE];
        limited(runtime, program, "1.5", &options, broken_limit(runtime));
    }
}

fn dynamic_methods_have_names(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "dynamic", &["3", "passing"])
        .options(["--engine", "clocks", "-F", "999", AT_ONCE])
        .run_complete();
    assert_passed(&recorded.stacks());
}

/// The bodies found for loops that are hot from the start include optimised ones.
fn tiers_are_seen(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "shares", &["2"])
        .options(["-F", "997", AT_ONCE])
        .run_complete();
    let records = crate::records(&recorded.recording).unwrap();
    let tiers: BTreeSet<String> = records
        .iter()
        .filter_map(|record| match record {
            recording::Record::Frame { value, .. } => Some(value),
            _ => None,
        })
        .filter_map(|frame| match frame {
            recording::Frame::Managed { tier, .. } => Some(format!("{tier:?}")),
            _ => None,
        })
        .collect();
    println!("{}: {tiers:?}", runtime.version);
    // Methods that loop are optimised at once on .NET Core 3.1.
    let optimised = match runtime.is_core31() {
        true => ["Optimized", "Tier1"],
        false => ["Osr", "Tier1"],
    };
    assert!(
        optimised.iter().any(|tier| tiers.contains(*tier)),
        "{tiers:?}"
    );
}
