//! Rule 33: most callbacks are in preemptive mode, where a collection may be under way.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::info::ObjectHandle;
use corprof::*;

pub fn callback<'rt>(cx: &mut Cx<'rt, Callback>, handle: ObjectHandle) {
    let _ = cx.info().destroy_handle(cx, handle);
}
fn main() {}
