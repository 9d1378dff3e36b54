//! Must not compile (rule 11): an id cannot be stored; a key can.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub struct Profiler {
    last: std::sync::Mutex<Option<FunctionId<'static>>>,
}
impl Callbacks for Profiler {
    fn jit_compilation_started<'rt>(
        &self,
        _: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        _: bool,
    ) -> Result<()> {
        *self.last.lock().unwrap() = Some(function);
        Ok(())
    }
}
fn main() {}
