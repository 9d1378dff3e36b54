//! Comparison of the CPU shares of a workload recorded from its start and recorded after an attach.
//!
//! Input: a workload in its steady phase. Output: a [`ShareComparison`]. The caller asserts its
//! limits. [`compare_shares`] runs both processes at once, so that other work on the machine
//! affects both. [`compare_shares_in_turn`] runs one after the other, so that programs of many
//! threads do not compete for the processors.
//!
//! Compared are self shares of all CPU time. Of the recording from the start only the same phase
//! counts. Native code counts by library and is no method, because its names are not the agent's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use recording::{Event, Frame, Item, Reader, Record};

use crate::layout::sidewalk;
use crate::load::SERVING;
use crate::record::{Inspected, test_folder};
use crate::running::{Running, WebServer};
use crate::runtime::Runtime;
use crate::workload::{Needs, Workload, workload};

/// Recording options of both: exact intervals, and a rate at which chance moves a share of 50 % by
/// half a point.
const OPTIONS: [&str; 4] = ["-F", "4999", "--engine", "perf"];

/// The results of two recordings of a workload.
#[derive(Debug, Clone)]
pub struct ShareComparison {
    /// Sorted by the mean of both shares, largest first.
    pub shares: Vec<CpuShare>,
    /// Number of samples of each recording.
    pub samples: (u64, u64),
    /// The output of `inspect` for the second one.
    pub attached: Inspected,
}

/// Shares of CPU time, in percent.
#[derive(Debug, Clone)]
pub struct CpuShare {
    /// A method, a library, or the agent's label.
    pub name: String,
    /// Whether it is managed code.
    pub is_method: bool,
    /// Share in the recording from the start.
    pub started: f64,
    /// Share in the recording after an attach, or in the second of two recordings from the start.
    pub attached: f64,
}

impl CpuShare {
    /// Difference of the two shares, in percentage points.
    pub fn apart(&self) -> f64 {
        (self.started - self.attached).abs()
    }
}

impl ShareComparison {
    /// Returns the method with the largest difference among the `hottest` hottest ones.
    pub fn farthest(&self, hottest: usize) -> Option<&CpuShare> {
        let methods = self.shares.iter().filter(|share| share.is_method);
        let hottest = methods.take(hottest);
        hottest.max_by(|a, b| a.apart().total_cmp(&b.apart()))
    }

    /// Percent of the frames of the attached recording that are unknown.
    pub fn unknown(&self) -> f64 {
        self.attached.number("unknown_frames") * 100.0 / self.attached.number("frames").max(1.0)
    }
}

/// Seconds after an attach that are not compared. On a busy machine code reaches its last tier
/// late, and in two processes at different times.
const WARM: u32 = 1;

/// Records a workload in both ways at the same time, for `seconds`. For busy machines: other work
/// affects both alike.
///
/// # Panics
/// When one of the two cannot be recorded.
pub fn compare_shares(runtime: &Runtime, program: &str, seconds: u32) -> ShareComparison {
    let folder = test_folder(&format!("picture-{program}"));
    let (early, late) = (folder.join("started.swk"), folder.join("attached.swk"));
    let commands = [
        recorded_command(runtime, program, &early),
        bare_command(runtime, program),
    ];
    let commands = commands.map(at_fixed_addresses);
    let both = commands.map(|command| std::thread::spawn(|| Running::start(command)));
    let [started, bare] = both.map(|start| start.join().unwrap_or_else(|_| panic!("{program}")));
    attach(bare.pid(), WARM + seconds, &late);
    for running in [started, bare] {
        assert_ends_well(program, running);
    }
    let late_shares = shares_of_last(&late, Duration::from_secs(seconds.into()));
    let early = shares(&early, &(late_shares.first_ns..late_shares.last_ns));
    compare(&early, &late_shares, &late)
}

/// Records a workload in both ways one after the other, each `warm` seconds after it was ready. For
/// idle machines: programs of many threads do not compete for the processors. The web server is
/// under load all the time.
///
/// Returns two comparisons: of both ways, and of two runs recorded from the start, which is the
/// variation between runs of this program.
///
/// # Panics
/// When one of the three cannot be recorded.
pub fn compare_shares_in_turn(
    runtime: &Runtime,
    program: &str,
    warm: u32,
    seconds: u32,
) -> [ShareComparison; 2] {
    let folder = test_folder(&format!("picture-{program}"));
    let file = |name| folder.join(name);
    let (early, late, again) = (file("started.swk"), file("attached.swk"), file("again.swk"));
    let warm = Duration::from_secs(warm.into());
    let measured = Duration::from_secs(seconds.into());
    let start = |file: &Path| {
        run_under_load(program, recorded_command(runtime, program, file), |_| {
            std::thread::sleep(warm + measured);
        });
        shares_of_last(file, measured)
    };
    let started = start(&early);
    run_under_load(program, bare_command(runtime, program), |pid| {
        std::thread::sleep(warm);
        attach(pid, seconds, &late);
    });
    let attached = shares(&late, &(0..u64::MAX));
    [
        compare(&started, &attached, &late),
        compare(&started, &start(&again), &again),
    ]
}

/// A command that runs the program without recording.
fn bare_command(runtime: &Runtime, program: &str) -> Command {
    let mut bare = runtime.command(&workload(program).dll);
    bare.arg("attached");
    bare
}

/// A command that runs the program and records it from its start.
fn recorded_command(runtime: &Runtime, program: &str, file: &Path) -> Command {
    let mut tool = Command::new(sidewalk());
    tool.args(["record", "--quiet"])
        .args(OPTIONS)
        .arg("-o")
        .arg(file)
        .arg("--");
    prefixed_by(tool, &bare_command(runtime, program))
}

/// Appends `command` to the arguments of `starter`.
fn prefixed_by(mut starter: Command, command: &Command) -> Command {
    starter.arg(command.get_program()).args(command.get_args());
    let environment = command.get_envs();
    starter.envs(environment.filter_map(|(key, value)| Some((key, value?))));
    starter
}

/// Disables address space randomisation for a command, if the machine allows that. The share of a
/// method depends on the addresses of its stack and code (`DispatchEx` on .NET 10: 9.5 % in one
/// run, 12.4 % in another).
fn at_fixed_addresses(command: Command) -> Command {
    let fixed = || {
        let mut fixed = Command::new("setarch");
        fixed.args(["--addr-no-randomize", "--"]);
        fixed
    };
    let allowed = fixed().arg("true").output();
    if allowed.is_ok_and(|output| output.status.success()) {
        prefixed_by(fixed(), &command)
    } else {
        command
    }
}

/// Records a running process.
fn attach(pid: u32, seconds: u32, file: &Path) {
    let mut tool = Command::new(sidewalk());
    let (pid, duration) = (pid.to_string(), format!("{seconds}s"));
    tool.args(["record", "--quiet", "--pid", &pid, "-d", &duration]);
    let output = tool.args(OPTIONS).arg("-o").arg(file).output();
    let output = output.unwrap_or_else(|e| panic!("{tool:?}: {e}"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool:?}: {message}");
}

/// Runs `during` while a program is in its steady phase. A web server is under load meanwhile.
fn run_under_load(program: &str, command: Command, during: impl FnOnce(u32)) {
    if Workload::at(program).needs() != Needs::AspNetCore {
        let running = Running::start(command);
        during(running.pid());
        return assert_ends_well(program, running);
    }
    let server = WebServer::start(command);
    server.under_load(SERVING, 8, || during(server.pid()));
    server.stop();
}

fn assert_ends_well(program: &str, running: Running) {
    let (output, status) = running.end();
    assert!(status.success(), "{program}: {status}: {output}");
}

fn compare(early: &Shares, late: &Shares, late_file: &Path) -> ShareComparison {
    let percent = |shares: &Shares, what: &ShareKey| {
        let own = shares.of.get(what).copied().unwrap_or(0);
        own as f64 * 100.0 / shares.total.max(1) as f64
    };
    let all: BTreeSet<&ShareKey> = early.of.keys().chain(late.of.keys()).collect();
    let mut shares: Vec<CpuShare> = all
        .into_iter()
        .map(|what| CpuShare {
            name: what.1.clone(),
            is_method: what.0,
            started: percent(early, what),
            attached: percent(late, what),
        })
        .collect();
    let heat = |share: &CpuShare| share.started + share.attached;
    shares.sort_by(|a, b| heat(b).total_cmp(&heat(a)));
    ShareComparison {
        shares,
        samples: (early.samples, late.samples),
        attached: Inspected::of(late_file),
    }
}

/// Whether it is a method, and its name.
type ShareKey = (bool, String);

/// CPU time by what used it.
struct Shares {
    of: BTreeMap<ShareKey, u64>,
    total: u64,
    samples: u64,
    first_ns: u64,
    last_ns: u64,
}

/// Returns the shares of the last `time` of a recording.
fn shares_of_last(file: &Path, time: Duration) -> Shares {
    let last = shares(file, &(0..u64::MAX)).last_ns;
    shares(
        file,
        &(last.saturating_sub(time.as_nanos() as u64)..u64::MAX),
    )
}

fn shares(file: &Path, during: &Range<u64>) -> Shares {
    let fails = |e: &dyn std::fmt::Display| -> ! { panic!("{}: {e}", file.display()) };
    let source = File::open(file).unwrap_or_else(|e| fails(&e));
    let mut reader = Reader::open(BufReader::new(source)).unwrap_or_else(|e| fails(&e));
    let (mut modules, mut methods) = (HashMap::new(), HashMap::new());
    let (mut frames, mut leaves) = (HashMap::new(), HashMap::new());
    let mut found = Shares {
        of: BTreeMap::new(),
        total: 0,
        samples: 0,
        first_ns: u64::MAX,
        last_ns: 0,
    };
    while let Some(item) = reader.next_item().unwrap_or_else(|e| fails(&e)) {
        let Item::Record(process, record) = item else {
            panic!("{}: {item:?}", file.display());
        };
        match record {
            Record::Module { module, path, .. } => {
                let name = path.rsplit('/').next().unwrap_or_default().to_owned();
                modules.insert((process, module), name);
            }
            Record::Method {
                method,
                type_name,
                name,
                ..
            } => {
                methods.insert((process, method), format!("{type_name}.{name}"));
            }
            Record::Frame { frame, value } => {
                let what = match value {
                    Frame::Managed { method, .. } => {
                        (true, methods.get(&(process, method)).cloned())
                    }
                    Frame::Native { module, .. } => {
                        (false, modules.get(&(process, module)).cloned())
                    }
                    Frame::Stub { name, .. } => (false, Some(format!("[{name}]"))),
                    Frame::Unknown { .. } => (false, Some("[unknown]".to_owned())),
                    Frame::Pseudo { text } | Frame::AsyncMark { text } => {
                        (false, Some(format!("[{text}]")))
                    }
                    Frame::Async { method, .. } => (true, methods.get(&(process, method)).cloned()),
                };
                frames.insert((process, frame), (what.0, what.1.unwrap_or_default()));
            }
            Record::Stack { stack, frame, .. } => {
                leaves.insert((process, stack), frame);
            }
            Record::Sample {
                stack,
                time_ns,
                event: Event::Cpu,
                value,
                ..
            } if during.contains(&time_ns) => {
                let leaf = leaves.get(&(process, stack));
                let name = leaf.and_then(|leaf| frames.get(&(process, *leaf)));
                *found
                    .of
                    .entry(name.cloned().unwrap_or_default())
                    .or_default() += value;
                found.total += value;
                found.samples += 1;
                found.first_ns = found.first_ns.min(time_ns);
                found.last_ns = found.last_ns.max(time_ns);
            }
            _ => {}
        }
    }
    found
}
