//! Must not compile (rule 17): no lock in a signal handler.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn handler(runtime: &Runtime, lock: &AgentLock<u32>) {
    runtime.in_signal_handler(|cx| *lock.lock(cx) += 1);
}
fn main() {}
