//! Options of outputs. Plain data; each format ignores options that it does not have.

use profile::model::Event;
use profile::ops::{GroupBy, StackView};

/// The measure of a stack's width.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WeightBy {
    /// As the format's readers expect: see [`OutputOptions::weight`].
    #[default]
    Auto,
    /// The number of samples.
    Samples,
    /// The sum of the samples' values, in the event's unit.
    Value,
}

/// The order of the rows of a table, most first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sort {
    /// By self weight: samples whose leaf is in the row.
    #[default]
    Own,
    /// By total weight: samples with the row anywhere in their stack.
    Total,
}

impl Sort {
    /// Both, in the order in which help texts name them.
    pub const ALL: [Sort; 2] = [Sort::Own, Sort::Total];

    /// Returns the choice's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Sort::Own => "self",
            Sort::Total => "total",
        }
    }

    /// Returns the order with this [`name`](Sort::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Sort> {
        Sort::ALL.into_iter().find(|sort| sort.name() == name)
    }
}

/// Options of all formats. [`Default`] has the defaults of `sidewalk`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputOptions {
    /// Title of the output; `None`: the command line of the first process.
    pub title: Option<String>,
    /// The event of outputs that contain only one. `None`: the event sampled by time, else the one
    /// with most samples. `html` and `pprof` contain all.
    pub event: Option<Event>,
    /// The measure of weight. [`WeightBy::Auto`] is samples for CPU time in the collapsed format
    /// (flame graph tools expect counts), else the value, or samples if all values are 0.
    pub weight: WeightBy,
    /// `collapsed`: append the marks of flame graph tools for the kind of a frame to its name.
    pub annotate: bool,
    /// `collapsed`: the thread is the first frame.
    pub threads: bool,
    /// `collapsed`: the process is the first frame (before the thread).
    pub processes: bool,
    /// `text`: rows of the table.
    pub top: usize,
    /// `text`: write a call tree after the table.
    pub tree: bool,
    /// `text`: the group of a row. `None`: the event's subject if it has one, else methods.
    pub by: Option<GroupBy>,
    /// `text`: the order of the rows.
    pub sort: Sort,
    /// `html`, `speedscope`, `firefox`, `collapsed`: what an event is about is the leaf of its
    /// stack, above the method that it happened in. The page can turn that off and on.
    pub details: bool,
    /// The stacks of samples in async methods. The page has both, and shows this one first.
    pub stacks: StackView,
    /// `pprof`: as stores of profiles take it. Each label becomes a series there, so there are none
    /// of threads and subjects (these are the leaves of stacks), and names have no `-`. No command
    /// line is written.
    pub for_store: bool,
    /// `text`: JSON instead of a table.
    pub json: bool,
    /// `html`: recordings are compared, of which the profile was made.
    pub sides: Option<Sides>,
    /// `html`: source text by file, as frames name it. The page gets what is around lines with
    /// samples.
    pub sources: std::collections::BTreeMap<String, String>,
}

/// Facts that a page that compares recordings needs beside the profile of all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sides {
    /// Number of the first recording of after.
    pub first_after: usize,
    /// The names of the sides.
    pub names: [String; 2],
    /// Methods that take more or less of their own for certain.
    pub own: Vec<String>,
    /// Those that do with what they call.
    pub total: Vec<String>,
}

impl Default for OutputOptions {
    fn default() -> Self {
        Self {
            title: None,
            event: None,
            weight: WeightBy::Auto,
            annotate: false,
            threads: false,
            processes: false,
            top: 20,
            tree: false,
            by: None,
            sort: Sort::Own,
            details: true,
            stacks: StackView::Logical,
            for_store: false,
            json: false,
            sides: None,
            sources: std::collections::BTreeMap::new(),
        }
    }
}
