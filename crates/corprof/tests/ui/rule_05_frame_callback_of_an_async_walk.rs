//! Must not compile (rule 5): a frame callback is synchronous only if the walk is.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn enter<'rt>(cx: &mut Cx<'rt, Async>, proof: &StackSnapshots, thread: ThreadId<'rt>) {
    let _ = cx.info().walk_current(cx, proof, |cx, _| {
        let _ = cx.info().get_thread_info(cx, thread);
        std::ops::ControlFlow::<()>::Continue(())
    });
}
fn main() {}
