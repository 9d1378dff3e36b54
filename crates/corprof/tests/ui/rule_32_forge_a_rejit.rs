//! Rule 32: who was not let by the runtime has no thread for requests.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::*;

pub fn spawn(runtime: Runtime) {
    let rejit = Rejit { runtime };
    let _ = rejit.spawn("rejit", |_| ());
}
fn main() {}
