//! A program that runs while a test does something to it.
//!
//! Not a recording, and nothing is measured. The invariant: a test goes on when the program has
//! said that it runs, and no program outlives its test.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::panic::AssertUnwindSafe;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::load::{Client, load};
use crate::runtime::Runtime;
use crate::started::with_default_signals;
use crate::workload::workload;

/// A started program that has said `ready`.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Starts the workload `waits`, which does nothing until its input ends.
    ///
    /// # Panics
    /// As [`Running::start`].
    pub fn waits(runtime: &Runtime) -> Running {
        Self::start(runtime.command(&workload("waits").dll))
    }

    /// Starts a program and waits for its line `ready`.
    ///
    /// # Panics
    /// When it cannot be started, or ends without that line.
    pub fn start(command: Command) -> Running {
        Self::start_when(command, |line| (line == "ready").then_some(())).0
    }

    /// Starts a program and waits for a line that says something.
    ///
    /// # Panics
    /// When it cannot be started, or ends without such a line.
    pub fn start_when<T>(mut command: Command, says: impl Fn(&str) -> Option<T>) -> (Running, T) {
        let mut child = with_default_signals(&mut command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("it was piped");
        let mut running = Running {
            child,
            stdin,
            stdout: BufReader::new(stdout),
        };
        let value = running.line_where(says);
        (running, value)
    }

    /// Reads what the program prints until that line.
    ///
    /// # Panics
    /// When it ends before.
    pub fn wait_for(&mut self, line: &str) {
        self.line_where(|read| (read == line).then_some(()));
    }

    /// Reads what the program prints until a line says something.
    fn line_where<T>(&mut self, says: impl Fn(&str) -> Option<T>) -> T {
        let mut read = String::new();
        loop {
            let start = read.len();
            let length = self
                .stdout
                .read_line(&mut read)
                .expect("its output is text");
            assert!(
                length > 0,
                "it ended without what was waited for; it printed: {read}"
            );
            if let Some(value) = says(read[start..].trim_end()) {
                return value;
            }
        }
    }

    /// The number of the process that was started (of `unshare` and the like, not of what they
    /// start).
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends its input and returns what it has still printed, and how it ended.
    ///
    /// # Panics
    /// When its output is no text.
    pub fn end(mut self) -> (String, ExitStatus) {
        drop(self.stdin.take());
        let mut rest = String::new();
        self.stdout
            .read_to_string(&mut rest)
            .expect("its output is text");
        let status = self.child.wait().expect("it is a child");
        (rest, status)
    }

    /// Ends its input, and asserts that it ends as the workload `waits` does when nothing has been
    /// done to it.
    ///
    /// # Panics
    /// When it does not.
    pub fn end_well(self) {
        let (output, status) = self.end();
        assert!(status.success(), "{status}");
        assert_eq!(output, "result ended by its input\n");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The only process that a process has started by its first thread; `None` where there is none, or
/// more.
pub fn only_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.trim().parse().ok()
}

/// The workload `webserver`, which answers at a port.
#[derive(Debug)]
pub struct WebServer {
    /// How it was started.
    shown: String,
    running: Running,
    port: u16,
}

impl WebServer {
    /// Starts it and waits for its port.
    ///
    /// # Panics
    /// When it cannot be started, or ends without one.
    pub fn start(command: Command) -> WebServer {
        let shown = format!("{command:?}");
        let port = |line: &str| line.strip_prefix("port ")?.parse().ok();
        let (running, port) = Running::start_when(command, port);
        WebServer {
            shown,
            running,
            port,
        }
    }

    /// Where it answers, on the loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// As [`Running::pid`].
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Does something while it is asked for these paths all the time, on so many connections. How
    /// many requests were answered, each as expected, comes second.
    ///
    /// # Panics
    /// When one was not, or `during` does.
    pub fn under_load<R>(
        &self,
        paths: &[&str],
        connections: usize,
        during: impl FnOnce() -> R,
    ) -> (R, u64) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let loader = scope.spawn(|| {
                let mut requests = 0;
                while !over.load(Ordering::Relaxed) {
                    requests += load(self.port, paths, connections, Duration::from_millis(500))
                        .unwrap_or_else(|e| panic!("{}: {e}", self.shown))
                        .requests;
                }
                requests
            });
            let done = std::panic::catch_unwind(AssertUnwindSafe(during));
            over.store(true, Ordering::Relaxed);
            let requests = loader
                .join()
                .unwrap_or_else(|e| std::panic::resume_unwind(e));
            match done {
                Ok(done) => (done, requests),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Asks it to end, and asserts that it ends well, having served all.
    ///
    /// # Panics
    /// When it does not answer any more, or ends otherwise.
    pub fn stop(self) {
        let shown = self.shown;
        Client::connect(self.port)
            .and_then(|mut client| client.get("stop").map(drop))
            .unwrap_or_else(|e| panic!("{shown}: {e}"));
        let (output, status) = self.running.end();
        assert!(
            status.success() && output.lines().any(|line| line == "result served all"),
            "{shown} ended with {status}:\n{output}"
        );
    }
}
