//! Must not compile (rule 1 and 3): a fast-path hook permits asynchronous calls only.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn enter<'rt>(cx: &mut Cx<'rt, Async>, thread: ThreadId<'rt>) {
    let _ = cx.info().get_thread_info(cx, thread);
}
fn main() {}
