//! Errors of the communication with a runtime.
//!
//! Invariant: each message states what happened and, if possible, what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::RefusalCode;

/// Why a runtime could not be reached, or did not carry out a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No process has this id.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The process id.
        pid: u32,
    },
    /// The process is just ending: its memory is freed.
    #[error("process {pid} is ending")]
    Ending {
        /// The process.
        pid: u32,
    },
    /// The process is this user's, but the kernel lets only root examine it.
    #[error(
        "process {pid} is yours, but has privileges of its own (set-uid, file capabilities, \
         PR_SET_DUMPABLE): only root can examine it ({what})"
    )]
    Privileged {
        /// The process.
        pid: u32,
        /// The operation that failed.
        what: &'static str,
    },
    /// The process is another user's, or has disabled access to itself.
    #[error(
        "process {pid} belongs to another user, or cannot be examined ({what}); \
         run sidewalk as that user or as root"
    )]
    Denied {
        /// The process.
        pid: u32,
        /// The operation that failed.
        what: &'static str,
    },
    /// The process has no socket.
    #[error(
        "process {pid} has no diagnostics socket in {}: {why}",
        folder.display()
    )]
    NoSocket {
        /// The process.
        pid: u32,
        /// Where the socket was searched for, in our view.
        folder: PathBuf,
        /// The possible reason.
        why: &'static str,
    },
    /// The socket exists, but no process listens on it.
    #[error(
        "no process listens on {}: the process of that number has ended, or its diagnostics have",
        path.display()
    )]
    Stale {
        /// Path of the socket, in our view.
        path: PathBuf,
    },
    /// The socket exists, but another process listens on it.
    #[error(
        "process {listener}, not process {pid}, listens on {}; nothing was sent to it",
        path.display()
    )]
    Impostor {
        /// The requested process.
        pid: u32,
        /// The process that listens (0: one outside our namespace).
        listener: i32,
        /// Path of the socket, in our view.
        path: PathBuf,
    },
    /// No reply in time.
    #[error(
        "process {pid} did not answer {command} within {} s: it is stopped (SIGSTOP, a debugger) or \
         frozen (a paused container), its diagnostics thread is busy with another command, or an agent is still detaching after --trace",
        waited.as_secs_f64()
    )]
    NoAnswer {
        /// The process.
        pid: u32,
        /// The command. The runtime may still carry it out.
        command: &'static str,
        /// The timeout.
        waited: Duration,
    },
    /// The connection was closed without a reply.
    #[error("process {pid} {} ({command})", hung_up(*goes_on))]
    Ended {
        /// The process.
        pid: u32,
        /// The command.
        command: &'static str,
        /// Whether the process still existed.
        goes_on: bool,
    },
    /// The runtime refused.
    #[error("the runtime of process {pid} refused {command}: {answer}: {}", answer.advice())]
    Refused {
        /// The process.
        pid: u32,
        /// The command.
        command: &'static str,
        /// Its HRESULT.
        answer: RefusalCode,
    },
    /// The reply is malformed.
    #[error("the diagnostics socket gave an invalid answer: {0}")]
    Malformed(&'static str),
    /// The command is longer than a message of the protocol can be.
    #[error("the path and settings of the profiler are too long for a message ({bytes} bytes)")]
    TooLong {
        /// The length of the message.
        bytes: usize,
    },
    /// The operating system reported an error.
    #[error("{what}: {source}")]
    Os {
        /// The operation that failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// The runtime's HRESULT, if this is a refusal.
    pub fn answer(&self) -> Option<RefusalCode> {
        match self {
            Error::Refused { answer, .. } => Some(*answer),
            _ => None,
        }
    }
}

fn hung_up(goes_on: bool) -> &'static str {
    match goes_on {
        true => {
            "closed the connection without an answer: it may have no descriptor left (ulimit -n), or \
             be about to end"
        }
        false => "ended before it answered",
    }
}
