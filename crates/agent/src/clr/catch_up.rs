//! Catch-up: after an attach, registers a CLR's existing modules, code and threads.
//!
//! From `ProfilerAttachComplete` on, enumeration and callbacks together report everything, some of
//! it twice. The catch-up runs on the agent thread, because the runtime serves no other command
//! during that callback. Enumeration omits dynamic methods and stubs; those are discovered when a
//! sample contains them ([`Clr::discover`]).
//!
//! Invariants: code is enumerated and queried only while no code is being unloaded. No unload is in
//! progress when the [`UnloadGate`] is taken, because the finalizer thread, on which unloads
//! happen, is seen at rest then ([`Finalizer`]). No unload starts while the gate is held: the
//! callback that announces an unload blocks on the gate, for [`BATCH`] methods at most. A reused id
//! belongs to something newer, which a callback reports. If the finalizer thread is not at rest for
//! [`UNLOAD_TIMEOUT`], code is only discovered from samples.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use control::LoadMode;
use corprof::context::{AgentThread, Context};
use corprof::{Cx, FunctionId, FunctionKey, ModuleId, ModuleKey, RejitId, Token};
use recording::MethodKind;

use super::Clr;
use super::finalizer::Finalizer;
use super::rewritten::HOT_RELOADED;
use crate::base::proc;
use crate::model::CodeBody;
use crate::program::Program;
use crate::program::threads::StartedThread;

/// Number of methods queried while an unload waits: some 100 µs.
const BATCH: usize = 64;

/// Maximum number of checks by which the unload of a dynamic method waits for a query: some 100 µs.
const MAX_RETRIES: u32 = 2000;

/// Time limit of the wait for a moment without unloads.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval between two attempts.
const LOOK: Duration = Duration::from_millis(1);

/// Time after the last dynamic-method unload in which its code may still be found, nanoseconds.
const UNLOAD_NOTE_NS: u64 = 1_000_000;

/// State protected by the gate.
#[derive(Debug, Default)]
struct UnloadState {
    modules: u64,
    /// When the last module unload was announced, CLOCK_MONOTONIC.
    last_ns: u64,
    /// Threads that ended since the attach began, until the catch-up is done.
    threads: HashSet<usize>,
}

/// Lock on which a module unload or thread end waits while the agent thread queries what it has
/// enumerated.
///
/// Besides the lock of the dynamic methods' names, this is the agent's only lock held over calls
/// into the CLR. A waiting thread is in preemptive mode, in a callback that may block
/// (`ModuleUnloadStarted`, `ThreadDestroyed`), and holds no runtime lock that these calls need. The
/// end of a thread may be reported under the thread store's lock, so no call that takes that lock
/// is made while the gate is held.
#[derive(Debug, Default)]
pub(super) struct UnloadGate {
    unloads: Mutex<UnloadState>,
    catching_up: AtomicBool,
    /// Whether the agent thread queries a function that may be a dynamic method.
    asking: AtomicBool,
    /// The finalizer thread, kept if the catch-up gave up on code. Used by the agent thread, locked
    /// before `unloads`.
    finalizer: Mutex<Option<Finalizer>>,
    /// Whether the modules from before the attach are known. A catch-up that gives up leaves them
    /// out.
    has_modules: AtomicBool,
    /// When the last dynamic-method unload was announced, CLOCK_MONOTONIC.
    dynamic_ns: AtomicU64,
    /// The dynamic method of that unload. The finalizer thread unloads one after the other.
    dynamic: AtomicUsize,
}

impl UnloadGate {
    fn hold(&self) -> MutexGuard<'_, UnloadState> {
        self.unloads.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn finalizer(&self) -> MutexGuard<'_, Option<Finalizer>> {
        self.finalizer.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn is_catching_up(&self) -> bool {
        self.catching_up.load(Ordering::Relaxed)
    }

    /// Records the unload of a module, and holds the gate until the result is dropped.
    pub(super) fn module_unloading(&self) -> impl Drop + '_ {
        let mut unloads = self.hold();
        unloads.modules += 1;
        unloads.last_ns = proc::now_ns();
        unloads
    }

    /// Holds the gate if no module was unloaded since `time_ns`; else `None`. No unload starts
    /// while it is held.
    pub(super) fn hold_unless_unloaded_since(&self, time_ns: u64) -> Option<impl Drop + '_> {
        let unloads = self.hold();
        (unloads.modules == 0 || unloads.last_ns < time_ns).then_some(unloads)
    }

    /// Records the unload of a dynamic method. The callback may not block, so it waits briefly,
    /// only while the agent thread's query runs.
    pub(super) fn dynamic_method_unloading(&self, function: usize) {
        self.dynamic.store(function, Ordering::SeqCst);
        self.dynamic_ns.store(proc::now_ns(), Ordering::SeqCst);
        for _ in 0..MAX_RETRIES {
            if !self.asking.load(Ordering::SeqCst) {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Whether a dynamic method is being, or was just, unloaded. A newer method with the same id
    /// counts as unloading for a moment.
    fn is_unloading_dynamic(&self, function: usize) -> bool {
        self.dynamic.load(Ordering::SeqCst) == function && self.is_any_unloading()
    }

    fn is_any_unloading(&self) -> bool {
        let last_ns = self.dynamic_ns.load(Ordering::SeqCst);
        proc::now_ns().saturating_sub(last_ns) <= UNLOAD_NOTE_NS
    }
}

impl Clr {
    /// Records the end of a thread. For the callback, before the thread is forgotten.
    pub(crate) fn thread_ending(&self, thread: usize) {
        let mut unloads = self.gate.hold();
        if self.gate.is_catching_up() {
            unloads.threads.insert(thread);
        }
    }

    /// Runs `f` while the unload of a collectible module is held off, or returns `None` if it was
    /// unloaded. Other modules need no hold.
    pub(crate) fn while_loaded<R>(&self, module: ModuleId<'_>, f: impl FnOnce() -> R) -> Option<R> {
        let collectible = self.module(module.raw())?.collectible;
        let _held = collectible.then(|| self.gate.hold());
        self.module(module.raw()).map(|_| f())
    }

    /// Returns the method of a body. `None` if the body may have been unloaded since it was added.
    pub(crate) fn method_of<C: Context>(
        &self,
        cx: &Cx<'_, C>,
        body: &CodeBody,
    ) -> Option<(ModuleKey, Token)> {
        if body.kind != MethodKind::Il || body.collectible.is_some() {
            return None;
        }
        let info = cx.info();
        let _no_unload_begins = self.gate.hold_unless_unloaded_since(body.added_ns)?;
        // SAFETY: the id came from a callback or a list of this runtime, and no module has been
        // unloaded since the code was added.
        let key = unsafe { FunctionKey::from_parts(info.index(), body.function) }?;
        let found = info.get_function_info(cx, info.id(key)?).ok()??;
        Some((info.key(found.module?), found.token))
    }

    /// Begins the catch-up, before the attach is admitted: ends are recorded from here on.
    pub(crate) fn begin_catch_up(&self) {
        self.gate.catching_up.store(true, Ordering::Relaxed);
    }

    /// Registers everything that existed before the attach. Agent thread, after
    /// `ProfilerAttachComplete`.
    pub(crate) fn catch_up(&self, program: &Program, cx: &mut Cx<'_, AgentThread>) {
        let threads = self.add_existing_threads(program, cx);
        self.add_existing_code(program, cx, &threads);
        let mut unloads = self.gate.hold();
        unloads.threads = HashSet::new();
        self.gate.catching_up.store(false, Ordering::Relaxed);
    }

    /// Whether code may exist that no callback reports: it existed before the attach, another
    /// profiler created it and only that one is notified, JIT callbacks are disabled, or hot reload
    /// replaced a method (from .NET 11 on only profilers with ReJIT are notified of the new body).
    pub(crate) fn has_unreported_code(&self) -> bool {
        self.arrival() == LoadMode::Attached
            || self.is_beside()
            || self.discovers_code()
            || self.is_modifiable()
    }

    /// Registers the unreported body at an address in a sample: a dynamic method or stub from
    /// before the attach, or any code found by its records ([`Clr::discovers_code`]). Returns
    /// whether there is one. Agent thread.
    pub(crate) fn discover(
        &self,
        program: &Program,
        cx: &mut Cx<'_, AgentThread>,
        address: u64,
    ) -> bool {
        let info = cx.info();
        let Ok(ip) = usize::try_from(address) else {
            return false;
        };
        let mut finalizer = self.gate.finalizer();
        let _no_unload_begins = self.gate.hold();
        if let Some(finalizer) = finalizer.as_mut()
            && !finalizer.is_idle(program.code.map())
        {
            // The code may be in unload; the next sample of this address tries again.
            return false;
        }
        if finalizer.is_some() && !self.gate.has_modules.load(Ordering::Relaxed) {
            self.learn_modules(program, cx);
        }
        self.gate.asking.store(true, Ordering::SeqCst);
        let mut found = false;
        // A method whose unload was just announced may still be found; the next sample of this
        // address tries again. With the runtime's own records `function_at` recognises such a
        // method.
        let may_ask = self.discovers_code() || !self.gate.is_any_unloading();
        if may_ask && let Some((function, rejit)) = self.function_at(cx, ip) {
            let dynamic = info.is_function_dynamic(cx, function).unwrap_or(false);
            let kind = if dynamic {
                MethodKind::Dynamic
            } else {
                MethodKind::Il
            };
            self.compiled(program, cx, function, rejit, kind);
            if self.is_modifiable() && program.code.map().lookup(address).is_none() {
                self.compiled(program, cx, function, HOT_RELOADED, kind);
            }
            found = true;
        }
        self.gate.asking.store(false, Ordering::SeqCst);
        found
    }

    /// Returns the method at an address, from the runtime's own records (a tenth of the cost) or by
    /// a query.
    fn function_at<'rt>(
        &self,
        cx: &mut Cx<'rt, AgentThread>,
        ip: usize,
    ) -> Option<(FunctionId<'rt>, RejitId)> {
        if !self.discovers_code() {
            return cx.info().get_function_from_ip3(cx, ip).ok();
        }
        let function = usize::try_from(self.discovery.function_at(ip as u64)?).ok()?;
        if self.gate.is_unloading_dynamic(function) {
            return None;
        }
        // SAFETY: the id is from the runtime's own records, and nothing is unloaded meanwhile: see
        // `discover`.
        let key = unsafe { FunctionKey::from_parts(cx.info().index(), function) }?;
        Some((cx.info().id(key)?, RejitId::ORIGINAL))
    }

    /// Registers the CLR's existing threads and returns their thread ids.
    fn add_existing_threads(&self, program: &Program, cx: &mut Cx<'_, AgentThread>) -> Vec<u32> {
        let info = cx.info();
        // Before the gate is taken: this takes the thread store's lock, which the finalizer thread
        // holds while it reports the ends of threads (`Thread::CleanupDetachedThreads`).
        let threads = info.enum_threads(cx).unwrap_or_default();
        let unloads = self.gate.hold();
        let mut found = Vec::new();
        for thread in threads {
            if unloads.threads.contains(&thread.raw()) {
                continue;
            }
            // A thread that has not started yet has no thread id; a callback reports it.
            if let Ok(tid) = info.get_thread_info(cx, thread)
                && tid != 0
            {
                found.push((thread, tid));
            }
        }
        // A thread that the runtime never interrupted reveals the offsets of the hijack words for
        // all threads.
        for (thread, _) in &found {
            self.hijack_of(thread.raw());
        }
        let mut tids = Vec::new();
        for (thread, tid) in found {
            program.threads.pins.created(info.key(thread));
            program.threads.managed_started(StartedThread {
                managed: (self.number(), thread.raw()),
                tid,
                own: None,
                hijack: self.hijack_of(thread.raw()),
                stands_for: 1,
            });
            tids.push(tid);
        }
        tids
    }

    fn add_existing_code(&self, program: &Program, cx: &mut Cx<'_, AgentThread>, threads: &[u32]) {
        let mut finalizer = Finalizer::among(threads);
        let mut done = HashSet::new();
        // The map of native code decides whether the finalizer thread is in managed code.
        program.natives.refresh();
        let until = Instant::now() + UNLOAD_TIMEOUT;
        while !self.add_code_until_unload(program, cx, &mut finalizer, &mut done) {
            if Instant::now() >= until {
                *self.gate.finalizer() = Some(finalizer);
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Whether the catch-up gave up on existing code, because unloads never paused.
    pub(crate) fn has_given_up_on_code(&self) -> bool {
        self.gate.finalizer().is_some()
    }

    /// Registers the code that is not in `done` yet. Returns false if an unload happened before the
    /// end of the list.
    ///
    /// Uses `EnumJITedFunctions`. `EnumJITedFunctions2`, which includes versions, makes 3.1 inspect
    /// methods in unload and crash (SIGSEGV in `CodeVersionManager::GetNonDefaultILVersionCount`).
    fn add_code_until_unload(
        &self,
        program: &Program,
        cx: &mut Cx<'_, AgentThread>,
        finalizer: &mut Finalizer,
        done: &mut HashSet<usize>,
    ) -> bool {
        let info = cx.info();
        let mut unloads = self.gate.hold();
        if !finalizer.is_idle(program.code.map()) {
            return false;
        }
        let unloaded = unloads.modules;
        // Modules first: the names and the unloads of collectible methods depend on them.
        self.learn_modules(program, cx);
        let now = info.enum_jited_functions(cx).unwrap_or_default();
        for batch in now.chunks(BATCH) {
            for function in batch {
                // Once for all bodies of the method in the list.
                if done.insert(function.raw()) {
                    self.bodies_of(program, cx, *function);
                }
            }
            drop(unloads);
            unloads = self.gate.hold();
            if unloads.modules != unloaded {
                return false;
            }
        }
        true
    }

    /// Registers the modules that were loaded before the attach. No module may be unloading.
    fn learn_modules(&self, program: &Program, cx: &mut Cx<'_, AgentThread>) {
        self.gate.has_modules.store(true, Ordering::Relaxed);
        for module in cx.info().enum_modules(cx).unwrap_or_default() {
            self.module_loaded(program, cx, module);
        }
    }

    /// Registers every body of a method. Dynamic methods are discovered by samples.
    fn bodies_of<'rt>(
        &self,
        program: &Program,
        cx: &mut Cx<'rt, AgentThread>,
        function: FunctionId<'rt>,
    ) {
        let info = cx.info();
        if info.is_function_dynamic(cx, function).unwrap_or(true) {
            return;
        }
        let mut versions = info.get_rejit_ids(cx, function).unwrap_or_default();
        if !versions.contains(&RejitId::ORIGINAL) {
            versions.push(RejitId::ORIGINAL);
        }
        if self.is_modifiable() {
            versions.push(HOT_RELOADED);
        }
        for version in versions {
            self.compiled(program, cx, function, version, MethodKind::Il);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_end_are_noted_while_the_past_is_not_known() {
        let clr = Clr::attached(false);
        clr.thread_ending(0x100);
        clr.begin_catch_up();
        clr.thread_ending(0x200);
        assert_eq!(clr.gate.hold().threads, HashSet::from([0x200]));
    }

    #[test]
    fn code_is_asked_about_only_where_no_module_has_gone_since() {
        let gate = UnloadGate::default();
        assert!(
            gate.hold_unless_unloaded_since(0).is_some(),
            "none has ever gone"
        );
        let before_ns = proc::now_ns();
        drop(gate.module_unloading());
        assert!(gate.hold_unless_unloaded_since(before_ns).is_none());
        assert!(
            gate.hold_unless_unloaded_since(proc::now_ns() + 1)
                .is_some()
        );
    }
}
