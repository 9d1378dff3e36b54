//! One CLR of the process: its callbacks.
//!
//! The callbacks keep the code map and the list of threads true, at once, and tell the agent
//! thread the rest. They do not name methods, except those whose names cannot be asked for later
//! (collectible code), and they never wait for the agent thread but in `shutdown`.
//!
//! Invariant: a body is pushed to [`Births`] before it is in the code map, and both happen in
//! the callback that follows its publication; it leaves the map before its unload callback
//! returns.
//!
//! [`Births`]: crate::bodies::Births

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use corprof::context::{AgentThread, Callback, Context, Cooperative, NoTrigger, Startup};
use corprof::id::EventPipeProviderId;
use corprof::info::EventPipeSession;
use corprof::sys::{CorPrfGcReason, CorPrfSuspendReason};
use corprof::{
    Callbacks, ClassId, Cx, EventMaskHigh, EventMaskLow, EventPipeEvent, FunctionId, Hresult,
    ModuleFlags, ModuleId, ObjectId, RejitId, StackSnapshots, ThreadId,
};
use recording::{Event, MethodKind, Tier};
use stackwalk::{Kind, jit, pe};

use crate::agent::Agent;
use crate::bodies::{Body, Change, Taken};
use crate::config::Walker;
use crate::events::exception::{self, ExceptionFacts};
use crate::events::gc::Collector;
use crate::events::{self, EventNews, Events, NameCache, event_pipe, loads};
use crate::hijacks;
use crate::names;
use crate::proc;
use crate::shadow;
use crate::tiers;
use crate::version;

/// What is known of a managed module.
#[derive(Debug)]
pub(crate) struct ModuleFacts {
    /// Unique in the process for all time: ModuleIDs are used again.
    pub(crate) serial: u64,
    pub(crate) runtime: u8,
    pub(crate) path: String,
    pub(crate) base: u64,
    /// Its ReadyToRun code.
    precompiled: Option<Range<u64>>,
    pub(crate) mvid: OnceLock<[u8; 16]>,
    collectible: bool,
}

/// How many code headers of a runtime are read with care before they are read fast.
const HEADERS_TO_TRUST: u32 = 32;

/// Code that goes when its module, or the dynamic method itself, goes.
#[derive(Default)]
struct Unloadable {
    by_module: HashMap<usize, Vec<Range<u64>>>,
    by_function: HashMap<usize, Vec<Range<u64>>>,
}

/// One CLR.
pub(crate) struct Clr {
    agent: &'static Agent,
    index: u8,
    modules: Mutex<HashMap<usize, Arc<ModuleFacts>>>,
    /// How many of them are collectible: asked at each compilation, so not counted each time.
    collectible: AtomicU32,
    unloadable: Mutex<Unloadable>,
    /// It has instrumented tiers (.NET 8 on).
    instruments: AtomicBool,
    /// Code headers that have been read and believed since the last that was not.
    headers_read: AtomicU32,
    /// Where its thread objects keep replaced return addresses.
    hijacks: hijacks::Words,
    /// Set where a walker needs them.
    snapshots: OnceLock<StackSnapshots>,
    names: NameCache,
    exceptions: ExceptionFacts,
    collector: Collector,
    /// The provider of the runtime's own events, once it has been met.
    provider: AtomicUsize,
    session: OnceLock<EventPipeSession>,
}

/// How long `ThreadDestroyed` waits for the walk of its thread (rule 2 of the articles): a stop
/// takes milliseconds, and a program that ends a thread is not to hang for us whatever happens.
const WALK_OF_THE_DYING: Duration = Duration::from_secs(2);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Clr {
    pub(crate) fn new(agent: &'static Agent, index: u8) -> Clr {
        Clr {
            agent,
            index,
            modules: Mutex::default(),
            collectible: AtomicU32::new(0),
            unloadable: Mutex::default(),
            instruments: AtomicBool::new(false),
            headers_read: AtomicU32::new(0),
            names: NameCache::default(),
            exceptions: ExceptionFacts::default(),
            collector: Collector::default(),
            provider: AtomicUsize::new(0),
            session: OnceLock::new(),
            hijacks: hijacks::Words::default(),
            snapshots: OnceLock::new(),
        }
    }

    pub(crate) fn events(&self) -> &'static Events {
        &self.agent.events
    }

    pub(crate) fn names(&self) -> &NameCache {
        &self.names
    }

    pub(crate) fn exceptions(&self) -> &ExceptionFacts {
        &self.exceptions
    }

    pub(crate) fn collector(&self) -> &Collector {
        &self.collector
    }

    /// Whether events of this provider are the runtime's own.
    pub(crate) fn is_runtime_provider<'rt>(
        &self,
        cx: &Cx<'rt, Callback>,
        provider: EventPipeProviderId<'rt>,
    ) -> bool {
        let known = self.provider.load(Ordering::Relaxed);
        if known != 0 {
            return known == provider.raw();
        }
        let is_ours = cx
            .info()
            .event_pipe_get_provider_info(cx, provider)
            .is_ok_and(|name| event_pipe::is_runtime(&name));
        if is_ours {
            self.provider.store(provider.raw(), Ordering::Relaxed);
        }
        is_ours
    }

    /// The proof that stacks of this CLR may be walked by `DoStackSnapshot`, where the walker that
    /// was asked for needs it.
    pub(crate) fn snapshots(&self) -> Option<&StackSnapshots> {
        self.snapshots.get()
    }

    /// See [`Threads::own_hijacks`](crate::threads::Threads::own_hijacks).
    pub(crate) fn own_hijacks(&self) -> hijacks::Places {
        self.agent.threads.own_hijacks()
    }

    pub(crate) fn index(&self) -> u8 {
        self.index
    }

    /// What is known of a module.
    pub(crate) fn module(&self, module: usize) -> Option<Arc<ModuleFacts>> {
        lock(&self.modules).get(&module).cloned()
    }

    /// Whether any module's code may be unloaded.
    pub(crate) fn any_collectible(&self) -> bool {
        self.collectible.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn is_collectible(&self, module: usize) -> bool {
        self.module(module).is_some_and(|facts| facts.collectible)
    }

    /// Learns of a module and of the ReadyToRun code in it.
    fn module_loaded<'rt, C: Context>(&self, cx: &Cx<'rt, C>, module: ModuleId<'rt>) {
        let info = cx.info();
        let Ok(Some(found)) = info.get_module_info2(cx, module) else {
            return;
        };
        let base = found.base_address as u64;
        let known = self.module(module.raw());
        if known.is_some_and(|known| known.base == base) {
            return;
        }
        let image = if base != 0 && !found.flags.contains(ModuleFlags::FLAT_LAYOUT) {
            // SAFETY: the runtime has loaded an image at this base, laid out by section, and
            // keeps it until ModuleUnloadStarted (COR_PRF_MODULE_FLAGS, GetModuleInfo2).
            unsafe { pe::r2r_image(base) }.ok()
        } else {
            None
        };
        let facts = Arc::new(ModuleFacts {
            serial: self.agent.next_serial(),
            runtime: self.index,
            path: found.path,
            base,
            precompiled: image.as_ref().map(pe::Image::code),
            mvid: OnceLock::new(),
            collectible: found.flags.contains(ModuleFlags::COLLECTIBLE),
        });
        let collectible = u32::from(facts.collectible);
        self.collectible.fetch_add(collectible, Ordering::Relaxed);
        let replaced = lock(&self.modules).insert(module.raw(), facts);
        self.forget(replaced.as_deref());
        if let Some(image) = image {
            self.agent.map.add_r2r(image, u64::from(self.index));
        }
    }

    /// A module's facts hold no longer.
    fn forget(&self, facts: Option<&ModuleFacts>) {
        let collectible = facts.map_or(0, |facts| u32::from(facts.collectible));
        self.collectible.fetch_sub(collectible, Ordering::Relaxed);
    }

    /// Learns of every body of a function that is not known yet.
    fn compiled<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        rejit: RejitId,
        kind: MethodKind,
    ) -> Option<Tier> {
        let info = cx.info();
        let mut tier = None;
        let mut starts = info
            .get_native_code_start_addresses(cx, function, rejit)
            .unwrap_or_default();
        if starts.is_empty()
            && let Ok(ranges) = info.get_code_info2(cx, function)
        {
            starts.extend(ranges.first().map(|range| range.start_address));
        }
        let time_ns = proc::now_ns();
        for &code_start in &starts {
            let start = code_start as u64;
            if let Some(region) = self.agent.map.lookup(start)
                && (region.start == start || region.kind == Kind::ReadyToRun)
            {
                continue;
            }
            let ranges = info.get_code_info4(cx, code_start).unwrap_or_default();
            let Some(range) = ranges
                .iter()
                .find(|range| range.start_address == code_start)
                .map(|range| start..start.saturating_add(range.size as u64))
            else {
                continue;
            };
            let (taken, owner) = self.take_now(cx, function, kind, start);
            let of_this = self.tier(&range, kind, &starts);
            tier = Some(of_this);
            self.born(
                Body {
                    range: range.clone(),
                    runtime: self.index,
                    function: function.raw(),
                    code_start: start,
                    kind,
                    tier: of_this,
                    birth_ns: time_ns,
                    taken: taken.map(Arc::new),
                },
                owner,
            );
        }
        tier
    }

    /// The tier of a new body, given the starts of all bodies that its method has by now.
    fn tier(&self, range: &Range<u64>, kind: MethodKind, starts: &[usize]) -> Tier {
        if kind != MethodKind::Il {
            // Never tiered (MethodDesc::DetermineAndSetIsEligibleForTieredCompilation).
            return Tier::Optimized;
        }
        let precompiled = starts
            .iter()
            .filter_map(|start| self.agent.map.lookup(*start as u64))
            .any(|region| region.kind == Kind::ReadyToRun);
        let length = usize::try_from(range.end - range.start).map_or(0, |all| all.min(16));
        // SAFETY: the runtime has just published this code and keeps it at least until this
        // callback returns; `length` is within it.
        let code = unsafe { std::slice::from_raw_parts(range.start as *const u8, length) };
        tiers::of_body(tiers::Evidence {
            code,
            earlier_jitted: starts.len().saturating_sub(1 + usize::from(precompiled)),
            precompiled,
            instruments: self.instruments.load(Ordering::Relaxed),
        })
    }

    /// Makes a body known: to the agent thread, to the owner's unload, to the walker.
    fn born(&self, body: Body, owner: Owner) {
        let range = body.range.clone();
        let function = body.function;
        match owner {
            Owner::Runtime => {}
            Owner::Module(module) => lock(&self.unloadable)
                .by_module
                .entry(module)
                .or_default()
                .push(range.clone()),
            Owner::Function => lock(&self.unloadable)
                .by_function
                .entry(function)
                .or_default()
                .push(range.clone()),
        }
        self.agent.births.push(Change::Born(body));
        let unwind = self.unwind_of(&range, function as u64);
        self.agent.map.add_jit_body(unwind, u64::from(self.index));
    }

    /// The unwind rules of a body that the runtime has just published.
    fn unwind_of(&self, range: &Range<u64>, function: u64) -> jit::Body {
        let length = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
        let known = self.headers_read.load(Ordering::Relaxed) >= HEADERS_TO_TRUST;
        // SAFETY: the code has just been published and stays until its unload callback; the
        // header before it belongs to the same allocation. The fast way is taken only after this
        // runtime's headers have been read in the checked way many times without a mismatch.
        unsafe {
            if known && let Ok(body) = jit::body_from_known_header(range.start, function) {
                return body;
            }
            match jit::body_from_header(range.start, function) {
                Ok(body) => {
                    self.headers_read.fetch_add(1, Ordering::Relaxed);
                    body
                }
                Err(_) => {
                    self.headers_read.store(0, Ordering::Relaxed);
                    jit::body_from_code(range.start, length)
                }
            }
        }
    }

    /// What must be taken now, and who takes the code away. Nothing for code that stays: the
    /// agent thread asks when a sample wants to know.
    fn take_now<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        kind: MethodKind,
        start: u64,
    ) -> (Option<Taken>, Owner) {
        if kind != MethodKind::Il {
            let taken = Taken {
                names: names::of_dynamic(cx, function),
                il_map: Box::default(),
            };
            return (Some(taken), Owner::Function);
        }
        if !self.any_collectible() {
            return (None, Owner::Runtime);
        }
        match names::collectible_owner(self, cx, function) {
            Some(module) => {
                let taken = Taken {
                    names: names::of_function(self, cx, function),
                    il_map: names::il_map(cx, start).unwrap_or_default(),
                };
                (Some(taken), Owner::Module(module))
            }
            None => (None, Owner::Runtime),
        }
    }

    /// Asks for the events that need more than a bit in the event mask, and tells the recording
    /// where events come from.
    fn begin_events<'rt>(&self, cx: &mut Cx<'rt, Startup>, wanted: events::Setup, version: &str) {
        let events = self.events();
        events.resume();
        for news in wanted.news {
            events.tell(news);
        }
        if let Some(keywords) = wanted.session {
            match event_pipe::start(cx, keywords) {
                Ok(session) => {
                    let _only = self.session.set(session);
                }
                Err(error) => events.tell(EventNews::Note(format!(
                    "no allocation and contention samples of .NET {version}: it let nobody listen \
                     to its events ({error})"
                ))),
            }
        }
    }

    /// The recording is over and the program goes on: no more callbacks for events. Agent thread
    /// only. What cannot be taken back (the slow allocation path of .NET Core 3.1) stays.
    pub(crate) fn end_events(&self, cx: &mut Cx<'_, AgentThread>) {
        let info = cx.info();
        if let Ok((low, high)) = info.get_event_mask2(cx) {
            let events_low = EventMaskLow::MONITOR_EXCEPTIONS
                | EventMaskLow::MONITOR_CLASS_LOADS
                | EventMaskLow::MONITOR_SUSPENDS
                | EventMaskLow::MONITOR_OBJECT_ALLOCATED;
            let events_high = EventMaskHigh::BASIC_GC
                | EventMaskHigh::MONITOR_EVENT_PIPE
                | EventMaskHigh::MONITOR_LARGEOBJECT_ALLOCATED;
            if low.intersects(events_low) || high.intersects(events_high) {
                // A runtime that refuses goes on calling, and nothing comes of it.
                let _refused = info.set_event_mask2(cx, low - events_low, high - events_high);
            }
        }
        if let Some(session) = self.session.get() {
            let _ended = info.event_pipe_stop_session(cx, *session);
        }
    }

    /// A compilation has ended.
    fn jit_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        rejit: RejitId,
        status: Hresult,
        kind: MethodKind,
    ) {
        let wants = self.events().wants(Event::Jit);
        let now_ns = if wants { proc::now_ns() } else { 0 };
        let tier = if status.is_ok() {
            self.compiled(cx, function, rejit, kind)
        } else {
            None
        };
        if wants {
            events::jit::finished(self, cx, function, now_ns, tier);
        }
    }

    fn jit_started(&self, function: FunctionId<'_>) {
        // The program, or the runtime, may have loaded a library since the last look.
        self.agent.refresh_natives();
        if self.events().wants(Event::Jit) {
            events::jit::started(function);
        }
    }

    fn gone(&self, ranges: Vec<Range<u64>>) {
        let at_ns = proc::now_ns();
        for range in ranges {
            self.agent.map.remove_range(range.clone());
            self.agent.births.push(Change::Gone { range, at_ns });
        }
    }
}

/// Who takes a body's memory back.
enum Owner {
    /// Nobody: it stays as long as the runtime.
    Runtime,
    /// The unload of a module.
    Module(usize),
    /// `DynamicMethodUnloaded`.
    Function,
}

/// The callbacks that a CLR is given.
pub(crate) struct ClrCallbacks(pub(crate) Arc<Clr>);

impl Callbacks for ClrCallbacks {
    fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> corprof::Result<()> {
        let info = cx.info();
        let mut major = 0;
        let version = info
            .get_runtime_information(cx)
            .map(|found| {
                major = found.major;
                self.0
                    .instruments
                    .store(found.major >= 8, Ordering::Relaxed);
                version::of_runtime(info, found.major, found.minor, found.build)
            })
            .unwrap_or_default();
        let admitted = self.0.agent.admit(&self.0, info.runtime(), &version);
        // A refused CLR too has taken the signal for itself.
        activation::serve_all();
        if !admitted {
            return Err(Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION);
        }
        let wanted = events::setup(
            self.0.events(),
            &version,
            major,
            info.capabilities().event_pipe,
        );
        let shadow = self.0.agent.shadow.as_ref();
        let low = EventMaskLow::MONITOR_THREADS
            | EventMaskLow::MONITOR_MODULE_LOADS
            | EventMaskLow::MONITOR_JIT_COMPILATION
            | wanted.low
            | shadow.map_or(EventMaskLow::empty(), |_| shadow::EVENTS);
        let high = EventMaskHigh::MONITOR_DYNAMIC_FUNCTION_UNLOADS | wanted.high;
        let mut asked = match self.0.agent.config.walker {
            Walker::Signal | Walker::Shadow => info.set_event_mask2(cx, low, high),
            Walker::Snapshot | Walker::Suspend | Walker::Seeded | Walker::Agree => {
                info.enable_stack_snapshots(cx, low, high).map(|proof| {
                    let _once = self.0.snapshots.set(proof);
                })
            }
        };
        if asked.is_ok()
            && let Some(walker) = shadow
        {
            let hooks = shadow::Hooks::new(self.0.agent, walker, Arc::clone(&self.0));
            asked = info.set_fast_hooks(cx, hooks).map(drop);
        }
        if let Err(refusal) = asked {
            self.0.agent.registry.withdraw(self.0.index);
            return Err(refusal);
        }
        self.0.begin_events(cx, wanted, &version);
        self.0.agent.register_own_thread();
        Ok(())
    }

    fn shutdown<'rt>(&self, _cx: &mut Cx<'rt, Callback>) -> corprof::Result<()> {
        self.0.agent.runtime_ends(self.0.index);
        Ok(())
    }

    fn module_load_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        status: Hresult,
    ) -> corprof::Result<()> {
        self.0.agent.refresh_natives();
        if status.is_ok() {
            self.0.module_loaded(cx, module);
            if let Some(facts) = self.0.module(module.raw()) {
                loads::module(&self.0, cx, &facts.path);
            }
        }
        Ok(())
    }

    fn module_unload_started<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
    ) -> corprof::Result<()> {
        let ranges = lock(&self.0.unloadable)
            .by_module
            .remove(&module.raw())
            .unwrap_or_default();
        self.0.gone(ranges);
        let facts = lock(&self.0.modules).remove(&module.raw());
        self.0.forget(facts.as_deref());
        self.0.names.forget();
        if let Some(shadow) = &self.0.agent.shadow {
            shadow.module_unloaded(self.0.index, module.raw());
        }
        if let Some(code) = facts.and_then(|facts| facts.precompiled.clone()) {
            self.0.agent.map.remove_range(code);
        }
        // The code is unmapped once this callback has returned.
        self.0.agent.map.quiesce(64);
        Ok(())
    }

    fn jit_compilation_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        _is_safe_to_block: bool,
    ) -> corprof::Result<()> {
        if self.0.agent.config.walker == Walker::Agree
            && let Some(proof) = self.0.snapshots()
        {
            self.0.agent.costs.measure(self.0.agent, proof, cx);
        }
        self.0.jit_started(function);
        Ok(())
    }

    fn rejit_compilation_started<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        _rejit: RejitId,
        _is_safe_to_block: bool,
    ) -> corprof::Result<()> {
        self.0.jit_started(function);
        Ok(())
    }

    fn dynamic_method_jit_compilation_started<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        _is_safe_to_block: bool,
        _il: &[u8],
    ) -> corprof::Result<()> {
        self.0.jit_started(function);
        Ok(())
    }

    fn jit_compilation_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        status: Hresult,
        _is_safe_to_block: bool,
    ) -> corprof::Result<()> {
        let original = RejitId::ORIGINAL;
        self.0
            .jit_finished(cx, function, original, status, MethodKind::Il);
        Ok(())
    }

    fn rejit_compilation_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        rejit: RejitId,
        status: Hresult,
        _is_safe_to_block: bool,
    ) -> corprof::Result<()> {
        self.0
            .jit_finished(cx, function, rejit, status, MethodKind::Il);
        Ok(())
    }

    fn dynamic_method_jit_compilation_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        status: Hresult,
        _is_safe_to_block: bool,
    ) -> corprof::Result<()> {
        let original = RejitId::ORIGINAL;
        self.0
            .jit_finished(cx, function, original, status, MethodKind::Dynamic);
        Ok(())
    }

    fn class_load_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        class: ClassId<'rt>,
        status: Hresult,
    ) -> corprof::Result<()> {
        if status.is_ok() {
            loads::class(&self.0, cx, class);
        }
        Ok(())
    }

    fn exception_thrown<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        object: ObjectId<'rt>,
    ) -> corprof::Result<()> {
        if let Some(shadow) = &self.0.agent.shadow {
            shadow.thrown();
        }
        exception::thrown(&self.0, cx, object);
        Ok(())
    }

    fn exception_search_catcher_found<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
    ) -> corprof::Result<()> {
        exception::catcher_found(&self.0, cx, function);
        Ok(())
    }

    fn object_allocated<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        object: ObjectId<'rt>,
        class: ClassId<'rt>,
    ) -> corprof::Result<()> {
        events::alloc::object_allocated(&self.0, cx, object, class);
        Ok(())
    }

    fn event_pipe_event_delivered<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        event: EventPipeEvent<'_, 'rt>,
    ) -> corprof::Result<()> {
        event_pipe::delivered(&self.0, cx, &event);
        Ok(())
    }

    fn runtime_suspend_started<'rt>(
        &self,
        _cx: &mut Cx<'rt, NoTrigger>,
        reason: CorPrfSuspendReason,
    ) -> corprof::Result<()> {
        self.0.collector.stopping(reason, proc::now_ns());
        Ok(())
    }

    fn runtime_resume_finished<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>) -> corprof::Result<()> {
        events::gc::resumed(&self.0, cx);
        Ok(())
    }

    fn garbage_collection_started<'rt>(
        &self,
        _cx: &mut Cx<'rt, NoTrigger>,
        generations: &[bool],
        reason: CorPrfGcReason,
    ) -> corprof::Result<()> {
        self.0.collector.started(generations, reason);
        Ok(())
    }

    fn garbage_collection_finished<'rt>(
        &self,
        _cx: &mut Cx<'rt, NoTrigger>,
    ) -> corprof::Result<()> {
        self.0.collector.finished();
        Ok(())
    }

    fn dynamic_method_unloaded<'rt>(
        &self,
        _cx: &mut Cx<'rt, Cooperative>,
        function: FunctionId<'rt>,
    ) -> corprof::Result<()> {
        let ranges = lock(&self.0.unloadable)
            .by_function
            .remove(&function.raw())
            .unwrap_or_default();
        self.0.gone(ranges);
        Ok(())
    }

    fn exception_search_filter_enter<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
    ) -> corprof::Result<()> {
        if let Some(shadow) = &self.0.agent.shadow {
            shadow.filter_begins(self.0.index, function.raw());
        }
        Ok(())
    }

    fn exception_search_filter_leave<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
    ) -> corprof::Result<()> {
        if let Some(shadow) = &self.0.agent.shadow {
            shadow.filter_ends();
        }
        Ok(())
    }

    fn exception_unwind_function_enter<'rt>(
        &self,
        _cx: &mut Cx<'rt, NoTrigger>,
        function: FunctionId<'rt>,
    ) -> corprof::Result<()> {
        if let Some(shadow) = &self.0.agent.shadow {
            shadow.unwind_begins(function.raw());
        }
        Ok(())
    }

    fn exception_unwind_function_leave<'rt>(
        &self,
        _cx: &mut Cx<'rt, NoTrigger>,
    ) -> corprof::Result<()> {
        if let Some(shadow) = &self.0.agent.shadow {
            shadow.unwind_ends();
        }
        Ok(())
    }

    fn exception_catcher_enter<'rt>(
        &self,
        _cx: &mut Cx<'rt, Cooperative>,
        function: FunctionId<'rt>,
        _object: Option<ObjectId<'rt>>,
    ) -> corprof::Result<()> {
        if let Some(shadow) = &self.0.agent.shadow {
            shadow.caught(function.raw());
        }
        Ok(())
    }

    fn thread_assigned_to_os_thread<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        thread: ThreadId<'rt>,
        os_thread: u32,
    ) -> corprof::Result<()> {
        self.0.agent.pins.created(cx.info().key(thread));
        let here = proc::own_tid() == os_thread;
        self.0.agent.threads.managed_started(
            self.0.agent.sampler,
            (self.0.index, thread.raw()),
            os_thread,
            here.then(proc::own_stack).flatten(),
            self.0.hijacks.of_new_thread(thread.raw() as u64),
        );
        if here
            && let Some(shadow) = &self.0.agent.shadow
            && let Some(number) = self.0.agent.threads.number_of(os_thread)
        {
            shadow.own_thread_starts(number);
        }
        Ok(())
    }

    fn thread_destroyed<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        thread: ThreadId<'rt>,
    ) -> corprof::Result<()> {
        self.0
            .agent
            .threads
            .managed_ended(self.0.agent.sampler, (self.0.index, thread.raw()));
        let key = cx.info().key(thread);
        let _walked_still = self
            .0
            .agent
            .pins
            .destroyed_within(cx, key, WALK_OF_THE_DYING);
        Ok(())
    }

    fn thread_name_changed<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
        thread: ThreadId<'rt>,
        name: &str,
    ) -> corprof::Result<()> {
        self.0
            .agent
            .threads
            .managed_named((self.0.index, thread.raw()), name.to_owned());
        Ok(())
    }
}
