//! Must not compile (rule 1): only corprof creates a context token.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn forge(runtime: &Runtime) {
    let _ = unsafe { Cx::<Callback>::assert(runtime) };
}
fn main() {}
