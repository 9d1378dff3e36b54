//! Must not compile (rule 32): no ReJIT request on an agent thread, which must stay native.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn agent<'rt>(cx: &mut Cx<'rt, AgentThread>, module: ModuleId<'rt>) {
    let _ = cx.info().request_revert(cx, &[(module, Token(0x0600_0001))]);
}
fn main() {}
