//! Method tracing of the framework's own assemblies, which are precompiled. The program's results
//! are unchanged. Traced methods include some compiled with runtime async.

use std::collections::BTreeMap;
use std::time::Duration;

use testkit::{Recorded, Recorder, Running, Runtime, WebServer, load, test_folder, workload};

use crate::attach::{recording_in, rounds_wanted, start, until};
use crate::tracing::{has_counted, stop, traced};

on_each_runtime!(
    results_are_those_of_the_bare_program,
    a_running_program_goes_on_as_it_was,
    calls_in_precompiled_code_are_counted,
);
on_each_web_runtime!(a_server_answers_as_bare_while_it_is_traced);

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

/// The patterns of a web server's recordings, taken in turn.
const OF_SERVER: [&[&str]; 3] = [
    &["Microsoft.AspNetCore.*"],
    &["*Async"],
    &["System.Text.Json.*"],
];
const PATHS: [&str; 5] = ["plain", "json", "cart", "regex", "nullref"];
const CONNECTIONS: usize = 8;

/// Each answer is checked: of a server that is traced from its start, of one that is attached to
/// and left again, and of both when they end while they are traced.
fn a_server_answers_as_bare_while_it_is_traced(runtime: &Runtime) {
    let second = Duration::from_secs(1);
    let load = |server: &WebServer| load(server.port(), &PATHS, CONNECTIONS, second).unwrap();
    for patterns in OF_SERVER {
        let record = Recorder::workload(runtime, "webserver", &[]).options(options(patterns));
        let (command, recording) = record.prepare();
        let server = WebServer::start(command);
        let loaded = load(&server);
        server.stop();
        println!("{patterns:?}: {} requests", loaded.requests);
        assert!(has_counted(recording.parent().unwrap()), "{patterns:?}");
    }

    let server = WebServer::start(runtime.command(&workload("webserver").dll));
    load(&server);
    let until_counted = |patterns: &[&str]| {
        let folder = test_folder("traced-server");
        let options = options(patterns);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let tool = start(server.pid(), &folder, &options);
        until("traced calls", || has_counted(&folder));
        (tool, folder)
    };
    for patterns in OF_SERVER.iter().cycle().take(rounds_wanted() as usize) {
        let ((message, recorded), requests) = server.under_load(&PATHS, CONNECTIONS, || {
            let (tool, folder) = until_counted(patterns);
            stop(tool, &folder)
        });
        println!("{patterns:?}: {requests} requests");
        assert!(recorded.answer.status.success(), "{message}");
        assert_traced(&recorded, patterns);
        load(&server);
    }
    let ((tool, folder), _) =
        server.under_load(&PATHS, CONNECTIONS, || until_counted(OF_SERVER[0]));
    server.stop();
    let output = tool.wait_with_output().unwrap();
    let recorded = Recorded::new(recording_in(&folder), output);
    assert!(
        recorded.answer.status.success(),
        "{}",
        recorded.answer.stderr
    );
    assert_traced(&recorded, OF_SERVER[0]);
}
