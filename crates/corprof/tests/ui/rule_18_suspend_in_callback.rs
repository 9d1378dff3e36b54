//! Must not compile (rule 18): only a thread that never ran managed code suspends.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn callback<'rt>(cx: &mut Cx<'rt, Callback>) {
    let _ = cx.info().suspend_runtime(cx);
}
fn main() {}
