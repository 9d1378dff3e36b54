//! The tool as process 1, as in a container whose command it is.

use std::process::Command;

use crate::tests::{Ran, by, scene};

/// Runs the player below a tool that is process 1 of a namespace of its own.
fn run_as_first(actions: &[&str]) -> Ran {
    let mut first = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        first.args(["--user", "--map-root-user"]);
    }
    first.args(["--pid", "--fork", "--mount-proc"]);
    by(first, scene(&["-q", "-o", "x.swk"], actions)).run()
}

pub(crate) fn orphans_are_reaped() {
    let ran = run_as_first(&["connect", "samples=1", "orphan", "end", "exit=5"]);
    ran.code(5);
    assert_eq!(ran.stdout, "it is gone\n");
}

/// As the kernel has it of process 1: a signal that it does not catch does nothing to it.
pub(crate) fn only_signals_that_the_program_catches_reach_it() {
    // Signals that are pending together come in the order of their numbers, so the last is the
    // last.
    let actions = [
        "connect",
        "samples=1",
        "tell-parent=SIGHUP",
        "tell-parent=SIGQUIT",
        "tell-parent=SIGUSR1",
        "tell-parent=SIGALRM",
        "ask-parent=SIGWINCH",
        "end",
        "exit=5",
    ];
    let ran = run_as_first(&actions);
    ran.code(5);
    assert_eq!(ran.stdout, "SIGWINCH\n");
    assert_eq!(ran.profile("x.swk").samples.len(), 1);
}
