//! Completion candidates for the words of the command line.
//!
//! Invariant: no process is queried and nothing is changed, because completion must be quick and
//! harmless.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;

use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _,
};
use formats::{Format, GroupBy, Sort, StackView};

use crate::topics::TOPICS;
use crate::{running, units};

/// Shells with a completion script.
pub(crate) const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Recordings, and folders that may contain some.
pub(crate) fn recordings() -> ArgValueCompleter {
    ArgValueCompleter::new(recording)
}

/// Any file, or stdout.
pub(crate) fn files() -> ArgValueCompleter {
    ArgValueCompleter::new(PathCompleter::any().stdio())
}

/// Process ids of .NET processes.
pub(crate) fn processes() -> ArgValueCompleter {
    ArgValueCompleter::new(process)
}

/// Processes, or recordings and folders.
pub(crate) fn processes_and_recordings() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let mut found = process(current);
        found.extend(recording(current));
        found
    })
}

/// A program and its arguments.
pub(crate) fn programs() -> ArgValueCompleter {
    ArgValueCompleter::new(program)
}

/// Names of events.
pub(crate) fn events() -> ArgValueCandidates {
    candidates_from(|| units::RECORDED.iter().map(|event| event.name().to_owned()))
}

/// Names of walkers.
pub(crate) fn walkers() -> ArgValueCandidates {
    candidates_from(|| units::WALKERS.iter().map(|name| (*name).to_owned()))
}

/// Names of sampling engines.
pub(crate) fn engines() -> ArgValueCandidates {
    candidates_from(|| units::ENGINES.iter().map(|name| (*name).to_owned()))
}

/// Policies for several runtimes in a process.
pub(crate) fn runtimes() -> ArgValueCandidates {
    candidates_from(|| {
        ["all", "first", "one=", "many="]
            .map(str::to_owned)
            .into_iter()
    })
}

/// Names of formats.
pub(crate) fn formats() -> ArgValueCandidates {
    candidates_from(|| {
        let endings = Format::ALL.iter().map(|format| format.ending());
        endings.map(|ending| ending.trim_start_matches('.').to_owned())
    })
}

/// Completes the kinds of rows of a report.
pub(crate) fn rows() -> ArgValueCandidates {
    candidates_from(|| GroupBy::ALL.iter().map(|by| by.name().to_owned()))
}

/// Orders of the rows of a report.
pub(crate) fn orders() -> ArgValueCandidates {
    candidates_from(|| Sort::ALL.iter().map(|sort| sort.name().to_owned()))
}

/// Names of stack views of async methods.
pub(crate) fn stacks() -> ArgValueCandidates {
    candidates_from(|| StackView::ALL.iter().map(|stacks| stacks.name().to_owned()))
}

/// Names of verbs and help topics.
pub(crate) fn subjects(verbs: fn() -> Vec<String>) -> ArgValueCandidates {
    candidates_from(move || {
        let topics = TOPICS.iter().map(|(name, _)| (*name).to_owned());
        verbs().into_iter().chain(topics)
    })
}

/// Verbs.
pub(crate) fn verbs(verbs: fn() -> Vec<String>) -> ArgValueCandidates {
    candidates_from(move || verbs().into_iter())
}

/// Shells.
pub(crate) fn shells() -> ArgValueCandidates {
    candidates_from(|| SHELLS.iter().map(|name| (*name).to_owned()))
}

fn candidates_from<I: Iterator<Item = String>>(
    names: impl Fn() -> I + Send + Sync + 'static,
) -> ArgValueCandidates {
    ArgValueCandidates::new(move || names().map(CompletionCandidate::new).collect::<Vec<_>>())
}

fn recording(current: &OsStr) -> Vec<CompletionCandidate> {
    let is_one = |path: &std::path::Path| path.extension().is_some_and(|ending| ending == "swk");
    PathCompleter::file().filter(is_one).complete(current)
}

fn process(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (pid, command) in running::commands().unwrap_or_default() {
        let pid = pid.to_string();
        if pid.starts_with(current) {
            found.push(CompletionCandidate::new(pid).help(Some(command.into())));
        }
    }
    found
}

/// A path. If no path is begun, also the programs on `PATH`.
fn program(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = PathCompleter::any().complete(current);
    if current.is_empty() || current.as_bytes().contains(&b'/') {
        return found;
    }
    let mut names = BTreeSet::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    for folder in std::env::split_paths(&path) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_begun = name.as_bytes().starts_with(current.as_bytes());
            // Follows links; `metadata` of the entry does not.
            let runs = |found: std::fs::Metadata| {
                found.is_file() && found.permissions().mode() & 0o111 != 0
            };
            if is_begun && std::fs::metadata(entry.path()).is_ok_and(runs) {
                names.insert(name);
            }
        }
    }
    found.extend(names.into_iter().map(CompletionCandidate::new));
    found
}
