//! Rule 1 and 3: a fast-path hook is asynchronous.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::*;

pub fn enter<'rt>(cx: &mut Cx<'rt, Async>, thread: ThreadId<'rt>) {
    let _ = cx.info().get_thread_info(cx, thread);
}
fn main() {}
