//! Exception events up to .NET 8: what was thrown, where, and which method will catch it.
//!
//! A sample is taken at the throw, before the runtime searches for a handler. The end of the search
//! completes the sample's text. An exception thrown by a filter is dispatched before the search
//! that runs the filter ends, so each thread has a short stack of searches.
//!
//! Input: the profiler's callbacks (`ExceptionThrown`, `ExceptionSearchCatcherFound`, …). From .NET
//! 9 on the runtime's events are used instead (`exception_event`). A search that leaves the
//! outermost method has found no catcher. The exception will probably end the program within
//! milliseconds, so its thread waits until the sample is sent ([`LAST_WAIT`] at most).
//!
//! Invariant: everything here runs on the throwing thread and never blocks otherwise, as
//! `ExceptionThrown` is called in cooperative mode.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corprof::context::{Callback, Context, Cooperative};
use corprof::{ClassId, Cx, EventMaskLow, FunctionId, ObjectId};
use recording::{Event, WalkEnd};
use stackwalk::{CodeKind, CodeMap, lookup_address};

use super::Origin;
use super::event_pipe::{KEYWORD_EXCEPTION, LEVEL_INFORMATIONAL};
use super::sample::{Catcher, EventSample};
use super::source::{EventSource, Need, RuntimeFacts, SourceQuery};
use crate::clr::names;
use crate::model::chain;
use crate::program::code::can_query_runtime;
use crate::walkers::here::stack_pointer;

/// Maximum length of a message, UTF-16 units.
pub(super) const MAX_MESSAGE: usize = 256;
/// Maximum number of concurrent searches per thread.
pub(super) const MAX_SEARCHES: usize = 64;
/// Time limit of the wait until the sample of an uncaught exception is sent.
pub(super) const LAST_WAIT: Duration = Duration::from_millis(50);
/// First .NET version that dispatches exceptions in managed code.
const MANAGED_DISPATCH: u16 = 9;
/// Maximum number of base classes searched for System.Exception.
const MAX_BASES: usize = 32;

/// The source of exception events.
pub(super) struct Exceptions;

impl EventSource for Exceptions {
    fn event(&self) -> Event {
        Event::Exception
    }

    fn need(&self, asked: SourceQuery<'_>) -> Result<Need, String> {
        if callbacks_are_safe(asked.runtime) {
            return Ok(Need {
                low: EventMaskLow::MONITOR_EXCEPTIONS,
                ..Need::nothing("ExceptionThrown callback")
            });
        }
        Ok(Need {
            keywords: KEYWORD_EXCEPTION,
            level: LEVEL_INFORMATIONAL,
            ..Need::nothing("ExceptionThrown event")
        })
    }
}

/// Whether exception callbacks of this runtime are harmless to the program.
pub(super) fn callbacks_are_safe(runtime: &RuntimeFacts) -> bool {
    runtime.major < MANAGED_DISPATCH
}

/// A search for a handler that has begun.
struct CallbackSearch {
    /// Stack pointer at its start; frames of filters are below it.
    stack_pointer: u64,
    /// Receives the result; `None` if no sample was taken.
    catcher: Option<Arc<Catcher>>,
    /// The outermost method of the stack, 0 if it is not known.
    outermost: usize,
    /// Number of that method's frames that the search has not reached.
    ahead: usize,
    /// Whether the search is in its last frame.
    is_last: bool,
}

thread_local! {
    static SEARCHES: RefCell<Vec<CallbackSearch>> = const { RefCell::new(Vec::new()) };
}

/// Offsets of the message in an exception object.
#[derive(Clone, Copy, Debug)]
struct MessageLayout {
    /// Offset of the reference in the exception, bytes.
    field: usize,
    /// Offset of the length in a string.
    length: usize,
    /// Offset of the characters in a string.
    characters: usize,
}

/// The layout of a CLR's exceptions, determined at the first one.
#[derive(Debug, Default)]
pub(crate) struct ExceptionFacts {
    layout: OnceLock<Option<MessageLayout>>,
}

/// `ExceptionThrown`.
pub(crate) fn thrown<'rt>(
    origin: Origin<'_>,
    cx: &mut Cx<'rt, Cooperative>,
    object: ObjectId<'rt>,
) {
    let events = origin.events;
    if !events.wants(Event::Exception) {
        // Only the walker `shadow` gets this callback; no sample waits for the search.
        return;
    }
    let place = events.offer(Event::Exception, 1);
    // The search is registered even without a sample, so that its end is not attributed to another.
    let catcher = place.is_some().then(|| Arc::new(Catcher::default()));
    begin_search(catcher.clone());
    let Some(place) = place else { return };
    let class = cx.info().get_class_from_object(cx, object).ok();
    let name = class.map_or_else(
        || "?".into(),
        |class| origin.own.names.class(origin.clr, cx, class),
    );
    let text = class
        .and_then(|class| message(origin, cx, object, class))
        .unwrap_or_default();
    let mut sample = origin.sample(cx, Event::Exception, 1, name, text);
    sample.catcher = catcher;
    if let Some((function, frames)) = outermost(origin, cx, &sample) {
        with_search(|search| (search.outermost, search.ahead) = (function, frames));
    }
    events.push(place, sample);
}

/// Returns the outermost managed method of a sample's stack and its number of frames. `None` if the
/// stack is incomplete.
fn outermost<'rt>(
    origin: Origin<'_>,
    cx: &Cx<'rt, Cooperative>,
    sample: &EventSample,
) -> Option<(usize, usize)> {
    if sample.end.end() != WalkEnd::Root {
        return None;
    }
    let body = |word: &u64| managed_at(origin.program.code.map(), *word);
    let (frames, _) = chain::split(&sample.frames);
    let (lookup, start) = frames.iter().rev().find_map(body)?;
    let all = frames.iter().filter_map(body);
    let frames = all.filter(|(_, of)| *of == start).count();
    Some((function_at(cx, lookup)?.raw(), frames))
}

/// Returns, for a frame of managed code, an address in the instruction and the start of its
/// method's code. Also `None` if the runtime must not be queried about the code.
pub(super) fn managed_at(map: &CodeMap, word: u64) -> Option<(u64, u64)> {
    let lookup = lookup_address(word);
    let Some(region) = map.lookup(lookup) else {
        // Unreported code.
        return Some((lookup, map.unreported_code(lookup)?.start));
    };
    match region.kind {
        CodeKind::Jit => Some((lookup, region.start)),
        CodeKind::ReadyToRun if can_query_runtime(map, word) => {
            Some((lookup, map.r2r_function_start(lookup)?))
        }
        CodeKind::ReadyToRun | CodeKind::Native => None,
    }
}

/// Returns the method at an address.
pub(super) fn function_at<'rt, C: Context>(
    cx: &Cx<'rt, C>,
    address: u64,
) -> Option<FunctionId<'rt>> {
    let ip = usize::try_from(address).ok()?;
    cx.info().get_function_from_ip(cx, ip).ok()
}

/// `ExceptionSearchFunctionEnter`.
pub(crate) fn search_enters(origin: Origin<'_>, function: FunctionId<'_>) {
    if !origin.events.wants(Event::Exception) {
        return;
    }
    with_search(|search| {
        let mut is_last = false;
        if search.outermost == function.raw() {
            search.ahead = search.ahead.saturating_sub(1);
            is_last = search.ahead == 0;
        }
        search.is_last = is_last;
    });
}

/// `ExceptionSearchFunctionLeave`.
pub(crate) fn search_leaves(origin: Origin<'_>) {
    let mut is_over = false;
    with_search(|search| is_over = search.is_last);
    if is_over {
        end_uncaught(origin);
    }
}

/// Ends the most recent search: its exception is uncaught.
fn end_uncaught(origin: Origin<'_>) {
    if let Some(catcher) = end_search() {
        catcher.wait_uncaught(origin.events.waker, LAST_WAIT);
    }
}

/// `ExceptionSearchCatcherFound`.
pub(crate) fn catcher_found<'rt>(
    origin: Origin<'_>,
    cx: &Cx<'rt, Callback>,
    function: FunctionId<'rt>,
) {
    if !origin.events.wants(Event::Exception) {
        return;
    }
    if let Some(catcher) = end_search() {
        catcher.found(origin.own.names.function(origin.clr, cx, function));
    }
}

fn begin_search(catcher: Option<Arc<Catcher>>) {
    let stack_pointer = stack_pointer();
    let _thread_ends = SEARCHES.try_with(|searches| {
        let Ok(mut searches) = searches.try_borrow_mut() else {
            return;
        };
        // Searches that began at or below this stack pointer were abandoned: native code of the
        // runtime caught the exception.
        searches.retain(|search| search.stack_pointer > stack_pointer);
        if searches.len() < MAX_SEARCHES {
            searches.push(CallbackSearch {
                stack_pointer,
                catcher,
                outermost: 0,
                ahead: 0,
                is_last: false,
            });
        }
    });
}

/// Applies `change` to the most recent search.
fn with_search(change: impl FnOnce(&mut CallbackSearch)) {
    let _thread_ends = SEARCHES.try_with(|searches| {
        if let Ok(mut searches) = searches.try_borrow_mut()
            && let Some(search) = searches.last_mut()
        {
            change(search);
        }
    });
}

fn end_search() -> Option<Arc<Catcher>> {
    SEARCHES
        .try_with(|searches| searches.try_borrow_mut().ok()?.pop()?.catcher)
        .ok()?
}

/// Returns the message with which the exception was constructed; `None` if it has none of its own.
fn message<'rt>(
    origin: Origin<'_>,
    cx: &Cx<'rt, Cooperative>,
    object: ObjectId<'rt>,
    class: ClassId<'rt>,
) -> Option<String> {
    let layout = origin
        .own
        .exceptions
        .layout
        .get_or_init(|| find_layout(origin, cx, class));
    let layout = (*layout)?;
    // SAFETY: `object` is an exception: it derives from System.Exception, whose layout gives the
    // offset of the reference to its message. In cooperative mode neither the exception nor the
    // string moves. `CorObject` fields are aligned to a word; a string's length is a 32-bit number.
    unsafe {
        let string = ((object.raw() + layout.field) as *const usize).read();
        if string == 0 {
            return None;
        }
        let length = ((string + layout.length) as *const u32).read() as usize;
        let characters = (string + layout.characters) as *const u16;
        let units = std::slice::from_raw_parts(characters, length.min(MAX_MESSAGE));
        let mut text = String::from_utf16_lossy(units);
        if length > MAX_MESSAGE {
            text.push('…');
        }
        Some(text)
    }
}

/// Searches a class's base classes for `System.Exception._message`.
fn find_layout<'rt>(
    origin: Origin<'_>,
    cx: &Cx<'rt, Cooperative>,
    class: ClassId<'rt>,
) -> Option<MessageLayout> {
    let info = cx.info();
    let mut next = Some(class);
    for _ in 0..MAX_BASES {
        let class = next?;
        let found = info.get_class_id_info2(cx, class).ok()??;
        let place = (found.module?, found.token);
        let (name, field) = names::class_and_field(origin.clr, cx, place, "_message")?;
        if name != "System.Exception" {
            next = found.parent;
            continue;
        }
        let field = field?;
        let layout = info.get_class_layout(cx, class).ok()??;
        let offset = layout
            .fields
            .iter()
            .find(|known| known.rid_of_field == field)?
            .offset;
        let string = info.get_string_layout2(cx).ok()?;
        return Some(MessageLayout {
            field: offset as usize,
            length: string.length_offset as usize,
            characters: string.buffer_offset as usize,
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn nested(inner: &Arc<Catcher>) {
        begin_search(Some(Arc::clone(inner)));
        std::hint::black_box(stack_pointer());
    }

    #[test]
    fn a_filters_exception_is_found_first() {
        let (outer, inner) = (Arc::new(Catcher::default()), Arc::new(Catcher::default()));
        begin_search(Some(Arc::clone(&outer)));
        nested(&inner);
        end_search().unwrap().found("filter".into());
        end_search().unwrap().found("outer".into());
        assert!(end_search().is_none());
        assert_eq!(inner.name(), Some("filter"));
        assert_eq!(outer.name(), Some("outer"));
    }

    #[test]
    fn a_search_that_was_given_up_is_forgotten() {
        let (lost, next) = (Arc::new(Catcher::default()), Arc::new(Catcher::default()));
        nested(&lost);
        begin_search(Some(Arc::clone(&next)));
        end_search().unwrap().found("next".into());
        assert!(end_search().is_none());
        assert_eq!(lost.name(), None);
        assert_eq!(next.name(), Some("next"));
    }
}
