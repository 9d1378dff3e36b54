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
    /// By what has the row for its leaf.
    #[default]
    Own,
    /// By what has the row anywhere in its stack.
    Total,
}

impl Sort {
    /// Both, in the order in which help texts name them.
    pub const ALL: [Sort; 2] = [Sort::Own, Sort::Total];

    /// Its word on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Sort::Own => "self",
            Sort::Total => "total",
        }
    }

    /// The order with that [`name`](Sort::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Sort> {
        Sort::ALL.into_iter().find(|sort| sort.name() == name)
    }
}

/// Choices for all formats; [`Default`] is what `sidewalk` does unasked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputOptions {
    /// Title of the output; `None`: the command line of the first process.
    pub title: Option<String>,
    /// The event of outputs that hold one; `None`: the one that was sampled by time, else the one
    /// with most samples. `html` and `pprof` hold all.
    pub event: Option<Event>,
    /// The measure that counts. [`WeightBy::Auto`] is samples for the collapsed format of CPU time
    /// (flame graph tools expect counts), else the value, and samples where all values are 0.
    pub weight: WeightBy,
    /// `collapsed`: mark the kind of a frame behind its name, as flame graph tools know them.
    pub annotate: bool,
    /// `collapsed`: the thread is the first frame.
    pub threads: bool,
    /// `collapsed`: the process is the first frame (before the thread).
    pub processes: bool,
    /// `text`: rows of the table.
    pub top: usize,
    /// `text`: a call tree behind the table.
    pub tree: bool,
    /// `text`: what a row is; `None`: what the event is about, where it is about something, else
    /// methods.
    pub by: Option<GroupBy>,
    /// `text`: the order of the rows.
    pub sort: Sort,
    /// `html`, `speedscope`, `firefox`, `collapsed`: what an event is about is the leaf of its
    /// stack, above the method that it happened in. The page can turn that off and on.
    pub details: bool,
    /// The stacks of samples in async methods. The page has both, and shows this one first.
    pub stacks: StackView,
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
            json: false,
            sides: None,
            sources: std::collections::BTreeMap::new(),
        }
    }
}
