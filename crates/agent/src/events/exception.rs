//! Exceptions: what was thrown, where, and who will catch it.
//!
//! A sample is taken when an exception is thrown, before the runtime searches for a handler; the
//! search's end completes its text. An exception thrown by a filter is found before the one that
//! the filter was asked about, so each thread keeps a short stack of searches.
//!
//! Up to .NET 8 the profiler's callbacks tell, which is what is here (`ExceptionThrown`,
//! `ExceptionSearchCatcherFound`). A search that leaves the outermost method has found no catcher:
//! most likely the program ends by this exception within milliseconds, so its thread waits until
//! the sample is sent ([`LAST_WAIT`] at most). From .NET 9 on the runtime's events tell
//! (`exception_event`).
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

/// Longest message kept, UTF-16 units.
pub(super) const MAX_MESSAGE: usize = 256;
/// Most searches of a thread that are kept.
pub(super) const MAX_SEARCHES: usize = 64;
/// How long a thread waits for the sample of an uncaught exception to be sent.
pub(super) const LAST_WAIT: Duration = Duration::from_millis(50);
/// From this .NET on exceptions are dispatched by managed code.
const MANAGED_DISPATCH: u16 = 9;
/// Longest chain of base classes that is looked through for System.Exception.
const MAX_BASES: usize = 32;

/// Exceptions.
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

/// Whether a runtime's callbacks of exceptions leave the program as it is.
pub(super) fn callbacks_are_safe(runtime: &RuntimeFacts) -> bool {
    runtime.major < MANAGED_DISPATCH
}

/// A search for a handler that has begun.
struct CallbackSearch {
    /// Where it was begun; below that are the frames of filters.
    stack_pointer: u64,
    /// Where to say the answer; none if the sample was not taken.
    catcher: Option<Arc<Catcher>>,
    /// The outermost method of the stack, 0 if it is not known.
    outermost: usize,
    /// How many of its frames the search has not come to.
    ahead: usize,
    /// The search is in its last frame.
    is_last: bool,
}

thread_local! {
    static SEARCHES: RefCell<Vec<CallbackSearch>> = const { RefCell::new(Vec::new()) };
}

/// Where the message of an exception is.
#[derive(Clone, Copy, Debug)]
struct MessageLayout {
    /// Of the reference in the exception, bytes.
    field: usize,
    /// Of the length in a string.
    length: usize,
    /// Of the characters in a string.
    characters: usize,
}

/// The layout of a CLR's exceptions: found once, at the first one.
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
        // The walker `shadow` alone is called: no sample waits for the result of the search.
        return;
    }
    let place = events.offer(Event::Exception, 1);
    // A search whose sample is not taken is begun, too: its end must not be taken for another's.
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

/// The outermost managed method of a sample's stack, and how many of the frames are its. `None`
/// where the stack is not whole.
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

/// Of a frame of managed code: an address in the instruction, and where its method's code begins.
/// `None` too for one of which the runtime must not be asked.
pub(super) fn managed_at(map: &CodeMap, word: u64) -> Option<(u64, u64)> {
    let lookup = lookup_address(word);
    let Some(region) = map.lookup(lookup) else {
        // Code that was not reported.
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

/// The method that an address is in.
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

/// Ends the search that has begun last: its exception is uncaught.
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
        // Searches that began deeper, or here, were given up without a word: native code of the
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

/// Does something to the search that has begun last.
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

/// The message that the exception was made with; `None` where it has none of its own.
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
    // SAFETY: `object` is an exception: it derives from System.Exception, whose layout says where
    // the reference to its message is. In cooperative mode neither it nor the string moves.
    // `CorObject` fields are aligned to a word, a string's length is a 32-bit number.
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

/// Looks for `System.Exception._message` among the base classes of a class.
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
