//! Flat tables: self and total of each method, module, thread…
//!
//! Invariants: the self sums of all rows are the sum of all samples; a row's total counts a sample
//! once, however often the row occurs in its stack.

use std::cmp::Ordering;

use hashbrown::HashMap;

use super::Weight;
use super::counts::most_first;
use super::group::{Group, GroupBy, Groups};
use crate::model::{Event, Health, Profile, Sample, StringId};

/// One row of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TotalsRow {
    /// The group of the row.
    pub group: Group,
    /// Self weight: samples whose leaf is in the group.
    pub own: Weight,
    /// Total weight: samples with the group anywhere in their stack.
    pub total: Weight,
}

/// Compares rows of a table: largest self sum first, equal sums by label, as in `go tool pprof
/// -top`. Rows without self sum come largest total first.
pub fn order<W: Ord + Default>(a: (W, W), b: (W, W), a_label: &str, b_label: &str) -> Ordering {
    let ((a_own, a_total), (b_own, b_total)) = (a, b);
    let nothing = W::default();
    let by_total = if a_own == nothing && b_own == nothing {
        b_total.cmp(&a_total)
    } else {
        Ordering::Equal
    };
    b_own
        .cmp(&a_own)
        .then(by_total)
        .then_with(|| a_label.cmp(b_label))
        .then(b_total.cmp(&a_total))
}

/// Returns the table of the samples selected by `include`, sorted by [`order`].
#[must_use]
pub fn totals(profile: &Profile, by: GroupBy, include: impl Fn(&Sample) -> bool) -> Vec<TotalsRow> {
    let mut rows = match by {
        GroupBy::Thread => of_samples(profile, include, thread_labels(profile), |sample| {
            sample.thread.0 as usize
        }),
        GroupBy::Process => of_samples(profile, include, process_labels(profile), |sample| {
            profile.thread(sample.thread).process.0 as usize
        }),
        GroupBy::Recording => {
            let mut labels = profile.recordings.clone();
            if labels.is_empty() {
                labels.push("all".to_owned());
            }
            of_samples(profile, include, labels, |sample| {
                let process = profile.thread(sample.thread).process;
                profile.process(process).recording
            })
        }
        GroupBy::Event => {
            let codes = 0u8..;
            let labels = codes
                .map_while(Event::from_code)
                .map(|event| event.name().to_owned());
            of_samples(profile, include, labels.collect(), |sample| {
                sample.event as usize
            })
        }
        GroupBy::Detail => of_details(profile, include),
        GroupBy::Method | GroupBy::Line | GroupBy::Module | GroupBy::Runtime => {
            of_frames(profile, by, include)
        }
    };
    rows.sort_by(|a, b| {
        order(
            (a.own, a.total),
            (b.own, b.total),
            &a.group.label,
            &b.group.label,
        )
    });
    rows
}

/// The events that were sampled, with their weights, most samples first.
#[must_use]
pub fn events(profile: &Profile) -> Vec<(Event, Weight)> {
    let mut weights: Vec<(Event, Weight)> = (0u8..)
        .map_while(Event::from_code)
        .map(|event| (event, Weight::default()))
        .collect();
    for sample in &profile.samples {
        weights[sample.event as usize].1 += Weight::of(sample.value);
    }
    most_first(&mut weights);
    weights
}

/// The event that a report is about unless one is given: one that was sampled by time and has
/// samples (the first that the recording names), else the one with most. `None`: there are no
/// samples.
#[must_use]
pub fn main_event(profile: &Profile) -> Option<Event> {
    main_of(&profile.health, &events(profile))
}

/// [`main_event`] of events as [`events`] has them.
#[must_use]
pub fn main_of(health: &Health, events: &[(Event, Weight)]) -> Option<Event> {
    let sources = &health.sources;
    let timed = sources.iter().filter(|source| source.by_time);
    let timed = health
        .event
        .into_iter()
        .chain(timed.map(|source| source.event));
    let by_time = timed
        .filter_map(|timed| events.iter().find(|(event, _)| *event == timed))
        .next();
    by_time.or(events.first()).map(|(event, _)| *event)
}

fn of_samples(
    profile: &Profile,
    include: impl Fn(&Sample) -> bool,
    labels: Vec<String>,
    key: impl Fn(&Sample) -> usize,
) -> Vec<TotalsRow> {
    let mut weights = vec![Weight::default(); labels.len()];
    for sample in profile.samples.iter().filter(|sample| include(sample)) {
        weights[key(sample)] += Weight::of(sample.value);
    }
    let rows = labels
        .into_iter()
        .zip(weights)
        .filter(|(_, weight)| weight.samples > 0);
    let rows = rows.map(|(label, weight)| TotalsRow {
        group: Group {
            label,
            kind: None,
            frame: None,
            module: None,
            detail: None,
        },
        own: weight,
        total: weight,
    });
    rows.collect()
}

/// One row for each event and name; what is about nothing is one row of each event.
fn of_details(profile: &Profile, include: impl Fn(&Sample) -> bool) -> Vec<TotalsRow> {
    let mut known: HashMap<(Event, Option<StringId>), usize> = HashMap::new();
    let mut rows: Vec<TotalsRow> = Vec::new();
    for sample in profile.samples.iter().filter(|sample| include(sample)) {
        let name = sample.detail.map(|detail| profile.detail(detail).name);
        let at = *known.entry((sample.event, name)).or_insert_with(|| {
            let label = name.map_or("[no detail]", |name| profile.string(name));
            rows.push(TotalsRow {
                group: Group {
                    label: label.to_owned(),
                    kind: None,
                    frame: None,
                    module: None,
                    detail: sample.detail,
                },
                own: Weight::default(),
                total: Weight::default(),
            });
            rows.len() - 1
        });
        let weight = Weight::of(sample.value);
        rows[at].own += weight;
        rows[at].total += weight;
    }
    rows
}

fn thread_labels(profile: &Profile) -> Vec<String> {
    let several = profile.processes.len() > 1;
    let each = profile.threads.iter().map(|thread| {
        let unnamed = thread.name == format!("thread {}", thread.tid);
        let mut label = thread.name.clone();
        if !unnamed {
            label.push_str(&format!(" ({})", thread.tid));
        }
        if several {
            label.push_str(&format!(" of {}", profile.process(thread.process).pid));
        }
        label
    });
    each.collect()
}

fn process_labels(profile: &Profile) -> Vec<String> {
    let each = profile.processes.iter();
    each.map(|process| format!("{} ({})", process.name(), process.pid))
        .collect()
}

/// Linear in stacks and without a tree: a profile may have millions of stacks.
fn of_frames(profile: &Profile, by: GroupBy, include: impl Fn(&Sample) -> bool) -> Vec<TotalsRow> {
    let Groups { groups, of_frame } = Groups::new(profile, by);
    let group_of = |stack: usize| of_frame[profile.stacks[stack].frame.0 as usize] as usize;
    let parent_of = |stack: usize| profile.stacks[stack].parent.map(|parent| parent.0 as usize);

    let mut own = vec![Weight::default(); groups.len()];
    let mut below = vec![Weight::default(); profile.stacks.len()];
    for sample in profile.samples.iter().filter(|sample| include(sample)) {
        let stack = sample.stack.0 as usize;
        let weight = Weight::of(sample.value);
        own[group_of(stack)] += weight;
        below[stack] += weight;
    }
    // Callers have smaller ids: backwards, a stack is complete when its turn comes.
    for stack in (0..below.len()).rev() {
        if let Some(parent) = parent_of(stack) {
            let weight = below[stack];
            below[parent] += weight;
        }
    }

    // The callees of each stack that have samples, as a list through their siblings.
    const NONE: u32 = u32::MAX;
    let mut first = vec![NONE; profile.stacks.len()];
    let mut next = vec![NONE; profile.stacks.len()];
    let mut first_root = NONE;
    for stack in (0..below.len())
        .rev()
        .filter(|&stack| below[stack].samples > 0)
    {
        let first = parent_of(stack).map_or(&mut first_root, |parent| &mut first[parent]);
        next[stack] = *first;
        *first = stack as u32;
    }
    let mut total = vec![Weight::default(); groups.len()];
    // Number of occurrences of each group on the path from the root to the current node.
    let mut on_path = vec![0u32; groups.len()];
    let mut path: Vec<u32> = Vec::new();
    let mut at = first_root;
    loop {
        if at == NONE {
            let Some(done) = path.pop() else { break };
            on_path[group_of(done as usize)] -= 1;
            at = next[done as usize];
            continue;
        }
        let group = group_of(at as usize);
        if on_path[group] == 0 {
            total[group] += below[at as usize];
        }
        on_path[group] += 1;
        path.push(at);
        at = first[at as usize];
    }

    let rows = groups.into_iter().zip(own.into_iter().zip(total));
    let rows = rows.filter(|(_, (_, total))| total.samples > 0);
    rows.map(|(group, (own, total))| TotalsRow { group, own, total })
        .collect()
}
