//! Source text around the lines that have samples.
//!
//! Invariants: a file without text has no entry; control characters in the text are escaped; at
//! most [`AROUND`] lines before and after a line with samples are kept.

use std::collections::{BTreeMap, BTreeSet};

use profile::Profile;
use serde::Serialize;

use crate::visible::visible;

/// Lines kept before and after a line with samples.
const AROUND: u32 = 4;
/// Maximum characters of a line. Longer lines, as in generated code, are cut.
const MAX_CHARACTERS: usize = 400;

/// Consecutive lines of a file.
#[derive(Serialize)]
pub(super) struct SourceHead {
    /// As `FrameColumns::file`: index of its name plus one.
    file: u32,
    first: u32,
    lines: Vec<String>,
}

/// Returns the parts of `sources` around lines of frames. `number` maps names to the page's
/// indices.
pub(super) fn parts(
    profile: &Profile,
    sources: &BTreeMap<String, String>,
    number: impl Fn(&str) -> Option<u32>,
) -> Vec<SourceHead> {
    let mut wanted: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for frame in profile.frames.iter().filter(|frame| frame.line > 0) {
        if let Some(file) = frame.file {
            let near = frame.line.saturating_sub(AROUND).max(1)..=frame.line.saturating_add(AROUND);
            wanted.entry(profile.string(file)).or_default().extend(near);
        }
    }
    let mut parts: Vec<SourceHead> = Vec::new();
    for (name, lines) in wanted {
        let (Some(text), Some(file)) = (sources.get(name), number(&visible(name))) else {
            continue;
        };
        for (line, text) in (1_u32..).zip(text.lines()) {
            if !lines.contains(&line) {
                continue;
            }
            let text: String = text.chars().take(MAX_CHARACTERS).collect();
            // Tabs are harmless indentation here.
            let inert = |cell: &str| match cell.trim_matches(' ') {
                // An empty cell stays empty instead of becoming `[no name]`.
                "" => cell.to_owned(),
                _ => visible(cell).into_owned(),
            };
            let cells: Vec<_> = text.split('\t').map(inert).collect();
            let text = cells.join("\t");
            match parts.last_mut() {
                Some(part) if part.file == file && part.first + part.lines.len() as u32 == line => {
                    part.lines.push(text);
                }
                _ => parts.push(SourceHead {
                    file,
                    first: line,
                    lines: vec![text],
                }),
            }
        }
    }
    parts
}
