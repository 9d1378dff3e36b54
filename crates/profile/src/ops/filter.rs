//! Profiles with less in them.
//!
//! The invariant: samples are left out, never changed (but for the frames that
//! [`without_native`] takes out, and for long ones of which a part is in a range of time). `health` stays what the recording said: the honest line is about
//! the recording, not about what one looks at.

use std::collections::HashMap;

use regex::Regex;

use super::group::runtime_labels;
use crate::model::{Event, FrameId, FrameKind, Profile, RuntimeId, Sample, StackId};
use crate::rewrite::{Replacement, replace_frames};

/// Which samples to keep: those to which everything that is set applies.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Taken for this event.
    pub event: Option<Event>,
    /// Of the process with this pid.
    pub pid: Option<u32>,
    /// Of a thread whose name or tid matches.
    pub thread: Option<Regex>,
    /// With a frame of this runtime: a version (`8.0.4`), or the beginning of one up to a dot
    /// (`8`, `8.0`).
    pub runtime: Option<String>,
    /// With a frame whose name matches.
    pub frame: Option<Regex>,
    /// Without any frame whose name matches.
    pub no_frame: Option<Regex>,
    /// Taken at or after this time, nanoseconds of CLOCK_MONOTONIC. A sample of a thread that waits stands for
    /// the time before it ([`lasts_from`]): what of that is in the range stays, and is its value.
    pub from_ns: Option<u64>,
    /// Taken before this time, nanoseconds of CLOCK_MONOTONIC.
    pub until_ns: Option<u64>,
}

impl Filter {
    /// The profile with only the samples that pass. Tables stay, so ids do.
    #[must_use]
    pub fn apply(&self, mut profile: Profile) -> Profile {
        let threads: Vec<bool> = profile
            .threads
            .iter()
            .map(|thread| {
                let pid = profile.process(thread.process).pid;
                let matches = |regex: &Regex| {
                    regex.is_match(&thread.name) || regex.is_match(&thread.tid.to_string())
                };
                self.pid.is_none_or(|wanted| wanted == pid)
                    && self.thread.as_ref().is_none_or(matches)
            })
            .collect();
        let runtimes: Vec<bool> = runtime_labels(&profile)
            .iter()
            .map(|label| {
                self.runtime
                    .as_ref()
                    .is_some_and(|wanted| is_version(label, wanted))
            })
            .collect();
        let of_runtime = |runtime: RuntimeId| runtimes[runtime.0 as usize];
        let with_runtime = self.runtime.as_ref().map(|_| {
            stacks_with(&profile, |frame| {
                profile.frame(frame).runtime.is_some_and(of_runtime)
            })
        });
        let stacks_matching = |regex: &Regex| {
            let names: Vec<bool> = profile
                .strings
                .iter()
                .map(|name| regex.is_match(name))
                .collect();
            stacks_with(&profile, |frame| {
                names[profile.frame(frame).name.0 as usize]
            })
        };
        let with_frame = self.frame.as_ref().map(stacks_matching);
        let without = self.no_frame.as_ref().map(stacks_matching);

        let has = |stacks: &Option<Vec<bool>>, stack: StackId| {
            stacks
                .as_ref()
                .is_none_or(|stacks| stacks[stack.0 as usize])
        };
        let lasts = lasts_from(&profile, Event::Wall);
        let mut samples = std::mem::take(&mut profile.samples);
        samples.retain_mut(|sample| {
            self.event.is_none_or(|event| event == sample.event)
                && self.takes_time_of(sample, lasts)
                && threads[sample.thread.0 as usize]
                && has(&with_runtime, sample.stack)
                && has(&with_frame, sample.stack)
                && !(without.is_some() && has(&without, sample.stack))
        });
        profile.samples = samples;
        let (from, until) = self.times();
        for heap in &mut profile.live {
            heap.moments
                .retain(|moment| (from..until).contains(&moment.time_ns));
        }
        profile
    }

    fn times(&self) -> (u64, u64) {
        (self.from_ns.unwrap_or(0), self.until_ns.unwrap_or(u64::MAX))
    }
}

/// When the first thing of a profile was, nanoseconds of CLOCK_MONOTONIC: from there offsets are counted.
#[must_use]
pub fn begin_ns(profile: &Profile) -> u64 {
    let processes = profile.processes.iter().map(|process| process.start_ns);
    let samples = profile.samples.iter().map(|sample| sample.time_ns);
    processes.chain(samples).min().unwrap_or(0)
}

/// The same by the clock on the wall, nanoseconds since 1970; `None` without a process.
#[must_use]
pub fn begin_unix_ns(profile: &Profile) -> Option<u64> {
    let first = profile.processes.iter().min_by_key(|p| p.start_ns)?;
    let before = first.start_ns - begin_ns(profile);
    Some(first.start_unix_ns.saturating_sub(before))
}

impl Filter {
    /// The sample is in the range of time; of one that lasts, what is in it is left.
    fn takes_time_of(&self, sample: &mut Sample, lasts: Option<u64>) -> bool {
        let (from, until) = self.times();
        let is_long = |least| sample.event == Event::Wall && sample.value >= least;
        if !lasts.is_some_and(is_long) {
            return (from..until).contains(&sample.time_ns);
        }
        let early = self.from_ns.map_or(0, |from| {
            from.saturating_add(sample.value)
                .saturating_sub(sample.time_ns)
        });
        let cut = early.saturating_add(sample.time_ns.saturating_sub(until));
        sample.value = sample.value.saturating_sub(cut);
        sample.value > 0
    }
}

/// From which value on a sample of an event stands for time that passed before it: twice the interval. A thread
/// that waits is not sampled again and again; one sample comes when it moves, or after a second. `None` for
/// events of which no sample does.
#[must_use]
pub fn lasts_from(profile: &Profile, event: Event) -> Option<u64> {
    if event != Event::Wall {
        return None;
    }
    let health = &profile.health;
    let source = health.sources.iter().find(|source| source.event == event);
    let interval = match source {
        Some(source) => source.interval,
        None if health.event == Some(event) => health.interval_ns,
        None => 0,
    };
    (interval > 0).then_some(2 * interval)
}

fn is_version(label: &str, wanted: &str) -> bool {
    label
        .strip_prefix(wanted)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', ' ']))
}

/// For each stack whether any of its frames is one.
fn stacks_with(profile: &Profile, is_one: impl Fn(FrameId) -> bool) -> Vec<bool> {
    let frames: Vec<bool> = (0..profile.frames.len() as u32)
        .map(|id| is_one(FrameId(id)))
        .collect();
    let mut stacks: Vec<bool> = Vec::with_capacity(profile.stacks.len());
    for stack in &profile.stacks {
        let above = stack.parent.is_some_and(|parent| stacks[parent.0 as usize]);
        stacks.push(above || frames[stack.frame.0 as usize]);
    }
    stacks
}

/// The profile without native frames (the runtime's own are native too). Samples with nothing
/// else in their stack are in `[native]`.
#[must_use]
pub fn without_native(profile: Profile) -> Profile {
    let native = |kind| matches!(kind, FrameKind::Native | FrameKind::Runtime);
    let removed: HashMap<FrameId, Replacement> = profile
        .frames
        .iter()
        .enumerate()
        .filter(|(_, frame)| native(frame.kind))
        .map(|(id, _)| (FrameId(id as u32), Replacement::Remove))
        .collect();
    replace_frames(profile, &removed)
}
