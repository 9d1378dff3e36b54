//! Tests of the tool as process 1, as in a container whose command is the tool.

use std::process::Command;

use crate::tests::{Ran, by, scene};

/// Runs the player under a tool that is process 1 of its own pid namespace.
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

/// As in the kernel: a signal that process 1 does not catch has no effect on it.
pub(crate) fn only_signals_that_the_program_catches_reach_it() {
    // Pending signals are delivered in the order of their numbers, so the last one is known.
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
