//! Must not compile (rule 32): no thread for ReJIT requests without enable_rejit.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn spawn(runtime: Runtime) {
    let rejit = Rejit { runtime };
    let _ = rejit.spawn("rejit", |_| ());
}
fn main() {}
