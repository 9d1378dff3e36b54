//! Health of a profile: the counts and notes that are computed when all records are imported.

use std::collections::BTreeMap;

use recording::{CostPart, Event};

use super::process::{MAX_COSTS, ProcessImport};
use super::totals::{SampleSums, StackSummary};
use super::{Import, MAX_DAMAGE_NOTES};
use crate::model::{
    Cost, FrameKind, Health, LimitedEvents, ModuleId, PartialEvent, Pause, Pauses, SampleSource,
};
use crate::names;

/// Maximum number of notes of a profile; a hostile recording may have millions.
const MAX_NOTES: usize = 100;

/// Maximum number of notes about events that were recorded for a part of the time.
const MAX_PARTIAL: usize = 1000;

impl Import {
    pub(super) fn finish_processes(&mut self) {
        let profile = &mut self.builder.profile;
        if self.processes.is_empty() {
            let text = "the recording is empty: no .NET process ever sent anything";
            note(&mut profile.health.notes, text.to_owned());
        }
        for state in &self.processes {
            profile.health.agent_cpu_ns = profile
                .health
                .agent_cpu_ns
                .saturating_add(state.agent_cpu_ns);
            profile.health.target_cpu_ns = profile
                .health
                .target_cpu_ns
                .saturating_add(state.target_cpu_ns);
            profile.health.handler_ns = profile.health.handler_ns.saturating_add(state.handler_ns);
            add_cost(&mut profile.health.cost, state);
            let process = &profile.processes[state.id.0 as usize];
            let (pid, name) = (process.pid, process.name());
            let threads = state.threads.iter().count() as u64;
            state.account.add_to(&mut profile.health, threads);
            if let Some(says) = state.account.no_samples_note() {
                let text = format!("process {pid} ({name}) gave no sample{says}");
                note(&mut profile.health.notes, text);
            }
            for (event, on_ns) in state
                .switched
                .map(|switched| switched.partial(process.start_ns, process.end_ns))
                .unwrap_or_default()
            {
                let of_ns = process.end_ns.saturating_sub(process.start_ns);
                let seconds = |ns: u64| ns as f64 / 1e9;
                let text = format!(
                    "process {pid} ({name}): {} was recorded for {:.1} s of {:.1} s, because the \
                     events were changed meanwhile",
                    event.name(),
                    seconds(on_ns),
                    seconds(of_ns),
                );
                note(&mut profile.health.notes, text);
                if profile.health.partial.len() < MAX_PARTIAL {
                    profile.health.partial.push(PartialEvent {
                        process: state.id,
                        event,
                        on_ns,
                        of_ns,
                    });
                }
            }
            if !state.opened {
                let text = "the first block of a process is missing: its name is not known";
                note(&mut profile.health.notes, text.to_owned());
            }
            let goes_on = format!("process {pid} {}", names::GOES_ON);
            let is_cut = |note: &String| note.starts_with(&goes_on);
            if !process.ended && !profile.health.notes.iter().any(is_cut) {
                let text = format!(
                    "process {pid} ({name}) did not say that it ended: it was killed, it ended \
                     without shutting its runtime down, or the recording was cut; up to its last \
                     0.1 s is missing"
                );
                profile.health.abrupt.push(pid);
                note(&mut profile.health.notes, text);
            }
        }
    }

    /// The program file of a single-file app holds the runtime: its native frames are the
    /// runtime's.
    pub(super) fn mark_single_file_runtimes(&mut self) {
        let profile = &mut self.builder.profile;
        for state in self
            .processes
            .iter()
            .filter(|state| !state.runtimes.is_empty())
        {
            let modules = || {
                state
                    .modules
                    .values()
                    .map(|(id, _)| (id, &profile.modules[id.0 as usize]))
            };
            if modules().any(|(_, module)| module.file_name() == "libcoreclr.so") {
                continue;
            }
            let command = &profile.processes[state.id.0 as usize].command;
            let program = command
                .first()
                .and_then(|word| word.rsplit('/').next())
                .unwrap_or("");
            let holders: Vec<ModuleId> = modules()
                .filter(|(_, module)| !module.managed && !program.is_empty())
                .filter(|(_, module)| module.file_name() == program)
                .map(|(id, _)| id)
                .collect();
            if holders.is_empty() {
                continue;
            }
            for frame in &mut profile.frames {
                let inside = frame.module.is_some_and(|module| holders.contains(&module));
                if inside && frame.kind == FrameKind::Native {
                    frame.kind = FrameKind::Runtime;
                }
            }
        }
    }

    pub(super) fn finish_health(&mut self) {
        let profile = &mut self.builder.profile;
        let mut sample_sums = std::mem::take(&mut self.sample_sums);
        // Parents come first, so one pass gives each stack's sums.
        let mut nodes: Vec<StackSummary> = Vec::with_capacity(profile.stacks.len());
        for stack in &profile.stacks {
            let parent = stack.parent.map(|parent| nodes[parent.0 as usize]);
            let kind = profile.frames[stack.frame.0 as usize].kind;
            nodes.push(StackSummary::below(parent, stack.frame, kind));
        }
        for sample in &profile.samples {
            let node = nodes[sample.stack.0 as usize];
            let logical = sample.logical.map(|logical| nodes[logical.0 as usize]);
            let what = (sample.event, sample.value, sample.end);
            sample_sums.add(&mut profile.health, what, node, logical);
        }
        let SampleSums {
            broken,
            chains: mut cut,
            cpu,
        } = sample_sums;
        let health = &mut profile.health;
        cut.retain(|root, _| profile.frames[root.0 as usize].kind == FrameKind::Pseudo);
        health.achieved_ns = achieved(health, cpu);
        // The stacks say why they broke; the counts of the agent also cover walks whose samples
        // were lost.
        let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
        for (root, count) in broken {
            let root = &profile.frames[root.0 as usize];
            let reason = match root.kind {
                FrameKind::Pseudo => names::pseudo_reason(&profile.strings[root.name.0 as usize]),
                _ => "no reason given",
            };
            add_count(&mut reasons, reason, count);
        }
        for (reason, count) in std::mem::take(&mut self.broken) {
            let known = reasons.entry(reason).or_default();
            *known = count.max(*known);
        }
        health.broken = most_first(reasons);
        let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
        for (root, count) in cut {
            let root = &profile.frames[root.0 as usize];
            let name = &profile.strings[root.name.0 as usize];
            add_count(&mut reasons, names::pseudo_reason(name), count);
        }
        // A chain of which nothing could be told is one all the same, but each is a sample's: the
        // agent has also counted those of samples that were lost on their way.
        let mut room = health.samples.saturating_sub(health.chains);
        for (reason, count) in std::mem::take(&mut self.chains_cut) {
            let known = reasons.entry(reason).or_default();
            let more = count.saturating_sub(*known).min(room);
            *known += more;
            room -= more;
            health.chains += more;
        }
        reasons.retain(|_, count| *count > 0);
        health.chains_cut = most_first(reasons);
        health
            .unseen
            .sort_by_key(|unseen| std::cmp::Reverse(unseen.cpu_ns));
        health.lost = most_first(std::mem::take(&mut self.lost));
        health.sources.sort_by_key(|source| !source.by_time);
        health
            .cost
            .sort_by_key(|cost| (cost.part, std::cmp::Reverse(cost.cpu_ns)));
        health.limited.sort_by_key(|limited| limited.event as u8);
        health.pauses = pauses(&profile.pauses);
        if health.walker.is_empty() {
            // Nothing is sampled by time: the walkers are those of the events.
            for source in &health.sources {
                add_name(&mut health.walker, &source.walker);
            }
        }
        if self.lost_samples > 0 {
            let text = match self.lost_samples {
                1 => "1 sample has frames that lay in a damaged block".to_owned(),
                many => format!("{many} samples have frames that lay in a damaged block"),
            };
            note(&mut health.notes, text);
        }
        if self.newer_records > 0 {
            let text = format!(
                "{} records of a newer version of sidewalk were skipped",
                self.newer_records
            );
            note(&mut health.notes, text);
        }
        if self.damages as usize > MAX_DAMAGE_NOTES {
            let text = format!("recording damaged at {} places in all", self.damages);
            note(&mut health.notes, text);
        }
    }
}

/// Adds the cost of a process to that of the others.
fn add_cost(all: &mut Vec<Cost>, state: &ProcessImport) {
    // Older recordings tell nothing but the handlers' time.
    let handlers = Cost {
        part: CostPart::Handlers,
        name: String::new(),
        modelled: false,
        count: 0,
        cpu_ns: state.handler_ns,
    };
    let is_told = state.cost.keys().any(|(part, _)| *part == handlers.part);
    for more in state.cost.values().chain((!is_told).then_some(&handlers)) {
        let has_room = all.len() < MAX_COSTS;
        let is_it = |known: &&mut Cost| known.part == more.part && known.name == more.name;
        match all.iter_mut().find(is_it) {
            Some(known) => {
                known.modelled |= more.modelled;
                known.count = known.count.saturating_add(more.count);
                known.cpu_ns = known.cpu_ns.saturating_add(more.cpu_ns);
            }
            None if has_room => all.push(more.clone()),
            None => {}
        }
    }
}

fn pauses(all: &[Pause]) -> Pauses {
    let mut stopped: Vec<u64> = all.iter().map(|pause| pause.stopped_ns).collect();
    stopped.sort_unstable();
    let sum = |sum: u64, ns: u64| sum.saturating_add(ns);
    Pauses {
        count: all.len() as u64,
        total_ns: stopped.iter().copied().fold(0, sum),
        median_ns: stopped.get(stopped.len() / 2).copied().unwrap_or(0),
        longest_ns: stopped.last().copied().unwrap_or(0),
        stopping_ns: all.iter().map(|pause| pause.stopping_ns).fold(0, sum),
    }
}

/// The most sources of a profile; there are ten events, and a few ways to each.
const MAX_SOURCES: usize = 100;

/// The same source in another process is the same source.
pub(super) fn add_source(sources: &mut Vec<SampleSource>, source: SampleSource) {
    if sources.len() < MAX_SOURCES && !sources.contains(&source) {
        sources.push(source);
    }
}

pub(super) fn add_limited(all: &mut Vec<LimitedEvents>, more: LimitedEvents) {
    match all.iter_mut().find(|known| known.event == more.event) {
        Some(known) => {
            known.count = known.count.saturating_add(more.count);
            known.value = known.value.saturating_add(more.value);
        }
        None => all.push(more),
    }
}

/// Engines or walkers of one profile are named up to this length, bytes.
const MAX_NAMES: usize = 1000;

/// `a` and then `b` makes `a, b`; the same again changes nothing.
pub(super) fn add_name(names: &mut String, name: &str) {
    if names.is_empty() {
        name.clone_into(names);
    } else if names.len() < MAX_NAMES && !names.split(", ").any(|known| known == name) {
        names.push_str(", ");
        names.push_str(name);
    }
}

pub(super) fn add_count(counts: &mut BTreeMap<String, u64>, reason: &str, count: u64) {
    match counts.get_mut(reason) {
        Some(known) => *known = known.saturating_add(count),
        None => {
            counts.insert(reason.to_owned(), count);
        }
    }
}

pub(super) fn most_first(counts: BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let mut counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

pub(super) fn note(notes: &mut Vec<String>, text: String) {
    if notes.contains(&text) {
        return;
    }
    match notes.len() {
        0..MAX_NOTES => notes.push(text),
        MAX_NOTES => notes.push("more notes were left out".to_owned()),
        _ => {}
    }
}

/// The time that most CPU samples stand for, the median; 0 where there are too few to tell. Not of
/// time that passes, where one sample stands for a long sleep, nor of calls that are counted.
fn achieved(health: &Health, mut values: Vec<u64>) -> u64 {
    const ENOUGH: usize = 20;
    if health.event != Some(Event::Cpu) || health.walker == "shadow" || values.len() < ENOUGH {
        return 0;
    }
    let middle = values.len() / 2;
    *values.select_nth_unstable(middle).1
}
