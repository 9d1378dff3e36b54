//! Output formats of a profile: one module each, with `write(&Profile, &OutputOptions, impl
//! Write)`.
//!
//! The only IO is the given writer. Invariants: a name from the profiled program is data, so it
//! cannot end a line, a frame, a string or a tag in any format; all outputs of a profile have the
//! same totals.
#![forbid(unsafe_code)]

pub mod collapsed;
mod cost;
pub mod diff;
mod dump;
pub mod firefox;
mod forest;
mod health;
pub mod html;
mod inspect;
mod labels;
mod options;
pub mod otlp;
pub mod pprof;
pub mod pyroscope;
mod select;
pub mod speedscope;
mod spread;
mod table;
pub mod text;
mod visible;
mod wording;

use std::io::{self, Write};
use std::path::Path;

pub use dump::{dump_json, dump_text, has_dump};
pub use health::{honest_line, summary};
pub use inspect::{inspect_json, inspect_text};
pub use labels::command_line;
pub use options::{OutputOptions, Sides, Sort, WeightBy};
pub use profile::Profile;
pub use profile::ops::{GroupBy, StackView};
pub use visible::{visible, visible_lines, write_json};
pub use wording::{percent, plural};

/// An output format, selected by the file's ending.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// `.html`: interactive flame graph in one file.
    Html,
    /// `.pb.gz`: for `go tool pprof`.
    Pprof,
    /// `.speedscope.json`: for speedscope.
    Speedscope,
    /// `.firefox.json`: for the Firefox Profiler.
    Firefox,
    /// `.collapsed`: one line per stack.
    Collapsed,
    /// `.txt`: the report.
    Text,
}

impl Format {
    /// Every format, in the order in which help texts name them.
    pub const ALL: [Self; 6] = [
        Self::Html,
        Self::Pprof,
        Self::Speedscope,
        Self::Firefox,
        Self::Collapsed,
        Self::Text,
    ];

    /// Returns the file ending that selects the format, with its dot.
    pub const fn ending(self) -> &'static str {
        match self {
            Self::Html => ".html",
            Self::Pprof => ".pb.gz",
            Self::Speedscope => ".speedscope.json",
            Self::Firefox => ".firefox.json",
            Self::Collapsed => ".collapsed",
            Self::Text => ".txt",
        }
    }

    /// The format that a path asks for by its ending (in any case of letters), `None` where it
    /// is none of ours. A path that is nothing but an ending asks for nothing.
    pub fn from_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        Self::ALL
            .into_iter()
            .find(|f| name.len() > f.ending().len() && name.ends_with(f.ending()))
    }
}

/// The most frames that a format writes which writes each stack out: gigabytes of output.
const MAX_FRAMES: u64 = 1 << 27;

/// Refuses to write so many frames.
///
/// # Errors
/// They are too many; the text says what to do.
fn check_size(frames: u64) -> io::Result<()> {
    if frames <= MAX_FRAMES {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!(
            "its stacks have {frames} frames together, and this format would repeat each of them; \
             cut them with --max-depth, or write .html or .firefox.json"
        ),
    ))
}

/// Writes `profile` in `format`.
///
/// # Errors
/// Those of `out`.
pub fn write(
    format: Format,
    profile: &Profile,
    options: &OutputOptions,
    out: impl Write,
) -> io::Result<()> {
    match format {
        Format::Html => html::write(profile, options, out),
        Format::Pprof => pprof::write(profile, options, out),
        Format::Speedscope => speedscope::write(profile, options, out),
        Format::Firefox => firefox::write(profile, options, out),
        Format::Collapsed => collapsed::write(profile, options, out),
        Format::Text => text::write(profile, options, out),
    }
}
