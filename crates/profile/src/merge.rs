//! Merging of several recordings into one profile, such as a fleet's or a day's.
//!
//! `ops::diff` compares recordings. Invariants: every sample of every recording occurs once; times
//! are aligned by wall clock; processes of different recordings stay separate even if their pids
//! are equal.

use std::collections::{BTreeMap, HashMap};

use crate::builder::Builder;
use crate::clocks;
use crate::model::{
    DetailId, Frame, FrameId, Health, LimitedEvents, LiveHeap, LiveMoment, LiveSum, Location,
    Module, ModuleId, Pause, Pauses, Process, ProcessId, Profile, Runtime, RuntimeId, Sample,
    StackId, StringId, Thread, ThreadId, TracedMethod,
};

/// Merges several profiles, each with its file name, into one. They must be symbolised, because
/// addresses have no meaning across processes. Clocks are aligned by each recording's start. A
/// single profile is returned unchanged.
#[must_use]
pub fn merge(recordings: Vec<(String, Profile)>) -> Profile {
    let several = recordings.len() > 1;
    let mut all = recordings.into_iter();
    let Some((name, mut first)) = all.next() else {
        return Profile::default();
    };
    if !several {
        return first;
    }
    first.recordings = vec![name];
    let modules = first.modules.iter().map(file_id).zip(0..).collect();
    let clock = wall_clock_offset(&first);
    let earliest = earliest(&first).unwrap_or(0);
    let mut merged = Merger {
        builder: Builder::from_profile(first),
        modules,
        clock,
        earliest,
    };
    for (name, profile) in all {
        merged.add(name, profile);
    }
    merged.finish()
}

/// The identity of a file across recordings: path, whether it is managed, build, offset in the
/// file.
type FileId = (String, bool, Vec<u8>, u64);

fn file_id(module: &Module) -> FileId {
    let Module {
        path,
        managed,
        id_bytes,
        file_offset,
        bias: _,
    } = module;
    (path.clone(), *managed, id_bytes.clone(), *file_offset)
}

/// Returns the offset from a recording's clock to nanoseconds since 1970; 0 if it is not recorded.
fn wall_clock_offset(profile: &Profile) -> i64 {
    let mut known = profile
        .processes
        .iter()
        .filter_map(clocks::wall_clock_offset);
    known.next().unwrap_or(0)
}

/// Returns the earliest time in a recording, by its own clock.
fn earliest(profile: &Profile) -> Option<u64> {
    profile.processes.iter().map(|p| p.start_ns).min()
}

struct Merger {
    builder: Builder,
    modules: HashMap<FileId, u32>,
    /// Of the first recording, whose clock all have in the end.
    clock: i64,
    /// By it.
    earliest: u64,
}

impl Merger {
    fn add(&mut self, name: String, mut profile: Profile) {
        // A recording whose clock is not known begins with the first.
        let shift = match (wall_clock_offset(&profile), self.clock) {
            (0, _) | (_, 0) => {
                let own = earliest(&profile).unwrap_or(0);
                self.earliest.cast_signed() - own.cast_signed()
            }
            (added, merged) => added.wrapping_sub(merged),
        };
        if let Some(first_time) = earliest(&profile) {
            let first_time = first_time.cast_signed().saturating_add(shift);
            if first_time < 0 {
                // It was recorded before the first one's clock began.
                self.shift_later(first_time.unsigned_abs());
                return self.add(name, profile);
            }
        }
        clocks::move_times(&mut profile, |_| shift);
        let Profile {
            strings,
            frames,
            stacks,
            modules,
            runtimes,
            processes,
            threads,
            details,
            samples,
            pauses,
            traced,
            live,
            health,
            recordings: _,
        } = profile;
        let to = &mut self.builder;
        let recording = to.profile.recordings.len();
        let strings: Vec<StringId> = strings.iter().map(|text| to.string(text)).collect();
        let string = |id: StringId| strings[id.0 as usize];
        let modules: Vec<ModuleId> = modules
            .into_iter()
            .map(|module| {
                let next = to.profile.modules.len() as u32;
                let id = *self.modules.entry(file_id(&module)).or_insert(next);
                if id == next {
                    to.profile.modules.push(module);
                }
                ModuleId(id)
            })
            .collect();
        let first_process = to.profile.processes.len() as u32;
        let process = |id: ProcessId| ProcessId(id.0 + first_process);
        let first_runtime = to.profile.runtimes.len() as u32;
        let runtime = |id: RuntimeId| RuntimeId(id.0 + first_runtime);
        let first_thread = to.profile.threads.len() as u32;
        let details: Vec<DetailId> = details
            .into_iter()
            .map(|mut detail| {
                detail.name = string(detail.name);
                detail.text = string(detail.text);
                to.detail(detail)
            })
            .collect();
        let detail = |id: DetailId| details[id.0 as usize];
        let frames: Vec<FrameId> = frames
            .into_iter()
            .map(|frame| {
                let location = match frame.location {
                    Location::Detail(id) => Location::Detail(detail(id)),
                    other => other,
                };
                to.frame(Frame {
                    name: string(frame.name),
                    module: frame.module.map(|id| modules[id.0 as usize]),
                    runtime: frame.runtime.map(runtime),
                    file: frame.file.map(string),
                    signature: frame.signature.map(string),
                    location,
                    ..frame
                })
            })
            .collect();
        let mut by_old: Vec<StackId> = Vec::with_capacity(stacks.len());
        for stack in stacks {
            let parent = stack.parent.map(|parent| by_old[parent.0 as usize]);
            by_old.push(to.stack(parent, frames[stack.frame.0 as usize]));
        }
        let merged = &mut to.profile;
        merged
            .processes
            .extend(processes.into_iter().map(|of| Process { recording, ..of }));
        merged
            .runtimes
            .extend(runtimes.into_iter().map(|of| Runtime {
                process: process(of.process),
                ..of
            }));
        merged.threads.extend(threads.into_iter().map(|of| Thread {
            process: process(of.process),
            ..of
        }));
        merged.samples.extend(samples.into_iter().map(|of| Sample {
            thread: ThreadId(of.thread.0 + first_thread),
            stack: by_old[of.stack.0 as usize],
            logical: of.logical.map(|stack| by_old[stack.0 as usize]),
            detail: of.detail.map(detail),
            ..of
        }));
        merged.pauses.extend(pauses.into_iter().map(|of| Pause {
            process: process(of.process),
            ..of
        }));
        merged
            .traced
            .extend(traced.into_iter().map(|of| TracedMethod {
                process: process(of.process),
                runtime: runtime(of.runtime),
                name: string(of.name),
                module: string(of.module),
                ..of
            }));
        let types = |sums: BTreeMap<StringId, LiveSum>| {
            sums.into_iter()
                .map(|(name, sum)| (string(name), sum))
                .collect()
        };
        merged.live.extend(live.into_iter().map(|of| {
            LiveHeap {
                process: process(of.process),
                moments: of
                    .moments
                    .into_iter()
                    .map(|of| LiveMoment {
                        types: types(of.types),
                        ..of
                    })
                    .collect(),
                ..of
            }
        }));
        add_health(&mut merged.health, health, first_process, &name);
        merged.recordings.push(name);
    }

    /// Moves all that is there: clocks begin so much earlier.
    fn shift_later(&mut self, nanoseconds: u64) {
        let shift = nanoseconds.cast_signed();
        clocks::move_times(&mut self.builder.profile, |_| shift);
        self.earliest = self.earliest.saturating_add(nanoseconds);
        self.clock = self.clock.saturating_sub_unsigned(nanoseconds);
    }

    fn finish(self) -> Profile {
        let mut profile = self.builder.finish();
        let times = profile.pauses.iter().map(|pause| pause.stopped_ns);
        let mut times: Vec<u64> = times.collect();
        times.sort_unstable();
        profile.health.pauses.median_ns = times.get(times.len() / 2).copied().unwrap_or(0);
        profile
    }
}

/// Adds the honest line of a recording to that of others.
fn add_health(to: &mut Health, of: Health, first_process: u32, name: &str) {
    // All fields by name: a new one has to be thought of.
    let Health {
        samples,
        lost,
        broken,
        truncated,
        chains,
        chains_cut,
        frames,
        unknown_frames,
        due_ns,
        seen_ns,
        unseen,
        abrupt,
        engine,
        walker,
        event,
        interval_ns,
        achieved_ns,
        max_depth,
        agent_cpu_ns,
        target_cpu_ns,
        agent_memory,
        handler_ns,
        cost,
        sources,
        partial,
        limited,
        pauses,
        notes,
    } = of;
    if (event, interval_ns) != (to.event, to.interval_ns) {
        to.notes.push(format!(
            "{name} was sampled differently from the first recording: compare shares, not sums"
        ));
    }
    if engine != to.engine && !engine.is_empty() {
        to.engine = format!("{}, {engine}", to.engine);
    }
    if walker != to.walker && !walker.is_empty() {
        to.walker = format!("{}, {walker}", to.walker);
    }
    to.samples += samples;
    add_reasons(&mut to.lost, lost);
    add_reasons(&mut to.broken, broken);
    to.truncated += truncated;
    to.chains += chains;
    add_reasons(&mut to.chains_cut, chains_cut);
    to.frames += frames;
    to.unknown_frames += unknown_frames;
    // A number that one recording lacks is not known of all.
    to.due_ns = to.due_ns.zip(due_ns).map(|(a, b)| a.saturating_add(b));
    to.seen_ns = to.seen_ns.saturating_add(seen_ns);
    for of in unseen {
        match to.unseen.iter_mut().find(|known| known.reason == of.reason) {
            Some(known) => {
                known.threads += of.threads;
                known.cpu_ns = known.cpu_ns.saturating_add(of.cpu_ns);
            }
            None => to.unseen.push(of),
        }
    }
    to.unseen
        .sort_by_key(|unseen| std::cmp::Reverse(unseen.cpu_ns));
    to.abrupt.extend(abrupt);
    to.achieved_ns = to.achieved_ns.max(achieved_ns);
    to.max_depth = to.max_depth.max(max_depth);
    to.agent_cpu_ns = to.agent_cpu_ns.saturating_add(agent_cpu_ns);
    to.target_cpu_ns = to.target_cpu_ns.saturating_add(target_cpu_ns);
    to.agent_memory = to.agent_memory.max(agent_memory);
    to.handler_ns = to.handler_ns.saturating_add(handler_ns);
    for of in cost {
        let same = |known: &&mut crate::model::Cost| {
            (known.part, &known.name, known.modelled) == (of.part, &of.name, of.modelled)
        };
        match to.cost.iter_mut().find(same) {
            Some(known) => {
                known.count += of.count;
                known.cpu_ns = known.cpu_ns.saturating_add(of.cpu_ns);
            }
            None => to.cost.push(of),
        }
    }
    for source in sources {
        if !to.sources.contains(&source) {
            to.sources.push(source);
        }
    }
    let partial = partial.into_iter().map(|mut partial| {
        partial.process.0 += first_process;
        partial
    });
    to.partial.extend(partial);
    for of in limited {
        let known = to.limited.iter_mut().find(|known| known.event == of.event);
        match known {
            Some(LimitedEvents { count, value, .. }) => {
                *count += of.count;
                *value = value.saturating_add(of.value);
            }
            None => to.limited.push(of),
        }
    }
    let Pauses {
        count,
        total_ns,
        median_ns: _,
        longest_ns,
        stopping_ns,
    } = pauses;
    to.pauses.count += count;
    to.pauses.total_ns = to.pauses.total_ns.saturating_add(total_ns);
    to.pauses.longest_ns = to.pauses.longest_ns.max(longest_ns);
    to.pauses.stopping_ns = to.pauses.stopping_ns.saturating_add(stopping_ns);
    let notes = notes.into_iter().map(|note| format!("{name}: {note}"));
    to.notes.extend(notes);
}

/// Most first.
fn add_reasons(to: &mut Vec<(String, u64)>, of: Vec<(String, u64)>) {
    for (reason, count) in of {
        match to.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, known)) => *known += count,
            None => to.push((reason, count)),
        }
    }
    to.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
}
