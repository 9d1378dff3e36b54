//! The walkers that stop the runtime, in real recordings and under the oracle.

use std::fs::File;

use recording::{Item, Reader, Record as Written};
use testkit::{
    Agreement, Machine, Recorded, Recorder, Runtime, agree, is_hole, is_stack, runsxs, workload,
};

use crate::side_by_side::both;
use crate::stress;

on_each_runtime!(
    rule_15_the_ballet_agrees_with_our_own_walk,
    rule_15_the_holes_of_the_articles_stack_are_filled,
    rule_16_a_refused_walk_is_counted_and_the_program_goes_on,
);
on_net8_and_core31!(
    rule_12_no_seed_no_walk_while_an_exception_is_dispatched,
    rule_17_a_stop_ends_whatever_locks_the_stopped_threads_hold,
    rule_19_threads_that_end_are_waited_for,
    a_stopped_program_is_seen_where_it_burns,
    threads_that_were_never_walked_are_counted,
);

fn walked(runtime: &Runtime, walker: &str, hertz: u32, workload: &str) -> Recorded {
    let bare = Recorder::workload(runtime, workload, &["0.5"]).run_bare_shared();
    Recorder::workload(runtime, workload, &[&stress::seconds()])
        .options(["--walker", walker, "--frequency", &hertz.to_string()])
        .run_as(&bare)
}

fn under_the_oracle(runtime: &Runtime, program: &str, walks: u64) -> Agreement {
    let _machine = Machine::exclusive();
    agree(runtime, program, walks, 0)
}

/// During the search for an exception's handler, the leaf is the runtime's own code. The walk is
/// then refused with a named reason. (Since .NET 9 that code is managed, and no walk is refused.)
fn rule_12_no_seed_no_walk_while_an_exception_is_dispatched(runtime: &Runtime) {
    let found = under_the_oracle(runtime, "exceptions", 200);
    let refused = found.not_compared.get("UnmanagedContext");
    assert!(refused.is_some_and(|count| *count > 0), "{}", found.text());
}

/// Compares `DoStackSnapshot`, seeded from our own walk, with that walk, frame by frame.
fn rule_15_the_ballet_agrees_with_our_own_walk(runtime: &Runtime) {
    let found = under_the_oracle(runtime, "mixed", 300);
    assert!(found.seeded.walks >= 300);
    assert!(found.seeded.percent_explained() >= 99.0, "{}", found.text());
    let given = found.seeds.get("given").copied().unwrap_or(0);
    assert!(given * 2 > found.seeded.walks, "{}", found.text());
}

/// A runtime that suspends itself continuously sometimes refuses a walk.
fn rule_16_a_refused_walk_is_counted_and_the_program_goes_on(runtime: &Runtime) {
    let recorded = walked(runtime, "suspend", 999, "gc");
    let inspected = recorded.inspect();
    let refused = &inspected.json["lost_reasons"]["the runtime is suspending for itself"];
    assert!(
        refused.as_u64().is_some_and(|count| count > 0),
        "{}",
        inspected.json
    );
    assert!(inspected.number("samples") > 50.0, "{}", inspected.json);
}

/// Threads hold the locks of the allocator, the dynamic linker, the type loader and the JIT when
/// the runtime is stopped, a few hundred times a second. If the agent waited for one of them, the
/// runtime would stand for ever and the program would not end.
fn rule_17_a_stop_ends_whatever_locks_the_stopped_threads_hold(runtime: &Runtime) {
    let found = under_the_oracle(runtime, "locks", 1000);
    let longest = found.stopped_ns.iter().max();
    println!(
        "oracle: {} stops, {longest:?} ns at most",
        found.stopped_ns.len()
    );
    assert!(found.stopped_ns.len() > 100, "{}", found.text());
    for walker in ["suspend", "seeded"] {
        let recorded = walked(runtime, walker, 999, "locks");
        let pauses = pauses(&recorded);
        let longest = pauses.iter().map(|pause| pause.stopped_ns).max();
        println!("{walker}: {} stops, {longest:?} ns at most", pauses.len());
        assert!(pauses.len() > 100, "{} stops", pauses.len());
        // Each stop ended before the next one.
        let in_order = |two: &[Pause]| two[0].end_ns + two[1].stopped_ns <= two[1].end_ns;
        assert!(pauses.windows(2).all(in_order), "{walker}");
    }
}

/// A stop of the runtime.
struct Pause {
    /// When it went on.
    end_ns: u64,
    stopped_ns: u64,
}

/// The stops of a recording, in order.
fn pauses(recorded: &Recorded) -> Vec<Pause> {
    let file = File::open(&recorded.recording).unwrap();
    let mut reader = Reader::open(file).unwrap();
    let mut pauses = Vec::new();
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            Item::Record(
                _,
                Written::Pause {
                    time_ns,
                    stopped_ns,
                    ..
                },
            ) => pauses.push(Pause {
                end_ns: time_ns,
                stopped_ns,
            }),
            Item::Damage(damage) => panic!("{damage:?}"),
            _ => {}
        }
    }
    pauses
}

/// Threads that live for a millisecond, under a walk each millisecond.
fn rule_19_threads_that_end_are_waited_for(runtime: &Runtime) {
    for walker in ["suspend", "seeded"] {
        let recorded = walked(runtime, walker, 999, "churn");
        let inspected = recorded.inspect();
        assert!(inspected.number("threads") > 100.0, "{}", inspected.json);
        assert!(inspected.number("samples") > 100.0, "{}", inspected.json);
    }
}

/// Threads that end between two walks, each before it has used an interval of CPU time, in a
/// program that ends before the counters are told for the first time.
fn threads_that_were_never_walked_are_counted(runtime: &Runtime) {
    for walker in ["suspend", "seeded"] {
        let recorded = Recorder::workload(runtime, "churn", &["0.4"])
            .options(["--walker", walker, "--frequency", "49"])
            .run();
        let inspected = recorded.inspect();
        let reason = "a thread ended before it was walked";
        let lost = inspected.json["lost_reasons"][reason].as_f64();
        let unseen_ms = lost.unwrap_or(0.0) * inspected.number("interval_ns") / 1e6;
        let seen_ms = inspected.event("cpu").unwrap()["value"].as_f64().unwrap() / 1e6;
        // To the end of the process, as the walkers see it.
        let used_ms = inspected.number("target_cpu_s") * 1e3;
        println!("{walker}: {seen_ms} ms seen, {unseen_ms} ms lost of {used_ms} ms");
        assert!(unseen_ms > seen_ms, "{}", inspected.json);
        // The rest is the runtime's own threads, which these walkers do not see.
        let reported = (seen_ms + unseen_ms) / used_ms;
        assert!((0.7..1.02).contains(&reported), "{}", inspected.json);
    }
}

/// A thread is stopped where the runtime can stop it, so shares are not those of the time: on some
/// machines the loop of half the time has a fifth of the samples. It is seen, below its callers.
fn a_stopped_program_is_seen_where_it_burns(runtime: &Runtime) {
    let recorded = walked(runtime, "suspend", 299, "shares");
    let burning = recorded.stacks().with("Workloads.Shares.BurnHalf");
    assert!(burning.total() > 0, "{}", recorded.stacks().show(10));
    for caller in ["Workloads.Shares.Rounds", "Workloads.Shares.Main"] {
        let below = burning.with(caller).total();
        assert_eq!(below, burning.total(), "{caller}: {}", burning.show(10));
    }
    let inspected = recorded.inspect();
    assert_eq!(inspected.json["walker"], "suspend");
    let stops = inspected.json["pauses"]["count"].as_u64().unwrap_or(0);
    // One for each round of samples.
    assert!(
        stops as f64 >= inspected.number("samples") / 8.0,
        "{}",
        inspected.json
    );
}

/// The article's stack, frame by frame: those that the runtime reports, and between them the native
/// ones of our own walk.
fn rule_15_the_holes_of_the_articles_stack_are_filled(runtime: &Runtime) {
    let recorded = walked(runtime, "seeded", 299, "mixed");
    let pattern = recorded.answer.lines("stack");
    let stacks = recorded.stacks().with("Workloads.Mixed.D");
    assert!(stacks.total() >= 50, "{} samples", stacks.total());
    let mut filled = 0;
    for (frames, count) in &stacks.stacks {
        if let Err(why) = is_stack(frames, &pattern[0]) {
            panic!("{count} samples: {why}:\n{}", frames.join("\n"));
        }
        // A thread that did not walk itself in time has runs in place of its native frames.
        if !frames.iter().any(|frame| frame == "[native]") {
            filled += count;
        }
    }
    assert!(
        filled * 10 >= stacks.total() * 9,
        "{filled} of {}",
        stacks.total()
    );
}

/// The stack that crosses both CLRs of a process, twice each way: by each CLR's own walk, merged by
/// stack pointer.
#[test]
fn rule_31_managed_frames_of_two_runtimes_are_one_stack() {
    chain(
        "suspend",
        |between| matches!(between, [run] if run == "[native]"),
    );
}

/// The same with what lies between.
#[test]
fn rule_30_mixed_frames_of_two_runtimes_are_one_stack() {
    chain("seeded", |between| {
        !between.is_empty() && !between.iter().any(|frame| is_hole(frame))
    });
}

fn chain(walker: &str, is_between: impl Fn(&[String]) -> bool) {
    let (old, new) = both();
    for (first, second) in [(&old, &new), (&new, &old)] {
        let mut words = vec![runsxs().display().to_string()];
        words.extend(["--chain", "4", "--burn", "4s"].map(str::to_owned));
        for runtime in [first, second] {
            words.push(runtime.framework_dir().display().to_string());
            words.push(workload("chain").dll.display().to_string());
            words.push(String::new());
        }
        let name = format!("chain-{walker}-{}", first.version);
        let recorded = Recorder::command(&name, words)
            .options(["--walker", walker, "--frequency", "299"])
            .run();
        assert!(
            recorded.answer.status.success(),
            "{}",
            recorded.answer.stderr
        );
        let hot = recorded.stacks().with("Workloads.Chain.Burn");
        assert!(hot.total() >= 100, "{} samples are too few", hot.total());
        let is_the_stack = |frames: &[String]| {
            let burn = frames
                .iter()
                .position(|f| f.starts_with("Workloads.Chain.Burn"));
            let mut rest = burn.map_or(&[][..], |at| &frames[at + 1..]);
            for link in 0..5 {
                // The last link, which burns, runs in the first CLR again.
                let version = [first, second][link % 2].version.as_str();
                let gap = rest
                    .iter()
                    .take_while(|f| !f.starts_with("Workloads."))
                    .count();
                let step = format!("Workloads.Chain.Step [{version}]");
                if rest.get(gap) != Some(&step) || (link > 0 && !is_between(&rest[..gap])) {
                    return false;
                }
                rest = &rest[gap + 1..];
            }
            !rest.iter().any(|frame| frame.starts_with("Workloads."))
        };
        let right: u64 = hot
            .stacks
            .iter()
            .filter(|(frames, _)| is_the_stack(frames))
            .map(|(_, count)| count)
            .sum();
        // Each CLR is stopped by itself, so now and then the thread has gone on in between.
        assert!(
            right * 100 >= hot.total() * 95,
            "{right} of {}\n{}",
            hot.total(),
            hot.show(3)
        );
    }
}
