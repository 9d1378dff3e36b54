//! The walker `signal`: stacks come from the handlers' rings.
//!
//! The walk itself is `stackwalk`'s, in a signal handler on the thread that is walked
//! (`crate::handler`); this end empties the rings, and ticks where samples are taken by wall
//! time. Supported for any thread, managed or not, at any instruction.

use recording::Event;

use super::{Making, Round, Walker, event_of};
use crate::model::{EndCode, WalkedStack};
use crate::record::Recorder;

pub(super) struct SignalWalker {
    /// Nanoseconds between two ticks of the wall clock; `None`: the threads' own timers tick.
    wall_ns: Option<u64>,
    due_ns: u64,
    engine: &'static str,
}

impl SignalWalker {
    pub(super) fn new(making: &Making<'_>) -> SignalWalker {
        let settings = making.settings;
        SignalWalker {
            wall_ns: settings
                .events
                .has(Event::Wall)
                .then_some(settings.interval_ns),
            due_ns: making.now_ns,
            engine: making.engine,
        }
    }
}

impl Walker for SignalWalker {
    fn due_ns(&self) -> Option<u64> {
        self.wall_ns.map(|_| self.due_ns)
    }

    fn name(&self) -> &'static str {
        "signal"
    }

    fn engine(&self, event: Event) -> &'static str {
        if event == Event::Wall {
            "wall"
        } else {
            self.engine
        }
    }

    fn round(&mut self, round: &mut Round<'_, '_>, recorder: &mut Recorder) {
        if let Some(interval) = self.wall_ns
            && round.now_ns >= self.due_ns
        {
            round.reader.wall_tick(round.now_ns);
            // Late ticks are not made up for: each sample's value is the time really passed.
            self.due_ns = (self.due_ns + interval).max(round.now_ns);
        }
        let (target, runtimes, closed) = (round.target, &mut round.runtimes, &mut round.closed);
        round.reader.drain_all(
            |slot, sample| {
                if let Some(thread) = target.threads.of_slot(slot) {
                    let stack = WalkedStack {
                        thread,
                        time_ns: sample.time_ns,
                        value: sample.value,
                        event: event_of(sample.event),
                        end: EndCode(sample.end),
                        frames: sample.frames,
                        detail: None,
                    };
                    recorder.sample(target, runtimes, stack);
                }
            },
            |slot| closed.push(slot),
        );
    }
}
