//! The flat tables: how much of a profile each method, module, thread… has.
//!
//! The invariants: self sums of all rows are the sum of all samples; a row's total counts a sample
//! once, however often the row is in its stack.

use std::cmp::Reverse;

use super::Weight;
use super::group::{By, Group};
use super::tree::{Direction, Tree};
use crate::model::{Event, Profile, Sample};

/// One row of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// What it is.
    pub group: Group,
    /// Samples whose leaf is of the group.
    pub own: Weight,
    /// Samples that have the group anywhere in their stack.
    pub total: Weight,
}

/// The table of the samples that `include` takes, the greatest self sum first, then the greatest
/// total, then by label.
#[must_use]
pub fn totals(profile: &Profile, by: By, include: impl Fn(&Sample) -> bool) -> Vec<Row> {
    let mut rows = match by {
        By::Thread => of_samples(profile, include, thread_labels(profile), |sample| {
            sample.thread.0 as usize
        }),
        By::Process => of_samples(profile, include, process_labels(profile), |sample| {
            profile.thread(sample.thread).process.0 as usize
        }),
        By::Event => {
            let codes = 0u8..;
            let labels = codes
                .map_while(Event::from_code)
                .map(|event| event.name().to_owned());
            of_samples(profile, include, labels.collect(), |sample| {
                sample.event as usize
            })
        }
        By::Method | By::Line | By::Module | By::Runtime => of_frames(profile, by, include),
    };
    rows.sort_by(|a, b| {
        let key = |row: &Row| Reverse((row.own, row.total));
        key(a)
            .cmp(&key(b))
            .then_with(|| a.group.label.cmp(&b.group.label))
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
    weights.retain(|(_, weight)| weight.samples > 0);
    weights.sort_by_key(|(_, weight)| Reverse(weight.samples));
    weights
}

/// The event that a report is about when nobody says which: the one that was sampled by time if it
/// has samples, else the one with most. `None`: there are no samples.
#[must_use]
pub fn main_event(profile: &Profile) -> Option<Event> {
    let events = events(profile);
    let by_time = events
        .iter()
        .find(|(event, _)| Some(*event) == profile.health.event);
    by_time.or(events.first()).map(|(event, _)| *event)
}

fn of_samples(
    profile: &Profile,
    include: impl Fn(&Sample) -> bool,
    labels: Vec<String>,
    key: impl Fn(&Sample) -> usize,
) -> Vec<Row> {
    let mut weights = vec![Weight::default(); labels.len()];
    for sample in profile.samples.iter().filter(|sample| include(sample)) {
        weights[key(sample)] += Weight::of(sample.value);
    }
    let rows = labels
        .into_iter()
        .zip(weights)
        .filter(|(_, weight)| weight.samples > 0);
    let rows = rows.map(|(label, weight)| Row {
        group: Group {
            label,
            kind: None,
            frame: None,
            module: None,
        },
        own: weight,
        total: weight,
    });
    rows.collect()
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

fn of_frames(profile: &Profile, by: By, include: impl Fn(&Sample) -> bool) -> Vec<Row> {
    let tree = Tree::new(profile, by, Direction::Callees, include);
    let mut own = vec![Weight::default(); tree.groups.len()];
    let mut total = own.clone();
    // How often each group is on the path from the root to where we are.
    let mut on_path = vec![0u32; tree.groups.len()];
    enum Step {
        Enter(u32),
        Leave(u32),
    }
    let mut steps: Vec<Step> = vec![Step::Enter(0)];
    while let Some(step) = steps.pop() {
        match step {
            Step::Enter(index) => {
                let node = &tree.nodes[index as usize];
                if let Some(group) = node.group.map(|group| group as usize) {
                    own[group] += node.own;
                    if on_path[group] == 0 {
                        total[group] += node.total;
                    }
                    on_path[group] += 1;
                    steps.push(Step::Leave(group as u32));
                }
                steps.extend(node.children.iter().map(|&child| Step::Enter(child)));
            }
            Step::Leave(group) => on_path[group as usize] -= 1,
        }
    }
    let rows = tree.groups.into_iter().zip(own.into_iter().zip(total));
    let rows = rows.filter(|(_, (_, total))| total.samples > 0);
    rows.map(|(group, (own, total))| Row { group, own, total })
        .collect()
}
