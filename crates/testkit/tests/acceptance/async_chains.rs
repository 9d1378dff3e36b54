//! `asyncchains`: each leaf that burns has one chain of methods that await it, and its samples show
//! exactly that one.

use std::collections::BTreeMap;

use testkit::chance::deviation;
use testkit::{
    AsyncKind, ProgramOutput, Recorder, Runtime, Stacks, is_method, logical_stacks,
    workload_of_kind,
};

use crate::LOST_LIMIT;

on_each_runtime!(
    chains,
    chains_in_other_settings,
    events_have_chains_too,
    other_languages,
    tasks_of_a_program_without_async_methods,
);

/// Minimum percentage of leaf samples with exactly the expected chain (the methods awaiting the
/// resumed one).
const EXACT: f64 = 99.9;
/// Maximum number of samples with a class or method of a chain that the agent had not learned. On
/// .NET 10 there were 73 and 75, on 9 41 and 35, of a busy machine and of an idle one: it does not
/// grow with the samples.
const MAX_UNLEARNED: u64 = 100;

/// Rounds of work instead of seconds, so that a busy machine gives as many samples.
const ROUNDS: &str = "rounds=40";
/// Rounds while another thread collects continuously.
const FEW_ROUNDS: &str = "rounds=16";

/// Options of a program and settings of its runtime.
struct GateSetting {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Pairs of NAME in `DOTNET_NAME` or `COMPlus_NAME`, and value.
    environment: &'static [(&'static str, &'static str)],
}

/// Stacks walked in callbacks and by the wall clock have chains. Only the few first events of each
/// class have none.
fn events_have_chains_too(runtime: &Runtime) {
    assert_events_have_chains(runtime, AsyncKind::StateMachine);
}

fn events_of_runtime_async_have_chains_too(runtime: &Runtime) {
    for kind in AsyncKind::WITH_RUNTIME_ASYNC {
        assert_events_have_chains(runtime, kind);
    }
}

fn assert_events_have_chains(runtime: &Runtime, kind: AsyncKind) {
    let program = workload_of_kind("asyncchains", kind).dll;
    let name = format!("asyncchains-events{}", kind.folder());
    let recorded = Recorder::program(runtime, &name, &program, &["rounds=20", "events"])
        .frequency(999)
        .options(["--event", "exception,alloc,wall"])
        .options(["--alloc-interval", "64k"])
        .run_complete();
    // Exceptions, bytes, nanoseconds.
    for (event, at_least) in [
        ("exception", 700),
        ("alloc", 100_000_000),
        ("wall", 300_000_000),
    ] {
        let stacks = logical_stacks(&recorded.recording, event);
        let found = ChainSums::of(&recorded.answer, &stacks);
        let (exact, samples) = found.sums();
        println!("{event}: {exact} of {samples} exact\n{}", found.table());
        assert!(samples >= at_least, "{samples} of {event} are too few");
        let share = exact as f64 / samples as f64;
        assert!(share >= 0.95, "{share:.3} of {event}:\n{}", found.table());
    }
    // Threads that are parked in the pool are in no method of the program's.
    let stacks = logical_stacks(&recorded.recording, "wall");
    let mut parked = 0;
    for (frames, count) in &stacks.stacks {
        let has = |part: &str| frames.iter().any(|frame| frame.contains(part));
        let starts = |frame: &String| frame.ends_with("clone3") || frame.starts_with("ld-musl");
        if has("Semaphore") && frames.iter().skip(1).any(starts) {
            assert!(!has("[not awaited]"), "{count} samples of {frames:#?}");
            parked += count;
        }
    }
    assert!(parked > 0, "{}", stacks.show(20));
}

const AS_IT_COMES: GateSetting = GateSetting {
    name: "default",
    arguments: &[ROUNDS],
    environment: &[],
};

/// Compacting collections without end: objects move between any two of our loads, or we do not
/// read.
const COLLECT: &[&str] = &[FEW_ROUNDS, "collect"];

const POOLED: GateSetting = GateSetting {
    name: "pooled",
    arguments: &["rounds=200"],
    environment: &[],
};

/// The classes of pooled boxes and the precompiled dispatchers of runtime async are unknown until a
/// sample contains them: for the first 2 ms of each, longer on a busy machine.
pub(crate) const FIRST_MET: f64 = 97.0;

const SETTINGS: [GateSetting; 10] = [
    GateSetting {
        name: "collections",
        arguments: COLLECT,
        environment: &[],
    },
    // A listener receives the events of tasks, and continuations are wrapped.
    GateSetting {
        name: "listener",
        arguments: &[ROUNDS, "listener"],
        environment: &[],
    },
    // A session of the runtime's own profiler of async methods (.NET 11): other code resumes them.
    GateSetting {
        name: "followed",
        arguments: &[ROUNDS],
        environment: &[
            ("EnableEventPipe", "1"),
            ("EventPipeOutputPath", "/dev/null"),
            (
                "EventPipeConfig",
                "System.Runtime.CompilerServices.AsyncProfilerEventSource:0xffffffffffff:5",
            ),
        ],
    },
    GateSetting {
        name: "server collections",
        arguments: COLLECT,
        environment: &[("gcServer", "1")],
    },
    GateSetting {
        name: "server collections, not concurrent",
        arguments: COLLECT,
        environment: &[("gcServer", "1"), ("gcConcurrent", "0")],
    },
    GateSetting {
        name: "collections, not concurrent",
        arguments: COLLECT,
        environment: &[("gcConcurrent", "0")],
    },
    GateSetting {
        name: "not tiered",
        arguments: &[ROUNDS],
        environment: &[("TieredCompilation", "0")],
    },
    GateSetting {
        name: "not optimised",
        arguments: &[ROUNDS],
        environment: &[("JITMinOpts", "1")],
    },
    GateSetting {
        name: "all compiled",
        arguments: &[ROUNDS],
        environment: &[("ReadyToRun", "0")],
    },
    GateSetting {
        name: "no profile-guided optimisation",
        arguments: &[ROUNDS],
        environment: &[("TieredPGO", "0")],
    },
];

// Tests with runtime async.
on_each_runtime_async!(
    chains_of_runtime_async,
    chains_of_runtime_async_in_other_settings,
    events_of_runtime_async_have_chains_too,
    pooled_boxes_beside_runtime_async,
);

/// Runs the same program with all methods compiled with runtime async, and with every second one.
fn chains_of_runtime_async(runtime: &Runtime) {
    in_both_kinds(runtime, &[AS_IT_COMES]);
}

/// Both kinds in each setting: there are few runtimes to take turns.
fn chains_of_runtime_async_in_other_settings(runtime: &Runtime) {
    in_both_kinds(runtime, &SETTINGS);
}

fn in_both_kinds(runtime: &Runtime, settings: &[GateSetting]) {
    let mut all = Vec::new();
    for setting in settings {
        for kind in AsyncKind::WITH_RUNTIME_ASYNC {
            all.extend(failures_of_kind(
                runtime,
                "asyncchains",
                kind,
                setting,
                FIRST_MET,
            ));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// Methods with a builder of their own stay state machines, which methods of runtime async await.
fn pooled_boxes_beside_runtime_async(runtime: &Runtime) {
    let kind = AsyncKind::Runtime;
    let failures = failures_of_kind(runtime, "asyncpooled", kind, &POOLED, FIRST_MET);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

// The set-up's runtimes from .NET 8 on: older ones have no such builder.
on_each_web_runtime!(pooled_boxes);

/// Async methods without tasks: they are awaited by what is in their boxes.
fn pooled_boxes(runtime: &Runtime) {
    let failures = failures(runtime, "asyncpooled", &POOLED, FIRST_MET);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// State machines of other compilers than that of C#: their fields have other names, and those of
/// F# have the builder in a field's field.
fn other_languages(runtime: &Runtime) {
    let setting = GateSetting {
        name: "other languages",
        arguments: &["rounds=60"],
        environment: &[],
    };
    let failures = failures(runtime, "asynclanguages", &setting, EXACT);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// `tasks`: work on the pool, run by precompiled code alone. The samples before the first
/// compilation behind the first one have no chain yet: those of one and a half of the sixteen
/// rounds where the agent looks at the first one only after its round's compilation.
fn tasks_of_a_program_without_async_methods(runtime: &Runtime) {
    let recorded = Recorder::workload(runtime, "tasks", &[])
        .frequency(999)
        .run_complete();
    let stacks = logical_stacks(&recorded.recording, "cpu");
    for method in ["Workloads.Tasks.Left", "Workloads.Tasks.Right"] {
        let samples = stacks.with(method);
        // Nothing waits yet in the first 40 ms of a round.
        let is_end = |end: &str| end == "[blocking wait]" || end == "[not awaited]";
        let is_chained = |frames: &[String]| matches!(frames, [.., run, end] if run == "[Task.Run]" && is_end(end));
        let counts = samples.stacks.iter();
        let counts = counts.filter(|(frames, _)| is_chained(frames));
        let chained: u64 = counts.map(|(_, count)| count).sum();
        let all = samples.total();
        assert!(all >= 150, "{all} samples of {method} are too few");
        assert!(
            chained * 10 >= all * 9,
            "{chained} of {all}: {}",
            stacks.show(20)
        );
    }
}

fn chains(runtime: &Runtime) {
    let failures = failures(runtime, "asyncchains", &AS_IT_COMES, EXACT);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Each setting on the runtimes with runtime async, which is the newest code, and on one of the
/// others, in turn; on each one where `SIDEWALK_CHAINS` is `all` (`cargo xtask stress --chains`) or
/// the setting's name.
fn chains_in_other_settings(runtime: &Runtime) {
    let mut others = Runtime::all();
    others.retain(|known| !known.runtime_async);
    let own = others.iter().position(|known| known.name == runtime.name);
    let request = std::env::var("SIDEWALK_CHAINS").ok();
    let settings = SETTINGS.iter().enumerate();
    let due = settings.filter(|(turn, setting)| match request.as_deref() {
        Some(request) => request == "all" || request == setting.name,
        None => own.is_none_or(|own| turn % others.len() == own),
    });
    let failures: Vec<String> = due
        .flat_map(|(_, of)| failures(runtime, "asyncchains", of, EXACT))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Returns the expectations that one setting does not meet.
fn failures(runtime: &Runtime, workload: &str, setting: &GateSetting, least: f64) -> Vec<String> {
    failures_of_kind(runtime, workload, AsyncKind::StateMachine, setting, least)
}

/// Checks a workload with async methods of this kind.
fn failures_of_kind(
    runtime: &Runtime,
    workload: &str,
    kind: AsyncKind,
    setting: &GateSetting,
    least: f64,
) -> Vec<String> {
    let program = workload_of_kind(workload, kind);
    let name = format!("{workload}{}", kind.folder());
    let mut record =
        Recorder::program(runtime, &name, &program.dll, setting.arguments).frequency(4999);
    for (key, value) in setting.environment {
        // 3.1 knows the old names only.
        record = record
            .environment(&format!("DOTNET_{key}"), value)
            .environment(&format!("COMPlus_{key}"), value);
    }
    let recorded = record.run_complete();
    let collects = setting.arguments.contains(&"collect");
    // A thread that collects without end keeps the agent's from emptying rings.
    let lost = if collects { 5.0 } else { LOST_LIMIT };
    recorded
        .inspect()
        .assert_honest(crate::broken_limit(runtime), lost);
    let stacks = logical_stacks(&recorded.recording, "cpu");
    let found = ChainSums::of(&recorded.answer, &stacks);
    println!("{}", found.table());
    let (exact, samples) = found.sums();
    // While the runtime stops its threads no object may be read: with collections without end that
    // is often.
    let of = |end| -> u64 { found.leaves.values().map(|leaf| leaf.ended_by(end)).sum() };
    let closed = of("gate closed");
    // Each class and method is learned once: their number bounds it, not that of the samples.
    let unlearned = of("class not known yet") + of("method not known yet");
    let wrong: u64 = found.leaves.values().map(|leaf| leaf.wrong).sum();
    let open = samples - closed - unlearned;
    let percent = exact as f64 * 100.0 / open as f64;
    println!(
        "{}, {} {kind:?}: {exact} of {samples} exact ({:.2} %), {percent:.2} % of the {open} while the gate was open, {wrong} wrong",
        runtime.version,
        setting.name,
        exact as f64 * 100.0 / samples as f64,
    );
    let mut failures = Vec::new();
    let mut hold = |is_so: bool, otherwise: String| {
        if !is_so {
            let name = setting.name;
            failures.push(format!("{} {name} {kind:?}: {otherwise}", runtime.version));
        }
    };
    hold(
        samples >= 3_000,
        format!("{samples} samples of leaves are too few"),
    );
    for (name, leaf) in &found.leaves {
        hold(leaf.exact + leaf.other > 0, format!("{name} has no sample"));
    }
    hold(
        exact as f64 + deviation(open as f64, least / 100.0) >= open as f64 * least / 100.0,
        format!("{percent:.3} % of {open} samples have exactly their chain"),
    );
    hold(
        collects || closed as f64 <= samples as f64 / 1000.0 + deviation(samples as f64, 0.001),
        format!("{closed} of {samples} met a closed gate"),
    );
    hold(
        unlearned <= MAX_UNLEARNED,
        format!("{unlearned} of {samples} met a class or method that was not known yet"),
    );
    // A chain that is not whole says why, and is counted: no other chain is shown for it.
    hold(
        wrong == 0,
        format!("{wrong} of {samples} samples show a chain that is whole and another one"),
    );
    failures
}

/// The outcomes of the samples of a leaf.
#[derive(Default)]
struct Leaf {
    exact: u64,
    other: u64,
    /// Of those that are not as expected, those that do not say that they are not whole. One whose
    /// next method has not come to its `await` yet is right to say that it is not awaited.
    wrong: u64,
    /// By what their chain is, those that are not as expected.
    others: BTreeMap<String, u64>,
}

impl Leaf {
    /// Samples whose chain could not be read to its end for this reason.
    fn ended_by(&self, reason: &str) -> u64 {
        let mark = format!("[async: {reason}]");
        let others = self.others.iter();
        let ended = others.filter(|(chain, _)| chain.ends_with(&mark));
        ended.map(|(_, count)| count).sum()
    }
}

/// The outcomes of the samples of all leaves.
pub(crate) struct ChainSums {
    leaves: BTreeMap<String, Leaf>,
}

impl ChainSums {
    /// Compares logical stacks with the chains that a program printed.
    pub(crate) fn of(answer: &ProgramOutput, stacks: &Stacks) -> ChainSums {
        let expected = answer.lines("chain");
        assert!(expected.len() >= 4, "{} leaves", expected.len());
        let mut leaves: BTreeMap<String, Leaf> = BTreeMap::new();
        for words in &expected {
            leaves.insert(words[0].to_owned(), Leaf::default());
        }
        for (frames, count) in &stacks.stacks {
            let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
            let found = frames.iter().enumerate().find_map(|(at, frame)| {
                let words = expected.iter().find(|words| is_method(frame, words[0]))?;
                Some((words, &frames[at + 1..]))
            });
            let Some((words, callers)) = found else {
                continue;
            };
            let leaf = leaves.get_mut(words[0]).expect("inserted above");
            if is_chain(callers, &words[1..]) {
                leaf.exact += count;
            } else {
                leaf.other += count;
                let says = |frame: &&str| frame.starts_with("[async: ");
                let early = callers.split_last().is_some_and(|(last, chain)| {
                    *last == "[not awaited]"
                        && words[1..].len() >= chain.len()
                        && is_chain(chain, &words[1..=chain.len()])
                });
                if !early && !callers.iter().any(says) {
                    leaf.wrong += count;
                }
                *leaf.others.entry(callers.join(" < ")).or_default() += count;
            }
        }
        ChainSums { leaves }
    }

    /// Returns the number of samples with exactly the expected chain, and of all.
    pub(crate) fn sums(&self) -> (u64, u64) {
        let leaves = self.leaves.values();
        let sums = leaves.map(|leaf| (leaf.exact, leaf.exact + leaf.other));
        sums.fold((0, 0), |all, leaf| (all.0 + leaf.0, all.1 + leaf.1))
    }

    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for (name, leaf) in &self.leaves {
            text += &format!("{:>7} exact {:>5} other  {name}\n", leaf.exact, leaf.other);
            let mut others: Vec<_> = leaf.others.iter().collect();
            others.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            for (chain, count) in others.into_iter().take(3) {
                let chain: String = chain.chars().take(300).collect();
                text += &format!("              {count:>5}  {chain}\n");
            }
        }
        text
    }
}

/// Whether callers are those that the program says, and nothing else. Whether a thread blocks until
/// the root is done depends on how far that thread has come.
fn is_chain(callers: &[&str], expected: &[&str]) -> bool {
    let (expected, open) = match expected.split_last() {
        Some((&"*", expected)) => (expected, true),
        _ => (expected, false),
    };
    if callers.len() < expected.len() {
        return false;
    }
    let (chain, rest) = callers.split_at(expected.len());
    let is_same = |(found, expected): (&&str, &&str)| match expected.starts_with('[') {
        // A word of the program's.
        true => found.replace(' ', "_") == **expected,
        false => is_method(found, expected),
    };
    chain.iter().zip(expected).all(is_same)
        && match rest {
            [] | ["[blocking wait]"] | ["[not awaited]"] => true,
            rest => open && !rest.iter().any(|frame| frame.starts_with("[async: ")),
        }
}
