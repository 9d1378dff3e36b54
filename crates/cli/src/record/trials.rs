//! Trials of recording's first steps for `sidewalk doctor`. They leave nothing behind.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::environment::Obstacles;
use super::rendezvous::Rendezvous;

/// Checks that a program started in this environment can be recorded.
///
/// # Errors
/// The environment names another profiler, or forbids profilers.
pub(crate) fn check_environment() -> Result<()> {
    let obstacles = Obstacles::find(|name| std::env::var_os(name));
    obstacles.check(false).map(drop)
}

/// Makes the tool's socket and connects to it as an agent does. Returns the folder of the socket.
///
/// # Errors
/// The error of the step that failed.
pub(crate) fn try_socket() -> Result<PathBuf> {
    let made = Rendezvous::create()?;
    UnixStream::connect(&made.path).context("an agent could not connect to the tool")?;
    let folder = made.folder.path();
    Ok(folder.parent().unwrap_or(folder).to_owned())
}
