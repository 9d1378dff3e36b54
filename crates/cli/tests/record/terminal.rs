//! Tests on a terminal (Python's `pty`): Ctrl-C, and the content of the screen.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use testkit::{Deadline, start_in_time};

use crate::tests::{Scene, by_python, read, scene};

/// Runs its arguments on a new terminal, connected to its own stdin and stdout.
const TERMINAL: &str = "
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
";

/// The key Ctrl-C.
const CTRL_C: &[u8] = b"\x03";

struct Terminal {
    folder: TempDir,
    python: Child,
    _deadline: Deadline,
    keys: ChildStdin,
    screen: ChildStdout,
    seen: String,
}

impl Terminal {
    fn run(scene: Scene) -> Self {
        let Scene { folder, command } = by_python(TERMINAL, scene);
        let mut python = command;
        python.stdin(Stdio::piped()).stdout(Stdio::piped());
        let (mut python, deadline) = start_in_time(&mut python);
        Self {
            folder,
            keys: python.stdin.take().unwrap(),
            screen: python.stdout.take().unwrap(),
            python,
            _deadline: deadline,
            seen: String::new(),
        }
    }

    /// Reads until `text` is on the screen, and returns the text before it.
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                let mut before = std::mem::replace(&mut self.seen, rest);
                before.truncate(at);
                return before;
            }
            let mut buffer = [0; 4096];
            let length = self.screen.read(&mut buffer).unwrap();
            assert!(length > 0, "no {text:?} in {:?}", self.seen);
            self.seen
                .push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
        self.keys.flush().unwrap();
    }

    /// The process id that the program prints.
    fn program(&mut self) -> Pid {
        self.wait_for("process ");
        Pid::from_raw(self.wait_for("\r\n").parse().unwrap())
    }

    fn recording(&self) -> PathBuf {
        self.folder.path().join("x.swk")
    }
}

pub(crate) fn interrupt_reaches_the_program_once() {
    let actions = [
        "connect",
        "samples=1",
        "signals",
        "samples=2",
        "end",
        "exit=3",
    ];
    let mut terminal = Terminal::run(scene(&["-o", "x.swk"], &actions));
    let program = terminal.program();
    terminal.press(CTRL_C);
    terminal.wait_for("SIGINT");
    kill(program, Signal::SIGTERM).unwrap();
    let between = terminal.wait_for("SIGTERM");
    assert!(!between.contains("SIGINT"), "{between}");
    assert_eq!(terminal.python.wait().unwrap().code(), Some(3));
    assert_eq!(read(&terminal.recording()).samples.len(), 3);
}

pub(crate) fn second_interrupt_ends_the_recording() {
    let actions = ["connect", "samples=1", "signals"];
    let mut terminal = Terminal::run(scene(&["-o", "x.swk"], &actions));
    let program = terminal.program();
    // The time between two presses is what is tested; a slow machine makes it longer than the two
    // seconds that count, so press until it is a second one.
    let code = loop {
        terminal.press(CTRL_C);
        std::thread::sleep(Duration::from_millis(300));
        if let Some(status) = terminal.python.try_wait().unwrap() {
            break status.code();
        }
    };
    // Of SIGINT, as Python says it.
    assert_eq!(code, Some(256 - Signal::SIGINT as i32));
    let profile = read(&terminal.recording());
    assert_eq!(profile.samples.len(), 1);
    let notes = &profile.health.notes;
    let goes_on = format!("process {program} {}", profile::names::GOES_ON);
    assert!(notes[0].starts_with(&goes_on), "{notes:?}");
    // The tool led the session, so its end may have ended the program with SIGHUP.
    let _ = kill(program, Signal::SIGTERM);
}

/// bash ends a loop whose command was killed by SIGINT, and continues after a normal exit.
pub(crate) fn an_interrupt_ends_a_scripts_loop() {
    let mut scene = scene(&["-q"], &["connect", "samples=1", "print=turn", "echo"]);
    let mut bash = Command::new("bash");
    bash.args(["-c", "for turn in 1 2; do \"$@\"; echo went on; done", "-"])
        .arg(scene.command.get_program())
        .args(scene.command.get_args());
    for (name, value) in scene.command.get_envs() {
        bash.env(name, value.unwrap_or_default());
    }
    scene.command = bash;
    let mut terminal = Terminal::run(scene);
    terminal.wait_for("turn");
    terminal.press(CTRL_C);
    terminal.screen.read_to_string(&mut terminal.seen).unwrap();
    let seen = &terminal.seen;
    assert!(
        !seen.contains("went on") && !seen.contains("turn"),
        "{seen}"
    );
}

/// Started as by `ssh -t`, which then disconnects.
pub(crate) fn a_hang_up_reaches_the_program() {
    let script = "
import os, pty, sys
leader, terminal = pty.fork()
if leader == 0:
    os.execv(sys.argv[1], sys.argv[1:])
shown = b''
while b'ready' not in shown:
    shown += os.read(terminal, 4096)
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1]))
";
    let actions = [
        "connect",
        "samples=1",
        "signal=SIGHUP",
        "samples=2",
        "end",
        "exit=3",
    ];
    let ran = by_python(script, scene(&["-o", "x.swk"], &actions)).run();
    assert_eq!(ran.status.code(), Some(3), "{}", ran.stderr);
    let recording = ran.folder.path().join("x.swk");
    assert_eq!(read(&recording).samples.len(), 3);
}

/// A prompt that waits longer than it takes to the first progress line, what full-screen programs
/// write, and a last line without an end.
pub(crate) fn the_programs_screen_is_as_bare() {
    let actions = [
        "connect",
        "samples=1",
        "note=counting distorts",
        "write=\x1b[2J\x1b[5;7Hname: ",
        "echo",
        "write=100 %",
        "end",
    ];
    let shown = |scene: Scene| {
        let mut terminal = Terminal::run(scene);
        let mut shown = terminal.wait_for("name: ") + "name: ";
        std::thread::sleep(Duration::from_millis(1200));
        terminal.press(b"x\n");
        terminal.screen.read_to_string(&mut terminal.seen).unwrap();
        shown.push_str(&terminal.seen);
        shown
    };
    let mut bare = scene(&[], &actions);
    let words: Vec<_> = bare.command.get_args().map(ToOwned::to_owned).collect();
    let program = words.iter().position(|word| word == "--").unwrap() + 1;
    bare.command = Command::new(&words[program]);
    bare.command.args(&words[program + 1..]);
    let bare = shown(bare);
    assert!(
        bare.contains("x\r\n") && bare.ends_with("100 %"),
        "{bare:?}"
    );
    assert_eq!(shown(scene(&["-q", "-o", "x.swk"], &actions)), bare);
    let reported = shown(scene(&["-o", "x.swk"], &actions));
    let reported = reported.strip_prefix(&bare);
    assert!(
        reported.is_some_and(|reported| {
            reported.contains("wrote x.swk") && reported.contains("counting distorts")
        }),
        "{reported:?}"
    );
}
