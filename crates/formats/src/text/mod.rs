//! The report: a table of the hottest methods (or other rows), the call tree, and the summary.
//!
//! It is text for people, or JSON (`json`). Invariant: the text ends with the summary
//! ([`crate::summary`]); every name is one cell of one line.

mod json;
mod live;
mod report;
pub(crate) mod traced;
mod tree;

pub(crate) use live::{LiveJson, json as live_json};

use std::io::{self, Write};

use profile::Profile;
use profile::model::{Event, Unit};
use profile::ops::GroupBy;

use crate::health::summary;
use crate::labels::{Labels, runtime_versions};
use crate::options::OutputOptions;
use crate::select::{events, unit_name, with_stack_view};
use crate::table;
use crate::visible::visible;
use crate::wording::{amount, duration_ns, percent, plural, seconds, shortened};
use report::{Report, ReportRow};

/// Writes the report of one event (of all, with [`GroupBy::Event`]).
///
/// Options: `event`, `weight`, `by`, `top`, `tree`, `json`, `title`.
///
/// # Errors
/// Those of `out`.
pub fn write(profile: &Profile, options: &OutputOptions, mut out: impl Write) -> io::Result<()> {
    let profile = &*with_stack_view(profile, options);
    let report = Report::new(profile, options);
    if options.json {
        json::write(profile, options, &report, &mut out)?;
    } else {
        header(profile, options, &report, &mut out)?;
        table(&report, &mut out)?;
        if options.tree {
            writeln!(out)?;
            tree::write(profile, &report, &mut out)?;
        }
        writeln!(out)?;
        live::write(profile, options.top, &mut out)?;
        traced::write(profile, options.top, &mut out)?;
        for note in notes(profile) {
            writeln!(out, "note: {note}")?;
        }
        writeln!(out, "{}", summary(&profile.health))?;
    }
    out.flush()
}

/// Returns the notes on a recording. A damaged one may have very many: beyond a limit they are only
/// counted.
pub(crate) fn notes(profile: &Profile) -> Vec<String> {
    const MAX_LISTED: usize = 10;
    let all = &profile.health.notes;
    let mut notes: Vec<String> = all
        .iter()
        .take(MAX_LISTED)
        .map(|note| visible(note).into_owned())
        .collect();
    if all.len() > MAX_LISTED {
        notes.push(format!("{} more such notes", all.len() - MAX_LISTED));
    }
    notes
}

fn header(
    profile: &Profile,
    options: &OutputOptions,
    report: &Report,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(
        out,
        "{}",
        Labels::new(profile).title(options.title.as_deref())
    )?;
    let mut facts = vec![format!("{:.3} s", seconds(duration_ns(profile)))];
    if profile.processes.len() > 1 {
        facts.push(format!("{} processes", profile.processes.len()));
    }
    facts.push(plural(profile.threads.len() as u64, "thread"));
    let versions = runtime_versions(profile);
    if !versions.is_empty() {
        facts.push(format!(".NET {}", versions.join(", ")));
    }
    writeln!(out, "{}", facts.join(", "))?;
    if report.by != GroupBy::Event {
        let selection = report.selection;
        let (event, sum) = (selection.event, selection.sum);
        let mut says = plural(sum.samples, "sample");
        if event.unit() != Unit::Count || sum.value != sum.samples {
            says.push_str(&format!(", {}", amount(sum.value, unit_name(event.unit()))));
        }
        let limits = profile.health.limited.iter();
        let limited = limits.filter(|limited| limited.event == event && limited.count > 0);
        for limited in limited {
            says.push_str(&format!("; {} more not kept", limited.count));
        }
        writeln!(out, "{}: {says}", event.name())?;
        let calls = events(profile).into_iter().find(|(e, _)| *e == Event::Call);
        if let Some((_, calls)) = calls.filter(|_| report.has_calls()) {
            writeln!(out, "calls: {}, each counted", calls.value)?;
        }
        let others: Vec<String> = events(profile)
            .into_iter()
            .filter(|(other, _)| *other != event)
            .filter(|(other, _)| !(report.has_calls() && *other == Event::Call))
            .map(|(other, sum)| format!("{} ({})", other.name(), plural(sum.samples, "sample")))
            .collect();
        if !others.is_empty() {
            writeln!(out, "not in this table: {}", others.join(", "))?;
        }
    }
    writeln!(out)
}

fn table(report: &Report, out: &mut impl Write) -> io::Result<()> {
    if report.rows.is_empty() {
        return writeln!(out, "no samples");
    }
    let mut cells: Vec<Vec<String>> = Vec::with_capacity(report.top + 1);
    let both = report.self_and_total();
    let mut head = Vec::new();
    if both {
        head.extend(["self", "self %", "total", "total %", "samples"]);
    } else {
        head.push("value");
        // Values of several events have no sum that one could be a part of.
        if report.by != GroupBy::Event {
            head.push("%");
        }
        head.push("samples");
    }
    if report.has_calls() {
        head.push("calls");
    }
    if report.has_limits() {
        head.push("limited");
    }
    head.push(report.by.name());
    cells.push(head.into_iter().map(str::to_owned).collect());
    for row in report.rows.iter().take(report.top) {
        let mut line = Vec::with_capacity(6);
        let (unit, whole) = (report.unit(row), report.whole());
        line.push(amount(report.shown_amount(row.own), unit));
        if report.by != GroupBy::Event {
            line.push(share(report.weigh(row.own), whole));
        }
        if both {
            line.push(amount(report.shown_amount(row.total), unit));
            line.push(share(report.weigh(row.total), whole));
        }
        line.push(row.own.samples.to_string());
        if report.has_calls() {
            line.push(row.calls.unwrap_or(0).to_string());
        }
        if report.has_limits() {
            line.push(row.limited.map_or(0, |(count, _)| count).to_string());
        }
        line.push(row_name(row));
        cells.push(line);
    }
    table::write(&cells, None, out)?;
    let hidden = report.rows.len().saturating_sub(report.top);
    if hidden > 0 {
        writeln!(out, "… and {hidden} more")?;
    }
    Ok(())
}

fn row_name(row: &ReportRow) -> String {
    let mut name = match &row.module {
        Some(module) if row.show_module => with_module(&row.name, module),
        _ => row.name.clone(),
    };
    if let [(first, _), others @ ..] = &row.texts[..] {
        name.push_str(&format!("  {}", cut(first)));
        if !others.is_empty() {
            name.push_str(&format!(
                "  (and {})",
                plural(others.len() as u64, "more text")
            ));
        }
    }
    name
}

/// The beginning of a text that may be long.
fn cut(text: &str) -> String {
    shortened(text, 100)
}

/// A name and where it is from. Code without a name is named by its module already, and what is
/// no file (`[vdso]`) has its brackets.
pub(crate) fn with_module(name: &str, module: &str) -> String {
    if name.starts_with(module) {
        name.to_owned()
    } else if module.starts_with('[') {
        format!("{name}  {module}")
    } else {
        format!("{name}  [{module}]")
    }
}

fn share(part: u64, whole: u64) -> String {
    percent(part, whole).trim_end_matches(" %").to_owned()
}
