//! Folding of compiler-made frames in logical stacks, so that they read as the source does.
//!
//! Until an async method `Buy` first awaits, its stack is: the caller; `Buy` itself, which only
//! creates the state machine; `AsyncMethodBuilderCore.Start`; and the state machine's `MoveNext`,
//! which has the source name `Buy` again. A method of runtime async is called by a runtime stub of
//! the same name, which makes a task of its result. Both are folded into one frame, so that a call
//! tree has one node for the method, suspended or not. Invariants: physical stacks do not change; a
//! stack keeps at least one frame; the remaining frames keep their order.

use hashbrown::HashMap;

use crate::builder::Builder;
use crate::model::{Frame, FrameId, FrameKind, Location, StackId};
use crate::names::AsyncRole;

/// Folds the first runs of async methods in the logical stack of each sample. A sample whose stack
/// this changes gets a logical stack, even if the recording has no resumed method, so the same code
/// looks the same in every recording.
pub(super) fn fold(builder: &mut Builder, roles: &HashMap<FrameId, AsyncRole>) {
    let has_logical = builder.profile.samples.iter().any(|s| s.logical.is_some());
    let is_async = |role: &AsyncRole| matches!(role, AsyncRole::Start | AsyncRole::Body);
    if !has_logical && !roles.values().any(is_async) {
        return;
    }
    let mut folded: Vec<Option<StackId>> = Vec::with_capacity(builder.profile.stacks.len());
    // Folding appends stacks, which need no folding.
    for at in 0..builder.profile.stacks.len() {
        let stack = builder.profile.stacks[at];
        let parent = stack.parent.and_then(|parent| folded[parent.0 as usize]);
        let id = match roles.get(&stack.frame) {
            // Its self time counts for the method that it starts.
            Some(AsyncRole::Start) if parent.is_some() => parent,
            Some(AsyncRole::Body) => {
                let parent = called_from(builder, roles, parent, stack.frame);
                Some(builder.stack(parent, stack.frame))
            }
            // Recognised by IL offsets only, so only if the recording has runtime async.
            _ if has_logical => {
                let parent = without_thunk(builder, parent, stack.frame);
                Some(builder.stack(parent, stack.frame))
            }
            _ => Some(builder.stack(parent, stack.frame)),
        };
        folded.push(id);
    }
    for sample in &mut builder.profile.samples {
        let seen = sample.logical.unwrap_or(sample.stack);
        let seen = folded[seen.0 as usize].unwrap_or(seen);
        sample.logical = (seen != sample.stack).then_some(seen);
    }
}

/// Returns the callers of the method with the body `body`: `parent` without the method's own
/// frames.
fn called_from(
    builder: &Builder,
    roles: &HashMap<FrameId, AsyncRole>,
    parent: Option<StackId>,
    body: FrameId,
) -> Option<StackId> {
    let profile = &builder.profile;
    let body = profile.frame(body);
    let mut parent = parent;
    // At most one of each, in this order. The same name nearer to the root is recursion or an
    // overload.
    for own in [AsyncRole::Step, AsyncRole::Plain, AsyncRole::Entry] {
        let Some(caller) = parent.map(|id| profile.stack(id)) else {
            break;
        };
        let frame = profile.frame(caller.frame);
        let role = roles
            .get(&caller.frame)
            .copied()
            .unwrap_or(AsyncRole::Plain);
        let is_own = role == own
            && is_of(frame, body)
            && match own {
                // `Numbers.MoveNextAsync`, which the one who iterates calls.
                AsyncRole::Step => {
                    let (whole, name) = (profile.string(frame.name), profile.string(body.name));
                    whole
                        .strip_prefix(name)
                        .is_some_and(|rest| rest.starts_with('.'))
                }
                _ => frame.name == body.name,
            };
        if is_own {
            parent = caller.parent;
        }
    }
    parent
}

/// The callers or awaiters of a method: `parent` without the code by which the two kinds of async
/// methods call each other.
///
/// A method of runtime async is called by code of the runtime's own that makes a task of what it
/// answers: of the same method, and of no place in its IL. One of the other kind, if runtime async
/// awaits it, is started by a version of the method that was written and makes the state machine.
fn without_thunk(builder: &Builder, parent: Option<StackId>, method: FrameId) -> Option<StackId> {
    let profile = &builder.profile;
    let caller = profile.stack(parent?);
    let (frame, method) = (profile.frame(caller.frame), profile.frame(method));
    let name = |frame: &Frame| profile.string(frame.name);
    let is_thunk = is_of(frame, method)
        && match (frame.location, method.location) {
            (
                Location::Il {
                    token: thunk,
                    offset: u32::MAX,
                },
                Location::Il { token, offset },
            ) => thunk == token && offset != u32::MAX && frame.name == method.name,
            (Location::Il { .. }, Location::Await { .. }) => {
                without_arguments(name(frame)).eq(without_arguments(name(method)))
            }
            _ => false,
        };
    if is_thunk { caller.parent } else { parent }
}

/// The characters of a name that are not within `<>`: of shared code not all arguments are known.
fn without_arguments(name: &str) -> impl Iterator<Item = char> {
    let mut depth = 0u32;
    name.chars().filter(move |letter| {
        match letter {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *letter != '>'
    })
}

/// It runs, and in the same module of the same CLR.
fn is_of(frame: &Frame, body: &Frame) -> bool {
    frame.kind == FrameKind::Managed
        && frame.module == body.module
        && frame.runtime == body.runtime
        && !matches!(frame.location, Location::Await { .. })
}
