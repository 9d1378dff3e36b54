//! Rule 32: no thread for ReJIT requests without enable_rejit.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::*;

pub fn spawn(runtime: Runtime) {
    let rejit = Rejit { runtime };
    let _ = rejit.spawn("rejit", |_| ());
}
fn main() {}
