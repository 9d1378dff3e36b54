//! Starts programs for tests, with default signal actions and a time limit.
//!
//! An ignored signal stays ignored through `exec`. `nohup cargo test &` and some CI runners ignore
//! SIGINT and SIGHUP. Without the reset, SIGINT would not end a program, and its test would wait
//! forever.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Time limit of a program in a test.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(540);

/// Gives the command's program the default action for each signal, and no blocked signals.
pub fn with_default_signals(command: &mut Command) -> &mut Command {
    let reset = || {
        for signal in 1..=libc::SIGRTMAX() {
            // SAFETY: no handler is installed. SIGKILL, SIGSTOP and the signals of the C library
            // are refused, which changes nothing.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: this thread's own mask and a set that is made here.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: the closure only calls signal and sigprocmask, which a child may do between fork and
    // exec.
    unsafe { command.pre_exec(reset) }
}

/// Starts a program in its own process group, with [`with_default_signals`]. The group is killed
/// after nine minutes, which ends every wait for the program or its output, and when the test
/// fails. Dropping the [`Deadline`] without a panic cancels both.
///
/// # Panics
/// When the program cannot be started.
pub fn start_in_time(command: &mut Command) -> (Child, Deadline) {
    let child = with_default_signals(command)
        .process_group(0)
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let group = libc::pid_t::try_from(child.id()).expect("the kernel's numbers are smaller");
    let (ended, end) = channel();
    std::thread::spawn(move || {
        if end.recv_timeout(TIME_LIMIT) == Err(RecvTimeoutError::Timeout) {
            kill_group(group);
        }
    });
    (
        child,
        Deadline {
            group,
            _ended: ended,
        },
    )
}

/// Kills the process group of [`start_in_time`] when the time is over, or when dropped by a panic.
/// Held until the program has ended.
#[derive(Debug)]
pub struct Deadline {
    group: libc::pid_t,
    /// Dropped to end the thread that waits for the time limit.
    _ended: Sender<()>,
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if std::thread::panicking() {
            kill_group(self.group);
        }
    }
}

fn kill_group(group: libc::pid_t) {
    // SAFETY: a signal to a group that we have started.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}
