//! Must not compile (rule 4): an agent thread's token cannot move to another thread.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub fn share(runtime: Runtime) {
    let _ = spawn_agent_thread("agent", move |agent| {
        std::thread::scope(|scope| {
            scope.spawn(|| agent.enter(&runtime, |_| ()));
        });
    });
}
fn main() {}
