//! Names as the programmer wrote them.

use std::collections::BTreeSet;

use testkit::{Recorded, Recorder, Runtime, Stacks, is_method, test_folder};

on_each_runtime!(
    generics,
    compiler_made_methods,
    dynamic_methods_that_pass,
    dynamic_methods_that_pass_in_a_program_that_runs,
    threads,
    unmanaged_code,
);

fn frames(recorded: &Recorded) -> BTreeSet<String> {
    recorded
        .stacks()
        .stacks
        .into_iter()
        .flat_map(|(frames, _)| frames)
        .collect()
}

fn record(runtime: &Runtime, workload: &str, arguments: &[&str]) -> Recorded {
    Recorder::workload(runtime, workload, arguments)
        .frequency(997)
        .run_complete()
}

fn generics(runtime: &Runtime) {
    let frames = frames(&record(runtime, "generic", &["3"]));
    let own: Vec<&String> = frames
        .iter()
        .filter(|f| f.starts_with("Workloads."))
        .collect();
    // Type, method, and whether the type has arguments.
    let table = [
        ("Workloads.GenericBox<", ".SpinBox"),
        ("Workloads.GenericBox<", ".SpinWith<"),
        ("Workloads.GenericBox<", ".SpinInner"),
        ("Workloads.Generic.", "SpinStatic<"),
    ];
    for (start, end) in table {
        assert!(
            own.iter().any(|f| f.starts_with(start) && f.contains(end)),
            "no frame {start}…{end} in {own:#?}"
        );
    }
    // Code for value types is not shared, so the type arguments are known.
    assert!(
        own.iter().any(|f| f.contains("SmallNumber>.SpinBox")),
        "{own:#?}"
    );
    assert!(
        !own.iter().any(|f| f.contains('`')),
        "a raw generic name in {own:#?}"
    );
}

fn compiler_made_methods(runtime: &Runtime) {
    let recorded = record(runtime, "async", &["3"]);
    let frames = frames(&recorded);
    let own: Vec<&String> = frames
        .iter()
        .filter(|f| f.starts_with("Workloads.Async"))
        .collect();
    // The constructors of the class that holds lambdas: they are not in the source, so they have no
    // other name (`profile`'s table of names says so). A sample seldom falls into one.
    let is_closures =
        |f: &str| f.contains("<>c.") && (f.ends_with(".ctor") || f.ends_with(".cctor"));
    for made in ["MoveNext", "<>c", "b__", "g__", "d__"] {
        assert!(
            !own.iter().any(|f| f.contains(made) && !is_closures(f)),
            "the compiler's {made} in {own:#?}"
        );
    }
    for method in recorded.answer.lines("method") {
        assert!(
            own.iter().any(|f| f.starts_with(method[0])),
            "no {} in {own:#?}",
            method[0]
        );
    }
}

/// Each is gone before its samples are read, and another one has its memory and its id.
fn dynamic_methods_that_pass(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "dynamic", &["3", "passing"])
        .options(["--engine", "clocks", "-F", "999"])
        .run_complete();
    assert_passed(&recorded.stacks());
}

fn dynamic_methods_that_pass_in_a_program_that_runs(runtime: &Runtime) {
    let program = crate::attach::running(runtime, "dynamic", &["passing"]);
    let folder = test_folder("passing");
    let options = ["-d", "2s", "-F", "999", "--engine", "clocks"];
    let recorded = crate::attach::record(program.pid(), &folder, &options);
    assert_passed(&recorded.stacks());
    let (output, status) = program.end();
    assert!(status.success(), "{status}: {output}");
}

/// Asserts that a callee of these has its own name, unless it is the runtime, which compiles it,
/// and that no other name occurs.
pub(crate) fn assert_passed(stacks: &Stacks) {
    for (caller, own, other) in [
        ("Workloads.Dynamic.EvenRound", "EvenBurn", "OddBurn"),
        ("Workloads.Dynamic.OddRound", "OddBurn", "EvenBurn"),
    ] {
        let round = stacks.with(caller);
        let (mut named, mut nameless) = (0, 0);
        for (frames, count) in &round.stacks {
            match frames.as_slice() {
                [leaf, ..] if *leaf == format!("DynamicMethod {own}") => named += count,
                // It calls nothing.
                [leaf, next, ..] if is_method(next, caller) && !leaf.contains(".so") => {
                    nameless += count;
                }
                _ => {}
            }
        }
        let all = round.total();
        let wrong = round.with(&format!("DynamicMethod {other}")).total();
        let case = format!(
            "{named} named, {nameless} not, of {all}: {}",
            round.show(20)
        );
        assert_eq!(wrong, 0, "{case}");
        assert!(named > 200 && nameless * 50 <= named, "{case}");
    }
}

fn threads(runtime: &Runtime) {
    let recorded = record(runtime, "shares", &["2", "threads"]);
    let report = recorded.report(&["--by", "thread", "--top", "100"]);
    let names: Vec<&str> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["name"].as_str())
        .collect();
    for i in 0..4 {
        let name = format!("shares-{i}");
        assert!(
            names.iter().any(|n| n.contains(&name)),
            "no thread {name} in {names:?}"
        );
    }
}

fn unmanaged_code(runtime: &Runtime) {
    // The collector is the runtime's own code; its threads and frames are
    // there, named by libcoreclr's symbols.
    let recorded = Recorder::workload(runtime, "gc", &["3"])
        .options(["-e", "cpu,gc"])
        .frequency(997)
        .run_complete();
    let stacks = recorded.stacks();
    let native = stacks
        .stacks
        .iter()
        .flat_map(|(frames, _)| frames)
        .any(|frame| frame.contains("gc_heap") || frame.contains("libcoreclr"));
    assert!(
        native,
        "no frame of the garbage collector in\n{}",
        stacks.show(10)
    );
    // On the program's threads too it is called what it is, without symbols: all of what its
    // symbols call so, where they are there, and no more than the runtime was stopped for.
    let collector = stacks.with("[GC]");
    assert!(
        collector
            .callers("[GC]")
            .keys()
            .any(|caller| caller.starts_with("Workloads.Gc.")),
        "{}",
        collector.show(10)
    );
    let collect = "WKS::gc_heap::garbage_collect";
    let (named, both) = (stacks.with(collect), collector.with(collect));
    println!("{} of {} samples", both.total(), named.total());
    assert!(
        both.total() * 100 >= named.total() * 99,
        "{}",
        named.show(100)
    );
    let report = recorded.report(&["--event", "cpu", "--top", "100000"]);
    let rows = report["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "[GC]");
    let collected = row.map_or(0.0, |row| row["total"].as_f64().unwrap());
    let inspected = recorded.inspect();
    let paused = inspected.event("gc").unwrap()["value"].as_f64().unwrap();
    println!("{collected} ns of CPU in the collector, {paused} ns of pauses");
    assert!(
        (0.1 * paused..1.1 * paused).contains(&collected),
        "{collected} of {paused}\n{}",
        collector.show(10)
    );
}
