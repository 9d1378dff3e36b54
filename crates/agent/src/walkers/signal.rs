//! The walker `signal`: reads the stacks that signal handlers have written to the ring buffers.
//!
//! The walk itself is `stackwalk`'s. It runs in a signal handler on the walked thread
//! (`crate::handler`). This module runs on the agent thread. It drains the ring buffers, and sends
//! the ticks of wall-clock sampling. Supports any thread, managed or native, at any instruction.

use recording::Event;
use sampler::Sampler;

use super::{Round, Walker, WalkerInputs, event_of};
use crate::model::{EndCode, WalkedStack};
use crate::record::Recorder;

pub(super) struct SignalWalker {
    sampler: &'static Sampler,
}

impl SignalWalker {
    pub(super) fn new(inputs: &WalkerInputs<'_>) -> SignalWalker {
        SignalWalker {
            sampler: inputs.sampler,
        }
    }
}

impl Walker for SignalWalker {
    fn due_ns(&self) -> Option<u64> {
        self.sampler.due_ns()
    }

    fn name(&self) -> &'static str {
        "signal"
    }

    fn engine(&self, event: Event) -> &'static str {
        if event == Event::Wall {
            "wall"
        } else {
            self.sampler.engine_name()
        }
    }

    fn tick(&mut self, reader: &mut sampler::Reader, now_ns: u64) -> bool {
        reader.tick(now_ns);
        true
    }

    fn round(&mut self, round: &mut Round<'_, '_>, recorder: &mut Recorder) {
        round.reader.tick(round.now_ns);
        let (program, runtimes, closed) = (round.program, &mut round.runtimes, &mut round.closed);
        round.reader.drain_all(
            |slot, sample| {
                if let Some(thread) = program.threads.of_slot(slot) {
                    let stack = WalkedStack {
                        thread,
                        time_ns: sample.time_ns,
                        value: sample.value,
                        event: event_of(sample.event),
                        end: EndCode(sample.end),
                        frames: sample.frames,
                        detail: None,
                    };
                    recorder.sample(program, runtimes, stack);
                }
            },
            |slot| closed.push(slot),
        );
    }
}
