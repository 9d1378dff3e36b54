//! Must not compile (rule 32): the token of the ReJIT thread cannot move to another thread.
#![allow(unused_imports, reason = "all cases begin alike")]
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
