//! Must not compile (rule 4): on the profiler's own thread the runtime cannot load a class.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn agent<'rt>(cx: &mut Cx<'rt, AgentThread>, module: ModuleId<'rt>) {
    let _ = cx.info().get_class_from_token(cx, module, Token(0x0200_0002));
}
fn main() {}
