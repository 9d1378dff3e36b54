//! Tests on real CLRs: calls in each context, and hooks.

use std::collections::BTreeSet;

use corprof::sys::rules::{ASYNCHRONOUS_OF_THE_ARTICLE, Entry, RULES, RuntimeVersion};
use testkit::Runtime;

use crate::run::run_both;

const REFUSED: &str = "CORPROF_E_UNSUPPORTED_CALL_SEQUENCE (0x80131363)";

fn version(runtime: &Runtime) -> RuntimeVersion {
    if runtime.is_core31() {
        RuntimeVersion::Core31
    } else {
        RuntimeVersion::Net8
    }
}

#[test]
fn the_minimal_profiler_names_what_is_compiled() {
    for runtime in crate::run::checked() {
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
    for runtime in crate::run::checked() {
        let run = run_both(&runtime, "probe", "contexts", "calls");
        let version = version(&runtime);
        // Every synchronous row of the table, always with UNSUPPORTED_CALL_SEQUENCE.
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
            // In a fast-path hook a walk has no frame to begin at, so its result differs.
            let answer = match name {
                "DoStackSnapshot" => "DoStackSnapshot NoManagedFrames".to_owned(),
                _ => format!("{name} S_OK"),
            };
            assert!(
                asynchronous.contains(&answer.as_str()),
                "{answer} in {asynchronous:?}"
            );
        }
        // The mapper's context is synchronous, and its calls may trigger a GC.
        assert!(!run.lines.iter().any(|line| line == "mapper refused"));
    }
}

#[test]
fn calls_on_a_thread_of_the_profilers_own_are_synchronous() {
    for runtime in crate::run::checked() {
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
    for runtime in crate::run::checked() {
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
    for runtime in crate::run::checked() {
        // The hooks overwrite every caller-saved register.
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
    for runtime in crate::run::checked() {
        let run = run_both(&runtime, "probe", "slow", "calls");
        // On 3.1 the call would corrupt xmm0 and xmm1.
        let expected = if runtime.is_core31() {
            "Some(E_NOTIMPL (0x80004001))"
        } else {
            "14 value 8"
        };
        assert_eq!(run.one("arguments"), expected);
        assert_eq!(run.one("panics"), "0");
    }
}
