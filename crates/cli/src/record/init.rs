//! The duties of a process 1, which the tool is where a container's command is `sidewalk record`.
//!
//! A program that is process 1 itself finds two things there that a child of the tool does not:
//! orphans become its children, and a signal that it does not catch does nothing to it
//! (`sig_ignored` in the kernel's kernel/signal.c). The invariant: no process is left a zombie, and
//! the program gets the signals that it catches, and no other.

use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};

use super::signals::mask_in;

/// The tool is process 1.
pub(super) struct Init(());

impl Init {
    /// `None` where another process is.
    pub(super) fn detect() -> Option<Self> {
        rustix::process::getpid().is_init().then_some(Self(()))
    }

    /// Takes the ends of all that were orphaned; that of `own` stays to be asked for.
    pub(super) fn reap(&self, own: Option<u32>) {
        let own = own.and_then(|id| i32::try_from(id).ok());
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Ok(found) = waitid(Id::All, ended)
            && let Some(pid) = found.pid()
            // Behind it there may be others; its end is taken at the next turn, and then theirs.
            && Some(pid.as_raw()) != own
        {
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// Whether the process `pid` catches the signal.
pub(super) fn catches(pid: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    mask_in(&status, "SigCgt:") & 1 << (signal as i32 - 1) != 0
}
