//! Rule 32: its thread is the runtime's, and suspends nothing.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::*;

pub fn rejit<'rt>(cx: &mut Cx<'rt, RejitThread>) {
    let _ = cx.info().suspend_runtime(cx);
}
fn main() {}
