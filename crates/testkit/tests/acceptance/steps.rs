//! `kill -9` of the tool or of the program at every step of coming and leaving.
//!
//! A step is a system call of the tool or the program ([`stepper`](crate::stepper)), listed in the
//! tables below. When the tool is killed, the program continues and can be recorded again. When the
//! program is killed, the tool reports that and ends.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use testkit::{Inspected, Runtime, test_folder};

use crate::attach::{
    ends_well, has_agent_thread, has_left, record, recording_in, running, timers, tool, until,
};
use crate::stepper::{Actor, Step, StepOutcome, Stepper, kill};

use Actor::{Agent, Detach, Runtime as Clr, Tool};

on_each_runtime!(
    a_tool_that_is_killed_at_a_step_leaves_a_program_that_runs_on,
    a_program_that_is_killed_at_a_step_ends_the_tool,
);

/// The last line of `churn`, printed unless its results have changed.
const MEASURED: &str = "\nmeasured threads";

const ANSWERED: &str = "the attach is answered";

/// The steps of the tool, in order.
const OF_THE_TOOL: [Step; 21] = [
    Step::after("the process is found", Tool, "openat", "/proc/"),
    Step::after("the recording is begun", Tool, "write", "SWREC"),
    Step::before(
        "the runtime is looked up",
        Tool,
        "connect",
        "dotnet-diagnostic-",
    ),
    Step::after(
        "the runtime is there",
        Tool,
        "connect",
        "dotnet-diagnostic-",
    ),
    Step::after("the runtime is asked who it is", Tool, "send", "asks 4."),
    Step::after(
        "the runtime has said who it is",
        Tool,
        "receive",
        "answers 4.",
    ),
    Step::before(
        "the attach is about to be asked for",
        Tool,
        "send",
        "asks 3.1",
    ),
    Step::after("the attach is asked for", Tool, "send", "asks 3.1"),
    Step::after(ANSWERED, Tool, "receive", "answers 3.1"),
    Step::before("at the door", Tool, "connect", "sidewalk-"),
    Step::after("through the door", Tool, "connect", "sidewalk-"),
    Step::before(
        "a recording is about to be asked for",
        Tool,
        "send",
        "record",
    ),
    Step::after("a recording is asked for", Tool, "send", "record"),
    Step::after("the recording is granted", Tool, "receive", "ok"),
    Step::after(
        "the recording has its name",
        Tool,
        "rename",
        "recording.swk",
    ),
    Step::after("the first block has come", Tool, "receive", "SWBLK"),
    Step::after("the agent is told to stop", Tool, "send", "S"),
    Step::after("the recording has ended", Tool, "receive", "its end"),
    Step::after("at the door to have it leave", Tool, "connect", "sidewalk-").nth(2),
    Step::after("it is asked to leave", Tool, "send", "leave"),
    Step::after("it has left", Tool, "receive", "left"),
];

const LIBRARY: &str = "the runtime opens the library";

/// The steps of the runtime and the agent, in order.
const OF_THE_AGENT: [Step; 24] = [
    Step::after(
        "the runtime hears of the attach",
        Clr,
        "receive",
        "asks 3.1",
    ),
    Step::after(LIBRARY, Clr, "openat", "libsidewalk.so"),
    Step::before("the agent opens the door", Clr, "bind", "sidewalk-"),
    Step::after("the agent has opened the door", Clr, "listen", ""),
    Step::after("the agent's thread begins", Agent, "prctl", "sidewalk"),
    Step::before("the runtime answers", Clr, "send", "answers 3.1"),
    Step::after("it lists the threads", Agent, "openat", "/comm"),
    Step::before(
        "it looks whether code goes away",
        Agent,
        "openat",
        "/syscall",
    ),
    Step::after("half of the catch-up", Agent, "readv", "").nth(20),
    Step::after("it lets somebody in", Agent, "accept4", ""),
    Step::after("it hears that it is to record", Agent, "receive", "record"),
    Step::before("it grants the recording", Agent, "send", "ok"),
    Step::before("its first block", Agent, "send", "SWBLK"),
    Step::after("it greets a thread", Agent, "signal", "").nth(3),
    Step::after("it makes a timer", Agent, "timer_create", ""),
    Step::after("it starts a timer", Agent, "timer_settime", ""),
    Step::after("its second block", Agent, "send", "SWBLK").nth(2),
    Step::after("it hears that it is to stop", Agent, "receive", "S"),
    Step::after("it ends a timer", Agent, "timer_delete", ""),
    Step::before("the runtime is asked to let it go", Detach, "futex", " s"),
    Step::before("ProfilerDetachSucceeded", Detach, "send", ""),
    Step::before("it closes the door", Agent, "unlink", "sidewalk-"),
    Step::after("it has closed the door", Agent, "unlink", "sidewalk-"),
    Step::before("it says that it has left", Agent, "send", "left"),
];

/// The steps that differ between runtimes. All steps run on .NET 8, and on every runtime if
/// `SIDEWALK_STEPS` is set (`cargo xtask stress --steps`).
const ON_EACH: [&str; 5] = [
    "the recording is granted",
    LIBRARY,
    "half of the catch-up",
    "the runtime is asked to let it go",
    "ProfilerDetachSucceeded",
];

fn steps(runtime: &Runtime) -> Vec<Step> {
    let all = std::env::var_os("SIDEWALK_STEPS").is_some() || runtime.name == "net8";
    let both = OF_THE_TOOL.iter().chain(&OF_THE_AGENT).copied();
    both.filter(|step| all || ON_EACH.contains(&step.name))
        .collect()
}

/// Asserts that the step was reached. The message lists the calls that were seen.
fn assert_reached(step: &Step, outcome: &StepOutcome) {
    assert!(
        outcome.reached,
        "«{}» never came; seen:\n{}\n{}",
        step.name,
        outcome.calls.join("\n"),
        outcome.message
    );
}

/// Options for what is recorded: time, and events, for which there is more to be taken back.
const OPTIONS: [&str; 4] = ["-d", "120ms", "-e", "cpu,exception"];

fn a_tool_that_is_killed_at_a_step_leaves_a_program_that_runs_on(runtime: &Runtime) {
    let folder = test_folder("tool");
    let mut program = running(runtime, "churn", &["soon"]);
    let mut detach = None;
    for step in steps(runtime) {
        // A runtime opens the library once.
        if step.name == LIBRARY {
            let next = running(runtime, "churn", &["soon"]);
            ends_well(std::mem::replace(&mut program, next), MEASURED);
            detach = None;
        }
        println!("«{}»", step.name);
        let pid = program.pid();
        let outcome = Stepper::run_to_end(step, pid, detach, tool(pid, &folder, &OPTIONS), kill);
        assert_reached(&step, &outcome);
        assert_eq!(outcome.status.signal(), Some(9), "«{}»", step.name);
        detach = outcome.detach;
        // Wherever the agent stands, the next one records.
        let recorded = record(pid, &folder, &["-d", "50ms", "-e", "cpu,exception"]);
        let message = &recorded.answer.stderr;
        assert!(has_left(&recorded), "after «{}»: {message}", step.name);
        let what = |what| format!("{what}, after «{}»", step.name);
        until(&what("the agent to leave"), || !has_agent_thread(pid));
        assert_eq!(timers(pid), 0, "timers, after «{}»", step.name);
        until(&what("signals to be delivered"), || {
            !has_pending_signals(pid)
        });
    }
    ends_well(program, MEASURED);
}

/// A tool that was killed before it made a request is waited for, for 10 s.
#[test]
fn an_agent_to_which_nobody_comes_leaves() {
    let folder = test_folder("nobody");
    let program = running(&Runtime::net8(), "churn", &["soon"]);
    let pid = program.pid();
    let step = OF_THE_TOOL
        .iter()
        .find(|step| step.name == ANSWERED)
        .unwrap();
    let outcome = Stepper::run_to_end(*step, pid, None, tool(pid, &folder, &OPTIONS), kill);
    assert_reached(step, &outcome);
    until("the agent's thread to begin", || has_agent_thread(pid));
    until("the agent to leave", || !has_agent_thread(pid));
    ends_well(program, MEASURED);
}

fn has_pending_signals(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().any(|task| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status
            .lines()
            .filter_map(|line| {
                line.strip_prefix("SigPnd:")
                    .or(line.strip_prefix("ShdPnd:"))
            })
            .any(|set| set.trim().bytes().any(|digit| digit != b'0'))
    })
}

fn a_program_that_is_killed_at_a_step_ends_the_tool(runtime: &Runtime) {
    for step in steps(runtime) {
        println!("«{}»", step.name);
        let folder = test_folder("program");
        let program = running(runtime, "churn", &["soon"]);
        let pid = program.pid();
        let outcome =
            Stepper::run_to_end(step, pid, None, tool(pid, &folder, &OPTIONS), |_| kill(pid));
        assert_reached(&step, &outcome);
        let (.., status) = program.end();
        assert_eq!(status.signal(), Some(9), "{status}");
        assert_ended(&step, pid, &outcome);
        let recording = recording_in(&folder);
        if outcome.status.success() {
            // `Inspected::of` reads it whole. Before its first round there is no sample in it.
            let samples = Inspected::of(&recording).number("samples");
            println!("{samples} samples");
        } else {
            assert!(!recording.exists(), "«{}»", step.name);
        }
        // Nothing else is left there.
        let left = fs::read_dir(&folder).unwrap().flatten();
        let left: Vec<_> = left.map(|file| file.file_name()).collect();
        assert!(
            left.len() == usize::from(recording.exists()),
            "«{}»: {left:?}",
            step.name
        );
    }
}

/// Well where there is something to read; else with 1 and the reason.
fn assert_ended(step: &Step, pid: u32, outcome: &StepOutcome) {
    let message = &outcome.message;
    println!("{} {message}", outcome.status);
    match outcome.status.code() {
        Some(0) => {}
        Some(1) => {
            let error = message.lines().find(|line| line.contains("error: "));
            let error = error.unwrap_or_default();
            let is_clear = ["ended", "no process", "nothing was recorded"];
            assert!(
                is_clear.iter().any(|word| error.contains(word)),
                "«{}» of {pid}: {message}",
                step.name
            );
        }
        _ => panic!("«{}»: {}: {message}", step.name, outcome.status),
    }
}
