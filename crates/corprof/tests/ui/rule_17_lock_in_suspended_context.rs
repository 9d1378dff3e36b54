//! Rule 17: no AgentLock in a frame callback of a walk during a suspension.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::*;

pub fn sample<'rt>(suspension: &mut Suspension<'_, 'rt>, lock: &AgentLock<u32>) {
    *lock.lock(suspension.cx()) += 1;
}
fn main() {}
