//! Exceptions as the runtime's own events report them, from .NET 9 on.
//!
//! The profiler's callbacks (`exception`) are never asked for there, as a program does not survive
//! them: around each filter and each catch block the runtime goes into preemptive mode for them
//! while it holds the exception by a reference of which the collector does not know
//! (`CallFilterFunclet`, `CallCatchFunclet` in src/coreclr/vm/exceptionhandling.cpp; dotnet/runtime
//! issue 132462, mended in .NET 11). A collection there, and the filter or the handler is given
//! memory that is something else by then. Events are delivered in cooperative mode, and change
//! nothing.
//!
//! A throw is reported (ExceptionThrown) before its handler is searched for; the handler as it
//! begins (ExceptionCatchStart). A repeated throw of an exception (`throw;`) is not reported: a
//! handler begins that was not searched for. Its sample is taken then, when the stack is still that
//! of the throw.
//!
//! An exception that leaves a resumed method of runtime async (.NET 11 on) is caught by the class
//! library. It resumes the method that awaits it with the exception in place of a result. That is
//! no throw and is not reported as one; the handlers are, as they begin. So the catcher is the
//! first of them that is not the class library's.
//!
//! Invariant: everything here runs on the throwing thread, in cooperative mode, so it never blocks,
//! but for an exception that no method on its stack can catch: that thread waits until the sample
//! is sent (`LAST_WAIT` at most).

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

/// The class library's methods that call the program's first, on the main thread (.NET 11 on) and
/// on others: their filters take an exception only where a host or a handler of the program's has
/// asked for that.
const OUTERMOST: [&str; 2] = [
    "System.Environment.CallEntryPoint",
    "System.Threading.Thread+StartHelper.RunWorker",
];
/// Most facts of each kind that are remembered; beyond, it starts again.
const MAX_METHODS: usize = 8192;

/// The event's facts about an exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThrownException {
    /// Of a nested type its own name alone, until a sample is taken of it.
    pub(super) type_name: Arc<str>,
    /// Empty where it has none of its own.
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
    /// Where to say the answer; none if the sample was not taken.
    catcher: Option<Arc<Catcher>>,
    /// How many filters ran when it began.
    filters: usize,
}

/// An exception whose handler runs.
#[derive(Debug)]
struct CaughtException {
    stack_pointer: u64,
    thrown: Arc<ThrownException>,
}

/// An exception that goes on to what awaits the method that threw it.
#[derive(Debug)]
struct PassedException {
    thrown: Arc<ThrownException>,
    catcher: Option<Arc<Catcher>>,
}

/// The cause for which a handler begins.
#[derive(Debug)]
enum HandledCause {
    /// A thrown exception; it has a catcher if a sample waits for the answer.
    Searched(Option<Arc<Catcher>>),
    /// An exception that an earlier handler throws again.
    Again(Arc<ThrownException>),
    /// An unknown exception: it was thrown before the session began.
    Unknown,
}

/// The exceptions of one thread. Stacks grow down: one that is reported deeper has a lower stack
/// pointer.
#[derive(Debug, Default)]
struct Dispatches {
    searches: Vec<HandlerSearch>,
    caught: Vec<CaughtException>,
    /// The exception that was caught last. Set if the class library caught it to pass it on, and
    /// nothing was thrown since.
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
        // Searches that began deeper, or here, were given up without a word: native code of the
        // runtime caught the exception, or another one took its place.
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

    /// Drops the exceptions that the filter threw and did not catch: they are swallowed.
    fn filter_ends(&mut self) {
        let filters = self.filters;
        self.searches
            .retain(|search| filters == 0 || search.filters < filters);
        self.filters = filters.saturating_sub(1);
    }

    /// `passes`: the handler is the class library's, and passes on what it catches.
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

    /// The answer for what is passed on is to be said there.
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

/// `None` where the thread is about to end.
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
    // A search whose sample is not taken is begun, too: its end must not be taken for another's.
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
        // Most likely the program ends by it within milliseconds.
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

/// Whether a method catches what leaves methods of runtime async, to pass it on to what awaits
/// them.
fn passes_on(name: &str) -> bool {
    let own = name.strip_prefix(RUNTIME_TASK);
    own.is_some_and(|own| own.ends_with("DispatchContinuations"))
}

/// ExceptionCatchStop: a handler has come to its end.
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

/// The whole name of a nested type, if it is one of the module whose method threw: where most of
/// them are thrown.
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
    // FunctionID is the address of the method's MethodDesc, which is what the event's MethodID is).
    let key = unsafe { FunctionKey::from_parts(cx.info().index(), function) }?;
    let function = cx.info().id(key)?;
    Some(origin.own.names.function(origin.clr, cx, function))
}

/// The frames of a sample from the one that threw on: of a managed one where it is, and where its
/// method begins.
///
/// On top is the runtime's managed dispatch, which raises the event, and below that the native code
/// by which the method that threw called it.
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

/// Whether some frame of a sample may catch, from the one that threw on; also where that cannot be
/// told.
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
    // Native code with managed code below: who knows what it does.
    throwing.any(|frame| frame.is_some())
}

/// Whether the method whose code begins there may catch.
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

/// Facts found out about the methods of a CLR, by where their code begins. A method that takes the
/// place of one that was unloaded is taken for that: a thread waits a moment for nothing then, its
/// last sample may be lost, or a nested type has a name too short.
#[derive(Debug, Default)]
pub(crate) struct ThrownFacts {
    /// Whether it may catch.
    catching: Mutex<HashMap<u64, bool>>,
    /// The whole name of a nested type that it throws.
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
        // By a finally block that runs for it.
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
        // Within it another one comes and goes.
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
        // A handler of the program's, which throws it again.
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
        // It may be reported on less stack than the throw was.
        own.filter_begins();
        let _swallowed = throw(&mut own, 500, "inner");
        own.filter_ends();
        own.filter_begins();
        let kept = throw(&mut own, 500, "inner");
        assert!(is_of(&own.catch_begins(490, false), &kept));
        own.catch_ends();
        own.filter_ends();
        assert!(is_of(&own.catch_begins(1010, false), &outer));
        // Of one whose begin was not told.
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
