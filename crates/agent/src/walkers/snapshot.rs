//! The walker `snapshot`: walks the current thread by `DoStackSnapshot`, inside a callback.
//!
//! It takes the stacks of events only. It cannot take time-based samples, as the runtime cannot
//! walk a thread that was interrupted at an arbitrary instruction (docs/walkers.md).

use std::ops::ControlFlow;

use corprof::context::Context;
use corprof::{Cx, SnapshotFrame, StackSnapshots, WalkError};
use stackwalk::{ADDRESS, CodeMap};

use super::merge;
use crate::model::{EndCode, NATIVE_RUN};

/// Walks the calling thread by `DoStackSnapshot` into `words`, leaf first, at most `max_depth`
/// words. For a callback, where the runtime needs no seed (rule 7 of the articles). The runtime
/// leaves out dynamic methods and stubs. A run of unmanaged frames is one word ([`NATIVE_RUN`]).
///
/// # Errors
/// See [`WalkError`]. `words` then contains the frames found so far.
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
