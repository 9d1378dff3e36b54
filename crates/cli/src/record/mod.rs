//! `sidewalk record -- COMMAND`: starts a program, receives its agents' data, writes outputs.
//!
//! Also records running programs (`--pid`). All checks of the tool's own requirements run before
//! the command starts.
//! Invariant: after that, the command runs as it would without the tool. A failure of the tool
//! gives a message and an exit code, after the command has ended by itself.

mod agent_library;
mod attach;
mod background;
mod change;
mod daemon;
mod descendants;
mod environment;
mod init;
mod metrics;
mod pushes;
mod rendezvous;
mod resource;
mod rotation;
mod session;
mod signals;
mod sink;
mod store;
mod symbols;
mod trials;
mod unrecorded;
mod worker;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser as _;
use diagnostics::Target;
use nix::sys::signal::Signal;
use profile::Profile;
use profile::model::TracedMethod;

pub(crate) use agent_library::{AgentLibrary, CommandAgents};
pub use agent_library::{EmbeddedAgent, EmbeddedAgents};
pub(crate) use background::{start, stop};
pub(crate) use daemon::run as run_agent;
pub use environment::AGENT_CLSID;
pub(crate) use trials::{check_environment, try_socket};

use self::environment::Obstacles;
use self::rendezvous::Rendezvous;
use self::session::{EndReason, ProcessFilter, Session};
use self::signals::Signals;
use self::sink::{BlockSink as _, Sink};
use self::store::{RecordingEnd, Store};
use self::unrecorded::UnrecordedProcesses;
use crate::args::{Cli, Command as Verb, DumpArgs, RecordArgs, TopArgs};
use crate::console::{self, Console, escaped};
use crate::filter_args::NamePattern;
use crate::is_broken_pipe;
use crate::memory;
use crate::names;
use crate::open;
use crate::output::{Destination, ExistingMode, OutputKind, folder_of, write_whole};
use crate::resolved_path::{self, ResolvedPath};
use crate::saved;
use crate::symbols as servers;
use crate::tested::newer_than_tested;
use crate::top::Top;
use crate::units;

/// Number of rows of the table that is printed if no output is requested.
const ROWS: usize = 10;

/// Runs the verb. The tool ends like the command: with its exit code, or by its signal.
pub(crate) fn run(
    args: &RecordArgs,
    embedded: EmbeddedAgents,
    console: &Console,
) -> Result<ExitCode> {
    if args.change {
        return change::run(args, console);
    }
    if !args.pids.is_empty() {
        return run_attached(args, None, embedded, console);
    }
    let (status, is_recorded) = run_command(args, embedded, console)?;
    // Raised here, where all of the tool's files are already removed.
    match status {
        Some(status) => status.signal().into_iter().for_each(signals::end_by),
        None => signals::end_by(Signal::SIGINT as i32),
    }
    Ok(exit_code(status, is_recorded))
}

/// Runs and records the command. Returns its status (`None` if the user pressed Ctrl-C twice and it
/// still runs), and whether it was recorded.
fn run_command(
    args: &RecordArgs,
    embedded: EmbeddedAgents,
    console: &Console,
) -> Result<(Option<ExitStatus>, bool)> {
    let Some((program, arguments)) = args.command.split_first() else {
        bail!("there is no command to start");
    };
    if args.symbols {
        servers::check()?;
    }
    store::check_outputs(args)?;
    let file = check_program(program)?;
    let agents = CommandAgents::find(embedded, diagnostics::libc_of_program(&file))?;
    if diagnostics::is_native_aot(&file) {
        console.warning(format_args!(
            "{} is a native AOT program, which has no runtime to load the agent: only .NET processes \
             that it starts are recorded; perf record can sample it",
            escaped(program)
        ));
    }
    let obstacles = Obstacles::find(|name| std::env::var_os(name));
    for warning in obstacles.check(args.replace_profiler)? {
        console.warning(warning);
    }
    if args.walker == "shadow" && obstacles.is_beside(args.replace_profiler) {
        bail!(
            "--walker shadow must be the main profiler, and the environment asks for another one; \
             --replace-profiler records without that one"
        );
    }
    let Rendezvous {
        listeners,
        path: socket,
        folder: _folder,
    } = Rendezvous::create()?;
    let mut store = Store::prepare(args)?;
    console.share();

    let signals = Signals::take().context("cannot take signals over")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let configuration = environment::configuration(args);
    let beside = obstacles.is_beside(args.replace_profiler);
    if args.start_after.is_none() {
        environment::prepare(
            &mut command,
            &agents.path(),
            &socket,
            &configuration,
            beside,
        );
    }
    let child = signals
        .spawn(&mut command)
        .with_context(|| format!("cannot start {}{}", escaped(program), dll_hint(program)))?;
    let pid = child.id();
    memory::set_program(pid);
    let name = recording_name(program, arguments, pid);
    store.begin(args, &name, console);
    let wanted = ProcessFilter {
        first: args.no_children,
        only: &args.only,
    };
    let mut session = Session::new(child, listeners, wanted, &signals, console);
    session.watch(args.start_after.is_none().then_some(&socket), agents.only());
    session.end_signal = args.until_signal;

    // The program runs from here on: no `?` before it has ended.
    let mut joined = Vec::new();
    let begun = match args.start_after {
        None => Ok(()),
        Some(time) => {
            let request = attach::RecordingRequest {
                configuration: &configuration,
                stay: false,
                walks_heap: false,
                done: "recorded",
            };
            record_later(&mut session, time, (pid, embedded, &request), console)
                .map(|targets| joined = targets)
        }
    };
    let recorded = begun
        .and_then(|()| store.blocks())
        .and_then(|blocks| session.record(blocks, args.duration));
    for target in &joined {
        attach::detach(target);
    }
    let recorded = match recorded {
        Ok(ended) => {
            let unrecorded = UnrecordedProcesses {
                processes: session.unrecorded(),
                servers: session.busy_servers(),
            };
            let processes = session.processes;
            // A panic of the tool must not replace the program's exit code either.
            let written = std::panic::catch_unwind(AssertUnwindSafe(|| {
                let end = RecordingEnd {
                    name: &name,
                    processes,
                    unrecorded: &unrecorded,
                };
                store.finish(args, &end, &signals, console)
            }))
            .unwrap_or_else(|_| {
                Err(anyhow!(
                    "internal error in sidewalk: the outputs are not written"
                ))
            });
            if ended != EndReason::Program {
                report_still_running(pid, ended, console);
            }
            written
        }
        Err(error) => {
            store.discard_empty();
            Err(error)
        }
    };
    if let Err(error) = &recorded {
        let unwanted = std::mem::take(&mut session.unwanted);
        match unwanted.is_empty() || session.processes > 0 {
            true => console.error(error),
            false => console.error(&no_wanted_process(&args.only, unwanted)),
        }
        if beside && session.processes == 0 {
            console.note(
                "the environment asks for another profiler, and .NET before 6 supports only one; \
                 --replace-profiler records without the other one",
            );
        }
    }
    let status = session.wait()?;
    if let Some(how) = status.and_then(killed_by) {
        console.warning(format_args!("the command was killed by {how}"));
    }
    Ok((status, recorded.is_ok()))
}

/// Begins to record a command and its descendants after it has run for some time.
fn record_later(
    session: &mut Session<'_>,
    time: Duration,
    (pid, embedded, request): (u32, EmbeddedAgents, &attach::RecordingRequest<'_>),
    console: &Console,
) -> Result<Vec<Target>> {
    session.idle(time)?;
    let mut targets = attach::tree(pid);
    // A slow command may not have loaded its runtime yet.
    let deadline = Instant::now() + attach::STARTUP_TIME;
    while targets.is_empty() && Instant::now() < deadline && session.idle(attach::STARTUP_POLL)? {
        targets = attach::tree(pid);
    }
    let (mut streams, mut joined) = (Vec::new(), Vec::new());
    for target in targets {
        if !session.is_wanted(target.pid().cast_signed()) {
            continue;
        }
        match attach::begin_recording(&target, embedded, request) {
            Ok(stream) => {
                streams.push((stream, target.pid()));
                joined.push(target);
            }
            Err(error) => console.error(&error),
        }
    }
    if joined.is_empty() {
        bail!(
            "nothing was recorded: {} after its start the command runs no .NET process that can be \
             attached to",
            units::seconds(time)
        );
    }
    session.join(streams)?;
    Ok(joined)
}

/// Records a running program with the live view. The recording is kept if the user wants.
pub(crate) fn run_top(
    args: &TopArgs,
    embedded: EmbeddedAgents,
    console: &Console,
) -> Result<ExitCode> {
    Top::check()?;
    let frequency = args.frequency.to_string();
    let mut words = vec![
        "sidewalk",
        "record",
        "--pid",
        &args.pid,
        "--event",
        &args.events,
        "--frequency",
        &frequency,
    ];
    if args.stay {
        words.push("--stay");
    }
    let Verb::Record(record) = Cli::try_parse_from(words)?.command else {
        bail!("these are the words of a recording");
    };
    run_attached(&record, Some(Top::open), embedded, console)
}

/// Records running programs, then detaches. `show` opens the live view; its argument is the name of
/// a kept recording.
fn run_attached(
    args: &RecordArgs,
    show: Option<fn(String) -> Result<Top>>,
    embedded: EmbeddedAgents,
    console: &Console,
) -> Result<ExitCode> {
    store::check_outputs(args)?;
    if args.symbols {
        servers::check()?;
    }
    let targets = attach::targets(&args.pids)?;
    let mut store = Store::prepare(args)?;
    let signals = Signals::take().context("cannot take signals over")?;
    let configuration = environment::configuration(args);
    let mut session = Session::without_command(&signals, console);
    session.end_signal = args.until_signal;
    session.prints_notes = show.is_none();
    if let Some(time) = args.start_after
        && !session.idle(time)?
    {
        bail!("nothing was recorded: it ended before --start-after was over");
    }
    let request = attach::RecordingRequest {
        configuration: &configuration,
        stay: args.stay,
        walks_heap: false,
        done: "recorded",
    };
    let (mut streams, mut joined) = (Vec::new(), Vec::new());
    for target in &targets {
        match attach::begin_recording(target, embedded, &request) {
            Ok(stream) => {
                streams.push((stream, target.pid()));
                joined.push(target);
            }
            Err(error) if targets.len() == 1 => return Err(error),
            Err(error) => console.error(&error),
        }
    }
    let Some(first) = joined.first() else {
        bail!("none of the processes can be recorded");
    };
    let words = attach::command_words(first.pid());
    let (program, arguments) = words.split_first().map_or_else(
        || (OsStr::new("program"), &[][..]),
        |(program, arguments)| (program.as_os_str(), arguments),
    );
    let name = recording_name(program, arguments, first.pid());
    if show.is_none() {
        store.begin(args, &name, console);
    }
    session.join(streams)?;
    session.top = show.map(|open| open(name.clone())).transpose()?;
    session.record(store.blocks()?, args.duration)?;
    let processes = session.processes;
    let has_all = session.unfinished == 0;
    // Restores the terminal.
    let top = session.top.take().map(|top| top.should_keep());
    // Closes the remaining streams.
    drop(session);
    let detach = || {
        for target in &joined {
            if args.stay {
                console.note(format_args!(
                    "the agent stays loaded in process {}, idle",
                    target.pid()
                ));
            } else {
                attach::report_detach(target.pid(), &attach::detach(target), console);
            }
        }
    };
    // Symbol servers may be slow. The programs are already detached.
    if args.symbols {
        detach();
    }
    let written = match (top, store) {
        (None, store) => {
            let end = RecordingEnd {
                name: &name,
                processes,
                unrecorded: &UnrecordedProcesses::default(),
            };
            store.finish(args, &end, &signals, console)
        }
        (Some(true), Store::Whole(sink)) => keep_recording(sink, &name, console),
        (Some(_), store) => {
            store.discard();
            Ok(())
        }
    };
    if !args.symbols {
        detach();
    }
    signals.release();
    written.map(|()| {
        if has_all && targets.len() == processes as usize {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    })
}

/// Dumps the stack of each thread of a running process, then detaches.
///
/// # Errors
/// The process cannot be recorded, or the dump cannot be written.
pub(crate) fn dump(
    word: &str,
    args: &DumpArgs,
    embedded: EmbeddedAgents,
    console: &Console,
) -> Result<Profile> {
    let target = attach::target(word)?;
    let wanted = args.output.as_deref().map(resolved_file).transpose()?;
    let temporary = std::env::temp_dir();
    let mut sink = Sink::temporary_in(wanted.as_deref().map_or(&temporary, folder_of))?;
    let signals = Signals::take().context("cannot take signals over")?;
    let request = attach::RecordingRequest {
        configuration: match args.suspended {
            true => environment::DUMP_ASYNC,
            false => environment::DUMP,
        },
        stay: args.stay,
        walks_heap: args.suspended,
        done: "dumped",
    };
    if args.suspended {
        // The runtime must be prepared for heap walks when the agent is loaded. An agent that is
        // already loaded may lack this, so it is detached first.
        let _gone = attach::detach(&target);
    }
    let stream = attach::begin_recording(&target, embedded, &request)?;
    let mut session = Session::without_command(&signals, console);
    session.join(vec![(stream, target.pid())])?;
    if args.suspended {
        session.extend_flush_time();
    }
    // The agent takes the dump when it receives the stop request.
    let recorded = session.record(&mut sink, Some(Duration::ZERO));
    drop(session);
    if !args.stay {
        attach::report_detach(target.pid(), &attach::detach(&target), console);
    }
    signals.release();
    recorded?;
    if !sink.has_blocks() {
        sink.discard();
        bail!("process {} ended during the dump", target.pid());
    }
    symbols::append_to(&mut sink).context("cannot name native frames")?;
    let profile = saved::read(sink.path(), Some(u64::MAX));
    if profile
        .as_ref()
        .is_ok_and(|profile| !formats::has_dump(profile))
    {
        sink.discard();
        bail!("process {} ended during the dump", target.pid());
    }
    match wanted {
        Some(file) => {
            sink.keep_as(&file)?;
            console.note(format_args!("wrote {}", escaped(&file)));
        }
        None => sink.discard(),
    }
    profile
}

/// Returns a shell's message about a command that was ended by a signal. No message for SIGPIPE, by
/// which the next command of a pipe ends it.
fn killed_by(status: ExitStatus) -> Option<String> {
    let number = status.signal()?;
    let signal = Signal::try_from(number).ok();
    if signal == Some(Signal::SIGPIPE) {
        return None;
    }
    let mut core = if status.core_dumped() {
        ", core dumped"
    } else {
        ""
    }
    .to_owned();
    if signal == Some(Signal::SIGSYS) {
        core += ": a system call filter (seccomp) ended it for a call that it forbids";
    }
    Some(match signal {
        Some(signal) => format!("{signal}{core}"),
        None => format!("signal {number}{core}"),
    })
}

/// The command's own exit code. Otherwise the code that shells use for its signal, or for Ctrl-C.
fn exit_code(status: Option<ExitStatus>, recorded: bool) -> ExitCode {
    let code = match status {
        Some(status) => memory::shell_code(status),
        None => 130,
    };
    match u8::try_from(code) {
        Ok(0) if !recorded => ExitCode::FAILURE,
        Ok(code) => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    }
}

fn report_still_running(pid: u32, ended: EndReason, console: &Console) {
    match ended {
        EndReason::Program => {}
        EndReason::Duration => console.note(format_args!(
            "the program (process {pid}) continues; Ctrl-C ends it"
        )),
        EndReason::SinkFailed => console.note(format_args!(
            "the program (process {pid}) continues unrecorded"
        )),
        EndReason::Interrupted => console.warning(format_args!(
            "the program (process {pid}) has not ended and continues unrecorded"
        )),
    }
}

/// Makes the file to record into. It gets its final name after the command has started, so that a
/// failed start does not replace an older recording.
fn make_sink(args: &RecordArgs) -> Result<Sink> {
    let Some(output) = recording_output(args) else {
        let temporary = std::env::temp_dir();
        let default = default_folder(&args.command);
        let beside = match args.outputs.iter().find(|output| !output.is_stdout()) {
            Some(output) => folder_of(&output.path),
            // If output goes to stdout, nothing here needs to be writable.
            None if !args.outputs.is_empty() || !args.pushes.is_empty() => &temporary,
            None => default.as_deref().unwrap_or(Path::new(".")),
        };
        return Sink::temporary_in(beside);
    };
    let target = resolved_file(&output.path)?;
    if args.every().is_some() {
        return Sink::temporary_in(folder_of(&target));
    }
    let is_special = std::fs::metadata(&target).is_ok_and(|file| !file.is_file());
    if is_special {
        return Sink::at(&target);
    }
    // The file may be writable although its folder is not.
    Sink::temporary_in(folder_of(&target)).or_else(|_| Sink::at(&target))
}

/// Resolves the path of a recording.
fn resolved_file(path: &Path) -> Result<PathBuf> {
    match resolved_path::resolve(path)? {
        // Messages use the user's path, unless it has a link.
        ResolvedPath::File(target)
            if std::path::absolute(path).is_ok_and(|path| path == target) =>
        {
            Ok(path.to_owned())
        }
        ResolvedPath::File(target) => Ok(target),
        _ => bail!("a recording is read back: it needs a file"),
    }
}

/// Path of the growing recording, unless only other formats are requested.
fn final_path(args: &RecordArgs, name: &str) -> Option<Result<PathBuf>> {
    match recording_output(args) {
        Some(output) => Some(resolved_file(&output.path)),
        None if args.outputs.is_empty() => {
            let folder = default_folder(&args.command).unwrap_or_default();
            Some(Ok(folder.join(name)))
        }
        None => None,
    }
}

/// The folder for a recording without a given path. `None` is the working folder. `dotnet watch`
/// watches that folder and would rebuild for each new file, so it gets the temporary folder.
fn default_folder(command: &[std::ffi::OsString]) -> Option<PathBuf> {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let name = profile::names::process(&words);
    (name.as_deref() == Some("dotnet watch")).then(std::env::temp_dir)
}

fn recording_output(args: &RecordArgs) -> Option<&Destination> {
    args.outputs
        .iter()
        .find(|output| output.kind == OutputKind::Recording)
}

/// Keeps the shown recording under its name.
fn keep_recording(mut sink: Sink, name: &str, console: &Console) -> Result<()> {
    symbols::append_to(&mut sink).context("cannot name native frames")?;
    sink.keep_as(Path::new(name))?;
    console.note(format_args!("wrote {}", escaped(sink.path())));
    Ok(())
}

/// Writes the outputs of a finished recording.
fn finish(
    args: &RecordArgs,
    mut sink: Sink,
    end: &RecordingEnd<'_>,
    signals: &Signals,
    console: &Console,
) -> Result<()> {
    let RecordingEnd {
        name,
        processes,
        unrecorded,
    } = *end;
    let failure = sink.failure().map(|error| {
        anyhow!(
            "recording stopped: cannot write {}: {error}",
            escaped(sink.path())
        )
    });
    if !sink.has_blocks() {
        sink.discard();
        return Err(failure.unwrap_or_else(|| nothing_recorded(processes, unrecorded)));
    }
    for text in unrecorded.texts() {
        console.warning(text);
    }
    for note in unrecorded.notes() {
        sink.note(&note);
    }
    if failure.is_none() {
        if args.symbols {
            servers::fetch_for(sink.path(), console, &|| signals.is_end_requested());
        }
        symbols::append_to(&mut sink).context("cannot name native frames")?;
    }
    let kept = folder_of(sink.path()).join(name);
    if sink.is_temporary() {
        memory::set_recording(sink.path(), &kept);
    }
    let made = make_outputs(args, &sink, console);
    if made.is_err() && sink.is_temporary() {
        sink.keep_as(&kept)?;
        console.note(format_args!("the recording is kept as {}", escaped(&kept)));
    }
    match failure {
        Some(failure) => Err(failure.context("the recording until then is kept")),
        None => made,
    }
}

fn make_outputs(args: &RecordArgs, sink: &Sink, console: &Console) -> Result<()> {
    let has = |kind| args.outputs.iter().any(|output| output.kind == kind);
    let is_kept_alone = args.outputs.iter().all(|o| o.kind == OutputKind::Recording);
    // No size limit, as it is our own recording. Names were looked up just now.
    let mut profile = if is_kept_alone && has(OutputKind::Recording) && !args.open {
        saved::totals(sink.path(), Some(u64::MAX))?.profile
    } else {
        saved::read(sink.path(), Some(u64::MAX))?
    };
    let signatures = has(OutputKind::Converted(formats::Format::Html));
    if sink.failure().is_some() || signatures {
        let options = symbolize::LookupOptions {
            native: sink.failure().is_some(),
            signatures,
            ..names::options()
        };
        symbolize::symbolize(&mut profile, &options);
    }
    // Notes, not warnings: a program that was stopped with Ctrl-C did not report its end.
    for note in &profile.health.notes {
        if !sink.has_seen_note(note) {
            console.note(formats::visible(note));
        }
    }
    for note in notes_on_runtimes(&profile) {
        console.note(note);
    }
    let profile = profile::ops::with_runtime_work(profile);
    let profile = saved::apply_native(profile, &args.native);
    let recordings = args
        .outputs
        .iter()
        .filter(|o| o.kind == OutputKind::Recording);
    for output in recordings {
        let is_the_sink = std::fs::canonicalize(&output.path)
            .is_ok_and(|path| std::fs::canonicalize(sink.path()).is_ok_and(|sink| sink == path));
        if !is_the_sink {
            // Through a temporary file, because it may be the same file under another name.
            write_whole(&output.path, ExistingMode::Replaced, |out| {
                std::io::copy(&mut File::open(sink.path())?, out)?;
                Ok(())
            })
            .with_context(|| format!("cannot write {}", escaped(&output.path)))?;
        }
        console.note(format_args!("wrote {}", escaped(&output.path)));
    }
    let written = saved::write_outputs(
        &profile,
        &formats::OutputOptions::default(),
        &args.outputs,
        console,
    );
    if args.outputs.is_empty() {
        print_table(args, &profile, console)?;
        console.note(format_args!("wrote {}", escaped(sink.path())));
    } else {
        for line in formats::summary(&profile.health).lines() {
            console.note(line);
        }
    }
    if args.open {
        open::after_recording(&profile, console)?;
    }
    written
        .and_then(|()| check_runtimes(args, &profile))
        .and_then(|()| check_traced(args, &profile))
}

/// Returns a note for each version of .NET that recording was not tested on.
fn notes_on_runtimes(profile: &Profile) -> impl Iterator<Item = String> {
    let recorded = profile.runtimes.iter().filter(|runtime| runtime.recorded);
    let versions: BTreeSet<&str> = recorded.map(|runtime| &*runtime.version).collect();
    versions.into_iter().filter_map(|version| {
        let newer = newer_than_tested(version)?;
        Some(format!(
            ".NET {} is {newer}: names and async callers may be missing",
            formats::visible(version)
        ))
    })
}

/// Checks that a runtime was recorded.
///
/// # Errors
/// The policy excluded all of them: most likely it names a version that the program does not use.
fn check_runtimes(args: &RecordArgs, profile: &Profile) -> Result<()> {
    let runtimes = &profile.runtimes;
    if runtimes.is_empty() || runtimes.iter().any(|runtime| runtime.recorded) {
        return Ok(());
    }
    let mut versions: Vec<&str> = runtimes.iter().map(|r| &*r.version).collect();
    versions.sort_unstable();
    versions.dedup();
    bail!(
        "nothing was recorded: --runtimes {} leaves out .NET {}, and there was no other",
        args.runtimes,
        formats::visible(&versions.join(", "))
    )
}

/// Checks that a method was traced, if any was to be.
///
/// # Errors
/// None was. The outputs have the rest.
fn check_traced(args: &RecordArgs, profile: &Profile) -> Result<()> {
    let was_traced = |one: &TracedMethod| one.refused.is_empty() || one.calls() > 0;
    if args.trace.is_empty() || profile.traced.iter().any(was_traced) {
        return Ok(());
    }
    let why = match profile.traced.as_slice() {
        [] => {
            let notes = &profile.health.notes;
            notes.iter().find(|note| note.contains("--trace")).cloned()
        }
        [one, ..] => Some(format!("{}: {}", profile.string(one.name), one.refused)),
    };
    match why {
        Some(why) => bail!("no method was traced: {}", formats::visible(&why)),
        None => bail!("no method was traced; the notes say what is missing"),
    }
}

/// Prints the hottest methods, on stdout unless that belongs to a command.
fn print_table(args: &RecordArgs, profile: &Profile, console: &Console) -> Result<()> {
    let options = formats::OutputOptions {
        top: ROWS,
        ..formats::OutputOptions::default()
    };
    let text = saved::report_text(profile, &options)?;
    if args.pids.is_empty() {
        console.result(&text);
        return Ok(());
    }
    // The reader of stdout may have closed it, as `head` does. The recording exists.
    match saved::print(&text) {
        Err(error) if is_broken_pipe(&error) => Ok(()),
        printed => printed,
    }
}

/// The error if no .NET process had a name of `--only`.
fn no_wanted_process(only: &[NamePattern], mut others: Vec<String>) -> anyhow::Error {
    const MAX_LISTED: usize = 10;
    others.sort();
    others.dedup();
    let more = match others.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    others.truncate(MAX_LISTED);
    let only: Vec<String> = only
        .iter()
        .map(|name| format!("'{}'", formats::visible(name.text())))
        .collect();
    anyhow!(
        "nothing was recorded: no .NET process is named {} (--only); there were {}{more}",
        only.join(" or "),
        formats::visible(&others.join(", "))
    )
}

fn nothing_recorded(processes: u32, unrecorded: &UnrecordedProcesses) -> anyhow::Error {
    if let Some(why) = unrecorded.summary() {
        return anyhow!("nothing was recorded: {why}");
    }
    if processes > 0 {
        return anyhow!(
            "nothing was recorded: a .NET process connected and ended before it sent anything"
        );
    }
    anyhow!(
        "nothing was recorded: no .NET runtime loaded the agent.\n\
         It starts no .NET program (or native AOT, Mono, .NET before 3.1), its environment was cleared or has \
         CORECLR_PROFILER or DOTNET_EnableDiagnostics=0, or a user, container or filter keeps the agent out; \
         run sidewalk doctor where the program runs"
    )
}

/// The default name of a recording: `sidewalk-<name>-<pid>.swk`.
fn recording_name(program: &OsStr, arguments: &[std::ffi::OsString], pid: u32) -> String {
    let words = [program].into_iter();
    let words = words.chain(arguments.iter().map(std::ffi::OsString::as_os_str));
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    let name = profile::names::process(&words).unwrap_or_default();
    let name = name.strip_suffix(".dll").unwrap_or(&name);
    let name: String = name
        .chars()
        .map(|c| {
            if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') {
                c
            } else {
                '_'
            }
        })
        .take(64)
        .collect();
    format!("sidewalk-{name}-{pid}.swk")
}

/// Searches for `program` as `execvp` will, and returns its path.
///
/// # Errors
/// The program does not exist, or may not be run.
fn check_program(program: &OsStr) -> Result<PathBuf> {
    let is_path = program.as_bytes().contains(&b'/');
    let candidates: Vec<PathBuf> = if is_path {
        vec![PathBuf::from(program)]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
        std::env::split_paths(&path)
            .map(|folder| folder.join(program))
            .collect()
    };
    let mut refused = None;
    for candidate in &candidates {
        match std::fs::metadata(candidate) {
            Ok(found) if found.is_dir() => {
                refused = refused.or(Some((candidate, "is a folder")));
            }
            Ok(found) if found.permissions().mode() & 0o111 == 0 => {
                refused = refused.or(Some((candidate, "is not executable")));
            }
            Ok(_) => return Ok(candidate.clone()),
            Err(_) => {}
        }
    }
    let shown = console::escaped(program);
    match refused {
        Some((candidate, why)) if is_path && why == "is not executable" => bail!(
            "cannot start {shown}: it {why}{}",
            dll_hint(candidate.as_os_str())
        ),
        Some((_, why)) if is_path => bail!("cannot start {shown}: it {why}"),
        _ if is_path => bail!("cannot start {shown}: there is no such file"),
        _ => bail!(
            "cannot start {shown}: there is no such program in PATH{}",
            dll_hint(program)
        ),
    }
}

/// Returns advice for a word that is not a program but is run by one.
fn dll_hint(program: &OsStr) -> String {
    let is_dll = Path::new(program)
        .extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("dll"));
    if is_dll {
        format!(
            " (a .dll is started by dotnet: sidewalk record -- dotnet {})",
            console::escaped(program)
        )
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_is_not_woken_by_its_own_recording() {
        let of = |words: &[&str]| default_folder(&words.iter().map(Into::into).collect::<Vec<_>>());
        assert_eq!(of(&["dotnet", "watch", "run"]), Some(std::env::temp_dir()));
        assert_eq!(of(&["dotnet", "run"]), None);
        assert_eq!(of(&["./server"]), None);
    }

    #[test]
    fn names_of_recordings() {
        for (command, name) in [
            (
                &["dotnet", "bin/App.dll", "x.dll"][..],
                "sidewalk-App-7.swk",
            ),
            (
                &["/usr/bin/dotnet", "exec", "a b.dll"],
                "sidewalk-a_b-7.swk",
            ),
            (&["./server", "plugin.dll"], "sidewalk-server-7.swk"),
            (&["dotnet", "run"], "sidewalk-dotnet_run-7.swk"),
            (&["bin/My.Service"], "sidewalk-My.Service-7.swk"),
        ] {
            let (program, arguments) = command.split_first().unwrap();
            let arguments: Vec<_> = arguments.iter().map(std::ffi::OsString::from).collect();
            assert_eq!(recording_name(OsStr::new(program), &arguments, 7), name);
        }
    }
}
