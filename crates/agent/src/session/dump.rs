//! A dump: the present stack and state of each thread.
//!
//! No thread is stopped. The state of each thread is read, then the thread gets one signal and
//! walks its own stack. A session with [`Settings::dump`](crate::model::Settings) takes the dump
//! when it receives the stop command. Invariant: the wait for all threads ends after [`BOUND_NS`],
//! and a thread without a stack is written with the reason.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use corprof::AgentCx;
use recording::Record;

use super::Session;
use crate::base::proc::{self, ThreadActivity};
use crate::program::threads::StackProbes;

/// Maximum time for the walks of all threads together.
const BOUND_NS: u64 = 500_000_000;
/// Maximum number of signals per thread. A handler that could not walk may succeed one instruction
/// later.
const MAX_PROBES: u8 = 3;
/// Number of looks after which a thread is sent a signal to report its stack's range.
const PROBE_AFTER: u32 = 10;
/// Time between two looks for new stacks; a handler takes microseconds.
const LOOK: Duration = Duration::from_millis(1);

impl Session<'_> {
    /// Writes the stack and the state of each thread.
    pub(super) fn dump(&mut self, cx: &mut AgentCx) {
        let program = &self.agent.program;
        // If the stop command arrives before the first round (drain of the ring buffers), no CLR is
        // known yet that can be queried for names.
        self.announce();
        program.natives.refresh();
        let until = proc::now_ns().saturating_add(BOUND_NS);
        let mut found: BTreeMap<u32, ThreadActivity> = BTreeMap::new();
        let mut asked: BTreeMap<u32, u8> = BTreeMap::new();
        let mut looks = 0;
        loop {
            // Before any signal, since a signal wakes a waiting thread.
            proc::thread_ids(&mut self.ids);
            for &tid in self.ids.iter().filter(|tid| **tid != self.tid) {
                found
                    .entry(tid)
                    .or_insert_with(|| proc::thread_activity(tid).unwrap_or_default());
            }
            // A running thread may soon wait, and then needs no signal.
            let probes = if looks < PROBE_AFTER {
                StackProbes::Waiting
            } else {
                StackProbes::All
            };
            looks += 1;
            program.threads.scan(self.tid, &mut self.ids, probes);
            program.threads.take_stack_probes(&mut self.reader);
            for &tid in found.keys() {
                let thread = program.threads.number_of(tid);
                let Some((thread, slot)) = thread.zip(program.threads.armed_slot_of(tid)) else {
                    continue;
                };
                let times = asked.entry(tid).or_default();
                if !self.walker.has_stack_of(thread)
                    && *times < MAX_PROBES
                    && self.reader.signal_once(slot)
                {
                    *times += 1;
                }
            }
            self.agent.waker.wait(&[self.reader.wake_fd()], Some(LOOK));
            self.drain(cx, false);
            let is_waited_for = |tid: &u32| {
                // A thread that has ended meanwhile has no number any more.
                let thread = program.threads.number_of(*tid);
                thread.is_some_and(|thread| !self.walker.has_stack_of(thread))
            };
            if !found.keys().any(is_waited_for) || proc::now_ns() >= until {
                break;
            }
        }
        for (tid, state) in found {
            let Some(thread) = program.threads.number_of(tid) else {
                continue;
            };
            let missing = if self.walker.has_stack_of(thread) {
                Cow::Borrowed("")
            } else {
                self.missing_stack_reason(tid, &state)
            };
            self.recorder.record(&Record::ThreadState {
                thread,
                time_ns: proc::now_ns(),
                state: state.code,
                syscall: state.syscall,
                wait: Cow::Owned(state.wait),
                missing,
            });
        }
    }

    /// Reason why a thread has no stack.
    fn missing_stack_reason(&self, tid: u32, state: &ThreadActivity) -> Cow<'static, str> {
        let threads = &self.agent.program.threads;
        let sampler = threads.sampler();
        let held = sampler
            .zip(threads.slot_of(tid))
            .and_then(|(sampler, slot)| sampler.held(slot));
        let blocks = sampler.is_some_and(|sampler| threads.blocks(tid, sampler));
        Cow::Borrowed(match state.code {
            b'D' => "it is in the kernel, where no signal reaches it",
            b'T' | b't' => "it is stopped",
            _ if blocks => "it blocks our signal",
            _ if let Some(held) = held => held.reason().name(),
            _ => "it did not answer within half a second",
        })
    }
}
