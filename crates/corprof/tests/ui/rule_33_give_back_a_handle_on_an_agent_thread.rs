//! Must not compile (rule 33): no handle is freed on a thread that collections do not stop.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::info::ObjectHandle;
use corprof::*;

pub fn agent<'rt>(cx: &mut Cx<'rt, AgentThread>, handle: ObjectHandle) {
    let _ = cx.info().destroy_handle(cx, handle);
}
fn main() {}
