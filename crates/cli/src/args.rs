//! Definition of the command line's arguments. Their effects are in the verbs' modules.

mod diff;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, CommandFactory, Parser, Subcommand};
use formats::{Format, GroupBy, Sort, StackView};
use nix::sys::signal::Signal;
use recording::Event;

use crate::candidates;
use crate::console::Color;
use crate::filter_args::{FilterArgs, NamePattern};
use crate::output::{Destination, OutputKind};
use crate::units::{self, FindCode};

pub(crate) use diff::{DiffArgs, DiffOutputFormat};

/// Number of compiled methods after which a runtime need not report more: a compiler makes 13,000
/// and more, most programs fewer than these.
const FIND_CODE: u32 = 3000;

/// Lengths of intervals that `record --every` takes.
const EVERY: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(10)..=Duration::from_secs(3600);

/// The length of intervals that are pushed, if none is given.
const PUSH_EVERY: Duration = Duration::from_secs(15);

/// Heading of the options that every verb has.
const COMMON: &str = "Common options";
/// Headings of `record`'s, in the order of its fields.
const RECORDED: &str = "Events and samples";
const KEPT: &str = "Outputs and duration";
const ALWAYS: &str = "Always on";
const RUNNING: &str = "Running programs";
const STARTED: &str = "Programs that record starts";
const HOW: &str = "Engine and walker";
/// Headings of what is made of a recording.
const SHOWN: &str = "Display";

/// A sampling profiler for .NET programs on Linux: managed, native and runtime frames in one stack
#[derive(Parser, Debug)]
#[command(
    name = "sidewalk",
    version,
    disable_help_flag = true,
    disable_help_subcommand = true,
    after_help = "Example:
  sidewalk record -o flame.html -- dotnet app.dll

sidewalk help VERB explains a verb; topics are sidewalk help events, walkers, engines, outputs.
sidewalk --version --verbose prints the build and what it needs."
)]
pub(crate) struct Cli {
    /// Print results and errors only
    #[arg(short, long, global = true, help_heading = COMMON)]
    pub(crate) quiet: bool,

    /// Colour messages
    #[arg(
        long,
        global = true,
        help_heading = COMMON,
        value_enum,
        value_name = "WHEN",
        default_value = "auto"
    )]
    pub(crate) color: Color,

    /// Print help
    // The short form also for --help: one line an option, no blank lines between.
    #[arg(
        short,
        long,
        global = true,
        help_heading = COMMON,
        action = clap::ArgAction::HelpShort
    )]
    help: Option<bool>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Record(Box<RecordArgs>),
    Start(StartArgs),
    Stop(StopArgs),
    Agent(AgentArgs),
    Report(ReportArgs),
    Convert(ConvertArgs),
    Open(OpenArgs),
    Diff(DiffArgs),
    Inspect(InspectArgs),
    Top(TopArgs),
    List(ListArgs),
    Doctor(DoctorArgs),
    Dump(DumpArgs),
    Symbols(SymbolsArgs),
    Help(HelpArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Record a program: start it, or attach to a running one
#[derive(Args, Debug)]
#[command(
    override_usage = "sidewalk record [OPTIONS] -- COMMAND [ARG]...\n       sidewalk record [OPTIONS] --pid PID|NAME",
    after_help = "Examples:
  sidewalk record -o flame.html -- dotnet app.dll input.txt
  sidewalk record -e wall -d 30s -o trace.firefox.json -- ./server --port 8080
  sidewalk record -e cpu,alloc,exception -o flame.html -- dotnet app.dll
  sidewalk record --pid 4711 -d 30s -o flame.html
  sidewalk record --trace 'Shop.Cart.*:50ms' -- dotnet shop.dll

The program keeps its stdin, stdout, stderr, signals and exit code. It is recorded from its first
managed method to its end, with the .NET processes that it starts. Ctrl-C ends the program; twice
within two seconds, it ends the recording of a program that does not stop.

Exit code: the command's own (or the signal that ended it); 1 when nothing could be recorded."
)]
pub(crate) struct RecordArgs {
    /// Events to record, separated by commas: cpu, wall, exception, alloc, live, contention, gc,
    /// jit, class-load, module-load (sidewalk help events)
    #[arg(
        short,
        long = "event",
        value_name = "LIST",
        default_value = "cpu",
        value_delimiter = ',',
        value_parser = units::recorded_event,
        add = candidates::events(),
        help_heading = RECORDED
    )]
    pub(crate) events: Vec<Event>,

    /// Samples per second and thread, 1 to 10000
    #[arg(
        short = 'F',
        long,
        value_name = "HZ",
        default_value = "99",
        conflicts_with = "interval",
        value_parser = clap::value_parser!(u16).range(1..=10_000),
        help_heading = RECORDED
    )]
    pub(crate) frequency: u16,

    /// Time between two samples of a thread, 100us to 1s, instead of --frequency
    #[arg(short, long, value_name = "TIME", value_parser = units::interval, help_heading = RECORDED)]
    pub(crate) interval: Option<u64>,

    /// Do not record the methods that await async methods (docs/async.md)
    #[arg(long, help_heading = RECORDED)]
    pub(crate) no_async_stacks: bool,

    /// Average bytes allocated between two alloc or live samples (128k, 4m) [default: 512k]
    #[arg(long, value_name = "SIZE", value_parser = units::size, help_heading = RECORDED)]
    pub(crate) alloc_interval: Option<u64>,

    /// Interval between live-heap snapshots (event live) [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = RECORDED)]
    pub(crate) live_interval: Option<Duration>,

    /// Samples kept per second for each event except cpu and wall (0: no limit); the others are
    /// counted [default: 1000]
    #[arg(long, value_name = "N", help_heading = RECORDED)]
    pub(crate) event_limit: Option<u32>,

    /// Count and time each call of these methods: Namespace.Type.Method with * as wildcard, or
    /// /REGEX/. The suffix :50ms keeps stacks only of calls of 50 ms and more; may be given several
    /// times (docs/tracing.md)
    #[arg(long, value_name = "PATTERN[:TIME]", value_parser = units::traced, help_heading = RECORDED)]
    pub(crate) trace: Vec<units::Traced>,

    /// Maximum number of traced methods [default: 1000]
    #[arg(
        long,
        value_name = "N",
        requires = "trace",
        value_parser = clap::value_parser!(u32).range(1..=16_384),
        help_heading = RECORDED
    )]
    pub(crate) trace_limit: Option<u32>,

    /// Runtimes of a process to record: all, first, one=VERSION, many=VERSION,VERSION
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "all",
        value_parser = units::runtimes,
        add = candidates::runtimes(),
        help_heading = RECORDED
    )]
    pub(crate) runtimes: String,

    /// Maximum frames per stack, from the leaf; deeper stacks are marked [truncated]
    #[arg(
        long,
        value_name = "N",
        default_value = "1024",
        value_parser = clap::value_parser!(u32).range(1..=65_536),
        help_heading = RECORDED
    )]
    pub(crate) max_depth: u32,

    /// Write FILE in the format of its ending: .html .pb.gz .speedscope.json .firefox.json
    /// .collapsed .txt .swk; - is stdout; may be given several times (sidewalk help outputs)
    /// [default: sidewalk-<name>-<pid>.swk, and the ten hottest methods on stderr; --pid: on
    /// stdout]
    #[arg(
        short,
        long = "output",
        value_name = "FILE",
        value_parser = destination(),
        add = candidates::files(),
        help_heading = KEPT
    )]
    pub(crate) outputs: Vec<Destination>,

    /// Format of -o - and of --push file:///FOLDER, by its ending: html, pb.gz, … [default:
    /// collapsed; --push: pb.gz]
    #[arg(
        long,
        value_name = "NAME",
        value_parser = format,
        add = candidates::formats(),
        help_heading = KEPT
    )]
    pub(crate) format: Option<Format>,

    /// Open the flame graph in a browser after the recording
    #[arg(long, help_heading = KEPT)]
    pub(crate) open: bool,

    /// Stop recording after TIME (30s, 5m); the program continues
    #[arg(short, long, value_name = "TIME", value_parser = units::duration, help_heading = KEPT)]
    pub(crate) duration: Option<Duration>,

    /// Start recording after TIME. A started program runs without the agent until then; its .NET
    /// processes are then recorded by attaching
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = KEPT)]
    pub(crate) start_after: Option<Duration>,

    /// Stop recording when sidewalk receives this signal, USR1 or USR2. The program does not
    /// receive it and continues
    #[arg(
        long,
        value_name = "SIGNAL",
        num_args = 0..=1,
        default_missing_value = "USR1",
        value_parser = units::end_signal,
        help_heading = KEPT
    )]
    pub(crate) until_signal: Option<Signal>,

    /// Download missing debug files and PDBs from symbol servers after the recording (sidewalk
    /// symbols fetch)
    #[arg(long, help_heading = KEPT)]
    pub(crate) symbols: bool,

    #[command(flatten)]
    pub(crate) native: NativeFrames,

    /// Write a recording of each TIME, 10s to 1h, while recording continues. The names of outputs
    /// get the time of its begin (docs/fleet.md) [default with --push: 15s]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = units::duration,
        conflicts_with_all = ["open", "symbols", "dump"],
        help_heading = ALWAYS
    )]
    pub(crate) every: Option<Duration>,

    /// Push a profile of each interval to file:///FOLDER, otlp+http(s)://HOST:PORT,
    /// pyroscope+http(s)://HOST:PORT or pprof+http(s)://HOST:PORT/PATH (docs/fleet.md). May be
    /// given several times
    #[arg(
        long = "push",
        value_name = "URL",
        value_parser = push::Target::parse,
        conflicts_with_all = ["open", "symbols", "dump"],
        help_heading = ALWAYS
    )]
    pub(crate) pushes: Vec<push::Target>,

    /// Maximum number of profiles in the folder of --push file:///FOLDER; the oldest go first
    #[arg(long, value_name = "N", requires = "pushes", help_heading = ALWAYS)]
    pub(crate) keep: Option<usize>,

    /// Maximum size of the profiles in that folder [default: 1g, if no other limit is given]
    #[arg(
        long,
        value_name = "SIZE",
        requires = "pushes",
        value_parser = units::size,
        help_heading = ALWAYS
    )]
    pub(crate) keep_size: Option<u64>,

    /// Maximum age of the profiles in that folder (7d is 168h)
    #[arg(
        long,
        value_name = "TIME",
        requires = "pushes",
        value_parser = units::duration,
        help_heading = ALWAYS
    )]
    pub(crate) keep_age: Option<Duration>,

    /// Send the token in this file with each push over HTTP, as Authorization: Bearer
    #[arg(long, value_name = "FILE", requires = "pushes", help_heading = ALWAYS)]
    pub(crate) push_token_file: Option<PathBuf>,

    /// Send the headers in this file (Name: value, one a line) with each push over HTTP
    #[arg(long, value_name = "FILE", requires = "pushes", help_heading = ALWAYS)]
    pub(crate) push_header_file: Option<PathBuf>,

    /// Keep profiles that wait for a server in FOLDER, at most 256 MiB for each server, so that
    /// they survive a restart. Without it they wait in memory
    #[arg(long, value_name = "FOLDER", requires = "pushes", help_heading = ALWAYS)]
    pub(crate) push_spool: Option<PathBuf>,

    /// Answer Prometheus with numbers about this recording at PORT of this machine (/metrics):
    /// processes, samples, lost ones, pushes, cost
    #[arg(long, value_name = "PORT", value_parser = units::loopback, help_heading = ALWAYS)]
    pub(crate) metrics: Option<SocketAddr>,

    /// Accept any interval in --every
    // For tests.
    #[arg(long, hide = true, requires = "every", help_heading = ALWAYS)]
    pub(crate) short_intervals: bool,

    /// Record a running program, by PID or the name of its program or .dll; may be given several
    /// times. The program is left as it was
    #[arg(
        short,
        long = "pid",
        value_name = "PID|NAME",
        conflicts_with_all = ["no_children", "only", "replace_profiler", "command"],
        add = candidates::processes(),
        help_heading = RUNNING
    )]
    pub(crate) pids: Vec<String>,

    /// Keep the agent loaded in the process afterwards, idle until the next recording
    #[arg(long, requires = "pids", help_heading = RUNNING)]
    pub(crate) stay: bool,

    /// Change the events of a recording in progress to those of -e. cpu and wall cannot be added or
    /// removed
    #[arg(
        long,
        requires_all = ["pids", "events"],
        conflicts_with_all = [
            "outputs", "format", "open", "duration", "start_after", "until_signal", "frequency", "interval", "engine", "walker",
            "alloc_interval", "live_interval", "event_limit", "runtimes", "max_depth", "stay", "dump", "no_async_stacks",
            "find_code",
            "symbols", "trace", "every", "pushes",
        ],
        help_heading = RUNNING
    )]
    pub(crate) change: bool,

    /// Take one stack of each thread when the recording stops, and nothing before
    // Used by `sidewalk dump PID` on a running process.
    #[arg(long, hide = true)]
    pub(crate) dump: bool,

    /// Record only the first .NET process, not those that it starts
    #[arg(long, help_heading = STARTED)]
    pub(crate) no_children: bool,

    /// Record only processes of this name, as report --by process shows it (* is a wildcard); may
    /// be given several times
    #[arg(long, value_name = "NAME", value_parser = NamePattern::parse, help_heading = STARTED)]
    pub(crate) only: Vec<NamePattern>,

    /// Record although the environment asks for another profiler or forbids profilers; both are
    /// overridden for the command
    #[arg(long, help_heading = STARTED)]
    pub(crate) replace_profiler: bool,

    /// Engine for cpu samples: auto, timer, clocks, perf (sidewalk help engines)
    #[arg(
        long,
        value_name = "NAME",
        default_value = "auto",
        value_parser = units::engine,
        add = candidates::engines(),
        help_heading = HOW
    )]
    pub(crate) engine: &'static str,

    /// How stacks are walked: signal, suspend, seeded, snapshot, shadow (sidewalk help walkers)
    #[arg(
        long,
        value_name = "NAME",
        default_value = "signal",
        value_parser = units::walker,
        add = candidates::walkers(),
        help_heading = HOW
    )]
    pub(crate) walker: &'static str,

    /// On .NET 10 and later: after this many compiled methods, stop JIT callbacks and discover code
    /// on demand, which costs less (docs/unwinding.md) [default: 3000]
    #[arg(
        long,
        value_name = "METHODS|never",
        value_parser = units::find_code,
        help_heading = HOW
    )]
    pub(crate) find_code: Option<FindCode>,

    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "pids",
        value_name = "COMMAND",
        add = candidates::programs()
    )]
    pub(crate) command: Vec<OsString>,
}

impl RecordArgs {
    /// The events, each once, in the order in which they were given.
    pub(crate) fn distinct_events(&self) -> Vec<Event> {
        let mut distinct = Vec::with_capacity(self.events.len());
        for &event in &self.events {
            if !distinct.contains(&event) {
                distinct.push(event);
            }
        }
        distinct
    }

    /// Whether to record who awaits async methods.
    pub(crate) fn chains(&self) -> bool {
        self.walker == "signal" && !self.no_async_stacks
    }

    /// Returns the number of methods after which a runtime need not report more. The agent handles
    /// the cases that need every report.
    pub(crate) fn find_code(&self) -> Option<u32> {
        match self.find_code.unwrap_or(FindCode::After(FIND_CODE)) {
            FindCode::After(methods) => Some(methods),
            FindCode::Never => None,
        }
    }

    /// The length of intervals, if the recording is cut.
    pub(crate) fn every(&self) -> Option<Duration> {
        self.every
            .or_else(|| (!self.pushes.is_empty()).then_some(PUSH_EVERY))
    }

    /// Whether profiles are pushed to a folder.
    pub(crate) fn has_folder(&self) -> bool {
        let is_folder = |target: &push::Target| matches!(target, push::Target::Folder(_));
        self.pushes.iter().any(is_folder)
    }

    /// An option that would do nothing beside the events that are asked for.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        let by_time = |event: &Event| matches!(event, Event::Cpu | Event::Wall);
        let by_bytes = |event: &Event| matches!(event, Event::Alloc | Event::Live);
        let by_method = |event: &Event| matches!(event, Event::Exception | Event::Jit);
        let finds = matches!(self.find_code, Some(FindCode::After(_)));
        let is_length = |every| self.short_intervals || EVERY.contains(&every);
        if self.every.is_some_and(|every| !is_length(every)) {
            Some(
                "--every takes 10s to 1h: shorter intervals cost too much, longer ones come too late",
            )
        } else if self.metrics.is_some() && self.every().is_none() {
            Some("--metrics is for recordings that go on: add --every or --push")
        } else if self.every().is_some() && self.outputs.iter().any(Destination::is_stdout) {
            Some(
                "--every and --push write one file for each interval: give -o a file name in place \
                 of -",
            )
        } else if self.pushes.contains(&push::Target::WithPassword) {
            Some(push::WITH_PASSWORD)
        } else if (self.keep.is_some() || self.keep_size.is_some() || self.keep_age.is_some())
            && !self.has_folder()
        {
            Some("--keep applies to a folder: give --push file:///FOLDER")
        } else if self.walker == "snapshot" && self.events.iter().any(by_time) {
            Some(
                "--walker snapshot walks the thread that an event happens on, and cannot walk by \
                 time: give other events (--event exception), or another walker",
            )
        } else if matches!(self.walker, "suspend" | "seeded") && !self.events.iter().any(by_time) {
            Some("--walker suspend and seeded walk by time: add cpu or wall to --event")
        } else if self.alloc_interval.is_some() && !self.events.iter().any(by_bytes) {
            Some("--alloc-interval applies to alloc and live events: add one to --event")
        } else if self.live_interval.is_some() && !self.events.contains(&Event::Live) {
            Some("--live-interval applies to live events: add live to --event")
        } else if self.no_async_stacks && self.walker != "signal" {
            Some("--no-async-stacks needs --walker signal: other walkers record no async stacks")
        } else if finds && self.walker != "signal" {
            Some("--find-code needs --walker signal: other walkers need all JIT callbacks")
        } else if finds && (self.events.iter().any(by_method) || !self.trace.is_empty()) {
            Some(
                "--find-code stops the JIT callbacks that -e jit, -e exception and --trace need: \
                 drop one of them",
            )
        } else if !self.trace.is_empty() && self.walker == "shadow" {
            Some("--walker shadow counts the calls of all methods: drop --trace or the walker")
        } else if self.event_limit.is_some()
            && self.trace.is_empty()
            && self.events.iter().all(by_time)
        {
            Some(
                "--event-limit does not apply to cpu and wall (--frequency does): \
                 add one to --event, or --trace",
            )
        } else {
            None
        }
    }
}

/// Start recording a running program in the background; sidewalk stop ends it
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sidewalk start 4711 -e cpu,alloc -o app.swk
  sidewalk stop 4711

Returns when the recording has started. sidewalk record --pid continues in the background and writes
the outputs when it is stopped, the program ends, or --duration is over.")]
pub(crate) struct StartArgs {
    /// The process: its PID, or the name of its program or .dll
    #[arg(value_name = "PID|NAME", add = candidates::processes())]
    pub(crate) what: String,

    /// Options of sidewalk record
    #[arg(
        value_name = "OPTIONS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) options: Vec<OsString>,
}

/// End the recording of a running program and wait until it is written
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sidewalk stop 4711

The program continues. Ends recordings of sidewalk start, record --pid and record --until-signal.")]
pub(crate) struct StopArgs {
    /// The process: its PID, or the name of its program or .dll
    #[arg(value_name = "PID|NAME", add = candidates::processes())]
    pub(crate) what: String,
}

/// Record the .NET processes of this machine, now and later, and push their profiles
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sidewalk agent --check
  sidewalk agent --config agent.toml

Runs until it gets SIGTERM or SIGINT, then detaches from every process. SIGHUP makes it read the
configuration again. docs/agent.md describes the configuration, a systemd unit and a DaemonSet.")]
pub(crate) struct AgentArgs {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = "/etc/sidewalk/agent.toml")]
    pub(crate) config: PathBuf,

    /// Check the configuration, print which running processes it would record, and end
    #[arg(long)]
    pub(crate) check: bool,
}

/// The part of a recording that an option of `record` applies to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OptionScope {
    /// One process.
    Process,
    /// All processes.
    Recording,
}

/// Returns the scope of an option of `record`, if `sidewalk agent` has it.
pub(crate) fn scope_of(option: &Arg) -> Option<OptionScope> {
    match option.get_help_heading() {
        Some(RECORDED | HOW) => Some(OptionScope::Process),
        Some(ALWAYS) => Some(OptionScope::Recording),
        _ if matches!(option.get_long(), Some("output" | "format")) => Some(OptionScope::Recording),
        _ => None,
    }
}

/// Print the hottest methods of a recording
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sidewalk report --top 30 --by line sidewalk-app-4711.swk")]
pub(crate) struct ReportArgs {
    /// The recording (.swk); several are merged into one
    #[arg(value_name = "FILE", required = true, add = candidates::recordings())]
    pub(crate) files: Vec<PathBuf>,

    /// The event to report [default: the one sampled by time, else the one with most samples]
    #[arg(short, long, value_name = "NAME", value_parser = units::event, add = candidates::events(), help_heading = SHOWN)]
    pub(crate) event: Option<Event>,

    /// Rows of the table
    #[arg(long, value_name = "N", default_value_t = 20, help_heading = SHOWN)]
    pub(crate) top: usize,

    /// Print a call tree too
    #[arg(long, help_heading = SHOWN)]
    pub(crate) tree: bool,

    /// Rows: method, line, module, thread, runtime, event, process, recording (of several), detail
    /// (type of exception, object…) [default: detail for an event that has them, else method]
    #[arg(long, value_name = "WHAT", value_parser = by, add = candidates::rows(), help_heading = SHOWN)]
    pub(crate) by: Option<GroupBy>,

    /// Order of the rows: self (samples with the row as leaf) or total (samples with it anywhere)
    #[arg(long, value_name = "ORDER", default_value = "self", value_parser = sort, add = candidates::orders(), help_heading = SHOWN)]
    pub(crate) sort: Sort,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) view: View,
}

/// Convert a recording to other formats
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sidewalk convert sidewalk-app-4711.swk -o flame.html -o profile.pb.gz")]
pub(crate) struct ConvertArgs {
    /// The recording (.swk); several are merged into one
    #[arg(value_name = "FILE", required = true, add = candidates::recordings())]
    pub(crate) files: Vec<PathBuf>,

    /// Write OUT in the format of its ending: .html .pb.gz .speedscope.json .firefox.json
    /// .collapsed .txt; - is stdout; may be given several times
    #[arg(
        short,
        long = "output",
        value_name = "OUT",
        required = true,
        num_args = 1..,
        value_parser = converted(),
        add = candidates::files()
    )]
    pub(crate) outputs: Vec<Destination>,

    /// Format of -o -, by its ending: html, pb.gz, … [default: collapsed]
    #[arg(long, value_name = "NAME", value_parser = format, add = candidates::formats())]
    pub(crate) format: Option<Format>,

    /// The event in outputs that hold one; the first one shown in others [default: the one sampled
    /// by time, else the one with most samples]
    #[arg(short, long, value_name = "NAME", value_parser = units::event, add = candidates::events(), help_heading = SHOWN)]
    pub(crate) event: Option<Event>,

    #[command(flatten)]
    pub(crate) text: PageSources,

    #[command(flatten)]
    pub(crate) view: View,
}

/// Show a recording in a browser: its flame graph, in a temporary file
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sidewalk open sidewalk-app-4711.swk

Without a display the path of the page is printed. BROWSER names another program than xdg-open.")]
pub(crate) struct OpenArgs {
    /// The recording (.swk); several are merged into one
    #[arg(value_name = "FILE", required = true, add = candidates::recordings())]
    pub(crate) files: Vec<PathBuf>,

    /// The event that is shown first [default: the one sampled by time, else the one with most
    /// samples]
    #[arg(short, long, value_name = "NAME", value_parser = units::event, add = candidates::events(), help_heading = SHOWN)]
    pub(crate) event: Option<Event>,

    #[command(flatten)]
    pub(crate) text: PageSources,

    #[command(flatten)]
    pub(crate) view: View,
}

/// The part of a recording that is shown, and its presentation.
#[derive(Args, Debug)]
pub(crate) struct View {
    #[command(flatten)]
    pub(crate) stacks: AsyncStacks,

    #[command(flatten)]
    pub(crate) native: NativeFrames,

    #[command(flatten)]
    pub(crate) names: NameStyle,

    #[command(flatten)]
    pub(crate) limits: SizeLimits,

    #[command(flatten)]
    pub(crate) range: TimeRange,

    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

/// Additions to the profile in a page.
#[derive(Args, Debug)]
pub(crate) struct PageSources {
    /// Put source text around sampled lines into the page (.html), from PDBs or local files.
    /// Everyone who gets the page can read it
    #[arg(long, help_heading = SHOWN)]
    pub(crate) sources: bool,
}

/// The part of the time that is shown.
#[derive(Args, Debug)]
pub(crate) struct TimeRange {
    /// Show only samples from this time on, since the start of the recording (2s, 500ms, 1.5m)
    #[arg(long, value_name = "TIME", value_parser = units::offset, help_heading = SHOWN)]
    pub(crate) from: Option<Duration>,

    /// Show only samples before this time
    #[arg(long, value_name = "TIME", value_parser = units::offset, help_heading = SHOWN)]
    pub(crate) to: Option<Duration>,
}

/// The kind of stacks that samples in async methods have.
#[derive(Args, Debug)]
pub(crate) struct AsyncStacks {
    /// Stacks of async methods: logical (callers and awaiting methods, as the source reads) or
    /// physical (the thread's own stack, with the runtime's dispatcher)
    #[arg(long = "async", value_name = "STACKS", default_value = "logical", value_parser = stacks, add = candidates::stacks(), help_heading = SHOWN)]
    pub(crate) stacks: StackView,
}

/// Native frames or not.
#[derive(Args, Debug)]
pub(crate) struct NativeFrames {
    /// Show native frames, including the runtime's (the default)
    #[arg(long, overrides_with = "no_native", help_heading = SHOWN)]
    native: bool,

    /// Leave native frames out of reports and outputs; a recording keeps them
    #[arg(long, overrides_with = "native", help_heading = SHOWN)]
    no_native: bool,
}

impl NativeFrames {
    /// They are wanted.
    pub(crate) fn is_shown(&self) -> bool {
        self.native || !self.no_native
    }
}

/// How methods are called.
#[derive(Args, Debug)]
pub(crate) struct NameStyle {
    /// Show overloads with the types of their parameters, where the program's files are available
    #[arg(long, help_heading = SHOWN)]
    pub(crate) signatures: bool,
}

/// How much of a recording is read and shown.
#[derive(Args, Debug)]
pub(crate) struct SizeLimits {
    /// Maximum frames per stack, from the leaf; deeper stacks are marked [truncated]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = SHOWN)]
    pub(crate) max_depth: Option<u32>,

    #[command(flatten)]
    pub(crate) size: UnpackLimit,
}

/// How much of a recording is read.
#[derive(Args, Debug)]
pub(crate) struct UnpackLimit {
    /// Allow a recording to unpack to this size (2g)
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub(crate) max_size: Option<u64>,
}

/// Show what a recording holds: runtimes, engine, samples, lost and broken by reason, agent cost
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sidewalk inspect --json sidewalk-app-4711.swk")]
pub(crate) struct InspectArgs {
    /// The recording (.swk)
    #[arg(value_name = "FILE", add = candidates::recordings())]
    pub(crate) file: PathBuf,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) size: UnpackLimit,
}

/// Show live where a running program spends its time
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sidewalk top 4711
  sidewalk top MyServer

Methods and threads by CPU time over the last five seconds, with allocations, collections, waits for
locks and exceptions; ? lists the keys. The program is not stopped and is left as it was. w saves
the recording.")]
pub(crate) struct TopArgs {
    /// The process: its PID, or the name of its program or .dll
    #[arg(value_name = "PID|NAME", add = candidates::processes())]
    pub(crate) pid: String,

    /// Events to show (sidewalk record --help)
    #[arg(
        short,
        long = "event",
        value_name = "LIST",
        default_value = "cpu,alloc,gc,contention,exception",
        value_delimiter = ',',
        add = candidates::events()
    )]
    pub(crate) events: String,

    /// Samples per second and thread
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = 99)]
    pub(crate) frequency: u16,

    /// Keep the agent loaded in the process afterwards, idle until the next recording
    #[arg(long)]
    pub(crate) stay: bool,
}

/// List the running .NET processes and how each can be recorded
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sidewalk list

Root sees processes of all users, also in containers. RECORD says how sidewalk record --pid reaches
a process: attach (the runtime loads the agent), control socket (the agent is loaded already), beside
NAME (as a second profiler), or no with the reason; sidewalk doctor PID says more.")]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check what recording needs on this machine, with a fix for each problem
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sidewalk doctor
  sidewalk doctor 4711

Each line is one check: ok; limited (recording works, and how); or not ok, with the fix.

Exit code: 1 when a check that recording needs is not ok.")]
pub(crate) struct DoctorArgs {
    /// Also check what attaching to this running process needs
    #[arg(value_name = "PID", add = candidates::processes())]
    pub(crate) pid: Option<u32>,
}

/// Print the stack, the state and the wait of each thread of a running process
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sidewalk dump 4711
  sidewalk dump 4711 --async
  sidewalk dump MyApp -o dump.swk

No thread is stopped: each walks its own stack in a signal handler. The process is left as it was.
With --async the runtime collects garbage twice and walks its heap each time, which stops the
program meanwhile.")]
pub(crate) struct DumpArgs {
    /// A running process, by PID or the name of its program or .dll; or the recording (.swk) of a
    /// dump
    #[arg(value_name = "PID|NAME|FILE", add = candidates::processes_and_recordings())]
    pub(crate) what: OsString,

    /// Also print suspended async methods, each with the methods that await it; identical stacks
    /// once, with their count
    #[arg(long = "async", conflicts_with = "stay")]
    pub(crate) suspended: bool,

    /// Save the dump as a recording (.swk), for sidewalk convert
    #[arg(short, long = "output", value_name = "FILE", add = candidates::files())]
    pub(crate) output: Option<PathBuf>,

    /// Keep the agent loaded in the process afterwards, idle until the next recording
    #[arg(long)]
    pub(crate) stay: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) native: NativeFrames,

    #[command(flatten)]
    pub(crate) filter: FilterArgs,

    #[command(flatten)]
    pub(crate) size: UnpackLimit,
}

/// Download missing debug files and PDBs from symbol servers
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sidewalk symbols fetch sidewalk-app-4711.swk")]
pub(crate) struct SymbolsArgs {
    #[command(subcommand)]
    pub(crate) verb: SymbolsVerb,
}

/// The verbs of `sidewalk symbols`.
#[derive(Subcommand, Debug)]
pub(crate) enum SymbolsVerb {
    Fetch(FetchArgs),
}

/// Download the debug files and PDBs of a recording or a process, for names and lines
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sidewalk symbols fetch sidewalk-app-4711.swk
  DEBUGINFOD_URLS=https://debuginfod.example sidewalk symbols fetch 4711

Servers: Microsoft's symbol server, or those of SIDEWALK_SYMBOL_SERVERS instead, and those of
DEBUGINFOD_URLS. They learn which builds you run. Files are checked by their id and kept where
debuginfod's clients keep them (DEBUGINFOD_CACHE_PATH); reports look there. DEBUGINFOD_TIMEOUT,
DEBUGINFOD_MAXTIME and DEBUGINFOD_MAXSIZE limit it; HTTPS_PROXY and NO_PROXY are honoured.

Exit code: 1 when a server could not be reached or sent a wrong file, but not when no server has a
file.")]
pub(crate) struct FetchArgs {
    /// A recording (.swk), or the number of a process
    #[arg(value_name = "FILE|PID", add = candidates::processes_and_recordings())]
    pub(crate) what: OsString,

    /// Use this server, with Microsoft's protocol, instead of Microsoft's; may be given several
    /// times
    #[arg(long = "server", value_name = "URL")]
    pub(crate) servers: Vec<String>,

    #[command(flatten)]
    pub(crate) size: UnpackLimit,
}

/// Explain a verb, or events, walkers, engines, outputs
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sidewalk help events")]
pub(crate) struct HelpArgs {
    /// A verb or a topic
    #[arg(value_name = "VERB|TOPIC", add = candidates::subjects(verbs))]
    pub(crate) about: Option<String>,
}

/// Print a shell's completion script for verbs, options, processes and recordings
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  source <(sidewalk completions bash)
  sidewalk completions zsh > ~/.zfunc/_sidewalk
  sidewalk completions fish > ~/.config/fish/completions/sidewalk.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_parser = shell, add = candidates::shells())]
    pub(crate) shell: &'static str,
}

/// Print a manual page
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sidewalk man record | man -l -")]
pub(crate) struct ManArgs {
    /// The verb [default: sidewalk itself]
    #[arg(value_name = "VERB", add = candidates::verbs(verbs))]
    pub(crate) verb: Option<String>,
}

/// The names of the verbs.
pub(crate) fn verbs() -> Vec<String> {
    let command = Cli::command();
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    verbs.map(|verb| verb.get_name().to_owned()).collect()
}

/// Parses any path, even if it is not UTF-8.
fn destination() -> impl clap::builder::TypedValueParser<Value = Destination> {
    use clap::builder::TypedValueParser;
    clap::builder::OsStringValueParser::new().try_map(Destination::parse)
}

/// As [`destination`], but without recordings.
fn converted() -> impl clap::builder::TypedValueParser<Value = Destination> {
    use clap::builder::TypedValueParser;
    clap::builder::OsStringValueParser::new().try_map(Destination::parse_converted)
}

/// Parses a format from its file name ending, with or without the dot.
fn format(text: &str) -> Result<Format, String> {
    let known =
        |format: &&Format| format.ending().trim_start_matches('.') == text.trim_start_matches('.');
    let found = Format::ALL.iter().find(known).copied();
    found.ok_or_else(|| one_of(Format::ALL.map(|f| f.ending().trim_start_matches('.'))))
}

/// Sets the format of `-` to the requested one.
pub(crate) fn apply_format(
    outputs: &mut [Destination],
    format: Option<Format>,
) -> Option<&'static str> {
    let format = format?;
    let mut applied = false;
    for output in outputs.iter_mut().filter(|output| output.is_stdout()) {
        output.kind = OutputKind::Converted(format);
        applied = true;
    }
    (!applied).then_some(
        "--format applies to -o - (stdout); other outputs have the format of their ending",
    )
}

fn one_of<const N: usize>(names: [&str; N]) -> String {
    format!("expected one of {}", names.join(", "))
}

fn by(text: &str) -> Result<GroupBy, String> {
    GroupBy::from_name(text).ok_or_else(|| one_of(GroupBy::ALL.map(GroupBy::name)))
}

fn stacks(text: &str) -> Result<StackView, String> {
    StackView::from_name(text).ok_or_else(|| one_of(StackView::ALL.map(StackView::name)))
}

fn sort(text: &str) -> Result<Sort, String> {
    Sort::from_name(text).ok_or_else(|| one_of(Sort::ALL.map(Sort::name)))
}

/// Parses the name of a shell with a completion script.
fn shell(text: &str) -> Result<&'static str, String> {
    let mut known = candidates::SHELLS.into_iter();
    known
        .find(|name| *name == text)
        .ok_or_else(|| one_of(candidates::SHELLS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_finds_no_contradiction() {
        Cli::command().debug_assert();
    }

    fn record(options: &[&str]) -> RecordArgs {
        let words = [&["sidewalk", "record"], options, &["--", "x"]].concat();
        match Cli::try_parse_from(words)
            .expect("it is right usage")
            .command
        {
            Command::Record(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn events_are_a_list_and_may_be_repeated() {
        for (options, events) in [
            (&[][..], &[Event::Cpu][..]),
            (&["-e", "exception"], &[Event::Exception]),
            (
                &["-e", "wall,alloc", "--event", "gc,wall"],
                &[Event::Wall, Event::Alloc, Event::Gc],
            ),
        ] {
            assert_eq!(record(options).distinct_events(), events);
        }
    }

    #[test]
    fn options_that_would_do_nothing() {
        for (options, fits) in [
            (&["--alloc-interval", "1m"][..], false),
            (&["--alloc-interval", "1m", "-e", "cpu,alloc"], true),
            (&["--alloc-interval", "1m", "-e", "live"], true),
            (&["--live-interval", "2s", "-e", "live"], true),
            (&["--live-interval", "2s", "-e", "alloc"], false),
            (&["--event-limit", "5", "-e", "cpu,wall"], false),
            (&["--event-limit", "0", "-e", "cpu,jit"], true),
            (&["--event-limit", "5", "--trace", "A.B"], true),
            (&["--walker", "shadow", "--trace", "A.B"], false),
            (&["--walker", "snapshot"], false),
            (&["--walker", "snapshot", "-e", "exception,wall"], false),
            (&["--walker", "snapshot", "-e", "exception,alloc"], true),
            (&["--walker", "suspend", "-e", "exception"], false),
            (&["--walker", "suspend", "--no-async-stacks"], false),
            (&["--no-async-stacks", "-e", "cpu,wall"], true),
            (&["--find-code", "5", "-e", "cpu,wall"], true),
            (&["--find-code=0"], true),
            (&["--find-code", "5", "-e", "cpu,jit"], false),
            (&["--find-code", "5", "-e", "cpu,exception"], false),
            (&["--find-code", "5", "--walker", "seeded"], false),
            (&["--find-code", "5", "--trace", "A.B"], false),
            (&["--find-code", "never", "--trace", "A.B"], true),
            (&["--walker", "seeded", "-e", "exception,wall"], true),
            (&["--every", "9999ms"], false),
            (&["--every", "10s", "-o", "x.swk"], true),
            (&["--every", "1h"], true),
            (&["--every", "61m"], false),
            (&["--every", "1s", "--short-intervals"], true),
            (&["--every", "1m", "-o", "-"], false),
            (&["--push", "file:///p", "-o", "-"], false),
            (&["--push", "otlp+http://me:secret@a"], false),
            (
                &["--push", "file:///p", "--keep", "9", "-o", "x.html"],
                true,
            ),
            (&[], true),
        ] {
            assert_eq!(
                record(options).contradiction().is_none(),
                fits,
                "{options:?}"
            );
        }
    }
}
