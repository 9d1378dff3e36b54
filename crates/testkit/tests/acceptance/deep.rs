//! Stacks of 5,000 frames: whole, or cut where the user said, and marked.

use testkit::{Recorder, Runtime, Stacks, is_method};

use crate::{LOST_LIMIT, broken_limit};

on_each_runtime!(deep_is_whole);
on_net8_and_core31!(deep_is_cut_and_says_so);

const DEPTH: usize = 5000;

fn descents(frames: &[String]) -> usize {
    frames
        .iter()
        .filter(|f| {
            is_method(f, "Workloads.Deep.DescendEven") || is_method(f, "Workloads.Deep.DescendOdd")
        })
        .count()
}

fn burning(stacks: &Stacks) -> Stacks {
    let burning = stacks.with("Workloads.Deep.BurnAtBottom");
    assert!(
        burning.total() >= 100,
        "{} samples are too few",
        burning.total()
    );
    burning
}

fn deep_is_whole(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "deep", &["2"])
        .frequency(997)
        .options(["--max-depth", "6000"])
        .run_complete();
    let inspected = recorded.inspect();
    inspected.assert_honest(broken_limit(runtime), LOST_LIMIT);
    assert_eq!(inspected.number("truncated"), 0.0, "{}", inspected.json);
    for (frames, count) in &burning(&recorded.stacks()).stacks {
        assert_eq!(descents(frames), DEPTH, "{count} samples");
        let main = frames
            .iter()
            .position(|f| is_method(f, "Workloads.Deep.Main"));
        assert!(
            main.is_some_and(|i| i >= DEPTH),
            "{count} samples have no Main"
        );
    }
}

fn deep_is_cut_and_says_so(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "deep", &["2"])
        .frequency(997)
        .options(["--max-depth", "100"])
        .run_complete();
    let inspected = recorded.inspect();
    inspected.assert_honest(broken_limit(runtime), LOST_LIMIT);
    let (mut cut, mut whole) = (0, 0);
    for (frames, count) in &burning(&recorded.stacks()).stacks {
        assert_eq!(
            frames.last().map(String::as_str),
            Some("[truncated]"),
            "{count} samples"
        );
        // The leaf part is kept: 100 frames from the leaf, and below the
        // burning method nothing but the recursion.
        let burning = frames
            .iter()
            .position(|f| is_method(f, "Workloads.Deep.BurnAtBottom"))
            .unwrap();
        let kept = frames.len() - 1;
        assert_eq!(descents(frames), kept - burning - 1, "{count} samples");
        cut += count;
        if frames.iter().any(|frame| frame == "[sidewalk agent]") {
            // In a callback of the compiler, which has replaced the method while it burned: all
            // frames of the agent are shown as one.
            assert!(kept < 100, "{count} samples of {kept} frames");
            continue;
        }
        whole += count;
        // The runtime's activity at that moment is shown by a frame that is on no stack.
        let message = frames
            .iter()
            .filter(|frame| ["[GC]", "[JIT compiler]"].contains(&frame.as_str()));
        assert_eq!(kept - message.count(), 100, "{count} samples");
    }
    let truncated = inspected.number("truncated");
    assert!(
        truncated >= cut as f64,
        "{truncated} truncated, but {cut} seen"
    );
    assert!(whole * 20 >= cut * 19, "{whole} of {cut}");
}
