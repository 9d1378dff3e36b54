//! `sidewalk --version --verbose`: prints the build, its agent, and their requirements.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use diagnostics::{Libc, newest_glibc};

use crate::console::escaped;
use crate::record::{AgentLibrary, EmbeddedAgents};
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
/// There is no agent.
pub(crate) fn text(embedded: EmbeddedAgents) -> Result<String> {
    let agents = [("agent", Libc::Glibc(None)), ("for musl", Libc::Musl)];
    let agents = agents.map(|(what, libc)| (what, AgentLibrary::find(embedded, libc)));
    let here = std::env::current_exe().context("cannot find the path of sidewalk itself")?;
    let build = option_env!("SIDEWALK_COMMIT").unwrap_or("not a release");
    let mut rows = vec![
        ("sidewalk", env!("CARGO_PKG_VERSION").to_owned()),
        ("build", build.to_owned()),
    ];
    let mut needs = format!("sidewalk {}", needed_glibc(&here));
    for (what, agent) in &agents {
        // One that is not there is missing where there is no other.
        let Ok(agent) = agent else { continue };
        let hash = diagnostics::hash_of(&fs::read(agent.path())?);
        rows.push((what, format!("{hash}, {}", escaped(agent.path()))));
        if *what == "agent" {
            let _ = write!(needs, ", agent {}", needed_glibc(agent.path()));
        }
    }
    rows.push(("glibc", needs));
    rows.push((".NET", RUNTIMES.to_owned()));
    if let [(_, Err(_)), (_, Err(_))] = agents {
        let [(_, missing), _] = agents;
        missing?;
    }
    let mut text = String::new();
    for (what, value) in rows {
        let _ = writeln!(text, "{what:<9} {value}");
    }
    Ok(text)
}

/// The oldest glibc that a file can run with.
fn needed_glibc(file: &Path) -> String {
    newest_glibc(file).map_or_else(
        || "none".to_owned(),
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
