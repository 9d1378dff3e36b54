//! A dump: what each thread does now, on real CLRs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::Value;
use testkit::{AsyncKind, Machine, Running};
use testkit::{
    Recorded, Recorder, Runtime, native_threads, only_child, run_sidewalk, sidewalk, test_folder,
    workload, workload_of_kind,
};

use crate::attach::until;

on_each_runtime!(
    a_deadlock_shows_both_threads_and_where_they_wait,
    a_deadlock_that_runs_is_dumped_and_left,
    suspended_methods_are_counted_by_their_chains,
);
on_each_runtime_async!(suspended_methods_of_runtime_async_are_counted_by_their_chains);
on_net8_and_core31!(
    threads_that_cannot_answer_are_said_with_the_reason,
    a_thread_counts_once_in_every_output,
    why_there_are_no_suspended_methods_is_said,
    an_agent_that_stays_is_no_hindrance,
    a_part_of_a_dump_is_chosen,
);

/// Returns the output of `sidewalk dump`.
fn dump(recorded: &Recorded) -> Value {
    let file = recorded.recording.as_os_str();
    let text = run_sidewalk(["dump".as_ref(), "--json".as_ref(), file]);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the stack that contains `method`.
fn stack_with<'a>(dump: &'a Value, method: &str) -> &'a Value {
    let stacks = dump["stacks"].as_array().unwrap();
    let found = stacks.iter().find(|stack| frames(stack).contains(&method));
    found.unwrap_or_else(|| panic!("no stack with {method}: {dump:#}"))
}

fn names(stack: &Value) -> Vec<&str> {
    let threads = stack["threads"].as_array().unwrap().iter();
    threads
        .map(|thread| thread["name"].as_str().unwrap())
        .collect()
}

fn frames(stack: &Value) -> Vec<&str> {
    let frames = stack["frames"].as_array().unwrap().iter();
    frames
        .map(|frame| frame["name"].as_str().unwrap())
        .collect()
}

/// The dump is taken when the recording stops, while the program goes on.
fn deadlock(runtime: &Runtime) -> Recorded {
    let program = Recorder::workload(runtime, "deadlock", &["4"]);
    program.options(["--dump", "-d", "2s"]).run()
}

fn a_deadlock_shows_both_threads_and_where_they_wait(runtime: &Runtime) {
    let recorded = deadlock(runtime);
    let dump = dump(&recorded);
    assert_deadlock(&dump, true);
    // As text.
    let text = run_sidewalk(["dump".as_ref(), recorded.recording.as_os_str()]);
    assert!(text.contains("left-first (tid "), "{text}");
    assert!(text.contains("idle-0 (tid "), "{text}");
    let folded = text.lines().find(|line| line.contains("idle-1")).unwrap();
    assert!(folded.contains("idle-2"), "{folded}");
}

/// By attaching, again and again; the deadlock stays.
fn a_deadlock_that_runs_is_dumped_and_left(runtime: &Runtime) {
    let _alone = Machine::exclusive();
    let mut command = runtime.command(&workload("deadlock").dll);
    command.arg("120");
    let program = Running::start(command);
    let pid = program.pid().to_string();
    // 3.1 reports the names of threads only to a profiler that listens from the start.
    let named = !runtime.is_core31();
    for _ in 0..3 {
        let text = run_sidewalk(["dump", "--json", &pid]);
        let dump: Value = serde_json::from_str(&text).unwrap();
        assert_deadlock(&dump, named);
        // It runs on, with all its threads; the runtime may end one of its own.
        let now = threads(&pid);
        let own = own_threads(&dump);
        assert!(own.len() >= 8, "{own:?}");
        assert!(own.is_subset(&now), "{own:?}, {now:?}");
    }
}

fn threads(pid: &str) -> BTreeSet<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.map(|task| task.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

/// The threads of a dump that have methods of the program on their stacks.
fn own_threads(dump: &Value) -> BTreeSet<String> {
    let is_own = |stack: &&Value| frames(stack).iter().any(|it| it.starts_with("Workloads."));
    let stacks = dump["stacks"].as_array().unwrap().iter().filter(is_own);
    let threads = stacks.flat_map(|stack| stack["threads"].as_array().unwrap());
    threads.map(|thread| thread["tid"].to_string()).collect()
}

/// `named`: the names that the program gave its threads are known.
fn assert_deadlock(dump: &Value, named: bool) {
    for (thread, method) in [
        ("left-first", "Workloads.Deadlock.LeftThenRight"),
        ("right-first", "Workloads.Deadlock.RightThenLeft"),
    ] {
        let stack = stack_with(dump, method);
        let frames = frames(stack);
        let at = frames.iter().position(|frame| *frame == method).unwrap();
        // Above it the way into the kernel, below it the way from the thread's start.
        assert!(at > 0 && at + 1 < frames.len(), "{frames:?}");
        assert_eq!(stack["state"], "sleeping", "{stack:#}");
        let waits = stack["waits_for"].as_str().unwrap_or_default();
        assert!(waits.contains("for a lock"), "{waits}: {frames:?}");
        assert_eq!(names(stack).len(), 1, "{stack:#}");
        if named {
            assert_eq!(names(stack), [thread]);
        }
    }
    let idle = stack_with(dump, "Workloads.Deadlock.WaitForNothing");
    assert_eq!(names(idle).len(), 3, "{dump:#}");
    assert_eq!(idle["waits_for"], "waits for an event");
    let pulse = stack_with(dump, "Workloads.Deadlock.WaitForPulse");
    assert_eq!(pulse["waits_for"], "waits for a pulse of a lock");
    let sleeper = stack_with(dump, "Workloads.Deadlock.Sleep");
    assert_eq!(sleeper["waits_for"], "waits for time to pass");
}

/// Of a running program, and of its saved dump.
fn a_part_of_a_dump_is_chosen(runtime: &Runtime) {
    let mut command = runtime.command(&workload("deadlock").dll);
    command.arg("120");
    let program = Running::start(command);
    let pid = program.pid().to_string();
    let file = test_folder("part").join("dump.swk");
    run_sidewalk(["dump", "--json", &pid, "-o", file.to_str().unwrap()]);
    let threads_of = |dump: &Value| -> usize {
        let stacks = dump["stacks"].as_array().unwrap().iter();
        stacks.map(|stack| names(stack).len()).sum()
    };
    for what in [&pid, file.to_str().unwrap()] {
        let part = |options: &[&str]| -> Value {
            let text = run_sidewalk([&["dump", "--json", what], options].concat());
            serde_json::from_str(&text).unwrap()
        };
        let idle = part(&["--focus", "Deadlock[.]WaitForNothing$"]);
        assert_eq!(threads_of(&idle), 3, "{idle:#}");
        let own = part(&["--ignore", "^Workloads[.]Deadlock[.]"]);
        assert!(threads_of(&own) > 0, "{own:#}");
        assert_eq!(own_threads(&own).len(), 0, "{own:#}");
        let thread = &idle["stacks"][0]["threads"][0];
        let one = part(&["--thread", &thread["tid"].to_string()]);
        assert_eq!(threads_of(&one), 1, "{one:#}");
        assert_eq!(one["stacks"][0]["threads"][0], *thread);
        let mut nothing = Command::new(sidewalk());
        let nothing = nothing.args(["dump", what, "--focus", "Nowhere"]).output();
        let message = String::from_utf8(nothing.unwrap().stderr).unwrap();
        assert!(
            message.contains("--focus 'Nowhere' matches nothing"),
            "{message}"
        );
    }
}

fn threads_that_cannot_answer_are_said_with_the_reason(runtime: &Runtime) {
    let library = native_threads();
    let folder = library.parent().unwrap().to_string_lossy().into_owned();
    let program = Recorder::workload(runtime, "unseen", &["2", "blocked"]);
    let program = program.environment("LD_LIBRARY_PATH", &folder);
    let dump = dump(&program.options(["--dump", "-d", "1500ms"]).run());
    let stacks = dump["stacks"].as_array().unwrap();
    let blocked = stacks
        .iter()
        .find(|stack| stack["missing"] == "it blocks our signal");
    let blocked = blocked.unwrap_or_else(|| panic!("{dump:#}"));
    assert_eq!(
        blocked["threads"].as_array().unwrap().len(),
        2,
        "{blocked:#}"
    );
    assert_eq!(frames(blocked), Vec::<&str>::new());
    // The others are there all the same.
    assert!(stacks.iter().any(|stack| !frames(stack).is_empty()));
}

fn a_thread_counts_once_in_every_output(runtime: &Runtime) {
    let recorded = deadlock(runtime);
    let dump = dump(&recorded);
    let stacks = dump["stacks"].as_array().unwrap().iter();
    let threads: usize = stacks
        .filter(|stack| stack["missing"].is_null())
        .map(|stack| stack["threads"].as_array().unwrap().len())
        .sum();
    let inspected = recorded.inspect();
    assert_eq!(inspected.number("samples"), threads as f64);
    let events = inspected.json["events"].as_array().unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["event"], "wall");
    assert_eq!(events[0]["value"].as_f64(), Some(threads as f64));
    let collapsed = run_sidewalk([
        "convert".as_ref(),
        recorded.recording.as_os_str(),
        "-o".as_ref(),
        "-".as_ref(),
    ]);
    let counts = collapsed
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap().1);
    let sum: usize = counts.map(|count| count.parse::<usize>().unwrap()).sum();
    assert_eq!(sum, threads, "{collapsed}");
}

/// Chains of the workload `parked`, by frames.
type Chains = BTreeMap<Vec<String>, u64>;

fn suspended_methods_are_counted_by_their_chains(runtime: &Runtime) {
    assert_suspended(runtime, AsyncKind::StateMachine);
}

fn suspended_methods_of_runtime_async_are_counted_by_their_chains(runtime: &Runtime) {
    for kind in AsyncKind::WITH_RUNTIME_ASYNC {
        assert_suspended(runtime, kind);
    }
}

fn assert_suspended(runtime: &Runtime, kind: AsyncKind) {
    let dll = workload_of_kind("parked", kind).dll;
    let (bare, expected) = start_suspended(runtime, &dll);
    let (bare, status) = bare.end();
    assert!(status.success() && bare.starts_with("result "), "{bare}");
    let (program, reported) = start_suspended(runtime, &dll);
    assert_eq!(reported, expected);
    for round in 0..2 {
        let pid = program.pid().to_string();
        let text = run_sidewalk(["dump", "--json", "--async", &pid]);
        let dump: Value = serde_json::from_str(&text).unwrap();
        let groups = dump["suspended"].as_array().unwrap();
        let mut found = Chains::new();
        for group in groups {
            let count = group["count"].as_u64().unwrap();
            let own = frames(group).into_iter();
            let own = own.map(|name| name.trim_start_matches("Workloads.Parked."));
            *found.entry(own.map(str::to_owned).collect()).or_default() += count;
            assert_lines(group);
        }
        assert_eq!(found, expected, "round {round}: {dump:#}");
        let counts = groups.iter().map(|group| group["count"].as_u64().unwrap());
        assert!(counts.is_sorted_by(|before, next| before >= next));
        // And what the threads do.
        let main = stack_with(&dump, "Workloads.Parked.Main");
        assert_eq!(main["state"], "sleeping", "{main:#}");
    }
    let (output, status) = program.end();
    assert!(status.success(), "{status}");
    assert_eq!(output, bare);
}

/// Starts the program; returns it with its chains once all its methods are suspended.
fn start_suspended(runtime: &Runtime, dll: &std::path::Path) -> (Running, Chains) {
    let chains = std::cell::RefCell::new(Chains::new());
    let (running, ()) = Running::start_when(runtime.command(dll), |line| {
        if let Some(reported) = line.strip_prefix("suspended ") {
            let (count, chain) = reported.split_once(' ').unwrap();
            // The marks of the roots have a space in them.
            let chain = chain.replace("[not awaited]", "[not_awaited]");
            let chain = chain.replace("[blocking wait]", "[blocking_wait]");
            let frames = chain.split(' ').map(|frame| frame.replace('_', " "));
            let count = count.parse().unwrap();
            chains.borrow_mut().insert(frames.collect(), count);
        }
        (line == "ready").then_some(())
    });
    (running, chains.into_inner())
}

/// Each method is at one of its awaits, the leaf too.
fn assert_lines(group: &Value) {
    for frame in group["frames"].as_array().unwrap() {
        let name = frame["name"].as_str().unwrap();
        if name.starts_with('[') {
            continue;
        }
        let file = frame["file"].as_str().unwrap();
        let line = frame["line"].as_u64().unwrap() as usize;
        let source = fs::read_to_string(file).unwrap();
        let line = source.lines().nth(line - 1).unwrap();
        assert!(line.contains("await "), "{name}: {line}");
        let second = name.ends_with(".SecondAwait");
        assert!(!second || line.contains("Begun"), "{line}");
    }
}

/// A runtime that collects concurrently refuses heap walks to an agent that was there from the
/// start; one that does not, allows them.
fn why_there_are_no_suspended_methods_is_said(runtime: &Runtime) {
    for (concurrent, is_refused) in [("1", true), ("0", false)] {
        let folder = test_folder(&format!("refused-{concurrent}"));
        let command = runtime.command(&workload("parked").dll);
        let message = folder.join("said");
        let mut tool = Command::new(sidewalk());
        tool.args(["record", "-d", "1s", "-o"])
            .arg(folder.join("first.swk"))
            .arg("--")
            .arg(command.get_program())
            .args(command.get_args())
            .stderr(fs::File::create(&message).unwrap());
        for prefix in ["DOTNET", "COMPlus"] {
            tool.env(format!("{prefix}_gcConcurrent"), concurrent);
        }
        let program = Running::start(tool);
        until("the end of the recording", || {
            fs::read_to_string(&message).is_ok_and(|message| message.contains("continues"))
        });
        let pid = only_child(program.pid()).unwrap().to_string();
        let text = run_sidewalk(["dump", "--async", &pid]);
        let has_stacks = text.contains("1148 suspended async stacks, 8 different");
        assert_eq!(has_stacks, !is_refused, "{text}");
        let is_said = text.contains("note: no suspended async methods of .NET");
        assert_eq!(is_said, is_refused, "{text}");
        let (_, status) = program.end();
        assert!(status.success(), "{status}");
    }
}

/// An agent that stays leaves for a dump of suspended methods, and comes again.
fn an_agent_that_stays_is_no_hindrance(runtime: &Runtime) {
    let _alone = Machine::exclusive();
    let program = Running::start(runtime.command(&workload("parked").dll));
    let pid = program.pid().to_string();
    run_sidewalk(["dump", "--stay", &pid]);
    let text = run_sidewalk(["dump", "--async", &pid]);
    let has_stacks = text.contains("1148 suspended async stacks, 8 different");
    assert!(has_stacks, "{text}");
    let (_, status) = program.end();
    assert!(status.success(), "{status}");
}
