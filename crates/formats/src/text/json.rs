//! The report as JSON. Flat on purpose: a tree as nested objects would be as deep as the stacks.

use std::io::{self, Write};

use profile::Profile;
use serde::Serialize;

use super::report::Report;
use super::tree::Tree;
use crate::forest::{Count, NONE};
use crate::inspect::HealthJson;
use crate::labels::{Labels, kind_name};
use crate::options::{By, Options};
use crate::select::event_name;

#[derive(Serialize)]
struct ReportJson<'a> {
    title: String,
    by: &'static str,
    /// Absent where rows are events.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'static str>,
    /// Unit of `self` and `total`.
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'static str>,
    samples: u64,
    rows: Vec<RowJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<Vec<NodeJson>>,
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
}

#[derive(Serialize)]
struct NodeJson {
    name: String,
    kind: &'static str,
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
    options: &Options,
    report: &Report,
    out: &mut impl Write,
) -> io::Result<()> {
    let labels = Labels::new(profile);
    let one_event = report.by != By::Event;
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
            unit: row.unit,
            own: row.count.own.weight,
            total: row.count.total.weight,
            self_samples: row.count.own.samples,
            total_samples: row.count.total.samples,
            self_percent: share(row.share_own(report)),
            total_percent: share(row.share_total(report)),
        })
        .collect();
    let tree = options.tree.then(|| {
        let tree = Tree::new(profile, &labels, report);
        let node = |node: &super::tree::Node| {
            let frame = labels.frame(tree.keys.first[node.key as usize]);
            let Count {
                samples: self_samples,
                weight: own,
            } = node.own;
            let Count {
                samples: total_samples,
                weight: total,
            } = node.total;
            NodeJson {
                name: labels.name(frame),
                kind: kind_name(frame.kind),
                parent: Some(node.parent).filter(|&p| p != NONE),
                own,
                total,
                self_samples,
                total_samples,
            }
        };
        tree.nodes.iter().map(node).collect()
    });
    let json = ReportJson {
        title: options.title.clone().unwrap_or_else(|| labels.command()),
        by: report.by.name(),
        event: one_event.then(|| event_name(report.selection.event)),
        unit: one_event.then(|| report.unit()),
        samples: if one_event {
            report.selection.samples
        } else {
            profile.samples.len() as u64
        },
        rows,
        tree,
        health: HealthJson::new(profile),
    };
    serde_json::to_writer(&mut *out, &json)?;
    writeln!(out)
}

/// Percent, rounded to three decimals so that outputs are the same everywhere.
fn share((part, whole): (u64, u64)) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    (part as f64 * 100_000.0 / whole as f64).round() / 1000.0
}
