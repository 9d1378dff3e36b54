//! Method tracing of the framework's own assemblies, which are precompiled. The program's results
//! are unchanged. Traced methods include some compiled with runtime async.

use std::collections::BTreeMap;

use testkit::{Recorded, Recorder, Running, Runtime, test_folder, workload};

use crate::attach::{start, until};
use crate::tracing::{has_counted, stop, traced};

on_each_runtime!(
    results_are_those_of_the_bare_program,
    a_running_program_goes_on_as_it_was,
    calls_in_precompiled_code_are_counted,
);

/// The patterns of each recording. They select some hundreds of methods of the framework, some of
/// which are called.
const PATTERNS: [&[&str]; 3] = [
    &[
        "System.Text.RegularExpressions.Regex*",
        "System.Xml.Xml*",
        "System.Uri.*",
        "System.Collections.*",
        "System.IO.Compression.*",
    ],
    &["System.Text.Json.*"],
    &["System.Net.*", "*Async"],
];

/// Returns the options of `record` for patterns, without stacks of calls.
fn options(patterns: &[&str]) -> Vec<String> {
    let each = patterns.iter();
    let each = each.flat_map(|pattern| ["--trace".to_owned(), format!("{pattern}:1h")]);
    each.chain(["--trace-limit".to_owned(), "16384".to_owned()])
        .collect()
}

fn assert_traced(recorded: &Recorded, patterns: &[&str]) {
    let calls = traced(recorded).into_iter();
    let calls: u64 = calls.filter_map(|one| one["calls"].as_u64()).sum();
    assert!(calls > 10, "{patterns:?}: {calls}");
    let notes = recorded.inspect().json["notes"].to_string();
    assert!(!notes.contains("compiled with runtime async"), "{notes}");
}

fn results_are_those_of_the_bare_program(runtime: &Runtime) {
    let record = Recorder::workload(runtime, "framework", &["rounds=3"]);
    let bare = record.run_bare_shared();
    for patterns in PATTERNS {
        let record = record.clone().options(options(patterns));
        let recorded = record.run_as(&bare);
        assert_traced(&recorded, patterns);
    }
}

fn a_running_program_goes_on_as_it_was(runtime: &Runtime) {
    let bare = Recorder::workload(runtime, "framework", &["rounds=1"]).run_bare_shared();
    let mut command = runtime.command(&workload("framework").dll);
    command.arg("attached");
    let program = Running::start(command);
    for patterns in PATTERNS {
        let folder = test_folder("traced-framework");
        let options = options(patterns);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let tool = start(program.pid(), &folder, &options);
        until("traced calls", || has_counted(&folder));
        let (message, recorded) = stop(tool, &folder);
        assert!(recorded.answer.status.success(), "{message}");
        assert_traced(&recorded, patterns);
    }
    let (output, status) = program.end();
    assert!(status.success(), "{status}: {output}");
    for result in bare.results() {
        let line = format!("result {}", result.join(" "));
        assert!(output.contains(&line), "{line} is not in {output}");
    }
}

/// Calls by name, also of several methods of one name.
fn calls(recorded: &Recorded) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for one in traced(recorded) {
        let name = one["name"].as_str().unwrap().to_owned();
        *calls.entry(name).or_default() += one["calls"].as_u64().unwrap_or(0);
    }
    calls
}

/// Precompiled callers, runtime-async ones too, hold inlined copies of what is traced.
fn calls_in_precompiled_code_are_counted(runtime: &Runtime) {
    const PATTERNS: [&str; 2] = ["System.IO.Compression.*", "System.Net.Http.*.SendAsync"];
    let record = Recorder::workload(runtime, "framework", &["rounds=2"]);
    let record = record.options(options(&PATTERNS));
    let recorded = record.run_complete();
    if runtime.is_core31() {
        // It crashes when it is asked for such callers: docs/tracing.md.
        let notes = recorded.inspect().json["notes"].to_string();
        assert!(notes.contains("inlined into precompiled code"), "{notes}");
        return;
    }
    let compiled = record.environment("DOTNET_ReadyToRun", "0");
    let compiled = calls(&compiled.run_complete());
    assert!(compiled.values().sum::<u64>() > 100, "{compiled:?}");
    // Three requests a round.
    assert_eq!(compiled["System.Net.Http.RedirectHandler.SendAsync"], 6);
    assert_eq!(calls(&recorded), compiled);
}
