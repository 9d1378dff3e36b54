//! Must not compile (rule 1): a context token does not outlive its callback.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub struct Kept<'rt>(Option<Cx<'rt, AgentThread>>);
pub fn keep(runtime: Runtime) {
    let _ = spawn_agent_thread("agent", move |agent| {
        let mut kept: Option<&mut Cx<'_, AgentThread>> = None;
        agent.enter(&runtime, |cx| kept = Some(cx));
        let _ = kept.map(|cx| cx.info().index());
    });
}
fn main() {}
