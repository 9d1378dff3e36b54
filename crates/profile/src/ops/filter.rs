//! Filters: profiles with a part of the samples.
//!
//! Invariant: samples are dropped, never changed, with two exceptions: [`without_native`] removes
//! frames, and a sample that is partly in a range of time keeps that part of its value. `health`
//! does not change, because it describes the recording.

use std::collections::HashMap;

use regex::Regex;

use super::group::runtime_labels;
use super::stack_view::StackView;
use crate::model::{
    Event, FrameId, FrameKind, ProcessId, Profile, RuntimeId, Sample, StackId, ThreadId,
};
use crate::rewrite::{Replacement, replace_frames};

/// Conditions for samples. A sample is kept if it fulfils all conditions that are set.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Taken for this event.
    pub event: Option<Event>,
    /// Of a process whose name or pid matches one of these.
    pub process: Vec<Regex>,
    /// Of a thread whose name or tid matches one of these.
    pub thread: Vec<Regex>,
    /// With a frame of this runtime: a version (`8.0.4`), or the beginning of one up to a dot
    /// (`8`, `8.0`).
    pub runtime: Option<String>,
    /// With a frame or a subject ([`Sample::detail`]) whose name matches one of these.
    pub frame: Vec<Regex>,
    /// Without any frame or subject whose name matches one of these.
    pub no_frame: Vec<Regex>,
    /// The stack of a sample in which frames are matched.
    pub stacks: StackView,
    /// Taken at or after this time, nanoseconds of CLOCK_MONOTONIC. A sample of a waiting thread
    /// represents the time before it ([`duration_threshold`]). Its value becomes the part of that
    /// time inside the range.
    pub from_ns: Option<u64>,
    /// Taken before this time, nanoseconds of CLOCK_MONOTONIC.
    pub until_ns: Option<u64>,
}

impl Filter {
    /// Returns the profile with only the samples that pass.
    ///
    /// Processes and threads that do not match are removed from their tables. [`Filter::frame`] and
    /// [`Filter::no_frame`] also remove threads without samples. Other tables are unchanged.
    #[must_use]
    pub fn apply(&self, mut profile: Profile) -> Profile {
        let (processes, threads) = self.processes_and_threads(&profile);
        let frames = !(self.frame.is_empty() && self.no_frame.is_empty());
        let had_samples = frames.then(|| sampled_threads(&profile));
        self.retain_samples(&mut profile, &threads);
        let (from, until) = self.times();
        for heap in &mut profile.live {
            heap.moments
                .retain(|moment| (from..until).contains(&moment.time_ns));
        }
        let mut threads = threads;
        if let Some(had_samples) = had_samples {
            let has_samples = sampled_threads(&profile);
            for (at, keep) in threads.iter_mut().enumerate() {
                let never_had = self.frame.is_empty() && !had_samples[at];
                *keep &= has_samples[at] || never_had;
            }
        }
        if threads.iter().all(|keep| *keep) && processes.iter().all(|keep| *keep) {
            return profile;
        }
        restrict_to(profile, &processes, &threads)
    }

    /// For each process and each thread whether it matches. A thread does only if its process does.
    fn processes_and_threads(&self, profile: &Profile) -> (Vec<bool>, Vec<bool>) {
        let matches = |wanted: &[Regex], name: &str, number: u32| {
            wanted.is_empty()
                || matches_any(wanted, name)
                || matches_any(wanted, &number.to_string())
        };
        let processes: Vec<bool> = profile
            .processes
            .iter()
            .map(|process| matches(&self.process, &process.name(), process.pid))
            .collect();
        let threads = profile.threads.iter().map(|thread| {
            processes[thread.process.0 as usize] && matches(&self.thread, &thread.name, thread.tid)
        });
        let threads = threads.collect();
        (processes, threads)
    }

    fn retain_samples(&self, profile: &mut Profile, threads: &[bool]) {
        let runtimes: Vec<bool> = runtime_labels(profile)
            .iter()
            .map(|label| {
                self.runtime
                    .as_ref()
                    .is_some_and(|wanted| is_version(label, wanted))
            })
            .collect();
        let of_runtime = |runtime: RuntimeId| runtimes[runtime.0 as usize];
        let with_runtime = self.runtime.as_ref().map(|_| {
            stacks_with(profile, |frame| {
                profile.frame(frame).runtime.is_some_and(of_runtime)
            })
        });
        let matching = |regexes: &[Regex]| {
            let names = profile
                .strings
                .iter()
                .map(|name| matches_any(regexes, name));
            let names: Vec<bool> = names.collect();
            let stacks = stacks_with(profile, |frame| names[profile.frame(frame).name.0 as usize]);
            let details = profile.details.iter();
            let details: Vec<bool> = details
                .map(|detail| names[detail.name.0 as usize])
                .collect();
            (stacks, details)
        };
        let wanted = (!self.frame.is_empty()).then(|| matching(&self.frame));
        let unwanted = (!self.no_frame.is_empty()).then(|| matching(&self.no_frame));
        let lasts = duration_threshold(profile, Event::Wall);
        let is_one =
            |(stacks, details): &(Vec<bool>, Vec<bool>), sample: &Sample, stack: StackId| {
                stacks[stack.0 as usize] || sample.detail.is_some_and(|id| details[id.0 as usize])
            };
        profile.samples.retain_mut(|sample| {
            let stack = match self.stacks {
                StackView::Logical => sample.logical.unwrap_or(sample.stack),
                StackView::Physical => sample.stack,
            };
            self.event.is_none_or(|event| event == sample.event)
                && self.clip_to_range(sample, lasts)
                && threads[sample.thread.0 as usize]
                && with_runtime
                    .as_ref()
                    .is_none_or(|stacks| stacks[stack.0 as usize])
                && wanted.as_ref().is_none_or(|of| is_one(of, sample, stack))
                && !unwanted
                    .as_ref()
                    .is_some_and(|of| is_one(of, sample, stack))
        });
    }

    fn times(&self) -> (u64, u64) {
        (self.from_ns.unwrap_or(0), self.until_ns.unwrap_or(u64::MAX))
    }
}

/// Returns the start of a profile in CLOCK_MONOTONIC nanoseconds: the earliest process start or
/// sample. Time offsets are relative to it.
#[must_use]
pub fn begin_ns(profile: &Profile) -> u64 {
    let processes = profile.processes.iter().map(|process| process.start_ns);
    let samples = profile.samples.iter().map(|sample| sample.time_ns);
    processes.chain(samples).min().unwrap_or(0)
}

/// Returns the start of a profile in nanoseconds since 1970, or `None` without a process.
#[must_use]
pub fn begin_unix_ns(profile: &Profile) -> Option<u64> {
    let first = profile.processes.iter().min_by_key(|p| p.start_ns)?;
    let before = first.start_ns - begin_ns(profile);
    Some(first.start_unix_ns.saturating_sub(before))
}

impl Filter {
    /// The sample is in the range of time; of one that lasts, what is in it is left.
    fn clip_to_range(&self, sample: &mut Sample, lasts: Option<u64>) -> bool {
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

/// From which value on a sample of an event stands for time that passed before it: twice the
/// interval. A thread that waits is not sampled again and again; one sample comes when it moves, or
/// after a second. `None` for events of which no sample does.
#[must_use]
pub fn duration_threshold(profile: &Profile, event: Event) -> Option<u64> {
    if event != Event::Wall {
        return None;
    }
    let health = &profile.health;
    let interval = match health.source_of(event) {
        Some(source) => source.interval,
        None if health.event == Some(event) => health.interval_ns,
        None => 0,
    };
    (interval > 0).then_some(2 * interval)
}

fn matches_any(regexes: &[Regex], text: &str) -> bool {
    regexes.iter().any(|regex| regex.is_match(text))
}

fn is_version(label: &str, wanted: &str) -> bool {
    label
        .strip_prefix(wanted)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', ' ']))
}

/// For each thread whether there is a sample of it.
fn sampled_threads(profile: &Profile) -> Vec<bool> {
    let mut sampled = vec![false; profile.threads.len()];
    for sample in &profile.samples {
        sampled[sample.thread.0 as usize] = true;
    }
    sampled
}

/// For each of a table that is kept, its new index.
fn indices(keep: &[bool]) -> Vec<Option<u32>> {
    let mut next = 0;
    let each = keep.iter().map(|keep| {
        keep.then(|| {
            next += 1;
            next - 1
        })
    });
    each.collect()
}

/// Removes what is not kept from a table.
fn retain<T>(table: &mut Vec<T>, keep: impl IntoIterator<Item = bool>) {
    let mut keep = keep.into_iter();
    table.retain(|_| keep.next().unwrap_or(false));
}

/// The profile with only these processes and threads in its tables. Samples of others must have
/// been left out. A thread that is kept is of a process that is.
fn restrict_to(mut profile: Profile, processes: &[bool], threads: &[bool]) -> Profile {
    let new_process = indices(processes);
    let process = |id: ProcessId| new_process[id.0 as usize].map(ProcessId);
    let runtimes = profile.runtimes.iter();
    let runtimes: Vec<bool> = runtimes.map(|of| process(of.process).is_some()).collect();
    let new_runtime = indices(&runtimes);
    let runtime = |id: RuntimeId| new_runtime[id.0 as usize].map(RuntimeId);
    let new_thread = indices(threads);
    retain(&mut profile.processes, processes.iter().copied());
    retain(&mut profile.threads, threads.iter().copied());
    retain(&mut profile.runtimes, runtimes);
    for sample in &mut profile.samples {
        sample.thread = new_thread[sample.thread.0 as usize].map_or(sample.thread, ThreadId);
    }
    for frame in &mut profile.frames {
        frame.runtime = frame.runtime.and_then(runtime);
    }
    let move_to = |of: &mut ProcessId| process(*of).map(|new| *of = new).is_some();
    for thread in &mut profile.threads {
        move_to(&mut thread.process);
    }
    for runtime in &mut profile.runtimes {
        move_to(&mut runtime.process);
    }
    profile
        .pauses
        .retain_mut(|pause| move_to(&mut pause.process));
    profile.live.retain_mut(|heap| move_to(&mut heap.process));
    let partial = &mut profile.health.partial;
    partial.retain_mut(|partial| move_to(&mut partial.process));
    profile.traced.retain_mut(|method| {
        let new = runtime(method.runtime);
        method.runtime = new.unwrap_or(method.runtime);
        new.is_some() && move_to(&mut method.process)
    });
    profile
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
