//! Must not compile (rule 6): inside a GC callback nothing may trigger a GC.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn on_gc<'rt>(cx: &mut Cx<'rt, NoTrigger>) {
    let _ = cx.info().enum_modules(cx);
}
fn main() {}
