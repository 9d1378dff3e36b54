//! Must not compile (rule 1): a context token cannot move to another thread.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn callback<'rt>(cx: &mut Cx<'rt, Callback>, thread: ThreadId<'rt>) {
    std::thread::scope(|scope| {
        scope.spawn(|| cx.info().get_thread_info(cx, thread));
    });
}
fn main() {}
