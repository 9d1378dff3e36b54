//! Stops one thread of a recorded program for some milliseconds at rare moments, by `ptrace`.
//!
//! The moments are: the agent thread inside the runtime, and the first thread after a given system
//! call. A busy machine delays threads in the same way, but rarely. Calls of the agent thread into
//! the runtime must be correct while the program's threads run, collect, allocate and free. Program
//! threads must tolerate ticks at any moment. All other threads run untouched. Invariant: when a
//! function of this module returns, no thread is stopped or traced.

use std::fs;
use std::ops::Range;
use std::process::Child;
use std::time::{Duration, Instant};

use testkit::only_child;

use crate::stepper::{Info, call_of, info_of, kill, ptrace_ok, resume, wait_for};

/// Duration of a stop.
const HELD: Duration = Duration::from_millis(5);
/// Time between two checks of the thread's position, in microseconds. It varies.
const APART: Range<u64> = 40..200;

/// Counts of checks and of stops.
#[derive(Debug, Default)]
pub(crate) struct HeldUp {
    pub(crate) looks: u32,
    /// Stops inside the runtime.
    pub(crate) times: u32,
}

/// Repeatedly stops the agent thread of the program that `tool` is recording, until the tool has
/// ended. After `patience` the program counts as hanging and is killed.
pub(crate) fn hold_up_agent(tool: &mut Child, patience: Duration) -> HeldUp {
    let end = Instant::now() + patience;
    let mut held_up = HeldUp::default();
    let Some((program, agent)) = agent_of(tool) else {
        return held_up;
    };
    // From here on only this thread receives the events of the traced thread.
    if ptrace_ok(libc::PTRACE_SEIZE, agent, 0, 0).is_err() {
        return held_up;
    }
    let runtime = runtime_of(program);
    let mut apart = APART.start;
    loop {
        std::thread::sleep(Duration::from_micros(apart));
        apart = APART.start + (apart * 7 + 13) % (APART.end - APART.start);
        // Fails if the thread has just ended. The wait below then returns its exit.
        let _ended = ptrace_ok(libc::PTRACE_INTERRUPT, agent, 0, 0);
        let (_, status) = wait_for(agent);
        if !libc::WIFSTOPPED(status) {
            return held_up;
        }
        held_up.looks += 1;
        if info_of(agent).is_some_and(|at| runtime.contains(&at.instruction_pointer)) {
            held_up.times += 1;
            std::thread::sleep(HELD);
        }
        let is_over = tool.try_wait().unwrap().is_some();
        let next = match is_over {
            true => libc::PTRACE_DETACH,
            false => libc::PTRACE_CONT,
        };
        // Other stops are due to a signal, which is delivered.
        let signal = match status >> 16 {
            0 => libc::WSTOPSIG(status),
            _ => 0,
        };
        if ptrace_ok(next, agent, 0, signal as u64).is_err() || is_over {
            return held_up;
        }
        if Instant::now() > end {
            kill(program);
        }
    }
}

/// Stops the first thread of the program that `tool` has started for `held` after each system call
/// `call` with the first argument `first`, until the program ends. Returns the number of stops.
pub(crate) fn hold_up_after(tool: &Child, (call, first): (i64, u64), held: Duration) -> u32 {
    let mut times = 0;
    let thread = only_child(tool.id())
        .expect("the program runs")
        .cast_signed();
    let options = libc::PTRACE_O_TRACESYSGOOD.cast_unsigned().into();
    ptrace_ok(libc::PTRACE_SEIZE, thread, 0, options).expect("it may be traced");
    ptrace_ok(libc::PTRACE_INTERRUPT, thread, 0, 0).expect("it runs");
    let mut is_it = false;
    loop {
        let (_, status) = wait_for(thread);
        if !libc::WIFSTOPPED(status) {
            return times;
        }
        let stop = libc::WSTOPSIG(status);
        let mut signal = 0;
        if stop == libc::SIGTRAP | 0x80 {
            match call_of(thread) {
                Some(Info::Entry(number, arguments)) => {
                    is_it = (number, arguments[0]) == (call, first);
                }
                Some(Info::Exit(_)) if is_it => {
                    times += 1;
                    std::thread::sleep(held);
                }
                _ => {}
            }
        } else if status >> 16 == 0 {
            signal = stop;
        }
        resume(thread, signal);
    }
}

/// The program that the tool has started, and its agent's thread; `None` where it has ended.
fn agent_of(tool: &Child) -> Option<(u32, i32)> {
    let program = only_child(tool.id())?;
    let threads = fs::read_dir(format!("/proc/{program}/task")).ok()?;
    let agent = threads.flatten().find(|thread| {
        let name = fs::read_to_string(thread.path().join("comm"));
        name.is_ok_and(|name| name.trim() == "sidewalk")
    });
    Some((program, agent?.file_name().to_str()?.parse().ok()?))
}

/// Returns the address range of the runtime's code.
fn runtime_of(program: u32) -> Range<u64> {
    let maps = fs::read_to_string(format!("/proc/{program}/maps")).unwrap_or_default();
    let code = maps
        .lines()
        .filter(|line| line.contains("libcoreclr.so") && line.contains(" r-x"));
    let mut ends = code.filter_map(|line| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(from)?, number(to)?))
    });
    let first = ends.next().expect("a runtime is loaded");
    first.0..ends.next_back().unwrap_or(first).1
}
