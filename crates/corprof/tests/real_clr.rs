//! The crate against real CLRs: `examples/minimal.rs` and `examples/probe.rs` loaded into .NET 8 and
//! .NET Core 3.1, with programs whose answer is known.

use std::collections::BTreeSet;
use std::path::PathBuf;

use corprof::sys::rules::{ASYNCHRONOUS_OF_THE_ARTICLE, Entry, RULES, RuntimeVersion};
use testkit::{Runtime, workload};

const REFUSED: &str = "CORPROF_E_UNSUPPORTED_CALL_SEQUENCE (0x80131363)";

/// What the program printed as its result, and what the profiler wrote.
struct Run {
    results: Vec<String>,
    lines: Vec<String>,
}

impl Run {
    /// The rest of each line that begins with `key`.
    fn of(&self, key: &str) -> Vec<&str> {
        self.lines
            .iter()
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
            .collect()
    }
    fn one(&self, key: &str) -> &str {
        match self.of(key)[..] {
            [line] => line,
            ref lines => panic!("{key}: {lines:?} in {:?}", self.lines),
        }
    }
}

fn library(example: &str) -> PathBuf {
    // Beside `deps`, where this test is: built with it by `cargo test -p corprof`.
    let path = std::env::current_exe()
        .unwrap()
        .with_file_name("../examples")
        .join(format!("lib{example}.so"));
    assert!(
        path.is_file(),
        "{}: run `cargo build -p corprof --examples` first",
        path.display()
    );
    path
}

fn run(runtime: &Runtime, example: &str, mode: &str, program: &str, argument: &str) -> Run {
    let out = std::env::temp_dir().join(format!(
        "corprof-{example}-{mode}-{program}-{}-{}",
        runtime.version,
        std::process::id()
    ));
    let mut command = runtime.command(&workload(program).dll);
    command.arg(argument);
    if !example.is_empty() {
        command
            .env("CORECLR_ENABLE_PROFILING", "1")
            .env("CORECLR_PROFILER", "{DB64E7B8-0E80-4F2E-9E87-6B0C2FB6DA21}")
            .env("CORECLR_PROFILER_PATH", library(example))
            .env("MINIMAL_OUT", &out)
            .env("CORPROF_PROBE", mode)
            .env("CORPROF_PROBE_OUT", &out);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} on {} with {example} {mode}: {}\n{text}{}",
        runtime.version,
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let lines = std::fs::read_to_string(&out).unwrap_or_default();
    let _ = std::fs::remove_file(&out);
    Run {
        results: text
            .lines()
            .filter(|line| line.starts_with("result "))
            .map(str::to_owned)
            .collect(),
        lines: lines.lines().map(str::to_owned).collect(),
    }
}

/// Runs with a profiler and without: the results are the same.
fn run_both(runtime: &Runtime, example: &str, mode: &str, program: &str) -> Run {
    let bare = run(runtime, "", "", program, "rounds=2");
    let profiled = run(runtime, example, mode, program, "rounds=2");
    assert!(!bare.results.is_empty());
    assert_eq!(bare.results, profiled.results);
    profiled
}

fn version(runtime: &Runtime) -> RuntimeVersion {
    if runtime.is_core31() {
        RuntimeVersion::Core31
    } else {
        RuntimeVersion::Net8
    }
}

#[test]
fn the_minimal_profiler_names_what_is_compiled() {
    for runtime in Runtime::all() {
        let run = run_both(&runtime, "minimal", "", "calls");
        let compiled: BTreeSet<&str> = run.of("compiled").into_iter().collect();
        for method in ["Main", "Round", "Mixed", "ReturnsBoth", "First", "Second"] {
            let name = format!("Workloads.Calls.{method}");
            assert!(compiled.contains(name.as_str()), "{name} in {compiled:?}");
        }
        assert!(run.one("threads").parse::<u32>().unwrap() >= 1);
    }
}

#[test]
fn the_runtime_refuses_synchronous_calls_in_a_fast_path_hook_and_no_others() {
    for runtime in Runtime::all() {
        let run = run_both(&runtime, "probe", "contexts", "calls");
        let version = version(&runtime);
        // Every row of the table that says so, and only UNSUPPORTED_CALL_SEQUENCE.
        let expected: Vec<String> = RULES
            .iter()
            .filter(|rule| matches!(rule.entry(version), Entry::Sync | Entry::SyncTriggers))
            .map(|rule| format!("{} {REFUSED}", rule.name))
            .collect();
        assert!(expected.len() > 50);
        assert_eq!(run.of("hook"), expected, "{}", runtime.version);
        // The article's list is accepted.
        let asynchronous = run.of("async");
        for name in ASYNCHRONOUS_OF_THE_ARTICLE {
            // There is no frame to begin at in a fast-path hook, so the walk has its own answer.
            let answer = match name {
                "DoStackSnapshot" => "DoStackSnapshot NoManagedFrames".to_owned(),
                _ => format!("{name} S_OK"),
            };
            assert!(
                asynchronous.contains(&answer.as_str()),
                "{answer} in {asynchronous:?}"
            );
        }
        // The mapper is synchronous, and its calls may trigger a GC.
        assert!(!run.lines.iter().any(|line| line == "mapper refused"));
    }
}

#[test]
fn calls_on_a_thread_of_the_profilers_own_are_synchronous() {
    for runtime in Runtime::all() {
        let run = run_both(&runtime, "probe", "contexts", "calls");
        let mut done = BTreeSet::new();
        for line in run.of("agent") {
            let (name, answer) = line.split_once(' ').unwrap();
            assert_eq!(answer, "S_OK", "{name} on {}", runtime.version);
            done.insert(name);
        }
        let expected = BTreeSet::from([
            "EnumJITedFunctions2",
            "EnumModules",
            "EnumThreads",
            "ForceGC",
            "GetCodeInfo4",
            "GetFunctionFromIP2",
            "GetFunctionFromIP3",
            "GetILToNativeMapping3",
            "GetNativeCodeStartAddresses",
            "GetRuntimeInformation",
            "GetThreadInfo",
        ]);
        assert_eq!(done, expected, "{}", runtime.version);
    }
}

#[test]
fn the_runtime_refuses_what_may_trigger_a_gc_outside_a_triggers_scope() {
    for runtime in Runtime::all() {
        let run = run_both(&runtime, "probe", "no-trigger", "gc");
        let version = version(&runtime);
        let expected: Vec<String> = RULES
            .iter()
            .filter(|rule| rule.entry(version) == Entry::SyncTriggers)
            .map(|rule| format!("{} {REFUSED}", rule.name))
            .collect();
        assert!(expected.len() > 15);
        assert_eq!(run.of("no-trigger"), expected, "{}", runtime.version);
        assert_eq!(run.one("no-trigger-sync"), "GetThreadInfo true");
    }
}

#[test]
fn fast_path_hooks_keep_every_register() {
    for runtime in Runtime::all() {
        // The hooks overwrite every register that they may.
        let run = run_both(&runtime, "probe", "registers", "calls");
        let calls: Vec<u64> = run
            .one("calls")
            .split(' ')
            .map(|count| count.parse().unwrap())
            .collect();
        assert!(calls[0] > 10_000);
        assert_eq!(calls[0], calls[1] + calls[2], "enter = leave + tailcall");
        assert_eq!(run.one("panics"), "0");
    }
}

#[test]
fn slow_path_hooks_see_arguments_and_return_values() {
    for runtime in Runtime::all() {
        let run = run_both(&runtime, "probe", "slow", "calls");
        // 3.1 would change xmm0 and xmm1 if it were asked.
        let expected = if runtime.is_core31() {
            "Some(E_NOTIMPL (0x80004001))"
        } else {
            "14 value 8"
        };
        assert_eq!(run.one("arguments"), expected);
        assert_eq!(run.one("panics"), "0");
    }
}

#[test]
fn a_synchronous_walk_is_the_stack_of_the_article() {
    for runtime in Runtime::all() {
        let run = run_both(&runtime, "probe", "walk", "mixed");
        let stack = "Workloads.Mixed.D unmanaged Workloads.Mixed.C Workloads.Mixed.B unmanaged \
                     Workloads.Mixed.A Workloads.Mixed.Main unmanaged";
        assert_eq!(run.one("stack"), stack, "{}", runtime.version);
        assert_eq!(run.one("seeded"), stack, "{}", runtime.version);
        assert_eq!(run.one("stopped"), "Ok(Break(2))");
        assert!(
            !run.lines
                .iter()
                .any(|line| line == "frame callback refused")
        );
        assert_eq!(run.one("bad_seeds"), "walked 1500 refused 2500 failed 0");
    }
}

#[test]
fn every_thread_is_walked_under_a_suspension() {
    for runtime in Runtime::all() {
        let run = run(&runtime, "probe", "suspend", "sleepy", "1");
        assert_eq!(run.one("resumed"), "Ok(())", "{}", runtime.version);
        let main: Vec<&str> = run
            .of("suspended")
            .into_iter()
            .filter(|line| line.starts_with("main "))
            .collect();
        let [main] = main[..] else {
            panic!("{main:?}");
        };
        assert!(
            main.starts_with("main Ok(Continue(()))")
                && main.ends_with("Workloads.Sleepy.Main unmanaged"),
            "{main}"
        );
    }
}
