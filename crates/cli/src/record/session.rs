//! The event loop of a recording: signals, the agents' sockets and their connections.
//!
//! Runs from the spawn to the last block, on the tool's main thread. Blocks go to the sink
//! (`sink`); only the agents' notes are read here, and outputs are written elsewhere.
//! Invariants: the recorded program never waits for the tool, because agents are answered at once
//! and useless connections are closed. The loop ends a bounded time after recording should end.
//! A connection ends with its process: a forked child that never execs holds the socket open, but
//! sends nothing.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use diagnostics::{Libc, Target};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Pid, geteuid};
use recording::{BlockSplitter, ProcessKey};
use rustix::process::{PidfdFlags, pidfd_open};

use super::attach;
use super::daemon::Finder;
use super::descendants::Descendants;
use super::init::{self, Init};
use super::signals::{Received, Signals};
use super::sink::BlockSink;
use crate::console::Console;
use crate::filter_args::NamePattern;
use crate::memory;
use crate::top::Top;
use crate::units;

/// Time in which agents must send their remaining data after the stop request.
const FLUSH_TIME: Duration = Duration::from_secs(5);
/// Flush time for agents that do more work at the end.
const LONG_FLUSH_TIME: Duration = Duration::from_secs(600);
/// Flush time after a second Ctrl-C, as the user is waiting.
const SHORT_FLUSH_TIME: Duration = Duration::from_secs(1);
/// A second Ctrl-C counts within this time of the first …
const SECOND_PRESS: Duration = Duration::from_secs(2);
/// … but not within this time: `timeout` and process groups deliver one signal twice.
const SAME_PRESS: Duration = Duration::from_millis(100);
/// Maximum number of watched control sockets of processes whose streams have closed.
const MAX_STALE_SOCKETS: usize = 64;
/// Maximum number of remembered names of processes that were excluded.
const MAX_UNWANTED: usize = 1_000;
/// Update interval of the progress line.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Time between two reads of the connections in `sidewalk agent`.
const PACE: Duration = Duration::from_millis(100);
/// Maximum bytes read from one connection before the others are read.
const READ_QUANTUM: usize = 1 << 20;

/// Replies to an agent.
const GO: &[u8] = b"G";
const NO: &[u8] = b"N";
const STOP: &[u8] = b"S";

/// The reason why recording ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EndReason {
    /// The program ended.
    Program,
    /// The requested time is over. The program may still run.
    Duration,
    /// Ctrl-C was pressed twice. The program may still run.
    Interrupted,
    /// The file could not be written any more. The program may still run.
    SinkFailed,
}

/// A recorded process.
struct Connection {
    stream: UnixStream,
    splitter: BlockSplitter,
    pid: i32,
    /// The process in the recording, from its first block on.
    key: Option<ProcessKey>,
    /// Readable when the process has ended. `None` if the process is in another namespace, or had
    /// already ended.
    process: Option<OwnedFd>,
    /// Whether the process had ended at the last poll: all its data is ready to be read.
    has_ended: bool,
    /// Whether there may be something to read.
    is_ready: bool,
    is_open: bool,
    /// Path of the agent's control socket, if it is in our view of files.
    control_socket: Option<PathBuf>,
}

/// Selects the processes to record among those that connect.
#[derive(Clone, Copy, Default)]
pub(super) struct ProcessFilter<'a> {
    /// Records only the first one.
    pub(super) first: bool,
    /// Records only processes with these names. All if empty.
    pub(super) only: &'a [NamePattern],
}

/// A running recording.
pub(super) struct Session<'s> {
    signals: &'s Signals,
    console: &'s Console,
    /// `None` if the programs already ran.
    child: Option<Child>,
    /// Empty when no more processes may join.
    listeners: Vec<UnixListener>,
    connections: Vec<Connection>,
    /// Read buffer.
    buffer: Vec<u8>,
    /// Number of accepted processes.
    pub(super) processes: u32,
    /// How many of them had not sent all their data when the flush time ended.
    pub(super) unfinished: u32,
    wanted: ProcessFilter<'s>,
    /// Names of .NET processes that were excluded by the filter.
    pub(super) unwanted: Vec<String>,
    started: Instant,
    status: Option<ExitStatus>,
    last_interrupt: Option<Instant>,
    is_interrupted_twice: bool,
    /// The signal that ends the recording, and whether it has arrived.
    pub(super) end_signal: Option<Signal>,
    is_ended_by_signal: bool,
    /// Control sockets of processes that had not ended when their streams closed.
    stale_sockets: Vec<(OwnedFd, PathBuf)>,
    /// Flush time at the end, if longer than usual.
    flush_time: Option<Duration>,
    /// Whether the agents' notes are printed when they arrive.
    pub(super) prints_notes: bool,
    /// The live view of `sidewalk top`.
    pub(super) top: Option<Top>,
    /// Duties of process 1, if the tool is the first process of a container.
    init: Option<Init>,
    /// Processes of the command, if all of them are to be recorded.
    descendants: Option<Descendants>,
    /// Finds more processes, in `sidewalk agent`.
    pub(super) finder: Option<Finder>,
    /// Process ids, in our namespace, that have connected or were excluded.
    settled: HashSet<u32>,
}

impl<'s> Session<'s> {
    /// Returns the session of a started `child`, whose agents connect to `listeners`.
    pub(super) fn new(
        child: Child,
        listeners: Vec<UnixListener>,
        wanted: ProcessFilter<'s>,
        signals: &'s Signals,
        console: &'s Console,
    ) -> Self {
        Self {
            child: Some(child),
            listeners,
            wanted,
            prints_notes: true,
            ..Self::without_command(signals, console)
        }
    }

    /// Returns a session for running programs. [`Session::join`] adds them.
    pub(super) fn without_command(signals: &'s Signals, console: &'s Console) -> Self {
        Self {
            signals,
            console,
            child: None,
            listeners: Vec::new(),
            connections: Vec::new(),
            buffer: vec![0; 1 << 16],
            processes: 0,
            unfinished: 0,
            wanted: ProcessFilter::default(),
            unwanted: Vec::new(),
            started: Instant::now(),
            status: None,
            last_interrupt: None,
            is_interrupted_twice: false,
            end_signal: None,
            is_ended_by_signal: false,
            stale_sockets: Vec::new(),
            flush_time: None,
            prints_notes: false,
            top: None,
            init: Init::detect(),
            descendants: None,
            finder: None,
            settled: HashSet::new(),
        }
    }

    /// Looks for processes of the command that do not connect to `socket`; where there is `None`,
    /// that are not joined. Their agents are those for `libc`, or for each C library.
    pub(super) fn watch(&mut self, socket: Option<&PathBuf>, libc: Option<Libc>) {
        if let Some(child) = self.child.as_ref().filter(|_| !self.wanted.first) {
            self.descendants = Some(Descendants::of(child.id(), socket, libc));
        }
    }

    /// .NET processes of the command that were not recorded, with the reason.
    pub(super) fn unrecorded(&self) -> Vec<String> {
        let is_settled = |pid| self.settled.contains(&pid);
        let descendants = self.descendants.iter();
        descendants
            .flat_map(|descendants| descendants.unrecorded(&is_settled))
            .collect()
    }

    /// Build servers that ran before the command and have used CPU time since.
    pub(super) fn busy_servers(&self) -> Vec<String> {
        let descendants = self.descendants.iter();
        descendants.flat_map(Descendants::busy_servers).collect()
    }

    /// Adds a process whose agent has been accepted. The caller found `process` and
    /// `control_socket` while the agent waited: an ended process has no environment, which names
    /// the socket's folder.
    fn add(
        &mut self,
        stream: UnixStream,
        pid: i32,
        process: Option<OwnedFd>,
        control_socket: Option<PathBuf>,
    ) -> Result<()> {
        stream.set_nonblocking(true)?;
        self.processes += 1;
        self.settled.extend(u32::try_from(pid));
        self.connections.push(Connection {
            control_socket,
            stream,
            splitter: BlockSplitter::new(),
            pid,
            key: None,
            process,
            has_ended: false,
            is_ready: true,
            is_open: true,
        });
        Ok(())
    }

    /// Records into `sink` until the program ends, `duration` is over, the user interrupts twice,
    /// or the sink fails. Then waits for the agents to finish.
    ///
    /// # Errors
    /// Polling or waiting fails. The child is not waited for in this case.
    pub(super) fn record(
        &mut self,
        sink: &mut dyn BlockSink,
        duration: Option<Duration>,
    ) -> Result<EndReason> {
        let end_at = duration.and_then(|duration| self.started.checked_add(duration));
        let mut next_progress = self.started + PROGRESS_EVERY;
        // The program may have ended while it was being started: SIGCHLD was not blocked yet.
        self.reap()?;
        let ended = loop {
            let is_over =
                self.child.is_none() && self.connections.is_empty() && self.finder.is_none();
            if self.status.is_some() || is_over {
                break EndReason::Program;
            }
            if sink.failure().is_some() {
                break EndReason::SinkFailed;
            }
            if self.is_interrupted_twice {
                break EndReason::Interrupted;
            }
            let now = Instant::now();
            if self.is_ended_by_signal || end_at.is_some_and(|end| now >= end) {
                break EndReason::Duration;
            }
            let mut wake = end_at;
            if let Some(due) = sink.turn(self.console)? {
                wake = sooner(wake, due);
            }
            if let Some(top) = &mut self.top {
                if !top.turn()? {
                    break EndReason::Duration;
                }
                let due = top.due();
                wake = sooner(wake, due);
            } else if self.console.shows_progress() {
                if now >= next_progress {
                    self.show_progress(sink);
                    next_progress = now + PROGRESS_EVERY;
                }
                wake = sooner(wake, next_progress);
            }
            if let Some(descendants) = &mut self.descendants {
                let settled = &self.settled;
                descendants.check_due(now, &|pid| settled.contains(&pid));
                let due = descendants.due();
                wake = sooner(wake, due);
            }
            if let Some(finder) = &mut self.finder {
                let streams = finder.turn(self.console);
                let due = finder.due();
                wake = sooner(wake, due);
                self.add_all(streams)?;
            }
            self.turn(sink, wake)?;
            if self.finder.is_some() {
                // Hundreds of processes send a little at any time. Their sockets hold it so long.
                std::thread::sleep(PACE);
            }
        };
        self.console.end_progress();
        self.finish(sink, ended)?;
        // A connection ends a moment before its process.
        self.remove_stale_sockets();
        Ok(ended)
    }

    /// Extends the flush time, because agents walk a large heap at the end. A second Ctrl-C still
    /// ends it.
    pub(super) fn extend_flush_time(&mut self) {
        self.flush_time = Some(LONG_FLUSH_TIME);
    }

    /// Waits for the program and forwards signals. Returns at once if it has ended, and without a
    /// status if the user interrupts twice.
    pub(super) fn wait(&mut self) -> Result<Option<ExitStatus>> {
        self.connections.clear();
        while self.status.is_none() && !self.is_interrupted_twice {
            self.poll_once(None)?;
            self.handle_signals()?;
        }
        self.remove_stale_sockets();
        Ok(self.status)
    }

    /// Waits for one event (at most until `wake`) and handles it.
    fn turn(&mut self, sink: &mut dyn BlockSink, wake: Option<Instant>) -> Result<()> {
        self.poll_once(wake)?;
        // Processes that connected before the child ended must still be read, so accept first.
        self.accept()?;
        self.receive(sink);
        self.handle_signals()
    }

    fn poll_once(&mut self, wake: Option<Instant>) -> Result<()> {
        let timeout = match wake {
            None => PollTimeout::NONE,
            Some(wake) => {
                let left = wake.saturating_duration_since(Instant::now());
                // Rounded up: waking a moment early would busy-wait.
                let ms = left.as_nanos().div_ceil(1_000_000);
                PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
            }
        };
        let mut waiting = vec![PollFd::new(self.signals.fd().as_fd(), PollFlags::POLLIN)];
        for listener in &self.listeners {
            waiting.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
        }
        let keyboard = self.top.as_ref().and_then(Top::keyboard);
        if let Some(keyboard) = keyboard {
            waiting.push(PollFd::new(keyboard, PollFlags::POLLIN));
        }
        for connection in &self.connections {
            waiting.push(PollFd::new(connection.stream.as_fd(), PollFlags::POLLIN));
            if let Some(process) = &connection.process {
                waiting.push(PollFd::new(process.as_fd(), PollFlags::POLLIN));
            }
        }
        match poll(&mut waiting, timeout) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(()),
            Err(error) => return Err(error).context("cannot wait for the program"),
        }
        let mut ready: Vec<bool> = waiting.iter().map(|fd| fd.any() == Some(true)).collect();
        // The connections' descriptors come after the others, one or two for each.
        let others = self.listeners.len() + usize::from(keyboard.is_some());
        let mut ready = ready.drain(1 + others..);
        for connection in &mut self.connections {
            connection.is_ready = ready.next() == Some(true);
            if connection.process.is_some() {
                connection.has_ended = ready.next() == Some(true);
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some(listener) = self.listeners.get(at) {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => {
                        at += 1;
                        continue;
                    }
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                    // Out of descriptors or memory. The process is not recorded, and is reported as
                    // missing.
                    _ => {
                        self.console
                            .warning(format_args!("a process could not be recorded: {error}"));
                        self.listeners.clear();
                        return Ok(());
                    }
                },
            };
            // A new connection has room for a byte. An agent that has already ended needs no reply.
            let peer = getsockopt(&stream, PeerCredentials);
            let own = geteuid().as_raw();
            // Other users can find the abstract socket.
            if peer.is_ok_and(|peer| peer.uid() != own && peer.uid() != 0) {
                continue;
            }
            let pid = peer.map_or(0, |peer| peer.pid());
            // Before the reply: the agent waits for it, so its process id is still valid.
            let (process, control_socket) = (pidfd_of(pid), control_socket_of(pid));
            let is_wanted = self.is_wanted(pid);
            let answered = (&stream).write_all(if is_wanted { GO } else { NO });
            if !is_wanted || answered.is_err() {
                continue;
            }
            self.add(stream, pid, process, control_socket)?;
        }
        Ok(())
    }

    pub(super) fn is_wanted(&mut self, pid: i32) -> bool {
        let ProcessFilter { first, only } = self.wanted;
        // A process without a readable name is recorded, because it may be the wanted one.
        let name = match only {
            [] => None,
            _ => process_name(pid),
        };
        if let Some(name) = name.filter(|name| !only.iter().any(|wanted| wanted.is_match(name))) {
            if self.unwanted.len() < MAX_UNWANTED && !self.unwanted.contains(&name) {
                self.unwanted.push(name);
            }
            self.settled.extend(u32::try_from(pid));
            return false;
        }
        !first || self.processes == 0
    }

    /// Reads received data, and drops connections that have ended.
    fn receive(&mut self, sink: &mut dyn BlockSink) {
        let mut notes = Vec::new();
        // With hundreds of processes, most have sent nothing.
        let ready = self.connections.iter_mut();
        for connection in ready.filter(|one| one.is_ready || one.has_ended) {
            let received = connection.receive(sink, &mut self.top, &mut self.buffer, &mut notes);
            if let Err(problem) = received {
                self.console.warning(format_args!(
                    "process {} is no longer recorded: {}",
                    connection.pid,
                    formats::visible(&problem)
                ));
                connection.is_open = false;
            }
        }
        if self.prints_notes && !self.console.is_programs_screen() {
            notes.retain(|note| sink.see_note(note));
            for note in notes {
                self.console.note(formats::visible(&note));
            }
        }
        for connection in self.connections.extract_if(.., |one| !one.is_open) {
            connection
                .key
                .into_iter()
                .for_each(|key| sink.disconnected(key));
            if let (Some(finder), Ok(pid)) = (&mut self.finder, u32::try_from(connection.pid)) {
                finder.disconnected(pid);
            }
            self.stale_sockets
                .extend(connection.process.zip(connection.control_socket));
        }
        self.remove_stale_sockets();
    }

    /// Removes the control sockets of processes that have ended. Killed processes leave them
    /// behind.
    fn remove_stale_sockets(&mut self) {
        self.stale_sockets.retain(|(process, control_socket)| {
            let mut end = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            let has_ended = poll(&mut end, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
            if has_ended
                && fs::symlink_metadata(control_socket).is_ok_and(|it| it.file_type().is_socket())
            {
                // Another process may have removed it.
                let _gone = fs::remove_file(control_socket);
            }
            !has_ended
        });
        // Each holds a descriptor. A dropped one leaves a file behind at most.
        let more = self.stale_sockets.len().saturating_sub(MAX_STALE_SOCKETS);
        self.stale_sockets.drain(..more);
    }

    /// Lets the programs run unrecorded for some time. Returns false if the command ended first, or
    /// the user wants to end.
    ///
    /// # Errors
    /// Polling or waiting fails.
    pub(super) fn idle(&mut self, time: Duration) -> Result<bool> {
        let until = Instant::now() + time;
        self.reap()?;
        while self.status.is_none() && !self.is_interrupted_twice {
            if Instant::now() >= until {
                return Ok(true);
            }
            self.poll_once(Some(until))?;
            self.handle_signals()?;
        }
        Ok(false)
    }

    /// Adds these processes to the recording. A duration counts from here.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn join(&mut self, streams: Vec<(UnixStream, u32)>) -> Result<()> {
        self.started = Instant::now();
        self.add_all(streams)
    }

    fn add_all(&mut self, streams: Vec<(UnixStream, u32)>) -> Result<()> {
        for (stream, pid) in streams {
            let pid = pid.cast_signed();
            self.add(stream, pid, pidfd_of(pid), control_socket_of(pid))?;
        }
        Ok(())
    }

    fn handle_signals(&mut self) -> Result<()> {
        while let Some(received) = self.signals.next().context("cannot read signals")? {
            match received {
                Received::ChildChanged => self.reap()?,
                Received::Passed(signal) | Received::Ending { signal, .. }
                    if Some(signal) == self.end_signal =>
                {
                    self.is_ended_by_signal = true;
                }
                Received::Passed(signal) => self.forward(signal),
                Received::Ending { signal, to_all } => {
                    let is_interrupt = matches!(signal, Signal::SIGINT | Signal::SIGQUIT);
                    if self.child.is_none() {
                        // Only the recording ends by this signal, so no process gets it.
                        self.is_interrupted_twice = true;
                    } else if is_interrupt {
                        self.count_interrupt();
                    }
                    if !to_all {
                        self.forward(signal);
                    }
                }
            }
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<()> {
        if let Some(child) = &mut self.child
            && self.status.is_none()
        {
            self.status = child.try_wait().context("cannot wait for the program")?;
            if let Some(status) = self.status {
                memory::set_exit_code(memory::shell_code(status));
            }
        }
        if let Some(init) = &self.init {
            // Until the status is known, only `Child` may reap the program.
            let own = self.child.as_ref().filter(|_| self.status.is_none());
            init.reap(own.map(Child::id));
        }
        Ok(())
    }

    fn count_interrupt(&mut self) {
        let now = Instant::now();
        match self.last_interrupt {
            Some(last) if now - last < SAME_PRESS => {}
            Some(last) if now - last <= SECOND_PRESS => self.is_interrupted_twice = true,
            _ => self.last_interrupt = Some(now),
        }
    }

    fn forward(&self, signal: Signal) {
        // Once the status is known, the id may belong to another process.
        if self.status.is_some() {
            return;
        }
        let Some(child) = self.child.as_ref().map(Child::id) else {
            return;
        };
        if self.init.is_some() && !init::catches(child, signal) {
            return;
        }
        if let Ok(pid) = i32::try_from(child) {
            // The process may have ended just now.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Waits for the remaining agents to send their data.
    fn finish(&mut self, sink: &mut dyn BlockSink, ended: EndReason) -> Result<()> {
        // Reads processes that connected before the end, and blocks already sent.
        if ended != EndReason::SinkFailed {
            self.accept()?;
            self.receive(sink);
        }
        self.listeners.clear();
        for connection in &self.connections {
            // Not sent: the agent has ended, or has not read for long. It will see the connection
            // close in both cases.
            let _ = (&connection.stream).write(STOP);
        }
        if ended == EndReason::SinkFailed {
            self.connections.clear();
            return Ok(());
        }
        let given = if let Some(flush_time) = self.flush_time {
            flush_time
        } else if self.is_interrupted_twice && self.child.is_some() {
            SHORT_FLUSH_TIME
        } else {
            FLUSH_TIME
        };
        let deadline = Instant::now() + given;
        while !self.connections.is_empty() && Instant::now() < deadline {
            if self.flush_time.is_some() && self.is_interrupted_twice {
                break;
            }
            self.turn(sink, Some(deadline))?;
        }
        for connection in self.connections.drain(..) {
            connection
                .key
                .into_iter()
                .for_each(|key| sink.disconnected(key));
            let pid = connection.pid;
            let target = u32::try_from(pid)
                .ok()
                .and_then(|pid| Target::new(pid).ok());
            let text = unfinished(pid, given, target.map(|target| target.stopped_reason()));
            self.console.warning(&text);
            sink.note(&text);
            self.unfinished += 1;
        }
        Ok(())
    }

    fn show_progress(&self, sink: &dyn BlockSink) {
        let processes = match self.processes {
            0 => "no .NET process yet".to_owned(),
            1 => "1 process".to_owned(),
            many => format!("{many} processes"),
        };
        self.console.progress(format_args!(
            "recording {}, {processes}, {}; Ctrl-C ends it",
            units::seconds(self.started.elapsed()),
            units::bytes(sink.length())
        ));
    }
}

/// The note on a process that did not finish its recording in the time `given`. `process` is why it
/// stands still, if it does; `None` if the process is not in our view, or has ended.
fn unfinished(pid: i32, given: Duration, process: Option<Option<&str>>) -> String {
    let given = units::seconds(given);
    let goes_on = profile::names::GOES_ON;
    match process {
        Some(Some(why)) => format!(
            "process {pid} {goes_on}: it is {why}; its last samples are missing, and the agent is \
             still loaded"
        ),
        Some(None) => format!(
            "process {pid} {goes_on}: its recording was ended after {given} without an answer; its \
             last samples may be missing"
        ),
        None => format!(
            "process {pid} did not finish its recording within {given}; its last samples may be \
             missing"
        ),
    }
}

fn sooner(wake: Option<Instant>, due: Instant) -> Option<Instant> {
    wake.into_iter().chain([due]).min()
}

/// Opens the pidfd of a process, for its end. `None` if it has ended, or the kernel is too old.
pub(super) fn pidfd_of(pid: i32) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Path of the control socket of a process. `None` if it is in another view of files.
fn control_socket_of(pid: i32) -> Option<PathBuf> {
    let target = Target::new(u32::try_from(pid).ok()?).ok()?;
    if !target.shares_our_files() {
        return None;
    }
    let folder = PathBuf::from(format!("/proc/{pid}"));
    control::socket_path(&folder, target.pid_inside())
}

/// Returns a process's name. `None` if its command line cannot be read.
fn process_name(pid: i32) -> Option<String> {
    let words = attach::command_words(u32::try_from(pid).ok()?);
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    profile::names::process(&words)
}

impl Connection {
    /// Reads at most [`READ_QUANTUM`] bytes, and adds the agent's notes to `notes`. `is_open` is
    /// false after the last byte.
    fn receive(
        &mut self,
        sink: &mut dyn BlockSink,
        top: &mut Option<Top>,
        buffer: &mut [u8],
        notes: &mut Vec<String>,
    ) -> Result<(), String> {
        let mut received = 0;
        while received < READ_QUANTUM {
            match self.stream.read(buffer) {
                Ok(0) => {
                    self.is_open = false;
                    return Ok(());
                }
                Ok(length) => {
                    received += length;
                    self.splitter.feed(buffer.get(..length).unwrap_or_default());
                    while let Some(block) = self.splitter.next_block().map_err(|e| e.to_string())? {
                        sink.append_block(&block);
                        self.key = Some(block.process);
                        notes.extend(block.notes());
                        if let Some(top) = top {
                            top.block(block.bytes);
                        }
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => {
                        self.is_open = !self.has_ended;
                        return Ok(());
                    }
                    ErrorKind::Interrupted => {}
                    // A process that is killed may leave unread bytes behind.
                    ErrorKind::ConnectionReset => {
                        self.is_open = false;
                        return Ok(());
                    }
                    _ => return Err(io::Error::to_string(&error)),
                },
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::Color;

    #[test]
    fn a_process_that_does_not_answer_is_said_to_go_on() {
        let note = |process| unfinished(7, FLUSH_TIME, process);
        let frozen = "frozen by its control group (a paused container)";
        insta::assert_snapshot!(note(Some(Some(frozen))), @"process 7 stopped answering and goes on: it is frozen by its control group (a paused container); its last samples are missing, and the agent is still loaded");
        insta::assert_snapshot!(note(Some(None)), @"process 7 stopped answering and goes on: its recording was ended after 5.0 s without an answer; its last samples may be missing");
        insta::assert_snapshot!(note(None), @"process 7 did not finish its recording within 5.0 s; its last samples may be missing");
    }

    #[test]
    fn a_process_that_is_not_wanted_is_not_missed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agents");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let signals = Signals::take().unwrap();
        let console = Console::new(true, Color::Auto);
        let only = [NamePattern::parse("other").unwrap()];
        let mut session = Session {
            listeners: vec![listener],
            wanted: ProcessFilter {
                first: false,
                only: &only,
            },
            ..Session::without_command(&signals, &console)
        };
        let mut agent = UnixStream::connect(&path).unwrap();
        session.accept().unwrap();
        let mut answer = [0];
        agent.read_exact(&mut answer).unwrap();
        assert_eq!(answer, NO);
        assert_eq!(session.processes, 0);
        assert!(session.settled.contains(&std::process::id()));
    }
}
