//! Rule 32: there is one thread for requests.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::*;

pub fn spawn(rejit: Rejit) {
    let _ = rejit.spawn("one", |_| ());
    let _ = rejit.spawn("two", |_| ());
}
fn main() {}
