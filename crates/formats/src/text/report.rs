//! The rows of a report, for the table and for JSON alike.

use profile::Profile;
use profile::model::{Event, FrameKind, Sample};
use profile::ops::{self, By, Weight as Sum};

use crate::labels::kind_name;
use crate::options::Options;
use crate::select::{Selection, unit_name};
use crate::visible::visible;

/// One row.
pub(super) struct Row {
    pub(super) name: String,
    /// File name of the module.
    pub(super) module: Option<String>,
    /// The name alone does not say where it is from.
    pub(super) show_module: bool,
    /// Source file, full path.
    pub(super) file: Option<String>,
    pub(super) line: u32,
    pub(super) kind: Option<&'static str>,
    pub(super) own: Sum,
    pub(super) total: Sum,
    /// The event of the row, where each row is one.
    pub(super) event: Option<Event>,
}

/// Rows by self, most first, none without a sample.
pub(super) struct Report {
    pub(super) by: By,
    pub(super) selection: Selection,
    pub(super) rows: Vec<Row>,
    pub(super) top: usize,
    samples: u64,
}

impl Report {
    pub(super) fn new(profile: &Profile, options: &Options) -> Self {
        let by = options.by;
        let selection = Selection::new(profile, options, false);
        let mut report = Self {
            by,
            selection,
            rows: Vec::new(),
            top: options.top,
            samples: profile.samples.len() as u64,
        };
        let include = |sample: &Sample| by == By::Event || selection.includes(sample);
        let mut rows: Vec<Row> = ops::totals(profile, by, include)
            .into_iter()
            .map(|row| Row::new(profile, by, row))
            .collect();
        // `totals` orders by value, and the weight may be samples.
        let weighed = |row: &Row| (report.weigh(row.own), report.weigh(row.total));
        rows.sort_by(|a, b| ops::order(weighed(a), weighed(b), &a.name, &b.name));
        report.rows = rows;
        report
    }

    /// A row has a total that is not its self.
    pub(super) fn self_and_total(&self) -> bool {
        matches!(self.by, By::Method | By::Line | By::Module | By::Runtime)
    }

    pub(super) fn unit(&self, row: &Row) -> &'static str {
        row.event
            .map_or(self.selection.unit(), |event| unit_name(event.unit()))
    }

    /// What a row is ranked by. Values of different events have no order: there it is samples.
    pub(super) fn weigh(&self, sum: Sum) -> u64 {
        if self.by == By::Event {
            sum.samples
        } else {
            self.selection.weigh(sum)
        }
    }

    /// What all rows together weigh.
    pub(super) fn whole(&self) -> u64 {
        if self.by == By::Event {
            self.samples
        } else {
            self.selection.total()
        }
    }

    /// What is shown as a row's amount, in its unit.
    pub(super) fn shown(&self, sum: Sum) -> u64 {
        if self.by == By::Event {
            sum.value
        } else {
            self.selection.weigh(sum)
        }
    }
}

impl Row {
    fn new(profile: &Profile, by: By, row: ops::Row) -> Self {
        let frame = row
            .group
            .frame
            .filter(|_| by == By::Line)
            .map(|frame| profile.frame(frame));
        let file = frame
            .and_then(|frame| frame.file)
            .map(|file| profile.string(file));
        let code = matches!(by, By::Method | By::Line);
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
            event: if by == By::Event {
                event(&row.group.label)
            } else {
                None
            },
            name: visible(&row.group.label).into_owned(),
        }
    }
}
