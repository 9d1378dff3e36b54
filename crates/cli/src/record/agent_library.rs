//! Where the agent, `libsidewalk.so`, is.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::console::shown;

/// Names another agent, for packagers and tests.
const VARIABLE: &str = "SIDEWALK_AGENT";
const NAME: &str = "libsidewalk.so";

/// The absolute path of the agent: `SIDEWALK_AGENT`, or beside this binary, or in `../lib`.
///
/// # Errors
/// It is in none of these places, or is no shared library.
pub(super) fn find() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(VARIABLE) {
        let path = Path::new(&given);
        check(path).with_context(|| {
            format!(
                "{VARIABLE} names the agent {}, which cannot be used",
                shown(path)
            )
        })?;
        return Ok(std::path::absolute(path)?);
    }
    let binary = std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .context("cannot find out where sidewalk itself lies")?;
    let folder = binary.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(NAME), folder.join("../lib").join(NAME)];
    for place in &places {
        if place.exists() {
            check(place).with_context(|| format!("cannot use the agent {}", shown(place)))?;
            return Ok(std::fs::canonicalize(place)?);
        }
    }
    bail!(
        "the agent {NAME} is missing: it is neither in {} nor in ../lib beside it.\n\
         Reinstall sidewalk, build it (cargo build makes both), or set {VARIABLE} to its path",
        shown(folder)
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
