//! The walker `snapshot`: the current thread, synchronously, inside a callback.
//!
//! It is for the stacks of events. There is nothing to time with it: a thread that is interrupted
//! at any instruction cannot be walked by the runtime (docs/walkers.md says what happens).

use std::ops::ControlFlow;

use corprof::context::Context;
use corprof::{Cx, SnapshotFrame, StackSnapshots, WalkError};
use stackwalk::{ADDRESS, CodeMap};

use super::merge;
use crate::model::{EndCode, NATIVE_RUN};

/// Walks the calling thread by `DoStackSnapshot` into `words`, in the shape of every walker: leaf
/// first, at most `max_depth` words. For a callback, where the runtime needs no seed (rule 7 of
/// the articles). Dynamic methods and stubs are left out by the runtime; a run of unmanaged frames
/// is one word ([`NATIVE_RUN`]).
///
/// # Errors
/// See [`WalkError`]; `words` then holds what was walked.
pub fn snapshot_here<'rt, C: Context>(
    map: &CodeMap,
    cx: &mut Cx<'rt, C>,
    proof: &StackSnapshots,
    max_depth: usize,
    words: &mut Vec<u64>,
) -> Result<EndCode, WalkError> {
    words.clear();
    let info = cx.info();
    let walked = info.walk_current(cx, proof, |_, frame| {
        if words.len() >= max_depth {
            return ControlFlow::Break(());
        }
        words.push(match frame {
            SnapshotFrame::Managed { ip, .. } => merge::word_of(map, ip as u64),
            SnapshotFrame::UnmanagedRun { ip } => ip as u64 & ADDRESS | NATIVE_RUN,
        });
        ControlFlow::Continue(())
    })?;
    Ok(match walked {
        ControlFlow::Continue(()) => EndCode::ROOT_END,
        ControlFlow::Break(()) => EndCode::TRUNCATED_END,
    })
}
