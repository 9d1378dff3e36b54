//! The rows of a report, for the table and for JSON alike.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use profile::Profile;
use profile::model::{FrameKind, Sample};

use crate::forest::{Count, SelfTotal, own, tally};
use crate::labels::{Keys, Labels, kind_name};
use crate::options::{By, Options};
use crate::select::{Selection, event_name, event_unit, events};

/// One row.
pub(super) struct Row {
    pub(super) name: String,
    /// File name of the module.
    pub(super) module: Option<String>,
    /// The name alone does not say where it is from.
    pub(super) show_module: bool,
    /// Source file and line.
    pub(super) file: Option<String>,
    pub(super) line: u32,
    pub(super) kind: Option<&'static str>,
    pub(super) count: SelfTotal,
    /// Where rows have units of their own.
    pub(super) unit: Option<&'static str>,
}

impl Row {
    /// Self, and what it is a part of.
    pub(super) fn share_own(&self, report: &Report) -> (u64, u64) {
        report.share(self.count.own)
    }

    /// Total, and what it is a part of.
    pub(super) fn share_total(&self, report: &Report) -> (u64, u64) {
        report.share(self.count.total)
    }

    fn named(name: String, count: Count) -> Self {
        Self {
            name,
            module: None,
            show_module: false,
            file: None,
            line: 0,
            kind: None,
            count: SelfTotal {
                own: count,
                total: count,
            },
            unit: None,
        }
    }
}

/// Rows by self, most first, none without a sample.
pub(super) struct Report {
    pub(super) by: By,
    pub(super) selection: Selection,
    pub(super) rows: Vec<Row>,
    pub(super) top: usize,
    /// All samples that the rows are a part of.
    whole: Count,
}

impl Report {
    pub(super) fn new(profile: &Profile, options: &Options) -> Self {
        let selection = Selection::new(profile, options, false);
        let labels = Labels::new(profile);
        let mut whole = Count {
            samples: selection.samples,
            weight: selection.total(),
        };
        let mut rows = match options.by {
            By::Method => methods(profile, &labels, &selection, &labels.methods(), false),
            By::Line => methods(profile, &labels, &selection, &labels.lines(), true),
            By::Module => modules(profile, &labels, &selection),
            By::Runtime => runtimes(profile, &labels, &selection),
            By::Thread => grouped(profile, &selection, |s| s.thread, |t| labels.thread(t)),
            By::Process => grouped(
                profile,
                &selection,
                |s| profile.threads[s.thread.0 as usize].process,
                |p| labels.process(p),
            ),
            By::Event => {
                whole = Count {
                    samples: profile.samples.len() as u64,
                    weight: 0,
                };
                events(profile)
                    .into_iter()
                    .map(|t| {
                        let count = Count {
                            samples: t.samples,
                            weight: t.value,
                        };
                        let row = Row::named(event_name(t.event).to_owned(), count);
                        Row {
                            unit: Some(event_unit(t.event)),
                            ..row
                        }
                    })
                    .collect()
            }
        };
        rows.retain(|row| row.count.total.samples > 0);
        let by_samples = options.by == By::Event;
        let rank = |count: Count| {
            if by_samples {
                count.samples
            } else {
                count.weight
            }
        };
        rows.sort_by(|a, b| {
            (
                Reverse(rank(a.count.own)),
                Reverse(rank(a.count.total)),
                &a.name,
                &a.module,
            )
                .cmp(&(
                    Reverse(rank(b.count.own)),
                    Reverse(rank(b.count.total)),
                    &b.name,
                    &b.module,
                ))
        });
        Self {
            by: options.by,
            selection,
            rows,
            top: options.top,
            whole,
        }
    }

    /// A row has a total that is not its self.
    pub(super) fn self_and_total(&self) -> bool {
        matches!(self.by, By::Method | By::Line | By::Module | By::Runtime)
    }

    pub(super) fn unit(&self) -> &'static str {
        self.selection.unit()
    }

    fn share(&self, count: Count) -> (u64, u64) {
        if self.by == By::Event {
            (count.samples, self.whole.samples)
        } else {
            (count.weight, self.whole.weight)
        }
    }
}

fn methods(
    profile: &Profile,
    labels: &Labels<'_>,
    selection: &Selection,
    keys: &Keys,
    lines: bool,
) -> Vec<Row> {
    let of_frame: Vec<Option<u32>> = keys.of_frame.iter().map(|&k| Some(k)).collect();
    let (counts, _) = tally(
        profile,
        &own(profile, selection),
        &of_frame,
        keys.first.len(),
    );
    keys.first
        .iter()
        .zip(counts)
        .map(|(&frame, count)| {
            let frame = labels.frame(frame);
            Row {
                name: if lines {
                    labels.name_and_line(frame)
                } else {
                    labels.name(frame)
                },
                module: labels.module(frame),
                show_module: !matches!(frame.kind, FrameKind::Managed | FrameKind::Pseudo),
                file: if lines { labels.file(frame) } else { None },
                line: if lines { frame.line } else { 0 },
                kind: Some(kind_name(frame.kind)),
                count,
                unit: None,
            }
        })
        .collect()
}

fn modules(profile: &Profile, labels: &Labels<'_>, selection: &Selection) -> Vec<Row> {
    let keys = Keys::new(profile, |f| match labels.module_path(f) {
        Some(path) => Ok(path),
        None => Err(f.kind),
    });
    let of_frame: Vec<Option<u32>> = keys.of_frame.iter().map(|&k| Some(k)).collect();
    let (counts, _) = tally(
        profile,
        &own(profile, selection),
        &of_frame,
        keys.first.len(),
    );
    keys.first
        .iter()
        .zip(counts)
        .map(|(&frame, count)| {
            let frame = labels.frame(frame);
            let module = labels.module(frame);
            let name = module
                .clone()
                .unwrap_or_else(|| format!("[no module: {}]", kind_name(frame.kind)));
            Row {
                module,
                count,
                ..Row::named(name, Count::default())
            }
        })
        .collect()
}

/// A sample belongs to the CLR of the frame nearest to its leaf that has one.
fn runtimes(profile: &Profile, labels: &Labels<'_>, selection: &Selection) -> Vec<Row> {
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    let of_frame: Vec<Option<u32>> = profile
        .frames
        .iter()
        .map(|f| {
            let label = labels.runtime_of(f)?;
            let next = numbers.len() as u32;
            Some(*numbers.entry(label).or_insert(next))
        })
        .collect();
    let (counts, nobody) = tally(profile, &own(profile, selection), &of_frame, numbers.len());
    let mut rows: Vec<Row> = numbers
        .into_iter()
        .map(|(label, at)| Row {
            count: counts[at as usize],
            ..Row::named(format!("CLR {label}"), Count::default())
        })
        .collect();
    rows.push(Row::named("[no managed frame]".to_owned(), nobody));
    rows
}

fn grouped<K: Ord + Copy>(
    profile: &Profile,
    selection: &Selection,
    key: impl Fn(&Sample) -> K,
    name: impl Fn(K) -> String,
) -> Vec<Row> {
    let mut sums: BTreeMap<K, Count> = BTreeMap::new();
    for sample in selection.samples(profile) {
        *sums.entry(key(sample)).or_default() += Count {
            samples: 1,
            weight: selection.weigh(sample),
        };
    }
    sums.into_iter()
        .map(|(key, count)| Row::named(name(key), count))
        .collect()
}
