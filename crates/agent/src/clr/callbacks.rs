//! The callbacks of a CLR, and what each sets going.
//!
//! They keep the code map and the list of threads true, at once, and tell the agent thread the
//! rest. Invariant: they never wait for the agent thread but in `shutdown`, and in
//! `thread_destroyed` for the walk of that thread, for a bounded time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use corprof::context::{Callback, Cooperative, NoTrigger, Startup};
use corprof::sys::{CorPrfGcReason, CorPrfSuspendReason};
use corprof::{
    Callbacks, ClassId, Cx, EventMaskHigh, EventMaskLow, EventPipeEvent, FunctionId, Hresult,
    ModuleId, ObjectId, RejitId, ThreadId,
};
use recording::MethodKind;

use super::{Clr, lock};
use crate::config::Walker;
use crate::events::{self, EventNews, event_pipe, exception, loads};
use crate::proc;
use crate::shadow;
use crate::tiers;
use crate::version;

/// How long `ThreadDestroyed` waits for the walk of its thread (rule 2 of the articles): a stop
/// takes milliseconds, and a program that ends a thread is not to hang for us whatever happens.
const WALK_OF_THE_DYING: Duration = Duration::from_secs(2);

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
                    .store(tiers::instruments(found.major), Ordering::Relaxed);
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
        let agent = self.0.agent;
        if !agent.pins.destroyed_within(cx, key, WALK_OF_THE_DYING) {
            agent.events.tell(EventNews::Note(format!(
                "a thread ended while it was walked, and the walk did not end within {} s",
                WALK_OF_THE_DYING.as_secs()
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
        self.0
            .agent
            .threads
            .managed_named((self.0.index, thread.raw()), name.to_owned());
        Ok(())
    }
}
