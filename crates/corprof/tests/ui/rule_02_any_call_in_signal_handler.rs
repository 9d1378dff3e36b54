//! Must not compile (rule 2): no CLR call in a signal handler.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn handler(runtime: &Runtime) {
    runtime.in_signal_handler(|cx| {
        let _ = cx.info().get_function_from_ip(cx, 0x1000);
    });
}
fn main() {}
