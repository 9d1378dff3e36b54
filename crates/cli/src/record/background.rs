//! `sidewalk start` and `sidewalk stop`: begin and end a recording of a running program.
//!
//! `start` runs `sidewalk record --pid` in the background, which makes the recording. `stop` finds
//! that process by the state of the agent.
//! Invariant: a signal is sent only to a `sidewalk` whose recording it ends.

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use control::keys;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::attach::{command_words, target};
use super::session::pidfd_of;
use crate::args::{Cli, Command as Verb, StartArgs, StopArgs};
use crate::console::Console;
use crate::list::agent_state;

/// Poll interval for the begin of the recording.
const STEP: Duration = Duration::from_millis(50);

/// Starts a recording in the background, and returns when it has begun.
///
/// # Errors
/// The process does not exist, or the tool cannot be started. The recording reports other errors.
pub(crate) fn start(args: &StartArgs, console: &Console) -> Result<ExitCode> {
    let target = target(&args.what)?;
    let pid = target.pid();
    let own = std::env::current_exe().context("cannot find sidewalk itself")?;
    let mut recorder = Command::new(own)
        .args(["record", "--quiet", "--until-signal=USR1", "--pid"])
        .arg(pid.to_string())
        .args(&args.options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // Ctrl-C at the terminal must not reach the recording.
        .process_group(0)
        .spawn()
        .context("cannot start the recording")?;
    let by = format!("process {}", recorder.id());
    loop {
        if let Some(status) = recorder.try_wait()? {
            // The recording has printed the reason, or is already complete.
            return Ok(match status.success() {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            });
        }
        let state = agent_state(&target);
        let recorded_by = state.as_ref().and_then(|state| state.get(keys::BY));
        if recorded_by.is_some_and(|known| is_recorder(known, &by)) {
            console.note(format_args!(
                "recording process {pid}; sidewalk stop {pid} ends it"
            ));
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(STEP);
    }
}

/// Ends a recording, and waits until its outputs are written.
///
/// # Errors
/// The process is not being recorded, or the recording cannot be ended from here.
pub(crate) fn stop(args: &StopArgs, console: &Console) -> Result<()> {
    let target = target(&args.what)?;
    let pid = target.pid();
    let state = agent_state(&target);
    let value_of = |key| state.as_ref().and_then(|state| state.get(key));
    let is_recorded = value_of(keys::PHASE) == Some("recording");
    let Some(by) = value_of(keys::BY).filter(|_| is_recorded) else {
        bail!("process {pid} is not being recorded; sidewalk list shows which processes are");
    };
    let recorder = by.strip_prefix("process ").and_then(|n| n.parse().ok());
    let recorder: u32 = recorder
        .with_context(|| format!("process {pid} is recorded by {}", formats::visible(by)))?;
    let words = command_words(recorder);
    let verb = verb_of(&words);
    if matches!(verb, Some(Verb::Agent(_))) {
        bail!(
            "process {pid} is recorded by sidewalk agent (process {recorder}): leave it out in the \
             agent's configuration, and send the agent SIGHUP"
        );
    }
    let signal = verb.and_then(ending_signal).with_context(|| {
        format!(
            "process {pid} is recorded by process {recorder}, which started it or cannot be \
             stopped from here; record --until-signal can be"
        )
    })?;
    let number = recorder.cast_signed();
    let process = pidfd_of(number);
    kill(Pid::from_raw(number), signal)
        .with_context(|| format!("cannot send {signal} to process {recorder}"))?;
    if let Some(process) = process {
        let mut end = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        while poll(&mut end, PollTimeout::NONE).is_err() {}
    }
    console.note(format_args!("the recording of process {pid} has ended"));
    Ok(())
}

/// Whether this process is the recorder. A recorder in a container has a suffix after its id.
fn is_recorder(known: &str, by: &str) -> bool {
    known
        .strip_prefix(by)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// The verb of a `sidewalk` with this command line.
fn verb_of(words: &[OsString]) -> Option<Verb> {
    let program = Path::new(words.first()?);
    if program.file_name()? != "sidewalk" {
        return None;
    }
    Some(Cli::try_parse_from(words).ok()?.command)
}

/// The signal that ends the recording of a `sidewalk` with this verb, but not its program.
fn ending_signal(verb: Verb) -> Option<Signal> {
    match verb {
        Verb::Record(args) => {
            let is_attached = !args.pids.is_empty();
            args.until_signal.or(is_attached.then_some(Signal::SIGINT))
        }
        Verb::Top(_) => Some(Signal::SIGINT),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_ended_by_a_signal_that_its_program_does_not_get() {
        for (line, expected) in [
            ("sidewalk record --pid 7 -o x.swk", Some(Signal::SIGINT)),
            ("/usr/bin/sidewalk record -p7", Some(Signal::SIGINT)),
            (
                "sidewalk record --quiet --until-signal=USR1 --pid 7",
                Some(Signal::SIGUSR1),
            ),
            (
                "sidewalk record --until-signal usr2 -- app",
                Some(Signal::SIGUSR2),
            ),
            (
                "sidewalk record --until-signal -- app",
                Some(Signal::SIGUSR1),
            ),
            ("sidewalk record -qp 7 -e cpu", Some(Signal::SIGINT)),
            ("sidewalk record -- app --pid 7", None),
            ("sidewalk top 7", Some(Signal::SIGINT)),
            ("other record --pid 7", None),
            ("sidewalk list", None),
            ("", None),
        ] {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(verb_of(&words).and_then(ending_signal), expected, "{line}");
        }
    }
}
