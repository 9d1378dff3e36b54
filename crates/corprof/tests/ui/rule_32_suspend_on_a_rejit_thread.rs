//! Must not compile (rule 32): the ReJIT thread is a thread of the runtime and cannot suspend it.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn rejit<'rt>(cx: &mut Cx<'rt, RejitThread>) {
    let _ = cx.info().suspend_runtime(cx);
}
fn main() {}
