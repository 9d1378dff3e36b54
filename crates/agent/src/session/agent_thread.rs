//! The agent thread: one session after the other, and sleep in between.
//!
//! One per process. Without a session it wakes when a CLR ends, or when the callbacks have queued so much
//! that it should be taken in: nothing is sampled, no timer runs, no CLR is called.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};

use corprof::AgentCx;

use super::{Begun, Parts, Session, begin};
use crate::base::proc;
use crate::record::{Channel, Recorder};

/// Runs the session that has begun, then stays for the process's life.
pub fn main(parts: &'static Parts, begun: Begun, channel: Channel, cx: &mut AgentCx) {
    let mut recorder = Recorder::default();
    // Whatever goes wrong in there, the program goes on and nobody waits for us.
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| -> Infallible {
        Session::new(parts, begun, channel, &mut recorder).run(cx);
        loop {
            parts.wake.wait([-1, -1], None);
            idle_round(parts, &mut recorder);
        }
    }));
    // Dropping a panic's payload may panic again.
    std::mem::forget(panic);
    let _again = catch_unwind(AssertUnwindSafe(|| {
        recorder
            .note("Sidewalk's own thread failed here: the rest of this process was not recorded");
        recorder.close();
    }));
}

/// What is to be done without a session: code is taken in, so that the queue stays short, and CLRs that
/// end are let go.
pub(super) fn idle_round(parts: &Parts, recorder: &mut Recorder) {
    let now_ns = proc::now_ns();
    recorder.absorb_code(&parts.target);
    recorder.forget_removed(now_ns);
    parts.target.code.map().reclaim();
    if let Some(ending) = parts.registry.ending(|| {}) {
        for number in ending.numbers {
            parts.let_go(number);
        }
    }
}

/// The agent thread has ended, by itself or by a fault: nothing is sampled any more, and nobody waits.
pub fn ended(parts: &Parts) {
    begin::stop(parts);
    parts.phases.leave();
    parts.registry.agent_thread_ended();
}
