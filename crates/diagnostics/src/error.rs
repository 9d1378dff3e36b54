//! Errors between us and a runtime.
//!
//! The invariant: each text says what happened and, where something can be done, what.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::RefusalCode;

/// Why a runtime was not reached, or did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no process of that number.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The number.
        pid: u32,
    },
    /// It is just ending: its memory is gone.
    #[error("process {pid} is ending")]
    Ending {
        /// The process.
        pid: u32,
    },
    /// It is this user's, and the kernel shows it to root alone.
    #[error(
        "process {pid} is yours, but has privileges of its own (set-uid, file capabilities, \
         PR_SET_DUMPABLE): only root can examine it ({what})"
    )]
    Privileged {
        /// The process.
        pid: u32,
        /// The operation that could not be done.
        what: &'static str,
    },
    /// It is another user's, or one that does not let itself be looked at.
    #[error(
        "process {pid} belongs to another user, or cannot be examined ({what}); \
         run sidewalk as that user or as root"
    )]
    Denied {
        /// The process.
        pid: u32,
        /// The operation that could not be done.
        what: &'static str,
    },
    /// There is no socket of that process.
    #[error(
        "process {pid} has no diagnostics socket in {}: {why}",
        folder.display()
    )]
    NoSocket {
        /// The process.
        pid: u32,
        /// Where it was looked for, as we see it.
        folder: PathBuf,
        /// Why that may be.
        why: &'static str,
    },
    /// There is a socket of that name, and no process listens on it.
    #[error(
        "no process listens on {}: the process of that number has ended, or its diagnostics have",
        path.display()
    )]
    Stale {
        /// The socket, as we see it.
        path: PathBuf,
    },
    /// There is a socket of that name, and another process listens on it.
    #[error(
        "process {listener}, not process {pid}, listens on {}; nothing was sent to it",
        path.display()
    )]
    Impostor {
        /// The process that was asked for.
        pid: u32,
        /// The process that listens (0: one that we cannot see).
        listener: i32,
        /// The socket, as we see it.
        path: PathBuf,
    },
    /// No answer in time.
    #[error(
        "process {pid} did not answer {command} within {} s: it is stopped (SIGSTOP, a debugger) or \
         frozen (a paused container), its diagnostics thread is busy with another command, or an agent is still detaching after --trace",
        waited.as_secs_f64()
    )]
    NoAnswer {
        /// The process.
        pid: u32,
        /// The command, which it may still carry out.
        command: &'static str,
        /// How long we waited.
        waited: Duration,
    },
    /// It hung up without an answer.
    #[error("process {pid} {} ({command})", hung_up(*goes_on))]
    Ended {
        /// The process.
        pid: u32,
        /// The command.
        command: &'static str,
        /// It was still there then.
        goes_on: bool,
    },
    /// It refuses.
    #[error("the runtime of process {pid} refused {command}: {answer}: {}", answer.advice())]
    Refused {
        /// The process.
        pid: u32,
        /// The command.
        command: &'static str,
        /// With what.
        answer: RefusalCode,
    },
    /// Its answer makes no sense.
    #[error("the diagnostics socket gave an invalid answer: {0}")]
    Malformed(&'static str),
    /// More than a message of the protocol can hold.
    #[error("the path and settings of the profiler are too long for a message ({bytes} bytes)")]
    TooLong {
        /// The length of the message.
        bytes: usize,
    },
    /// The operating system.
    #[error("{what}: {source}")]
    Os {
        /// The operation that was being done.
        what: String,
        /// Its error.
        source: io::Error,
    },
}

impl Error {
    /// The runtime's answer, if this is one.
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
