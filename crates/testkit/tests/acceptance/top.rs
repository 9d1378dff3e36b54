//! `sidewalk top` in a terminal of its own: what is on the screen, and what keys do.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use testkit::{Inspected, Running, Runtime, sidewalk, workload};

on_each_runtime!(a_running_program_is_shown_and_left);

/// Progress display of a recording by `--pid` in a terminal.
#[test]
fn an_attached_recording_shows_its_progress() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::waits(&Runtime::net8());
    let mut command = Command::new(sidewalk());
    command
        .args(["record", "-o", "x.swk", "--pid", &running.pid().to_string()])
        .current_dir(folder.path());
    let mut record = Terminal::start(command);
    record.wait_for("progress", |shown| {
        shown.contains("sidewalk: recording ") && shown.contains(", 1 process, ")
    });
    record.press("\x03");
    let (shown, _, status) = record.end();
    assert!(status.success(), "{shown}");
    assert!(shown.contains("wrote x.swk"), "{shown}");
    assert!(!shown.contains("sidewalk: recording "), "{shown}");
    running.end_well();
}

/// Beneath libfaketime the tool's clocks are others than the agent's.
#[test]
fn times_are_compared_by_the_kernels_clock() {
    let mut program = Runtime::net8().command(&workload("shares").dll);
    program.arg("attached");
    let running = Running::start(program);
    let mut command = Command::new(sidewalk());
    command
        .args(["top", &running.pid().to_string()])
        .env("LD_PRELOAD", testkit::fast_clocks())
        .env("MONOTONIC_AHEAD", "1");
    let mut top = Terminal::start(command);
    top.wait_for("methods", |shown| shown.contains("BurnHalf"));
    top.press("q");
    let (left, _, status) = top.end();
    assert!(status.success(), "{status}: {left}");
    let (output, status) = running.end();
    assert!(status.success(), "{status}: {output}");
}

/// Time limit, far longer than a refresh takes.
const WAIT: Duration = Duration::from_secs(20);
const ROWS: u16 = 40;
const COLUMNS: u16 = 160;

/// A program on a pseudo terminal, of which the test has the other end.
struct Terminal {
    child: Child,
    ours: File,
    screen: vt100::Parser,
}

impl Terminal {
    fn start(mut command: Command) -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let size = Winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&ours, size).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap();
        command
            .env("TERM", "xterm-256color")
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .stderr(theirs);
        // SAFETY: two system calls between fork and exec: a session of its own, whose terminal is
        // the standard input.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            })
        };
        let child = command
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Terminal {
            child,
            ours: File::from(ours),
            screen: vt100::Parser::new(ROWS, COLUMNS, 0),
        }
    }

    /// Reads what the program draws until the screen is as wanted.
    fn wait_for(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + WAIT;
        loop {
            let shown = self.screen.screen().contents();
            if wanted(&shown) {
                return shown;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {what} on the screen:\n{shown}");
            let mut ready = [PollFd::new(&self.ours, PollFlags::IN)];
            poll(&mut ready, Some(&left.try_into().unwrap())).unwrap();
            let mut bytes = [0; 1 << 14];
            // The other end is closed when the program has ended.
            let length = self.ours.read(&mut bytes).unwrap_or(0);
            assert!(length > 0, "it ended without {what}; it showed:\n{shown}");
            self.screen.process(&bytes[..length]);
        }
    }

    fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    /// Reads to the end; what the screen is then.
    fn end(mut self) -> (String, bool, ExitStatus) {
        let mut bytes = [0; 1 << 14];
        while let Ok(length @ 1..) = self.ours.read(&mut bytes) {
            self.screen.process(&bytes[..length]);
        }
        let status = self.child.wait().unwrap();
        let screen = self.screen.screen();
        (screen.contents(), screen.alternate_screen(), status)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn position(shown: &str, name: &str) -> usize {
    shown
        .lines()
        .position(|line| line.contains(name))
        .unwrap_or_else(|| panic!("no {name} in:\n{shown}"))
}

fn a_running_program_is_shown_and_left(runtime: &Runtime) {
    let folder = tempfile::tempdir().unwrap();
    let mut program = runtime.command(&workload("shares").dll);
    program.arg("attached");
    let running = Running::start(program);
    let mut command = Command::new(sidewalk());
    command
        .args(["top", &running.pid().to_string()])
        .current_dir(folder.path());
    let mut top = Terminal::start(command);
    let burnt = ["BurnHalf", "BurnQuarter", "BurnFifth"];
    let shown = top.wait_for("methods", |shown| {
        burnt.iter().all(|name| shown.contains(name))
    });
    // The screen may be of the first moments, when few samples are there.
    top.wait_for("methods in order", |shown| {
        burnt.iter().all(|name| shown.contains(name))
            && position(shown, "BurnHalf") < position(shown, "BurnQuarter")
            && position(shown, "BurnHalf") < position(shown, "BurnFifth")
    });
    assert!(
        shown.contains(&format!(".NET {}", runtime.version)),
        "{shown}"
    );
    assert!(shown.contains(&running.pid().to_string()), "{shown}");
    // By total, what calls all the others is above them.
    top.press("t");
    top.wait_for("Rounds first", |shown| {
        shown.contains("total %▾")
            && shown.contains("Rounds")
            && shown.contains("BurnHalf")
            && position(shown, "Rounds") < position(shown, "BurnHalf")
    });
    top.press("/Quarter\r");
    let filtered = top.wait_for("one row", |shown| {
        shown.contains("rows with \"Quarter\"") && !shown.contains("BurnHalf")
    });
    assert!(filtered.contains("BurnQuarter"), "{filtered}");
    // Alone: what follows an escape at once belongs to it.
    top.press("\u{1b}");
    top.wait_for("all rows", |shown| shown.contains("BurnHalf"));
    top.press("\t");
    top.wait_for("threads", |shown| {
        shown.contains("mostly in") && shown.contains("BurnHalf")
    });
    top.press("w");
    top.wait_for("a word about the file", |shown| {
        shown.contains("will be kept as")
    });
    top.press("q");
    let (left, alternate, status) = top.end();
    assert!(status.success(), "{status}: {left}");
    assert!(!alternate, "the terminal is as it was");
    let kept = std::fs::read_dir(folder.path()).unwrap();
    let kept: Vec<_> = kept.map(|file| file.unwrap().path()).collect();
    let [recording] = kept.as_slice() else {
        panic!("{kept:?}; {left}")
    };
    assert!(Inspected::of(recording).number("samples") > 0.0);
    let (output, status) = running.end();
    assert!(status.success(), "{status}: {output}");
}
