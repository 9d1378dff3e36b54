//! Changes between recordings: simulated programs, whose shares are known.

use profile::model::{
    Event, Frame, FrameKind, Process, ProcessId, Sample, Thread, ThreadId, WalkEnd,
};
use profile::ops::{Diff, DiffRequest, ERROR, GroupBy, Scaling, diff, merge_sides};
use profile::{Builder, Profile};

/// SplitMix64: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The shares of its methods in a program, `Shop.Hot` first.
const METHODS: [(&str, f64); 12] = [
    ("Shop.Hot", 0.50),
    ("Shop.Warm", 0.20),
    ("Shop.Parse", 0.10),
    ("Shop.Write", 0.07),
    ("Shop.Find", 0.05),
    ("Shop.Sort", 0.03),
    ("Shop.Hash", 0.02),
    ("Shop.Lock", 0.01),
    ("Shop.Copy", 0.008),
    ("Shop.Trim", 0.006),
    ("Shop.Join", 0.004),
    ("Shop.Rare", 0.002),
];

const INTERVAL: u64 = 1_000_000;

/// A program that is sampled so often, whose first method takes `slower` times as long. A method
/// that is met goes on for `stays` samples, about.
fn simulated(seed: u64, samples: u64, slower: f64, stays: f64) -> Profile {
    let mut random = Random(seed);
    let mut builder = Builder::new();
    builder.profile.processes.push(Process {
        pid: 1,
        parent: 0,
        command: vec!["shop".to_owned()],
        start_unix_ns: 1_700_000_000_000_000_000,
        start_ns: 5,
        end_ns: 5 + samples * INTERVAL,
        ended: true,
        recording: 0,
    });
    builder.profile.threads.push(Thread {
        process: ProcessId(0),
        tid: 1,
        name: "main".to_owned(),
        managed: true,
        start_ns: 5,
        end_ns: None,
        cpu_ns: None,
        state: None,
    });
    let mut frame = |name: &str| {
        let name = builder.string(name);
        builder.frame(Frame::new(name, FrameKind::Managed))
    };
    let main = frame("Shop.Main");
    let frames = METHODS.map(|(name, _)| frame(name));
    let root = builder.stack(None, main);
    let stacks = frames.map(|frame| builder.stack(Some(root), frame));
    let mut shares = METHODS.map(|(_, share)| share);
    shares[0] *= slower;
    let sum: f64 = shares.iter().sum();
    let mut at = 0;
    for number in 0..samples {
        if number == 0 || random.part() * stays < 1.0 {
            let mut rest = random.part() * sum;
            at = 0;
            while rest > shares[at] && at + 1 < shares.len() {
                rest -= shares[at];
                at += 1;
            }
        }
        builder.profile.samples.push(Sample {
            thread: ThreadId(0),
            stack: stacks[at],
            logical: None,
            time_ns: 5 + number * INTERVAL,
            event: Event::Cpu,
            value: INTERVAL,
            end: WalkEnd::Root,
            detail: None,
        });
    }
    builder.profile.health.samples = samples;
    builder.finish()
}

fn named(profiles: Vec<Profile>) -> Vec<(String, Profile)> {
    let number = |(number, profile)| (format!("{number}.swk"), profile);
    profiles.into_iter().enumerate().map(number).collect()
}

fn compared(before: Vec<Profile>, after: Vec<Profile>, per: Scaling) -> Diff {
    let (profile, first_after) = merge_sides(named(before), named(after));
    let request = DiffRequest {
        event: Event::Cpu,
        by: GroupBy::Method,
        per,
        error: ERROR,
    };
    diff(&profile, first_after, request)
}

fn certain(diff: &Diff) -> Vec<&str> {
    let changed = diff
        .rows
        .iter()
        .filter(|row| row.own.certain || row.total.certain);
    changed.map(|row| row.group.label.as_str()).collect()
}

const PAIRS: u64 = 100;

/// How many of the pairs have a change that is called certain.
fn found(samples: u64, slower: f64, stays: f64, is_found: impl Fn(&Diff) -> bool) -> usize {
    let of = |pair: u64| {
        let before = simulated(pair * 2 + 1, samples, 1.0, stays);
        let after = simulated(pair * 2 + 2, samples, slower, stays);
        is_found(&compared(vec![before], vec![after], Scaling::Whole))
    };
    (0..PAIRS).filter(|pair| of(*pair)).count()
}

#[test]
fn runs_of_the_same_program_differ_by_chance() {
    // Methods that are met for one sample, and for twenty.
    for stays in [1.0, 20.0] {
        let wrong = found(20_000, 1.0, stays, |diff| !certain(diff).is_empty());
        println!("{wrong} of {PAIRS} pairs, {stays} samples a stay");
        assert!(
            wrong <= 5,
            "{wrong} of {PAIRS} pairs, {stays} samples a stay"
        );
    }
}

#[test]
fn a_method_that_takes_a_twentieth_longer_is_found() {
    let right = |diff: &Diff| {
        let hot = diff.rows.iter().find(|row| row.group.label == "Shop.Hot");
        hot.is_some_and(|row| row.own.certain && row.own.difference() > 0.0)
            && diff.rows[0].group.label == "Shop.Hot"
    };
    let right = found(120_000, 1.05, 1.0, right);
    println!("{right} of {PAIRS} pairs");
    assert!(right >= 95, "{right} of {PAIRS} pairs");
}

#[test]
fn shares_of_a_side_are_its_whole() {
    let slow = simulated(2, 9_000, 1.5, 1.0);
    let diff = compared(
        vec![simulated(1, 4_000, 1.0, 1.0)],
        vec![slow],
        Scaling::Whole,
    );
    for side in 0..2 {
        let own: f64 = diff.rows.iter().map(|row| row.own.amounts[side]).sum();
        assert!((own - 1.0).abs() < 1e-9, "{own}");
        let samples: u64 = diff
            .rows
            .iter()
            .map(|row| row.own.weights[side].samples)
            .sum();
        assert_eq!(samples, [4_000, 9_000][side]);
        let all = diff.rows.iter().find(|row| row.group.label == "Shop.Main");
        assert!((all.unwrap().total.amounts[side] - 1.0).abs() < 1e-9);
    }
    // One that grew makes the others less of the whole.
    assert_eq!(diff.rows[0].group.label, "Shop.Hot");
    let warm = diff.rows.iter().find(|row| row.group.label == "Shop.Warm");
    assert!(warm.unwrap().own.difference() < 0.0);
}

#[test]
fn by_the_second_only_what_grew_is_more() {
    // The same load: all but one take as long as before, in a longer time.
    let hot =
        |slower: f64, seed| simulated(seed, (50_000.0 * (0.5 + 0.5 * slower)) as u64, slower, 1.0);
    let mut after = hot(1.2, 4);
    // Samples come closer: as many in a second of what was not slowed down.
    let squeeze = 50_000.0 / after.samples.len() as f64;
    for sample in &mut after.samples {
        sample.time_ns = (sample.time_ns as f64 * squeeze) as u64;
    }
    after.processes[0].end_ns = 5 + 50_000 * INTERVAL;
    let diff = compared(vec![hot(1.0, 3)], vec![after], Scaling::Second);
    let own: Vec<&str> = diff
        .rows
        .iter()
        .filter(|row| row.own.certain)
        .map(|row| row.group.label.as_str())
        .collect();
    assert_eq!(own, ["Shop.Hot"]);
    let relative = diff.rows[0].own.relative();
    assert!((0.15..0.25).contains(&relative), "{relative}");
}

#[test]
fn runs_are_compared_with_runs() {
    // Each run of a side has shares of its own, further apart than samples tell: no single pair
    // knows.
    let side = |seeds: [u64; 4], slower: [f64; 4]| -> Vec<Profile> {
        let each = seeds.into_iter().zip(slower);
        each.map(|(seed, slower)| simulated(seed, 30_000, slower, 1.0))
            .collect()
    };
    let before = || side([1, 2, 3, 4], [0.9, 1.1, 1.0, 1.05]);
    let same = side([5, 6, 7, 8], [1.1, 0.95, 0.9, 1.15]);
    let diff = compared(before(), same, Scaling::Whole);
    assert_eq!(certain(&diff), [] as [&str; 0]);
    assert_eq!(diff.sides.map(|side| side.units), [4, 4]);
    let slow = side([5, 6, 7, 8], [2.1, 2.0, 1.9, 2.2]);
    assert!(certain(&compared(before(), slow, Scaling::Whole)).contains(&"Shop.Hot"));
}

#[test]
fn a_method_that_calls_itself_by_another_has_each_sample_once() {
    let mut profile = simulated(1, 1_000, 1.0, 1.0);
    // Under each sample once more: Shop.Main, its method, Shop.Main, its method.
    let mut builder = Builder::from_profile(std::mem::take(&mut profile));
    for at in 0..builder.profile.samples.len() {
        let stack = builder.profile.samples[at].stack;
        let frames: Vec<_> = builder.profile.frames_of(stack).collect();
        let outer_first = frames.iter().rev();
        let again = outer_first.fold(stack, |parent, frame| builder.stack(Some(parent), *frame));
        builder.profile.samples[at].stack = again;
    }
    let profile = builder.finish();
    let diff = compared(vec![profile.clone()], vec![profile], Scaling::Whole);
    let main = diff.rows.iter().find(|row| row.group.label == "Shop.Main");
    let main = main.unwrap();
    assert_eq!(main.total.weights.map(|of| of.samples), [1_000; 2]);
    assert_eq!(main.own.weights.map(|of| of.samples), [0; 2]);
}

#[test]
fn what_is_new_and_what_is_gone() {
    let mut old = simulated(1, 20_000, 1.0, 1.0);
    let mut new = simulated(2, 20_000, 1.0, 1.0);
    let rename = |profile: &mut Profile, to: &str| {
        let name = profile.strings.iter_mut().find(|name| *name == "Shop.Warm");
        *name.unwrap() = to.to_owned();
    };
    rename(&mut old, "Shop.Gone");
    rename(&mut new, "Shop.New");
    let diff = compared(vec![old], vec![new], Scaling::Whole);
    assert_eq!(diff.rows[0].group.label, "Shop.New");
    assert!(diff.rows[0].own.relative().is_infinite());
    assert_eq!(certain(&diff), ["Shop.New", "Shop.Gone"]);
    // Nothing at all is compared with nothing.
    let nothing = compared(
        vec![Profile::default()],
        vec![Profile::default()],
        Scaling::Whole,
    );
    assert!(nothing.rows.is_empty());
}
