//! Must not compile (rule 11): an object id does not outlive its callback.
#![allow(unused_imports, reason = "all cases begin alike")]
use corprof::context::*;
use corprof::*;

pub struct Profiler {
    last: std::sync::Mutex<usize>,
}
pub fn later(_: ObjectId<'static>) {}
impl Callbacks for Profiler {
    fn object_allocated<'rt>(
        &self,
        _: &mut Cx<'rt, Cooperative>,
        object: ObjectId<'rt>,
        _: ClassId<'rt>,
    ) -> Result<()> {
        later(object);
        Ok(())
    }
}
fn main() {}
