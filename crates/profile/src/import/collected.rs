//! `[GC]` frames for program threads that collect garbage, without the runtime's symbols.
//!
//! A program thread that needs a collection runs it itself, in libcoreclr code without symbols. The
//! recording has the intervals in which each thread did ([`recording::Record::Collected`]). In such
//! an interval the frames between the last managed frame and the leaf belong to the GC, and a label
//! frame is inserted between the two. Invariants: samples, values and existing frames do not
//! change; nor does a stack without runtime code below its last managed frame.

use hashbrown::HashMap;

use crate::builder::Builder;
use crate::model::{FrameKind, StackId, ThreadId};
use crate::ops;

/// An interval in which a thread collected, in CLOCK_MONOTONIC nanoseconds. The end is exclusive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct CollectionSpan {
    pub(super) thread: ThreadId,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
}

/// Inserts the label frame into stacks of samples taken while their thread collected.
pub(super) fn mark(builder: &mut Builder, mut times: Vec<CollectionSpan>) {
    if times.is_empty() {
        return;
    }
    times.sort_unstable();
    let is_in_one = |thread: ThreadId, time_ns: u64| {
        let next = times.partition_point(|time| (time.thread, time.from_ns) <= (thread, time_ns));
        let last = next.checked_sub(1).map(|at| times[at]);
        last.is_some_and(|time| time.thread == thread && time_ns < time.to_ns)
    };
    let mut samples = std::mem::take(&mut builder.profile.samples);
    let mut marked = HashMap::new();
    for sample in &mut samples {
        if is_in_one(sample.thread, sample.time_ns) {
            for stack in std::iter::once(&mut sample.stack).chain(&mut sample.logical) {
                *stack = *marked
                    .entry(*stack)
                    .or_insert_with(|| with_mark(builder, *stack));
            }
        }
    }
    builder.profile.samples = samples;
}

/// Returns the stack with the label frame between the last managed frame and the runtime's frames.
fn with_mark(builder: &mut Builder, leaf: StackId) -> StackId {
    // From the leaf on, up to the last managed frame.
    let mut path = Vec::new();
    let mut at = Some(leaf);
    while let Some(id) = at {
        let stack = builder.profile.stacks[id.0 as usize];
        match builder.profile.frame(stack.frame).kind {
            FrameKind::Native | FrameKind::Runtime | FrameKind::Stub => path.push(stack.frame),
            _ => break,
        }
        at = stack.parent;
    }
    let of_runtime = |id| builder.profile.frame(id).kind == FrameKind::Runtime;
    let Some(first) = path.iter().rposition(|id| of_runtime(*id)) else {
        return leaf;
    };
    let mark = ops::mark(builder, ops::GC_FRAME, Some(path[first]));
    path.insert(first + 1, mark);
    for frame in path.into_iter().rev() {
        at = Some(builder.stack(at, frame));
    }
    at.unwrap_or(leaf)
}
