//! Rule 17: no suspension while an AgentLock is held.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::*;

pub fn sample<'rt>(cx: &mut Cx<'rt, AgentThread>, lock: &AgentLock<u32>) {
    let guard = lock.lock(cx);
    let _ = cx.info().suspend_runtime(cx);
    drop(guard);
}
fn main() {}
