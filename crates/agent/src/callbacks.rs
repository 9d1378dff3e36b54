//! The profiling callbacks of one CLR, which pass its code, threads and events to the agent.
//!
//! This is the only module that combines CLRs, threads, events and hooks. It runs on the program's
//! threads. Each callback updates the facts about the program at once and leaves the rest to the
//! agent thread. Invariant: only two callbacks wait for the agent thread, each for a bounded time:
//! `shutdown`, and `thread_destroyed`, until a stack walk of that thread has ended.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use control::{LoadMode, Message, PROTOCOL, keys, verb};
use corprof::context::{Attach, Callback, Cooperative, Detached, NoTrigger, Startup, Synchronous};
use corprof::sys::{CorPrfGcReason, CorPrfSuspendReason};

use corprof::{
    Callbacks, ClassId, Cx, EventMaskLow, EventPipeEvent, FunctionControl, FunctionId, Hresult,
    ModuleId, ObjectId, RejitId, ThreadId, Token,
};
use recording::{Event, MethodKind};

use crate::base::proc;
use crate::clr::{Clr, tiers, version};
use crate::events::source::{RuntimeFacts, SubscribeTime};
use crate::events::{
    self, ClrEvents, EventAnnouncement, Origin, event_pipe, exception, loads, subscription,
};
use crate::hooks;
use crate::program::threads::{OwnThread, StartedThread};
use crate::session::{AgentState, Library, arrival, signal};
use crate::trace::{self, ClrTrace};

/// Time limit for which `ThreadDestroyed` waits for the walk of its thread (rule 2 of the
/// articles). A suspension takes milliseconds; the limit keeps a program from hanging when it ends
/// a thread.
const SHUTDOWN_WALK_TIMEOUT: Duration = Duration::from_secs(2);

/// The callbacks of one CLR.
pub(crate) struct ClrCallbacks {
    agent: &'static AgentState,
    library: &'static Library,
    clr: Arc<Clr>,
    /// Set in `Initialize`, before any other callback.
    events: OnceLock<Arc<ClrEvents>>,
    trace: Arc<ClrTrace>,
}

impl ClrCallbacks {
    /// Creates the callbacks of a CLR.
    pub(crate) fn new(
        agent: &'static AgentState,
        library: &'static Library,
        clr: Clr,
    ) -> ClrCallbacks {
        ClrCallbacks {
            agent,
            library,
            clr: Arc::new(clr),
            events: OnceLock::new(),
            trace: Arc::default(),
        }
    }

    /// Returns this CLR as the origin of an event; `None` before `Initialize` has admitted it.
    fn origin(&self) -> Option<Origin<'_>> {
        Some(Origin {
            program: &self.agent.program,
            events: &self.agent.events,
            clr: &self.clr,
            own: self.events.get()?,
        })
    }

    fn compiling(&self, cx: &mut Cx<'_, Callback>, function: FunctionId<'_>) {
        self.trace.inlining().started(function.raw());
        if let Some(watch) = self.library.compiling {
            watch(self.agent, &self.clr, cx);
        }
        if self.agent.events.wants(Event::Jit) {
            events::jit::started(function);
        }
    }

    fn compiled<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        rejit: RejitId,
        status: Hresult,
        kind: MethodKind,
    ) {
        self.trace.inlining().finished(function.raw());
        self.clr.learn_expected(cx);
        let wants = self.agent.events.wants(Event::Jit);
        let now_ns = if wants { proc::now_ns() } else { 0 };
        let tier = if status.is_ok() {
            self.clr
                .compiled(&self.agent.program, cx, function, rejit, kind)
        } else {
            None
        };
        if wants && let Some(origin) = self.origin() {
            events::jit::finished(origin, cx, function, now_ns, tier);
        }
    }

    /// Returns the facts about this CLR.
    fn look_at_runtime<C: Synchronous>(&self, cx: &Cx<'_, C>) -> RuntimeFacts {
        let info = cx.info();
        let found = info.get_runtime_information(cx).ok();
        let major = found.as_ref().map_or(0, |found| found.major);
        self.clr.set_tiering(tiers::tiering(major));
        self.clr.set_major(major);
        self.trace.inlining().set_major(major);
        self.clr.set_modifiable(tiers::is_modifiable());
        RuntimeFacts {
            version: found
                .map(|found| version::of_runtime(info, major, found.minor, found.build))
                .unwrap_or_default(),
            major,
            event_pipe: info.capabilities().event_pipe,
            handles: info.capabilities().object_handles,
            snapshots: self.clr.arrival() == LoadMode::Attached,
        }
    }

    /// Requests the session's callbacks and events from the CLR.
    ///
    /// # Errors
    /// The CLR's error.
    fn subscribe(&self, cx: &mut Cx<'_, Startup>, own: &Arc<ClrEvents>) -> corprof::Result<()> {
        let info = cx.info();
        let settings = self.agent.settings();
        let shadow = self.agent.shadow.as_ref();
        let hooks = shadow.map_or(EventMaskLow::empty(), |_| hooks::EVENTS);
        let wanted = subscription::of_session(&settings, SubscribeTime::Startup, &own.facts, hooks);
        if settings.needs_snapshots() {
            let proof = info.enable_stack_snapshots(cx, wanted.low, wanted.high)?;
            self.clr.set_snapshots(proof);
        } else {
            info.set_event_mask2(cx, wanted.low, wanted.high)?;
        }
        if let Some(stacks) = shadow {
            let hooks = hooks::Hooks::new(&self.agent.program, stacks, Arc::clone(&self.clr));
            info.set_fast_hooks(cx, hooks)?;
        }
        if self.agent.trace.is_wanted() {
            trace::enable(&self.trace, &self.clr, &self.agent.events, cx);
        }
        self.agent.events.announce_sources(&wanted);
        if let Some(trouble) = subscription::start_session(cx, own, &wanted) {
            self.agent.events.announce(EventAnnouncement::Note(trouble));
        }
        Ok(())
    }
}

impl Callbacks for ClrCallbacks {
    fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> corprof::Result<()> {
        let agent = self.agent;
        let info = cx.info();
        let facts = self.look_at_runtime(cx);
        let version = facts.version.clone();
        let begin = || agent.phases.runtime_starts();
        let admitted = agent
            .registry
            .admit(&self.clr, info.runtime(), version, begin);
        // A refused CLR, too, has installed its activation signal handler.
        signal::install_on_top(agent);
        let refusal = Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION;
        let admitted = admitted.ok_or(refusal)?;
        self.clr.set_hijack_place(admitted.hijack_place);
        let own = Arc::new(ClrEvents::new(facts));
        let own = self.events.get_or_init(|| own);
        agent.events.add(self.clr.number(), Arc::clone(own));
        agent.trace.add(self.clr.number(), Arc::clone(&self.trace));
        if let Err(refusal) = self.subscribe(cx, own) {
            agent.events.remove(self.clr.number());
            agent.trace.remove(self.clr.number());
            agent.registry.withdraw(self.clr.number());
            return Err(refusal);
        }
        if agent.settings().needs_collection_times()
            && let Some(gate) = self.clr.heap_gate()
        {
            // No managed code runs yet.
            gate.watch();
            gate.open();
        }
        agent.program.threads.own_started();
        Ok(())
    }

    fn initialize_for_attach<'rt>(
        &self,
        cx: &mut Cx<'rt, Attach>,
        data: &[u8],
    ) -> corprof::Result<()> {
        signal::make_safe();
        let refusal = Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION;
        // The data is freed when the command ends; everything needed is copied.
        let asked = Message::parse(data).filter(|asked| {
            asked.verb == verb::ATTACH && asked.get(keys::PROTOCOL) == Some(PROTOCOL)
        });
        let asked = asked.ok_or(Hresult::E_INVALIDARG)?;
        let socket = Path::new(asked.get(keys::SOCKET).ok_or(Hresult::E_INVALIDARG)?);
        let agent = self.agent;
        let info = cx.info();
        let facts = self.look_at_runtime(cx);
        let version = facts.version.clone();
        let own = Arc::new(ClrEvents::new(facts));
        let own = self.events.get_or_init(|| own);
        // Every end from the first callback on is recorded until the catch-up is done.
        self.clr.begin_catch_up();
        let admit = || {
            let admitted = agent
                .registry
                .admit_attached(&self.clr, info.runtime(), version)
                .ok_or(refusal)?;
            self.clr.set_hijack_place(admitted.hijack_place);
            agent.events.add(self.clr.number(), Arc::clone(own));
            agent.trace.add(self.clr.number(), Arc::clone(&self.trace));
            Ok(())
        };
        let arrived = arrival::arrive(agent, self.library, socket, admit).and_then(|()| {
            // A later session may need stacks; the runtime allows that flag only now.
            let wanted = subscription::of_idle();
            if asked.get(keys::HEAP) == Some("1") {
                // Also possible only now. The runtime disables concurrent collection for it until
                // detach. A refusal is reported when the heap is to be walked.
                let low = wanted.low | EventMaskLow::MONITOR_GC;
                let _refusal = info.set_event_mask2(cx, low, wanted.high);
            }
            let proof = info.enable_stack_snapshots(cx, wanted.low, wanted.high)?;
            self.clr.set_snapshots(proof);
            Ok(())
        });
        arrived.inspect_err(|_| {
            agent.events.remove(self.clr.number());
            agent.trace.remove(self.clr.number());
            agent.registry.refuse_attached(self.clr.number());
            // The agent thread may have no CLR left to serve.
            agent.waker.wake();
        })
    }

    /// The runtime replies to the attach command when this has returned, and serves no other
    /// command before. The catch-up therefore runs on the agent thread.
    fn profiler_attach_complete<'rt>(&self, _cx: &mut Cx<'rt, Callback>) -> corprof::Result<()> {
        self.agent.registry.attach_complete(self.clr.number());
        self.agent.waker.wake();
        Ok(())
    }

    /// The runtime accepts no more calls and makes no more callbacks. State about it is released
    /// before this returns.
    fn profiler_detach_succeeded<'rt>(&self, _cx: &mut Cx<'rt, Detached>) -> corprof::Result<()> {
        let wake = || self.agent.waker.wake();
        self.agent.registry.ends(self.clr.number(), wake);
        Ok(())
    }

    fn load_as_notification_only(&self) -> corprof::Result<bool> {
        Ok(self.clr.is_beside())
    }

    fn shutdown<'rt>(&self, _cx: &mut Cx<'rt, Callback>) -> corprof::Result<()> {
        let wake = || self.agent.waker.wake();
        self.agent.registry.ends(self.clr.number(), wake);
        self.trace.end();
        Ok(())
    }

    fn module_load_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        status: Hresult,
    ) -> corprof::Result<()> {
        self.agent.program.natives.refresh();
        if status.is_ok() {
            self.clr.module_loaded(&self.agent.program, cx, module);
            let agent = self.agent;
            let trace = &agent.trace;
            trace.module(&self.clr, &self.trace, &agent.events, cx, module);
            if let Some(facts) = self.clr.module(module.raw())
                && let Some(origin) = self.origin()
            {
                loads::module(origin, cx, &facts.path);
            }
        }
        Ok(())
    }

    fn module_unload_started<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
    ) -> corprof::Result<()> {
        if let Some(own) = self.events.get() {
            own.names.forget();
        }
        if let Some(shadow) = &self.agent.shadow {
            shadow.module_unloaded(self.clr.number(), module.raw());
        }
        self.clr.module_unloaded(&self.agent.program, module);
        Ok(())
    }

    fn get_rejit_parameters<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        method: Token,
        control: FunctionControl<'rt>,
    ) -> corprof::Result<()> {
        self.trace.parameters(cx, module, method, &control)
    }

    fn rejit_error<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        method: Token,
        _function: Option<FunctionId<'rt>>,
        status: Hresult,
    ) -> corprof::Result<()> {
        let module = cx.info().key(module);
        self.agent.trace.failed(module, method, status);
        Ok(())
    }

    fn jit_compilation_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        _is_safe_to_block: bool,
    ) -> corprof::Result<()> {
        self.compiling(cx, function);
        Ok(())
    }

    fn jit_inlining<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
        _caller: FunctionId<'rt>,
        _callee: FunctionId<'rt>,
    ) -> corprof::Result<bool> {
        Ok(self.trace.inlining().is_allowed())
    }

    fn rejit_compilation_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        _rejit: RejitId,
        _is_safe_to_block: bool,
    ) -> corprof::Result<()> {
        self.compiling(cx, function);
        Ok(())
    }

    fn dynamic_method_jit_compilation_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        _is_safe_to_block: bool,
        _il: &[u8],
    ) -> corprof::Result<()> {
        self.compiling(cx, function);
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
        self.compiled(cx, function, original, status, MethodKind::Il);
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
        self.compiled(cx, function, rejit, status, MethodKind::Il);
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
        self.compiled(cx, function, original, status, MethodKind::Dynamic);
        Ok(())
    }

    fn class_load_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        class: ClassId<'rt>,
        status: Hresult,
    ) -> corprof::Result<()> {
        if status.is_ok()
            && let Some(origin) = self.origin()
        {
            loads::class(origin, cx, class);
        }
        Ok(())
    }

    fn exception_thrown<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        object: ObjectId<'rt>,
    ) -> corprof::Result<()> {
        if let Some(shadow) = &self.agent.shadow {
            shadow.thrown();
        }
        if let Some(origin) = self.origin() {
            exception::thrown(origin, cx, object);
        }
        Ok(())
    }

    fn exception_search_function_enter<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
    ) -> corprof::Result<()> {
        if let Some(origin) = self.origin() {
            exception::search_enters(origin, function);
        }
        Ok(())
    }

    fn exception_search_function_leave<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
    ) -> corprof::Result<()> {
        if let Some(origin) = self.origin() {
            exception::search_leaves(origin);
        }
        Ok(())
    }

    fn exception_search_catcher_found<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
    ) -> corprof::Result<()> {
        if let Some(origin) = self.origin() {
            exception::catcher_found(origin, cx, function);
        }
        Ok(())
    }

    fn object_allocated<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        object: ObjectId<'rt>,
        class: ClassId<'rt>,
    ) -> corprof::Result<()> {
        if let Some(origin) = self.origin() {
            events::alloc::object_allocated(origin, cx, object, class);
        }
        Ok(())
    }

    fn event_pipe_event_delivered<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        event: EventPipeEvent<'_, 'rt>,
    ) -> corprof::Result<()> {
        if let Some(origin) = self.origin() {
            event_pipe::delivered(origin, cx, &event);
        }
        Ok(())
    }

    fn runtime_suspend_started<'rt>(
        &self,
        _cx: &mut Cx<'rt, NoTrigger>,
        reason: CorPrfSuspendReason,
    ) -> corprof::Result<()> {
        if let Some(gate) = self.clr.heap_gate() {
            gate.close();
        }
        if let Some(own) = self.events.get() {
            own.collector().stopping(reason, proc::now_ns());
        }
        if self.agent.phase.get().is_session() {
            self.clr.collection_times().begin(reason);
        }
        Ok(())
    }

    fn runtime_suspend_aborted<'rt>(&self, _cx: &mut Cx<'rt, NoTrigger>) -> corprof::Result<()> {
        self.clr.collection_times().end();
        if let Some(gate) = self.clr.heap_gate() {
            gate.open();
        }
        Ok(())
    }

    fn runtime_resume_started<'rt>(&self, _cx: &mut Cx<'rt, NoTrigger>) -> corprof::Result<()> {
        self.clr.collection_times().end();
        if let Some(gate) = self.clr.heap_gate() {
            gate.open();
        }
        Ok(())
    }

    fn runtime_resume_finished<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>) -> corprof::Result<()> {
        if let Some(origin) = self.origin() {
            events::gc::resumed(origin, cx);
        }
        Ok(())
    }

    fn garbage_collection_started<'rt>(
        &self,
        _cx: &mut Cx<'rt, NoTrigger>,
        generations: &[bool],
        reason: CorPrfGcReason,
    ) -> corprof::Result<()> {
        if let Some(own) = self.events.get() {
            own.collector().started(generations, reason);
        }
        self.clr
            .survey(|survey| survey.collection_begins(generations));
        Ok(())
    }

    fn garbage_collection_finished<'rt>(
        &self,
        _cx: &mut Cx<'rt, NoTrigger>,
    ) -> corprof::Result<()> {
        if let Some(own) = self.events.get() {
            own.collector().finished();
        }
        self.clr.survey(|survey| survey.collection_ends());
        self.agent.events.collected();
        Ok(())
    }

    fn object_references<'rt>(
        &self,
        _cx: &mut Cx<'rt, NoTrigger>,
        object: usize,
        _class: Option<ClassId<'rt>>,
        _references: &[usize],
    ) -> corprof::Result<()> {
        let reported = self.clr.survey(|survey| survey.object(object as u64));
        // An error cancels the rest of this walk.
        reported.ok_or(Hresult::E_FAIL)
    }

    fn dynamic_method_unloaded<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        function: FunctionId<'rt>,
    ) -> corprof::Result<()> {
        self.clr.dynamic_unloaded(&self.agent.program, cx, function);
        Ok(())
    }

    fn exception_search_filter_enter<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
    ) -> corprof::Result<()> {
        if let Some(shadow) = &self.agent.shadow {
            shadow.filter_begins(self.clr.number(), function.raw());
        }
        Ok(())
    }

    fn exception_search_filter_leave<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
    ) -> corprof::Result<()> {
        if let Some(shadow) = &self.agent.shadow {
            shadow.filter_ends();
        }
        Ok(())
    }

    fn exception_unwind_function_enter<'rt>(
        &self,
        _cx: &mut Cx<'rt, NoTrigger>,
        function: FunctionId<'rt>,
    ) -> corprof::Result<()> {
        if let Some(shadow) = &self.agent.shadow {
            shadow.unwind_begins(function.raw());
        }
        Ok(())
    }

    fn exception_unwind_function_leave<'rt>(
        &self,
        _cx: &mut Cx<'rt, NoTrigger>,
    ) -> corprof::Result<()> {
        if let Some(shadow) = &self.agent.shadow {
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
        if let Some(shadow) = &self.agent.shadow {
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
        let threads = &self.agent.program.threads;
        threads.pins.created(cx.info().key(thread));
        if threads.is_agent_thread(os_thread) {
            return Ok(());
        }
        let here = proc::own_tid() == os_thread;
        let managed = (self.clr.number(), thread.raw());
        let hijack = self.clr.hijack_of(thread.raw());
        let chosen = if here {
            threads.choose(managed, os_thread, hijack)
        } else {
            Some(1)
        };
        let Some(stands_for) = chosen else {
            return Ok(());
        };
        threads.managed_started(StartedThread {
            managed,
            tid: os_thread,
            own: here.then(OwnThread::here),
            hijack,
            stands_for,
        });
        if here
            && let Some(shadow) = &self.agent.shadow
            && let Some(number) = threads.number_of(os_thread)
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
        let threads = &self.agent.program.threads;
        self.clr.thread_ending(thread.raw());
        threads.managed_ended((self.clr.number(), thread.raw()));
        let key = cx.info().key(thread);
        if !threads
            .pins
            .destroyed_within(cx, key, SHUTDOWN_WALK_TIMEOUT)
        {
            self.agent.events.announce(EventAnnouncement::Note(format!(
                "a thread ended while it was walked, and the walk did not end within {} s",
                SHUTDOWN_WALK_TIMEOUT.as_secs()
            )));
        }
        Ok(())
    }

    fn thread_name_changed<'rt>(
        &self,
        _cx: &mut Cx<'rt, Callback>,
        thread: ThreadId<'rt>,
        name: &str,
    ) -> corprof::Result<()> {
        let managed = (self.clr.number(), thread.raw());
        self.agent
            .program
            .threads
            .managed_named(managed, name.to_owned());
        Ok(())
    }
}
