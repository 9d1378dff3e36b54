//! `asyncchains`: each leaf that burns has one chain of methods that await it, and its samples show
//! exactly that one.

use std::collections::BTreeMap;
use std::process::Command;

use testkit::{Record, Recorded, Runtime, is_method, stdout_of};

use crate::LOST_LIMIT;

on_each_runtime!(chains, events_have_chains_too);

/// Percent of the samples of leaves that must have exactly the chain that the program says: what is reached. The first samples
/// of each class have none yet; issue 13 wants 99.9.
const EXACT: f64 = 99.0;

/// Rounds, not seconds: as many samples on a machine that is busy.
const ROUNDS: &str = "rounds=40";
fn chains(runtime: &Runtime) {
    check(runtime, &[ROUNDS]);
}

/// What is walked in callbacks, and by the wall clock. The first events of each class have no chain yet, and there are
/// few of them.
fn events_have_chains_too(runtime: &Runtime) {
    let recorded = Record::workload(runtime, "asyncchains", &["rounds=20", "events"])
        .frequency(999)
        .options(["--async-stacks", "--event", "exception,alloc,wall"])
        .options(["--alloc-interval", "64k"])
        .run_complete();
    // Exceptions, bytes, nanoseconds.
    for (event, at_least) in [
        ("exception", 700),
        ("alloc", 100_000_000),
        ("wall", 300_000_000),
    ] {
        let found = Found::of_event(&recorded, event);
        let (exact, samples) = found.sums();
        println!("{event}: {exact} of {samples} exact\n{}", found.table());
        assert!(samples >= at_least, "{samples} of {event} are too few");
        let share = exact as f64 / samples as f64;
        assert!(share >= 0.95, "{share:.3} of {event}:\n{}", found.table());
    }
    // Who is parked in the pool is in no method of the program's.
    let mut convert = Command::new(testkit::sidewalk());
    convert.arg("convert").arg(&recorded.recording);
    convert.args(["--event", "wall", "--async", "logical", "-o", "-"]);
    let stacks = stdout_of(&mut convert);
    let parked = |line: &&str| line.contains("Semaphore") && line.contains("clone3;");
    assert!(stacks.lines().any(|line| parked(&line)), "{stacks}");
    for line in stacks.lines().filter(parked) {
        assert!(!line.contains("[not awaited]"), "{line}");
    }
}

fn check(runtime: &Runtime, arguments: &[&str]) {
    let recorded = Record::workload(runtime, "asyncchains", arguments)
        .frequency(4999)
        .options(["--async-stacks"])
        .run_complete();
    recorded
        .inspect()
        .assert_honest(crate::broken_limit(runtime), LOST_LIMIT);
    let found = Found::of_event(&recorded, "cpu");
    println!("{}", found.table());
    let (exact, samples) = found.sums();
    assert!(samples >= 3_000, "{samples} samples of leaves are too few");
    for (name, leaf) in &found.leaves {
        assert!(leaf.exact + leaf.other > 0, "{name} has no sample");
    }
    // While the runtime stops its threads nobody may look at objects: with collections without end that is often.
    let closed: u64 = found.leaves.values().map(Leaf::gate_closed).sum();
    println!("{exact} of {samples} exact, {closed} while the gate was closed");
    let open = samples - closed;
    let percent = exact as f64 * 100.0 / open as f64;
    assert!(
        percent >= EXACT,
        "{percent:.3} % of {open} samples have exactly their chain:\n{}",
        found.table()
    );
    // What is not whole says why, and is counted: no other chain is shown for it. But while an iterator's shared code runs for
    // the first time, some ms, the thread's own stack is.
    let wrong: u64 = found.leaves.values().map(|leaf| leaf.wrong).sum();
    assert!(
        wrong * 500 <= samples,
        "{wrong} of {samples} samples show a chain that is whole and another one:\n{}",
        found.table()
    );
}

/// What became of the samples of a leaf.
#[derive(Default)]
struct Leaf {
    exact: u64,
    other: u64,
    /// Of those that are not as expected, those that do not say that they are not whole. One whose next method has not come to
    /// its `await` yet is right to say that nobody awaits.
    wrong: u64,
    /// By what their chain is, those that are not as expected.
    others: BTreeMap<String, u64>,
}

impl Leaf {
    /// Samples whose chain could not be read because the runtime was stopping.
    fn gate_closed(&self) -> u64 {
        let others = self.others.iter();
        let closed = others.filter(|(chain, _)| chain.ends_with("[async: gate closed]"));
        closed.map(|(_, count)| count).sum()
    }
}

struct Found {
    leaves: BTreeMap<String, Leaf>,
}

impl Found {
    fn of_event(recorded: &Recorded, event: &str) -> Found {
        let expected = recorded.answer.lines("chain");
        assert!(expected.len() >= 36, "{} leaves", expected.len());
        let mut leaves: BTreeMap<String, Leaf> = BTreeMap::new();
        for words in &expected {
            leaves.insert(words[0].to_owned(), Leaf::default());
        }
        let mut convert = Command::new(testkit::sidewalk());
        convert
            .arg("convert")
            .arg(&recorded.recording)
            .args(["--event", event, "--async", "logical", "-o", "-"]);
        for line in stdout_of(&mut convert).lines() {
            let (frames, count) = line.rsplit_once(' ').expect("a count");
            let count: u64 = count.parse().expect("a number");
            let frames: Vec<&str> = frames.split(';').rev().collect();
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
                let says = |frame: &&str| frame.starts_with("[async: ") || *frame == "[completing]";
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
        Found { leaves }
    }

    /// Those that have exactly their chain, and all.
    fn sums(&self) -> (u64, u64) {
        let leaves = self.leaves.values();
        let sums = leaves.map(|leaf| (leaf.exact, leaf.exact + leaf.other));
        sums.fold((0, 0), |all, leaf| (all.0 + leaf.0, all.1 + leaf.1))
    }

    fn table(&self) -> String {
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

/// Whether callers are those that the program says, and nothing else. Whether somebody blocks until the root is
/// done depends on how far that thread has come.
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
