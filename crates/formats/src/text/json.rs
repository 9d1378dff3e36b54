//! The report as JSON. Flat on purpose: a tree as nested objects would be as deep as the stacks.

use std::io::{self, Write};

use profile::Profile;
use profile::ops::GroupBy;
use serde::Serialize;

use super::report::Report;
use super::tree::tree;
use super::{live, traced};
use crate::inspect::HealthJson;
use crate::labels::{Labels, kind_name};
use crate::options::OutputOptions;
use crate::visible::{visible, write_json};

#[derive(Serialize)]
struct ReportJson<'a> {
    title: String,
    by: &'static str,
    /// Absent if rows are events.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'static str>,
    /// Unit of `self` and `total`.
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'static str>,
    samples: u64,
    rows: Vec<RowJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<Vec<NodeJson>>,
    /// All traced methods, most time first. Absent if none was to be traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    traced: Option<Vec<traced::TracedJson>>,
    /// The live heap by type. Absent if it was not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<live::LiveJson>,
    health: HealthJson,
}

#[derive(Serialize)]
struct RowJson<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'static str>,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    self_samples: u64,
    total_samples: u64,
    self_percent: f64,
    total_percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limited: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limited_value: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    texts: Vec<TextJson<'a>>,
}

/// The most texts of one row; a program can make as many exceptions' messages as it likes.
const MAX_TEXTS: usize = 100;

#[derive(Serialize)]
struct TextJson<'a> {
    text: &'a str,
    samples: u64,
}

#[derive(Serialize)]
struct NodeJson {
    /// `all` for the first one, which stands for all samples.
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    /// Index of the caller in this array.
    parent: Option<u32>,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    self_samples: u64,
    total_samples: u64,
}

pub(super) fn write(
    profile: &Profile,
    options: &OutputOptions,
    report: &Report,
    out: &mut impl Write,
) -> io::Result<()> {
    let one_event = report.by != GroupBy::Event;
    let selection = report.selection;
    let whole = report.whole();
    let rows = report
        .rows
        .iter()
        .take(report.top)
        .map(|row| RowJson {
            name: &row.name,
            kind: row.kind,
            module: row.module.as_deref(),
            file: row.file.as_deref(),
            line: Some(row.line).filter(|&line| line > 0),
            unit: row.event.map(|_| report.unit(row)),
            own: report.shown_amount(row.own),
            total: report.shown_amount(row.total),
            self_samples: row.own.samples,
            total_samples: row.total.samples,
            self_percent: share(report.weigh(row.own), whole),
            total_percent: share(report.weigh(row.total), whole),
            calls: row.calls,
            limited: row.limited.map(|(count, _)| count),
            limited_value: row.limited.map(|(_, value)| value),
            texts: row
                .texts
                .iter()
                .take(MAX_TEXTS)
                .map(|(text, samples)| TextJson {
                    text,
                    samples: *samples,
                })
                .collect(),
        })
        .collect();
    let tree = options.tree.then(|| {
        let tree = tree(profile, report);
        let node = |node: &profile::ops::Node| NodeJson {
            name: visible(tree.label(node)).into_owned(),
            kind: node
                .group
                .and_then(|g| tree.groups[g as usize].kind)
                .map(kind_name),
            parent: node.parent,
            own: selection.weigh(node.own),
            total: selection.weigh(node.total),
            self_samples: node.own.samples,
            total_samples: node.total.samples,
        };
        tree.nodes.iter().map(node).collect()
    });
    let json = ReportJson {
        title: Labels::new(profile).title(options.title.as_deref()),
        by: report.by.name(),
        event: one_event.then(|| selection.event.name()),
        unit: one_event.then(|| selection.unit()),
        samples: if one_event {
            selection.sum.samples
        } else {
            profile.samples.len() as u64
        },
        rows,
        tree,
        traced: traced::json(profile),
        live: live::json(profile),
        health: HealthJson::new(profile),
    };
    write_json(&mut *out, &json)?;
    writeln!(out)
}

/// Percent, rounded to three decimals so that outputs are the same everywhere.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    (part as f64 * 100_000.0 / whole as f64).round() / 1000.0
}
