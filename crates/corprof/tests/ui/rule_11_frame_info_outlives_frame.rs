//! Must not compile (rule 11): a COR_PRF_FRAME_INFO cannot be stored.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn callback<'rt>(cx: &mut Cx<'rt, Callback>, proof: &StackSnapshots) {
    let mut kept = None;
    let _ = cx.info().walk_current(cx, proof, |_, frame| {
        if let SnapshotFrame::Managed { info, .. } = frame {
            kept = Some(info);
        }
        std::ops::ControlFlow::<()>::Continue(())
    });
    let _ = kept;
}
fn main() {}
