//! The walker `signal`: stacks come from the handlers' rings.
//!
//! The walk itself is `stackwalk`'s, in a signal handler on the thread that is walked
//! (`crate::agent::walk`); this end empties the rings, and ticks where samples are taken by wall
//! time. Supported for any thread, managed or not, at any instruction.

use recording::Event;

use super::{Round, Sink, Walker, event_of};
use crate::agent::Agent;
use crate::resolve::{EndCode, RawSample};

pub(super) struct Signal {
    /// Nanoseconds between two ticks of the wall clock; `None`: the threads' own timers tick.
    wall_ns: Option<u64>,
    due_ns: u64,
    engine: &'static str,
}

impl Signal {
    pub(super) fn new(agent: &'static Agent) -> Signal {
        Signal {
            wall_ns: agent
                .config
                .events
                .has(Event::Wall)
                .then_some(agent.config.interval_ns),
            due_ns: crate::proc::now_ns(),
            engine: agent.sampler.engine_name(),
        }
    }
}

impl Walker for Signal {
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

    fn round(&mut self, round: &mut Round<'_, '_>, sink: &mut dyn Sink) {
        if let Some(interval) = self.wall_ns
            && round.now_ns >= self.due_ns
        {
            round.reader.wall_tick(round.now_ns);
            // Late ticks are not made up for: each sample's value is the time really passed.
            self.due_ns = (self.due_ns + interval).max(round.now_ns);
        }
        let (agent, runtimes, closed) = (round.agent, &mut round.runtimes, &mut *round.closed);
        round.reader.drain_all(
            |slot, sample| {
                if let Some(thread) = agent.threads.of_slot(slot) {
                    let stack = RawSample {
                        thread,
                        time_ns: sample.time_ns,
                        value: sample.value,
                        event: event_of(sample.event),
                        end: EndCode(sample.end),
                        frames: sample.frames,
                        detail: None,
                    };
                    sink.stack(runtimes, stack);
                }
            },
            |slot| closed.push(slot),
        );
    }
}
