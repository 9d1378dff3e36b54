//! Recordings made with the real `sidewalk` command, and what the command reports about them.
//!
//! A [`Recorder`] is a command to record. Running it gives a [`Recorded`]: the file and the
//! program's output. Invariant: nothing here parses recordings. All facts come from the output of
//! `sidewalk` (`inspect`, `report`, `convert`). Recordings stay in `target/acceptance/` for
//! inspection after a failed test.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;

use serde_json::Value;

use crate::layout::{sidewalk, target_dir, tight_stacks};
use crate::runtime::Runtime;
use crate::stacks::Stacks;
use crate::started::{TIME_LIMIT, with_default_signals};
use crate::workload::workload;
use crate::{chance, shared};

/// Lock for the exclusive use of the machine.
///
/// Recordings are measurements, and two at a time disturb each other. Every [`Recorder`] holds the
/// lock while its program runs, across processes. Tests that measure nothing share it (group
/// `in-pairs` of `.config/nextest.toml`).
#[derive(Debug)]
pub struct Machine {
    _lock: File,
}

impl Machine {
    /// Waits for the lock.
    ///
    /// # Panics
    /// When the lock file cannot be made.
    pub fn exclusive() -> Machine {
        let path = target_dir().join("acceptance.lock");
        let lock = File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let in_pairs = std::env::var("NEXTEST_TEST_GROUP").is_ok_and(|group| group == "in-pairs");
        let locked = match in_pairs {
            true => lock.lock_shared(),
            false => lock.lock(),
        };
        locked.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Machine { _lock: lock }
    }
}

/// A recording to be made: `sidewalk record OPTIONS -- COMMAND`.
#[derive(Debug, Clone)]
pub struct Recorder {
    name: String,
    options: Vec<OsString>,
    command: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Recorder {
    /// Records a workload, run with `arguments`.
    pub fn workload(runtime: &Runtime, name: &str, arguments: &[&str]) -> Recorder {
        Recorder::program(runtime, name, &workload(name).dll, arguments)
    }

    /// Records an assembly. The recording's files are named after `name`.
    pub fn program(runtime: &Runtime, name: &str, dll: &Path, arguments: &[&str]) -> Recorder {
        let mut command = Command::new("unused");
        runtime.add_to(&mut command, dll);
        let mut record = Recorder::command(name, command.get_args());
        record.environment = command
            .get_envs()
            .filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())))
            .collect();
        record.name = format!("{name}-{}", runtime.version);
        record.command.extend(arguments.iter().map(OsString::from));
        record
    }

    /// Records any command. The recording's files are named after `name`.
    pub fn command<S: Into<OsString>>(
        name: &str,
        command: impl IntoIterator<Item = S>,
    ) -> Recorder {
        Recorder {
            name: name.to_owned(),
            options: Vec::new(),
            command: command.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
        }
    }

    /// Starts the program by another one: appends its command line to the arguments of that one.
    #[must_use]
    pub fn under<S: Into<OsString>>(mut self, starter: impl IntoIterator<Item = S>) -> Recorder {
        let starter = starter.into_iter().map(Into::into);
        self.command = starter.chain(std::mem::take(&mut self.command)).collect();
        self
    }

    /// Adds options of `sidewalk record`.
    #[must_use]
    pub fn options<S: Into<OsString>>(mut self, options: impl IntoIterator<Item = S>) -> Recorder {
        self.options.extend(options.into_iter().map(Into::into));
        self
    }

    /// Sets the sampling rate.
    #[must_use]
    pub fn frequency(self, hertz: u32) -> Recorder {
        self.options(["--engine", "perf", "--frequency", &hertz.to_string()])
    }

    /// Sets a variable for the command line.
    #[must_use]
    pub fn environment(mut self, key: &str, value: &str) -> Recorder {
        self.environment.push((key.into(), value.into()));
        self
    }

    /// Makes the CLR's signal stacks smaller by this number of bytes, as on a machine with larger
    /// signal frames.
    #[must_use]
    pub fn on_stacks_smaller_by(self, bytes: u32) -> Recorder {
        if bytes == 0 {
            return self;
        }
        self.environment("LD_PRELOAD", &tight_stacks().to_string_lossy())
            .environment("TIGHT_STACKS_BY", &bytes.to_string())
    }

    /// Returns the command line, ready to start, and the path of the recording that it will write.
    pub fn prepare(&self) -> (Command, PathBuf) {
        let recording = test_folder(&self.name).join("recording.swk");
        (self.command_into(&recording), recording)
    }

    fn command_into(&self, recording: &Path) -> Command {
        let mut command = Command::new(sidewalk());
        command
            .arg("record")
            .args(&self.options)
            .arg("--output")
            .arg(recording);
        command.arg("--").args(&self.command);
        command.envs(self.environment.iter().map(|(k, v)| (k, v)));
        with_default_signals(&mut command).stdin(Stdio::null());
        command
    }

    /// Runs the command line to its end, with exclusive use of the machine.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn run(&self) -> Recorded {
        self.run_beside(|_, _| ()).0
    }

    /// As [`Recorder::run`], and runs `beside` meanwhile with the recording's path and the tool's
    /// process. Returns the result of `beside` second.
    ///
    /// # Panics
    /// When it cannot be started, or `beside` panics.
    pub fn run_beside<R>(&self, beside: impl FnOnce(&Path, &mut Child) -> R) -> (Recorded, R) {
        let (mut command, recording) = self.prepare();
        let machine = Machine::exclusive();
        let mut tool = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let done = beside(&recording, &mut tool);
        // Returns when the program has ended too, because it holds the other ends of the pipes.
        let output = tool
            .wait_with_output()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        drop(machine);
        (Recorded::new(recording, output), done)
    }

    /// Runs the command line to its end, and asserts that the program succeeded and printed all its
    /// results.
    ///
    /// # Panics
    /// When it did not.
    pub fn run_complete(&self) -> Recorded {
        let recorded = self.run();
        recorded.answer.assert_complete();
        recorded
    }

    /// As [`Recorder::run_complete`], and asserts that the results equal those of `bare`, an
    /// unrecorded run.
    ///
    /// # Panics
    /// When either run failed, or the results differ.
    pub fn run_as(&self, bare: &ProgramOutput) -> Recorded {
        bare.assert_complete();
        let recorded = self.run_complete();
        assert_eq!(recorded.answer.results(), bare.results(), "{self:?}");
        recorded
    }

    /// Returns the command without recording, ready to start.
    pub fn bare(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .envs(self.environment.iter().map(|(k, v)| (k, v)));
        with_default_signals(&mut command).stdin(Stdio::null());
        command
    }

    /// Runs the command without recording, with exclusive use of the machine.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn run_bare(&self) -> ProgramOutput {
        ProgramOutput::new(self.bare_output())
    }

    /// As [`Recorder::run_bare`], once for all tests of a test run that use the same command. Only
    /// for programs that leave no files.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn run_bare_shared(&self) -> ProgramOutput {
        let key = format!("bare {:?} {:?}", self.command, self.environment);
        let (output, _) = shared::once(&key, |_| self.bare_output());
        ProgramOutput::new(output)
    }

    fn bare_output(&self) -> Output {
        let mut command = self.bare();
        let _machine = Machine::exclusive();
        let output = command.output();
        output.unwrap_or_else(|e| panic!("{command:?}: {e}"))
    }

    /// As [`Recorder::run_complete`], once for all tests of a test run that use the same recording.
    /// Each test gets a copy of the file.
    ///
    /// # Panics
    /// When it did not end well.
    pub fn run_shared(&self) -> Recorded {
        const FILE: &str = "recording.swk";
        let recording = test_folder(&self.name).join(FILE);
        let (output, folder) = shared::once(&format!("{self:?}"), |folder| {
            let mut command = self.command_into(&folder.join(FILE));
            let _machine = Machine::exclusive();
            let output = command.output();
            output.unwrap_or_else(|e| panic!("{command:?}: {e}"))
        });
        let recorded = Recorded::new(recording, output);
        recorded.answer.assert_complete();
        fs::copy(folder.join(FILE), &recorded.recording)
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        recorded
    }
}

/// Returns by how many bytes a runtime's signal stacks can shrink while it still handles faults
/// without the agent, to within 128 bytes. Found by bisection.
///
/// # Panics
/// When the runtime does not handle faults on this machine, or stacks cannot be made smaller.
pub fn smallest_signal_stacks(runtime: &Runtime) -> u32 {
    let survives = |by: u32| {
        let program = Recorder::workload(runtime, "nullref", &["0.1"]).on_stacks_smaller_by(by);
        program.run_bare().status.success()
    };
    assert!(survives(0));
    // A signal stack has 12 KiB in all.
    let (mut good, mut bad) = (0, 12 << 10);
    assert!(!survives(bad), "the stacks are not made smaller");
    while bad - good > 128 {
        let by = good.midpoint(bad);
        if survives(by) {
            good = by;
        } else {
            bad = by;
        }
    }
    good
}

/// Returns an empty folder of the calling test. Several tests may use the same name.
///
/// # Panics
/// When it cannot be made.
pub fn test_folder(name: &str) -> PathBuf {
    // The thread that runs a test has the test's name.
    let test = std::thread::current()
        .name()
        .unwrap_or("main")
        .replace("::", "-");
    let folder = target_dir()
        .join("acceptance")
        .join(format!("{test}-{name}"));
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    }
    fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    folder
}

/// Runs a command to its end and returns its output.
///
/// # Panics
/// When it cannot be started, or hangs. It is then killed with all its children.
pub fn output_in_time(command: &mut Command) -> Output {
    with_default_signals(command)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let shown = format!("{command:?}");
    let child = command.spawn().unwrap_or_else(|e| panic!("{shown}: {e}"));
    let group = format!("-{}", child.id());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()).ok());
    match receiver.recv_timeout(TIME_LIMIT) {
        Ok(output) => output.unwrap_or_else(|e| panic!("{shown}: {e}")),
        Err(_) => {
            Command::new("kill")
                .args(["-KILL", "--", &group])
                .status()
                .ok();
            panic!(
                "{shown} hung: it was killed after {} s",
                TIME_LIMIT.as_secs()
            );
        }
    }
}

/// A program's output and its exit status.
#[derive(Debug, Clone)]
pub struct ProgramOutput {
    /// Its standard output.
    pub stdout: String,
    /// Its standard error (and `sidewalk`'s).
    pub stderr: String,
    /// Its exit status.
    pub status: ExitStatus,
}

impl ProgramOutput {
    fn new(output: Output) -> ProgramOutput {
        ProgramOutput {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            status: output.status,
        }
    }

    /// The words after `key` in each line of a workload's output that begins
    /// with it.
    pub fn lines(&self, key: &str) -> Vec<Vec<&str>> {
        self.stdout
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|words| words.first() == Some(&key))
            .map(|words| words[1..].to_vec())
            .collect()
    }

    /// Returns the lines that are the same in every run.
    pub fn results(&self) -> Vec<Vec<&str>> {
        self.lines("result")
    }

    /// Returns a number that the workload measured about itself.
    ///
    /// # Panics
    /// When it did not print one.
    pub fn measured(&self, name: &str) -> f64 {
        self.lines("measured")
            .iter()
            .find(|words| words[0] == name)
            .and_then(|words| words[1].parse().ok())
            .unwrap_or_else(|| panic!("no `measured {name}` in:\n{}{}", self.stdout, self.stderr))
    }

    /// Asserts that the program succeeded and printed all its results.
    ///
    /// # Panics
    /// When it did not.
    pub fn assert_complete(&self) {
        assert!(
            self.status.success() && !self.lines("measured").is_empty(),
            "the program ended with {}:\n{}{}",
            self.status,
            self.stdout,
            self.stderr
        );
    }
}

/// A finished recording.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The file.
    pub recording: PathBuf,
    /// The output of the command line.
    pub answer: ProgramOutput,
}

impl Recorded {
    /// A recording that another command line wrote.
    pub fn new(recording: PathBuf, output: Output) -> Recorded {
        Recorded {
            recording,
            answer: ProgramOutput::new(output),
        }
    }

    /// Returns the output of `sidewalk inspect --json`.
    ///
    /// # Panics
    /// When it fails.
    pub fn inspect(&self) -> Inspected {
        Inspected::of(&self.recording)
    }

    /// Returns the output of `sidewalk report --json` with further options.
    ///
    /// # Panics
    /// When it fails.
    pub fn report(&self, options: &[&str]) -> Value {
        let mut arguments = vec!["report".as_ref(), "--json".as_ref()];
        arguments.extend(options.iter().map(std::ffi::OsStr::new));
        arguments.push(self.recording.as_os_str());
        let text = run_sidewalk(arguments);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Runs `sidewalk convert` and returns the output file, `name` in the recording's folder.
    ///
    /// # Panics
    /// When it fails.
    pub fn convert(&self, name: &str) -> PathBuf {
        self.converted(name, &[])
    }

    /// As [`Recorded::convert`], for the samples of one event.
    ///
    /// # Panics
    /// When it fails.
    pub fn convert_event(&self, event: &str, name: &str) -> PathBuf {
        self.converted(name, &["--event", event])
    }

    fn converted(&self, name: &str, options: &[&str]) -> PathBuf {
        let out = self.recording.with_file_name(name);
        let mut arguments = vec!["convert".as_ref()];
        arguments.extend(options.iter().map(std::ffi::OsStr::new));
        arguments.extend([self.recording.as_os_str(), "-o".as_ref(), out.as_os_str()]);
        run_sidewalk(arguments);
        out
    }

    /// Returns all stacks, read from the collapsed format.
    ///
    /// # Panics
    /// When it cannot be made or read.
    pub fn stacks(&self) -> Stacks {
        let path = self.convert("recording.collapsed");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Stacks::from_collapsed(&text)
    }
}

/// Returns the logical stacks of the samples of an event: the awaiting methods replace the
/// dispatcher's frames.
///
/// # Panics
/// When they cannot be had of the recording.
pub fn logical_stacks(recording: &Path, event: &str) -> Stacks {
    stacks_as(recording, event, "logical")
}

/// Returns the physical stacks of the samples of an event: the frames on the threads.
///
/// # Panics
/// When they cannot be had of the recording.
pub fn physical_stacks(recording: &Path, event: &str) -> Stacks {
    stacks_as(recording, event, "physical")
}

fn stacks_as(recording: &Path, event: &str, kind: &str) -> Stacks {
    let mut arguments = vec!["convert".as_ref(), recording.as_os_str()];
    let options = ["--event", event, "--async", kind, "-o", "-"];
    arguments.extend(options.map(std::ffi::OsStr::new));
    Stacks::from_collapsed(&run_sidewalk(arguments))
}

/// Runs `sidewalk` with arguments and returns its standard output.
///
/// # Panics
/// When it fails.
pub fn run_sidewalk<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> String {
    stdout_of(Command::new(sidewalk()).args(arguments))
}

/// Runs a command with empty input and returns its output.
///
/// # Panics
/// When it fails, or prints what is not UTF-8.
pub fn stdout_of(command: &mut Command) -> String {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// The output of `sidewalk inspect --json`.
#[derive(Debug, Clone)]
pub struct Inspected {
    /// As printed.
    pub json: Value,
}

impl Inspected {
    /// Runs `sidewalk inspect` on a file.
    ///
    /// # Panics
    /// When `sidewalk inspect` fails.
    pub fn of(recording: &Path) -> Inspected {
        let text = run_sidewalk(["inspect".as_ref(), "--json".as_ref(), recording.as_os_str()]);
        let json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        Inspected { json }
    }

    /// Returns a number of the output by name.
    ///
    /// # Panics
    /// When there is none.
    pub fn number(&self, name: &str) -> f64 {
        self.json[name]
            .as_f64()
            .unwrap_or_else(|| panic!("no number `{name}` in {}", self.json))
    }

    /// Returns the entry of an event, if any was recorded.
    pub fn event(&self, name: &str) -> Option<&Value> {
        let events = self.json["events"].as_array()?;
        events.iter().find(|known| known["event"] == name)
    }

    /// Returns a count as a percentage of all samples that were due.
    pub fn percent(&self, name: &str) -> f64 {
        let due = self.number("samples") + self.number("lost");
        if due == 0.0 {
            0.0
        } else {
            self.number(name) * 100.0 / due
        }
    }

    /// Asserts that at most `broken` percent of the walks are broken and `lost` percent of the
    /// samples lost, plus the bound of chance. 0 allows none.
    ///
    /// # Panics
    /// When there are more, or nothing was recorded.
    pub fn assert_honest(&self, broken: f64, lost: f64) {
        assert!(self.number("samples") > 0.0, "no sample: {}", self.json);
        let all = self.number("samples") + self.number("lost");
        println!("{}", self.json);
        for (what, limit) in [("broken", broken), ("lost", lost)] {
            let count = self.number(what);
            if limit == 0.0 {
                assert_eq!(count, 0.0, "{what}");
            } else {
                chance::assert_at_most(what, count, all, limit / 100.0);
            }
        }
    }
}
