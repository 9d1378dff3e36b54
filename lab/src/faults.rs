//! `cargo xtask faults`: programs whose NullReferenceExceptions the runtime makes from SIGSEGV,
//! under ticks of each kind and rate, with the signal stacks of this machine and with the smallest
//! that each runtime can do with. None may die or answer otherwise.
//!
//! Finished runs are kept in `target/faults`, for one build of the agent; the next call goes on
//! where the last one stopped. Invariant: each cell of the matrix has been run as often as any
//! other, give or take one; a program that fails without us ends all.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest as _, Sha256};
use testkit::{Client, Inspected, Recorder, Runtime, Setup, load, profile_dir};

use xtask::build::{BuildProfile, build};
use xtask::setup;

const USAGE: &str =
    "usage: cargo xtask faults [--runs N] [--minutes M] [--only WORD]… [--again] [--runtimes DIR…]";

/// Programs, and how long each is to throw: a web server throws in its requests.
const PROGRAMS: [&str; 3] = ["nullref", "calltree", "webserver"];
const SECONDS: &str = "0.3";
const UNDER_LOAD: Duration = Duration::from_millis(300);

const RATES: [&str; 4] = ["99", "999", "5000", "10000"];

/// `auto` is one of the first two.
const WAYS: [(&str, &[&str]); 4] = [
    ("clocks", &["--engine", "clocks"]),
    ("timer", &["--engine", "timer"]),
    ("perf", &["--engine", "perf"]),
    ("wall", &["--event", "wall"]),
];

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(120);

struct FaultOptions {
    runs: u64,
    time: Duration,
    only: Vec<String>,
    again: bool,
}

fn options(arguments: &[&str]) -> Result<FaultOptions> {
    let mut options = FaultOptions {
        runs: 20,
        time: Duration::MAX,
        only: Vec::new(),
        again: false,
    };
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        let mut value = || rest.next().copied().context(USAGE);
        match argument {
            "--runs" => options.runs = value()?.parse().context(USAGE)?,
            "--minutes" => {
                let minutes: f64 = value()?.parse().context(USAGE)?;
                options.time = Duration::try_from_secs_f64(minutes * 60.0).context(USAGE)?;
            }
            "--only" => options.only.push(value()?.to_owned()),
            "--again" => options.again = true,
            _ => bail!("{USAGE}"),
        }
    }
    Ok(options)
}

/// Runs what is missing of the matrix, prints the table, and fails if anything differed.
pub(crate) fn run(arguments: &[&str], roots: &[PathBuf]) -> Result<()> {
    let options = options(arguments)?;
    let setup = crate::set_up(setup::Scope::Tests, roots)?;
    build(BuildProfile::Release, true)?;
    let mut log = ResultLog::open(options.again)?;
    let start = Instant::now();
    'all: for number in 0..options.runs {
        for program in programs(&setup, &options.only) {
            let cells: Vec<Cell> = program
                .cells()
                .into_iter()
                .filter(|cell| chosen(&cell.name, &options.only))
                .filter(|cell| log.runs(&cell.name) <= number)
                .collect();
            if cells.is_empty() {
                continue;
            }
            let tight = log.tight(&program)?;
            let mut bare = BTreeMap::new();
            for cell in cells {
                if start.elapsed() >= options.time {
                    break 'all;
                }
                let by = if cell.is_tight { tight } else { 0 };
                let bare = match bare.entry(by) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => {
                        let answer =
                            program.once(program.record(by).bare(), &log.output_folder())?;
                        ensure!(
                            answer.is_good(),
                            "without us, {} ends with {}",
                            cell.name,
                            answer.ended()
                        );
                        new.insert(answer)
                    }
                };
                let verdict = program.recorded(&cell, by, bare, &log.output_folder())?;
                eprintln!("{}: {verdict}", cell.name);
                if !matches!(verdict, Verdict::Same(_)) {
                    println!(
                        "{}: {verdict}\n{}",
                        cell.name,
                        fs::read_to_string(log.output_folder())?
                    );
                }
                log.add(&cell.name, &verdict)?;
            }
        }
    }
    println!("{}", log.table());
    let bad: u64 = log
        .kept
        .values()
        .map(|row| row.deaths + row.different)
        .sum();
    ensure!(bad == 0, "{bad} runs ended or answered otherwise");
    ensure!(!log.kept.is_empty(), "nothing was run");
    Ok(())
}

fn chosen(name: &str, only: &[String]) -> bool {
    only.iter().all(|word| name.contains(word.as_str()))
}

/// A program on a runtime.
struct FaultProgram {
    name: &'static str,
    runtime: Runtime,
}

/// One way to record it.
struct Cell {
    /// `PROGRAM RUNTIME STACKS WAY HERTZ`.
    name: String,
    is_tight: bool,
    options: Vec<&'static str>,
}

fn programs(setup: &Setup, only: &[String]) -> Vec<FaultProgram> {
    let mut programs = Vec::new();
    for runtime in &setup.runtimes {
        for name in PROGRAMS {
            if name == "webserver" && runtime.aspnetcore.is_none() {
                continue;
            }
            programs.push(FaultProgram {
                name,
                runtime: runtime.clone(),
            });
        }
    }
    programs.retain(|program| program.cells().iter().any(|cell| chosen(&cell.name, only)));
    programs
}

/// Result of a program's run.
struct RunResult {
    status: ExitStatus,
    results: Vec<String>,
    /// Answers to requests that were not as they should be.
    trouble: Option<String>,
}

impl RunResult {
    fn is_good(&self) -> bool {
        self.status.success() && self.trouble.is_none() && !self.results.is_empty()
    }

    fn ended(&self) -> String {
        match &self.trouble {
            Some(trouble) => format!("{} ({trouble})", self.status),
            None => self.status.to_string(),
        }
    }
}

impl FaultProgram {
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (stacks, is_tight) in [("machine", false), ("smallest", true)] {
            for (way, options) in WAYS {
                for hertz in RATES {
                    cells.push(Cell {
                        name: format!(
                            "{} {} {stacks} {way} {hertz}",
                            self.name, self.runtime.version
                        ),
                        is_tight,
                        options: [&["--frequency", hertz][..], options].concat(),
                    });
                }
            }
        }
        cells
    }

    /// On signal stacks that are so many bytes smaller.
    fn record(&self, by: u32) -> Recorder {
        let arguments: &[&str] = match self.name {
            "webserver" => &[],
            _ => &[SECONDS],
        };
        Recorder::workload(&self.runtime, self.name, arguments).on_stacks_smaller_by(by)
    }

    /// Runs it to its end; what it says beside its output goes to a file.
    fn once(&self, mut command: Command, output_file: &Path) -> Result<RunResult> {
        let is_server = self.name == "webserver";
        let child = command
            .stdin(if is_server {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .stderr(File::create(output_file)?)
            // Of its own, so that all that it starts can be killed.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        let limit = RunLimit::start(child.id());
        let mut program = RunningProgram(child);
        let output = program.0.stdout.take().context("it has no output")?;
        let mut output = BufReader::new(output);
        let mut trouble = None;
        if is_server {
            let mut line = String::new();
            output.read_line(&mut line)?;
            let port = line.trim().strip_prefix("port ");
            let port = port.and_then(|port| port.parse::<u16>().ok());
            trouble = match port {
                Some(port) => serve(port).err().map(|error| format!("{error:#}")),
                None => Some("it printed no port".to_owned()),
            };
        }
        // A program ends when its input does.
        drop(program.0.stdin.take());
        let mut text = Vec::new();
        output.read_to_end(&mut text)?;
        let status = program.0.wait()?;
        if limit.was_reached() {
            trouble = Some(format!("it did not end in {} s", LIMIT.as_secs()));
        }
        let results = String::from_utf8_lossy(&text)
            .lines()
            .filter(|line| line.starts_with("result "))
            .map(str::to_owned)
            .collect();
        Ok(RunResult {
            status,
            results,
            trouble,
        })
    }

    fn recorded(
        &self,
        cell: &Cell,
        by: u32,
        bare: &RunResult,
        output_file: &Path,
    ) -> Result<Verdict> {
        let record = self.record(by).options(cell.options.iter().copied());
        let (command, recording) = record.prepare();
        let answer = self.once(command, output_file)?;
        if !answer.status.success() {
            return Ok(Verdict::Died(format!(
                "{} ({:?})",
                answer.ended(),
                answer.status.signal()
            )));
        }
        if let Some(trouble) = answer.trouble {
            return Ok(Verdict::Different(trouble));
        }
        if answer.results != bare.results {
            return Ok(Verdict::Different(answer.results.join(", ")));
        }
        let inspected = Inspected::of(&recording);
        let samples = inspected.number("samples") as u64;
        if samples == 0 {
            return Ok(Verdict::Different("no sample".to_owned()));
        }
        Ok(Verdict::Same(samples))
    }
}

fn serve(port: u16) -> Result<()> {
    load(port, &["nullref"], 4, UNDER_LOAD)?;
    Client::connect(port)?.get("stop")?;
    Ok(())
}

/// Kills a group of processes that goes on for too long.
struct RunLimit {
    over: mpsc::Sender<()>,
    watch: JoinHandle<bool>,
}

impl RunLimit {
    fn start(group: u32) -> RunLimit {
        let (over, is_over) = mpsc::channel();
        let watch = std::thread::spawn(move || {
            let hangs = is_over.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout);
            if hangs {
                let mut kill = Command::new("kill");
                // A process that cannot be killed has ended.
                let _status = kill.args(["-KILL", "--", &format!("-{group}")]).status();
            }
            hangs
        });
        RunLimit { over, watch }
    }

    fn was_reached(self) -> bool {
        drop(self.over);
        self.watch.join().unwrap_or(true)
    }
}

/// A program that is not left behind.
struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // After it has been waited for, no process is left.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Outcome of one run.
enum Verdict {
    /// With so many samples.
    Same(u64),
    Died(String),
    Different(String),
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Same(samples) => write!(f, "same\t{samples}"),
            Verdict::Died(how) => write!(f, "DIED\t{how}"),
            Verdict::Different(how) => write!(f, "DIFFERENT\t{how}"),
        }
    }
}

/// Sums of a cell, or of several.
#[derive(Clone, Copy, Default)]
struct FaultRow {
    runs: u64,
    samples: u64,
    deaths: u64,
    different: u64,
}

/// Finished runs of one build.
struct ResultLog {
    file: File,
    folder: PathBuf,
    kept: BTreeMap<String, FaultRow>,
}

impl ResultLog {
    /// Of the build that is there now; empty if that is another one than before.
    fn open(again: bool) -> Result<ResultLog> {
        let mut hash = Sha256::new();
        for name in ["libsidewalk.so", "sidewalk"] {
            let path = profile_dir().join(name);
            hash.update(
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?,
            );
        }
        let build: String = hash
            .finalize()
            .iter()
            .take(6)
            .fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            });
        let folder = testkit::target_dir().join("faults").join(build);
        if again && folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let path = folder.join("runs.tsv");
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let mut log = ResultLog {
            file,
            folder,
            kept: BTreeMap::new(),
        };
        for line in fs::read_to_string(&path)?.lines() {
            let mut words = line.split('\t');
            let (Some(name), Some(verdict)) = (words.next(), words.next()) else {
                continue;
            };
            let samples = words.next().and_then(|count| count.parse().ok());
            log.count(name, verdict, samples.unwrap_or(0));
        }
        Ok(log)
    }

    /// Where a program's standard error goes.
    fn output_folder(&self) -> PathBuf {
        self.folder.join("stderr.txt")
    }

    fn runs(&self, name: &str) -> u64 {
        self.kept.get(name).map_or(0, |row| row.runs)
    }

    fn count(&mut self, name: &str, verdict: &str, samples: u64) {
        let row = self.kept.entry(name.to_owned()).or_default();
        row.runs += 1;
        match verdict {
            "same" => row.samples += samples,
            "DIED" => row.deaths += 1,
            _ => row.different += 1,
        }
    }

    fn add(&mut self, name: &str, verdict: &Verdict) -> Result<()> {
        let line = format!("{name}\t{verdict}");
        writeln!(self.file, "{}", line.replace('\n', " "))?;
        let (word, samples) = match verdict {
            Verdict::Same(samples) => ("same", *samples),
            Verdict::Died(_) => ("DIED", 0),
            Verdict::Different(_) => ("DIFFERENT", 0),
        };
        self.count(name, word, samples);
        Ok(())
    }

    /// By how many bytes a runtime's signal stacks can be smaller for it to handle faults alone;
    /// found once by trial.
    fn tight(&self, program: &FaultProgram) -> Result<u32> {
        let path = self
            .folder
            .join(format!("smallest-{}", program.runtime.version));
        if let Some(known) = read_number(&path) {
            return Ok(known);
        }
        let found = testkit::smallest_signal_stacks(&program.runtime);
        fs::write(&path, found.to_string())?;
        Ok(found)
    }

    fn table(&self) -> String {
        let mut rows: BTreeMap<[&str; 3], FaultRow> = BTreeMap::new();
        for (name, row) in &self.kept {
            let mut words = name.split(' ');
            let mut word = || words.next().unwrap_or_default();
            let (program, runtime, stacks) = (word(), word(), word());
            for key in [[runtime, program, stacks], ["all", "", ""]] {
                let sum = rows.entry(key).or_default();
                sum.runs += row.runs;
                sum.samples += row.samples;
                sum.deaths += row.deaths;
                sum.different += row.different;
            }
        }
        let mut text =
            "| runtime | program | signal stacks | runs | samples | deaths | other answers |\n\
                        | --- | --- | --- | --: | --: | --: | --: |\n"
                .to_owned();
        for ([runtime, program, stacks], row) in &rows {
            let stacks = match *stacks {
                "smallest" => {
                    let path = self.folder.join(format!("smallest-{runtime}"));
                    let by = read_number(&path).unwrap_or(0);
                    format!("{by} bytes smaller")
                }
                other => other.to_owned(),
            };
            let _ = writeln!(
                text,
                "| {runtime} | {program} | {stacks} | {} | {} | {} | {} |",
                row.runs, row.samples, row.deaths, row.different
            );
        }
        text
    }
}

fn read_number(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
