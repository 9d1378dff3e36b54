//! Messages to the user, on stderr.
//!
//! Not results: those go to stdout, or where a recorded program writes there, to stderr too. The
//! invariants: a message is whole lines, and a progress line on the terminal is wiped before
//! anything else is written there; there is none on a terminal that a recorded program writes to.
//! And nothing that comes from outside acts on the terminal: control characters and marks that turn
//! text around are written out here, whatever a message was made of; what may hold a line end (a
//! path, a process's name) goes through [`escaped`] or [`formats::visible`] before, or it could
//! look like a message of its own.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use clap::ValueEnum;
use formats::{visible, visible_lines};

/// A path or another word of the system as a message shows it: one line, with what would act
/// written out.
pub(crate) fn escaped(path: impl AsRef<Path>) -> String {
    visible(&path.as_ref().to_string_lossy()).into_owned()
}

/// When to colour messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Where messages go.
pub(crate) struct Console {
    quiet: bool,
    color: bool,
    terminal: bool,
    is_shared: Cell<bool>,
    has_progress: Cell<bool>,
}

impl Console {
    /// For this process's stderr.
    pub(crate) fn new(quiet: bool, color: Color) -> Self {
        let terminal = io::stderr().is_terminal();
        let color = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                let refused = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
                terminal && !refused("NO_COLOR")
            }
        };
        Self {
            quiet,
            color,
            terminal,
            is_shared: Cell::new(false),
            has_progress: Cell::new(false),
        }
    }

    /// Prints an error with its causes.
    pub(crate) fn error(&self, error: &anyhow::Error) {
        self.line("31", "sidewalk: error", format_args!("{error:#}"));
    }

    /// Something that the user should know although the work goes on; also when quiet.
    pub(crate) fn warning(&self, text: impl Display) {
        self.line("33", "sidewalk: warning", text);
    }

    /// Prints the current activity; nothing when quiet.
    pub(crate) fn note(&self, text: impl Display) {
        if !self.quiet {
            self.line("36", "sidewalk", text);
        }
    }

    /// A result, beside a program whose stdout is its own; also when quiet.
    pub(crate) fn result(&self, text: &str) {
        self.end_progress();
        self.write(&visible_lines(text));
    }

    /// A program is started that writes to the same stderr, also through its children when it has
    /// ended: no progress from here on.
    pub(crate) fn share(&self) {
        self.is_shared.set(true);
    }

    /// Whether [`Console::progress`] shows anything.
    pub(crate) fn shows_progress(&self) -> bool {
        self.terminal && !self.quiet && !self.is_shared.get()
    }

    /// Shows `text` as the progress line, where stderr is a terminal.
    pub(crate) fn progress(&self, text: impl Display) {
        if !self.shows_progress() {
            return;
        }
        let (dim, plain) = if self.color {
            ("\x1b[2m", "\x1b[0m")
        } else {
            ("", "")
        };
        let text = text.to_string();
        let text = visible(&text);
        let line = format!("\r\x1b[2K{dim}sidewalk: {text}{plain}\r");
        self.write(&line);
        self.has_progress.set(true);
    }

    /// Wipes the progress line.
    pub(crate) fn end_progress(&self) {
        if self.has_progress.replace(false) {
            self.write("\r\x1b[2K");
        }
    }

    fn line(&self, color: &str, label: &str, text: impl Display) {
        self.end_progress();
        let text = text.to_string();
        let text = visible_lines(&text);
        let line = if self.color {
            format!("\x1b[1;{color}m{label}\x1b[0m: {text}\n")
        } else {
            format!("{label}: {text}\n")
        };
        self.write(&line);
    }

    /// In one write, so that lines of several processes do not mix. A closed stderr is no reason
    /// to stop.
    fn write(&self, text: &str) {
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
