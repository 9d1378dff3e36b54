//! Must not compile (rule 2): DoStackSnapshot needs its flag, which Initialize sets.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn enter<'rt>(cx: &mut Cx<'rt, Async>) {
    let proof = cx.info().enable_stack_snapshots(cx, EventMaskLow::empty(), EventMaskHigh::empty());
    let _ = cx.info().walk_current(cx, &proof.unwrap(), |_, _| {
        std::ops::ControlFlow::<()>::Continue(())
    });
}
fn main() {}
