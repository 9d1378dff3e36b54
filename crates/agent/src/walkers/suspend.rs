//! The walkers `suspend` and `seeded`: suspend each CLR and walk its threads.
//!
//! Runs on the agent thread. At each tick it finds the threads that have used CPU time since their
//! last walk (for wall time: all threads). It suspends each recorded CLR that has such threads, one
//! after the other, and makes one stack per thread. Threads are stopped at safepoints or in native
//! code, so only those places are sampled. A CLR's own native threads are not its managed threads
//! and are not walked.
//!
//! Invariant: a thread's time is accounted for only once a stack was written for it. A thread that
//! could not be walked keeps its time for the next tick.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use corprof::{SuspendError, WalkError};
use recording::{Event, Record};

use super::merge::{self, Placed};
use super::stopped::{NoExtraWalk, NotStopped, RuntimeStop, StoppedWalker, WalkKinds};
use super::{Round, Walker, WalkerInputs};
use crate::base::proc;
use crate::model::{EndCode, NATIVE_RUN, ThreadTarget, WalkedStack};
use crate::program::Program;
use crate::record::Recorder;

/// Maximum number of retries per tick for a thread that holds a lock of its CLR.
const RETRIES: u32 = 2;
/// CPU time since its last walk up to which a thread counts as idle. It is the cost of waking the
/// thread for that walk (walker `seeded`), or of its return to the wait.
const IDLE_CPU_NS: u64 = 50_000;

/// Time of a thread that samples already represent, nanoseconds.
#[derive(Clone, Copy, Debug)]
struct SampledTime {
    cpu_ns: u64,
    wall_ns: u64,
}

/// The stack of a thread in this tick.
#[derive(Debug, Default)]
struct TickStack {
    placed: Vec<Placed>,
    time_ns: u64,
    end: EndCode,
    /// Nanoseconds since the thread's time was last accounted for.
    cpu_ns: u64,
    wall_ns: u64,
    /// Whether the thread was walked.
    taken: bool,
}

pub(super) struct SuspendWalker {
    seeded: bool,
    events: Vec<Event>,
    interval_ns: u64,
    due_ns: u64,
    last_tick_ns: u64,
    stopped: StoppedWalker,
    /// Accounts of threads that have not ended, even if their CLR has.
    accounts: HashMap<u32, SampledTime>,
    stacks: BTreeMap<u32, TickStack>,
    /// Lost samples, by reason.
    lost: BTreeMap<Cow<'static, str>, u64>,
    /// Number of stacks without their native frames, by reason, and of all stacks.
    holes: BTreeMap<&'static str, u64>,
    walked_stacks: u64,
    /// CPU time of threads that ended before they were walked, minus the part counted in `lost`.
    unwalked_ns: u64,
    words: Vec<u64>,
}

impl SuspendWalker {
    pub(super) fn new(inputs: &WalkerInputs<'_>, seeded: bool) -> SuspendWalker {
        let settings = inputs.settings;
        SuspendWalker {
            seeded,
            events: settings.timed(),
            interval_ns: settings.interval_ns,
            due_ns: inputs.now_ns + settings.interval_ns,
            last_tick_ns: inputs.now_ns,
            stopped: StoppedWalker::new(inputs.program, settings.max_depth),
            accounts: HashMap::new(),
            stacks: BTreeMap::new(),
            lost: BTreeMap::new(),
            holes: BTreeMap::new(),
            walked_stacks: 0,
            unwalked_ns: 0,
            words: Vec::new(),
        }
    }

    /// Returns the threads of a CLR to walk in this tick.
    fn targets(&mut self, round: &Round<'_, '_>, runtime: u8) -> Vec<ThreadTarget> {
        let by_wall = self.events.contains(&Event::Wall);
        let mut targets = round.program.threads.managed_of(runtime);
        targets.retain(|target| {
            let cpu = proc::thread_cpu_ns(target.tid);
            let account = self.accounts.entry(target.thread).or_insert(SampledTime {
                // The main thread's CPU time from before the attach is left out of the recording.
                cpu_ns: match cpu {
                    Some(cpu) if target.tid == std::process::id() => cpu,
                    _ => 0,
                },
                wall_ns: self.last_tick_ns,
            });
            let stack = self.stacks.entry(target.thread).or_default();
            stack.cpu_ns = cpu.map_or(0, |cpu| cpu.saturating_sub(account.cpu_ns));
            stack.wall_ns = round.now_ns.saturating_sub(account.wall_ns);
            by_wall || stack.cpu_ns > IDLE_CPU_NS
        });
        targets
    }

    /// Walks the threads of one CLR.
    fn stop(&mut self, round: &mut Round<'_, '_>, runtime: u8, recorder: &mut Recorder) {
        let mut targets = self.targets(round, runtime);
        let ways = if self.seeded {
            WalkKinds {
                seeded: true,
                ..WalkKinds::default()
            }
        } else {
            WalkKinds {
                plain: true,
                ..WalkKinds::default()
            }
        };
        for retry in 0..=RETRIES {
            if targets.is_empty() {
                return;
            }
            let last = retry == RETRIES;
            let stopped = self.stopped.stop(
                &mut round.runtimes,
                round.reader,
                runtime,
                ways,
                targets.drain(..),
                &mut NoExtraWalk,
            );
            match stopped {
                Ok(stop) => {
                    recorder.record(&Record::Pause {
                        time_ns: stop.end_ns,
                        stopping_ns: stop.stopping_ns,
                        stopped_ns: stop.stopped_ns,
                    });
                    targets = self.collect(round.program, stop, last);
                }
                Err(NotStopped::Gone | NotStopped::Refused(SuspendError::NotStarted)) => return,
                Err(NotStopped::Refused(error)) => {
                    // No wait: a thread that was not walked keeps its value for the next tick.
                    self.count_lost(error.to_string(), 1);
                    return;
                }
            }
        }
    }

    fn count_lost(&mut self, reason: impl Into<Cow<'static, str>>, count: u64) {
        *self.lost.entry(reason.into()).or_insert(0) += count;
    }

    /// Takes the results of each thread. Returns the threads to retry.
    fn collect(&mut self, program: &Program, stop: RuntimeStop, last: bool) -> Vec<ThreadTarget> {
        let mut again = Vec::new();
        for seen in std::mem::take(&mut self.stopped.seen) {
            let snap = if self.seeded {
                &seen.seeded
            } else {
                &seen.plain
            };
            let Some(snap) = snap else {
                // Not listed by the CLR: the thread ends, or has not begun.
                continue;
            };
            match snap.error {
                None | Some(WalkError::NoManagedFrames) => {}
                // E_NOTIMPL during a suspension: the thread was entering the runtime.
                Some(WalkError::Unsafe | WalkError::NotSuspended) if !last => {
                    again.push(seen.target);
                    continue;
                }
                Some(error) => {
                    self.count_lost(error.to_string(), 1);
                    continue;
                }
            }
            let stack = self.stacks.entry(seen.target.thread).or_default();
            let frames = self.stopped.frames.get(snap.frames.clone());
            merge::place(
                program.code.map(),
                frames.unwrap_or_default(),
                &mut stack.placed,
            );
            if snap.cut {
                stack.end = EndCode::TRUNCATED_END;
            }
            if let Some(Ok(trace)) = &seen.trace
                && let Some(frames) = self.stopped.traces.get(trace.frames.clone())
            {
                merge::fill(&mut stack.placed, frames);
                stack.end = EndCode(trace.end);
            } else {
                merge::by_stack_pointer(&mut stack.placed);
                if self.seeded {
                    let reason = match seen.trace {
                        Some(Err(refused)) => refused.name(),
                        _ => "not known to the sampler",
                    };
                    *self.holes.entry(reason).or_insert(0) += 1;
                }
            }
            self.walked_stacks += 1;
            stack.time_ns = stop.at_ns;
            stack.taken = true;
        }
        again
    }

    /// Writes a sample for each walked thread.
    fn write_samples(&mut self, round: &mut Round<'_, '_>, recorder: &mut Recorder) {
        for (thread, stack) in &mut self.stacks {
            if !stack.taken {
                continue;
            }
            self.words.clear();
            merge::words(&stack.placed, &mut self.words);
            if self.words.is_empty() {
                self.words.push(NATIVE_RUN);
            }
            let Some(account) = self.accounts.get_mut(thread) else {
                continue;
            };
            for &event in &self.events {
                let value = match event {
                    Event::Wall => {
                        account.wall_ns += stack.wall_ns;
                        stack.wall_ns
                    }
                    _ => {
                        account.cpu_ns += stack.cpu_ns;
                        stack.cpu_ns
                    }
                };
                if value == 0 {
                    continue;
                }
                let sample = WalkedStack {
                    thread: *thread,
                    time_ns: stack.time_ns,
                    value,
                    event,
                    end: stack.end,
                    frames: &self.words,
                    detail: None,
                };
                recorder.sample(round.program, &mut round.runtimes, sample);
            }
        }
        self.stacks.clear();
    }
}

/// Returns the recording's note on stacks without their native frames.
fn note_of(holes: &BTreeMap<&'static str, u64>, walked_stacks: u64) -> Option<String> {
    let all: u64 = holes.values().sum();
    let reasons: Vec<String> = holes
        .iter()
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    (all > 0).then(|| {
        format!(
            "walker seeded: {all} of {walked_stacks} stacks have [native] for their native frames ({})",
            reasons.join(", ")
        )
    })
}

impl Walker for SuspendWalker {
    fn thread_ended(&mut self, thread: u32, cpu_ns: u64) {
        let known = self.accounts.remove(&thread);
        if !self.events.contains(&Event::Cpu) {
            return;
        }
        // The CPU time since the thread's last walk can no longer be attributed.
        let unwalked = cpu_ns.saturating_sub(known.map_or(0, |account| account.cpu_ns));
        // Summed over all such threads, as each may have lived for less than an interval.
        self.unwalked_ns = self.unwalked_ns.saturating_add(unwalked);
        let samples = self.unwalked_ns / self.interval_ns;
        if samples > 0 {
            self.unwalked_ns %= self.interval_ns;
            self.count_lost("a thread ended before it was walked", samples);
        }
    }

    fn due_ns(&self) -> Option<u64> {
        Some(self.due_ns)
    }

    fn finish(&mut self, _round: &mut Round<'_, '_>, recorder: &mut Recorder) {
        if let Some(text) = note_of(&self.holes, self.walked_stacks) {
            recorder.record(&Record::Note { text: text.into() });
        }
        self.holes.clear();
        self.walked_stacks = 0;
    }

    fn lost(&mut self) -> Vec<(Cow<'static, str>, u64)> {
        std::mem::take(&mut self.lost).into_iter().collect()
    }

    fn name(&self) -> &'static str {
        if self.seeded { "seeded" } else { "suspend" }
    }

    fn engine(&self, _event: Event) -> &'static str {
        "SuspendRuntime"
    }

    fn round(&mut self, round: &mut Round<'_, '_>, recorder: &mut Recorder) {
        round.empty_rings();
        if round.now_ns < self.due_ns {
            return;
        }
        // Late ticks are not repeated, as each sample's value is the time that really passed.
        self.due_ns = (self.due_ns + self.interval_ns).max(round.now_ns);
        for runtime in round.runtimes.recorded() {
            self.stop(round, runtime, recorder);
        }
        self.write_samples(round, recorder);
        self.last_tick_ns = round.now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_reported_once_there_are_any() {
        assert_eq!(note_of(&BTreeMap::new(), 7), None);
        let holes = BTreeMap::from([("no answer in time", 2), ("ring full", 1)]);
        assert_eq!(
            note_of(&holes, 1200).unwrap(),
            "walker seeded: 3 of 1200 stacks have [native] for their native frames \
             (no answer in time 2, ring full 1)"
        );
    }
}
