//! Must not compile (rule 6): no call may move the objects of a callback.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn allocated<'rt>(cx: &mut Cx<'rt, Cooperative>, _object: ObjectId<'rt>) {
    let _ = cx.info().enum_jited_functions2(cx);
}
fn main() {}
