//! Exception events from .NET 9 on, from the runtime's own events instead of callbacks.
//!
//! The profiler's callbacks (`exception`) are never enabled there, as they can crash the program.
//! For them, around each filter and each catch block, the runtime enters preemptive mode while it
//! holds the exception by a reference unknown to the collector (`CallFilterFunclet`,
//! `CallCatchFunclet` in src/coreclr/vm/exceptionhandling.cpp; dotnet/runtime issue 132462, fixed
//! in .NET 11). After a collection at that point the filter or handler gets reused memory. Events
//! are delivered in cooperative mode, and change nothing.
//!
//! A throw is reported (ExceptionThrown) before the search for its handler, and a handler when it
//! begins (ExceptionCatchStart). A rethrow (`throw;`) is not reported: a handler begins without a
//! search. Its sample is taken then, when the stack is still that of the throw.
//!
//! An exception that leaves a resumed method of runtime async (.NET 11 on) is caught by the class
//! library. The library resumes the awaiting method with the exception in place of a result. That
//! is no throw and is not reported as one, but the handlers are reported when they begin. The
//! catcher is therefore the first handler outside the class library.
//!
//! Invariant: everything here runs on the throwing thread, in cooperative mode, so it does not
//! block. Only after a throw that no method on the stack can catch, the thread waits until the
//! sample is sent (`LAST_WAIT` at most).

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use corprof::Cx;
use corprof::context::Callback;
use corprof::id::FunctionKey;
use recording::{Event, WalkEnd};

use super::exception::{LAST_WAIT, MAX_MESSAGE, MAX_SEARCHES, function_at, managed_at};
use super::sample::{Catcher, EventSample};
use super::{Origin, lock};
use crate::clr::async_types::RUNTIME_TASK;
use crate::clr::names;
use crate::model::chain;
use crate::program::Program;
use crate::walkers::here::stack_pointer;

/// The class library's methods that call the program's first one, on the main thread (.NET 11 on)
/// and on others. Their filters catch an exception only if a host or a handler of the program
/// requested that.
const OUTERMOST: [&str; 2] = [
    "System.Environment.CallEntryPoint",
    "System.Threading.Thread+StartHelper.RunWorker",
];
/// Maximum number of remembered facts of each kind; a full cache is cleared.
const MAX_METHODS: usize = 8192;

/// The event's facts about an exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThrownException {
    /// Type name. That of a nested type lacks the enclosing types until a sample is taken.
    pub(super) type_name: Arc<str>,
    /// Empty if it has no message of its own.
    pub(super) message: String,
}

impl ThrownException {
    fn text(&self) -> String {
        let mut text: String = self.message.chars().take(MAX_MESSAGE).collect();
        if text.len() < self.message.len() {
            text.push('…');
        }
        text
    }
}

/// A search for a handler that has begun.
#[derive(Debug)]
struct HandlerSearch {
    stack_pointer: u64,
    thrown: Arc<ThrownException>,
    /// Receives the result; `None` if no sample was taken.
    catcher: Option<Arc<Catcher>>,
    /// Number of running filters at its start.
    filters: usize,
}

/// An exception whose handler runs.
#[derive(Debug)]
struct CaughtException {
    stack_pointer: u64,
    thrown: Arc<ThrownException>,
}

/// An exception that is passed on to the method that awaits the throwing one.
#[derive(Debug)]
struct PassedException {
    thrown: Arc<ThrownException>,
    catcher: Option<Arc<Catcher>>,
}

/// The cause of a handler's start.
#[derive(Debug)]
enum HandledCause {
    /// A thrown exception; it has a catcher if a sample waits for the result.
    Searched(Option<Arc<Catcher>>),
    /// An exception that an earlier handler rethrows.
    Again(Arc<ThrownException>),
    /// An unknown exception: it was thrown before the session began.
    Unknown,
}

/// The exceptions of one thread. Stacks grow down: a deeper report has a lower stack pointer.
#[derive(Debug, Default)]
struct Dispatches {
    searches: Vec<HandlerSearch>,
    caught: Vec<CaughtException>,
    /// The last caught exception, if the class library caught it to pass it on and nothing was
    /// thrown since.
    passed: Option<PassedException>,
    filters: usize,
}

impl Dispatches {
    const fn new() -> Dispatches {
        Dispatches {
            searches: Vec::new(),
            caught: Vec::new(),
            passed: None,
            filters: 0,
        }
    }

    fn thrown(
        &mut self,
        stack_pointer: u64,
        thrown: Arc<ThrownException>,
        catcher: Option<Arc<Catcher>>,
    ) {
        self.passed = None;
        // Searches that began at or below this stack pointer were abandoned: native code of the
        // runtime caught the exception, or another one replaced it.
        self.searches
            .retain(|search| search.stack_pointer > stack_pointer);
        if self.searches.is_empty() {
            self.filters = 0;
        }
        if self.searches.len() < MAX_SEARCHES {
            self.searches.push(HandlerSearch {
                stack_pointer,
                thrown,
                catcher,
                filters: self.filters,
            });
        }
    }

    fn filter_begins(&mut self) {
        self.filters += 1;
    }

    /// Drops the exceptions that the filter threw and did not catch: the runtime swallows them.
    fn filter_ends(&mut self) {
        let filters = self.filters;
        self.searches
            .retain(|search| filters == 0 || search.filters < filters);
        self.filters = filters.saturating_sub(1);
    }

    /// Handles the start of a handler; `passes`: it is the class library's, and passes on what it
    /// catches.
    fn catch_begins(&mut self, stack_pointer: u64, passes: bool) -> HandledCause {
        let is_of_filter = |search: &HandlerSearch| search.filters < self.filters;
        let search = self.searches.pop_if(|search| !is_of_filter(search));
        let handled = match (search, self.passed.take()) {
            (Some(search), _) => (search.thrown, HandledCause::Searched(search.catcher)),
            (None, Some(passed)) => (passed.thrown, HandledCause::Searched(passed.catcher)),
            (None, None) => match self.caught.pop() {
                Some(caught) => (
                    Arc::clone(&caught.thrown),
                    HandledCause::Again(caught.thrown),
                ),
                None => return HandledCause::Unknown,
            },
        };
        if passes {
            let catcher = match &handled.1 {
                HandledCause::Searched(catcher) => catcher.clone(),
                HandledCause::Again(_) | HandledCause::Unknown => None,
            };
            let thrown = Arc::clone(&handled.0);
            self.passed = Some(PassedException { thrown, catcher });
        }
        self.caught
            .retain(|caught| caught.stack_pointer > stack_pointer);
        if self.caught.len() < MAX_SEARCHES {
            self.caught.push(CaughtException {
                stack_pointer,
                thrown: handled.0,
            });
        }
        handled.1
    }

    /// Sets the catcher that receives the result for the passed-on exception.
    fn answer_passed(&mut self, catcher: Arc<Catcher>) {
        if let Some(passed) = &mut self.passed {
            passed.catcher = Some(catcher);
        }
    }

    fn catch_ends(&mut self) {
        self.caught.pop();
    }
}

thread_local! {
    static DISPATCHES: RefCell<Dispatches> = const { RefCell::new(Dispatches::new()) };
}

/// Applies `change` to this thread's exceptions; `None` if the thread is about to end.
fn own<T>(change: impl FnOnce(&mut Dispatches) -> T) -> Option<T> {
    let changed =
        DISPATCHES.try_with(|own| own.try_borrow_mut().ok().map(|mut own| change(&mut own)));
    changed.ok().flatten()
}

/// ExceptionThrown.
pub(super) fn thrown<'rt>(
    origin: Origin<'_>,
    cx: &mut Cx<'rt, Callback>,
    mut thrown: ThrownException,
) {
    // The search is registered even without a sample, so that its end is not attributed to another.
    let mut catcher = None;
    let mut taken = None;
    if let Some(place) = origin.events.offer(Event::Exception, 1) {
        let answer = Arc::new(Catcher::default());
        let sample = sample(origin, cx, &mut thrown, Arc::clone(&answer));
        catcher = Some(answer);
        taken = Some((place, sample));
    }
    let (here, answer) = (stack_pointer(), catcher.clone());
    own(|own| own.thrown(here, Arc::new(thrown), answer));
    let (Some((place, sample)), Some(catcher)) = (taken, catcher) else {
        return;
    };
    let is_last = !may_be_caught(origin, cx, &sample);
    origin.events.push(place, sample);
    if is_last {
        // The exception will probably end the program within milliseconds.
        catcher.wait_uncaught(origin.events.waker, LAST_WAIT);
    }
}

/// ExceptionCatchStart: a handler of the method with this FunctionID begins.
pub(super) fn catch_begins<'rt>(origin: Origin<'_>, cx: &mut Cx<'rt, Callback>, function: usize) {
    let Some(name) = name_of(origin, cx, function) else {
        return;
    };
    let passes = passes_on(&name);
    let answer = |catcher: &Catcher| {
        if passes {
            catcher.passed_on();
        } else {
            catcher.found(name);
        }
    };
    match own(|own| own.catch_begins(stack_pointer(), passes)) {
        Some(HandledCause::Searched(Some(catcher))) => answer(&catcher),
        Some(HandledCause::Again(thrown)) => {
            if let Some(place) = origin.events.offer(Event::Exception, 1) {
                let catcher = Arc::new(Catcher::default());
                answer(&catcher);
                own(|own| own.answer_passed(Arc::clone(&catcher)));
                let mut thrown = ThrownException::clone(&thrown);
                let sample = sample(origin, cx, &mut thrown, catcher);
                origin.events.push(place, sample);
            }
        }
        Some(HandledCause::Searched(None) | HandledCause::Unknown) | None => {}
    }
}

/// Whether a method catches exceptions of runtime-async methods, to pass them on to the awaiting
/// methods.
fn passes_on(name: &str) -> bool {
    let own = name.strip_prefix(RUNTIME_TASK);
    own.is_some_and(|own| own.ends_with("DispatchContinuations"))
}

/// ExceptionCatchStop: a handler has ended.
pub(super) fn catch_ends() {
    own(Dispatches::catch_ends);
}

/// ExceptionFilterStart.
pub(super) fn filter_begins() {
    own(Dispatches::filter_begins);
}

/// ExceptionFilterStop.
pub(super) fn filter_ends() {
    own(Dispatches::filter_ends);
}

fn sample<'rt>(
    origin: Origin<'_>,
    cx: &mut Cx<'rt, Callback>,
    thrown: &mut ThrownException,
    catcher: Arc<Catcher>,
) -> EventSample {
    let name = Arc::clone(&thrown.type_name);
    let mut sample = origin.sample(cx, Event::Exception, 1, name, thrown.text());
    sample.catcher = Some(catcher);
    // A name without a namespace may be that of a nested type.
    let plain = thrown.type_name.split('[').next().unwrap_or_default();
    if !plain.contains(['.', '+'])
        && let Some(whole) = whole_name(origin, cx, &sample, &thrown.type_name)
    {
        sample.name = Arc::clone(&whole);
        thrown.type_name = whole;
    }
    sample
}

/// Returns the full name of a nested type, if it is in the module of the throwing method, as most
/// are.
fn whole_name<'rt>(
    origin: Origin<'_>,
    cx: &Cx<'rt, Callback>,
    sample: &EventSample,
    own_name: &Arc<str>,
) -> Option<Arc<str>> {
    let (lookup, start) = throwing(origin.program, sample).next()??;
    let known = &origin.own.thrown.nested;
    let key = (start, Arc::clone(own_name));
    if let Some(name) = lock(known).get(&key) {
        return name.clone();
    }
    let function = function_at(cx, lookup)?;
    let name = names::of_nested(origin.clr, cx, function, own_name).map(Arc::from);
    remember(known, key, name.clone());
    name
}

fn name_of<'rt>(origin: Origin<'_>, cx: &Cx<'rt, Callback>, function: usize) -> Option<Arc<str>> {
    // SAFETY: this runtime has just reported the method, and it is on the calling thread's stack (a
    // FunctionID is the address of the method's MethodDesc, which is the event's MethodID).
    let key = unsafe { FunctionKey::from_parts(cx.info().index(), function) }?;
    let function = cx.info().id(key)?;
    Some(origin.own.names.function(origin.clr, cx, function))
}

/// Returns the frames of a sample from the throwing method on: for a managed one, its address and
/// the start of its method's code.
///
/// The runtime's managed dispatch, which raises the event, is on top. Below it is the native code
/// through which the throwing method called it.
fn throwing<'a>(
    program: &'a Program,
    sample: &'a EventSample,
) -> impl Iterator<Item = Option<(u64, u64)>> + 'a {
    let map = program.code.map();
    let (frames, _) = chain::split(&sample.frames);
    let frames = frames.iter().map(move |word| managed_at(map, *word));
    let dispatched = frames
        .skip_while(Option::is_none)
        .skip_while(Option::is_some);
    dispatched.skip_while(Option::is_none)
}

/// Whether some frame of a sample may catch, from the throwing one on. True if that is unknown.
fn may_be_caught<'rt>(origin: Origin<'_>, cx: &Cx<'rt, Callback>, sample: &EventSample) -> bool {
    if sample.end.end() != WalkEnd::Root {
        return true;
    }
    let mut throwing = throwing(origin.program, sample).peekable();
    if throwing.peek().is_none() {
        return true;
    }
    while let Some(Some((lookup, start))) = throwing.next() {
        if may_catch(origin, cx, start, lookup) {
            return true;
        }
    }
    // The behaviour of native code with managed code below it is unknown.
    throwing.any(|frame| frame.is_some())
}

/// Whether the method with this code start may catch.
fn may_catch<'rt>(origin: Origin<'_>, cx: &Cx<'rt, Callback>, start: u64, lookup: u64) -> bool {
    let known = &origin.own.thrown.catching;
    if let Some(may) = lock(known).get(&start) {
        return *may;
    }
    let may = function_at(cx, lookup).is_none_or(|function| {
        names::may_catch(origin.clr, cx, function)
            && !OUTERMOST.contains(&&*origin.own.names.function(origin.clr, cx, function))
    });
    remember(known, start, may);
    may
}

fn remember<K: Eq + Hash, V>(known: &Mutex<HashMap<K, V>>, key: K, value: V) {
    let mut known = lock(known);
    if known.len() >= MAX_METHODS {
        known.clear();
    }
    known.insert(key, value);
}

/// Cached facts about a CLR's methods, by code start. A method at the address of an unloaded one
/// gets that method's facts. The effect is a needless short wait, a lost last sample, or a nested
/// type with a short name.
#[derive(Debug, Default)]
pub(crate) struct ThrownFacts {
    /// Whether a method may catch.
    catching: Mutex<HashMap<u64, bool>>,
    /// The full name of a nested type that a method throws.
    nested: Mutex<HashMap<Nested, Option<Arc<str>>>>,
}

/// A nested type: a method that throws it, and its own name.
type Nested = (u64, Arc<str>);

#[cfg(test)]
mod tests {
    use super::*;

    fn exception(name: &str) -> Arc<ThrownException> {
        Arc::new(ThrownException {
            type_name: name.into(),
            message: String::new(),
        })
    }

    fn throw(own: &mut Dispatches, stack_pointer: u64, name: &str) -> Arc<Catcher> {
        let catcher = Arc::new(Catcher::default());
        own.thrown(stack_pointer, exception(name), Some(Arc::clone(&catcher)));
        catcher
    }

    fn is_of(handled: &HandledCause, expected: &Arc<Catcher>) -> bool {
        matches!(handled, HandledCause::Searched(Some(catcher)) if Arc::ptr_eq(catcher, expected))
    }

    #[test]
    fn a_handler_begins_for_what_was_thrown_last() {
        let mut own = Dispatches::new();
        let outer = throw(&mut own, 1000, "outer");
        // By a finally block that runs for the exception.
        let inner = throw(&mut own, 500, "inner");
        assert!(is_of(&own.catch_begins(490, false), &inner));
        own.catch_ends();
        assert!(is_of(&own.catch_begins(1010, false), &outer));
    }

    #[test]
    fn a_handler_that_was_not_searched_for_is_of_what_is_thrown_again() {
        let mut own = Dispatches::new();
        assert!(matches!(
            own.catch_begins(900, false),
            HandledCause::Unknown
        ));
        let _once = throw(&mut own, 1000, "A");
        own.catch_begins(1010, false);
        // Another exception is thrown and caught during the dispatch.
        let _other = throw(&mut own, 700, "B");
        own.catch_begins(710, false);
        own.catch_ends();
        for _ in 0..3 {
            let again = own.catch_begins(500, false);
            assert!(matches!(&again, HandledCause::Again(thrown) if &*thrown.type_name == "A"));
        }
        own.catch_ends();
        assert!(matches!(
            own.catch_begins(1010, false),
            HandledCause::Unknown
        ));
    }

    #[test]
    fn what_is_passed_on_is_caught_by_what_awaits_it() {
        let mut own = Dispatches::new();
        let first = throw(&mut own, 1000, "A");
        for _ in 0..2 {
            assert!(is_of(&own.catch_begins(1010, true), &first));
            own.catch_ends();
        }
        // A handler of the program rethrows it.
        assert!(is_of(&own.catch_begins(1005, false), &first));
        let again = own.catch_begins(500, true);
        assert!(matches!(&again, HandledCause::Again(thrown) if &*thrown.type_name == "A"));
        let second = Arc::new(Catcher::default());
        own.answer_passed(Arc::clone(&second));
        own.catch_ends();
        assert!(is_of(&own.catch_begins(1010, false), &second));
        own.catch_ends();
        assert!(matches!(
            own.catch_begins(1010, false),
            HandledCause::Unknown
        ));
        // It ended in a task, and another one is thrown.
        let _ended = throw(&mut own, 1000, "B");
        own.catch_begins(1010, true);
        own.catch_ends();
        let other = throw(&mut own, 900, "C");
        assert!(is_of(&own.catch_begins(910, false), &other));
        own.catch_ends();
        assert!(matches!(
            own.catch_begins(1010, false),
            HandledCause::Unknown
        ));
    }

    #[test]
    fn what_a_filter_throws_ends_with_it() {
        let mut own = Dispatches::new();
        let outer = throw(&mut own, 1000, "outer");
        // The report may be on less stack than the throw's.
        own.filter_begins();
        let _swallowed = throw(&mut own, 500, "inner");
        own.filter_ends();
        own.filter_begins();
        let kept = throw(&mut own, 500, "inner");
        assert!(is_of(&own.catch_begins(490, false), &kept));
        own.catch_ends();
        own.filter_ends();
        assert!(is_of(&own.catch_begins(1010, false), &outer));
        // For a filter or handler whose start was not reported.
        own.filter_ends();
        own.catch_ends();
        assert!(matches!(
            own.catch_begins(1000, false),
            HandledCause::Unknown
        ));
    }

    #[test]
    fn a_search_that_was_given_up_is_forgotten() {
        let mut own = Dispatches::new();
        own.filter_begins();
        let _lost = throw(&mut own, 500, "lost");
        let next = throw(&mut own, 1000, "next");
        assert!(is_of(&own.catch_begins(990, false), &next));
    }

    #[test]
    fn little_is_kept_of_what_never_ends() {
        let mut own = Dispatches::new();
        for depth in 0..10_000 {
            let _lost = throw(&mut own, 1_000_000 - depth * 10, "lost");
            own.catch_begins(1_000_000 - depth * 10, false);
            own.filter_begins();
            let _lost = throw(&mut own, 1_000_000 - depth * 10 - 5, "lost");
        }
        assert!(own.searches.len() <= MAX_SEARCHES && own.caught.len() <= MAX_SEARCHES);
    }

    #[test]
    fn a_long_message_is_cut() {
        for (length, expected) in [(256, 256), (257, 257)] {
            let thrown = ThrownException {
                type_name: "A".into(),
                message: "é".repeat(length),
            };
            let text = thrown.text();
            assert_eq!(text.chars().count(), expected);
            assert_eq!(text.ends_with('…'), length > 256);
        }
    }
}
