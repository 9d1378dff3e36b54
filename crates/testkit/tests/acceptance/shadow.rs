//! The walker `shadow`: exact call trees, against a program that keeps its own.

use std::collections::{BTreeMap, BTreeSet};

use testkit::{
    AsyncKind, ProgramOutput, Recorded, Recorder, Runtime, Stacks, physical_stacks,
    workload_of_kind,
};

on_net8_and_core31!(
    rule_21_shadow_counts_every_call_of_a_known_tree,
    shadow_gives_the_time_of_a_tree,
    shadow_cuts_deep_trees_and_says_so,
);

// Tests with runtime async.
on_each_runtime_async!(a_resumption_is_no_call);

/// Each method is suspended and resumed, some with an exception.
fn a_resumption_is_no_call(runtime: &Runtime) {
    let program = workload_of_kind("suspended", AsyncKind::Runtime);
    let recorded = Recorder::program(runtime, "suspended", &program.dll, &[])
        .options(["--walker", "shadow", "-e", "cpu"])
        .run_complete();
    assert_no_call_lost(&recorded);
    let calls = calls(&recorded);
    let lines = recorded.answer.lines("calls");
    let expected: Vec<(&str, u64)> = lines
        .iter()
        .map(|words| (words[0], words[1].parse().unwrap()))
        .collect();
    let of = |method: &str| -> u64 {
        let own = calls.stacks.iter();
        let own = own.filter(|(frames, _)| frames[0] == method);
        own.map(|(_, count)| count).sum()
    };
    let found: Vec<_> = expected.iter().map(|(it, _)| (*it, of(it))).collect();
    assert_eq!(found, expected);
}

fn record(runtime: &Runtime, event: &str, options: &[&str], arguments: &[&str]) -> Recorded {
    let bare = Recorder::workload(runtime, "calltree", arguments).run_bare_shared();
    let recorded = Recorder::workload(runtime, "calltree", arguments)
        .options(["--walker", "shadow", "-e", event])
        .options(options.iter().copied())
        .run_as(&bare);
    assert_no_call_lost(&recorded);
    recorded
}

/// Asserts that no call is lost. Only a tick that was pending when its thread ended may be missing.
pub(crate) fn assert_no_call_lost(recorded: &Recorded) {
    let inspected = recorded.inspect();
    let late = inspected.json["lost_reasons"]["after the runtime had released the thread"]
        .as_f64()
        .unwrap_or(0.0);
    assert_eq!(inspected.number("lost"), late, "{}", inspected.json);
    assert_eq!(inspected.number("broken"), 0.0, "{}", inspected.json);
}

/// Paths, root first, with their calls, as the recording has them.
pub(crate) fn calls(recorded: &Recorded) -> Stacks {
    physical_stacks(&recorded.recording, "call")
}

/// Returns the calls that the program printed: `calls COUNT ROOT;…;LEAF`.
fn expected(answer: &ProgramOutput) -> BTreeMap<String, u64> {
    let lines = answer.lines("calls");
    let tree: BTreeMap<String, u64> = lines
        .iter()
        .map(|words| {
            let path = words[1..].join(" ");
            (path, words[0].parse().unwrap())
        })
        .collect();
    assert!(tree.len() > 100, "{} paths are too few", tree.len());
    tree
}

/// Asserts that the tree is the one that the program printed. `suffix` is what stands behind each
/// method of its runtime, where there are several.
pub(crate) fn assert_known_tree(tree: &Stacks, answer: &ProgramOutput, suffix: &str) {
    let expected = expected(answer);
    let counted: BTreeSet<&str> = expected.keys().flat_map(|path| path.split(';')).collect();
    // The program counts its own methods only, so those of the framework are taken out of paths.
    let counted = |frame: &String| {
        let method = frame.strip_suffix(suffix)?;
        counted.get(method).copied()
    };
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for (frames, calls) in &tree.stacks {
        if counted(&frames[0]).is_some() {
            let path: Vec<&str> = frames.iter().rev().filter_map(counted).collect();
            *found.entry(path.join(";")).or_default() += calls;
        }
    }
    let differ: Vec<_> = expected
        .keys()
        .chain(found.keys())
        .filter(|path| expected.get(*path) != found.get(*path))
        .map(|path| (path, expected.get(path), found.get(path)))
        .collect();
    assert!(differ.is_empty(), "path, expected, found: {differ:#?}");
}

/// Recursion, generics, virtual and reverse calls, tail calls, exceptions caught higher, rethrown,
/// filtered, nested and replaced, async methods, threads.
fn rule_21_shadow_counts_every_call_of_a_known_tree(runtime: &Runtime) {
    let recorded = record(runtime, "cpu", &[], &["rounds=30"]);
    assert_known_tree(&calls(&recorded), &recorded.answer, "");
}

fn shadow_gives_the_time_of_a_tree(runtime: &Runtime) {
    let recorded = record(runtime, "wall", &[], &["rounds=100"]);
    let out = recorded.convert("time.collapsed");
    let stacks = Stacks::from_collapsed(&std::fs::read_to_string(out).unwrap());
    // All that the main thread does is done by Main.
    let main = stacks.with("Workloads.CallTree.Main").total() as f64;
    let inspected = recorded.inspect();
    let wall_s = recorded.answer.measured("wall_ms") / 1000.0;
    let share = main * 1e-9 / wall_s;
    println!("{share} of {wall_s} s, {}", inspected.json);
    assert!((0.9..1.1).contains(&share), "{share} of {wall_s} s");
}

fn shadow_cuts_deep_trees_and_says_so(runtime: &Runtime) {
    let recorded = record(runtime, "cpu", &["--max-depth", "30"], &["rounds=10"]);
    let expected = expected(&recorded.answer);
    let (mut cut, mut deepest) = (0, 0);
    for (frames, calls) in &calls(&recorded).stacks {
        deepest = deepest.max(frames.len());
        if frames[0] == "[truncated]" {
            assert_eq!(frames.len(), 31, "{frames:?}");
            cut += calls;
        }
    }
    assert_eq!(deepest, 31);
    // Each of the 40 frames of Down below the cut, and more.
    let down = |path: &&String| path.matches("CallTree.Down").count() > 30;
    let least: u64 = expected
        .keys()
        .filter(down)
        .map(|path| expected[path])
        .sum();
    assert!(
        cut >= least,
        "{cut} calls below the cut, expected {least} at least"
    );
}
