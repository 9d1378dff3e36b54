//! Test profiler that the tests of `tests/real_clr` load into real CLRs.
//!
//! `CORPROF_PROBE` selects what it tries. It writes the results line by line to the file
//! `CORPROF_PROBE_OUT`.
//!
//! It breaks call rules on purpose, through the raw layer, to check that the runtime refuses such
//! calls.

use std::collections::{BTreeMap, HashMap};

use std::fmt::Display;
use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use corprof::context::{
    AgentThread, Async, Callback, Cooperative, NoTrigger, Startup, Synchronous,
};
use corprof::elt::{EltInfo, FastHooks, FunctionMapper, HookCall, SlowHooks};
use corprof::sys::rules::{CallRule, Entry, RULES, RuntimeVersion};
use corprof::sys::{Hresult, ICorProfilerInfo15};
use corprof::{
    Callbacks, ClassRequest, Cx, EventMaskHigh, EventMaskLow, FunctionId, FunctionKey, Info,
    ObjectId, Result, Runtime, Seed, StackSnapshots, ThreadId, ThreadKey,
};

mod pins;
mod tokens;
mod walks;

use pins::Pinned;

corprof::export_profiler!(create);

fn create(_: &ClassRequest) -> Result<Box<dyn Callbacks>> {
    let mode = std::env::var("CORPROF_PROBE").map_err(|_| Hresult::E_INVALIDARG)?;
    let out = std::env::var_os("CORPROF_PROBE_OUT").ok_or(Hresult::E_INVALIDARG)?;
    let out = File::create(out).map_err(|_| Hresult::E_ACCESSDENIED)?;
    let shared: &'static Shared = Box::leak(Box::new(Shared {
        mode,
        out: Mutex::new(out),
        snapshots: OnceLock::new(),
        runtime: OnceLock::new(),
        main_thread: OnceLock::new(),
        done: AtomicBool::new(false),
        calls: [const { AtomicU64::new(0) }; 3],
        depth: AtomicU32::new(0),
        names: Mutex::default(),
        tallies: Mutex::default(),
        seed: Mutex::default(),
        pinned: Pinned::default(),
        begin: Mutex::default(),
    }));
    Ok(Box::new(Probe(shared)))
}

struct Probe(&'static Shared);

struct Shared {
    mode: String,
    out: Mutex<File>,
    snapshots: OnceLock<StackSnapshots>,
    runtime: OnceLock<Runtime>,
    main_thread: OnceLock<ThreadKey>,
    /// Set when the experiment that runs only once has begun.
    done: AtomicBool,
    /// Numbers of enter, leave and tailcall hooks.
    calls: [AtomicU64; 3],
    depth: AtomicU32,
    names: Mutex<HashMap<FunctionKey, String>>,
    /// Results of unseeded walks, by place.
    tallies: Mutex<BTreeMap<(&'static str, String), u64>>,
    /// A frame of `Main`, while an exception is dispatched.
    seed: Mutex<Option<Seed>>,
    pinned: Pinned,
    /// Starts the work of the probe's own thread.
    begin: Mutex<Option<Sender<()>>>,
}

impl Shared {
    fn say(&self, line: impl Display) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(out, "{line}");
    }
    fn first(&self) -> bool {
        !self.done.swap(true, Ordering::Relaxed)
    }
    fn names(&self) -> MutexGuard<'_, HashMap<FunctionKey, String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn tallies(&self) -> MutexGuard<'_, BTreeMap<(&'static str, String), u64>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn seed(&self) -> MutexGuard<'_, Option<Seed>> {
        self.seed.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Name of a method, resolved when it was mapped or now.
    fn name<'rt, C: Synchronous>(&self, cx: &Cx<'rt, C>, function: FunctionId<'rt>) -> String {
        let info = cx.info();
        if let Some(name) = self.names().get(&info.key(function)) {
            return name.clone();
        }
        let name = method_name(cx, function).unwrap_or_else(|error| format!("<{error}>"));
        self.names().insert(info.key(function), name.clone());
        name
    }
}

fn method_name<'rt, C: Synchronous>(cx: &Cx<'rt, C>, function: FunctionId<'rt>) -> Result<String> {
    let found = cx
        .info()
        .get_token_and_meta_data_from_function(cx, function)?;
    let Some((metadata, token)) = found else {
        return Err(Hresult::CORPROF_E_DATAINCOMPLETE);
    };
    let method = metadata.get_method_props(token)?;
    let class = metadata.get_type_def_props(method.class)?;
    Ok(format!("{}.{}", class.name, method.name))
}

/// This runtime's column of the rules table.
fn version(info: Info<'_>) -> RuntimeVersion {
    match info.interface_version() {
        ..=11 => RuntimeVersion::Core31,
        12..=14 => RuntimeVersion::Net8,
        _ => RuntimeVersion::Net10,
    }
}

/// Calls a slot with zeros as arguments.
///
/// # Safety
/// The method refuses the call, or accepts zeros.
unsafe fn call_with_zeros(info: Info<'_>, slot: usize) -> Option<Hresult> {
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
    let (this, slots) = info.as_raw()?;
    if slot >= slots {
        return None;
    }
    let this = this.as_ptr();
    // SAFETY: the slot exists; the C calling convention ignores excess arguments; the caller
    // guarantees the rest.
    unsafe {
        let method: Zeros = *(*this).vtbl.cast::<Zeros>().add(slot);
        Some(method(this, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    }
}

impl FunctionMapper for Probe {
    fn map<'rt>(&self, cx: &mut Cx<'rt, Callback>, function: FunctionId<'rt>) -> Option<usize> {
        let name = self.0.name(cx, function);
        // Calls into the mapper are synchronous, and may trigger a GC.
        if cx.info().enum_modules(cx).is_err() {
            self.0.say("mapper refused");
        }
        name.contains("Workloads.").then(|| {
            usize::from(name.ends_with("Calls.Mixed")) + 2 * usize::from(name.ends_with("Mixed.D"))
        })
    }
}

impl FastHooks for Probe {
    fn enter<'rt>(&self, cx: &mut Cx<'rt, Async>, call: &HookCall<'rt>) {
        self.0.calls[0].fetch_add(1, Ordering::Relaxed);
        if self.0.mode == "contexts" && call.tag == 1 && self.0.first() {
            self.0.asynchronous(cx, call.function);
        }
        if self.0.mode == "registers" {
            clobber();
        }
    }
    fn leave<'rt>(&self, _: &mut Cx<'rt, Async>, _: &HookCall<'rt>) {
        self.0.calls[1].fetch_add(1, Ordering::Relaxed);
        if self.0.mode == "registers" {
            clobber();
        }
    }
    fn tailcall<'rt>(&self, _: &mut Cx<'rt, Async>, _: &HookCall<'rt>) {
        self.0.calls[2].fetch_add(1, Ordering::Relaxed);
        if self.0.mode == "registers" {
            clobber();
        }
    }
}

/// Overwrites every caller-saved register of the C calling convention.
fn clobber() {
    // SAFETY: only registers are written, and all of them are declared.
    unsafe {
        std::arch::asm!(
            "mov rax, -1",
            "mov rcx, -1",
            "mov rdx, -1",
            "mov rsi, -1",
            "mov rdi, -1",
            "mov r8, -1",
            "mov r9, -1",
            "mov r10, -1",
            "mov r11, -1",
            "pcmpeqd xmm0, xmm0",
            "pcmpeqd xmm1, xmm1",
            "pcmpeqd xmm2, xmm2",
            "pcmpeqd xmm3, xmm3",
            "pcmpeqd xmm4, xmm4",
            "pcmpeqd xmm5, xmm5",
            "pcmpeqd xmm6, xmm6",
            "pcmpeqd xmm7, xmm7",
            "pcmpeqd xmm8, xmm8",
            "pcmpeqd xmm15, xmm15",
            clobber_abi("C"),
            options(nomem, nostack),
        );
    }
}

/// Empty hooks, for measuring the stubs.
struct Idle;
impl FunctionMapper for Idle {}
impl FastHooks for Idle {
    fn enter<'rt>(&self, _: &mut Cx<'rt, Async>, _: &HookCall<'rt>) {}
    fn leave<'rt>(&self, _: &mut Cx<'rt, Async>, _: &HookCall<'rt>) {}
    fn tailcall<'rt>(&self, _: &mut Cx<'rt, Async>, _: &HookCall<'rt>) {}
}

impl Shared {
    /// Runs in a fast-path hook: the runtime refuses every synchronous call and accepts every
    /// asynchronous call of the article's list.
    fn asynchronous<'rt>(&self, cx: &mut Cx<'rt, Async>, function: FunctionId<'rt>) {
        let info = cx.info();
        for rule in RULES.iter().filter(|rule| is_synchronous(rule, info)) {
            // SAFETY: by the rules table the runtime refuses the call before it reads an argument.
            if let Some(answer) = unsafe { call_with_zeros(info, rule.slot) } {
                self.say(format_args!("hook {} {answer}", rule.name));
            }
        }
        // GetEventMask and SetEventMask, also through their successors.
        let masks = info.get_event_mask2(cx);
        self.answer("GetEventMask2", masks.map(drop));
        if let Ok((low, high)) = masks {
            self.answer("SetEventMask2", info.set_event_mask2(cx, low, high));
            let raw = info.as_raw();
            if let Some((this, _)) = raw {
                let mut mask = 0;
                // SAFETY: asynchronous calls with live arguments.
                let (get, set, mapper) = unsafe {
                    (
                        ICorProfilerInfo15::get_event_mask(this.as_ptr(), &mut mask),
                        ICorProfilerInfo15::set_event_mask(this.as_ptr(), low.bits()),
                        // Null for the first-generation mapper: the second-generation mapper takes
                        // precedence.
                        ICorProfilerInfo15::set_function_id_mapper(this.as_ptr(), None),
                    )
                };
                self.answer("GetEventMask", get.ok());
                self.answer("SetEventMask", set.ok());
                self.answer("SetFunctionIDMapper", mapper.ok());
            }
        }
        let thread = info.get_current_thread_id(cx);
        self.answer("GetCurrentThreadID", thread.map(drop));
        if let Ok(thread) = thread {
            self.answer(
                "GetThreadContext",
                info.get_thread_context(cx, thread).map(drop),
            );
            self.answer(
                "GetThreadAppDomain",
                info.get_thread_app_domain(cx, thread).map(drop),
            );
        }
        let code = info.get_code_info(cx, function);
        self.answer("GetCodeInfo", code.map(drop));
        self.answer("GetCodeInfo2", info.get_code_info2(cx, function).map(drop));
        if let Ok(code) = code {
            let found = info.get_function_from_ip(cx, code.start_address);
            self.answer("GetFunctionFromIP", found.map(drop));
            assert_eq!(found, Ok(function));
        }
        self.answer(
            "GetFunctionInfo",
            info.get_function_info(cx, function).map(drop),
        );
        let found = info.get_function_info2(cx, function);
        self.answer(
            "GetFunctionInfo2",
            found.as_ref().map(drop).map_err(|error| *error),
        );
        if let Ok(Some(found)) = found {
            if let Some(module) = found.module {
                self.answer(
                    "GetModuleInfo2",
                    info.get_module_info2(cx, module).map(drop),
                );
                self.answer("GetModuleInfo", raw_module_info(info, module.raw()));
            }
            if let Some(class) = found.class {
                self.answer(
                    "GetClassIDInfo",
                    info.get_class_id_info(cx, class).map(drop),
                );
                self.answer(
                    "GetClassIDInfo2",
                    info.get_class_id_info2(cx, class).map(drop),
                );
                self.answer("IsArrayClass", info.is_array_class(cx, class).map(drop));
            }
        }
        if let Some(proof) = self.snapshots.get() {
            // In a fast-path hook a walk has no frame to begin at: see rule 12.
            let walked = info.walk_current(cx, proof, |_, _| ControlFlow::<()>::Continue(()));
            self.say(format_args!(
                "async DoStackSnapshot {}",
                match walked {
                    Ok(_) => "walked".to_owned(),
                    Err(error) => format!("{error:?}"),
                }
            ));
        }
    }

    fn answer(&self, name: &str, answer: Result<()>) {
        match answer {
            Ok(()) => self.say(format_args!("async {name} S_OK")),
            Err(error) => self.say(format_args!("async {name} {error}")),
        }
    }

    /// Runs on a thread of the profiler: the runtime accepts the synchronous calls.
    fn on_agent_thread(&self, cx: &mut Cx<'_, AgentThread>) {
        let info = cx.info();
        let say = |name: &str, answer: Result<()>| match answer {
            Ok(()) => self.say(format_args!("agent {name} S_OK")),
            Err(error) => self.say(format_args!("agent {name} {error}")),
        };
        say(
            "GetRuntimeInformation",
            info.get_runtime_information(cx).map(drop),
        );
        let modules = info.enum_modules(cx);
        say(
            "EnumModules",
            modules.as_ref().map(drop).map_err(|error| *error),
        );
        for module in modules.unwrap_or_default() {
            if let Err(error) = info.get_module_meta_data(cx, module) {
                say("GetModuleMetaData", Err(error));
            }
        }
        let threads = info.enum_threads(cx);
        say(
            "EnumThreads",
            threads.as_ref().map(drop).map_err(|error| *error),
        );
        for thread in threads.unwrap_or_default() {
            say("GetThreadInfo", info.get_thread_info(cx, thread).map(drop));
        }
        let functions = info.enum_jited_functions2(cx);
        say(
            "EnumJITedFunctions2",
            functions.as_ref().map(drop).map_err(|error| *error),
        );
        if let Some((function, rejit)) = functions.unwrap_or_default().last().copied() {
            let starts = info.get_native_code_start_addresses(cx, function, rejit);
            say(
                "GetNativeCodeStartAddresses",
                starts.as_ref().map(drop).map_err(|error| *error),
            );
            for start in starts.unwrap_or_default() {
                say("GetCodeInfo4", info.get_code_info4(cx, start).map(drop));
                say(
                    "GetILToNativeMapping3",
                    info.get_il_to_native_mapping3(cx, start).map(drop),
                );
                say(
                    "GetFunctionFromIP3",
                    info.get_function_from_ip3(cx, start).map(drop),
                );
                say(
                    "GetFunctionFromIP2",
                    info.get_function_from_ip2(cx, start).map(drop),
                );
            }
        }
        say("ForceGC", info.force_gc(cx));
    }
}

fn raw_module_info(info: Info<'_>, module: usize) -> Result<()> {
    let Some((this, _)) = info.as_raw() else {
        return Err(Hresult::E_NOINTERFACE);
    };
    let mut base = std::ptr::null();
    let (mut length, mut assembly) = (0, 0);
    let mut name = [0u16; 512];
    // SAFETY: an asynchronous call with live arguments of the stated lengths.
    unsafe {
        ICorProfilerInfo15::get_module_info(
            this.as_ptr(),
            module,
            &mut base,
            name.len() as u32,
            &mut length,
            name.as_mut_ptr(),
            &mut assembly,
        )
    }
    .ok()
}

fn is_synchronous(rule: &CallRule, info: Info<'_>) -> bool {
    matches!(rule.entry(version(info)), Entry::Sync | Entry::SyncTriggers)
}

impl SlowHooks for Probe {
    fn enter<'rt>(&self, cx: &mut Cx<'rt, Callback>, call: &HookCall<'rt>, elt: EltInfo<'_, 'rt>) {
        let calls = self.0.calls[0].fetch_add(1, Ordering::Relaxed);
        if call.tag == 1 && calls < 1000 {
            let entered = cx.info().get_function_enter3_info(cx, call.function, elt);
            if entered.is_err() && self.0.first() {
                self.0.say(format_args!("arguments {:?}", entered.err()));
            } else if let Ok(entered) = entered {
                self.0
                    .depth
                    .store(entered.arguments.len() as u32, Ordering::Relaxed);
            }
        }
        if call.tag == 2 && self.0.first() {
            self.0.synchronous(cx);
        }
    }
    fn leave<'rt>(&self, cx: &mut Cx<'rt, Callback>, call: &HookCall<'rt>, elt: EltInfo<'_, 'rt>) {
        let calls = self.0.calls[1].fetch_add(1, Ordering::Relaxed);
        if call.tag == 1 && calls < 1000 {
            let left = cx.info().get_function_leave3_info(cx, call.function, elt);
            if let Ok(left) = left
                && let Some((_, length)) = left.value
                && self.0.first()
            {
                self.0.say(format_args!(
                    "arguments {} value {length}",
                    self.0.depth.load(Ordering::Relaxed)
                ));
            }
        }
    }
    fn tailcall<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        call: &HookCall<'rt>,
        elt: EltInfo<'_, 'rt>,
    ) {
        self.0.calls[2].fetch_add(1, Ordering::Relaxed);
        if cx
            .info()
            .get_function_tailcall3_info(cx, call.function, elt)
            .is_err()
        {
            self.0.say("tailcall info refused");
        }
    }
}

impl Callbacks for Probe {
    fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> Result<()> {
        let info = cx.info();
        self.0.runtime.set(info.runtime()).ok();
        let version = info.get_runtime_information(cx)?;
        self.0.say(format_args!(
            "runtime interface {} version {}",
            info.interface_version(),
            version.version
        ));
        let events = EventMaskLow::MONITOR_THREADS | EventMaskLow::MONITOR_SUSPENDS;
        let hooks = EventMaskLow::MONITOR_ENTERLEAVE;
        let slow = hooks
            | EventMaskLow::ENABLE_FUNCTION_ARGS
            | EventMaskLow::ENABLE_FUNCTION_RETVAL
            | EventMaskLow::ENABLE_FRAME_INFO;
        let low = match self.0.mode.as_str() {
            "contexts" => events | hooks,
            "registers" | "cost" => hooks,
            "slow" => slow,
            "walk" => slow | EventMaskLow::MONITOR_JIT_COMPILATION,
            "exceptions" => events | EventMaskLow::MONITOR_EXCEPTIONS,
            "suspend" | "tokens" => events | EventMaskLow::MONITOR_JIT_COMPILATION,
            _ => events,
        };
        let proof = info.enable_stack_snapshots(cx, low, EventMaskHigh::BASIC_GC)?;
        self.0.snapshots.set(proof).ok();
        if self.0.mode == "walk" {
            self.0.in_initialize(cx);
        }
        match self.0.mode.as_str() {
            "contexts" | "registers" => {
                info.set_fast_hooks(cx, Probe(self.0))?;
            }
            "cost" => {
                info.set_fast_hooks(cx, Idle)?;
            }
            "slow" | "walk" => {
                info.set_slow_hooks(cx, Probe(self.0))?;
            }
            "pins" => self.0.pinned.begin(cx, proof)?,
            "suspend" => {
                let shared = self.0;
                let (sender, receiver) = std::sync::mpsc::channel();
                *self.0.begin.lock().map_err(|_| Hresult::E_FAIL)? = Some(sender);
                corprof::spawn_agent_thread("probe", move |agent| {
                    if receiver.recv().is_ok() {
                        // At some instants the runtime cannot walk a thread
                        // (E_STACKSNAPSHOT_UNSAFE).
                        for _ in 0..1_000 {
                            if shared.suspended(agent) {
                                break;
                            }
                            std::thread::sleep(std::time::Duration::from_millis(1));
                        }
                    }
                })
                .map_err(|_| Hresult::E_FAIL)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn jit_compilation_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        _: bool,
    ) -> Result<()> {
        if self.0.mode == "walk" && self.0.name(cx, function) == "Workloads.Mixed.D" {
            self.0.while_compiling(cx);
        }
        if self.0.mode == "tokens" && self.0.name(cx, function) == "Workloads.Calls.Main" {
            let about = cx.info().get_function_info2(cx, function)?;
            let module = about.and_then(|about| about.module);
            let module = module.ok_or(Hresult::CORPROF_E_DATAINCOMPLETE)?;
            if let Err(error) = tokens::define(cx, module, &|line| self.0.say(line)) {
                self.0.say(format_args!("failed {error}"));
            }
        }
        Ok(())
    }

    fn exception_thrown<'rt>(&self, cx: &mut Cx<'rt, Cooperative>, _: ObjectId<'rt>) -> Result<()> {
        self.0.tally(cx, "thrown");
        self.0.remember_main(cx);
        Ok(())
    }
    fn exception_search_function_enter<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        _: FunctionId<'rt>,
    ) -> Result<()> {
        self.0.tally(cx, "search");
        Ok(())
    }
    fn exception_search_filter_enter<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        _: FunctionId<'rt>,
    ) -> Result<()> {
        self.0.tally(cx, "filter");
        Ok(())
    }
    fn exception_unwind_function_enter<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        _: FunctionId<'rt>,
    ) -> Result<()> {
        self.0.tally(cx, "unwind");
        self.0.tally_seeded(cx, "unwind-seeded");
        Ok(())
    }
    fn exception_unwind_finally_enter<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        _: FunctionId<'rt>,
    ) -> Result<()> {
        self.0.tally(cx, "finally");
        Ok(())
    }
    fn exception_catcher_leave<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        self.0.tally(cx, "caught");
        Ok(())
    }

    /// The main thread is about to burn.
    fn jit_compilation_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        _: Hresult,
        _: bool,
    ) -> Result<()> {
        if self.0.name(cx, function) == "Workloads.Sleepy.BurnAwake" {
            let begin = self.0.begin.lock().map_err(|_| Hresult::E_FAIL)?.take();
            if let Some(begin) = begin {
                self.0
                    .main_thread
                    .set(cx.info().key(cx.info().get_current_thread_id(cx)?))
                    .ok();
                let _ = begin.send(());
            }
        }
        Ok(())
    }

    fn thread_created<'rt>(&self, cx: &mut Cx<'rt, Callback>, thread: ThreadId<'rt>) -> Result<()> {
        self.0.pinned.created(cx.info().key(thread));
        Ok(())
    }

    fn thread_destroyed<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        thread: ThreadId<'rt>,
    ) -> Result<()> {
        let key = cx.info().key(thread);
        self.0.pinned.destroyed(cx, key);
        Ok(())
    }

    /// A callback without a triggers scope, on a thread with a `Thread` object.
    fn thread_assigned_to_os_thread<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        thread: ThreadId<'rt>,
        _os_thread: u32,
    ) -> Result<()> {
        let info = cx.info();
        let here = info.get_current_thread_id(cx);
        if self.0.mode == "no-trigger" && here == Ok(thread) && self.0.first() {
            for rule in RULES
                .iter()
                .filter(|rule| rule.entry(version(info)) == Entry::SyncTriggers)
            {
                // SAFETY: by the rules table the runtime refuses the call before it reads an
                // argument.
                if let Some(answer) = unsafe { call_with_zeros(info, rule.slot) } {
                    self.0
                        .say(format_args!("no-trigger {} {answer}", rule.name));
                }
            }
            let known = info.get_thread_info(cx, thread);
            self.0.say(format_args!(
                "no-trigger-sync GetThreadInfo {}",
                known.is_ok()
            ));
        }
        Ok(())
    }

    fn shutdown<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        if self.0.mode == "contexts" {
            let (shared, runtime) = (self.0, cx.info().runtime());
            let thread = corprof::spawn_agent_thread("probe", move |agent| {
                agent.enter(&runtime, |cx| shared.on_agent_thread(cx));
            })
            .map_err(|_| Hresult::E_FAIL)?;
            thread.join().map_err(|_| Hresult::E_FAIL)?;
        }
        if self.0.mode == "pins" {
            let seen = self.0.pinned.end()?;
            self.0.say(format_args!("pins {seen}"));
        }
        for ((place, answer), count) in &*self.0.tallies() {
            self.0.say(format_args!("tally {place} {answer} {count}"));
        }
        let [enter, leave, tailcall] = [0, 1, 2].map(|at| self.0.calls[at].load(Ordering::Relaxed));
        self.0.say(format_args!("calls {enter} {leave} {tailcall}"));
        self.0
            .say(format_args!("panics {}", cx.info().runtime().panics()));
        Ok(())
    }
}
