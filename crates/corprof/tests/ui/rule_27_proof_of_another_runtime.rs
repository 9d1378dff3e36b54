//! Must not compile (rule 27): a context token of one CLR permits no call into another.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn callback<'a, 'b>(cx: &mut Cx<'a, Callback>, other: Info<'b>) {
    let _ = other.get_runtime_information(cx);
}
fn main() {}
