//! The costs of recording: each part is counted on real CLRs, and they add up.

use testkit::{Inspected, Recorded, Recorder, Runtime, run_sidewalk};

on_each_runtime!(callbacks_of_a_program_that_compiles_are_counted,);
on_net8_and_core31!(
    clocks_of_a_library_before_the_program_are_not_the_agents,
    probes_are_part_of_the_cost,
    the_whole_cost_is_less_than_what_the_process_used,
    ticks_and_handlers_are_those_of_the_samples,
);

fn part(inspected: &Inspected, key: &str) -> f64 {
    let value = &inspected.json["cost"][key];
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{key}: {}", inspected.json["cost"]))
}

fn callbacks(inspected: &Inspected, kind: &str) -> (f64, f64) {
    let calls = &inspected.json["cost"]["callbacks"][kind];
    let number = |key: &str| calls[key].as_f64();
    let (Some(count), Some(cpu_s)) = (number("count"), number("cpu_s")) else {
        panic!("{kind}: {}", inspected.json["cost"]);
    };
    (count, cpu_s)
}

fn line(recorded: &Recorded) -> String {
    let text = run_sidewalk(["inspect".as_ref(), recorded.recording.as_os_str()]);
    let line = text.lines().last().unwrap_or_default().to_owned();
    println!("{line}");
    line
}

fn callbacks_of_a_program_that_compiles_are_counted(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "jitchurn", &["1", "only=dynamic"]);
    let recorded = recorded.options(["--find-code", "never"]).run_complete();
    let line = line(&recorded);
    let inspected = recorded.inspect();
    println!("{}", inspected.json["cost"]);
    let methods = recorded.answer.measured("made");
    let (compilations, took) = callbacks(&inspected, "compilation");
    // Two events: start and end of a compilation.
    assert!(compilations >= 2.0 * methods, "{compilations} of {methods}");
    assert!(took > 0.0, "{compilations} callbacks took no time");
    assert!(callbacks(&inspected, "loads").0 >= 3.0);
    assert!(callbacks(&inspected, "start and end").0 >= 1.0);
    assert!(part(&inspected, "callbacks_s") >= took);
    assert!(line.contains("callbacks "), "{line}");
    assert!(line.contains(" modelled)"), "{line}");
}

fn the_whole_cost_is_less_than_what_the_process_used(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "mixed", &["2"]).run_complete();
    let inspected = recorded.inspect();
    let keys = ["agent_s", "callbacks_s", "handlers_s", "ticks_s"];
    let sum: f64 = keys.iter().map(|key| part(&inspected, key)).sum();
    let total = part(&inspected, "total_s");
    assert!((sum - total).abs() < 1e-6, "{sum} s and {total} s");
    let used = inspected.number("target_cpu_s");
    let percent = part(&inspected, "percent");
    assert!((percent - total * 100.0 / (used - total)).abs() < 1e-6);
    assert!(percent > 0.0 && total < used, "{}", inspected.json["cost"]);
    for key in keys {
        assert!(
            part(&inspected, key) > 0.0,
            "{key}: {}",
            inspected.json["cost"]
        );
    }
    let modelled = &inspected.json["cost"]["modelled"];
    assert_eq!(modelled, &serde_json::json!(["ticks_s"]));
    line(&recorded);
}

fn ticks_and_handlers_are_those_of_the_samples(runtime: &Runtime) {
    for (event, hertz, engine) in [
        ("cpu", "99", "timer"),
        ("cpu", "2000", "clocks"),
        ("wall", "99", "auto"),
    ] {
        let options = ["-e", event, "--frequency", hertz, "--engine", engine];
        let program = Recorder::workload(runtime, "shares", &["1"]).options(options);
        let recorded = program.run_complete();
        let line = line(&recorded);
        let inspected = recorded.inspect();
        let handlers = part(&inspected, "handlers");
        let samples = inspected.number("samples") + inspected.number("lost");
        // Wall-clock samples include some for which no signal was sent.
        if event == "cpu" {
            assert!(handlers >= samples * 0.9, "{handlers}: {line}");
            assert!(handlers <= samples * 1.1 + 20.0, "{handlers}: {line}");
        }
        assert!(handlers >= 2.0, "{line}");
        let handler = part(&inspected, "handlers_s") / handlers;
        assert!(handler > 0.0, "{line}");
        let tick = part(&inspected, "ticks_s") / handlers;
        assert!(tick > 0.0, "{line}");
        // Both are parts of what the process used.
        let used = inspected.number("target_cpu_s");
        assert!((handler + tick) * handlers < used, "{line}");
    }
}

/// Methods of some instructions, named alone: they count to the end.
fn probes_are_part_of_the_cost(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "calls", &["1"])
        .options(["--trace", "Workloads.Calls.Mixed"])
        .run_complete();
    let inspected = recorded.inspect();
    let keys = [
        "agent_s",
        "callbacks_s",
        "handlers_s",
        "ticks_s",
        "probes_s",
    ];
    let sum: f64 = keys.iter().map(|key| part(&inspected, key)).sum();
    let total = part(&inspected, "total_s");
    assert!((sum - total).abs() < 1e-6, "{sum} s and {total} s");
    let probes = part(&inspected, "probes_s");
    assert!(probes > 0.0, "{}", inspected.json["cost"]);
    assert!(
        probes < inspected.number("target_cpu_s"),
        "{}",
        inspected.json["cost"]
    );
    let modelled = inspected.json["cost"]["modelled"].as_array().unwrap();
    assert!(modelled.contains(&"probes_s".into()), "{modelled:?}");
    let line = line(&recorded);
    assert!(line.contains("probes "), "{line}");
}

/// Beside libfaketime. All that the program uses is in its samples, whatever clocks it is shown.
fn clocks_of_a_library_before_the_program_are_not_the_agents(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "shares", &["2"])
        .options(["--frequency", "99"])
        .environment("LD_PRELOAD", &testkit::fast_clocks().to_string_lossy())
        .run_complete();
    let inspected = recorded.inspect();
    let used = inspected.number("target_cpu_s");
    let seen = inspected.number("seen_ns") / 1e9;
    println!("{}: {used} s used, {seen} s seen", runtime.version);
    let own = part(&inspected, "total_s");
    // Ten times as much by the other clock.
    assert!(used < 2.0 * (seen + own), "{used} of {seen} and {own}");
}
