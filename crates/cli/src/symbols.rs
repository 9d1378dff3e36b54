//! `sidewalk symbols fetch`, and `record --symbols`: downloads missing debug files and PDBs.
//!
//! Runs only if the user requests it, because it reveals to symbol servers which builds the user
//! runs.
//! Invariant: a failed download leaves the recording and its reports as they were.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use profile::Profile;
use profile::model::{Location, Module};
use symbolize::{MissingFile, Symbolizer};
use symbolserver::{Failure, Fetch, FetchedFrom, FileOutcome, Limits, Progress, Server};

use crate::args::FetchArgs;
use crate::console::{Console, escaped};
use crate::{names, saved, units};

/// The server with the debug files and PDBs of .NET runtimes.
const MICROSOFT: &str = "https://msdl.microsoft.com/download/symbols";
/// Addresses of servers with Microsoft's protocol, used instead of Microsoft's, separated by
/// blanks.
const STORES: &str = "SIDEWALK_SYMBOL_SERVERS";
/// Addresses of debuginfod servers, in the variable of all debuginfod clients.
const DEBUGINFOD: &str = "DEBUGINFOD_URLS";
/// Maximum number of printed download failures of a recording.
const MAX_WARNINGS: usize = 5;

/// Runs `sidewalk symbols fetch`.
pub(crate) fn fetch(args: &FetchArgs, console: &Console) -> Result<ExitCode> {
    let fetch = fetcher(&args.servers)?;
    let modules = match args.what.to_str().and_then(|word| word.parse().ok()) {
        Some(pid) => of_process(pid)?,
        None => {
            let size = args.size.max_size;
            of_profile(&saved::read_for_lookup(Path::new(&args.what), size)?)
        }
    };
    let outcomes = run(&fetch, modules, console, &|| false);
    saved::print(&listed(&outcomes))?;
    let failed = outcomes
        .iter()
        .any(|outcome| failure_text(outcome).is_some());
    match outcomes.is_empty() {
        true => console.note("no file is missing"),
        false => console.note(format_args!(
            "in {}, where reports look",
            escaped(&fetch.folder)
        )),
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Downloads the files that the recording at `path` needs. `stop` returns whether the user has
/// cancelled. Failures are printed, but the recording does not fail.
pub(crate) fn fetch_for(path: &Path, console: &Console, stop: &dyn Fn() -> bool) {
    let outcomes = fetcher(&[]).and_then(|fetch| {
        // No size limit, as it is our own recording.
        let modules = of_profile(&saved::read_for_lookup(path, Some(u64::MAX))?);
        Ok(run(&fetch, modules, console, stop))
    });
    let outcomes = match outcomes {
        Ok(outcomes) => outcomes,
        Err(error) => {
            return console.warning(format_args!("--symbols downloaded nothing: {error:#}"));
        }
    };
    let failures: Vec<String> = outcomes
        .iter()
        // An unreachable server is reported once.
        .filter(|outcome| {
            let mut all = outcome.result.as_ref().err().into_iter().flatten();
            all.any(|(_, why)| !matches!(why, Failure::NotFound | Failure::Skipped))
        })
        .filter_map(|outcome| {
            Some(format!(
                "{}: {}",
                file_label(&outcome.wanted),
                failure_text(outcome)?
            ))
        })
        .collect();
    for failure in failures.iter().take(MAX_WARNINGS) {
        console.warning(failure);
    }
    if failures.len() > MAX_WARNINGS {
        let more = failures.len() - MAX_WARNINGS;
        console.warning(format_args!(
            "{more} more: sidewalk symbols fetch lists them"
        ));
    }
    let fetched = outcomes
        .iter()
        .filter(|outcome| outcome.result.is_ok())
        .count();
    console.note(format_args!(
        "symbols: {fetched} of {} missing files fetched",
        outcomes.len()
    ));
}

/// Whether [`fetch_for`] would have a server to query. Called before a program is recorded.
///
/// # Errors
/// A variable of the environment is not a valid server address or folder.
pub(crate) fn check() -> Result<()> {
    fetcher(&[]).map(drop)
}

fn fetcher(stores: &[String]) -> Result<Fetch> {
    let variable = |name: &str| std::env::var(name).ok();
    let addresses = variable(STORES);
    let stores: Vec<(&str, &str)> = match (stores, &addresses) {
        ([], Some(addresses)) => split_words(addresses).map(|word| (STORES, word)).collect(),
        ([], None) => vec![("", MICROSOFT)],
        (stores, _) => stores
            .iter()
            .map(|store| ("--server", store.as_str()))
            .collect(),
    };
    let debuginfod = variable(DEBUGINFOD).unwrap_or_default();
    // Newer clients accept words that are not addresses, such as ima:enforcing.
    let debuginfod = split_words(&debuginfod).filter(|word| word.contains("://"));
    let mut servers = Vec::new();
    let named = |from: &str, word: &str, why: String| anyhow!("{from} names {word}: {why}");
    for (from, word) in stores {
        servers.push(Server::symbol_store(word).map_err(|why| named(from, word, why))?);
    }
    for word in debuginfod {
        servers.push(Server::debuginfod(word).map_err(|why| named(DEBUGINFOD, word, why))?);
    }
    if servers.is_empty() {
        bail!(
            "no symbol server is configured: name one with --server URL, {STORES} or {DEBUGINFOD}"
        );
    }
    Ok(Fetch {
        servers,
        folder: names::fetched_folder()
            .context("there is no folder to keep files in: set DEBUGINFOD_CACHE_PATH to one")?,
        limits: limits(variable)?,
    })
}

fn split_words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
}

/// Returns the limits that debuginfod's clients set for a server, by their variables.
fn limits(variable: impl Fn(&str) -> Option<String>) -> Result<Limits> {
    let number = |name: &str| -> Result<Option<u64>> {
        let Some(text) = variable(name).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(0) | Err(_) => bail!("{name} is {text}, which must be a number above 0"),
            Ok(number) => Ok(Some(number)),
        }
    };
    let seconds = |name: &str, usual: Duration| -> Result<Duration> {
        Ok(number(name)?.map_or(usual, Duration::from_secs))
    };
    let usual = Limits::default();
    Ok(Limits {
        bytes: number("DEBUGINFOD_MAXSIZE")?.unwrap_or(usual.bytes),
        silence: seconds("DEBUGINFOD_TIMEOUT", usual.silence)?,
        time: seconds("DEBUGINFOD_MAXTIME", usual.time)?,
    })
}

/// Downloads the missing files of these modules.
fn run(
    fetch: &Fetch,
    modules: Vec<Module>,
    console: &Console,
    stop: &dyn Fn() -> bool,
) -> Vec<FileOutcome> {
    let mut symbolizer = Symbolizer::new(names::options());
    let native: Vec<&Module> = modules.iter().filter(|module| !module.managed).collect();
    symbolizer.open(&native);
    let mut wanted: Vec<MissingFile> = Vec::new();
    for module in &modules {
        if let Some(missing) = symbolizer.missing(module)
            && !wanted
                .iter()
                .any(|other| other.relative_path() == missing.relative_path())
        {
            wanted.push(missing.clone());
        }
    }
    let variable = |name: &str| -> Option<OsString> { std::env::var_os(name) };
    let outcomes = fetch.run(wanted, &variable, &mut |progress| {
        let Progress { done, files, bytes } = progress;
        console.progress(format_args!(
            "{done} of {files} debug files and PDBs, {}",
            units::bytes(bytes)
        ));
        match stop() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    console.end_progress();
    outcomes
}

/// The modules that have frames without names or lines in the recording.
fn of_profile(profile: &Profile) -> Vec<Module> {
    let mut seen = HashSet::new();
    let frames = profile.frames.iter().filter(|frame| match frame.location {
        // A frame with a line in the recording no longer has a location of its own.
        Location::Svma(_) | Location::Await { .. } => true,
        Location::Il { .. } => frame.line == 0,
        _ => false,
    });
    frames
        .filter_map(|frame| frame.module.filter(|module| seen.insert(*module)))
        .map(|module| profile.module(module).clone())
        .collect()
}

/// The executable mappings' files of a process, in its own view.
fn of_process(pid: u32) -> Result<Vec<Module>> {
    let root = format!("/proc/{pid}/root");
    let process = i32::try_from(pid)
        .map_err(|_| anyhow!("there is no process {pid}"))
        .and_then(|pid| Ok(procfs::process::Process::new(pid)?))
        .with_context(|| format!("cannot look at process {pid}"))?;
    let maps = process.maps().with_context(|| {
        format!("cannot read the mappings of process {pid}: run as root or as its user")
    })?;
    let mut seen = HashSet::new();
    let mut modules = Vec::new();
    for map in maps.iter() {
        let procfs::process::MMapPath::Path(path) = &map.pathname else {
            continue;
        };
        let managed = path
            .extension()
            .is_some_and(|ending| ending.eq_ignore_ascii_case("dll"));
        let is_run = map.perms.contains(procfs::process::MMPermissions::EXECUTE);
        if (managed || is_run) && seen.insert(path.clone()) {
            modules.push(Module {
                path: format!("{root}{}", path.to_string_lossy()),
                managed,
                id_bytes: Vec::new(),
                bias: 0,
                file_offset: 0,
            });
        }
    }
    Ok(modules)
}

/// One line for each file.
fn listed(outcomes: &[FileOutcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let name = file_label(&outcome.wanted);
        let line = match &outcome.result {
            Ok(FetchedFrom::Cached) => format!("here      {name}"),
            Ok(FetchedFrom::Downloaded(server, bytes)) => {
                format!("fetched   {name}, {} from {server}", units::bytes(*bytes))
            }
            Err(_) => match failure_text(outcome) {
                Some(why) => format!("failed    {name}: {why}"),
                None => format!("not found {name}"),
            },
        };
        // Writing to a `String` does not fail.
        let _ = writeln!(text, "{}", formats::visible(&line));
    }
    text
}

/// Returns a missing file's name and id: `libcoreclr.so 1f3c…`.
fn file_label(missing: &MissingFile) -> String {
    let of = missing.of().rsplit('/').next().unwrap_or_default();
    let what = match missing {
        MissingFile::DebugFile { .. } => "",
        MissingFile::Pdb { .. } => "the PDB of ",
    };
    format!("{what}{} ({})", formats::visible(of), missing.id())
}

/// Returns the failures, if any. A file that no server has is not a failure.
fn failure_text(outcome: &FileOutcome) -> Option<String> {
    let failures = outcome.result.as_ref().err()?;
    let messages = failures
        .iter()
        .filter(|(_, failure)| !matches!(failure, Failure::NotFound))
        .map(|(server, failure)| match server.is_empty() {
            true => failure.to_string(),
            false => format!("{server}: {failure}"),
        });
    let messages: Vec<String> = messages.collect();
    (!messages.is_empty()).then(|| messages.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_debuginfods() {
        let of = |set: &[(&str, &str)]| {
            limits(|name| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[]).unwrap(), Limits::default());
        let set = [
            ("DEBUGINFOD_TIMEOUT", "5"),
            ("DEBUGINFOD_MAXTIME", "60"),
            ("DEBUGINFOD_MAXSIZE", "1000"),
        ];
        let expected = Limits {
            bytes: 1000,
            silence: Duration::from_secs(5),
            time: Duration::from_secs(60),
        };
        assert_eq!(of(&set).unwrap(), expected);
        for text in ["0", "-1", "soon"] {
            let error = of(&[("DEBUGINFOD_TIMEOUT", text)]).unwrap_err().to_string();
            assert!(
                error.contains(text) && error.contains("DEBUGINFOD_TIMEOUT"),
                "{error}"
            );
        }
    }
}
