//! Must not compile (rule 17): no suspension while an AgentLock is held.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn sample<'rt>(cx: &mut Cx<'rt, AgentThread>, lock: &AgentLock<u32>) {
    let guard = lock.lock(cx);
    let _ = cx.info().suspend_runtime(cx);
    drop(guard);
}
fn main() {}
