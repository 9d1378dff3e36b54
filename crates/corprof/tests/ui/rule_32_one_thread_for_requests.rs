//! Rule 32: a runtime has one thread for ReJIT requests.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::*;

pub fn spawn(rejit: Rejit) {
    let _ = rejit.spawn("one", |_| ());
    let _ = rejit.spawn("two", |_| ());
}
fn main() {}
