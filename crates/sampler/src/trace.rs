//! Traces: walks that the reader requests of a thread and waits for.
//!
//! A sample goes through the ring buffer and is read some time later. A trace is needed at once,
//! with the stack pointer of each frame, while the runtime is suspended (walker `seeded` and the
//! test oracle). The reader makes the request; the thread's handler writes the answer into a buffer
//! of the slot. Invariant: a slot has one trace at a time, and the state says which side owns the
//! buffer.
//!
//! ```text
//!   IDLE ──ask──▶ ASKED ──handler──▶ WRITING ──handler──▶ DONE ──ask──▶ ASKED …
//!    ▲              │ give up
//!    └──────────────┘
//! ```
//!
//! | write | order | pairs with | so that |
//! | --- | --- | --- | --- |
//! | ASKED by the reader | Release | the handler's Acquire | it has read the trace before |
//! | DONE by the handler | Release | the reader's Acquire | the frames are there before they are read |

use core::sync::atomic::Ordering;

use crate::counters::DiscardReason;
use crate::global::{GLOBAL, Global, SignalRequest};
use crate::handler;
use crate::protocol::{CLOSING, LIVE};
use crate::reader::Reader;
use crate::sampler::{self, SlotId};
use crate::slot::Slot;
use crate::sys;
use crate::{Error, config};

const IDLE: u8 = 0;
const ASKED: u8 = 1;
const WRITING: u8 = 2;
const DONE: u8 = 3;

/// A trace, borrowed until the next request to the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceView<'a> {
    /// Time of the trace, CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// [`crate::WalkResult::end`].
    pub end: u8,
    /// The frames that the walker wrote, leaf first, three words each.
    pub frames: &'a [[u64; 3]],
}

/// Why there is no trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceRefused {
    /// The thread has not answered (yet): it blocks the signal, or has ended.
    NoAnswer,
    /// Its handler refused the walk.
    Discarded(DiscardReason),
}

impl TraceRefused {
    /// Returns the name for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoAnswer => "no answer in time",
            Self::Discarded(reason) => reason.name(),
        }
    }
}

impl Reader {
    /// Requests a trace of a thread; [`Reader::await_trace`] waits for it. Needs
    /// [`config::Config::trace`].
    ///
    /// # Errors
    /// [`Error::StaleSlot`] also if the slot's handler is still writing an earlier trace.
    pub fn request_trace(&mut self, id: SlotId) -> Result<(), Error> {
        let slot = id.slot().ok_or(Error::StaleSlot)?;
        let (generation, flags) = slot.gate.peek();
        if generation != id.generation()
            || flags & (LIVE | CLOSING) != LIVE
            || GLOBAL.trace.load(Ordering::Relaxed) == 0
            || !GLOBAL.running()
        {
            return Err(Error::StaleSlot);
        }
        // Release: pairs with the Acquire in `answer`.
        let asked = slot
            .trace_state
            .fetch_update(Ordering::Release, Ordering::Relaxed, |state| {
                matches!(state, IDLE | DONE).then_some(ASKED)
            });
        asked.map_err(|_| Error::StaleSlot)?;
        // A pending signal of an earlier request answers this one too.
        let unseen = &slot.reader.trace_misses;
        if slot.trace_sent.swap(true, Ordering::Relaxed)
            && !sampler::is_lost(slot, unseen, sampler::LOST_REQUESTS)
        {
            return Ok(());
        }
        sampler::send(slot, id, SignalRequest::Trace).inspect_err(|_| {
            slot.trace_sent.store(false, Ordering::Relaxed);
            cancel_request(slot);
        })
    }

    /// Waits for the answer to [`Reader::request_trace`] until `deadline_ns` (CLOCK_MONOTONIC).
    /// After that the request is withdrawn. The frames are borrowed until the next request to the
    /// slot.
    ///
    /// # Errors
    /// See [`TraceRefused`].
    pub fn await_trace(&self, id: SlotId, deadline_ns: u64) -> Result<TraceView<'_>, TraceRefused> {
        let slot = id.slot().ok_or(TraceRefused::NoAnswer)?;
        loop {
            let answered = GLOBAL.traced.load(Ordering::Acquire);
            // Acquire: pairs with the Release in `answer`.
            match slot.trace_state.load(Ordering::Acquire) {
                DONE => return view(slot),
                IDLE => return Err(TraceRefused::NoAnswer),
                _ => {}
            }
            let left = deadline_ns.saturating_sub(sys::monotonic_ns());
            if left == 0 {
                cancel_request(slot);
                return Err(TraceRefused::NoAnswer);
            }
            sys::futex_wait(&GLOBAL.traced, answered, left);
        }
    }
}

/// Withdraws the request, unless the handler is writing the trace.
fn cancel_request(slot: &Slot) {
    let _at_it =
        slot.trace_state
            .compare_exchange(ASKED, IDLE, Ordering::Relaxed, Ordering::Relaxed);
}

fn view<'a>(slot: &'static Slot) -> Result<TraceView<'a>, TraceRefused> {
    let refused = slot.trace_refused.load(Ordering::Relaxed);
    if let Some(index) = refused.checked_sub(1) {
        let reason = DiscardReason::ALL
            .iter()
            .find(|reason| **reason as u8 == index);
        return Err(reason.map_or(TraceRefused::NoAnswer, |reason| {
            TraceRefused::Discarded(*reason)
        }));
    }
    let max_depth = slot.max_depth.load(Ordering::Relaxed);
    let depth = slot.trace_depth.load(Ordering::Relaxed).min(max_depth);
    // SAFETY: the block was made with room for `max_depth` frames of a trace (it answered one);
    // blocks of slots that were sampled stay mapped, and the handler writes there only after the
    // one reader has asked again.
    let frames = unsafe { core::slice::from_raw_parts(slot.trace_buffer(), depth as usize) };
    Ok(TraceView {
        time_ns: slot.trace_time.load(Ordering::Relaxed),
        end: slot.trace_end.load(Ordering::Relaxed),
        frames,
    })
}

/// Writes the trace if one was requested. Handler.
///
/// # Safety
/// `context` is the context of the signal being handled; the caller is inside the slot's gate.
pub(crate) unsafe fn answer(
    global: &Global,
    slot: &Slot,
    context: *const libc::ucontext_t,
    now: u64,
    known: bool,
) {
    if slot.trace_state.load(Ordering::Relaxed) != ASKED {
        return;
    }
    // Acquire: pairs with the Release in `request_trace`.
    let taken =
        slot.trace_state
            .compare_exchange(ASKED, WRITING, Ordering::Acquire, Ordering::Relaxed);
    if taken.is_err() {
        return;
    }
    let walk = global.trace.load(Ordering::Relaxed);
    let max_depth = slot.max_depth.load(Ordering::Relaxed) as usize;
    let outcome = if known {
        let out = slot.trace_buffer().cast::<u64>();
        // SAFETY: the caller's promise; the block has room for `max_depth` frames of a trace, as
        // one was asked for; `start` stored a WalkFn in `trace` before it set RUNNING.
        unsafe { handler::run_walk(global, slot, context, walk, out, max_depth) }
    } else {
        Err(DiscardReason::NoStackBounds)
    };
    let outcome = outcome.and_then(|result: config::WalkResult| match result.reason {
        0 => Ok(result),
        _ => Err(DiscardReason::Walker),
    });
    slot.trace_refused.store(
        outcome.err().map_or(0, |reason| reason as u8 + 1),
        Ordering::Relaxed,
    );
    if let Ok(result) = outcome {
        slot.trace_depth.store(result.depth, Ordering::Relaxed);
        slot.trace_end.store(result.end, Ordering::Relaxed);
    }
    slot.trace_time.store(now, Ordering::Relaxed);
    // Release: pairs with the Acquire in `await_trace`.
    slot.trace_state.store(DONE, Ordering::Release);
    global.traced.fetch_add(1, Ordering::Release);
    sys::futex_wake(&global.traced);
}
