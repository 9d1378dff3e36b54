//! Rule 33: no handle is freed on a native thread, which a collection does not stop.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::info::ObjectHandle;
use corprof::*;

pub fn agent<'rt>(cx: &mut Cx<'rt, AgentThread>, handle: ObjectHandle) {
    let _ = cx.info().destroy_handle(cx, handle);
}
fn main() {}
