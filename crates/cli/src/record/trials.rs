//! First steps of recording, for `sidewalk doctor`: done once, and nothing kept of them.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::environment::Obstacles;
use super::rendezvous::Rendezvous;

/// Whether the environment lets a program be recorded that is started in it.
///
/// # Errors
/// It asks for another profiler, or forbids profilers.
pub(crate) fn check_environment() -> Result<()> {
    let obstacles = Obstacles::find(|name| std::env::var_os(name));
    obstacles.check(false).map(drop)
}

/// Makes the tool's socket and connects to it as an agent does. Returns the folder that it was made
/// in.
///
/// # Errors
/// The error of the step that failed.
pub(crate) fn try_socket() -> Result<PathBuf> {
    let made = Rendezvous::create()?;
    UnixStream::connect(&made.path).context("an agent could not connect to the tool")?;
    let folder = made.folder.path();
    Ok(folder.parent().unwrap_or(folder).to_owned())
}
