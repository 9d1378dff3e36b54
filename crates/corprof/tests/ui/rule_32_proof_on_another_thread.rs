//! Rule 32: the token of the ReJIT thread cannot move to another thread.
#![allow(unused_imports, reason = "one head for all cases")]
use corprof::context::*;
use corprof::*;

pub fn share(rejit: Rejit) {
    let _ = rejit.spawn("rejit", |cx| {
        std::thread::scope(|scope| {
            scope.spawn(|| cx.enter(|_| ()));
        });
    });
}
fn main() {}
