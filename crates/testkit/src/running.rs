//! Programs that run in the background of a test: starts them, reads their output, ends them.
//!
//! Recordings are in `record`. Invariants: a test continues only after the program has printed that
//! it runs, and no program outlives its test.

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

/// A started program that has printed `ready`.
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

    /// Starts a program and waits for the first line for which `says` returns a value.
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

    /// Reads the program's output up to `line`.
    ///
    /// # Panics
    /// When the program ends before that.
    pub fn wait_for(&mut self, line: &str) {
        self.line_where(|read| (read == line).then_some(()));
    }

    /// Reads the program's output up to the first line for which `says` returns a value.
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

    /// Process id of the started process (of `unshare` and the like, not of their children).
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Closes the program's input. Returns the rest of its output and its exit status.
    ///
    /// # Panics
    /// When the output is not UTF-8.
    pub fn end(mut self) -> (String, ExitStatus) {
        drop(self.stdin.take());
        let mut rest = String::new();
        self.stdout
            .read_to_string(&mut rest)
            .expect("its output is text");
        let status = self.child.wait().expect("it is a child");
        (rest, status)
    }

    /// Closes the program's input, and asserts that it ends as an undisturbed `waits` does.
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

/// Returns the only child that the first thread of a process has started; `None` if it has none or
/// several.
pub fn only_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.trim().parse().ok()
}

/// The running workload `webserver`.
#[derive(Debug)]
pub struct WebServer {
    /// The command line, for messages.
    shown: String,
    running: Running,
    port: u16,
}

impl WebServer {
    /// Starts the server and waits for its port.
    ///
    /// # Panics
    /// When it cannot be started, or ends without printing a port.
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

    /// Port of the server, on the loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// As [`Running::pid`].
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Runs `during` while `connections` connections request `paths` continuously. Returns its
    /// result and the number of requests, each with the expected response.
    ///
    /// # Panics
    /// When a request fails, or `during` panics.
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

    /// Requests the server to end, and asserts that it has served all requests and exits
    /// successfully.
    ///
    /// # Panics
    /// When it does not respond, or ends otherwise.
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
