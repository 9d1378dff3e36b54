//! Must not compile (rule 1): no call after a detach.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn detached<'rt>(cx: &mut Cx<'rt, Detached>) {
    let _ = cx.info().get_event_mask2(cx);
}
fn main() {}
