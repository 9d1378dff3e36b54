//! Must not compile (rule 27): an id of one CLR is not passed to another.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn agent(agent: &mut AgentCx, a: &Runtime, b: &Runtime, key: FunctionKey) {
    let mut found = None;
    agent.enter(a, |cx| found = cx.info().id(key));
    agent.enter(b, |cx| {
        let _ = found.map(|function| cx.info().get_function_info2(cx, function));
    });
}
fn main() {}
