//! Attaches to running processes, requests recordings from their agents, and detaches.
//!
//! A loaded agent is found by its control socket. Otherwise the runtime is requested to load it.
//! Then a request on that socket begins the recording, and the recorded blocks arrive on the same
//! connection.
//! Invariants: nothing is sent to a process that does not listen itself. Each error states what to
//! do.

use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use control::{LoadMode, Message, PROTOCOL, ProfilerSlot, class_of, keys, reply, verb};
use diagnostics::{
    Attach, DeployedLibrary, Diagnostics, Libc, Reach, RecordingRoute, Refusal, RefusalCode,
    Survey, Target, connect_to_newest,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::agent_library::{AgentLibrary, EmbeddedAgents};
use super::session::pidfd_of;
use crate::console::{Console, escaped};
use crate::running;
use crate::units;

/// Timeout for a runtime to load the agent: it may be in a garbage collection.
const ATTACH_TIME: Duration = Duration::from_secs(10);
/// Timeout for a reply of the agent, which may be querying its runtime for fifty thousand methods.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Timeout for a runtime to detach the agent.
const DETACH_TIME: Duration = Duration::from_secs(10);

/// Maximum age, and maximum delay of the attach, of a process whose runtime is still starting.
pub(super) const STARTUP_TIME: Duration = Duration::from_secs(5);
/// Time between two attempts to attach to a starting process.
pub(super) const STARTUP_POLL: Duration = Duration::from_millis(50);
/// A process must be stopped this long to be reported as stopped: a tracer stops it for moments.
const STOPPED_TIME: Duration = Duration::from_secs(1);
/// Time in which a process may end after its sockets have failed.
const END_TIME: Duration = Duration::from_millis(500);

/// State of the agent in a process after a recording.
pub(super) enum DetachOutcome {
    /// The agent has been detached.
    Detached,
    /// The agent stays loaded and idle, for this reason.
    Idle(String),
    /// The process has ended, or does not reply.
    Unknown,
}

/// A request for a recording.
pub(super) struct RecordingRequest<'a> {
    /// The configuration, in the format of `SIDEWALK_CONFIG`.
    pub(super) configuration: &'a str,
    /// Whether the agent stays loaded afterwards.
    pub(super) stay: bool,
    /// Whether the heap will be walked.
    pub(super) walks_heap: bool,
    /// The participle for messages: `recorded`, `dumped`.
    pub(super) done: &'static str,
}

/// An agent's reply to a request for a recording.
enum BeginReply {
    /// Accepted. The blocks arrive on this stream.
    Recording(UnixStream),
    /// The agent is detaching.
    Detaching,
    /// The connection was closed without a reply.
    Closed,
}

/// Begins to record a process. Its blocks arrive on the returned stream.
///
/// # Errors
/// The process cannot be recorded, or another tool records it.
pub(super) fn begin_recording(
    target: &Target,
    embedded: EmbeddedAgents,
    request: &RecordingRequest<'_>,
) -> Result<UnixStream> {
    let pid = target.pid();
    refuse_stopped(target)?;
    let since = Instant::now();
    let begun = try_begin(target, embedded, request).and_then(|begun| match begun {
        BeginReply::Recording(stream) => Ok(BeginReply::Recording(stream)),
        BeginReply::Detaching | BeginReply::Closed => {
            // The agent is detaching. Wait for its end.
            let _gone = detach(target);
            try_begin(target, embedded, request)
        }
    });
    let error = match begun {
        Ok(BeginReply::Recording(stream)) => return Ok(stream),
        Ok(BeginReply::Detaching) => anyhow!(
            "the agent of another recording is still leaving process {pid} ({} so far); try again in \
             some seconds",
            units::seconds(since.elapsed())
        ),
        Ok(BeginReply::Closed) => anyhow!(
            "the agent in process {pid} closed the connection: it accepts only its own user and \
             root, in its user namespace"
        ),
        Err(error) => error,
    };
    // Sockets close before the process ends.
    Err(end_error(pid, request.done).unwrap_or(error))
}

/// The agent that is there, or one that is loaded now, is asked once.
fn try_begin(
    target: &Target,
    embedded: EmbeddedAgents,
    request: &RecordingRequest<'_>,
) -> Result<BeginReply> {
    let pid = target.pid();
    if let Some(stream) = connect_to_agent(target)? {
        return request_recording(pid, stream, request);
    }
    attach(target, embedded, request)?;
    let stream = connect_to_agent(target)?.with_context(|| {
        format!("the agent was loaded into process {pid}, but has no control socket there")
    })?;
    request_recording(pid, stream, request)
}

/// Refuses a stopped process, because its sockets do not reply.
fn refuse_stopped(target: &Target) -> Result<()> {
    let since = Instant::now();
    while let Some(why) = target.stopped_reason() {
        if since.elapsed() >= STOPPED_TIME {
            bail!("process {} does not answer: it is {why}", target.pid());
        }
        std::thread::sleep(STARTUP_POLL);
    }
    Ok(())
}

/// Returns the error for a process that has ended, if its sockets fail for that reason.
fn end_error(pid: u32, done: &str) -> Option<anyhow::Error> {
    if let Some(process) = pidfd_of(pid.cast_signed()) {
        let mut end = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        let wait = PollTimeout::try_from(END_TIME).unwrap_or(PollTimeout::ZERO);
        let _still_there = poll(&mut end, wait);
    }
    let error = Target::new(pid).err()?;
    let is_gone = matches!(error, diagnostics::Error::NoProcess { .. });
    is_gone.then(|| anyhow!("process {pid} ended while it was {done}"))
}

/// Connects to the agent's control socket, if the process has one.
pub(super) fn connect_to_agent(target: &Target) -> Result<Option<UnixStream>> {
    let prefix = format!("sidewalk-{}-", target.pid_inside());
    let is_it = |name: &str| name.starts_with(&prefix) && name.ends_with(".sock");
    match connect_to_newest(target, ANSWER_TIME, is_it) {
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

pub(super) fn new_request(verb: &str) -> Message {
    Message::new(verb).with(keys::PROTOCOL, PROTOCOL)
}

/// Requests a recording.
fn request_recording(
    pid: u32,
    stream: UnixStream,
    request: &RecordingRequest<'_>,
) -> Result<BeginReply> {
    let message = new_request(verb::RECORD)
        .with(keys::CONFIG, request.configuration)
        .with(keys::STAY, if request.stay { "1" } else { "0" })
        .with(keys::WHO, &recorder_name());
    let reply = control::send(&stream, &message).and_then(|()| control::receive(&stream));
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) if is_timeout(&error) => bail!(
            "process {pid} does not answer: its agent has not run for {} s (stopped, frozen, or \
             very busy)",
            ANSWER_TIME.as_secs()
        ),
        // The agent has timed out or failed. If it still exists, the next attempt finds it.
        Err(_) => return Ok(BeginReply::Closed),
    };
    let why = reply.get(keys::WHY).unwrap_or_default();
    match &*reply.verb {
        reply::OK => {
            stream.set_read_timeout(None)?;
            Ok(BeginReply::Recording(stream))
        }
        reply::BUSY => bail!(
            "process {pid} is being recorded already, by {}; wait for it, end it, or change its events \
             (--change)",
            formats::visible(reply.get(keys::BY).unwrap_or("somebody"))
        ),
        _ if reply.get(keys::HOW) == Some("leaving") => Ok(BeginReply::Detaching),
        _ => bail!(
            "process {pid} cannot be recorded: {}",
            formats::visible(why)
        ),
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The name of this tool in the agent's state, for other tools.
fn recorder_name() -> String {
    /// Inode number of the kernel's first pid namespace (`PROC_PID_INIT_INO` of
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
fn attach(target: &Target, embedded: EmbeddedAgents, request: &RecordingRequest<'_>) -> Result<()> {
    let since = Instant::now();
    loop {
        let attached = attach_now(target, embedded, request);
        let Err(error) = &attached else {
            return attached;
        };
        // A process without .NET is retried while it is young enough to become a .NET process.
        let is_young = || target.uptime().is_some_and(|uptime| uptime < STARTUP_TIME);
        let may_change = is_starting(error) || (is_young() && is_not_listening(error));
        if !may_change || since.elapsed() >= STARTUP_TIME {
            return attached;
        }
        std::thread::sleep(STARTUP_POLL);
    }
}

/// Whether the runtime reports that it is not ready.
fn is_starting(error: &anyhow::Error) -> bool {
    let answer = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<diagnostics::Error>()?.answer());
    matches!(
        answer,
        Some(RefusalCode::NOT_YET_AVAILABLE | RefusalCode::RUNTIME_UNINITIALIZED)
    )
}

/// Whether the process has no runtime, or none that listens.
fn is_not_listening(error: &anyhow::Error) -> bool {
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

fn attach_now(
    target: &Target,
    embedded: EmbeddedAgents,
    request: &RecordingRequest<'_>,
) -> Result<()> {
    let pid = target.pid();
    let reach = Reach::of(target, ATTACH_TIME);
    if reach.route? == RecordingRoute::ControlSocket {
        // The agent was loaded after the first connection attempt.
        return Ok(());
    }
    let survey = reach.survey.unwrap_or_default();
    let agent = AgentLibrary::find(embedded, survey.libc.unwrap_or(Libc::Glibc(None)))?;
    let deployed = DeployedLibrary::new(target, &survey, agent.path())?;
    let attached = load(target, deployed.library(), request);
    if attached.is_err() {
        deployed.clean_up();
    }
    attached.with_context(|| format!("cannot attach to process {pid}; see sidewalk doctor {pid}"))
}

/// Makes the runtime load the agent. `library` is a path in the process's view.
fn load(target: &Target, library: &Path, request: &RecordingRequest<'_>) -> Result<()> {
    let pid = target.pid();
    let socket = control::socket_path(&target_folder(pid), target.pid_inside())
        .with_context(|| format!("process {pid} has ended"))?;
    let mut data = new_request(verb::ATTACH).with(keys::SOCKET, &socket.to_string_lossy());
    if request.walks_heap {
        data = data.with(keys::HEAP, "1");
    }
    let library = library
        .to_str()
        .with_context(|| format!("the runtime does not accept the path {}", escaped(library)))?;
    let runtime = Diagnostics::new(target, ATTACH_TIME);
    let into = |slot| {
        runtime.attach_profiler(&Attach {
            clsid: class_of(LoadMode::Attached, slot),
            library,
            client_data: data.to_text().as_bytes(),
            collection: ATTACH_TIME,
        })
    };
    match into(ProfilerSlot::Main) {
        Err(error) if error.answer() == Some(RefusalCode::ALREADY_ACTIVE) => {
            into(ProfilerSlot::Notification).map_err(Into::into)
        }
        other => other.map_err(Into::into),
    }
}

fn target_folder(pid: u32) -> std::path::PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Makes the agent detach from a process, and waits until it has.
pub(super) fn detach(target: &Target) -> DetachOutcome {
    let Ok(found) = connect_to_agent(target) else {
        return DetachOutcome::Unknown;
    };
    let Some(stream) = found else {
        return DetachOutcome::Detached;
    };
    let reply = stream
        .set_read_timeout(Some(DETACH_TIME))
        .and_then(|()| control::send(&stream, &new_request(verb::DETACH)))
        .and_then(|()| control::receive(&stream));
    match reply {
        Ok(reply) if reply.get(keys::HOW) == Some("left") => DetachOutcome::Detached,
        Ok(reply) if reply.verb == reply::OK => {
            DetachOutcome::Idle(reply.get(keys::WHY).unwrap_or_default().to_owned())
        }
        // Another tool has connected meanwhile.
        Ok(reply) if reply.verb == reply::BUSY => {
            DetachOutcome::Idle("another recording has started meanwhile".to_owned())
        }
        // The agent detached before it received the request.
        _ if matches!(connect_to_agent(target), Ok(None)) => DetachOutcome::Detached,
        _ => DetachOutcome::Unknown,
    }
}

/// Prints the agent's state after a recording.
pub(super) fn report_detach(pid: u32, left: &DetachOutcome, console: &Console) {
    match left {
        DetachOutcome::Detached => console.note(format_args!(
            "the agent has detached from process {pid}, which continues"
        )),
        DetachOutcome::Idle(why) => console.note(format_args!(
            "the agent stays loaded in process {pid}, idle: {}",
            formats::visible(why)
        )),
        DetachOutcome::Unknown => {}
    }
}

/// Finds the processes that a user names by process id or by program.
///
/// # Errors
/// No process matches, or a name matches several.
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

/// Finds the process that a user names by process id or by program.
///
/// # Errors
/// No process matches, or a name matches several.
pub(super) fn target(word: &str) -> Result<Target> {
    match word.parse::<u32>() {
        Ok(pid) => Ok(Target::new(pid)?),
        Err(_) => by_name(word),
    }
}

fn by_name(name: &str) -> Result<Target> {
    let mut found = Vec::new();
    for pid in running::pids().context("cannot look for processes")? {
        let folder = target_folder(pid);
        let line = std::fs::read(folder.join("cmdline")).unwrap_or_default();
        let program = std::fs::read_link(folder.join("exe")).unwrap_or_default();
        if pid != std::process::id() && has_name(&line, &program, name) {
            found.push((pid, command_of(&line)));
        }
    }
    // Processes without .NET are ignored, such as a shell with the name in a script, or an editor.
    found.retain(|(pid, _)| Target::new(*pid).is_ok_and(|target| runs_dotnet(&target)));
    match found.as_slice() {
        [] => bail!("no .NET process is named {name}; sidewalk list shows the running ones"),
        [(pid, _)] => Ok(Target::new(*pid)?),
        many => {
            let lines: Vec<String> = many
                .iter()
                .map(|(pid, command)| format!("  {pid}  {}", formats::visible(command)))
                .collect();
            bail!(
                "several processes are named {name}; give the PID of one:\n{}",
                lines.join("\n")
            )
        }
    }
}

/// Whether a process has a CLR: as a library, or linked into the program.
fn runs_dotnet(target: &Target) -> bool {
    Survey::of(target).is_ok_and(|survey| !survey.runtimes.is_empty())
}

/// Returns a process and its descendants that have a CLR.
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

/// Whether a process has this name: the one that it was started by, its program's, or the result of
/// [`profile::names::process`] for its command line, with or without the file name ending.
fn has_name(line: &[u8], program: &Path, name: &str) -> bool {
    let words = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    let file_name = |path: &Path| {
        let name = path.file_name()?.to_string_lossy();
        // The kernel marks a file that has been replaced.
        Some(name.trim_end_matches(" (deleted)").to_owned())
    };
    let names = [
        words.first().and_then(|word| file_name(Path::new(&**word))),
        file_name(program),
        profile::names::process(&words),
    ];
    names.into_iter().flatten().any(|known| {
        let stem = Path::new(&known).file_stem().unwrap_or_default();
        known == name || stem == name
    })
}

fn command_of(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line).replace('\0', " ");
    text.trim_end().chars().take(100).collect()
}

/// Returns the command's words, from which a recording's file name is made.
pub(super) fn command_words(pid: u32) -> Vec<std::ffi::OsString> {
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
    fn a_runtime_that_was_just_born_is_given_time() {
        let refused = |answer| {
            let error = diagnostics::Error::Refused {
                pid: 7,
                command: "AttachProfiler",
                answer,
            };
            Err::<(), _>(error).context("cannot attach").unwrap_err()
        };
        for answer in [
            RefusalCode::NOT_YET_AVAILABLE,
            RefusalCode::RUNTIME_UNINITIALIZED,
        ] {
            assert!(is_starting(&refused(answer)), "{answer}");
        }
        assert!(!is_starting(&refused(RefusalCode::ALREADY_ACTIVE)));
        let stale = diagnostics::Error::Stale {
            path: "/tmp/s".into(),
        };
        for (refusal, may_change) in [
            (Refusal::NoDotnet { pid: 7 }, true),
            (stale.into(), true),
            (Refusal::NativeAot { pid: 7 }, false),
            (Refusal::UserNamespace { pid: 7 }, false),
        ] {
            let error = anyhow::Error::from(refusal);
            assert_eq!(is_not_listening(&error), may_change, "{error}");
        }
    }

    #[test]
    fn a_process_that_ends_meanwhile_is_said_to_have_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let error = end_error(pid, "dumped").unwrap();
        let expected = format!("process {pid} ended while it was dumped");
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_process_is_called_as_its_program_or_its_dll() {
        let dotnet = "/usr/bin/dotnet";
        for (line, program, name, fits) in [
            (
                &b"/usr/bin/dotnet\0bin/App.dll\0x\0"[..],
                dotnet,
                "App",
                true,
            ),
            (b"/usr/bin/dotnet\0bin/App.dll\0", dotnet, "App.dll", true),
            (b"/usr/bin/dotnet\0bin/App.dll\0", dotnet, "dotnet", true),
            (b"/opt/server\0--port\0", "/opt/server-1.2", "server", true),
            (b"/opt/server\0--port\0", "/opt/app (deleted)", "app", true),
            (b"dotnet\0build\0-p:A=x.dll\0", dotnet, "dotnet build", true),
            (b"dotnet\0build\0-p:A=x.dll\0", dotnet, "x", false),
            (b"vi\0App.cs\0", "/usr/bin/vi", "App", false),
            (b"", "", "App", false),
        ] {
            assert_eq!(has_name(line, Path::new(program), name), fits, "{name}");
        }
    }
}
