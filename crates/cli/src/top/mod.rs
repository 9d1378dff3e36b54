//! `sidewalk top`: shows live where the time of a running program goes.
//!
//! `record` makes an ordinary recording, and keeps it if the user wants. Meanwhile this module
//! shows its last seconds.
//! Invariant: the terminal is restored, however the verb ends.

mod screen;
mod view;
mod window;

use std::io::{IsTerminal, Stdin};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use rustix::time::ClockId;

use self::view::{KeyAction, TopView};
use self::window::{Window, WindowContent};
use crate::clock::kernel_ns;

/// Length of the shown window.
const WINDOW_NS: u64 = 5_000_000_000;
/// Time between two draws.
const EVERY: Duration = Duration::from_secs(1);
/// Poll interval of a keyboard that cannot be polled as a descriptor.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The live table. It owns the terminal while it exists.
pub(crate) struct Top {
    terminal: DefaultTerminal,
    stdin: Stdin,
    window: Window,
    content: WindowContent,
    view: TopView,
    /// File name of the recording, if the user keeps it.
    name: String,
    should_keep: bool,
    due: Instant,
    failure: Option<anyhow::Error>,
}

impl Top {
    /// Checks that a terminal is available.
    ///
    /// # Errors
    /// No terminal is available.
    pub(crate) fn check() -> Result<()> {
        if !std::io::stdout().is_terminal() {
            bail!(
                "top needs a terminal as its output; sidewalk record --pid PID -d 10s prints a \
                 table instead"
            );
        }
        Ok(())
    }

    /// Takes over the terminal. `name` is the file name of a kept recording.
    ///
    /// # Errors
    /// The terminal cannot be drawn on.
    pub(crate) fn open(name: String) -> Result<Top> {
        let window = Window::new(WINDOW_NS, kernel_ns(ClockId::Monotonic)?)?;
        let terminal = ratatui::try_init().context("cannot draw on this terminal")?;
        Ok(Top {
            terminal,
            stdin: std::io::stdin(),
            window,
            content: WindowContent::default(),
            view: TopView::default(),
            name,
            should_keep: false,
            due: Instant::now(),
            failure: None,
        })
    }

    /// Readable when a key was pressed.
    pub(crate) fn keyboard(&self) -> Option<BorrowedFd<'_>> {
        self.stdin.is_terminal().then(|| self.stdin.as_fd())
    }

    /// Time at which [`Top::turn`] must be called at the latest.
    pub(crate) fn due(&self) -> Instant {
        if self.keyboard().is_some() {
            self.due
        } else {
            self.due.min(Instant::now() + LOOK_EVERY)
        }
    }

    /// Adds a block of the recording.
    pub(crate) fn block(&mut self, bytes: &[u8]) {
        if let Err(error) = self.window.block(bytes) {
            self.failure.get_or_insert(error);
        }
    }

    /// Handles key presses and draws if it is time to. Returns false when the user quits.
    ///
    /// # Errors
    /// The terminal is gone, or a block could not be read.
    pub(crate) fn turn(&mut self) -> Result<bool> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let mut changed = false;
        while event::poll(Duration::ZERO)? {
            changed = true;
            let Event::Key(key) = event::read()? else {
                continue;
            };
            match self.view.key(key) {
                KeyAction::Nothing => {}
                KeyAction::Quit => return Ok(false),
                KeyAction::Keep => {
                    self.should_keep = true;
                    self.view.message = Some(format!("will be kept as {}", self.name));
                }
            }
        }
        let now = Instant::now();
        if now >= self.due {
            self.due = now + EVERY;
            if !self.view.is_paused {
                self.content = self.window.content(kernel_ns(ClockId::Monotonic)?);
            }
            changed = true;
        }
        if changed {
            let (content, view) = (&self.content, &mut self.view);
            self.terminal
                .draw(|frame| screen::draw(frame, content, view))?;
        }
        Ok(true)
    }

    /// Whether the user wants to keep the recording.
    pub(crate) fn should_keep(&self) -> bool {
        self.should_keep
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        // A lost terminal needs no restoring.
        let _ = ratatui::try_restore();
    }
}
