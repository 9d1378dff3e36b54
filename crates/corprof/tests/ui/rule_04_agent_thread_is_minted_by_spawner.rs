//! Must not compile (rule 4): only the spawner creates an agent thread's token.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn callback<'rt>(cx: &mut Cx<'rt, Callback>, agent: fn(&mut Cx<'rt, AgentThread>)) {
    agent(cx);
}
fn main() {}
