//! Names for objects of suspended methods of runtime async (.NET 11 on).
//!
//! The runtime makes their classes as it compiles a method, and these have no name of their own.
//! Such an object is made by one method of the class library, which the method that is about to be
//! suspended calls: so the stack of the allocation has its name, which says more. Invariants: other
//! details stay; where that stack is not seen, the name stays too.

use crate::builder::Builder;
use crate::model::{Detail, DetailId, Event, FrameKind, StackId, StringId};

/// A class that has no name, and what such a class derives from.
const NAMELESS: [&str; 2] = ["?", "System.Runtime.CompilerServices.Continuation"];
/// Begins the names of the methods that make them.
const MAKES: &str = "System.Runtime.CompilerServices.AsyncHelpers.AllocContinuation";
/// How far from the leaf that is looked for, frames: it calls the allocator.
const MAX_ALLOCATOR: usize = 8;

/// The subject of a sample with this stack.
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

/// The name of the method for which an object is made.
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
