//! Must not compile (rule 33): no handle is freed in preemptive mode, beside collections.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::info::ObjectHandle;
use corprof::*;

pub fn callback<'rt>(cx: &mut Cx<'rt, Callback>, handle: ObjectHandle) {
    let _ = cx.info().destroy_handle(cx, handle);
}
fn main() {}
