//! Rule 18: only a thread that never ran managed code suspends.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::*;

pub fn callback<'rt>(cx: &mut Cx<'rt, Callback>) {
    let _ = cx.info().suspend_runtime(cx);
}
fn main() {}
