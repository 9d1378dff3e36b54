//! Output of `sidewalk inspect`: a recording's contents without its stacks, as text and JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use profile::Profile;
use profile::model::{Cost, CostPart, Event, Health, LimitedEvents};
use profile::ops::{Counts, Weight, main_of, runtime_labels};
use serde::Serialize;

use crate::cost::CostJson;
use crate::health::{honest_line, source_text, sum, unseen_ns};
use crate::labels::{Labels, command_line};
use crate::select::unit_name;
use crate::visible::{visible, write_json};
use crate::wording::{amount, duration_ns, percent, plural, seconds};

/// The keys that `inspect --json` and the JSON report share.
#[derive(Serialize)]
pub(crate) struct HealthJson {
    samples: u64,
    lost: u64,
    broken: u64,
    truncated: u64,
    /// Absent if no sample is in a resumed async method.
    #[serde(rename = "async", skip_serializing_if = "Option::is_none")]
    chains: Option<ChainsJson>,
    unknown_frames: u64,
    frames: u64,
    /// Numbers of lost and broken samples by reason.
    reasons: BTreeMap<String, u64>,
    lost_reasons: BTreeMap<String, u64>,
    broken_reasons: BTreeMap<String, u64>,
    /// CPU time that samples should represent, in nanoseconds; null if they are not CPU samples by
    /// signals.
    due_ns: Option<u64>,
    /// CPU time that samples represent.
    seen_ns: u64,
    /// CPU time that no sample represents, if it exceeds the error of sampling.
    unseen_ns: u64,
    unseen_reasons: BTreeMap<String, u64>,
    /// Processes that ended without a final record.
    ended_abruptly: Vec<u32>,
    engine: String,
    walker: String,
    interval_ns: u64,
    /// The time that most CPU samples represent; 0 if there are too few samples.
    achieved_interval_ns: u64,
    max_depth: u32,
    duration_s: f64,
    agent_cpu_s: f64,
    target_cpu_s: f64,
    handler_s: f64,
    cost: CostJson,
    agent_memory_bytes: u64,
    limited: Vec<LimitedJson>,
    /// Events that were recorded for part of the time.
    partial: Vec<PartialJson>,
    sources: Vec<SourceJson>,
    pauses: PausesJson,
    notes: Vec<String>,
}

/// Samples in resumed async methods, and their awaiting methods.
#[derive(Serialize)]
struct ChainsJson {
    samples: u64,
    /// Samples whose chain (the awaiting methods behind a resumed one) is incomplete.
    cut: u64,
    cut_reasons: BTreeMap<String, u64>,
}

/// The samples that limits kept out of an event.
#[derive(Serialize)]
struct LimitedJson {
    event: &'static str,
    unit: &'static str,
    count: u64,
    value: u64,
}

/// For how long an event of a process was recorded.
#[derive(Serialize)]
struct PartialJson {
    process: u32,
    event: &'static str,
    on_s: f64,
    of_s: f64,
}

#[derive(Serialize)]
struct InspectJson {
    #[serde(flatten)]
    health: HealthJson,
    runtimes: Vec<RuntimeJson>,
    processes: Vec<ProcessJson>,
    events: Vec<EventJson>,
    threads: u64,
    modules: u64,
    stacks: u64,
}

#[derive(Serialize)]
struct RuntimeJson {
    version: String,
    outcome: &'static str,
    /// The call of the profiling API that refused it, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_by: Option<String>,
    /// Samples with a frame of it anywhere in the stack.
    samples: u64,
    pid: Option<u32>,
}

#[derive(Serialize)]
struct ProcessJson {
    pid: u32,
    parent: u32,
    command: Vec<String>,
    start_unix_ns: u64,
    duration_s: f64,
    ended: bool,
    samples: u64,
}

#[derive(Serialize)]
struct EventJson {
    event: &'static str,
    unit: &'static str,
    samples: u64,
    value: u64,
    /// Not kept because of a limit: how many and their values.
    limited: u64,
    limited_value: u64,
}

#[derive(Serialize)]
struct SourceJson {
    event: &'static str,
    source: String,
    walker: String,
    /// Of `unit`, that one sample stands for; 0 where each one is taken.
    interval: u64,
    unit: &'static str,
    by_time: bool,
}

#[derive(Serialize)]
struct PausesJson {
    count: u64,
    total_s: f64,
    median_s: f64,
    longest_s: f64,
    stopping_s: f64,
}

/// Events that have samples or were kept out by a limit, with both.
fn all_events(profile: &Profile, counts: &Counts) -> Vec<(Event, Weight, LimitedEvents)> {
    let limits = &profile.health.limited;
    let limit_of = |event| {
        let none = LimitedEvents {
            event,
            count: 0,
            value: 0,
        };
        let known = limits.iter().find(|limited| limited.event == event);
        known.copied().unwrap_or(none)
    };
    let mut all: Vec<_> = counts
        .events
        .iter()
        .map(|&(event, sum)| (event, sum, limit_of(event)))
        .collect();
    let main = main_of(&profile.health, &counts.events);
    all.sort_by_key(|(event, ..)| Some(*event) != main);
    for &limited in limits {
        if !all.iter().any(|(event, ..)| *event == limited.event) {
            all.push((limited.event, Weight::default(), limited));
        }
    }
    all
}

impl HealthJson {
    pub(crate) fn new(profile: &Profile) -> Self {
        let h = &profile.health;
        let map = |lists: &[&Vec<(String, u64)>]| {
            let mut map = BTreeMap::new();
            for (reason, count) in lists.iter().copied().flatten() {
                let sum: &mut u64 = map.entry(reason.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
            map
        };
        let sources = h.sources.iter();
        let sources = sources
            .map(|source| SourceJson {
                event: source.event.name(),
                source: source.source.clone(),
                walker: source.walker.clone(),
                interval: source.interval,
                unit: unit_name(source.event.unit()),
                by_time: source.by_time,
            })
            .collect();
        let pauses = &h.pauses;
        let pauses = PausesJson {
            count: pauses.count,
            total_s: seconds(pauses.total_ns),
            median_s: seconds(pauses.median_ns),
            longest_s: seconds(pauses.longest_ns),
            stopping_s: seconds(pauses.stopping_ns),
        };
        let limited = h.limited.iter();
        let limited = limited
            .map(|limited| LimitedJson {
                event: limited.event.name(),
                unit: unit_name(limited.event.unit()),
                count: limited.count,
                value: limited.value,
            })
            .collect();
        let partial = h.partial.iter();
        let partial = partial
            .map(|partial| PartialJson {
                process: profile.processes[partial.process.0 as usize].pid,
                event: partial.event.name(),
                on_s: seconds(partial.on_ns),
                of_s: seconds(partial.of_ns),
            })
            .collect();
        let unseen = h.unseen.iter();
        let unseen = unseen.map(|unseen| (unseen.reason.clone(), unseen.cpu_ns));
        let unseen = unseen.collect();
        Self {
            samples: h.samples,
            lost: sum(&h.lost),
            broken: sum(&h.broken),
            truncated: h.truncated,
            chains: (h.chains > 0).then(|| ChainsJson {
                samples: h.chains,
                cut: sum(&h.chains_cut),
                cut_reasons: map(&[&h.chains_cut]),
            }),
            unknown_frames: h.unknown_frames,
            frames: h.frames,
            reasons: map(&[&h.lost, &h.broken]),
            lost_reasons: map(&[&h.lost]),
            broken_reasons: map(&[&h.broken]),
            due_ns: h.due_ns,
            seen_ns: h.seen_ns,
            unseen_ns: unseen_ns(h),
            unseen_reasons: map(&[&unseen]),
            ended_abruptly: h.abrupt.clone(),
            engine: h.engine.clone(),
            walker: h.walker.clone(),
            interval_ns: h.interval_ns,
            achieved_interval_ns: h.achieved_ns,
            max_depth: h.max_depth,
            duration_s: seconds(duration_ns(profile)),
            agent_cpu_s: seconds(h.agent_cpu_ns),
            target_cpu_s: seconds(h.target_cpu_ns),
            handler_s: seconds(h.handler_ns),
            cost: CostJson::new(h),
            agent_memory_bytes: h.agent_memory,
            limited,
            partial,
            sources,
            pauses,
            notes: h.notes.clone(),
        }
    }
}

/// One JSON object (one line, without its end) with the keys that `sidewalk inspect --json`
/// promises, and some more.
pub fn inspect_json(profile: &Profile, counts: &Counts) -> String {
    let runtimes = profile
        .runtimes
        .iter()
        .zip(counts.by_runtime.iter().copied())
        .map(|(runtime, samples)| RuntimeJson {
            version: runtime.version.clone(),
            outcome: if runtime.recorded {
                "recorded"
            } else {
                "refused"
            },
            refused_by: Some(runtime.refused_by.clone()).filter(|by| !by.is_empty()),
            samples,
            pid: profile
                .processes
                .get(runtime.process.0 as usize)
                .map(|p| p.pid),
        })
        .collect();
    let processes = profile
        .processes
        .iter()
        .zip(counts.by_process.iter().copied())
        .map(|(process, samples)| ProcessJson {
            pid: process.pid,
            parent: process.parent,
            command: process.command.clone(),
            start_unix_ns: process.start_unix_ns,
            duration_s: seconds(process.end_ns.saturating_sub(process.start_ns)),
            ended: process.ended,
            samples,
        })
        .collect();
    let events = all_events(profile, counts)
        .into_iter()
        .map(|(event, sum, limited)| EventJson {
            event: event.name(),
            unit: unit_name(event.unit()),
            samples: sum.samples,
            value: sum.value,
            limited: limited.count,
            limited_value: limited.value,
        })
        .collect();
    let json = InspectJson {
        health: HealthJson::new(profile),
        runtimes,
        processes,
        events,
        threads: profile.threads.len() as u64,
        modules: profile.modules.len() as u64,
        stacks: counts.stacks,
    };
    let mut text = Vec::new();
    // Strings, numbers and maps with string keys: there is nothing that could fail.
    let _ = write_json(&mut text, &json);
    String::from_utf8(text).unwrap_or_default()
}

/// The same for people; its last line is the honest line. Ends in a line end.
pub fn inspect_text(profile: &Profile, counts: &Counts) -> String {
    let h = &profile.health;
    let labels = Labels::new(profile);
    let mut text = String::new();
    let mut line = |what: &str, says: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{what:<10}  {says}");
    };
    for (process, samples) in profile
        .processes
        .iter()
        .zip(counts.by_process.iter().copied())
    {
        line(
            "process",
            format!(
                "{} {}, child of {}, {:.3} s, {}, {}",
                process.pid,
                command_line(&process.command),
                process.parent,
                seconds(process.end_ns.saturating_sub(process.start_ns)),
                plural(samples, "sample"),
                if process.ended {
                    "ended"
                } else {
                    "its end is not in the recording"
                },
            ),
        );
    }
    let by_runtime = counts.by_runtime.iter().copied();
    let names = runtime_labels(profile);
    for ((runtime, samples), name) in profile.runtimes.iter().zip(by_runtime).zip(names) {
        let label = visible(&name);
        let process = labels.process(runtime.process);
        line(
            "runtime",
            format!(
                ".NET {label} in {process}: {}",
                if runtime.recorded {
                    format!("recorded, {}", plural(samples, "sample"))
                } else if runtime.refused_by.is_empty() {
                    "refused".to_owned()
                } else {
                    format!("refused in {}", visible(&runtime.refused_by))
                }
            ),
        );
    }
    for (event, sum, limited) in all_events(profile, counts) {
        let unit = unit_name(event.unit());
        let mut says = format!(
            "{}: {}, {}",
            event.name(),
            plural(sum.samples, "sample"),
            amount(sum.value, unit),
        );
        if limited.count > 0 {
            let (count, value) = (limited.count, amount(limited.value, unit));
            says.push_str(&format!("; {count} not kept, {value}"));
        }
        line("event", says);
    }
    for source in &h.sources {
        line(
            "source",
            format!(
                "{}, walker {}",
                source_text(source),
                visible(&source.walker)
            ),
        );
    }
    if h.pauses.count > 0 {
        let time = |ns| amount(ns, "nanoseconds");
        line(
            "pauses",
            format!(
                "{}, median {}, longest {}, together {}, and {} until it had stopped",
                h.pauses.count,
                time(h.pauses.median_ns),
                time(h.pauses.longest_ns),
                time(h.pauses.total_ns),
                time(h.pauses.stopping_ns),
            ),
        );
    }
    if h.chains > 0 {
        let cut = h.chains_cut.iter();
        let cut = cut.map(|(reason, count)| format!("{} {count}", visible(reason)));
        let whole = h.chains.saturating_sub(sum(&h.chains_cut));
        let of = "whose whole chain is known";
        let mut says = format!("{}, {whole} of them {of}", plural(h.chains, "sample"));
        let cut: Vec<String> = cut.collect();
        if !cut.is_empty() {
            says.push_str(&format!("; not whole: {}", cut.join(", ")));
        }
        line("async", says);
    }
    let interval = amount(h.interval_ns, "nanoseconds");
    line(
        "interval",
        if h.is_slower_than_asked() {
            format!(
                "{interval} asked for, {} got",
                amount(h.achieved_ns, "nanoseconds")
            )
        } else {
            interval
        },
    );
    line(
        "duration",
        format!("{:.3} s", seconds(duration_ns(profile))),
    );
    line(
        "holds",
        format!(
            "{}, {}, {}",
            plural(profile.threads.len() as u64, "thread"),
            plural(profile.modules.len() as u64, "module"),
            plural(counts.stacks, "stack node"),
        ),
    );
    line(
        "frames",
        format!(
            "{}, of which {} unknown ({}){}",
            h.frames,
            h.unknown_frames,
            percent(h.unknown_frames, h.frames),
            // Recordings of events alone do not say.
            match h.max_depth {
                0 => String::new(),
                depth => format!("; cut at {depth}"),
            },
        ),
    );
    line(
        "agent",
        format!(
            "at most {} reserved, {} in signal handlers",
            amount(h.agent_memory, "bytes"),
            amount(h.handler_ns, "nanoseconds"),
        ),
    );
    let callbacks = callbacks(h);
    if !callbacks.is_empty() {
        line("callbacks", callbacks);
    }
    for note in &h.notes {
        line("note", visible(note).into_owned());
    }
    text.push_str(&honest_line(h));
    text.push('\n');
    text
}

/// `compilation 300 in 0.90 ms, loads 20 in 1.10 ms`.
fn callbacks(health: &Health) -> String {
    let of_part = |cost: &&Cost| cost.part == CostPart::Callbacks;
    let each = health.cost.iter().filter(of_part).map(|cost| {
        let cpu = amount(cost.cpu_ns, "nanoseconds");
        format!("{} {} in {cpu}", visible(&cost.name), cost.count)
    });
    each.collect::<Vec<_>>().join(", ")
}
