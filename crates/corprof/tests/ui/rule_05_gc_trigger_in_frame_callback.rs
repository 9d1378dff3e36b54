//! Must not compile (rule 5): a frame callback never triggers a GC.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn callback<'rt>(cx: &mut Cx<'rt, Callback>, proof: &StackSnapshots) {
    let _ = cx.info().walk_current(cx, proof, |cx, _| {
        let _ = cx.info().enum_modules(cx);
        std::ops::ControlFlow::<()>::Continue(())
    });
}
fn main() {}
