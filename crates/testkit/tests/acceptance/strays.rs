//! Walks by a wrong unwind table, as assembly may have one, take any word of the stack for a return
//! address.

use testkit::{Recorder, Runtime, native_threads};

on_each_runtime!(
    a_wrong_table_leads_into_precompiled_code_that_never_ran,
    a_wrong_table_leads_anywhere,
    a_caller_of_code_without_a_table_is_marked_or_missing,
);

/// The label of a frame in precompiled code whose address follows no call, so it returns from none.
const STRAY: &str = "ReadyToRun code behind no call";

/// The agent must neither look up the method at such an address, nor use it as the seed of a walk
/// by the runtime. The runtime would search the image's functions backwards for one that has run,
/// and crash before the first (`ReadyToRunJitManager::JitCodeToMethodInfo`).
fn a_wrong_table_leads_into_precompiled_code_that_never_ran(runtime: &Runtime) {
    let library = native_threads();
    let program = Recorder::workload(runtime, "strays", &["0.3", &library.to_string_lossy()]);
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

/// Targets are the middle of instructions, freed code, dynamic methods and stubs. Tested with each
/// walker that handles native frames.
fn a_wrong_table_leads_anywhere(runtime: &Runtime) {
    let library = native_threads();
    let library = library.to_string_lossy();
    let program = Recorder::workload(runtime, "strays", &["0.5", "anywhere", &library]);
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

/// Decoy has returned. Its return addresses are still in the buffer of a native function without an
/// unwind table.
fn a_caller_of_code_without_a_table_is_marked_or_missing(runtime: &Runtime) {
    let library = native_threads();
    let program = Recorder::workload(
        runtime,
        "strays",
        &["1", "untabled", &library.to_string_lossy()],
    );
    let recorded = program.options(["--frequency", "499"]).run();
    let stacks = recorded.stacks();
    let of = |leaf: &str| {
        let of_leaf = stacks.stacks.iter().map(|(frames, _)| frames);
        let of_leaf = of_leaf.filter(|frames| frames[0].contains(leaf));
        of_leaf.collect::<Vec<_>>()
    };
    let native = of("burn_in_buffer");
    assert!(!native.is_empty(), "{}", stacks.show(10));
    // A mark only where the agent has not read the library yet.
    for frames in native {
        let decoy = frames.iter().position(|frame| frame.contains("Decoy"));
        let mark = frames.iter().position(|frame| frame.starts_with("[caller"));
        assert!(
            decoy.is_none_or(|decoy| mark.is_some_and(|mark| mark < decoy)),
            "{frames:?}"
        );
    }
    let generated = of("[generated code]");
    assert!(!generated.is_empty(), "{}", stacks.show(10));
    for frames in generated {
        assert_eq!(frames[1], "[caller guessed]", "{frames:?}");
        assert!(
            frames
                .iter()
                .any(|frame| frame.ends_with("Strays.CallGenerated")),
            "{frames:?}"
        );
    }
}
