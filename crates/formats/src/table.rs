//! Text tables: rows of cells in aligned columns.
//!
//! Invariant: a column is as wide as its widest cell, in characters; the last column is not padded.

use std::io::{self, Write};

/// Writes lines of cells in right-aligned columns. The column `strip`, if any, and the last one are
/// left-aligned. All lines must have the same number of cells.
pub(crate) fn write(
    lines: &[Vec<String>],
    strip: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in lines {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let gap = if column > 0 { "  " } else { "" };
            let pad = width - cell.chars().count();
            if column + 1 == columns {
                writeln!(out, "{gap}{cell}")?;
            } else if strip == Some(column) {
                write!(out, "{gap}{cell}{:pad$}", "")?;
            } else {
                write!(out, "{gap}{:pad$}{cell}", "")?;
            }
        }
    }
    Ok(())
}
