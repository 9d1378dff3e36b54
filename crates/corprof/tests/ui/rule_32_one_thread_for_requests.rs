//! Must not compile (rule 32): a runtime has one thread for ReJIT requests.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn spawn(rejit: Rejit) {
    let _ = rejit.spawn("one", |_| ());
    let _ = rejit.spawn("two", |_| ());
}
fn main() {}
