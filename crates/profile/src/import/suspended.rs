//! Names of continuation objects: suspended methods of runtime async (.NET 11 on).
//!
//! The runtime makes a class for them as it compiles a method, without a name. The method that
//! suspends allocates the object through one method of the class library, so the allocation's stack
//! has the method's name, which becomes the object's. Invariants: other details do not change; nor
//! does the name if that stack is unknown.

use crate::builder::Builder;
use crate::model::{Detail, DetailId, Event, FrameKind, StackId, StringId};

/// Names shown for a class without a name, and for its base class.
const NAMELESS: [&str; 2] = ["?", "System.Runtime.CompilerServices.Continuation"];
/// Prefix of the names of the methods that create them.
const MAKES: &str = "System.Runtime.CompilerServices.AsyncHelpers.AllocContinuation";
/// Maximum distance from the leaf, in frames, at which such a method is looked for.
const MAX_ALLOCATOR: usize = 8;

/// Returns the subject of a sample with this stack.
pub(super) fn detail(builder: &mut Builder, id: DetailId, stack: StackId) -> DetailId {
    let about = builder.profile.detail(id);
    let is_object = matches!(about.event, Event::Alloc | Event::Live);
    if !is_object || !NAMELESS.contains(&builder.profile.string(about.name)) {
        return id;
    }
    let Some(name) = method(builder, stack) else {
        return id;
    };
    let name = builder.string(&format!("[suspended {name}]"));
    builder.detail(Detail { name, ..about })
}

/// Returns the name of the method for which a continuation object is created.
fn method(builder: &Builder, stack: StackId) -> Option<&str> {
    let profile = &builder.profile;
    let parent = |id: &StackId| profile.stack(*id).parent;
    let frames = std::iter::successors(Some(stack), parent);
    let mut frames = frames.map(|id| profile.frame(profile.stack(id).frame));
    let makes = |name: StringId| profile.string(name).starts_with(MAKES);
    let made = frames.by_ref().take(MAX_ALLOCATOR);
    made.map(|frame| frame.name).find(|name| makes(*name))?;
    let own = frames.find(|frame| !makes(frame.name))?;
    (own.kind == FrameKind::Managed).then(|| profile.string(own.name))
}
