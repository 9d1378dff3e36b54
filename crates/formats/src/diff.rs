//! Output of a comparison of recordings: a table, JSON, or a flame graph.
//!
//! `profile::ops::diff` computes it. Invariants: a change that may be chance is in the table only
//! on request (`--all`), and its row says so; every name is one cell of one line.

use std::io::{self, Write};

use profile::Profile;
use profile::model::Unit;
use profile::ops::{AmountPair, Diff, DiffRequest, DiffRow, Scaling, Side};
use serde::Serialize;

use crate::health::summary;
use crate::options::{OutputOptions, Sides};
use crate::select::unit_name;
use crate::text::notes;
use crate::visible::visible;
use crate::wording::{amount, plural};

/// Choice of the rows to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowSelection {
    /// Maximum number of rows.
    pub top: usize,
    /// Whether to show rows that may be chance.
    pub all: bool,
}

/// Writes the table.
///
/// # Errors
/// Those of `out`.
pub fn text(
    profile: &Profile,
    diff: &Diff,
    request: DiffRequest,
    shown: RowSelection,
    mut out: impl Write,
) -> io::Result<()> {
    let names = SideNames::new(profile, diff);
    let unit = unit_name(request.event.unit());
    for (word, side, names) in [
        ("before", diff.sides[0], names.before),
        ("after ", diff.sides[1], names.after),
    ] {
        let mut says = format!(
            "{:.3} s, {}",
            side.seconds,
            plural(side.weight.samples, "sample")
        );
        if side.weight.value != side.weight.samples {
            says.push_str(&format!(", {}", amount(side.weight.value, unit)));
        }
        writeln!(out, "{word}  {names}: {says}")?;
    }
    let per = match request.per {
        Scaling::Whole => "parts of all that was sampled",
        Scaling::Second => "by the second",
    };
    let runs = match diff.sides.iter().all(|side| side.units == side.recordings) {
        true => "runs with runs",
        false => "slices of time with slices of time",
    };
    writeln!(
        out,
        "{}: {per}; {}, {runs}; risk of a false change at most {:.0} %",
        request.event.name(),
        plural(diff.tested as u64, "comparison"),
        request.error * 100.0
    )?;
    writeln!(out)?;
    let is_shown = |row: &&DiffRow| shown.all || row.own.certain;
    let rows: Vec<&DiffRow> = diff.rows.iter().filter(is_shown).collect();
    if rows.is_empty() {
        writeln!(out, "nothing changed by more than chance")?;
    } else {
        table(&rows[..rows.len().min(shown.top)], request, &mut out)?;
    }
    if rows.len() > shown.top {
        writeln!(out, "… and {} more", rows.len() - shown.top)?;
    }
    let callers = diff
        .rows
        .iter()
        .filter(|row| row.total.certain && !row.own.certain);
    let callers = callers.count() as u64;
    if callers > 0 && !shown.all {
        writeln!(
            out,
            "{} changed only in what they call (--all shows them)",
            plural(callers, "more row")
        )?;
    }
    writeln!(out)?;
    for note in notes(profile) {
        writeln!(out, "note: {note}")?;
    }
    writeln!(out, "{}", summary(&profile.health))?;
    out.flush()
}

fn table(rows: &[&DiffRow], request: DiffRequest, out: &mut impl Write) -> io::Result<()> {
    let mut cells = vec![
        [
            "self before",
            "after",
            "change",
            "",
            "total before",
            "after",
            "change",
            "",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for row in rows {
        let mut line = amount_cells(row.own, request);
        line.extend(amount_cells(row.total, request));
        cells.push(line);
    }
    let width = |column: usize| {
        let widths = cells.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..8).map(width).collect();
    let names = rows
        .iter()
        .map(|row| visible(&row.group.label).into_owned());
    let names = [request.by.name().to_owned()].into_iter().chain(names);
    for (line, name) in cells.iter().zip(names) {
        for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // Nothing is between a change and whether it is certain.
            let gap = if at == 0 || at % 4 == 3 { "" } else { "  " };
            let pad = width - cell.chars().count();
            match at % 4 {
                3 => write!(out, "{gap}{cell}{:pad$}", "")?,
                _ => write!(out, "{gap}{:pad$}{cell}", "")?,
            }
        }
        writeln!(out, "  {name}")?;
    }
    Ok(())
}

/// Before, after, by how much, and `?` where that may be chance.
fn amount_cells(of: AmountPair, request: DiffRequest) -> Vec<String> {
    let one = |amount: f64| match (request.per, request.event.unit()) {
        (Scaling::Whole, _) => format!("{:.2} %", amount * 100.0),
        (Scaling::Second, Unit::Nanoseconds) => format!("{:.2} ms/s", amount / 1e6),
        (Scaling::Second, Unit::Bytes) => format!("{:.1} KiB/s", amount / 1024.0),
        (Scaling::Second, Unit::Count) => format!("{amount:.1}/s"),
    };
    let [before, after] = of.amounts;
    let change = match (before > 0.0, after > 0.0) {
        (false, false) => String::new(),
        (false, true) => "new".to_owned(),
        (true, false) => "gone".to_owned(),
        (true, true) => format!("{:+.1} %", of.relative() * 100.0),
    };
    let mark = match of.certain || change.is_empty() {
        true => " ",
        false => "?",
    };
    vec![one(before), one(after), change, mark.to_owned()]
}

/// The files of the two sides.
struct SideNames {
    before: String,
    after: String,
}

impl SideNames {
    fn new(profile: &Profile, diff: &Diff) -> SideNames {
        let shown = |names: &[String]| match names {
            [] => "nothing".to_owned(),
            [one] => visible(one).into_owned(),
            [first, rest @ ..] => format!("{} and {} more", visible(first), rest.len()),
        };
        let at = diff.sides[0].recordings.min(profile.recordings.len());
        let (before, after) = profile.recordings.split_at(at);
        SideNames {
            before: shown(before),
            after: shown(after),
        }
    }
}

/// Writes a flame graph of both sides, each half of its width, coloured by how they differ.
///
/// # Errors
/// Those of `out`.
pub fn html(
    profile: &Profile,
    diff: &Diff,
    request: DiffRequest,
    out: impl Write,
) -> io::Result<()> {
    let names = SideNames::new(profile, diff);
    let changed = |is: fn(&DiffRow) -> bool| {
        let rows = diff.rows.iter().filter(|row| is(row));
        rows.map(|row| row.group.label.clone()).collect()
    };
    let options = OutputOptions {
        title: Some(format!("{} → {}", names.before, names.after)),
        event: Some(request.event),
        sides: Some(Sides {
            first_after: diff.sides[0].recordings,
            own: changed(|row| row.own.certain),
            total: changed(|row| row.total.certain),
            names: [names.before, names.after],
        }),
        ..OutputOptions::default()
    };
    crate::html::write(profile, &options, out)
}

#[derive(Serialize)]
struct DiffJson<'d> {
    event: &'static str,
    unit: &'static str,
    by: &'static str,
    /// `whole`: amounts are parts of all; `second`: units of the event a second.
    per: &'static str,
    /// With what probability any change that is `certain` is none.
    error: f64,
    tested: usize,
    before: SideJson<'d>,
    after: SideJson<'d>,
    rows: Vec<DiffRowJson>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct SideJson<'d> {
    recordings: &'d [String],
    units: usize,
    samples: u64,
    value: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct DiffRowJson {
    name: String,
    #[serde(rename = "self")]
    own: ComparedJson,
    total: ComparedJson,
}

#[derive(Serialize)]
struct ComparedJson {
    before: f64,
    after: f64,
    /// A part of what it was; `null` where that was nothing.
    change: Option<f64>,
    samples_before: u64,
    samples_after: u64,
    /// With what probability chance alone does as much; `null` where there was too little to test.
    chance: Option<f64>,
    certain: bool,
}

/// Writes all of it, whatever may be chance, for programs.
///
/// # Errors
/// Those of `out`.
pub fn json(
    profile: &Profile,
    diff: &Diff,
    request: DiffRequest,
    mut out: impl Write,
) -> io::Result<()> {
    let at = diff.sides[0].recordings.min(profile.recordings.len());
    let (before, after) = profile.recordings.split_at(at);
    let side = |side: Side, recordings| SideJson {
        recordings,
        units: side.units,
        samples: side.weight.samples,
        value: side.weight.value,
        seconds: side.seconds,
    };
    let compared = |of: AmountPair| ComparedJson {
        before: of.amounts[0],
        after: of.amounts[1],
        change: Some(of.relative()).filter(|change| change.is_finite()),
        samples_before: of.weights[0].samples,
        samples_after: of.weights[1].samples,
        chance: Some(of.chance).filter(|chance| *chance < 1.0),
        certain: of.certain,
    };
    let rows = diff.rows.iter().map(|row| DiffRowJson {
        name: row.group.label.clone(),
        own: compared(row.own),
        total: compared(row.total),
    });
    let all = DiffJson {
        event: request.event.name(),
        unit: unit_name(request.event.unit()),
        by: request.by.name(),
        per: match request.per {
            Scaling::Whole => "whole",
            Scaling::Second => "second",
        },
        error: request.error,
        tested: diff.tested,
        before: side(diff.sides[0], before),
        after: side(diff.sides[1], after),
        rows: rows.collect(),
        notes: notes(profile),
    };
    crate::visible::write_json(&mut out, &all)?;
    writeln!(out)?;
    out.flush()
}
