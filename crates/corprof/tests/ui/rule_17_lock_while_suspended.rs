//! Must not compile (rule 17): no AgentLock is taken while the runtime is suspended.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn sample<'rt>(cx: &mut Cx<'rt, AgentThread>, lock: &AgentLock<u32>) {
    let suspension = cx.info().suspend_runtime(cx).unwrap();
    *lock.lock(cx) += 1;
    drop(suspension);
}
fn main() {}
