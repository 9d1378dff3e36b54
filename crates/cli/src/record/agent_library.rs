//! Where the agent, `libsidewalk.so`, is.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use diagnostics::UnpackedLibrary;

use crate::console::escaped;

/// Names another agent, for packagers and tests.
const VARIABLE: &str = "SIDEWALK_AGENT";
const NAME: &str = "libsidewalk.so";

/// The agent that this binary has in it, if it was built with one.
#[derive(Clone, Copy)]
pub(crate) struct OptionalAgent(pub(crate) Option<EmbeddedAgent>);

/// An agent that a binary has in it.
#[derive(Clone, Copy)]
pub struct EmbeddedAgent {
    /// `libsidewalk.so`.
    pub content: &'static [u8],
    /// Its [`diagnostics::hash_of`], made with the binary: making it takes longer than all else
    /// before the command starts.
    pub hash: &'static str,
}

/// The agent, as a file. It stays where it is as long as this is there.
pub(crate) struct AgentLibrary {
    path: PathBuf,
    _unpacked: Option<UnpackedLibrary>,
}

impl AgentLibrary {
    /// `SIDEWALK_AGENT`, or what this binary carries, or the one beside it, or in `../lib`. The
    /// path is absolute.
    ///
    /// # Errors
    /// It is in none of these places, is no shared library, or cannot be unpacked.
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

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Where `cargo build` puts it.
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
