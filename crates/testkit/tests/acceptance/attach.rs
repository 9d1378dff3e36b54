//! Recording programs that run: the same picture as of one that was started with the agent, and
//! nothing left of it afterwards.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use control::{LoadMode, ProfilerSlot, class_of, clsid_text};
use testkit::{
    Inspected, Machine, Recorded, Running, Runtime, WebServer, only_child, sidewalk, test_folder,
    workload,
};

use crate::{LOST_LIMIT, broken_limit, records};

on_each_runtime!(
    the_same_shares,
    the_same_picture,
    twenty_rounds_leave_nothing_behind,
    rounds_in_a_program_that_does_everything_at_once,
    rounds_give_back_their_memory,
    a_tool_that_is_killed_leaves_a_program_that_can_be_recorded_again,
    beside_another_profiler,
    beside_another_profiler_from_the_start,
);
on_each_web_runtime!(rounds_in_a_web_server_under_load);
on_net8_and_core31!(
    dynamic_methods_of_before_have_names,
    walkers_that_stop_the_runtime_can_be_had,
    a_program_that_is_killed_leaves_its_recording,
    a_second_tool_hears_who_records,
    no_file_of_a_module_is_mapped_again,
    an_agent_that_stays_is_found_again,
    a_started_program_is_recorded_again_by_its_agent,
    a_program_that_comes_late_with_our_environment_is_attached_to,
    a_recording_is_begun_and_ended_by_two_commands,
    a_command_is_joined_after_some_time,
);

/// Maximum difference between our share and the program's, in percentage points.
const TOLERANCE: f64 = 2.0;
/// Time limit, longer than any of these steps takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a workload that runs until it is ended, and waits until it is ready.
pub(crate) fn running(runtime: &Runtime, name: &str, arguments: &[&str]) -> Running {
    let mut command = runtime.command(&workload(name).dll);
    command.arg("attached").args(arguments);
    Running::start(command)
}

/// Closes the program's input, and asserts that it succeeds and prints `says`.
pub(crate) fn ends_well(program: Running, says: &str) {
    let (output, status) = program.end();
    assert!(
        status.success() && output.contains(says),
        "{status}: {output}"
    );
}

/// Returns the command `sidewalk record --pid` with its recording in `folder`.
pub(crate) fn tool(process: impl Display, folder: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(sidewalk());
    command.args(["record", "--pid", &process.to_string()]);
    command.args(options).arg("-o").arg(recording_in(folder));
    command.stdin(Stdio::null());
    command
}

pub(crate) fn recording_in(folder: &Path) -> PathBuf {
    folder.join("recording.swk")
}

/// Records a process to the end of the options' duration. The tool must succeed.
pub(crate) fn record(pid: u32, folder: &Path, options: &[&str]) -> Recorded {
    let output = tool(pid, folder, options).output().unwrap();
    let recorded = Recorded::new(recording_in(folder), output);
    assert!(
        recorded.answer.status.success(),
        "{}{}",
        recorded.answer.stdout,
        recorded.answer.stderr
    );
    recorded
}

/// Sends a signal (`-INT`) to a process that has not been waited for.
pub(crate) fn send(signal: &str, pid: u32) {
    let sent = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

/// Starts a tool and waits until blocks of the program's have come.
pub(crate) fn start(process: impl Display, folder: &Path, options: &[&str]) -> Child {
    let tool = tool(process, folder, options)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("its first blocks", || {
        // The file's header alone is shorter.
        fs::metadata(recording_in(folder)).is_ok_and(|file| file.len() > 1000)
    });
    tool
}

/// Waits until an unfinished recording has so many samples.
pub(crate) fn until_samples(folder: &Path, least: usize) {
    let is_one =
        |record: &recording::Record<'_>| matches!(record, recording::Record::Sample { .. });
    until("samples", || {
        let records = records(&recording_in(folder)).unwrap();
        records.iter().filter(|record| is_one(record)).count() >= least
    });
}

pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

pub(crate) fn has_left(recorded: &Recorded) -> bool {
    recorded
        .answer
        .stderr
        .contains("the agent has detached from process")
}

pub(crate) fn has_agent_thread(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().any(|task| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim_end() == "sidewalk")
    })
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Mappings of the agent's library.
fn agent_mappings(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let ours = maps.lines().filter(|line| line.contains("libsidewalk"));
    ours.count()
}

pub(crate) fn timers(pid: u32) -> usize {
    let timers = fs::read_to_string(format!("/proc/{pid}/timers")).unwrap_or_default();
    timers
        .lines()
        .filter(|line| line.starts_with("ID:"))
        .count()
}

/// Resident memory in KiB: `VmRSS:` all, `RssAnon:` that of no file.
fn resident(pid: u32, which: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(which));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|number| number.parse().ok()).unwrap()
}

fn the_same_shares(runtime: &Runtime) {
    let program = running(runtime, "shares", &["threads"]);
    let folder = test_folder("shares");
    let recorded = record(
        program.pid(),
        &folder,
        &["-d", "8s", "-F", "4999", "--engine", "perf"],
    );
    assert!(has_left(&recorded), "{}", recorded.answer.stderr);
    let (output, status) = program.end();
    assert!(status.success(), "{status}: {output}");
    let inspected = recorded.inspect();
    inspected.assert_honest(broken_limit(runtime), LOST_LIMIT);
    let unknown = inspected.number("unknown_frames") * 100.0 / inspected.number("frames");
    assert!(unknown <= 0.1, "{unknown} % of frames are unknown");
    let stacks = recorded.stacks().with("Workloads.Shares.Rounds");
    let total = stacks.total();
    assert!(total >= 500, "{total} samples are too few");
    let mut shares = 0;
    for line in output
        .lines()
        .filter_map(|line| line.strip_prefix("share "))
    {
        let (method, own) = line.split_once(' ').unwrap();
        let own: f64 = own.parse().unwrap();
        let ours = stacks.with(method).total() as f64 * 100.0 / total as f64;
        println!("{method} {own:.2} {ours:.2}");
        assert!(
            (own - ours).abs() <= TOLERANCE,
            "{method}: the program measured {own:.2} %, we {ours:.2} % of {total} samples"
        );
        shares += 1;
    }
    assert_eq!(shares, 4, "{output}");
}

/// A short form of `cargo xtask picture`. What `shares` has is held against the truth by
/// `the_same_shares`.
fn the_same_picture(runtime: &Runtime) {
    let _alone = Machine::exclusive();
    let found = testkit::compare_shares(runtime, "exceptions", 3);
    let farthest = found.farthest(20).unwrap();
    println!("{:?} samples, {farthest:?}", found.samples);
    assert!(
        found.samples.0 > 1000 && found.samples.1 > 1000,
        "{:?} samples are too few",
        found.samples
    );
    assert!(farthest.apart() <= TOLERANCE, "{farthest:?}");
    found
        .attached
        .assert_honest(broken_limit(runtime), LOST_LIMIT);
    let unknown = found.unknown();
    assert!(unknown <= 0.1, "{unknown} % of frames are unknown");
}

/// Returns the number of rounds. `cargo xtask stress --attach ROUNDS` sets it.
pub(crate) fn rounds_wanted() -> u32 {
    let wanted = std::env::var("SIDEWALK_ATTACH_ROUNDS").ok();
    wanted.map_or(8, |rounds| {
        rounds
            .parse()
            .expect("SIDEWALK_ATTACH_ROUNDS is a number of rounds")
    })
}

/// One round: attaches, records, detaches and checks what is left. Every other round records
/// logical stacks, the default. The agent must then inspect existing code, some of which has been
/// unloaded.
fn round(pid: u32, folder: &Path, number: u32) -> (usize, usize, u64) {
    let mut options = vec!["-d", "200ms", "-e", "cpu,exception"];
    if !number.is_multiple_of(2) {
        options.push("--no-async-stacks");
    }
    let recorded = record(pid, folder, &options);
    let message = &recorded.answer.stderr;
    assert!(has_left(&recorded), "round {number}: {message}");
    // The agent reports that it has detached a moment before its thread ends.
    until("the agent's thread to end", || !has_agent_thread(pid));
    assert_eq!(timers(pid), 0, "timers, round {number}");
    let resident = resident(pid, "VmRSS:");
    (agent_mappings(pid), descriptors(pid), resident)
}

/// In a program that does nothing meanwhile, by rounds that are all the same. Without events of the
/// runtime's own, which leave objects on its heap until the next collection.
fn rounds_give_back_their_memory(runtime: &Runtime) {
    const MOST_KIB: u64 = 2 * 1024;
    let program = Running::waits(runtime);
    let pid = program.pid();
    let folder = test_folder("memory");
    let mut first = None;
    for number in 1..=rounds_wanted() {
        let recorded = record(pid, &folder, &["-d", "100ms", "-e", "cpu"]);
        let message = &recorded.answer.stderr;
        assert!(has_left(&recorded), "round {number}: {message}");
        until("the agent's thread to end", || !has_agent_thread(pid));
        let now = resident(pid, "RssAnon:");
        let first = *first.get_or_insert(now);
        println!("round {number}: {now} KiB");
        assert!(
            now <= first + MOST_KIB,
            "{now} KiB after round {number}, {first} KiB after the first"
        );
    }
    program.end_well();
}

/// Threads that come and go, collections, faults, assemblies that are unloaded, and exceptions, all
/// in one process: what it prints is what it prints alone.
fn rounds_in_a_program_that_does_everything_at_once(runtime: &Runtime) {
    let start = || {
        let mut command = runtime.command(&workload("together").dll);
        command.args(["churn,gc,nullref,collectible,exceptions", "attached"]);
        Running::start(command)
    };
    let (bare, status) = start().end();
    assert!(status.success(), "{status}: {bare}");
    let program = start();
    let folder = test_folder("everything-at-once");
    let mut mappings = None;
    for number in 1..=rounds_wanted() {
        let (mapped, ..) = round(program.pid(), &folder, number);
        assert_eq!(*mappings.get_or_insert(mapped), mapped, "round {number}");
    }
    let (output, status) = program.end();
    assert!(status.success(), "{status}: {output}");
    assert_eq!(results(&output), results(&bare));
    assert!(results(&output).contains(&"result together 5"), "{output}");
}

/// The lines that are the same in every run, in an order of their own: several programs print at
/// once.
fn results(output: &str) -> Vec<&str> {
    let lines = output.lines();
    let mut results: Vec<&str> = lines.filter(|line| line.starts_with("result ")).collect();
    results.sort_unstable();
    results
}

/// Each answer is checked, while the agent comes and goes.
fn rounds_in_a_web_server_under_load(runtime: &Runtime) {
    let folder = test_folder("web-server");
    let server = WebServer::start(runtime.command(&workload("webserver").dll));
    let paths = ["plain", "json", "cart", "regex", "nullref"];
    let ((), requests) = server.under_load(&paths, 8, || {
        for number in 1..=rounds_wanted() {
            round(server.pid(), &folder, number);
        }
    });
    println!("{requests} requests");
    server.stop();
}

/// The program's own memory and descriptors do not change, so they must be the same after the
/// rounds as after round 10.
fn twenty_rounds_leave_nothing_behind(runtime: &Runtime) {
    let program = running(runtime, "shares", &[]);
    let pid = program.pid();
    assert_eq!(agent_mappings(pid), 0);
    let folder = test_folder("rounds");
    let after = |number| round(pid, &folder, number);
    let (mappings, descriptors, resident) = (1..=10).map(after).next_back().unwrap();
    for number in 11..=20 {
        let now = after(number);
        assert_eq!((now.0, now.1), (mappings, descriptors), "round {number}");
        assert!(
            now.2 <= resident + 5 * 1024,
            "{} KiB in round {number}, {resident} KiB after round 10",
            now.2
        );
    }
    ends_well(program, "\nmeasured rounds");
}

fn a_tool_that_is_killed_leaves_a_program_that_can_be_recorded_again(runtime: &Runtime) {
    let program = running(runtime, "exceptions", &[]);
    let pid = program.pid();
    let folder = test_folder("killed");
    for _ in 0..3 {
        let mut tool = start(pid, &folder, &["-F", "999", "--engine", "clocks"]);
        tool.kill().unwrap();
        tool.wait().unwrap();
        // The agent detaches as on request.
        until("the agent to leave", || !has_agent_thread(pid));
        let recorded = record(pid, &folder, &["-d", "200ms"]);
        assert!(has_left(&recorded), "{}", recorded.answer.stderr);
    }
    let (output, status) = program.end();
    assert!(status.success(), "{status}: {output}");
}

fn walkers_that_stop_the_runtime_can_be_had(runtime: &Runtime) {
    let program = running(runtime, "shares", &[]);
    let folder = test_folder("walkers");
    for walker in ["suspend", "seeded"] {
        let recorded = record(program.pid(), &folder, &["-d", "1s", "--walker", walker]);
        assert!(has_left(&recorded), "{}", recorded.answer.stderr);
        let total = recorded.stacks().with("Workloads.Shares.Rounds").total();
        assert!(total > 20, "{walker}: {total} samples");
    }
    let (output, status) = program.end();
    assert!(status.success(), "{status}: {output}");
}

fn dynamic_methods_of_before_have_names(runtime: &Runtime) {
    let program = running(runtime, "dynamic", &["kept"]);
    let folder = test_folder("dynamic");
    let recorded = record(
        program.pid(),
        &folder,
        &["-d", "2s", "-F", "999", "--engine", "clocks"],
    );
    let inspected = recorded.inspect();
    inspected.assert_honest(broken_limit(runtime), LOST_LIMIT);
    let total = recorded.stacks().total();
    let named = recorded.stacks().with("DynamicMethod DynamicBurn").total();
    // The first sample in it is where it is found.
    assert!(
        named * 10 >= total * 9 && total > 100,
        "{named} of {total} samples have its name"
    );
    let (output, status) = program.end();
    assert!(status.success(), "{status}: {output}");
}

fn a_program_that_is_killed_leaves_its_recording(runtime: &Runtime) {
    let program = running(runtime, "shares", &[]);
    let pid = program.pid();
    let folder = test_folder("target");
    let mut tool = start(pid, &folder, &["-F", "999", "--engine", "clocks"]);
    // On a busy machine it may not have run since.
    let begun = used_ticks(pid);
    until("a tenth of a second of work", || {
        used_ticks(pid) >= begun + 10
    });
    // Kills it.
    drop(program);
    let status = tool.wait().unwrap();
    let mut message = String::new();
    tool.stderr
        .take()
        .unwrap()
        .read_to_string(&mut message)
        .unwrap();
    assert!(status.success(), "{status}: {message}");
    let inspected = Inspected::of(&recording_in(&folder));
    assert!(inspected.number("samples") > 0.0);
}

/// The CPU time of a process, in ticks of 10 ms.
fn used_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, behind_name) = stat.rsplit_once(") ").unwrap();
    let numbers = behind_name.split(' ').skip(11).take(2);
    numbers.map(|number| number.parse::<u64>().unwrap()).sum()
}

fn a_second_tool_hears_who_records(runtime: &Runtime) {
    let program = running(runtime, "shares", &[]);
    let pid = program.pid();
    let first_folder = test_folder("first");
    let mut first = start(pid, &first_folder, &[]);
    let second = tool(pid, &test_folder("second"), &["-d", "1s"])
        .output()
        .unwrap();
    let message = String::from_utf8(second.stderr).unwrap();
    let expected = format!(
        "process {pid} is being recorded already, by process {}",
        first.id()
    );
    assert!(message.contains(&expected), "{message}");
    assert_eq!(second.status.code(), Some(1));
    // Ctrl-C ends the first.
    send("-INT", first.id());
    let status = first.wait().unwrap();
    let mut message = String::new();
    first
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut message)
        .unwrap();
    assert!(
        status.success() && message.contains("the agent has detached"),
        "{status}: {message}"
    );
}

/// The native modules of a process, each with the number of places where its file is mapped from
/// its beginning on. Dumps and debuggers take the first for the module.
fn mapped_modules(pid: u32) -> BTreeMap<String, usize> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let mut modules = BTreeMap::new();
    for line in maps.lines() {
        // Addresses, rights, offset, device, inode, name.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, offset, _, _, file] = words[..] else {
            continue;
        };
        if file.contains(".so") || Path::new(file) == program {
            let from_its_beginning = usize::from(offset == "00000000");
            *modules.entry(file.to_owned()).or_default() += from_its_beginning;
        }
    }
    modules
}

/// Checks during a recording and after the detach.
fn no_file_of_a_module_is_mapped_again(runtime: &Runtime) {
    let program = running(runtime, "shares", &[]);
    let pid = program.pid();
    let before = mapped_modules(pid);
    let runs = |modules: &BTreeMap<String, usize>| {
        let mut files = modules.keys();
        files.any(|file| file.ends_with("/libcoreclr.so"))
    };
    assert!(runs(&before), "{before:?}");
    let with_agent = || {
        let mut now = mapped_modules(pid);
        let of_agent: Vec<_> = (now.iter())
            .filter(|(file, _)| file.ends_with("/libsidewalk.so"))
            .map(|(file, count)| (file.clone(), *count))
            .collect();
        assert!(matches!(of_agent[..], [(_, 1)]), "{of_agent:?}");
        now.remove(&of_agent[0].0);
        now
    };
    let mut tool = start(pid, &test_folder("mapped"), &[]);
    assert_eq!(with_agent(), before, "while it is recorded");
    send("-INT", tool.id());
    assert!(tool.wait().unwrap().success());
    until("the agent's thread to end", || !has_agent_thread(pid));
    assert_eq!(with_agent(), before, "after we have left");
}

/// Records the workload `shares`, and asserts that its work is seen.
fn record_rounds(pid: u32, folder: &Path) -> Recorded {
    let options = ["-d", "1s", "-F", "999", "--engine", "clocks"];
    let recorded = record(pid, folder, &options);
    assert!(recorded.stacks().with("Workloads.Shares.Rounds").total() > 0);
    recorded
}

fn an_agent_that_stays_is_found_again(runtime: &Runtime) {
    let program = running(runtime, "shares", &[]);
    let pid = program.pid();
    let folder = test_folder("stays");
    let first = record(pid, &folder, &["-d", "200ms", "--stay"]);
    assert!(
        first.answer.stderr.contains("stays loaded in process"),
        "{}",
        first.answer.stderr
    );
    assert!(has_agent_thread(pid));
    assert_eq!(timers(pid), 0, "idle means idle");
    let second = record_rounds(pid, &folder);
    assert!(has_left(&second), "{}", second.answer.stderr);
    until("the agent's thread to end", || !has_agent_thread(pid));
}

fn a_started_program_is_recorded_again_by_its_agent(runtime: &Runtime) {
    let folder = test_folder("started");
    let mut command = runtime.command(&workload("shares").dll);
    command.arg("attached");
    let mut tool = Command::new(sidewalk());
    tool.args(["record", "-d", "1s", "-o"])
        .arg(folder.join("first.swk"))
        .arg("--")
        .arg(command.get_program())
        .args(command.get_args());
    let message = folder.join("said");
    tool.stderr(fs::File::create(&message).unwrap());
    let environment = command.get_envs();
    tool.envs(environment.filter_map(|(key, value)| Some((key, value?))));
    let program = Running::start(tool);
    let pid = only_child(program.pid()).unwrap();
    until("the end of the first recording", || {
        fs::read_to_string(&message).is_ok_and(|message| message.contains("continues"))
    });
    let second = record_rounds(pid, &folder);
    assert!(
        second.answer.stderr.contains("stays loaded in process")
            && second.answer.stderr.contains("started with it"),
        "{}",
        second.answer.stderr
    );
    let (output, status) = program.end();
    assert!(status.success(), "{status}: {output}");
}

/// As one that a supervisor starts when the recording of its command has ended.
fn a_program_that_comes_late_with_our_environment_is_attached_to(runtime: &Runtime) {
    let agent = testkit::agent();
    let class = |slot| clsid_text(class_of(LoadMode::Startup, slot));
    let beside = format!("{}={};", agent.display(), class(ProfilerSlot::Notification));
    let mut command = runtime.command(&workload("shares").dll);
    command
        .arg("attached")
        .env("CORECLR_ENABLE_PROFILING", "1")
        .env("CORECLR_PROFILER", class(ProfilerSlot::Main))
        .env("CORECLR_PROFILER_PATH", &agent)
        .env("CORECLR_ENABLE_NOTIFICATION_PROFILERS", "1")
        .env("CORECLR_NOTIFICATION_PROFILERS", beside)
        .env("SIDEWALK_SOCKET", "/nowhere/agents")
        .env("SIDEWALK_CONFIG", "event=cpu");
    let program = Running::start(command);
    let pid = program.pid();
    assert!(!has_agent_thread(pid));
    let row = crate::list::listed(pid).unwrap();
    assert_eq!(row["record"], "attach", "{row}");
    let folder = test_folder("late");
    let recorded = record_rounds(pid, &folder);
    assert!(has_left(&recorded), "{}", recorded.answer.stderr);
    until("the agent's thread to end", || !has_agent_thread(pid));
    ends_well(program, "\nmeasured rounds");
}

/// `sidewalk start` and `sidewalk stop`.
fn a_recording_is_begun_and_ended_by_two_commands(runtime: &Runtime) {
    let program = running(runtime, "shares", &[]);
    let pid = program.pid().to_string();
    let recording = recording_in(&test_folder("two"));
    let run = |arguments: &[&str]| {
        let mut command = Command::new(sidewalk());
        command.args(arguments).stdin(Stdio::null());
        // The recording holds stderr open, so there is no end to wait for.
        let said = test_folder("said").join("stderr");
        let status = command.stderr(fs::File::create(&said).unwrap()).status();
        assert!(status.unwrap().success());
        fs::read_to_string(said).unwrap()
    };
    let file = recording.to_str().unwrap();
    let began = run(&["start", &pid, "-F", "999", "--engine", "clocks", "-o", file]);
    assert!(
        began.contains(&format!("recording process {pid}; sidewalk stop")),
        "{began}"
    );
    let begun = used_ticks(program.pid());
    until("a tenth of a second of work", || {
        used_ticks(program.pid()) >= begun + 10
    });
    let ended = run(&["stop", &pid]);
    assert!(
        ended.contains(&format!("the recording of process {pid} has ended")),
        "{ended}"
    );
    let inspected = Inspected::of(&recording);
    assert!(inspected.number("samples") > 0.0, "{}", inspected.json);
    assert_eq!(inspected.json["processes"][0]["pid"], program.pid());
    until("the agent's thread to end", || {
        !has_agent_thread(program.pid())
    });
    let again = Command::new(sidewalk())
        .args(["stop", &pid])
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(message.contains("is not being recorded"), "{message}");
    ends_well(program, "\nmeasured rounds");
}

/// `--start-after`: the command begins without the agent.
fn a_command_is_joined_after_some_time(runtime: &Runtime) {
    let recorded = testkit::Recorder::workload(runtime, "shares", &["5"])
        .options(["--start-after", "200ms", "-d", "1s"])
        .options(["-F", "999", "--engine", "clocks"])
        .run_complete();
    let inspected = recorded.inspect();
    assert!(inspected.number("samples") > 0.0, "{}", inspected.json);
    assert!(recorded.stacks().with("Workloads.Shares.Rounds").total() > 0);
    // The program's own clock: it went on when the recording had ended.
    let wall_s = recorded.answer.measured("wall_ms") / 1e3;
    assert!(
        inspected.number("duration_s") < wall_s,
        "{}",
        inspected.json
    );
}

/// The environment in which a runtime loads another profiler, and where that one says what it has
/// heard.
fn with_another_profiler(folder: &Path) -> [(&'static str, PathBuf); 4] {
    [
        ("CORECLR_ENABLE_PROFILING", "1".into()),
        (
            "CORECLR_PROFILER",
            "{DB64E7B8-0E80-4F2E-9E87-6B0C2FB6DA21}".into(),
        ),
        ("CORECLR_PROFILER_PATH", testkit::v2_agent()),
        ("V2_AGENT_LOG", folder.join("log")),
    ]
}

fn beside_another_profiler(runtime: &Runtime) {
    let folder = test_folder("beside");
    let mut command = runtime.command(&workload("shares").dll);
    command.arg("attached").envs(with_another_profiler(&folder));
    let program = Running::start(command);
    for _ in 0..3 {
        let options = [
            "-d",
            "1s",
            "-F",
            "999",
            "--engine",
            "clocks",
            "-e",
            "cpu,exception,gc",
        ];
        let output = tool(program.pid(), &folder, &options).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        if runtime.is_core31() {
            assert_eq!(output.status.code(), Some(1));
            assert!(message.contains("supports only one"), "{message}");
            continue;
        }
        assert!(
            output.status.success() && message.contains("has detached"),
            "{message}"
        );
        let recorded = Recorded::new(recording_in(&folder), output);
        let total = recorded.stacks().with("Workloads.Shares.Rounds").total();
        assert!(total > 0, "no samples");
    }
    let (output, status) = program.end();
    assert!(status.success(), "{status}: {output}");
    let log = fs::read_to_string(folder.join("log")).unwrap();
    assert!(!log.is_empty(), "the other one was not there");
}

fn beside_another_profiler_from_the_start(runtime: &Runtime) {
    let folder = test_folder("beside");
    let mut record = testkit::Recorder::workload(runtime, "shares", &["2"]);
    for (key, value) in with_another_profiler(&folder) {
        record = record.environment(key, value.to_str().unwrap());
    }
    let recorded = record.run();
    assert!(
        !recorded.answer.lines("measured").is_empty(),
        "{}",
        recorded.answer.stderr
    );
    let log = fs::read_to_string(folder.join("log")).unwrap();
    assert!(!log.is_empty(), "the other one was not there");
    if runtime.is_core31() {
        assert!(
            recorded.answer.stderr.contains("supports only one"),
            "{}",
            recorded.answer.stderr
        );
        return;
    }
    assert!(
        recorded.answer.status.success(),
        "{}",
        recorded.answer.stderr
    );
    let total = recorded.stacks().with("Workloads.Shares.Rounds").total();
    assert!(total > 0, "no samples");
}
