//! Tests of ReJIT on real CLRs: probes count exactly, change no result, and can be reverted.

use std::collections::BTreeMap;

use testkit::Runtime;

use crate::run::{Run, library, run, run_with};

/// Entered, returned, threw.
type Counts = [u64; 3];

/// Counts by name; overloads are added up.
fn counts(run: &Run) -> BTreeMap<String, Counts> {
    let mut methods: BTreeMap<String, Counts> = BTreeMap::new();
    for line in run.of("method") {
        let mut parts = line.rsplitn(4, ' ');
        let [threw, returned, entered] =
            [(); 3].map(|()| parts.next().unwrap().parse::<u64>().unwrap());
        let counts = methods.entry(parts.next().unwrap().to_owned()).or_default();
        for (sum, count) in counts.iter_mut().zip([entered, returned, threw]) {
            *sum += count;
        }
    }
    assert_eq!(run.one("errors"), "0");
    assert!(run.of("failed").is_empty(), "{:?}", run.lines);
    methods
}

/// Runs a program with probes in its module, and without; checks that the results are the same.
fn counted(runtime: &Runtime, program: &str, variables: &[(&str, &str)]) -> Run {
    let module = format!("{program}.dll");
    let variables = [&[("COUNTS_MODULE", module.as_str())], variables].concat();
    let bare = run(runtime, "", "", program, "rounds=2");
    let counted = run_with(runtime, "counts", program, "rounds=2", &variables);
    assert!(!bare.results.is_empty());
    assert_eq!(bare.results, counted.results, "{}", runtime.version);
    counted
}

/// 5,000 in each of two rounds, and one.
const MIXED: u64 = 10_001;

#[test]
fn every_call_of_a_method_is_counted() {
    for runtime in Runtime::all() {
        let run = counted(
            &runtime,
            "calls",
            &[("COUNTS_METHOD", "Workloads.Calls.Mixed")],
        );
        let counts = counts(&run);
        assert_eq!(counts.len(), 1);
        let mixed = counts["Workloads.Calls.Mixed"];
        assert_eq!(mixed, [MIXED, MIXED, 0], "{}", runtime.version);
    }
}

#[test]
fn a_method_is_counted_and_reverted_while_the_program_runs() {
    for runtime in Runtime::all() {
        let run = counted(
            &runtime,
            "calls",
            &[
                ("COUNTS_METHOD", "Workloads.Calls.Mixed"),
                ("COUNTS_REVERT_AFTER", "1234"),
            ],
        );
        assert_eq!(run.one("reverted"), "1 of 1", "{}", runtime.version);
        assert_eq!(
            run.one("detach"),
            "CORPROF_E_IRREVERSIBLE_INSTRUMENTATION_PRESENT (0x80131370)",
            "{}",
            runtime.version
        );
        let mixed = counts(&run)["Workloads.Calls.Mixed"];
        assert_eq!(mixed, [1234, 1234, 0], "{}", runtime.version);
    }
}

#[test]
fn a_method_is_taken_back_and_counted_again_many_times() {
    for runtime in Runtime::all() {
        let run = counted(
            &runtime,
            "calls",
            &[
                ("COUNTS_METHOD", "Workloads.Calls.Mixed"),
                ("COUNTS_REVERT_AFTER", "1234"),
                ("COUNTS_AGAIN", "30"),
            ],
        );
        assert_eq!(run.of("again"), ["true"; 30], "{}", runtime.version);
        let mixed = counts(&run)["Workloads.Calls.Mixed"];
        assert_eq!(mixed, [MIXED, MIXED, 0], "{}", runtime.version);
    }
}

#[test]
fn probes_may_be_called_without_a_transition() {
    for runtime in Runtime::all() {
        for call in ["managed", "no-transition"] {
            // `CallConvSuppressGCTransition` is newer.
            if runtime.is_core31() && call == "no-transition" {
                continue;
            }
            let run = counted(
                &runtime,
                "calls",
                &[
                    ("COUNTS_METHOD", "Workloads.Calls.Mixed"),
                    ("COUNTS_CALL", call),
                ],
            );
            let mixed = counts(&run)["Workloads.Calls.Mixed"];
            assert_eq!(mixed, [MIXED, MIXED, 0], "{call} on {}", runtime.version);
        }
    }
}

#[test]
fn inlined_copies_are_asked_for_where_that_is_safe() {
    for runtime in Runtime::all() {
        let run = counted(
            &runtime,
            "calls",
            &[
                ("COUNTS_METHOD", "Workloads.Calls.Mixed"),
                ("COUNTS_INLINERS", "1"),
                ("COUNTS_REVERT_AFTER", "1234"),
                ("COUNTS_AGAIN", "2"),
            ],
        );
        // Before .NET 7 not safe for a method that is not loaded yet. At the second request it is
        // loaded.
        let first = (!runtime.is_core31()).to_string();
        let safe = [first.as_str(), "true", "true"];
        assert_eq!(run.of("inliners"), safe, "{}", runtime.version);
        let mixed = counts(&run)["Workloads.Calls.Mixed"];
        assert_eq!(mixed, [MIXED, MIXED, 0], "{}", runtime.version);
    }
}

#[test]
fn calls_are_counted_without_a_call() {
    for runtime in Runtime::all() {
        let run = counted(&runtime, "calls", &[("COUNTS_CALL", "count-only")]);
        let mixed = counts(&run)["Workloads.Calls.Mixed"];
        assert_eq!(mixed, [MIXED, 0, 0], "{}", runtime.version);
    }
}

#[test]
fn a_profiler_for_notifications_gets_no_rejit() {
    for runtime in Runtime::all() {
        // 3.1 has no notification profilers.
        if runtime.is_core31() {
            continue;
        }
        let beside = format!(
            "{}={{DB64E7B8-0E80-4F2E-9E87-6B0C2FB6DA21}};",
            library("counts").display()
        );
        let run = run_with(
            &runtime,
            "counts",
            "calls",
            "rounds=2",
            &[
                ("COUNTS_MODULE", "calls.dll"),
                ("COUNTS_BESIDE", "1"),
                ("CORECLR_ENABLE_PROFILING", "0"),
                ("CORECLR_ENABLE_NOTIFICATION_PROFILERS", "1"),
                ("CORECLR_NOTIFICATION_PROFILERS", &beside),
            ],
        );
        assert_eq!(run.one("no-rejit"), "NotMain", "{}", runtime.version);
    }
}

#[test]
fn metadata_is_written_and_read_back() {
    for runtime in Runtime::all() {
        let run = crate::run::run_both(&runtime, "probe", "tokens", "calls");
        assert!(run.of("failed").is_empty(), "{:?}", run.lines);
        let expected = [
            "calli 0x11 [1, 1, 10, 8]",
            "same true",
            "locals 0x11 [7, 2, 10, 24]",
            "assembly 0x23 ()",
            "type 0x01 (\"Probes.Probe\", true)",
            "listed true",
            "nested 0x01 (\"Inner\", true)",
            "member 0x0a (\"Enter\", true)",
            "method-spec 0x2b ()",
            "type-spec 0x1b [29, 14]",
            "module 0x1a \"libprobe\"",
            "text 0x70 ()",
            "applied Some(())",
        ];
        assert_eq!(run.of("token"), expected, "{}", runtime.version);
    }
}

/// Every method of each program: generics, exceptions of all kinds, structs, iterators, async
/// methods, recursion, threads.
#[test]
fn programs_whose_methods_are_all_wrapped_have_the_same_results() {
    for runtime in Runtime::all() {
        for program in [
            "async",
            "calls",
            "calltree",
            "exceptions",
            "generic",
            "lines",
            "manymethods",
            "mixed",
            "nullref",
        ] {
            let run = counted(&runtime, program, &[]);
            let counts = counts(&run);
            let place = || format!("{program} on {}", runtime.version);
            assert!(
                run.of("refused").is_empty(),
                "{}: {:?}",
                place(),
                run.of("refused")
            );
            let sum = |index: usize| counts.values().map(|counts| counts[index]).sum::<u64>();
            assert!(sum(0) > 20, "{}: {counts:?}", place());
            let main = counts.iter().find(|(name, _)| name.ends_with(".Main"));
            assert_eq!(main.unwrap().1, &[1, 1, 0], "{}", place());
            for (name, [entered, returned, threw]) in &counts {
                assert!(returned + threw <= *entered, "{name} in {}", place());
            }
            if program == "exceptions" {
                assert!(sum(2) > 10, "{}: {counts:?}", place());
            }
        }
    }
}
