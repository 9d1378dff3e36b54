//! Finds the agent, `libsidewalk.so`: embedded in the binary, beside it, or named by a variable.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use diagnostics::{Libc, UnpackedLibrary};

use crate::console::escaped;

/// The variable that names another agent for a C library, for packagers and tests, and its file.
fn names(libc: Libc) -> (&'static str, &'static str) {
    match libc {
        Libc::Glibc(_) => ("SIDEWALK_AGENT", "libsidewalk.so"),
        Libc::Musl => ("SIDEWALK_AGENT_MUSL", "libsidewalk-musl.so"),
    }
}

/// The agents that this binary has in it, if it was built with them.
#[derive(Clone, Copy, Default)]
pub struct EmbeddedAgents {
    /// The one for programs on glibc.
    pub glibc: Option<EmbeddedAgent>,
    /// The one for programs on musl.
    pub musl: Option<EmbeddedAgent>,
}

/// An agent embedded in a binary.
#[derive(Clone, Copy)]
pub struct EmbeddedAgent {
    /// `libsidewalk.so`.
    pub content: &'static [u8],
    /// Its [`diagnostics::hash_of`], computed at build time: computing it takes longer than all
    /// else before the command starts.
    pub hash: &'static str,
}

/// The agent as a file, which is not removed while this value lives.
pub(crate) struct AgentLibrary {
    path: PathBuf,
    _unpacked: Option<UnpackedLibrary>,
}

impl AgentLibrary {
    /// Finds the agent: `SIDEWALK_AGENT`, the embedded one, the one beside this binary, or in
    /// `../lib`. The path is absolute.
    ///
    /// # Errors
    /// It is in none of these places, is no shared library, or cannot be unpacked.
    pub(crate) fn find(embedded: EmbeddedAgents, libc: Libc) -> Result<Self> {
        let (variable, _) = names(libc);
        if let Some(given) = std::env::var_os(variable) {
            let path = Path::new(&given);
            check(path).with_context(|| {
                format!(
                    "{variable} names the agent {}, which cannot be used",
                    escaped(path)
                )
            })?;
            return Ok(Self::at(std::path::absolute(path)?));
        }
        let embedded = match libc {
            Libc::Glibc(_) => embedded.glibc,
            Libc::Musl => embedded.musl,
        };
        if let Some(EmbeddedAgent { content, hash }) = embedded {
            let unpacked = UnpackedLibrary::new(content, hash)?;
            return Ok(Self {
                path: unpacked.library().to_owned(),
                _unpacked: Some(unpacked),
            });
        }
        beside(libc).map(Self::at)
    }

    fn at(path: PathBuf) -> Self {
        Self {
            path,
            _unpacked: None,
        }
    }

    /// Path of the agent.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Where `cargo build` puts it.
fn beside(libc: Libc) -> Result<PathBuf> {
    let (variable, name) = names(libc);
    let binary = std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .context("cannot find the path of sidewalk itself")?;
    let folder = binary.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(name), folder.join("../lib").join(name)];
    for place in &places {
        if place.exists() {
            check(place).with_context(|| format!("cannot use the agent {}", escaped(place)))?;
            return Ok(std::fs::canonicalize(place)?);
        }
    }
    let why = format!(
        "it is neither in {} nor in ../lib beside it",
        escaped(folder)
    );
    match libc {
        Libc::Glibc(_) => bail!(
            "the agent {name} is missing: this sidewalk was built without it (as cargo build in the \
             repository does), and {why}.\n\
             Install sidewalk (cargo install --path crates/cli), build it (cargo build makes both), or \
             set {variable} to its path"
        ),
        Libc::Musl => bail!(
            "the program runs on musl (Alpine), and the agent for that, {name}, is missing: this \
             sidewalk was built without it, and {why}.\n\
             Build it (cargo xtask musl) and set {variable} to its path, or use an image that is based \
             on glibc (Debian, Ubuntu, RHEL)"
        ),
    }
}

fn check(path: &Path) -> Result<()> {
    let mut magic = [0; 4];
    let mut file = File::open(path)?;
    if !file.metadata()?.is_file() {
        bail!("it is not a file");
    }
    if file.read_exact(&mut magic).is_err() || magic != *b"\x7fELF" {
        bail!("it is not a shared library");
    }
    Ok(())
}
