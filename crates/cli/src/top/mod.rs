//! `sidewalk top`: where the time of a running program goes, now.
//!
//! It is a recording like any other (`record` makes it, and keeps it if the user says so) whose
//! last seconds are shown while it is made. Invariant: the terminal is given back as it was,
//! however this ends.

mod choice;
mod screen;
mod window;

use std::io::{IsTerminal, Stdin};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use self::choice::{Asked, Choice};
use self::window::{Picture, Window};

/// How long samples are shown.
const WINDOW_NS: u64 = 5_000_000_000;
/// Between two pictures.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks at a keyboard that cannot be waited for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The live table, on the terminal as long as it lives.
pub(crate) struct Top {
    terminal: DefaultTerminal,
    stdin: Stdin,
    window: Window,
    picture: Picture,
    choice: Choice,
    /// Where the recording goes when the user keeps it.
    name: String,
    keeps: bool,
    due: Instant,
    trouble: Option<anyhow::Error>,
}

impl Top {
    /// Whether there is a terminal to draw on.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn check() -> Result<()> {
        if !std::io::stdout().is_terminal() {
            bail!(
                "top draws on a terminal, and the output is none: sidewalk record --pid PID -d 10s \
                 prints a table of the same"
            );
        }
        Ok(())
    }

    /// Takes the terminal; `name` is that under which the recording would be kept.
    ///
    /// # Errors
    /// It cannot be drawn on.
    pub(crate) fn open(name: String) -> Result<Top> {
        let window = Window::new(WINDOW_NS, now_ns()?)?;
        let terminal = ratatui::try_init().context("cannot draw on this terminal")?;
        Ok(Top {
            terminal,
            stdin: std::io::stdin(),
            window,
            picture: Picture::default(),
            choice: Choice::default(),
            name,
            keeps: false,
            due: Instant::now(),
            trouble: None,
        })
    }

    /// Readable when a key was pressed.
    pub(crate) fn keyboard(&self) -> Option<BorrowedFd<'_>> {
        self.stdin.is_terminal().then(|| self.stdin.as_fd())
    }

    /// When [`Top::turn`] wants to be called at the latest.
    pub(crate) fn due(&self) -> Instant {
        if self.keyboard().is_some() {
            self.due
        } else {
            self.due.min(Instant::now() + LOOK_EVERY)
        }
    }

    /// Takes a block of the recording.
    pub(crate) fn block(&mut self, bytes: &[u8]) {
        if let Err(error) = self.window.block(bytes) {
            self.trouble.get_or_insert(error);
        }
    }

    /// Looks at the keyboard and draws what is due. False: the user has seen enough.
    ///
    /// # Errors
    /// The terminal is gone, or a block could not be read.
    pub(crate) fn turn(&mut self) -> Result<bool> {
        if let Some(error) = self.trouble.take() {
            return Err(error);
        }
        let mut changed = false;
        while event::poll(Duration::ZERO)? {
            changed = true;
            let Event::Key(key) = event::read()? else {
                continue;
            };
            match self.choice.key(key) {
                Asked::Nothing => {}
                Asked::Quit => return Ok(false),
                Asked::Keep => {
                    self.keeps = true;
                    self.choice.said = Some(format!("will be kept as {}", self.name));
                }
            }
        }
        let now = Instant::now();
        if now >= self.due {
            self.due = now + EVERY;
            if !self.choice.is_held {
                self.picture = self.window.picture(now_ns()?);
            }
            changed = true;
        }
        if changed {
            let (picture, choice) = (&self.picture, &mut self.choice);
            self.terminal
                .draw(|frame| screen::draw(frame, picture, choice))?;
        }
        Ok(true)
    }

    /// Whether the user wants the recording.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = ratatui::try_restore();
    }
}

fn now_ns() -> Result<u64> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    let (seconds, rest) = (u64::try_from(now.tv_sec())?, u64::try_from(now.tv_nsec())?);
    Ok(seconds * 1_000_000_000 + rest)
}
