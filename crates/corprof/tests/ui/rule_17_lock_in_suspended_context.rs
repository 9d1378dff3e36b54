//! Rule 17: no own lock is taken in a frame callback of a suspended walk.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::*;

pub fn sample<'rt>(suspension: &mut Suspension<'_, 'rt>, lock: &AgentLock<u32>) {
    *lock.lock(suspension.cx()) += 1;
}
fn main() {}
