//! The walker `shadow`: stacks come from enter, leave and tailcall hooks.
//!
//! The hooks and their trees are `crate::shadow`'s; this end writes what the trees have grown by,
//! and gives each tick of CPU time to the call that ran. It unwinds nothing.

use std::borrow::Cow;

use recording::Event;

use super::{Round, Sink, Walker, event_of};
use crate::agent::Agent;
use crate::proc;
use crate::shadow::{Moment, ShadowWalker, Trees};

/// Between two times that the trees are written. Nanoseconds.
const WRITE_NS: u64 = 1_000_000_000;

pub(super) struct Shadow {
    walker: &'static ShadowWalker,
    trees: Trees,
    write_due: u64,
    engine: &'static str,
}

impl Shadow {
    pub(super) fn new(agent: &'static Agent, walker: &'static ShadowWalker) -> Shadow {
        Shadow {
            walker,
            trees: Trees::new(walker),
            write_due: proc::now_ns() + WRITE_NS,
            engine: agent.sampler.engine_name(),
        }
    }
}

impl Walker for Shadow {
    fn due_ns(&self) -> Option<u64> {
        Some(self.write_due)
    }

    fn name(&self) -> &'static str {
        "shadow"
    }

    fn engine(&self, event: Event) -> &'static str {
        if event == Event::Wall {
            self.walker.clock_name()
        } else {
            self.engine
        }
    }

    fn round(&mut self, round: &mut Round<'_, '_>, sink: &mut dyn Sink) {
        let (agent, closed) = (round.agent, &mut *round.closed);
        let mut pen = sink.pen(&mut round.runtimes);
        let trees = &mut self.trees;
        round.reader.drain_all(
            |slot, sample| {
                let Some(thread) = agent.threads.of_slot(slot) else {
                    return;
                };
                let moment = Moment {
                    thread,
                    word: sample.frames.first().copied().unwrap_or(0),
                    event: event_of(sample.event),
                    time_ns: sample.time_ns,
                    value: sample.value,
                };
                trees.sample(&mut pen, moment);
            },
            |slot| closed.push(slot),
        );
        trees.drained(&mut pen);
        if round.now_ns >= self.write_due {
            self.write_due = round.now_ns + WRITE_NS;
            trees.flush(&mut pen, false);
        }
    }

    fn finish(&mut self, round: &mut Round<'_, '_>, sink: &mut dyn Sink) {
        self.trees.flush(&mut sink.pen(&mut round.runtimes), true);
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
