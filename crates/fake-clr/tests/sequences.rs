//! Property test: typed calls never get `CORPROF_E_UNSUPPORTED_CALL_SEQUENCE`; raw calls do.
//!
//! It runs random sequences of calls in random callbacks, hooks, suspensions and threads.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use corprof::context::{
    AgentThread, Async, Attach, Callback, Context, Cooperative, Detached, MayTriggerGc, NoTrigger,
    Startup, Suspended, Synchronous,
};
use corprof::elt::{FastHooks, FunctionMapper, HookCall};
use corprof::sys::rules::{RULES, RuntimeVersion};
use corprof::sys::{
    CorPrfGcReason, CorPrfHandleType, CorPrfSuspendReason, Hresult, ICorProfilerInfo15,
};
use corprof::*;
use fake_clr::{FakeClr, Frame, Ids};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// A step: a place, and calls to make there, by number.
#[derive(Clone, Debug)]
struct Step {
    place: u8,
    calls: Vec<u8>,
}

/// The profiler's script for the next place, and its state.
struct Shared {
    raw: bool,
    script: Mutex<Vec<u8>>,
    ids: OnceLock<Ids>,
    runtime: OnceLock<Runtime>,
    snapshots: OnceLock<StackSnapshots>,
    made: AtomicUsize,
}

impl Shared {
    fn script(&self) -> Vec<u8> {
        self.script.lock().unwrap().clone()
    }

    fn keys(&self, index: RuntimeIndex) -> Option<Keys> {
        let ids = self.ids.get()?;
        // SAFETY: these are ids of the fake runtime, of these kinds.
        unsafe {
            Some(Keys {
                module: ModuleKey::from_parts(index, ids.module)?,
                class: ClassKey::from_parts(index, ids.class)?,
                function: FunctionKey::from_parts(index, ids.function)?,
                dynamic: FunctionKey::from_parts(index, ids.dynamic)?,
                thread: ThreadKey::from_parts(index, ids.thread.0)?,
                ip: ids.ip,
            })
        }
    }

    /// Runs the script: through the typed layer the calls that the context permits, or through the
    /// raw layer any call.
    fn run<'rt, C>(
        &self,
        cx: &mut Cx<'rt, C>,
        mut typed: impl FnMut(&mut Cx<'rt, C>, &Keys, u8),
    ) -> Result<()> {
        let Some(keys) = self.keys(cx.info().index()) else {
            return Ok(());
        };
        for call in self.script() {
            self.made.fetch_add(1, Ordering::Relaxed);
            if self.raw {
                raw_call(cx.info(), call);
            } else {
                typed(cx, &keys, call);
            }
        }
        Ok(())
    }
}

struct Keys {
    module: ModuleKey,
    class: ClassKey,
    function: FunctionKey,
    dynamic: FunctionKey,
    thread: ThreadKey,
    ip: usize,
}

/// Calls any method with zeros.
fn raw_call(info: Info<'_>, call: u8) {
    type Zeros = unsafe extern "system" fn(
        *mut ICorProfilerInfo15,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
    ) -> Hresult;
    let slot = 3 + usize::from(call) % RULES.len();
    let (this, slots) = info.as_raw().unwrap();
    if slot >= slots {
        return;
    }
    let this = this.as_ptr();
    // SAFETY: the fake runtime accepts zeros in every method.
    unsafe {
        let method: Zeros = *(*this).vtbl.cast::<Zeros>().add(slot);
        method(this, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        // Resume, because otherwise nothing would continue.
        if RULES[slot - 3].name == "SuspendRuntime" {
            ICorProfilerInfo15::resume_runtime(this);
        }
    }
}

const ASYNCHRONOUS: u8 = 15;
fn asynchronous<'rt, C: Context>(shared: &Shared, cx: &mut Cx<'rt, C>, keys: &Keys, call: u8) {
    let info = cx.info();
    let function = info.id(keys.function).unwrap();
    let class = info.id(keys.class).unwrap();
    match call % ASYNCHRONOUS {
        0 => {
            let _ = info.get_event_mask2(cx);
        }
        1 => {
            if let Ok((low, high)) = info.get_event_mask2(cx) {
                let _ = info.set_event_mask2(cx, low, high);
            }
        }
        2 => {
            let _ = info.get_current_thread_id(cx);
        }
        3 => {
            let _ = info.get_thread_context(cx, info.id(keys.thread).unwrap());
        }
        4 => {
            let _ = info.get_thread_app_domain(cx, info.id(keys.thread).unwrap());
        }
        5 => {
            let _ = info.get_function_from_ip(cx, keys.ip);
        }
        6 => {
            let _ = info.get_function_info(cx, function);
        }
        7 => {
            let _ = info.get_function_info2(cx, function);
        }
        8 => {
            let _ = info.get_code_info2(cx, function);
        }
        9 => {
            let _ = info.get_module_info2(cx, info.id(keys.module).unwrap());
        }
        10 => {
            let _ = info.get_class_id_info2(cx, class);
        }
        11 => {
            let _ = info.is_array_class(cx, class);
        }
        12 => {
            let _ = info.is_function_dynamic(cx, function);
        }
        13 => {
            let _ = info.get_dynamic_function_info(cx, info.id(keys.dynamic).unwrap());
        }
        _ => {
            if let Some(proof) = shared.snapshots.get() {
                // The frame callback makes an asynchronous call.
                let _ = info.walk_current(cx, proof, |cx, frame| {
                    let _ = info.get_event_mask2(cx);
                    match frame {
                        SnapshotFrame::Managed { function, .. } => {
                            let _ = info.get_function_info2(cx, function);
                            ControlFlow::Continue(())
                        }
                        SnapshotFrame::UnmanagedRun { .. } => ControlFlow::Break(()),
                    }
                });
            }
        }
    }
}

const SYNCHRONOUS: u8 = 17;
fn synchronous<'rt, C: Synchronous>(cx: &mut Cx<'rt, C>, keys: &Keys, call: u8) {
    let info = cx.info();
    let function = info.id(keys.function).unwrap();
    let class = info.id(keys.class).unwrap();
    let module = info.id(keys.module).unwrap();
    let thread = info.id(keys.thread).unwrap();
    match call % SYNCHRONOUS {
        0 => {
            let _ = info.get_thread_info(cx, thread);
        }
        1 => {
            let _ = info.get_module_meta_data(cx, module);
        }
        2 => {
            let _ = info.get_runtime_information(cx);
        }
        3 => {
            let _ = info.enum_threads(cx);
        }
        4 => {
            let _ = info.enum_jited_functions(cx);
        }
        5 => {
            let _ = info.get_native_code_start_addresses(cx, function, RejitId::ORIGINAL);
        }
        6 => {
            let _ = info.get_il_to_native_mapping3(cx, keys.ip - 4);
        }
        7 => {
            let _ = info.initialize_current_thread(cx);
        }
        8 => {
            let _ = info.get_function_from_token(cx, module, Token(0x0600_0001));
        }
        9 => {
            let _ = info.get_string_layout2(cx);
        }
        10 => {
            let _ = info.read_in_memory_symbols(cx, module);
        }
        11 => {
            let _ = info.get_environment_variable(cx, "PATH");
        }
        12 => {
            let _ = info.set_environment_variable(cx, "A", Some("b"));
        }
        13 => {
            let _ = info.get_loh_object_size_threshold(cx);
        }
        14 => {
            let _ = info.get_static_field_info(cx, class, Token(0x0400_0001));
        }
        15 => {
            let _ = info.get_token_and_meta_data_from_function(cx, function);
        }
        _ => {
            let _ = info.get_handle_from_thread(cx, thread);
        }
    }
}

const TRIGGERING: u8 = 10;
fn triggering<'rt, C: MayTriggerGc>(cx: &mut Cx<'rt, C>, keys: &Keys, call: u8) {
    let info = cx.info();
    let function = info.id(keys.function).unwrap();
    let module = info.id(keys.module).unwrap();
    match call % TRIGGERING {
        0 => {
            let _ = info.enum_modules(cx);
        }
        1 => {
            let _ = info.enum_jited_functions2(cx);
        }
        2 => {
            let _ = info.get_code_info3(cx, function, RejitId::ORIGINAL);
        }
        3 => {
            let _ = info.get_code_info4(cx, keys.ip - 4);
        }
        4 => {
            let _ = info.get_function_from_ip2(cx, keys.ip);
        }
        5 => {
            let _ = info.get_function_from_ip3(cx, keys.ip);
        }
        6 => {
            let _ = info.get_rejit_ids(cx, function);
        }
        7 => {
            let _ = info.get_app_domains_containing_module(cx, module);
        }
        8 => {
            let _ = info.apply_meta_data(cx, module);
        }
        _ => {
            let _ = info.get_il_function_body_allocator(cx, module);
        }
    }
}

/// Calls that may load a class.
fn loading<'rt>(cx: &mut Cx<'rt, Callback>, keys: &Keys, call: u8) {
    let info = cx.info();
    let class = info.id(keys.class).unwrap();
    let module = info.id(keys.module).unwrap();
    let token = Token(0x0200_0001);
    match call % 2 {
        0 => drop(info.get_class_from_token(cx, module, token)),
        _ => drop(info.get_class_from_token_and_type_args(cx, module, token, &[class])),
    }
}

fn native<'rt>(shared: &Shared, cx: &mut Cx<'rt, AgentThread>, keys: &Keys, call: u8) {
    let info = cx.info();
    match call % 8 {
        0 => {
            let _ = info.force_gc(cx);
        }
        1..=4 => {
            let suspended = info.suspend_runtime_with_retries(cx, 2, Duration::ZERO);
            if let (Ok(mut suspension), Some(proof)) = (suspended, shared.snapshots.get()) {
                for thread in suspension.enum_threads().unwrap_or_default() {
                    let _ = suspension.get_thread_info(thread);
                    let _ = suspension.walk(proof, thread, |cx: &mut Cx<'rt, Suspended>, _| {
                        asynchronous(shared, cx, keys, call);
                        ControlFlow::<()>::Continue(())
                    });
                }
                asynchronous(shared, suspension.cx(), keys, call);
                let _ = suspension.resume();
            }
        }
        5 => triggering(cx, keys, call / 8),
        6 => synchronous(cx, keys, call / 8),
        _ => asynchronous(shared, cx, keys, call / 8),
    }
}

struct Profiler(Arc<Shared>);

impl FunctionMapper for Profiler {
    fn map<'rt>(&self, cx: &mut Cx<'rt, Callback>, _: FunctionId<'rt>) -> Option<usize> {
        let _ = self.in_callback(cx);
        Some(1)
    }
}

impl FastHooks for Profiler {
    fn enter<'rt>(&self, cx: &mut Cx<'rt, Async>, _: &HookCall<'rt>) {
        let shared = &self.0;
        let _ = shared.run(cx, |cx, keys, call| asynchronous(shared, cx, keys, call));
    }
    fn leave<'rt>(&self, cx: &mut Cx<'rt, Async>, call: &HookCall<'rt>) {
        self.enter(cx, call);
    }
    fn tailcall<'rt>(&self, cx: &mut Cx<'rt, Async>, call: &HookCall<'rt>) {
        self.enter(cx, call);
    }
}

impl Profiler {
    fn starting<'rt, C: MayTriggerGc>(&self, cx: &mut Cx<'rt, C>) -> Result<()> {
        let shared = &self.0;
        shared.run(cx, |cx, keys, call| match call % 3 {
            0 => asynchronous(shared, cx, keys, call / 3),
            1 => synchronous(cx, keys, call / 3),
            _ => triggering(cx, keys, call / 3),
        })
    }
    fn in_callback<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        let shared = &self.0;
        shared.run(cx, |cx, keys, call| match call % 4 {
            0 => asynchronous(shared, cx, keys, call / 4),
            1 => synchronous(cx, keys, call / 4),
            2 => loading(cx, keys, call / 4),
            _ => triggering(cx, keys, call / 4),
        })
    }
    fn without_triggers<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>) -> Result<()> {
        let shared = &self.0;
        shared.run(cx, |cx, keys, call| match call % 2 {
            0 => asynchronous(shared, cx, keys, call / 2),
            _ => synchronous(cx, keys, call / 2),
        })
    }
    fn with_object<'rt>(&self, cx: &mut Cx<'rt, Cooperative>, object: ObjectId<'rt>) -> Result<()> {
        let shared = &self.0;
        shared.run(cx, |cx, keys, call| {
            let info = cx.info();
            match call % 8 {
                0 => {
                    let _ = info.get_class_from_object(cx, object);
                }
                1 => {
                    let _ = info.get_object_size2(cx, object);
                }
                2 => {
                    let _ = info.get_array_object_info(cx, object, 1);
                }
                3 => {
                    let _ = info.enumerate_object_references(cx, object);
                }
                4 => {
                    if let Ok(handle) = info.create_handle(cx, object, CorPrfHandleType::WEAK) {
                        let _ = info.get_object_id_from_handle(cx, &handle);
                        let _ = info.destroy_handle(cx, handle);
                    }
                }
                5 => {
                    let _ = info.is_frozen_object(cx, object);
                }
                6 => asynchronous(shared, cx, keys, call / 8),
                _ => synchronous(cx, keys, call / 8),
            }
        })
    }
    fn set_up<'rt, C: corprof::context::Initializing>(
        &self,
        cx: &mut Cx<'rt, C>,
        low: EventMaskLow,
    ) -> Result<()> {
        let info = cx.info();
        self.0.runtime.set(info.runtime()).ok();
        let proof = info.enable_stack_snapshots(cx, low, EventMaskHigh::BASIC_GC)?;
        self.0.snapshots.set(proof).ok();
        self.starting(cx)
    }
}

const EVENTS: EventMaskLow = EventMaskLow::MONITOR_JIT_COMPILATION
    .union(EventMaskLow::MONITOR_THREADS)
    .union(EventMaskLow::MONITOR_SUSPENDS)
    .union(EventMaskLow::MONITOR_MODULE_LOADS)
    .union(EventMaskLow::MONITOR_EXCEPTIONS)
    .union(EventMaskLow::ENABLE_REJIT);

impl Callbacks for Profiler {
    fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> Result<()> {
        self.set_up(
            cx,
            EVENTS
                | EventMaskLow::MONITOR_ENTERLEAVE
                | EventMaskLow::MONITOR_OBJECT_ALLOCATED
                | EventMaskLow::ENABLE_OBJECT_ALLOCATED,
        )?;
        cx.info().set_fast_hooks(cx, Profiler(self.0.clone()))?;
        Ok(())
    }
    fn initialize_for_attach<'rt>(&self, cx: &mut Cx<'rt, Attach>, _: &[u8]) -> Result<()> {
        self.set_up(cx, EVENTS)
    }
    fn profiler_attach_complete<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        self.in_callback(cx)
    }
    fn profiler_detach_succeeded<'rt>(&self, cx: &mut Cx<'rt, Detached>) -> Result<()> {
        // No typed call is possible here.
        self.0.run(cx, |_, _, _| ())
    }
    fn jit_compilation_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        _: FunctionId<'rt>,
        _: bool,
    ) -> Result<()> {
        self.in_callback(cx)
    }
    fn thread_created<'rt>(&self, cx: &mut Cx<'rt, Callback>, _: ThreadId<'rt>) -> Result<()> {
        self.in_callback(cx)
    }
    fn module_load_started<'rt>(&self, cx: &mut Cx<'rt, Callback>, _: ModuleId<'rt>) -> Result<()> {
        self.in_callback(cx)
    }
    fn thread_assigned_to_os_thread<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        _: ThreadId<'rt>,
        _: u32,
    ) -> Result<()> {
        self.without_triggers(cx)
    }
    fn runtime_suspend_started<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        _: CorPrfSuspendReason,
    ) -> Result<()> {
        self.without_triggers(cx)
    }
    fn exception_unwind_function_enter<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        _: FunctionId<'rt>,
    ) -> Result<()> {
        self.without_triggers(cx)
    }
    fn garbage_collection_started<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        _: &[bool],
        _: CorPrfGcReason,
    ) -> Result<()> {
        self.without_triggers(cx)
    }
    fn garbage_collection_finished<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>) -> Result<()> {
        self.without_triggers(cx)
    }
    fn object_allocated<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        object: ObjectId<'rt>,
        _: ClassId<'rt>,
    ) -> Result<()> {
        self.with_object(cx, object)
    }
    fn exception_thrown<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        object: ObjectId<'rt>,
    ) -> Result<()> {
        self.with_object(cx, object)
    }
}

thread_local! {
    /// Passes the state to the constructor, which has no arguments for it.
    static SHARED: std::cell::RefCell<Option<Arc<Shared>>> = const { std::cell::RefCell::new(None) };
}

fn create(_: &ClassRequest) -> Result<Box<dyn Callbacks>> {
    let shared = SHARED
        .with_borrow_mut(Option::take)
        .ok_or(Hresult::E_UNEXPECTED)?;
    Ok(Box::new(Profiler(shared)))
}

/// Runs a sequence; returns the number of calls, and of those refused as unsupported.
fn play(version: RuntimeVersion, attached: bool, raw: bool, steps: &[Step]) -> (usize, usize) {
    let clr = FakeClr::new(version);
    let ids = clr.populate();
    let shared = Arc::new(Shared {
        raw,
        script: Mutex::default(),
        ids: OnceLock::from(ids.clone()),
        runtime: OnceLock::new(),
        snapshots: OnceLock::new(),
        made: AtomicUsize::new(0),
    });
    SHARED.set(Some(shared.clone()));
    let script = |calls: &[u8]| *shared.script.lock().unwrap() = calls.to_vec();
    script(steps.first().map_or(&[], |step| &step.calls));
    let loaded = if attached {
        clr.attach(create, b"data")
    } else {
        clr.start(create)
    };
    loaded.unwrap();
    for step in steps {
        script(&step.calls);
        let thread = ids.thread;
        match step.place % 16 {
            0 => drop(clr.on_thread(thread, || clr.jit_compilation_started(ids.function))),
            // A callback on a thread unknown to the runtime.
            1 => drop(clr.jit_compilation_started(ids.function)),
            2 => drop(clr.on_thread(thread, || clr.thread_assigned_to_os_thread(thread))),
            3 => drop(clr.on_thread(thread, || clr.thread_created(thread))),
            4 => drop(clr.on_thread(thread, || clr.module_load_started(ids.module))),
            5 => drop(clr.on_thread(thread, || clr.object_allocated(ids.object))),
            6 => drop(clr.on_thread(thread, || clr.exception_thrown(ids.object))),
            7 => drop(clr.on_thread(thread, || clr.exception_unwind_function_enter(ids.function))),
            8 => drop(clr.on_thread(thread, || {
                clr.runtime_suspend_started(CorPrfSuspendReason::FOR_GC)
            })),
            9 => clr.on_thread(thread, || clr.collect()).unwrap(),
            10 | 11 => clr.run_function(
                Frame {
                    thread,
                    function: ids.function,
                },
                || (),
            ),
            // The next call that may collect does.
            12 => clr.collect_at_next_chance(),
            13 => clr.set_busy(1),
            14 if attached => {
                clr.on_thread(thread, || {
                    clr.callback(fake_clr::CallbackMode::Preemptive, |callbacks| {
                        // SAFETY: the profiler's object is live.
                        unsafe {
                            corprof::sys::ICorProfilerCallback11::profiler_attach_complete(
                                callbacks,
                            )
                        }
                    })
                });
            }
            _ => {
                let shared = shared.clone();
                let done = spawn_agent_thread("agent", move |agent| {
                    let runtime = shared.runtime.get().unwrap();
                    agent.enter(runtime, |cx| {
                        shared.run(cx, |cx, keys, call| native(&shared, cx, keys, call))
                    })
                });
                done.unwrap().join().unwrap().unwrap();
            }
        }
    }
    let (made, unsupported) = (shared.made.load(Ordering::Relaxed), clr.unsupported());
    if !raw {
        assert_eq!(clr.crashes(), Vec::<String>::new());
        assert_eq!(clr.refusals(), [], "{version:?} attached {attached}");
        assert_eq!(clr.deadlocks(), 0);
        assert_eq!(shared.runtime.get().unwrap().panics(), 0);
    }
    clr.shutdown();
    (made, unsupported)
}

fn steps() -> impl Strategy<Value = (u8, bool, Vec<Step>)> {
    let step =
        (any::<u8>(), vec(any::<u8>(), 0..6)).prop_map(|(place, calls)| Step { place, calls });
    (0..3u8, any::<bool>(), vec(step, 1..6))
}

fn version(number: u8) -> RuntimeVersion {
    RuntimeVersion::ALL[usize::from(number)]
}

#[test]
fn no_typed_sequence_is_unsupported() {
    let made = AtomicUsize::new(0);
    let mut runner = TestRunner::new(Config::with_cases(10_000));
    runner
        .run(&steps(), |(number, attached, steps)| {
            let (calls, unsupported) = play(version(number), attached, false, &steps);
            made.fetch_add(calls, Ordering::Relaxed);
            prop_assert_eq!(unsupported, 0);
            Ok(())
        })
        .unwrap();
    // The sequences made many calls.
    assert!(made.into_inner() > 50_000);
}

#[test]
fn the_same_sequences_through_the_raw_layer_are() {
    let (made, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut runner = TestRunner::new(Config::with_cases(1_000));
    runner
        .run(&steps(), |(number, attached, steps)| {
            let (calls, unsupported) = play(version(number), attached, true, &steps);
            made.fetch_add(calls, Ordering::Relaxed);
            refused.fetch_add(unsupported, Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
    let (made, refused) = (made.into_inner(), refused.into_inner());
    assert!(refused * 20 > made, "{refused} of {made}");
}
