//! `sidewalk --version --verbose`: prints the build, its agent, and their requirements.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use diagnostics::newest_glibc;

use crate::console::escaped;
use crate::record::{AgentLibrary, OptionalAgent};
use crate::tested::RUNTIMES;

/// Whether exactly these options were typed. clap handles `--version` alone.
pub(crate) fn is_asked(arguments: &[OsString]) -> bool {
    let words = arguments.get(1..).unwrap_or_default();
    let has = |names: &[&str]| {
        words
            .iter()
            .any(|word| names.iter().any(|name| word == name))
    };
    words.len() == 2 && has(&["--version", "-V"]) && has(&["--verbose"])
}

/// Returns the text to print.
///
/// # Errors
/// No agent was found.
pub(crate) fn text(embedded: OptionalAgent) -> Result<String> {
    let agent = AgentLibrary::find(embedded)?;
    let here = std::env::current_exe().context("cannot find the path of sidewalk itself")?;
    let hash = diagnostics::hash_of(&fs::read(agent.path())?);
    let build = option_env!("SIDEWALK_COMMIT").unwrap_or("not a release");
    let mut text = String::new();
    for (what, value) in [
        ("sidewalk", env!("CARGO_PKG_VERSION").to_owned()),
        ("build", build.to_owned()),
        ("agent", format!("{hash}, {}", escaped(agent.path()))),
        (
            "glibc",
            format!(
                "sidewalk {}, agent {}",
                needed_glibc(&here),
                needed_glibc(agent.path())
            ),
        ),
        (".NET", RUNTIMES.to_owned()),
    ] {
        let _ = writeln!(text, "{what:<9} {value}");
    }
    Ok(text)
}

/// The oldest glibc that a file can run with.
fn needed_glibc(file: &Path) -> String {
    newest_glibc(file).map_or_else(
        || "unknown".to_owned(),
        |(major, minor)| format!("{major}.{minor}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_words_and_no_others() {
        let is_version = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            is_asked(&words)
        };
        assert!(is_version(&["sidewalk", "--version", "--verbose"]));
        assert!(is_version(&["sidewalk", "--verbose", "-V"]));
        assert!(!is_version(&["sidewalk", "--version"]));
        assert!(!is_version(&[
            "sidewalk",
            "record",
            "--version",
            "--verbose"
        ]));
        assert!(!is_version(&["sidewalk", "--version", "--version"]));
    }
}
