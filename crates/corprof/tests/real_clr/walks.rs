//! Tests of stack walks on real CLRs, on programs whose stacks are known.
//!
//! The program `mixed` has managed and native frames in turn: libc's qsort calls back into managed
//! code twice. Rule numbers are those of docs/rules.md.

use std::collections::{BTreeMap, BTreeSet};

use testkit::Runtime;

use crate::run::{Run, run, run_both};

/// Expected stack, leaf first.
const STACK: &str = "Workloads.Mixed.D unmanaged Workloads.Mixed.C Workloads.Mixed.B unmanaged \
                     Workloads.Mixed.A Workloads.Mixed.Main unmanaged";

/// The walks at the entry of `Mixed.D`, on each runtime.
fn walks() -> Vec<(Runtime, Run)> {
    crate::run::checked()
        .into_iter()
        .map(|runtime| {
            let run = run_both(&runtime, "probe", "walk", "mixed");
            (runtime, run)
        })
        .collect()
}

#[test]
fn rule_07_a_synchronous_walk_needs_no_seed_and_comes_leaf_first() {
    for (runtime, run) in walks() {
        assert_eq!(run.one("stack"), STACK, "{}", runtime.version);
        // The registers are in leaf-first order too: see rule 10.
        assert!(
            !run.lines
                .iter()
                .any(|line| line == "frame callback refused")
        );
    }
}

#[test]
fn rule_08_a_run_of_unmanaged_frames_is_one_callback() {
    for (runtime, run) in walks() {
        // qsort is at least two functions of libc (qsort and its recursive part) and a stub.
        let runs = run
            .one("stack")
            .split(' ')
            .filter(|name| *name == "unmanaged");
        assert_eq!(runs.count(), 3, "{}", runtime.version);
        let frames = run.of("frame");
        let kinds: Vec<&str> = frames.iter().map(|line| &line[..3]).collect();
        assert_eq!(
            kinds,
            ["man", "run", "man", "man", "run", "man", "man", "run"],
            "{}",
            runtime.version
        );
        // Each run is one callback with FunctionID 0: the raw layer gets as many callbacks.
        assert_eq!(
            run.one("raw_plain"),
            "S_OK (0x00000000) frames 8 contexts 0"
        );
    }
}

#[test]
fn rule_09_a_walk_that_is_stopped_ends_as_aborted() {
    for (runtime, run) in walks() {
        // The typed layer returns the callback's value.
        assert_eq!(run.one("stopped"), "Ok(Break(2))", "{}", runtime.version);
        assert_eq!(
            run.one("raw_stopped"),
            "CORPROF_E_STACKSNAPSHOT_ABORTED (0x80131361) frames 2 contexts 0",
            "{}",
            runtime.version
        );
    }
}

#[test]
fn rule_10_registers_come_when_they_are_asked_for() {
    for (runtime, run) in walks() {
        assert_eq!(
            run.one("raw_plain"),
            "S_OK (0x00000000) frames 8 contexts 0"
        );
        assert_eq!(
            run.one("raw_registers"),
            "S_OK (0x00000000) frames 8 contexts 8"
        );
        let mut deepest = 0;
        for line in run.of("frame") {
            let words: Vec<&str> = line.split(' ').collect();
            let hex = |at: usize| u64::from_str_radix(words[at], 16).unwrap();
            let (ip, rip, rsp) = (hex(1), hex(2), hex(3));
            assert_eq!(ip, rip, "{line} on {}", runtime.version);
            assert!(
                rsp > deepest,
                "{line} on {}: the stack grows down",
                runtime.version
            );
            deepest = rsp;
        }
        assert!(deepest > 0);
    }
}

#[test]
fn rule_12_a_walk_that_has_nowhere_to_begin_says_why() {
    for (runtime, run) in walks() {
        // No managed code runs yet: the runtime cannot walk.
        assert_eq!(run.one("initialize"), "Err(Unsafe)", "{}", runtime.version);
        // Unmanaged code as a seed, which only the raw layer can offer.
        assert_eq!(
            run.one("native_seed"),
            "CORPROF_E_STACKSNAPSHOT_UNMANAGED_CTX (0x8013135f) frames 0",
            "{}",
            runtime.version
        );
    }
}

#[test]
fn rule_13_a_seed_is_a_hint() {
    for (runtime, run) in walks() {
        // The runtime uses the seed only if it needs one.
        assert_eq!(run.one("seeded"), STACK, "{}", runtime.version);
        // In a hook the thread is in cooperative mode: the walk begins at the seed, C's frame.
        let from_c = STACK.split_once("unmanaged ").unwrap().1;
        assert_eq!(run.one("seeded_lower"), from_c, "{}", runtime.version);
        // While D is compiled the thread is in preemptive mode, where the runtime needs no seed:
        // B's frame as a seed changes nothing. A method may be compiled several times.
        let compiling = run.of("compiling");
        assert_eq!(
            compiling[0],
            format!("unmanaged {from_c}"),
            "{}",
            runtime.version
        );
        assert_eq!(compiling, run.of("compiling_seeded"), "{}", runtime.version);
    }
}

#[test]
fn rule_14_a_bad_seed_is_refused_or_does_no_harm() {
    for (runtime, run) in walks() {
        assert_eq!(
            run.one("bad_seeds"),
            "walked 1500 refused 2500 failed 0",
            "{}",
            runtime.version
        );
    }
}

#[test]
fn rule_12_a_walk_atop_the_runtimes_exception_handling_is_refused() {
    for runtime in crate::run::checked() {
        let run = run_both(&runtime, "probe", "exceptions", "exceptions");
        let mut answers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for line in run.of("tally") {
            let (place, rest) = line.split_once(' ').unwrap();
            let (answer, _count) = rest.rsplit_once(' ').unwrap();
            answers.entry(place).or_default().insert(answer);
        }
        // While frames are unwound, until the catch block runs, the leaf is in the runtime's
        // unwinder. A seed does not help, because the thread is in preemptive mode, where it is
        // ignored (rule 13).
        let refused = ["caught", "finally", "unwind", "unwind-seeded"];
        let walked = ["filter", "search", "thrown"];
        let expected: BTreeMap<&str, BTreeSet<&str>> = (refused
            .map(|place| (place, "UnmanagedContext")))
        .into_iter()
        .chain(walked.map(|place| (place, "walked")))
        .map(|(place, answer)| (place, BTreeSet::from([answer])))
        .collect();
        assert_eq!(answers, expected, "{}", runtime.version);
    }
}

#[test]
fn rule_19_no_thread_ends_while_it_is_pinned() {
    for runtime in crate::run::checked() {
        let bare = run(&runtime, "", "", "churn", "rounds=2");
        let run = run(&runtime, "probe", "pins", "churn", "2");
        assert_eq!(bare.results, run.results, "{}", runtime.version);
        let seen: Vec<&str> = run.one("pins").split(' ').collect();
        let ["walks", walks, "waited", waited, "lost", lost] = seen[..] else {
            panic!("{seen:?}");
        };
        println!("{}: {seen:?}", runtime.version);
        // Some walks were made, some threads ended meanwhile, and none ended while pinned.
        let number = |text: &str| text.parse::<u64>().unwrap();
        assert!(number(walks) > 100 && number(waited) > 0, "{seen:?}");
        assert_eq!(number(lost), 0);
    }
}

#[test]
fn every_thread_is_walked_under_a_suspension() {
    for runtime in crate::run::checked() {
        let run = run(&runtime, "probe", "suspend", "sleepy", "1");
        let resumed = run.of("resumed");
        assert!(
            resumed.iter().all(|answer| *answer == "Ok(())"),
            "{resumed:?}"
        );
        let main: Vec<&str> = run
            .of("suspended")
            .into_iter()
            .filter(|line| line.starts_with("main "))
            .collect();
        // Results until the main thread could be walked. It may hold a lock of the runtime, or be
        // in cooperative mode just after waking, until it notices the suspension (2 of 14,000
        // walks).
        let [unsafe_then @ .., main] = &main[..] else {
            panic!("{resumed:?}");
        };
        let later = ["main Err(Unsafe)", "main Err(NotSuspended)"];
        let is_later = |line: &&str| later.contains(&line.trim_end());
        assert!(unsafe_then.iter().all(is_later), "{unsafe_then:?}");
        assert!(
            main.starts_with("main Ok(Continue(()))")
                && main.ends_with("Workloads.Sleepy.Main unmanaged"),
            "{main}"
        );
    }
}
