//! The walker of a dump: takes one stack of each thread, on request only.
//!
//! The thread walks its own stack in the signal handler, as for the walker `signal`.
//! `session::dump` selects the threads and limits the wait for them. Invariant: a thread has at
//! most one sample, of weight 1.

use std::collections::HashSet;

use recording::Event;

use super::{Round, Walker, WalkerInputs};
use crate::model::{EndCode, WalkedStack};
use crate::record::Recorder;

pub(super) struct DumpWalker {
    answered: HashSet<u32>,
}

impl DumpWalker {
    pub(super) fn new(_making: &WalkerInputs<'_>) -> DumpWalker {
        DumpWalker {
            answered: HashSet::new(),
        }
    }
}

impl Walker for DumpWalker {
    fn due_ns(&self) -> Option<u64> {
        None
    }

    fn name(&self) -> &'static str {
        "signal"
    }

    fn engine(&self, _event: Event) -> &'static str {
        "dump"
    }

    fn has_stack_of(&self, thread: u32) -> bool {
        self.answered.contains(&thread)
    }

    fn round(&mut self, round: &mut Round<'_, '_>, recorder: &mut Recorder) {
        let (program, runtimes, closed) = (round.program, &mut round.runtimes, &mut round.closed);
        round.reader.drain_all(
            |slot, sample| {
                let Some(thread) = program.threads.of_slot(slot) else {
                    return;
                };
                if self.answered.insert(thread) {
                    let stack = WalkedStack {
                        thread,
                        time_ns: sample.time_ns,
                        value: 1,
                        event: Event::Wall,
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
