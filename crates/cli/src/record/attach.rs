//! Coming to a process that runs, and leaving it.
//!
//! An agent that is there already is found by its control socket; else the runtime is asked to load
//! it. Either way the recording begins with a request on that socket, over which it then comes. The
//! invariant: nothing is sent to a process that does not listen itself, and what cannot be done is
//! said with what to do.

use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use control::{Arrival, Message, PROTOCOL, Slot, answer, ask, class_of, keys};
use diagnostics::{
    Answer, Attach, Deployed, Diagnostics, Libc, Reach, Refusal, Survey, Target, Way, connect_where,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::agent_library::{Agent, Carried};
use super::session::process_of;
use crate::console::{Console, shown};

/// How long a runtime has to load the agent: it may be collecting.
const ATTACH_TIME: Duration = Duration::from_secs(10);
/// How long an agent has to answer; it may be asking its runtime for fifty thousand methods.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long a runtime has to let the agent go.
const LEAVE_TIME: Duration = Duration::from_secs(10);

/// How long a runtime that was just born may take until it can be attached to.
const BIRTH_TIME: Duration = Duration::from_secs(5);
/// Time between two tries of that.
const BIRTH_STEP: Duration = Duration::from_millis(50);
/// For so long a process must stand still to be called stopped: a tracer stops it for moments.
const STANDSTILL_TIME: Duration = Duration::from_secs(1);
/// How long a process whose sockets no longer answer may take to end.
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

/// A request to an agent.
pub(super) struct Wish<'a> {
    /// As `SIDEWALK_CONFIG` has it.
    pub(super) configuration: &'a str,
    /// It stays afterwards.
    pub(super) stay: bool,
    /// The heap will be walked.
    pub(super) walks_heap: bool,
    /// The verb for what happens to the process, for messages: `recorded`, `dumped`.
    pub(super) done: &'static str,
}

/// An agent's answer to a request for a recording.
enum Begun {
    /// Over the stream come the blocks.
    Recording(UnixStream),
    /// It says that it is leaving the process.
    Leaving,
    /// It hung up without an answer.
    HungUp,
}

/// Begins to record a process: over the stream come its blocks from here on.
///
/// # Errors
/// It cannot be recorded, or another tool records it.
pub(super) fn join(target: &Target, carried: Carried, wish: &Wish<'_>) -> Result<UnixStream> {
    let pid = target.pid();
    refuse_standstill(target)?;
    let begun = join_once(target, carried, wish).and_then(|begun| match begun {
        Begun::Recording(stream) => Ok(Begun::Recording(stream)),
        Begun::Leaving | Begun::HungUp => {
            // It is on its way out.
            let _gone = leave(target);
            join_once(target, carried, wish)
        }
    });
    let error = match begun {
        Ok(Begun::Recording(stream)) => return Ok(stream),
        Ok(Begun::Leaving) => anyhow!(
            "the agent of another recording is leaving process {pid}; try again in some seconds (after \
             --trace it may take a minute)"
        ),
        Ok(Begun::HungUp) => anyhow!(
            "the agent in process {pid} closed the connection: it accepts its own user and root, in \
             its user namespace"
        ),
        Err(error) => error,
    };
    // Sockets go before the process does.
    Err(ended(pid, wish.done).unwrap_or(error))
}

/// The agent that is there, or one that is loaded now, is asked once.
fn join_once(target: &Target, carried: Carried, wish: &Wish<'_>) -> Result<Begun> {
    let pid = target.pid();
    if let Some(stream) = knock(target)? {
        return begin(pid, stream, wish);
    }
    attach(target, carried, wish)?;
    let stream = knock(target)?.with_context(|| {
        format!("the agent was loaded into process {pid} and is not to be found there")
    })?;
    begin(pid, stream, wish)
}

/// Refuses a process that does not run, as its sockets do not answer.
fn refuse_standstill(target: &Target) -> Result<()> {
    let since = Instant::now();
    while let Some(why) = target.standstill() {
        if since.elapsed() >= STANDSTILL_TIME {
            bail!("process {} does not answer: it is {why}", target.pid());
        }
        std::thread::sleep(BIRTH_STEP);
    }
    Ok(())
}

/// Returns the error for a process that has ended, in which no socket answers.
fn ended(pid: u32, done: &str) -> Option<anyhow::Error> {
    if let Some(process) = process_of(pid.cast_signed()) {
        let mut end = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        let wait = PollTimeout::try_from(END_TIME).unwrap_or(PollTimeout::ZERO);
        let _still_there = poll(&mut end, wait);
    }
    let error = Target::new(pid).err()?;
    let is_gone = matches!(error, diagnostics::Error::NoProcess { .. });
    is_gone.then(|| anyhow!("process {pid} ended while it was {done}"))
}

/// Connects to the agent at the control socket, if there is one.
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

/// Asks for a recording.
fn begin(pid: u32, stream: UnixStream, wish: &Wish<'_>) -> Result<Begun> {
    let message = request(ask::RECORD)
        .with(keys::CONFIG, wish.configuration)
        .with(keys::STAY, if wish.stay { "1" } else { "0" })
        .with(keys::WHO, &own_name());
    let said = control::send(&stream, &message).and_then(|()| control::receive(&stream));
    let said = match said {
        Ok(said) => said,
        Err(error) if is_timeout(&error) => bail!(
            "process {pid} does not answer: the agent in it has had no turn for {} s (stopped, frozen, \
             or very busy)",
            ANSWER_TIME.as_secs()
        ),
        // It had no time for us any more, or has failed: if it is still there, it is found again.
        Err(_) => return Ok(Begun::HungUp),
    };
    let why = said.get(keys::WHY).unwrap_or_default();
    match &*said.verb {
        answer::OK => {
            stream.set_read_timeout(None)?;
            Ok(Begun::Recording(stream))
        }
        answer::BUSY => bail!(
            "process {pid} is being recorded already, by {}; wait for it, end it, or change its events \
             (--change)",
            formats::visible(said.get(keys::BY).unwrap_or("somebody"))
        ),
        _ if said.get(keys::HOW) == Some("leaving") => Ok(Begun::Leaving),
        _ => bail!(
            "process {pid} cannot be recorded: {}",
            formats::visible(why)
        ),
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// By which others are told who records.
fn own_name() -> String {
    /// The number of the kernel's first namespace of processes (`PROC_PID_INIT_INO` of
    /// include/linux/proc_ns.h).
    const FIRST: &str = "pid:[4026531836]";
    let pid = std::process::id();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    match namespace == Path::new(FIRST) || namespace.as_os_str().is_empty() {
        true => format!("process {pid}"),
        false => format!("process {pid} of its container"),
    }
}

/// Has the runtime load the agent, from where it can. One that was just born is given some time.
fn attach(target: &Target, carried: Carried, wish: &Wish<'_>) -> Result<()> {
    let since = Instant::now();
    loop {
        let attached = attach_now(target, carried, wish);
        let Err(error) = &attached else {
            return attached;
        };
        // One that is no .NET is asked for as long as it may become one.
        let is_young = || target.uptime().is_some_and(|uptime| uptime < BIRTH_TIME);
        let may_change = is_starting(error) || (is_young() && is_not_there_yet(error));
        if !may_change || since.elapsed() >= BIRTH_TIME {
            return attached;
        }
        std::thread::sleep(BIRTH_STEP);
    }
}

/// The runtime says that it is not ready.
fn is_starting(error: &anyhow::Error) -> bool {
    let answer = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<diagnostics::Error>()?.answer());
    matches!(
        answer,
        Some(Answer::NOT_YET_AVAILABLE | Answer::RUNTIME_UNINITIALIZED)
    )
}

/// There is no runtime, or none that listens.
fn is_not_there_yet(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<Refusal>(),
        Some(
            Refusal::NoDotnet { .. }
                | Refusal::Unreachable(
                    diagnostics::Error::NoSocket { .. } | diagnostics::Error::Stale { .. }
                )
        )
    )
}

fn attach_now(target: &Target, carried: Carried, wish: &Wish<'_>) -> Result<()> {
    let pid = target.pid();
    let reach = Reach::of(target, ATTACH_TIME);
    if reach.way? == Way::ControlSocket {
        // It has come between our knock and now.
        return Ok(());
    }
    let survey = reach.survey.unwrap_or_default();
    let agent = Agent::find(carried, survey.libc.unwrap_or(Libc::Glibc(None)))?;
    let deployed = Deployed::new(target, &survey, agent.path())?;
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
        // Another tool has connected meanwhile.
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
        let target = target(word)?;
        if found.iter().all(|known| known.pid() != target.pid()) {
            found.push(target);
        }
    }
    Ok(found)
}

/// The process that a user means, likewise.
///
/// # Errors
/// There is none, or a name fits several.
pub(super) fn target(word: &str) -> Result<Target> {
    match word.parse::<u32>() {
        Ok(pid) => Ok(Target::new(pid)?),
        Err(_) => by_name(word),
    }
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
    // Processes that run no .NET are not meant: a shell with the name in a script, an editor.
    found.retain(|(pid, _)| Target::new(*pid).is_ok_and(|target| runs_dotnet(&target)));
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

/// Whether a CLR is in a process: a library of its own, or linked into the program.
fn runs_dotnet(target: &Target) -> bool {
    Survey::of(target).is_ok_and(|survey| !survey.runtimes.is_empty())
}

/// A process and all that it has started, those with a CLR.
pub(super) fn tree(root: u32) -> Vec<Target> {
    let processes = procfs::process::all_processes().into_iter().flatten();
    let stats = processes
        .flatten()
        .filter_map(|process| process.stat().ok());
    let number = |pid: i32| u32::try_from(pid).unwrap_or_default();
    let parents: Vec<(u32, u32)> = stats
        .map(|stat| (number(stat.pid), number(stat.ppid)))
        .collect();
    let mut found = vec![root];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        let children = parents.iter().filter(|(_, of)| *of == parent);
        let new: Vec<u32> = children
            .map(|(pid, _)| *pid)
            .filter(|pid| !found.contains(pid))
            .collect();
        found.extend(new);
        at += 1;
    }
    let targets = found.into_iter().filter_map(|pid| Target::new(pid).ok());
    targets.filter(runs_dotnet).collect()
}

/// Whether a process has this name: its program, or what [`profile::names::process`] makes of its
/// command line, with its ending or without.
fn is_called(line: &[u8], name: &str) -> bool {
    let words = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    let program = words.first().map(|word| {
        let file = Path::new(&**word).file_name().unwrap_or_default();
        file.to_string_lossy().into_owned()
    });
    let names = [program, profile::names::process(&words)];
    names.into_iter().flatten().any(|known| {
        let stem = Path::new(&known).file_stem().unwrap_or_default();
        known == name || stem == name
    })
}

fn command_of(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line).replace('\0', " ");
    text.trim_end().chars().take(100).collect()
}

/// Returns the words that a recording of this process is named after.
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
            (b"dotnet\0build\0-p:A=x.dll\0", "dotnet build", true),
            (b"dotnet\0build\0-p:A=x.dll\0", "x", false),
            (b"vi\0App.cs\0", "App", false),
            (b"", "App", false),
        ] {
            assert_eq!(is_called(line, name), fits, "{name}");
        }
    }
}
