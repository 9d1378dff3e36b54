//! Signals and stacks of others: a flag that another runtime sets, a crash handler above the CLR's,
//! coroutines on small stacks. The program runs as without a profiler, and samples that cannot be
//! taken are reported.

use testkit::{Recorded, Recorder, Runtime, native_threads};

on_each_runtime!(
    a_runtime_whose_signal_was_put_on_the_alternate_stack,
    null_references_beneath_a_crash_handler,
    a_coroutine_on_a_small_stack,
);

fn program(runtime: &Runtime, mode: &str) -> Recorder {
    let library = native_threads();
    let folder = library.parent().unwrap().to_string_lossy().into_owned();
    Recorder::workload(runtime, "unseen", &["2", mode]).environment("LD_LIBRARY_PATH", &folder)
}

/// Returns the number of samples lost for this reason.
fn lost(recorded: &Recorded, reason: &str) -> f64 {
    let inspected = recorded.inspect();
    inspected.json["lost_reasons"][reason]
        .as_f64()
        .unwrap_or(0.0)
}

fn a_runtime_whose_signal_was_put_on_the_alternate_stack(runtime: &Runtime) {
    // This engine checks the thread before it sends a signal. Timers signal at any time.
    let program = program(runtime, "moved").options(["--engine", "clocks"]);
    let recorded = program.run_complete();
    let results = recorded.answer.results();
    assert_eq!(results[..2], [["moved", "0"], ["missed", "0"]]);
    let reasons = &recorded.inspect().json["unseen_reasons"];
    let held = "threads of the runtime, whose signal another library put on the alternate stack";
    assert!(reasons[held].as_f64().unwrap_or(0.0) > 0.0, "{reasons}");
}

fn null_references_beneath_a_crash_handler(runtime: &Runtime) {
    let recorded = program(runtime, "crashes").run_complete();
    let results = recorded.answer.results();
    assert_eq!(results[..2], [["above", "0"], ["missed", "0"]]);
    assert!(recorded.inspect().number("samples") > 0.0);
}

fn a_coroutine_on_a_small_stack(runtime: &Runtime) {
    let recorded = program(runtime, "coroutine").run_complete();
    assert_eq!(recorded.answer.results()[0], ["hurt", "0"]);
    assert!(lost(&recorded, "stack pointer off the stack") > 0.0);
}
