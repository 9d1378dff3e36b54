//! The walker `shadow`: writes the call trees that enter, leave and tailcall hooks record.
//!
//! The hooks and the threads' shadow stacks are in `crate::hooks`. This module runs on the agent
//! thread. It writes the growth of the trees, and attributes each CPU tick to the call that ran. It
//! unwinds nothing.

use std::borrow::Cow;

use recording::Event;

use super::{Round, Walker, WalkerInputs, event_of};
use crate::hooks::ShadowStacks;
use crate::record::Recorder;
use trees::{CpuMoment, TreeWriter, Trees};

mod trees;

/// Time between two writes of the trees, nanoseconds.
const WRITE_NS: u64 = 1_000_000_000;

pub(super) struct ShadowWalker {
    stacks: &'static ShadowStacks,
    trees: Trees,
    write_due: u64,
    engine: &'static str,
}

impl ShadowWalker {
    pub(super) fn new(inputs: &WalkerInputs<'_>, stacks: &'static ShadowStacks) -> ShadowWalker {
        ShadowWalker {
            stacks,
            trees: Trees::new(stacks),
            write_due: inputs.now_ns + WRITE_NS,
            engine: inputs.sampler.engine_name(),
        }
    }
}

/// Returns the writer of the trees.
fn writer<'a, 'r>(round: &'a mut Round<'_, 'r>, recorder: &'a mut Recorder) -> TreeWriter<'a, 'r> {
    recorder.make_room();
    TreeWriter {
        recorder,
        program: round.program,
        runtimes: &mut round.runtimes,
    }
}

impl Walker for ShadowWalker {
    fn due_ns(&self) -> Option<u64> {
        Some(self.write_due)
    }

    fn name(&self) -> &'static str {
        "shadow"
    }

    fn engine(&self, event: Event) -> &'static str {
        if event == Event::Wall {
            self.stacks.clock_name()
        } else {
            self.engine
        }
    }

    fn round(&mut self, round: &mut Round<'_, '_>, recorder: &mut Recorder) {
        let (program, closed) = (round.program, &mut round.closed);
        recorder.make_room();
        let mut writer = TreeWriter {
            recorder,
            program,
            runtimes: &mut round.runtimes,
        };
        let trees = &mut self.trees;
        round.reader.drain_all(
            |slot, sample| {
                let Some(thread) = program.threads.of_slot(slot) else {
                    return;
                };
                let moment = CpuMoment {
                    thread,
                    word: sample.frames.first().copied().unwrap_or(0),
                    event: event_of(sample.event),
                    time_ns: sample.time_ns,
                    value: sample.value,
                };
                trees.sample(&mut writer, moment);
            },
            |slot| closed.push(slot),
        );
        trees.drained(&mut writer);
        if round.now_ns >= self.write_due {
            self.write_due = round.now_ns + WRITE_NS;
            trees.flush(&mut writer, false);
        }
    }

    fn finish(&mut self, round: &mut Round<'_, '_>, recorder: &mut Recorder) {
        self.trees.flush(&mut writer(round, recorder), true);
    }

    fn thread_ended(&mut self, thread: u32, _cpu_ns: u64) {
        self.trees.thread_ended(thread);
    }

    fn lost(&mut self) -> Vec<(Cow<'static, str>, u64)> {
        let lost = self.trees.lost().into_iter();
        lost.map(|(reason, count)| (Cow::Borrowed(reason), count))
            .collect()
    }

    fn memory(&self) -> u64 {
        self.trees.memory()
    }
}
