//! A walk by a wrong unwind table, as hand-written code has it, may end at any word of the stack.

use testkit::{Record, Runtime, native_threads};

on_each_runtime!(
    a_wrong_table_leads_into_precompiled_code_that_never_ran,
    a_wrong_table_leads_anywhere,
);

/// How the recording calls what is there.
const STRAY: &str = "ReadyToRun code behind no call";

/// The runtime must not be asked for the method there, nor be given it as a seed: it goes back from one method to the one
/// before until it finds one that has run, and below its table it dies (`ReadyToRunJitManager::JitCodeToMethodInfo`).
fn a_wrong_table_leads_into_precompiled_code_that_never_ran(runtime: &Runtime) {
    let library = native_threads();
    let program = Record::workload(runtime, "strays", &["0.3", &library.to_string_lossy()]);
    let bare = program.run_bare_shared();
    let seeded = program
        .clone()
        .options(["--frequency", "499", "--walker", "seeded"]);
    assert!(seeded.run_as(&bare).inspect().number("samples") > 0.0);
    for event in ["cpu", "wall"] {
        let program = program.clone();
        let recorded = program
            .options(["--frequency", "499", "--event", event])
            .run_as(&bare);
        let stacks = recorded.stacks();
        let is_stray = |pair: &[String]| match pair {
            [leaf, caller] => leaf.contains("burn_over") && caller.contains(STRAY),
            _ => false,
        };
        let mut all = stacks.stacks.iter();
        let found = all.any(|(frames, _)| frames.windows(2).any(is_stray));
        assert!(found, "{event}: {}", stacks.show(10));
    }
}

/// Into the middle of instructions, code that is gone, dynamic methods, stubs: by each walker that meets native frames.
fn a_wrong_table_leads_anywhere(runtime: &Runtime) {
    let library = native_threads();
    let library = library.to_string_lossy();
    let program = Record::workload(runtime, "strays", &["0.5", "anywhere", &library]);
    let bare = program.run_bare_shared();
    for way in [
        &["--event", "cpu,wall", "--engine", "clocks"][..],
        &["--walker", "seeded"],
    ] {
        let program = program.clone().options(["--frequency", "2999"]);
        let recorded = program.options(way.iter().copied()).run_as(&bare);
        assert!(recorded.inspect().number("samples") > 100.0);
    }
}
