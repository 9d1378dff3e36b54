//! Must not compile (rule 32): no ReJIT request on a thread of the program.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn callback<'rt>(cx: &mut Cx<'rt, Callback>, module: ModuleId<'rt>) {
    let _ = cx.info().request_rejit(cx, &[(module, Token(0x0600_0001))]);
}
fn main() {}
