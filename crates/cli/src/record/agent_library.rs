//! Finds the agent, `libsidewalk.so`: embedded in the binary, beside it, or named by a variable.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use diagnostics::UnpackedLibrary;

use crate::console::escaped;

/// Variable with the path of another agent, for packagers and tests.
const VARIABLE: &str = "SIDEWALK_AGENT";
const NAME: &str = "libsidewalk.so";

/// The binary's embedded agent, if it was built with one.
#[derive(Clone, Copy)]
pub(crate) struct OptionalAgent(pub(crate) Option<EmbeddedAgent>);

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
    /// The agent is in none of these places, is not a shared library, or cannot be unpacked.
    pub(crate) fn find(embedded: OptionalAgent) -> Result<Self> {
        if let Some(given) = std::env::var_os(VARIABLE) {
            let path = Path::new(&given);
            check(path).with_context(|| {
                format!(
                    "{VARIABLE} names the agent {}, which cannot be used",
                    escaped(path)
                )
            })?;
            return Ok(Self::at(std::path::absolute(path)?));
        }
        if let Some(EmbeddedAgent { content, hash }) = embedded.0 {
            let unpacked = UnpackedLibrary::new(content, hash)?;
            return Ok(Self {
                path: unpacked.library().to_owned(),
                _unpacked: Some(unpacked),
            });
        }
        beside().map(Self::at)
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

/// Path of the agent as built by `cargo build`.
fn beside() -> Result<PathBuf> {
    let binary = std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .context("cannot find the path of sidewalk itself")?;
    let folder = binary.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(NAME), folder.join("../lib").join(NAME)];
    for place in &places {
        if place.exists() {
            check(place).with_context(|| format!("cannot use the agent {}", escaped(place)))?;
            return Ok(std::fs::canonicalize(place)?);
        }
    }
    bail!(
        "the agent {NAME} is missing: this sidewalk was built without it (as cargo build in the \
         repository does), and it is neither in {} nor in ../lib beside it.\n\
         Install sidewalk (cargo install --path crates/cli), build it (cargo build makes both), or set \
         {VARIABLE} to its path",
        escaped(folder)
    )
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
