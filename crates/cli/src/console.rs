//! Prints messages to the user on stderr.
//!
//! Results go to stdout instead, or to stderr too if a recorded program writes to stdout.
//! Invariants: a message is whole lines. The progress line is cleared before any other output to
//! the terminal, and is never shown on a terminal that a recorded program writes to.
//! Text from outside never controls the terminal: control characters and bidirectional marks are
//! escaped here in every message. Text that may contain a line end (a path, a process's name) must
//! go through [`escaped`] or [`formats::visible`] first, or it could look like a separate message.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use clap::ValueEnum;
use formats::{visible, visible_lines};

/// Formats a path or another word of the system for a message: one line, with control characters
/// escaped.
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

/// The destination of messages.
pub(crate) struct Console {
    quiet: bool,
    color: bool,
    terminal: bool,
    is_shared: Cell<bool>,
    has_progress: Cell<bool>,
}

impl Console {
    /// Returns a console for this process's stderr.
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

    /// Prints a warning: the user should know, but the work continues. Also printed when quiet.
    pub(crate) fn warning(&self, text: impl Display) {
        self.line("33", "sidewalk: warning", text);
    }

    /// Prints the current activity, unless quiet.
    pub(crate) fn note(&self, text: impl Display) {
        if !self.quiet {
            self.line("36", "sidewalk", text);
        }
    }

    /// Prints a result when stdout belongs to a recorded program. Also printed when quiet.
    pub(crate) fn result(&self, text: &str) {
        self.end_progress();
        self.write(&visible_lines(text));
    }

    /// Disables the progress line, because a started program writes to the same stderr. Its
    /// children may do so even after it has ended.
    pub(crate) fn share(&self) {
        self.is_shared.set(true);
    }

    /// Whether a message would now damage the screen of a started program.
    pub(crate) fn is_programs_screen(&self) -> bool {
        self.terminal && self.is_shared.get()
    }

    /// Whether [`Console::progress`] shows anything.
    pub(crate) fn shows_progress(&self) -> bool {
        self.terminal && !self.quiet && !self.is_shared.get()
    }

    /// Shows `text` as the progress line if stderr is a terminal.
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

    /// Clears the progress line.
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

    /// Writes the text at once, so that lines of several processes do not mix. A closed stderr is
    /// ignored.
    fn write(&self, text: &str) {
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
