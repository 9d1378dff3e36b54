//! Comparison of walkers: reads the walks that `liboracle.so` sends and counts the differences.
//!
//! Input: lines on the control socket, one for each walk (`crates/oracle/src/agree.rs` documents
//! them). The oracle, a test profiler built from the agent's code, stops the program at random
//! moments and walks each thread with each walker. Output: an [`Agreement`], the comparison of the
//! managed frames. Dynamic methods and stubs are left out because `DoStackSnapshot` does not report
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use crate::oracle::WithOracle;
use crate::runtime::Runtime;
use crate::workload::{Needs, Workload, workload_names};

/// Time limit for all walks of a program.
const TIME_LIMIT: Duration = Duration::from_secs(500);
/// Maximum number of examples kept for each class of difference.
const EXAMPLES: usize = 3;

/// A frame found by the agent's own walker.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnFrame {
    /// As written in the oracle's lines.
    kind: String,
    flags: String,
    ip: u64,
    sp: u64,
    bp: u64,
    function: u64,
}

/// A frame of `DoStackSnapshot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RuntimeFrame {
    ip: u64,
    sp: u64,
    function: u64,
}

/// The walks of one thread at one stop.
#[derive(Clone, Debug, Default)]
struct ThreadWalks {
    head: Vec<String>,
    own: Vec<OwnFrame>,
    plain: Vec<RuntimeFrame>,
    seeded: Vec<RuntimeFrame>,
    details: BTreeMap<u64, String>,
}

/// Agreement counts of two walkers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairCounts {
    /// Walks compared. At least one of the two walkers found a managed frame.
    pub walks: u64,
    /// Walks with the same methods in the same order.
    pub same: u64,
    /// Walks with the same methods and the same addresses.
    pub same_addresses: u64,
    /// Walks that differ only by frames that `DoStackSnapshot` omits by design: a funclet with the
    /// frames between it and its method, and the runtime's own exception handling where that is
    /// managed code (docs/walkers.md).
    pub explained: u64,
}

impl PairCounts {
    fn add(&mut self, same: bool, same_addresses: bool, explained: bool) {
        self.walks += 1;
        self.explained += u64::from(!same && explained);
        self.same += u64::from(same);
        self.same_addresses += u64::from(same && same_addresses);
    }

    fn merge(&mut self, other: PairCounts) {
        self.walks += other.walks;
        self.same += other.same;
        self.same_addresses += other.same_addresses;
        self.explained += other.explained;
    }

    /// Percent of the walks whose methods are the same.
    pub fn percent(&self) -> f64 {
        percent(self.same, self.walks)
    }

    /// Percent of the walks whose methods are the same or differ for a known reason in the runtime.
    pub fn percent_explained(&self) -> f64 {
        percent(self.same + self.explained, self.walks)
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        100.0
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

/// A kind of difference between `signal` and `suspend`.
#[derive(Clone, Debug, Default)]
pub struct Class {
    /// Walks with this difference.
    pub count: u64,
    /// Walks by program.
    pub programs: BTreeMap<String, u64>,
    /// Examples, frame by frame.
    pub examples: Vec<String>,
}

/// Total cost of synchronous walks of the same stacks, by `DoStackSnapshot` and by the agent's
/// walker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Stacks walked.
    pub walks: u64,
    /// Frames that `DoStackSnapshot` reported.
    pub snapshot_frames: u64,
    /// Nanoseconds that it took.
    pub snapshot_ns: u64,
    /// Frames of the agent's own walk, native ones included.
    pub own_frames: u64,
    /// Nanoseconds that it took.
    pub own_ns: u64,
}

impl Costs {
    fn add(&mut self, more: Costs) {
        self.walks += more.walks;
        self.snapshot_frames += more.snapshot_frames;
        self.snapshot_ns += more.snapshot_ns;
        self.own_frames += more.own_frames;
        self.own_ns += more.own_ns;
    }
}

/// The results of the comparison.
#[derive(Clone, Debug, Default)]
pub struct Agreement {
    /// `signal` against `suspend`.
    pub suspend: PairCounts,
    /// `signal` against `seeded`.
    pub seeded: PairCounts,
    /// `suspend` against `seeded`.
    pub snapshots: PairCounts,
    /// Differences between `signal` and `suspend`.
    pub classes: BTreeMap<String, Class>,
    /// Walks that were not compared, by reason.
    pub not_compared: BTreeMap<String, u64>,
    /// Duration of each stop, in nanoseconds.
    pub stopped_ns: Vec<u64>,
    /// Time from each request to stop the runtime until it had stopped, in nanoseconds.
    pub stopping_ns: Vec<u64>,
    /// Stops that the runtime refused, by reason.
    pub busy: BTreeMap<String, u64>,
    /// Random seeds: refused by the agent; passed to the runtime.
    pub random_seeds: (u64, u64),
    /// Synchronous walks in callbacks.
    pub costs: Costs,
    /// IL maps of precompiled methods, read from their images: same as the runtime's, different,
    /// not read.
    pub image_maps: [u64; 3],
    /// Seeds of real walks, by outcome.
    pub seeds: BTreeMap<String, u64>,
    /// Function ids of the runtime's own exception handling, in the current program.
    handling: BTreeSet<u64>,
}

impl Agreement {
    /// Adds the results of another program.
    pub fn merge(&mut self, other: Agreement) {
        self.suspend.merge(other.suspend);
        self.seeded.merge(other.seeded);
        self.snapshots.merge(other.snapshots);
        for (name, class) in other.classes {
            let into = self.classes.entry(name).or_default();
            into.count += class.count;
            for (program, count) in class.programs {
                *into.programs.entry(program).or_default() += count;
            }
            let room = EXAMPLES.saturating_sub(into.examples.len());
            into.examples.extend(class.examples.into_iter().take(room));
        }
        for (from, into) in [
            (other.not_compared, &mut self.not_compared),
            (other.busy, &mut self.busy),
            (other.seeds, &mut self.seeds),
        ] {
            for (reason, count) in from {
                *into.entry(reason).or_default() += count;
            }
        }
        self.stopped_ns.extend(other.stopped_ns);
        self.stopping_ns.extend(other.stopping_ns);
        self.costs.add(other.costs);
        self.random_seeds.0 += other.random_seeds.0;
        self.random_seeds.1 += other.random_seeds.1;
        self.add_image_maps(other.image_maps);
    }

    fn add_image_maps(&mut self, more: [u64; 3]) {
        for (into, more) in self.image_maps.iter_mut().zip(more) {
            *into += more;
        }
    }

    fn compare(&mut self, program: &str, thread: &ThreadWalks) {
        let head = |at: usize| thread.head.get(at).map_or("", String::as_str);
        let (trace, plain, seeded) = (head(1), head(2), head(3));
        *self.seeds.entry(head(4).to_owned()).or_default() += 1;
        let own: Vec<&OwnFrame> = thread.own.iter().filter(|own| own.kind == "m").collect();
        let managed = |frames: &[RuntimeFrame]| -> Vec<RuntimeFrame> {
            let some = frames.iter().filter(|frame| frame.function != 0);
            some.copied().collect()
        };
        let (with_plain, with_seed) = (managed(&thread.plain), managed(&thread.seeded));
        if own.is_empty() && with_plain.is_empty() && with_seed.is_empty() {
            return;
        }
        let walked = |answer: &str| answer == "ok" || answer == "NoManagedFrames";
        if trace.starts_with("none") {
            *self.not_compared.entry(trace.to_owned()).or_default() += 1;
            return;
        }
        if !walked(plain) || !walked(seeded) {
            let answer = if walked(plain) { seeded } else { plain };
            *self.not_compared.entry(answer.to_owned()).or_default() += 1;
            return;
        }
        // The names arrive with the first walks that differ. The ids do not change.
        let named = own.iter().filter(|own| {
            let detail = thread.details.get(&own.ip);
            detail.is_some_and(|detail| detail.contains(" System.Runtime.EH."))
        });
        self.handling.extend(named.map(|own| own.function));
        let against = |theirs: &[RuntimeFrame]| {
            let functions = own.iter().map(|own| own.function);
            let addresses = own.iter().map(|own| own.ip);
            let same = functions.eq(theirs.iter().map(|frame| frame.function));
            let explained = if same {
                None
            } else {
                explanation(thread, &own, theirs, &self.handling)
            };
            (
                same,
                addresses.eq(theirs.iter().map(|frame| frame.ip)),
                explained,
            )
        };
        let (same, same_addresses, explained) = against(&with_plain);
        let (same_seeded, same_addresses_seeded, explained_seeded) = against(&with_seed);
        self.suspend.add(same, same_addresses, explained.is_some());
        if !same {
            let class = match explained {
                Some(why) => format!("explained: {why}"),
                None => class_of(thread, &own, &with_plain),
            };
            let class = self.classes.entry(class).or_default();
            class.count += 1;
            *class.programs.entry(program.to_owned()).or_default() += 1;
            if class.examples.len() < EXAMPLES && !thread.details.is_empty() {
                class.examples.push(example(program, thread));
            }
        }
        self.seeded.add(
            same_seeded,
            same_addresses_seeded,
            explained_seeded.is_some(),
        );
        self.snapshots.add(
            with_plain
                .iter()
                .map(|frame| frame.function)
                .eq(with_seed.iter().map(|frame| frame.function)),
            with_plain == with_seed,
            false,
        );
    }

    /// The table and the classes, as `cargo xtask agree` prints them.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (name, pair) in [
            ("signal = suspend", self.suspend),
            ("signal = seeded", self.seeded),
            ("suspend = seeded", self.snapshots),
        ] {
            let _ = writeln!(
                out,
                "{name:17} {:8.4} % of {} walks ({} differ, {} of them explained, so {:.4} %); the same \
                 addresses too: {:.4} %",
                pair.percent(),
                pair.walks,
                pair.walks - pair.same,
                pair.explained,
                pair.percent_explained(),
                percent(pair.same_addresses, pair.walks)
            );
        }
        for (what, times) in [
            ("stopping", &self.stopping_ns),
            ("stopped", &self.stopped_ns),
        ] {
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let at = |q: usize| sorted.get((sorted.len() * q / 100).min(sorted.len().max(1) - 1));
            let _ = writeln!(
                out,
                "{what}: {} times, median {} µs, p99 {} µs",
                sorted.len(),
                at(50).copied().unwrap_or(0) / 1000,
                at(99).copied().unwrap_or(0) / 1000
            );
        }
        let costs = self.costs;
        let each = |sum: u64| sum / costs.walks.max(1);
        let _ = writeln!(
            out,
            "synchronous walks: {}, DoStackSnapshot {} ns for {} frames, our own {} ns for {} frames",
            costs.walks,
            each(costs.snapshot_ns),
            each(costs.snapshot_frames),
            each(costs.own_ns),
            each(costs.own_frames)
        );
        let _ = writeln!(
            out,
            "not compared: {:?}; not stopped: {:?}; seeds: {:?}; random seeds refused and given: {:?}",
            self.not_compared, self.busy, self.seeds, self.random_seeds
        );
        for (name, class) in &self.classes {
            let _ = writeln!(out, "\n{} × {name}  {:?}", class.count, class.programs);
            for example in &class.examples {
                let _ = writeln!(out, "{example}");
            }
        }
        out
    }
}

/// Returns the known reason why the runtime omits frames of our walk, if nothing else differs.
fn explanation(
    thread: &ThreadWalks,
    own: &[&OwnFrame],
    theirs: &[RuntimeFrame],
    handling: &BTreeSet<u64>,
) -> Option<&'static str> {
    // Native frames at the leaf may be guesses. The positions of managed frames are not.
    let guessed = thread
        .own
        .iter()
        .skip_while(|own| own.kind == "n" || own.kind == "u")
        .any(|own| own.flags.contains(['b', 'h']));
    if thread.head.get(1)? != "root" || guessed {
        return None;
    }
    if is_without_a_funclet(own, theirs) == Some(true) {
        return Some("a funclet, and what lies between it and its method");
    }
    // .NET 9 and later implement `throw` in managed code.
    let others: Vec<&OwnFrame> = own
        .iter()
        .copied()
        .filter(|own| !handling.contains(&own.function))
        .collect();
    let same = others
        .iter()
        .map(|own| (own.function, own.sp))
        .eq(theirs.iter().map(|frame| (frame.function, frame.sp)));
    (same || is_without_a_funclet(&others, theirs) == Some(true))
        .then_some("the runtime's own exception handling, which is managed code")
}

/// Whether the runtime's frames are ours except for one run of frames, which begins with a funclet
/// and ends before the funclet's method.
fn is_without_a_funclet(own: &[&OwnFrame], theirs: &[RuntimeFrame]) -> Option<bool> {
    // The runtime's frames are a subset of ours, with equal stack pointers.
    let is =
        |own: &OwnFrame, frame: &RuntimeFrame| (own.function, own.sp) == (frame.function, frame.sp);
    let left = own.len().checked_sub(theirs.len())?;
    let before = own
        .iter()
        .zip(theirs)
        .take_while(|(own, theirs)| is(own, theirs))
        .count();
    let behind = own.get(before + left..)?;
    let rest = theirs.get(before..)?;
    let same = behind.iter().zip(rest).all(|(own, theirs)| is(own, theirs));
    Some(same && behind.first()?.function == own.get(before)?.function)
}

/// Returns the class of a difference, from the first managed frame that differs.
fn class_of(thread: &ThreadWalks, own: &[&OwnFrame], theirs: &[RuntimeFrame]) -> String {
    let at = own
        .iter()
        .zip(theirs)
        .take_while(|(own, theirs)| own.function == theirs.function)
        .count();
    let place = if at == 0 { "at the leaf" } else { "further in" };
    let (mine, other) = (own.get(at), theirs.get(at));
    let what = match (mine, other) {
        (Some(_), None) => format!("suspend ends early, {} frames", own.len() - at),
        (None, Some(_)) => format!("signal ends early, {}", thread.head[1]),
        (Some(mine), Some(other)) => {
            if own
                .iter()
                .skip(at)
                .any(|own| own.sp == other.sp && own.sp != mine.sp)
            {
                "signal has more".to_owned()
            } else if theirs
                .iter()
                .skip(at)
                .any(|t| t.sp == mine.sp && t.sp != other.sp)
            {
                "suspend has more".to_owned()
            } else if mine.sp == other.sp {
                "another method in the same frame".to_owned()
            } else {
                "another frame".to_owned()
            }
        }
        (None, None) => "no difference".to_owned(),
    };
    let callee = mine
        .and_then(|mine| thread.own.iter().position(|own| own == *mine))
        .and_then(|position| thread.own.get(position.checked_sub(1)?))
        .map_or("", |callee| match callee.kind.as_str() {
            "m" => "managed code",
            "d" => "a dynamic method",
            "r" => "a stub of an image",
            "u" => "a stub",
            _ => "native code",
        });
    let guessed = thread.own.iter().any(|own| own.flags.contains(['b', 'h']));
    let how = if guessed { ", a frame guessed" } else { "" };
    let exact = if mine.is_some_and(|mine| mine.flags.contains('e')) {
        ", interrupted"
    } else {
        ""
    };
    format!("{what}, {place}, called by it: {callee}{exact}{how}")
}

/// A thread whose walks differ, frame by frame, with code bytes.
fn example(program: &str, thread: &ThreadWalks) -> String {
    let mut out = format!("  {program}: {}\n", thread.head.join(" "));
    let detail = |ip: u64| thread.details.get(&ip).map_or("", String::as_str);
    for own in thread.own.iter().take(40) {
        let _ = writeln!(
            out,
            "    signal  {} {:3} ip {:x} sp {:x} bp {:x} {}",
            own.kind,
            own.flags,
            own.ip,
            own.sp,
            own.bp,
            detail(own.ip)
        );
    }
    for frame in thread.plain.iter().take(30) {
        let _ = writeln!(
            out,
            "    suspend {}     ip {:x} sp {:x} {}",
            if frame.function == 0 { "run" } else { "m  " },
            frame.ip,
            frame.sp,
            detail(frame.ip)
        );
    }
    out
}

/// Returns the workloads that the oracle runs: those that need no input, run on every runtime and
/// run for a given time. Left out are `chain`, which is a library to its host; `idlethreads`, whose
/// thousand sleeping threads have the same stack; `parked`, `phases`, `suspended`, `tasks`,
/// `ticks`, `traced` and `tracedtasks`, which end after a fixed amount of work; `strays` and
/// `truncated`, which need a library.
///
/// # Errors
/// The error of reading the folder of workloads.
pub fn oracle_programs() -> std::io::Result<Vec<String>> {
    let mut names = workload_names()?;
    names.retain(|name| {
        ![
            "chain",
            "deadlock",
            "idlethreads",
            "parked",
            "phases",
            "strays",
            "suspended",
            "tasks",
            "ticks",
            "together",
            "traced",
            "tracedtasks",
            "truncated",
            "waits",
        ]
        .contains(&name.as_str())
            && Workload::at(name).needs() == Needs::Core31
    });
    Ok(names)
}

/// Returns the [`oracle_programs`] that accept the argument `attached`. `unseen` has other
/// arguments.
///
/// # Errors
/// The error of [`workload_names`].
pub fn attached_programs() -> std::io::Result<Vec<String>> {
    let mut names = oracle_programs()?;
    names.retain(|name| name != "unseen");
    Ok(names)
}

/// Runs a workload under the oracle until `walks` walks were compared.
///
/// # Panics
/// When the program cannot be started, ends or hangs before that.
pub fn agree(runtime: &Runtime, program: &str, walks: u64, random_seeds: u64) -> Agreement {
    let settings = settings(random_seeds);
    let with_oracle = WithOracle::started(runtime, program, &settings);
    listen(&with_oracle, program, walks, random_seeds)
}

/// As [`agree`], for a running workload to which the oracle is attached.
///
/// # Panics
/// As [`agree`].
pub fn agree_attached(
    runtime: &Runtime,
    program: &str,
    walks: u64,
    random_seeds: u64,
) -> Agreement {
    let settings = settings(random_seeds);
    let with_oracle = WithOracle::attached(runtime, program, &[], &settings);
    listen(&with_oracle, program, walks, random_seeds)
}

fn settings(random_seeds: u64) -> String {
    format!("walker=seeded;random_seeds={random_seeds};max_depth=8192")
}

fn listen(with_oracle: &WithOracle, program: &str, walks: u64, random_seeds: u64) -> Agreement {
    let deadline = Instant::now() + TIME_LIMIT;
    let mut found = Agreement::default();
    let mut thread = ThreadWalks::default();
    let mut lines = BufReader::new(&with_oracle.stream).lines();
    let enough = |found: &Agreement| {
        found.suspend.walks >= walks && found.random_seeds.0 + found.random_seeds.1 >= random_seeds
    };
    while !enough(&found) {
        let line = match lines.next() {
            Some(Ok(line)) => line,
            other => panic!(
                "{program}: the agent said no more ({other:?}), the program: {}, after {found:?}",
                with_oracle.process_state()
            ),
        };
        assert!(Instant::now() < deadline, "{program}: too slow: {found:?}");
        let words: Vec<&str> = line.split(' ').collect();
        parse_line(&mut found, program, &mut thread, &line, &words)
            .unwrap_or_else(|| panic!("{program}: not a line of the oracle's: {line}"));
    }
    found
}

/// Adds one line to the results. Returns `None` if it is malformed.
fn parse_line(
    found: &mut Agreement,
    program: &str,
    thread: &mut ThreadWalks,
    line: &str,
    words: &[&str],
) -> Option<()> {
    let hex = |at: usize| u64::from_str_radix(words.get(at)?, 16).ok();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    match *words.first()? {
        "R" => {}
        "T" => {
            found.stopping_ns.push(number(2)?);
            found.stopped_ns.push(number(3)?);
        }
        "B" => *found.busy.entry(line.get(2..)?.to_owned()).or_default() += 1,
        "F" => {
            found.random_seeds.0 += number(1)?;
            found.random_seeds.1 += number(2)?;
        }
        "C" => found.costs.add(Costs {
            walks: number(1)?,
            snapshot_frames: number(2)?,
            snapshot_ns: number(3)?,
            own_frames: number(4)?,
            own_ns: number(5)?,
        }),
        "I" => found.add_image_maps([number(1)?, number(2)?, number(3)?]),
        "W" => {
            *thread = ThreadWalks {
                head: words.get(1..)?.iter().map(|word| (*word).into()).collect(),
                ..ThreadWalks::default()
            };
        }
        "s" => thread.own.push(OwnFrame {
            kind: (*words.get(1)?).to_owned(),
            flags: (*words.get(2)?).to_owned(),
            ip: hex(3)?,
            sp: hex(4)?,
            bp: hex(5)?,
            function: hex(6)?,
        }),
        letter @ ("p" | "q") => {
            let frame = RuntimeFrame {
                ip: hex(1)?,
                sp: hex(2)?,
                function: hex(3)?,
            };
            let into = if letter == "p" {
                &mut thread.plain
            } else {
                &mut thread.seeded
            };
            into.push(frame);
        }
        "d" => {
            thread.details.insert(hex(1)?, words.get(2..)?.join(" "));
        }
        "." => found.compare(program, thread),
        _ => return None,
    }
    Some(())
}
