//! Rule 33: the runtime may collect while a thread that it does not stop gives a handle back.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::info::ObjectHandle;
use corprof::*;

pub fn agent<'rt>(cx: &mut Cx<'rt, AgentThread>, handle: ObjectHandle) {
    let _ = cx.info().destroy_handle(cx, handle);
}
fn main() {}
