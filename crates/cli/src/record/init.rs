//! Duties of process 1, for a container whose command is `sidewalk record`.
//!
//! A program that is process 1 itself has two privileges that a child of the tool lacks: orphans
//! become its children, and a signal that it does not catch has no effect on it (`sig_ignored` in
//! the kernel's kernel/signal.c).
//! Invariants: no process remains a zombie. The program gets only the signals that it catches.

use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};

use super::signals::mask_in;

/// Proof that the tool is process 1.
pub(super) struct Init(());

impl Init {
    /// `None` if the tool is not process 1.
    pub(super) fn detect() -> Option<Self> {
        rustix::process::getpid().is_init().then_some(Self(()))
    }

    /// Reaps all orphans that have ended, but not the child `own`, whose status is read elsewhere.
    pub(super) fn reap(&self, own: Option<u32>) {
        let own = own.and_then(|id| i32::try_from(id).ok());
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Ok(found) = waitid(Id::All, ended)
            && let Some(pid) = found.pid()
            // `own` may hide other ended processes. They are reaped after its own status was read.
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
