//! Must not compile (rule 20): no lock is held during a call that can trigger a GC.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn callback<'rt>(cx: &mut Cx<'rt, Callback>, lock: &AgentLock<u32>) {
    let guard = lock.lock(cx);
    let _ = cx.info().enum_modules(cx);
    drop(guard);
}
fn main() {}
