//! Must not compile (rule 3): hooks are set in Initialize only.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn attach<'rt, H: elt::SlowHooks>(cx: &mut Cx<'rt, Attach>, hooks: H) {
    let _ = cx.info().set_slow_hooks(cx, hooks);
}
fn main() {}
