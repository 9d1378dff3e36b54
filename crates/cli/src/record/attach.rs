//! Coming to a process that runs, and leaving it.
//!
//! An agent that is there already is found by its control socket; else the runtime is asked to load it. Either way
//! the recording begins with a request on that socket, over which it then comes. The invariant: nothing is sent to
//! a process that does not listen itself, and what cannot be done is said with what to do.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use control::{Arrival, Message, PROTOCOL, Slot, answer, ask, class_of, keys};
use diagnostics::{Answer, Attach, Deployed, Diagnostics, Reach, Target, Way, connect_where};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::session::process_of;
use crate::console::{Console, shown};

/// How long a runtime has to load the agent: it may be collecting.
const ATTACH_TIME: Duration = Duration::from_secs(10);
/// How long an agent has to answer; it may be asking its runtime for fifty thousand methods.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long a runtime has to let the agent go.
const LEAVE_TIME: Duration = Duration::from_secs(10);

/// How long a process may be ending when nobody answers in it any more.
const END_TIME: Duration = Duration::from_millis(500);

/// How the agent and a process stand after a recording.
pub(super) enum Left {
    /// It is out of the process.
    Away,
    /// It stays, and does nothing.
    Idle(String),
    /// The process has ended, or says nothing.
    Unknown,
}

/// What is asked of an agent.
pub(super) struct Wish<'a> {
    /// As `SIDEWALK_CONFIG` has it.
    pub(super) configuration: &'a str,
    /// It stays afterwards.
    pub(super) stay: bool,
    /// The heap will be walked.
    pub(super) walks_heap: bool,
}

/// Begins to record a process: over the stream come its blocks from here on.
///
/// # Errors
/// It cannot be recorded, or somebody else does so.
pub(super) fn join(target: &Target, agent: &Path, wish: &Wish<'_>) -> Result<UnixStream> {
    let pid = target.pid();
    for _ in 0..2 {
        let Some(stream) = knock(target)? else {
            attach(target, agent, wish)?;
            let stream = knock(target)?.ok_or_else(|| {
                ended(pid).unwrap_or_else(|| {
                    anyhow!("the agent was loaded into process {pid} and is not to be found there")
                })
            })?;
            return begin(pid, stream, wish)?.ok_or_else(|| leaving(pid));
        };
        if let Some(stream) = begin(pid, stream, wish)? {
            return Ok(stream);
        }
        // It is on its way out.
        let _gone = leave(target);
    }
    Err(leaving(pid))
}

fn leaving(pid: u32) -> anyhow::Error {
    ended(pid).unwrap_or_else(|| {
        anyhow!(
            "the agent of another recording is just leaving process {pid}; try again in some seconds"
        )
    })
}

/// Why nobody answers in a process that ends: its sockets go before it does.
fn ended(pid: u32) -> Option<anyhow::Error> {
    if let Some(process) = process_of(pid.cast_signed()) {
        let mut end = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        let wait = PollTimeout::try_from(END_TIME).unwrap_or(PollTimeout::ZERO);
        let _still_there = poll(&mut end, wait);
    }
    let error = Target::new(pid).err()?;
    let is_gone = matches!(error, diagnostics::Error::NoProcess { .. });
    is_gone.then(|| {
        anyhow::Error::from(error).context("the program ended while it was being recorded")
    })
}

/// Somebody at the control socket, if there is one.
pub(super) fn knock(target: &Target) -> Result<Option<UnixStream>> {
    let prefix = format!("sidewalk-{}-", target.pid_inside());
    let is_it = |name: &str| name.starts_with(&prefix) && name.ends_with(".sock");
    match connect_where(target, ANSWER_TIME, is_it) {
        Ok(stream) => {
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(ANSWER_TIME))?;
            stream.set_write_timeout(Some(ANSWER_TIME))?;
            Ok(Some(stream))
        }
        Err(diagnostics::Error::NoSocket { .. } | diagnostics::Error::Stale { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn request(verb: &str) -> Message {
    Message::new(verb).with(keys::PROTOCOL, PROTOCOL)
}

/// Asks for a recording. `None`: the agent is leaving.
fn begin(pid: u32, stream: UnixStream, wish: &Wish<'_>) -> Result<Option<UnixStream>> {
    let message = request(ask::RECORD)
        .with(keys::CONFIG, wish.configuration)
        .with(keys::STAY, if wish.stay { "1" } else { "0" })
        .with(keys::WHO, &format!("process {}", std::process::id()));
    let said = control::send(&stream, &message).and_then(|()| control::receive(&stream));
    let Ok(said) = said else {
        // It had no time for us any more, or has failed: if it is still there, it is found again.
        return Ok(None);
    };
    let why = said.get(keys::WHY).unwrap_or_default();
    match &*said.verb {
        answer::OK => {
            stream.set_read_timeout(None)?;
            Ok(Some(stream))
        }
        answer::BUSY => bail!(
            "process {pid} is being recorded already, by {}; wait for it, end it, or change its events \
             (--change)",
            formats::visible(said.get(keys::BY).unwrap_or("somebody"))
        ),
        _ if said.get(keys::HOW) == Some("leaving") => Ok(None),
        _ => bail!(
            "process {pid} cannot be recorded: {}",
            formats::visible(why)
        ),
    }
}

/// Has the runtime load the agent, from where it can.
fn attach(target: &Target, agent: &Path, wish: &Wish<'_>) -> Result<()> {
    let pid = target.pid();
    let reach = Reach::of(target, ATTACH_TIME);
    if reach.way? == Way::ControlSocket {
        // It has come between our knock and now.
        return Ok(());
    }
    let survey = reach.survey.unwrap_or_default();
    let deployed = Deployed::new(target, &survey, agent)?;
    let attached = load(target, deployed.library(), wish);
    if attached.is_err() {
        deployed.clean_up();
    }
    attached.with_context(|| format!("cannot attach to process {pid}; see sidewalk doctor {pid}"))
}

/// The same, from there. The library is a path of the process's view.
fn load(target: &Target, library: &Path, wish: &Wish<'_>) -> Result<()> {
    let pid = target.pid();
    let socket = control::path_of(&target_folder(pid), target.pid_inside())
        .with_context(|| format!("process {pid} has ended"))?;
    let mut data = request(ask::ATTACH).with(keys::SOCKET, &socket.to_string_lossy());
    if wish.walks_heap {
        data = data.with(keys::HEAP, "1");
    }
    let library = library
        .to_str()
        .with_context(|| format!("the runtime takes no path like {}", shown(library)))?;
    let runtime = Diagnostics::new(target, ATTACH_TIME);
    let into = |slot| {
        runtime.attach_profiler(&Attach {
            clsid: class_of(Arrival::Attached, slot),
            library,
            client_data: data.to_text().as_bytes(),
            collection: ATTACH_TIME,
        })
    };
    match into(Slot::Main) {
        Err(error) if error.answer() == Some(Answer::ALREADY_ACTIVE) => {
            into(Slot::Notification).map_err(Into::into)
        }
        other => other.map_err(Into::into),
    }
}

fn target_folder(pid: u32) -> std::path::PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Has the agent leave a process, and waits until it has.
pub(super) fn leave(target: &Target) -> Left {
    let Ok(found) = knock(target) else {
        return Left::Unknown;
    };
    let Some(stream) = found else {
        return Left::Away;
    };
    let said = stream
        .set_read_timeout(Some(LEAVE_TIME))
        .and_then(|()| control::send(&stream, &request(ask::LEAVE)))
        .and_then(|()| control::receive(&stream));
    match said {
        Ok(said) if said.get(keys::HOW) == Some("left") => Left::Away,
        Ok(said) if said.verb == answer::OK => {
            Left::Idle(said.get(keys::WHY).unwrap_or_default().to_owned())
        }
        // Somebody else has come meanwhile.
        Ok(said) if said.verb == answer::BUSY => Left::Idle("somebody else records now".to_owned()),
        // It went before it heard us.
        _ if matches!(knock(target), Ok(None)) => Left::Away,
        _ => Left::Unknown,
    }
}

/// Says how the agent and a process stand.
pub(super) fn tell(pid: u32, left: &Left, console: &Console) {
    match left {
        Left::Away => console.note(format_args!(
            "the agent has left process {pid}, which goes on"
        )),
        Left::Idle(why) => console.note(format_args!(
            "the agent stays in process {pid} and does nothing: {}",
            formats::visible(why)
        )),
        Left::Unknown => {}
    }
}

/// The processes that a user means: by number, or by the name of their program.
///
/// # Errors
/// There is none, or a name fits several.
pub(super) fn targets(wanted: &[String]) -> Result<Vec<Target>> {
    let mut found: Vec<Target> = Vec::new();
    for word in wanted {
        let target = match word.parse::<u32>() {
            Ok(pid) => Target::new(pid)?,
            Err(_) => by_name(word)?,
        };
        if found.iter().all(|known| known.pid() != target.pid()) {
            found.push(target);
        }
    }
    Ok(found)
}

fn by_name(name: &str) -> Result<Target> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")
        .context("cannot look for processes")?
        .flatten()
    {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if pid != std::process::id() && is_called(&line, name) {
            found.push((pid, command_of(&line)));
        }
    }
    found.sort_unstable();
    // What runs no .NET is not meant: a shell with the name in a script, an editor.
    found.retain(|(pid, _)| runs_dotnet(*pid));
    match found.as_slice() {
        [] => bail!("no .NET process is called {name}; sidewalk list shows those that there are"),
        [(pid, _)] => Ok(Target::new(*pid)?),
        many => {
            let lines: Vec<String> = many
                .iter()
                .map(|(pid, command)| format!("  {pid}  {}", formats::visible(command)))
                .collect();
            bail!(
                "several processes are called {name}; say which by number:\n{}",
                lines.join("\n")
            )
        }
    }
}

fn runs_dotnet(pid: u32) -> bool {
    let maps = std::fs::read(target_folder(pid).join("maps")).unwrap_or_default();
    let needle = b"libcoreclr.so";
    maps.windows(needle.len()).any(|window| window == needle)
}

/// Whether a program, or the .dll that its host runs, has this name.
fn is_called(line: &[u8], name: &str) -> bool {
    let mut words = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty());
    let stem = |word: &[u8]| {
        let text = String::from_utf8_lossy(word);
        let file = Path::new(&*text);
        let plain = file
            .file_name()
            .map(|file| file.to_string_lossy().into_owned());
        let stem = file
            .file_stem()
            .map(|file| file.to_string_lossy().into_owned());
        [plain, stem]
            .into_iter()
            .flatten()
            .any(|known| known == name)
    };
    let Some(program) = words.next() else {
        return false;
    };
    stem(program) || words.find(|word| word.ends_with(b".dll")).is_some_and(stem)
}

fn command_of(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line).replace('\0', " ");
    text.trim_end().chars().take(100).collect()
}

/// What a recording of this process is named after.
pub(super) fn words_of(pid: u32) -> Vec<std::ffi::OsString> {
    use std::os::unix::ffi::OsStringExt;
    let line = std::fs::read(target_folder(pid).join("cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| std::ffi::OsString::from_vec(word.to_vec()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_called_as_its_program_or_its_dll() {
        for (line, name, fits) in [
            (&b"/usr/bin/dotnet\0bin/App.dll\0x\0"[..], "App", true),
            (b"/usr/bin/dotnet\0bin/App.dll\0", "App.dll", true),
            (b"/usr/bin/dotnet\0bin/App.dll\0", "dotnet", true),
            (b"/opt/server\0--port\0", "server", true),
            (b"vi\0App.cs\0", "App", false),
            (b"", "App", false),
        ] {
            assert_eq!(is_called(line, name), fits, "{name}");
        }
    }
}
