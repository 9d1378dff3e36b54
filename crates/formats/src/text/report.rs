//! Rows of a report, for the table and for JSON.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use profile::Profile;
use profile::model::{Event, FrameId, FrameKind, Sample};
use profile::ops::{self, GroupBy, Weight as Sum};

use crate::labels::kind_name;
use crate::options::{OutputOptions, Sort};
use crate::select::{Selection, events, unit_name};
use crate::visible::visible;

/// One row.
#[derive(Default)]
pub(super) struct ReportRow {
    pub(super) name: String,
    /// File name of the module.
    pub(super) module: Option<String>,
    /// Whether the module is shown, because the name does not identify it.
    pub(super) show_module: bool,
    /// Source file, full path.
    pub(super) file: Option<String>,
    pub(super) line: u32,
    pub(super) kind: Option<&'static str>,
    pub(super) own: Sum,
    pub(super) total: Sum,
    /// The event of the row, if rows are events.
    pub(super) event: Option<Event>,
    /// Number of calls, if the recording counts calls.
    pub(super) calls: Option<u64>,
    /// Number and value of the samples dropped by limits, if rows are events.
    pub(super) limited: Option<(u64, u64)>,
    /// Texts of the row's samples other than its name, with their numbers, most first.
    pub(super) texts: Vec<(String, u64)>,
}

/// Rows with samples, in the selected order, most first.
pub(super) struct Report {
    pub(super) by: GroupBy,
    pub(super) selection: Selection,
    pub(super) rows: Vec<ReportRow>,
    pub(super) top: usize,
    samples: u64,
}

impl Report {
    pub(super) fn new(profile: &Profile, options: &OutputOptions) -> Self {
        let mut selection = Selection::new(profile, options, false);
        let slow = options.event.is_none() && options.by == Some(GroupBy::Detail);
        if slow && !ops::has_details(profile, selection.event) {
            // Samples by time have no subject. The option then selects the traced methods.
            let of = Event::TracedCall;
            let traced = events(profile).into_iter().find(|(event, _)| *event == of);
            if let Some((event, sum)) = traced {
                selection = Selection::of(event, sum, options, false);
            }
        }
        let by = options.by.unwrap_or_else(|| {
            // The subject of a lock wait is only the kind of lock: managed or not.
            if selection.event != Event::Contention && ops::has_details(profile, selection.event) {
                GroupBy::Detail
            } else {
                GroupBy::Method
            }
        });
        let mut report = Self {
            by,
            selection,
            rows: Vec::new(),
            top: options.top,
            samples: profile.samples.len() as u64,
        };
        let include = |sample: &Sample| by == GroupBy::Event || selection.includes(sample);
        let texts = (by == GroupBy::Detail).then(|| ops::texts(profile, include));
        let mut calls = RowCalls::of(profile, by, selection.event);
        let mut rows: Vec<ReportRow> = ops::totals(profile, by, include)
            .into_iter()
            .map(|row| {
                let detail = row.group.detail.map(|id| profile.detail(id));
                let texts = texts.as_ref().and_then(|texts| {
                    let detail = detail?;
                    texts.get(&(detail.event, detail.name))
                });
                let counted = texts.into_iter().flatten();
                let counted = counted
                    .map(|(text, sum)| (visible(profile.string(*text)).into_owned(), sum.samples));
                let calls = calls.take(&row);
                ReportRow {
                    calls,
                    texts: counted.collect(),
                    ..ReportRow::new(profile, by, row)
                }
            })
            .collect();
        rows.extend(calls.rest(profile, by));
        if by == GroupBy::Event {
            add_limits(profile, &mut rows);
        }
        // `totals` orders by value, and the weight may be samples. What has no time has calls.
        let weighed = |row: &ReportRow| (report.weigh(row.own), report.weigh(row.total));
        rows.sort_by(|a, b| {
            let nothing = weighed(a) == (0, 0) && weighed(b) == (0, 0);
            let by_calls = if nothing {
                b.calls.cmp(&a.calls)
            } else {
                Ordering::Equal
            };
            let by_total = match options.sort {
                Sort::Own => Ordering::Equal,
                Sort::Total => weighed(b).1.cmp(&weighed(a).1),
            };
            let by_own = || ops::order(weighed(a), weighed(b), &a.name, &b.name);
            by_total.then(by_calls).then_with(by_own)
        });
        report.rows = rows;
        report
    }

    /// A row has a total that is not its self.
    pub(super) fn self_and_total(&self) -> bool {
        groups_frames(self.by)
    }

    /// Rows say how often they were called.
    pub(super) fn has_calls(&self) -> bool {
        self.rows.iter().any(|row| row.calls.is_some())
    }

    /// Rows say what limits kept out.
    pub(super) fn has_limits(&self) -> bool {
        self.rows.iter().any(|row| row.limited.is_some())
    }

    pub(super) fn unit(&self, row: &ReportRow) -> &'static str {
        row.event
            .map_or(self.selection.unit(), |event| unit_name(event.unit()))
    }

    /// The number that a row is ranked by. Values of different events have no order: there it is
    /// samples.
    pub(super) fn weigh(&self, sum: Sum) -> u64 {
        if self.by == GroupBy::Event {
            sum.samples
        } else {
            self.selection.weigh(sum)
        }
    }

    /// The weight of all rows together.
    pub(super) fn whole(&self) -> u64 {
        if self.by == GroupBy::Event {
            self.samples
        } else {
            self.selection.total()
        }
    }

    /// The amount that is shown for a row, in its unit.
    pub(super) fn shown_amount(&self, sum: Sum) -> u64 {
        if self.by == GroupBy::Event {
            sum.value
        } else {
            self.selection.weigh(sum)
        }
    }
}

/// A row is something that stands in stacks.
fn groups_frames(by: GroupBy) -> bool {
    matches!(
        by,
        GroupBy::Method | GroupBy::Line | GroupBy::Module | GroupBy::Runtime
    )
}

/// Calls of each row's frames, beside another event.
struct RowCalls {
    /// Whether there are any to tell.
    is_shown: bool,
    /// By the row's first frame.
    of: BTreeMap<Option<FrameId>, ops::TotalsRow>,
}

impl RowCalls {
    fn of(profile: &Profile, by: GroupBy, event: Event) -> Self {
        let is_shown = groups_frames(by)
            && event != Event::Call
            && profile.samples.iter().any(|s| s.event == Event::Call);
        let mut of = BTreeMap::new();
        if is_shown {
            let rows = ops::totals(profile, by, |sample| sample.event == Event::Call);
            of.extend(rows.into_iter().map(|row| (row.group.frame, row)));
        }
        Self { is_shown, of }
    }

    /// The calls of a row, which are then told.
    fn take(&mut self, row: &ops::TotalsRow) -> Option<u64> {
        let calls = self.of.remove(&row.group.frame);
        self.is_shown.then(|| calls.map_or(0, |row| row.own.value))
    }

    /// Rows of what was called and has nothing of the event.
    fn rest(self, profile: &Profile, by: GroupBy) -> impl Iterator<Item = ReportRow> {
        self.of.into_values().map(move |row| ReportRow {
            calls: Some(row.own.value),
            own: Sum::default(),
            total: Sum::default(),
            ..ReportRow::new(profile, by, row)
        })
    }
}

/// Tells rows of events what was not kept of them; an event of which nothing was kept is a row too.
fn add_limits(profile: &Profile, rows: &mut Vec<ReportRow>) {
    let limited = profile.health.limited.iter().filter(|l| l.count > 0);
    for limited in limited {
        let kept_out = Some((limited.count, limited.value));
        match rows.iter_mut().find(|row| row.event == Some(limited.event)) {
            Some(row) => row.limited = kept_out,
            None => rows.push(ReportRow {
                name: limited.event.name().to_owned(),
                event: Some(limited.event),
                limited: kept_out,
                ..ReportRow::default()
            }),
        }
    }
}

impl ReportRow {
    fn new(profile: &Profile, by: GroupBy, row: ops::TotalsRow) -> Self {
        let frame = row
            .group
            .frame
            .filter(|_| by == GroupBy::Line)
            .map(|frame| profile.frame(frame));
        let file = frame
            .and_then(|frame| frame.file)
            .map(|file| profile.string(file));
        let code = matches!(by, GroupBy::Method | GroupBy::Line);
        let managed = Some(FrameKind::Managed);
        let module = row
            .group
            .module
            .map(|module| profile.module(module).file_name());
        let event = |name: &str| (0..).map_while(Event::from_code).find(|e| e.name() == name);
        Self {
            show_module: code && row.group.kind != managed,
            module: module.map(|name| visible(name).into_owned()),
            file: file.map(|path| visible(path).into_owned()),
            line: frame.map_or(0, |frame| frame.line),
            kind: row.group.kind.filter(|_| code).map(kind_name),
            own: row.own,
            total: row.total,
            event: if by == GroupBy::Event {
                event(&row.group.label)
            } else {
                None
            },
            name: visible(&row.group.label).into_owned(),
            ..Self::default()
        }
    }
}
