//! From the spawn to the last block: one loop over signals, the socket and the connections.
//!
//! It neither decodes blocks nor writes outputs. The invariants: the recorded program never waits
//! for us (its agents are answered at once, and a connection that is of no more use is closed), and
//! the loop ends a bounded time after recording should end. A connection is at its end when its
//! process is: a child that was forked and never execs holds the socket open, and says nothing on
//! it.

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
use diagnostics::Target;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Pid, geteuid};
use recording::BlockSplitter;
use rustix::process::{PidfdFlags, pidfd_open};

use super::attach;
use super::descendants::Descendants;
use super::init::{self, Init};
use super::signals::{Received, Signals};
use super::sink::Sink;
use crate::console::Console;
use crate::filter_args::NamePattern;
use crate::memory;
use crate::top::Top;
use crate::units;

/// How long agents have to send what they hold after they were told to stop.
const FLUSH_TIME: Duration = Duration::from_secs(5);
/// The same where they do more then.
const LONG_FLUSH_TIME: Duration = Duration::from_secs(600);
/// The same after a second Ctrl-C: the user is waiting.
const SHORT_FLUSH_TIME: Duration = Duration::from_secs(1);
/// A second Ctrl-C counts within this time of the first …
const SECOND_PRESS: Duration = Duration::from_secs(2);
/// … but not if it comes with it: `timeout` and process groups deliver one signal twice.
const SAME_PRESS: Duration = Duration::from_millis(100);
/// As many control sockets are watched as belong to processes whose streams have closed.
const MAX_STALE_SOCKETS: usize = 64;
/// How often the progress line is renewed.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Read from one connection before the others have their turn, bytes.
const READ_QUANTUM: usize = 1 << 20;

/// Replies to an agent.
const GO: &[u8] = b"G";
const NO: &[u8] = b"N";
const STOP: &[u8] = b"S";

/// Why recording ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EndReason {
    /// The program ended.
    Program,
    /// The time that the user gave is over; the program may go on.
    Duration,
    /// Ctrl-C twice; the program may go on.
    Interrupted,
    /// The file could not be written any more; the program may go on.
    SinkFailed,
}

/// A process that is being recorded.
struct Connection {
    stream: UnixStream,
    splitter: BlockSplitter,
    pid: i32,
    /// Readable when the process has ended. `None` where it cannot be had: the process is in
    /// another namespace, or has ended already.
    process: Option<OwnedFd>,
    /// It had ended when we last waited: all that it sent is there to be read.
    has_ended: bool,
    is_open: bool,
    /// Where its agent listens, if we see the same files.
    control_socket: Option<PathBuf>,
}

/// The processes to record among those that connect.
#[derive(Clone, Copy, Default)]
pub(super) struct ProcessFilter<'a> {
    /// The first one only.
    pub(super) first: bool,
    /// Those of these names; all where there is none.
    pub(super) only: &'a [NamePattern],
}

/// A recording that runs.
pub(super) struct Session<'s> {
    signals: &'s Signals,
    console: &'s Console,
    /// `None` where the programs ran already.
    child: Option<Child>,
    /// Empty once no process may join any more.
    listeners: Vec<UnixListener>,
    connections: Vec<Connection>,
    /// For what is being read.
    buffer: Vec<u8>,
    /// Processes that were told to go.
    pub(super) processes: u32,
    /// Those of them that had not sent all when they were waited for no longer.
    pub(super) unfinished: u32,
    wanted: ProcessFilter<'s>,
    /// .NET processes that were not wanted, by name.
    pub(super) unwanted: Vec<String>,
    started: Instant,
    status: Option<ExitStatus>,
    last_interrupt: Option<Instant>,
    is_interrupted_twice: bool,
    /// A signal that ends the recording, and whether it has come.
    pub(super) end_signal: Option<Signal>,
    is_ended_by_signal: bool,
    /// Control sockets of processes whose streams have closed and that had not ended then.
    stale_sockets: Vec<(OwnedFd, PathBuf)>,
    /// How long agents have at the end, where that is longer than others have.
    flush_time: Option<Duration>,
    /// The live view of the recording while it is made.
    pub(super) top: Option<Top>,
    /// The first process of a container has more to do.
    init: Option<Init>,
    /// Processes of the command, where all of them are to be recorded.
    descendants: Option<Descendants>,
    /// Processes that have connected or are not wanted, by their numbers here.
    settled: HashSet<u32>,
}

impl<'s> Session<'s> {
    /// `child` has just been started, and agents connect to one of `listeners`.
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
            ..Self::without_command(signals, console)
        }
    }

    /// Of programs that run already, each by [`Session::join`].
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
            top: None,
            init: Init::detect(),
            descendants: None,
            settled: HashSet::new(),
        }
    }

    /// Looks for processes of the command that do not connect to `socket`; where there is `None`,
    /// that are not joined.
    pub(super) fn watch(&mut self, socket: Option<&PathBuf>) {
        if let Some(child) = self.child.as_ref().filter(|_| !self.wanted.first) {
            self.descendants = Some(Descendants::of(child.id(), socket));
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

    /// Build servers that were there before the command and have worked meanwhile.
    pub(super) fn busy_servers(&self) -> Vec<String> {
        let descendants = self.descendants.iter();
        descendants.flat_map(Descendants::busy_servers).collect()
    }

    /// A process whose agent has been told to go. `process` and `control_socket` were found while
    /// it waited: of one that has ended the environment, which names the socket's folder, is empty.
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
            process,
            has_ended: false,
            is_open: true,
        });
        Ok(())
    }

    /// Records into `sink` until the program ends, `duration` is over, the user interrupts twice,
    /// or the sink fails; then lets agents finish.
    ///
    /// # Errors
    /// The system refuses to poll or to wait. The child is not waited for then.
    pub(super) fn record(
        &mut self,
        sink: &mut Sink,
        duration: Option<Duration>,
    ) -> Result<EndReason> {
        let end_at = duration.and_then(|duration| self.started.checked_add(duration));
        let mut next_progress = self.started + PROGRESS_EVERY;
        // A program that ended while it was being started: SIGCHLD was not blocked then.
        self.reap()?;
        let ended = loop {
            let is_over = self.child.is_none() && self.connections.is_empty();
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
            if let Some(top) = &mut self.top {
                if !top.turn()? {
                    break EndReason::Duration;
                }
                let due = top.due();
                wake = Some(wake.map_or(due, |end| end.min(due)));
            } else if self.console.shows_progress() {
                if now >= next_progress {
                    self.show_progress(sink);
                    next_progress = now + PROGRESS_EVERY;
                }
                wake = Some(wake.map_or(next_progress, |end| end.min(next_progress)));
            }
            if let Some(descendants) = &mut self.descendants {
                let settled = &self.settled;
                descendants.check_due(now, &|pid| settled.contains(&pid));
                let due = descendants.due();
                wake = Some(wake.map_or(due, |end| end.min(due)));
            }
            self.turn(sink, wake)?;
        };
        self.console.end_progress();
        self.finish(sink, ended)?;
        // A connection ends a moment before its process does.
        self.remove_stale_sockets();
        Ok(ended)
    }

    /// Agents walk a large heap at the end: they are waited for until the user interrupts twice.
    pub(super) fn extend_flush_time(&mut self) {
        self.flush_time = Some(LONG_FLUSH_TIME);
    }

    /// Waits for the program, forwarding signals. Returns at once where it has ended, and without
    /// a status where the user interrupts twice.
    pub(super) fn wait(&mut self) -> Result<Option<ExitStatus>> {
        self.connections.clear();
        while self.status.is_none() && !self.is_interrupted_twice {
            self.poll_once(None)?;
            self.handle_signals()?;
        }
        self.remove_stale_sockets();
        Ok(self.status)
    }

    /// Waits for one thing to happen (at most until `wake`) and handles it.
    fn turn(&mut self, sink: &mut Sink, wake: Option<Instant>) -> Result<()> {
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
                // Rounded up: waking a moment early would spin.
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
        // Those of the processes come in pairs or alone, behind the others.
        let others = self.listeners.len() + usize::from(keyboard.is_some());
        let mut ready = ready.drain(1 + others..);
        for connection in &mut self.connections {
            let _ = ready.next();
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
                    // Out of descriptors or memory: that process goes unrecorded, and says so
                    // by being absent.
                    _ => {
                        self.console
                            .warning(format_args!("a process could not be recorded: {error}"));
                        self.listeners.clear();
                        return Ok(());
                    }
                },
            };
            // A new connection has room for a byte; an agent that has gone already needs none.
            let peer = getsockopt(&stream, PeerCredentials);
            let own = geteuid().as_raw();
            // Others may find the socket that is in no folder.
            if peer.is_ok_and(|peer| peer.uid() != own && peer.uid() != 0) {
                continue;
            }
            let pid = peer.map_or(0, |peer| peer.pid());
            // Before it is answered: it waits, so the number is still its own.
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
        // A process that cannot be named is recorded: it may be the one.
        let name = match only {
            [] => None,
            _ => process_name(pid),
        };
        if let Some(name) = name.filter(|name| !only.iter().any(|wanted| wanted.is_match(name))) {
            self.unwanted.push(name);
            self.settled.extend(u32::try_from(pid));
            return false;
        }
        !first || self.processes == 0
    }

    /// Reads what has come, and drops the connections that are at their end.
    fn receive(&mut self, sink: &mut Sink) {
        for connection in &mut self.connections {
            if let Err(problem) = connection.receive(sink, &mut self.top, &mut self.buffer) {
                self.console.warning(format_args!(
                    "process {} is no longer recorded: {}",
                    connection.pid,
                    formats::visible(&problem)
                ));
                connection.is_open = false;
            }
        }
        for connection in self.connections.extract_if(.., |one| !one.is_open) {
            self.stale_sockets
                .extend(connection.process.zip(connection.control_socket));
        }
        self.remove_stale_sockets();
    }

    /// Removes the control sockets of processes that have ended: those that are killed leave them
    /// behind.
    fn remove_stale_sockets(&mut self) {
        self.stale_sockets.retain(|(process, control_socket)| {
            let mut end = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            let has_ended = poll(&mut end, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
            if has_ended
                && fs::symlink_metadata(control_socket).is_ok_and(|it| it.file_type().is_socket())
            {
                // Another may have removed it.
                let _gone = fs::remove_file(control_socket);
            }
            !has_ended
        });
        // Each holds a descriptor. Those that are forgotten leave a file at most.
        let more = self.stale_sockets.len().saturating_sub(MAX_STALE_SOCKETS);
        self.stale_sockets.drain(..more);
    }

    /// Lets the programs run unrecorded for some time. Whether it is over: it is not where the
    /// command has ended, or the user wants an end.
    ///
    /// # Errors
    /// The system refuses to poll or to wait.
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

    /// Records these processes too, from now on: a duration counts from here.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn join(&mut self, streams: Vec<(UnixStream, u32)>) -> Result<()> {
        self.started = Instant::now();
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
                Received::Passed(signal) if Some(signal) == self.end_signal => {
                    self.is_ended_by_signal = true
                }
                Received::Passed(signal) => self.forward(signal),
                Received::Ending { signal, to_all } => {
                    let is_interrupt = matches!(signal, Signal::SIGINT | Signal::SIGQUIT);
                    if self.child.is_none() {
                        // No other process is to end by it.
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
            // Until its status is known, the program's own is `Child`'s to take.
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
        // Once its status is known, the number may belong to another process.
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
            // It may have ended just now.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Lets the agents that are still there send what they hold.
    fn finish(&mut self, sink: &mut Sink, ended: EndReason) -> Result<()> {
        // Processes that connected before the end, and the blocks that were sent.
        if ended != EndReason::SinkFailed {
            self.accept()?;
            self.receive(sink);
        }
        self.listeners.clear();
        for connection in &self.connections {
            // Not sent: the agent has gone, or has not read for long; either way it will see the
            // connection close.
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
            self.unfinished += 1;
            let pid = connection.pid;
            let target = u32::try_from(pid)
                .ok()
                .and_then(|pid| Target::new(pid).ok());
            let given = units::seconds(given);
            match target.as_ref().and_then(Target::stopped_reason) {
                Some(why) => self.console.warning(format_args!(
                    "process {pid} did not finish its recording within {given}: it is {why}; its \
                     last samples are missing, and the agent is still loaded"
                )),
                None => self.console.warning(format_args!(
                    "process {pid} did not finish its recording within {given}; its last samples may \
                     be missing"
                )),
            }
        }
        Ok(())
    }

    fn show_progress(&self, sink: &Sink) {
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

/// By which the end of a process is heard of; `None` where it has ended, or the kernel is too old.
pub(super) fn pidfd_of(pid: i32) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Where the agent in a process listens; `None` where that is in another view of files.
fn control_socket_of(pid: i32) -> Option<PathBuf> {
    let target = Target::new(u32::try_from(pid).ok()?).ok()?;
    if !target.shares_our_files() {
        return None;
    }
    let folder = PathBuf::from(format!("/proc/{pid}"));
    control::socket_path(&folder, target.pid_inside())
}

/// Returns a process's name; `None` where its command line cannot be read.
fn process_name(pid: i32) -> Option<String> {
    let words = attach::command_words(u32::try_from(pid).ok()?);
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    profile::names::process(&words)
}

impl Connection {
    /// Reads up to a turn's worth. `is_open` is false after the last byte.
    fn receive(
        &mut self,
        sink: &mut Sink,
        top: &mut Option<Top>,
        buffer: &mut [u8],
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
