//! Must not compile (rule 20): no runtime is entered while a lock is held.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn agent(agent: &mut AgentCx, runtime: &Runtime, lock: &AgentLock<u32>) {
    let guard = lock.lock_outside(agent);
    agent.enter(runtime, |_| ());
    drop(guard);
}
fn main() {}
