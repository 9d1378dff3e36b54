//! Must not compile (rule 15 and 16): while suspended, no call that takes a lock.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn sample<'rt>(cx: &mut Cx<'rt, AgentThread>, module: ModuleId<'rt>) {
    let mut suspension = cx.info().suspend_runtime(cx).unwrap();
    let cx = suspension.cx();
    let _ = cx.info().get_module_meta_data(cx, module);
}
fn main() {}
