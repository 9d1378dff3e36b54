//! Rule 33: no handle is freed in preemptive mode, where a collection may be running.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::info::ObjectHandle;
use corprof::*;

pub fn callback<'rt>(cx: &mut Cx<'rt, Callback>, handle: ObjectHandle) {
    let _ = cx.info().destroy_handle(cx, handle);
}
fn main() {}
