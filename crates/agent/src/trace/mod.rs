//! Method tracing: counts and times the calls of methods that a user names, by probes in their IL.
//!
//! When a module is loaded, or a session begins in a running program, the module's methods are
//! matched against the patterns. Matching methods get new IL by ReJIT, which calls the probes. The
//! agent thread writes the counts. When the session ends, the methods get their own IL back.
//!
//! - `pattern`: matches method names.
//! - `bodies`, `asyncs`: rewrite IL, of any method and of async methods.
//! - `requests`, `work`, `pace`: request ReJIT, on a thread of their own for each CLR.
//! - `callers`: finds methods that may contain inlined copies.
//! - `inlining`: keeps methods from being inlined while they are requested.
//! - `probes`: run on the program's threads and count into `table`.
//! - `pending`: calls of async methods whose task has not completed.
//! - `writer`: writes the counts to the recording.
//!
//! Invariants: a module's methods are traced before any of its code runs, or the recording notes
//! it. A thread of the program waits for that for a bounded time. The recording has the reason for
//! each method that is not traced. Without a session nothing is traced.

mod asyncs;
mod bodies;
mod callers;
mod inlining;
mod pace;
mod pattern;
mod pending;
mod probes;
mod requests;
mod table;
mod work;
mod writer;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use corprof::context::{Context, MayTriggerGc};

use corprof::{Cx, Hresult, MethodProps, ModuleFlags, ModuleId, ModuleKey, Token};
use recording::Event;

pub(crate) use self::requests::ClrTrace;
pub(crate) use self::writer::TraceWriter;

use self::pattern::Pattern;
use self::requests::{ModuleMatches, RequestContext};
use self::table::Method;
use crate::base::waker::Waker;
use crate::clr::{Clr, names};
use crate::events::{EventAnnouncement, Events};
use crate::model::{CodeBody, Settings};
use crate::program::Program;

/// Maximum number of methods that are listed by name as not traced.
const MAX_REFUSED: usize = 200;
/// Maximum number of methods that are listed by name as having unfinished calls.
const MAX_NOT_ENDED: usize = 20;
/// Maximum number of methods that the note on inlined copies names.
const MAX_INLINED: usize = 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Returns the text for an error of the runtime.
fn describe_error(error: Hresult) -> String {
    match error {
        // From .NET 9 on the runtime's own answer for such modules.
        Hresult::CORPROF_E_MODULE_IS_ENC => {
            "hot reload may change its module (DOTNET_MODIFIABLE_ASSEMBLIES=debug); start the \
             program without hot reload"
                .to_owned()
        }
        error => format!("the runtime answers {error}"),
    }
}

/// Tracing state of a process: the patterns of the running session, and the traced methods.
#[derive(Debug)]
pub(crate) struct Trace {
    waker: &'static Waker,
    /// Empty without a session that traces.
    patterns: Mutex<Arc<Vec<Pattern>>>,
    state: Mutex<TraceState>,
    clrs: Mutex<Vec<(u8, Arc<ClrTrace>)>>,
    /// Whether all methods that existed when the session began have been processed.
    has_settled: AtomicBool,
}

/// The session's methods.
#[derive(Debug, Default)]
struct TraceState {
    /// Incremented at each start and end of a session.
    session: u32,
    limit: usize,
    /// In the order in which they are written.
    traced: Vec<TracedMethod>,
    /// Index in `traced` of each of the session's methods.
    admitted: HashMap<(ModuleKey, Token), usize>,
    /// Methods that have or had probes. Never removed, as their numbers are permanent.
    known: HashMap<(ModuleKey, Token), (i32, &'static Method)>,
    /// Number of methods that each pattern has matched.
    match_counts: Vec<u64>,
    /// Files of modules that cannot be traced. Kept since a plugin's file may be loaded a thousand
    /// times.
    cannot: BTreeSet<Arc<str>>,
    /// Number of examined modules.
    modules: u64,
    /// Number of modules from before the session that are still to be searched.
    unsearched: usize,
    /// Number of CLRs in which work for methods from before the session is left.
    unfinished: usize,
    is_summed_up: bool,
    /// Number of traced methods.
    count: usize,
    over_limit: u64,
    refused: usize,
    refused_more: u64,
    /// Modules without traced methods, with the reason and the number of matched methods.
    untraced_modules: BTreeMap<(Arc<str>, &'static str), u64>,
    /// Methods of which runtime-async callers compiled before the session may contain inlined
    /// copies.
    may_be_inlined: BTreeSet<String>,
}

/// Whether code of a module may have run when its methods begin to be traced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ModuleAge {
    /// It is being loaded.
    New,
    /// It was loaded before the session.
    Loaded,
}

/// A matched method, traced or refused.
#[derive(Clone, Debug)]
struct TracedMethod {
    /// Its number in the table; `None` if it is not traced.
    number: Option<i32>,
    runtime: u8,
    token: Token,
    min_ns: u64,
    /// Whether a pattern without wildcards names it.
    is_exact: bool,
    module: Arc<str>,
    type_name: String,
    name: String,
    /// Reason why it is not traced; empty if it is.
    refused: String,
    /// Whether it has changed since it was last written.
    fresh: bool,
}

/// A method of a module that a pattern matches.
#[derive(Debug)]
struct MatchedMethod {
    token: Token,
    type_name: String,
    name: String,
    signature: Vec<u8>,
    min_ns: u64,
    /// Whether a pattern without wildcards names it.
    is_exact: bool,
    /// Reason why it cannot be traced, if known already.
    refused: Option<&'static str>,
}

impl MatchedMethod {
    /// Whether it is the `MoveNext` of a state machine.
    fn is_state_machine(&self) -> bool {
        self.name.ends_with(asyncs::MOVE_NEXT)
    }
}

impl Trace {
    /// Creates the tracing state of a process. `waker` wakes the agent thread.
    pub(crate) fn new(waker: &'static Waker) -> Trace {
        Trace {
            waker,
            patterns: Mutex::default(),
            state: Mutex::default(),
            clrs: Mutex::default(),
            has_settled: AtomicBool::new(false),
        }
    }

    /// Begins a session.
    pub(crate) fn begin(
        &self,
        program: &'static Program,
        events: &'static Events,
        settings: &Settings,
    ) {
        let mut patterns = Vec::new();
        for asked in &settings.trace {
            match Pattern::new(asked) {
                Ok(pattern) => patterns.push(pattern),
                Err(why) => events.announce(EventAnnouncement::Note(format!("--trace {why}"))),
            }
        }
        self.has_settled.store(false, Relaxed);
        let mut state = lock(&self.state);
        state.session = state.session.wrapping_add(1);
        state.cannot.clear();
        state.traced.clear();
        state.admitted.clear();
        state.match_counts = vec![0; patterns.len()];
        state.limit = settings.trace_limit as usize;
        (state.modules, state.count, state.over_limit) = (0, 0, 0);
        (state.unsearched, state.unfinished) = (0, 0);
        (state.refused, state.refused_more) = (0, 0);
        state.untraced_modules.clear();
        state.may_be_inlined.clear();
        state.is_summed_up = false;
        drop(state);
        if !patterns.is_empty() {
            probes::begin(program, events);
            events.announce(EventAnnouncement::Source {
                event: Event::TracedCall,
                source: probes::source(),
                interval: 0,
            });
        }
        *lock(&self.patterns) = Arc::new(patterns);
    }

    /// Ends tracing in the session: reverts all methods to their own code. Agent thread.
    pub(crate) fn end(&self, events: &Events) {
        let had = std::mem::take(&mut *lock(&self.patterns));
        if had.is_empty() {
            return;
        }
        let clrs: Vec<_> = lock(&self.clrs)
            .iter()
            .map(|(_, own)| Arc::clone(own))
            .collect();
        for own in clrs {
            own.revert(events);
        }
        probes::end();
        self.report(&had, events);
        let mut state = lock(&self.state);
        state.session = state.session.wrapping_add(1);
    }

    /// Returns the number of the running session.
    fn session(&self) -> u32 {
        lock(&self.state).session
    }

    /// Counts a CLR in which methods from before the session are done. Wakes the agent thread to
    /// write their results.
    fn settled(&self, session: u32) {
        let mut state = lock(&self.state);
        if state.session == session {
            state.unfinished = state.unfinished.saturating_sub(1);
        }
        drop(state);
        self.has_settled.store(true, Relaxed);
        self.waker.wake();
    }

    /// Whether that is to be written now. Once.
    pub(crate) fn take_settled(&self) -> bool {
        self.has_settled.swap(false, Relaxed)
    }

    /// Writes the notes for users on the requested methods as the last CLR ends, since nothing can
    /// be written afterwards.
    pub(crate) fn sum_up(&self, events: &Events) {
        let patterns = Arc::clone(&lock(&self.patterns));
        self.report(&patterns, events);
    }

    /// Writes the results of the patterns, once.
    fn report(&self, patterns: &[Pattern], events: &Events) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.is_summed_up, true) {
            return;
        }
        for (pattern, match_counts) in patterns.iter().zip(&state.match_counts) {
            // If no module could be examined, the reason is written.
            if *match_counts == 0 && state.modules > 0 && state.unsearched == 0 {
                events.announce(EventAnnouncement::Note(format!(
                    "--trace {}: no method of this name in the {} modules searched (names are \
                     Namespace.Type.Method, * is a wildcard)",
                    pattern.text, state.modules
                )));
            }
        }
        if state.unsearched > 0 {
            events.announce(EventAnnouncement::Note(format!(
                "{} modules were not searched for methods of --trace before the recording ended; \
                 record for longer",
                state.unsearched
            )));
        }
        let waits = |one: &&TracedMethod| one.number.is_none() && one.refused.is_empty();
        let waiting = state.traced.iter().filter(waits).count();
        if waiting > 0 {
            events.announce(EventAnnouncement::Note(format!(
                "{waiting} methods of --trace were not traced before the recording ended; record \
                 for longer, or name fewer methods"
            )));
        }
        if state.over_limit > 0 {
            events.announce(EventAnnouncement::Note(format!(
                "{} methods of --trace were not traced: {} come first, and --trace-limit is {}",
                state.over_limit, state.count, state.limit
            )));
        }
        for ((path, why), count) in &state.untraced_modules {
            let file = path.rsplit('/').next().unwrap_or_default();
            events.announce(EventAnnouncement::Note(format!(
                "{count} methods of {file} were not traced: {why}"
            )));
        }
        if let Some(note) = inlined_note(&state.may_be_inlined) {
            events.announce(EventAnnouncement::Note(note));
            if state.unfinished > 0 {
                events.announce(EventAnnouncement::Note(
                    "calls from runtime-async code may be missing for all traced methods that \
                     return tasks: not all of that code was compiled again before the recording \
                     ended; record for longer"
                        .to_owned(),
                ));
            }
        }
        report_not_ended(events);
        if state.refused_more > 0 {
            events.announce(EventAnnouncement::Note(format!(
                "{} more methods could not be traced",
                state.refused_more
            )));
        }
    }

    /// Whether the session traces.
    pub(crate) fn is_wanted(&self) -> bool {
        !lock(&self.patterns).is_empty()
    }

    /// Adds a recorded CLR.
    pub(crate) fn add(&self, number: u8, own: Arc<ClrTrace>) {
        let mut clrs = lock(&self.clrs);
        clrs.retain(|(other, _)| *other != number);
        clrs.push((number, own));
    }

    /// Removes a CLR that has ended or is not recorded.
    pub(crate) fn remove(&self, number: u8) {
        lock(&self.clrs).retain(|(other, _)| *other != number);
    }

    /// Returns a CLR's own part.
    pub(crate) fn of(&self, number: u8) -> Option<Arc<ClrTrace>> {
        let clrs = lock(&self.clrs);
        let found = clrs.iter().find(|(other, _)| *other == number);
        found.map(|(_, own)| Arc::clone(own))
    }

    /// Handles a module that is being loaded. When this returns, its matched methods are traced, or
    /// the reason is recorded. This does not wait for the agent thread.
    pub(crate) fn module<'rt, C: MayTriggerGc>(
        &'static self,
        clr: &Arc<Clr>,
        own: &ClrTrace,
        events: &'static Events,
        cx: &mut Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) {
        if !self.is_wanted() || !own.can_trace() || !clr.is_recorded() {
            return;
        }
        let task = self.task(clr, events);
        if let Some(matches) = self.matched_methods(&task, cx, (module, ModuleAge::New)) {
            own.trace(matches);
        }
    }

    /// Begins the session in a running CLR: traces its loaded modules, one after the other. `code`:
    /// the existing bodies.
    pub(crate) fn running<C: MayTriggerGc>(
        &'static self,
        clr: &Arc<Clr>,
        own: &ClrTrace,
        (code, events): (&[CodeBody], &'static Events),
        cx: &mut Cx<'_, C>,
    ) {
        if !own.can_trace() || !clr.is_recorded() {
            return;
        }
        let info = cx.info();
        let modules = info.enum_modules(cx).unwrap_or_default().into_iter();
        let modules: Vec<_> = modules.map(|module| info.key(module)).collect();
        let mut state = lock(&self.state);
        state.unsearched += modules.len();
        state.unfinished += 1;
        drop(state);
        let own_code = code.iter().filter(|body| body.runtime == clr.number());
        let compiled = own_code.filter_map(|body| clr.method_of(cx, body));
        let task = RequestContext {
            compiled: Arc::new(compiled.collect()),
            ..self.task(clr, events)
        };
        own.begin(task, modules);
    }

    fn task(&'static self, clr: &Arc<Clr>, events: &'static Events) -> RequestContext {
        RequestContext {
            trace: self,
            events,
            clr: Arc::clone(clr),
            session: self.session(),
            compiled: Arc::default(),
        }
    }

    /// Counts a module from before the session as searched.
    fn searched(&self, session: u32) {
        let mut state = lock(&self.state);
        if state.session == session {
            state.unsearched = state.unsearched.saturating_sub(1);
        }
    }

    /// Returns the methods of a module to trace. Counts the others with their reasons.
    fn matched_methods<'rt, C: MayTriggerGc>(
        &self,
        task: &RequestContext,
        cx: &mut Cx<'rt, C>,
        (module, age): (ModuleId<'rt>, ModuleAge),
    ) -> Option<ModuleMatches> {
        let patterns = Arc::clone(&lock(&self.patterns));
        let look = |cx: &mut Cx<'rt, C>| {
            let (path, why) = task.inspect_module(cx, module)?;
            if why.is_some() && !path.is_empty() && !lock(&self.state).cannot.insert(path.clone()) {
                return None;
            }
            let mut match_counts = vec![0; patterns.len()];
            let wanted = find(cx, module, &patterns, &mut match_counts, why).unwrap_or_default();
            Some((path, match_counts, wanted))
        };
        let (path, match_counts, wanted) = match age {
            // It is being loaded.
            ModuleAge::New => look(cx),
            ModuleAge::Loaded => task.clr.while_loaded(module, || look(cx))?,
        }?;
        let key = cx.info().key(module);
        let methods = self.admit(task, key, &path, &match_counts, wanted);
        (!methods.is_empty()).then(|| ModuleMatches {
            task: task.clone(),
            module: key,
            age,
            path,
            methods,
        })
    }

    /// Counts the matched methods, and leaves out those that cannot be traced. Returns the others
    /// with their index among the session's methods.
    fn admit(
        &self,
        task: &RequestContext,
        module: ModuleKey,
        path: &Arc<str>,
        match_counts: &[u64],
        wanted: Vec<MatchedMethod>,
    ) -> Vec<(usize, MatchedMethod)> {
        let runtime = task.clr.number();
        let mut state = lock(&self.state);
        if state.session != task.session {
            return Vec::new();
        }
        state.modules += 1;
        for (all, match_counts) in state.match_counts.iter_mut().zip(match_counts) {
            *all += match_counts;
        }
        let mut admitted = Vec::new();
        for wanted in wanted {
            // A module may be reported twice when a session begins in a running program: by its
            // callback and by the enumeration.
            let index = state.admitted.get(&(module, wanted.token)).copied();
            if let Some(index) = index
                && let Some(traced) = state.traced.get(index)
                && traced.refused.is_empty()
            {
                if traced.number.is_none() {
                    // The other thread's request is in progress. This thread waits for a request of
                    // its own.
                    admitted.push((index, wanted));
                }
                continue;
            }
            if let Some(why) = wanted.refused
                && !wanted.is_exact
            {
                // Methods that were not named by the user are not listed one by one.
                let key = (Arc::clone(path), why);
                *state.untraced_modules.entry(key).or_default() += 1;
                continue;
            }
            if wanted.refused.is_some() {
                if state.refused >= MAX_REFUSED {
                    state.refused_more += 1;
                    continue;
                }
                state.refused += 1;
            } else if state.count >= state.limit {
                state.over_limit += 1;
                continue;
            } else {
                state.count += 1;
            }
            let index = state.traced.len();
            state.traced.push(TracedMethod {
                number: None,
                runtime,
                token: wanted.token,
                min_ns: wanted.min_ns,
                is_exact: wanted.is_exact,
                module: Arc::clone(path),
                type_name: wanted.type_name.clone(),
                name: wanted.name.clone(),
                refused: wanted.refused.unwrap_or_default().to_owned(),
                fresh: wanted.refused.is_some(),
            });
            if wanted.refused.is_none() {
                state.admitted.insert((module, wanted.token), index);
                admitted.push((index, wanted));
            }
        }
        admitted
    }

    /// Returns a method's number and counters. A new method gets a number.
    fn number_of(
        &self,
        module: ModuleKey,
        wanted: &MatchedMethod,
    ) -> Option<(i32, &'static Method)> {
        let mut state = lock(&self.state);
        if let Some(known) = state.known.get(&(module, wanted.token)) {
            return Some(*known);
        }
        let name = format!("{}.{}", wanted.type_name, wanted.name);
        let new = table::add(name.into())?;
        state.known.insert((module, wanted.token), new);
        Some(new)
    }

    /// Records the outcome of one of a session's methods.
    fn record_outcome(&self, session: u32, index: usize, outcome: Result<i32, String>) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        if state.session != session {
            return;
        }
        let Some(traced) = state.traced.get_mut(index) else {
            return;
        };
        traced.fresh = true;
        match outcome {
            Ok(number) => traced.number = Some(number),
            Err(why) => {
                traced.refused = why;
                state.count = state.count.saturating_sub(1);
            }
        }
    }

    /// Calls of this method may be missing: see [`TraceState::may_be_inlined`].
    fn may_be_inlined(&self, wanted: &MatchedMethod) {
        let name = format!("{}.{}", pattern::plain(&wanted.type_name), wanted.name);
        lock(&self.state).may_be_inlined.insert(name);
    }

    /// Reverts a method to its own code, unless the user has named it. Returns whether it was
    /// reverted.
    fn leave_out(&self, index: usize) -> bool {
        let state = lock(&self.state);
        let Some(traced) = state.traced.get(index).filter(|traced| !traced.is_exact) else {
            return false;
        };
        let runtime = traced.runtime;
        let mut known = state.known.iter();
        let found = known.find(|(_, (number, _))| traced.number == Some(*number));
        let Some(key) = found.map(|(key, _)| *key) else {
            return false;
        };
        drop(state);
        self.of(runtime).is_some_and(|own| own.leave_out(key))
    }

    /// Notes that the runtime cannot compile a method.
    pub(crate) fn failed(&self, module: ModuleKey, token: Token, why: Hresult) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        if let Some((number, _)) = state.known.get(&(module, token))
            && let Some(traced) = state.traced.iter_mut().find(|t| t.number == Some(*number))
        {
            traced.refused = describe_error(why);
            traced.fresh = true;
        }
    }
}

/// Writes a note on methods whose calls may be missing, as runtime-async callers contain inlined
/// copies.
fn inlined_note(methods: &BTreeSet<String>) -> Option<String> {
    if methods.is_empty() {
        return None;
    }
    let named: Vec<&str> = methods
        .iter()
        .map(String::as_str)
        .take(MAX_INLINED)
        .collect();
    let mut named = named.join(", ");
    if let more @ 1.. = methods.len().saturating_sub(MAX_INLINED) {
        named += &format!(" and {more} more");
    }
    Some(format!(
        "calls through interfaces, virtual methods or delegates may be missing for {named}: .NET \
         11 does not report where runtime-async code of other modules, compiled before tracing, \
         inlined them"
    ))
}

/// Writes a note on calls of async methods that have not ended.
fn report_not_ended(events: &Events) {
    let (waiting, no_room) = probes::not_ended();
    if no_room > 0 {
        events.announce(EventAnnouncement::Note(format!(
            "{no_room} calls of async methods were not counted, because too many others were pending"
        )));
    }
    if waiting.is_empty() {
        return;
    }
    let all: u64 = waiting.values().sum();
    let mut by_count: Vec<(i32, u64)> = waiting.into_iter().collect();
    by_count.sort_by_key(|(number, count)| (std::cmp::Reverse(*count), *number));
    let named = by_count.iter().take(MAX_NOT_ENDED);
    let named = named.filter_map(|(number, count)| {
        table::method(*number).map(|method| format!("{} {count}", method.name))
    });
    let mut named = named.collect::<Vec<_>>().join(", ");
    if let more @ 1.. = by_count.len().saturating_sub(MAX_NOT_ENDED) {
        named += &format!(" and {more} more methods");
    }
    events.announce(EventAnnouncement::Note(format!(
        "{all} calls of async methods had not completed when tracing ended, and are not counted: \
         {named}"
    )));
}

/// Returns the reason why a module cannot be traced, if any.
fn refusal_of(path: &str, flags: ModuleFlags) -> Option<&'static str> {
    if path.rsplit('/').next() == Some("System.Private.CoreLib.dll") {
        return Some("the runtime itself calls methods of System.Private.CoreLib");
    }
    if flags.contains(ModuleFlags::COLLECTIBLE) {
        return Some(
            "its assembly can be unloaded, and the runtime does not compile such code again",
        );
    }
    if flags.contains(ModuleFlags::DYNAMIC) {
        return Some("the assembly was made at run time");
    }
    None
}

/// Returns the methods of a module that match a pattern.
fn find<'rt, C: MayTriggerGc>(
    cx: &mut Cx<'rt, C>,
    module: ModuleId<'rt>,
    patterns: &[Pattern],
    match_counts: &mut [u64],
    refused: Option<&'static str>,
) -> corprof::Result<Vec<MatchedMethod>> {
    let Some(metadata) = cx.info().get_module_meta_data(cx, module)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for class in metadata.enum_type_defs()? {
        let type_name = names::type_of(&metadata, class);
        let plain = pattern::plain(&type_name);
        let in_here = patterns.iter().zip(match_counts.iter_mut());
        let mut in_here: Vec<_> = in_here
            .filter(|(pattern, _)| pattern.may_match_in(&plain))
            .collect();
        if in_here.is_empty() {
            continue;
        }
        for token in metadata.enum_methods(class)? {
            let method = metadata.get_method_props(token)?;
            let whole = format!("{plain}.{}", method.name);
            let matches = in_here.iter_mut().find(|(one, _)| one.matches(&whole));
            let Some((pattern, match_counts)) = matches else {
                continue;
            };
            let (min_ns, is_exact) = (pattern.min_ns, pattern.is_exact());
            if !is_exact
                && !pattern.text.contains(asyncs::MOVE_NEXT)
                && asyncs::is_machinery(&metadata, class, &method.name)
            {
                // The pattern matches its kickoff, by name.
                continue;
            }
            let own = own_reason(&method);
            if own.is_some_and(|(_, is_code)| !is_code) && !is_exact {
                // No pattern names it exactly, and it has no code.
                continue;
            }
            **match_counts += 1;
            found.push(MatchedMethod {
                token,
                type_name: type_name.clone(),
                name: method.name,
                signature: method.signature,
                min_ns,
                is_exact,
                refused: refused.or(own.map(|(why, _)| why)),
            });
        }
    }
    Ok(found)
}

/// Returns the reason, from its metadata, why a method cannot be traced, and whether it has code at
/// all.
fn own_reason(method: &MethodProps) -> Option<(&'static str, bool)> {
    /// `miCodeTypeMask`: 0 is IL. `miInternalCall`.
    const CODE_TYPE: u32 = 0x3;
    const INTERNAL_CALL: u32 = 0x1000;
    /// The flags of ECMA-335 II.23.1.11 and `corhdr.h`, `miAsync` included.
    const KNOWN: u32 = 0x37ff;
    if method.rva == 0
        || method.implementation & CODE_TYPE != 0
        || method.implementation & INTERNAL_CALL != 0
    {
        return Some((
            "it has no IL (abstract, P/Invoke or made by the runtime)",
            false,
        ));
    }
    if method.implementation & !KNOWN != 0 {
        return Some((
            "it has flags of a newer runtime, whose meaning is unknown",
            true,
        ));
    }
    if method.name == ".cctor" {
        return Some((
            "a static constructor runs once, when the runtime chooses",
            true,
        ));
    }
    None
}

/// Prepares a CLR for tracing. An error is the reason why it cannot be.
pub(crate) fn enable<C: Context>(own: &ClrTrace, clr: &Clr, events: &Events, cx: &Cx<'_, C>) {
    if let Err(why) = own.enable(cx, clr.is_beside()) {
        let version = events.of(clr.number());
        let version = version.map_or(String::new(), |own| own.facts.version.clone());
        events.announce(EventAnnouncement::Note(format!(
            "no method of .NET {version} is traced: {why}"
        )));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clr::async_types::IS_RUNTIME_ASYNC;

    fn refused(name: &str, implementation: u32) -> Option<&'static str> {
        let method = MethodProps {
            class: Token(0),
            name: name.to_owned(),
            attributes: 0,
            signature: Vec::new(),
            rva: 0x2050,
            implementation,
        };
        own_reason(&method).map(|(why, _)| why)
    }

    #[test]
    fn methods_with_unknown_flags_are_refused() {
        const AGGRESSIVE: u32 = 0x100 | 0x200;
        assert_eq!(refused("Get", 0), None);
        assert_eq!(refused("Get", AGGRESSIVE), None);
        for implementation in [IS_RUNTIME_ASYNC, IS_RUNTIME_ASYNC | AGGRESSIVE] {
            assert_eq!(refused("GetAsync", implementation), None);
        }
        for implementation in [0x800, 0x4000, 0x8000] {
            let why = refused("Get", implementation).unwrap();
            assert!(why.contains("newer runtime"), "{why}");
        }
    }

    #[test]
    fn the_note_on_inlined_copies_names_ten() {
        assert_eq!(inlined_note(&BTreeSet::new()), None);
        let methods: BTreeSet<String> = (10..22).map(|i| format!("M{i}")).collect();
        let note = inlined_note(&methods).unwrap();
        assert!(
            note.contains("M10, M11") && note.contains("M19 and 2 more"),
            "{note}"
        );
    }
}
