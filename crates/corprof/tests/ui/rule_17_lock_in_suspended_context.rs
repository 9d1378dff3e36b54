//! Must not compile (rule 17): no AgentLock in a frame callback of a walk during a suspension.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn sample<'rt>(suspension: &mut Suspension<'_, 'rt>, lock: &AgentLock<u32>) {
    *lock.lock(suspension.cx()) += 1;
}
fn main() {}
