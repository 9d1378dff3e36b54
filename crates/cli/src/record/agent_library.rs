//! Finds the agent, `libsidewalk.so`: embedded in the binary, beside it, or named by a variable.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail};
use diagnostics::{Libc, LibraryLinks, UnpackedLibrary};

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
        match Self::find_if_there(embedded, libc)? {
            Some(agent) => Ok(agent),
            None => Err(missing(libc)),
        }
    }

    fn find_if_there(embedded: EmbeddedAgents, libc: Libc) -> Result<Option<Self>> {
        let (variable, _) = names(libc);
        if let Some(given) = std::env::var_os(variable) {
            let path = Path::new(&given);
            check(path).with_context(|| {
                format!(
                    "{variable} names the agent {}, which cannot be used",
                    escaped(path)
                )
            })?;
            return Ok(Some(Self::at(std::path::absolute(path)?)));
        }
        let all = [embedded.glibc, embedded.musl].into_iter().flatten();
        let hashes: Vec<&str> = all.map(|agent| agent.hash).collect();
        let embedded = match libc {
            Libc::Glibc(_) => embedded.glibc,
            Libc::Musl => embedded.musl,
        };
        if let Some(EmbeddedAgent { content, hash }) = embedded {
            let unpacked = UnpackedLibrary::new(content, hash, &hashes)?;
            return Ok(Some(Self {
                path: unpacked.library().to_owned(),
                _unpacked: Some(unpacked),
            }));
        }
        Ok(beside(libc)?.map(Self::at))
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

/// The agents for a command and its children, which may run on another C library.
pub(crate) struct CommandAgents {
    own: AgentLibrary,
    /// The agent for the other C library, if it is at hand, and the links to both.
    both: Option<(AgentLibrary, LibraryLinks)>,
    libc: Libc,
}

impl CommandAgents {
    /// Finds the agent for a command on `libc`, and the other one if it is there.
    ///
    /// # Errors
    /// The first is missing, or one of them cannot be used.
    pub(crate) fn find(embedded: EmbeddedAgents, libc: Libc) -> Result<Self> {
        let own = AgentLibrary::find(embedded, libc)?;
        let other = match libc {
            Libc::Glibc(_) => Libc::Musl,
            Libc::Musl => Libc::Glibc(None),
        };
        let both = match AgentLibrary::find_if_there(embedded, other)? {
            Some(agent) => {
                let links = match other {
                    Libc::Musl => LibraryLinks::new(own.path(), agent.path()),
                    Libc::Glibc(_) => LibraryLinks::new(agent.path(), own.path()),
                };
                Some((agent, links?))
            }
            None => None,
        };
        Ok(Self { own, both, libc })
    }

    /// The agent for the command's own C library.
    pub(crate) fn own(&self) -> &AgentLibrary {
        &self.own
    }

    /// The path for the environment, by which a loader finds the agent. With both agents at hand it
    /// serves both C libraries.
    pub(crate) fn path(&self) -> PathBuf {
        match &self.both {
            Some((_, links)) => links.path(),
            None => self.own.path().to_owned(),
        }
    }

    /// The C library whose programs alone find an agent by the path.
    pub(crate) fn only(&self) -> Option<Libc> {
        self.both.is_none().then_some(self.libc)
    }
}

/// The path where `cargo build` puts it, if it is there.
fn beside(libc: Libc) -> Result<Option<PathBuf>> {
    let (_, name) = names(libc);
    let folder = own_folder()?;
    for place in [folder.join(name), folder.join("../lib").join(name)] {
        if place.exists() {
            check(&place).with_context(|| format!("cannot use the agent {}", escaped(&place)))?;
            return Ok(Some(std::fs::canonicalize(place)?));
        }
    }
    Ok(None)
}

/// The folder of this binary.
fn own_folder() -> Result<PathBuf> {
    let mut binary = std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .context("cannot find the path of sidewalk itself")?;
    binary.pop();
    Ok(binary)
}

/// The error for an agent that is nowhere.
fn missing(libc: Libc) -> Error {
    let (variable, name) = names(libc);
    let folder = match own_folder() {
        Ok(folder) => escaped(folder),
        Err(error) => return error,
    };
    let why = format!("it is neither in {folder} nor in ../lib beside it");
    match libc {
        Libc::Glibc(_) => anyhow!(
            "the agent {name} is missing: this sidewalk was built without it (as cargo build in the \
             repository does), and {why}.\n\
             Install sidewalk (cargo install --path crates/cli), build it (cargo build makes both), or \
             set {variable} to its path"
        ),
        Libc::Musl => anyhow!(
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
