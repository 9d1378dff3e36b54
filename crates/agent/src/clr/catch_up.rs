//! Catch-up: a CLR's modules, code and threads from before we came to it.
//!
//! From `ProfilerAttachComplete` on, enumeration and callbacks together report everything, some of
//! it twice. It is asked for on the agent thread, as no other command of the runtime's is served
//! while that callback runs. Code without a list is found when a sample meets it (`code`): dynamic
//! methods and stubs.
//!
//! Invariants: code is listed and asked about only while none goes away. No unload is under way as
//! the [`UnloadGate`] is shut, as the thread on which they happen is seen at rest then
//! ([`Finalizer`]); and none begins while it is shut, as the callback that announces it waits
//! there, for [`BATCH`] methods at most. An id that is given out again belongs to something newer,
//! of which a callback tells. Where no such moment comes for [`UNLOAD_TIMEOUT`], code is found as
//! samples meet it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use control::LoadMode;
use corprof::context::AgentThread;
use corprof::{Cx, FunctionId, FunctionKey, ModuleId, RejitId};
use recording::MethodKind;

use super::Clr;
use super::finalizer::Finalizer;
use crate::base::proc;
use crate::program::Program;
use crate::program::threads::StartedThread;

/// Methods that are asked about while an unload waits: some 100 µs.
const BATCH: usize = 64;

/// How often the end of a dynamic method looks whether it is still asked about: some 100 µs.
const MAX_RETRIES: u32 = 2000;

/// How long a moment is waited for in which no code goes away.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two looks for it.
const LOOK: Duration = Duration::from_millis(1);

/// For so long after the last end of a dynamic method its code may still be found, nanoseconds.
const UNLOAD_NOTE_NS: u64 = 1_000_000;

/// State behind the gate.
#[derive(Debug, Default)]
struct UnloadState {
    modules: u64,
    /// When the last of them was about to go, CLOCK_MONOTONIC.
    last_ns: u64,
    /// Threads that have ended since we came, until the catch-up is done.
    threads: HashSet<usize>,
}

/// Where the end of a module or of a thread waits while the agent thread asks about what it has
/// enumerated.
///
/// The one lock of the agent, but that of the names of dynamic methods, that is held over calls
/// into the CLR. Who waits here does so in preemptive mode, in a callback that the runtime allows
/// to block (`ModuleUnloadStarted`, `ThreadDestroyed`), and holds no lock of the runtime's that
/// these calls need. The end of a thread may be reported under the thread store's lock, so nothing
/// that takes that is called with the gate shut.
#[derive(Debug, Default)]
pub(super) struct UnloadGate {
    unloads: Mutex<UnloadState>,
    catching_up: AtomicBool,
    /// The agent thread asks about a function that may be a dynamic method.
    asking: AtomicBool,
    /// Where code is taken down, if not all is known of what was there before us. The agent
    /// thread's, locked before `unloads`.
    finalizer: Mutex<Option<Finalizer>>,
    /// The modules from before the attach are known. A catch-up that gives up leaves them out.
    has_modules: AtomicBool,
    /// When a dynamic method was last about to go, CLOCK_MONOTONIC.
    dynamic_ns: AtomicU64,
    /// The dynamic method that it was: one after the other goes, on the finalizer thread.
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

    /// A module is about to go.
    pub(super) fn module_unloading(&self) -> impl Drop + '_ {
        let mut unloads = self.hold();
        unloads.modules += 1;
        unloads.last_ns = proc::now_ns();
        unloads
    }

    /// None goes while this is held, and none has gone since `time_ns`; else `None`.
    pub(super) fn hold_unless_unloaded_since(&self, time_ns: u64) -> Option<impl Drop + '_> {
        let unloads = self.hold();
        (unloads.modules == 0 || unloads.last_ns < time_ns).then_some(unloads)
    }

    /// A dynamic method is about to go. The callback may not block: it gives the agent thread the
    /// time that its questions take, and no more.
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

    /// A dynamic method is about to go, or has just gone. One that has its place from a moment
    /// later on is taken to be it.
    fn is_unloading_dynamic(&self, function: usize) -> bool {
        self.dynamic.load(Ordering::SeqCst) == function && self.is_any_unloading()
    }

    fn is_any_unloading(&self) -> bool {
        let last_ns = self.dynamic_ns.load(Ordering::SeqCst);
        proc::now_ns().saturating_sub(last_ns) <= UNLOAD_NOTE_NS
    }
}

impl Clr {
    /// A thread is about to go; for the callback, before it is forgotten.
    pub(crate) fn thread_ending(&self, thread: usize) {
        let mut unloads = self.gate.hold();
        if self.gate.is_catching_up() {
            unloads.threads.insert(thread);
        }
    }

    /// Runs `f` while a module that can be unloaded is held, or `None` where it has gone. What
    /// stays needs no hold.
    pub(crate) fn while_loaded<R>(&self, module: ModuleId<'_>, f: impl FnOnce() -> R) -> Option<R> {
        let collectible = self.module(module.raw())?.collectible;
        let _held = collectible.then(|| self.gate.hold());
        self.module(module.raw()).map(|_| f())
    }

    /// We are about to be let in: what ends from here on is noted.
    pub(crate) fn begin_catch_up(&self) {
        self.gate.catching_up.store(true, Ordering::Relaxed);
    }

    /// Learns of everything that was there before us. Agent thread, after `ProfilerAttachComplete`.
    pub(crate) fn catch_up(&self, program: &Program, cx: &mut Cx<'_, AgentThread>) {
        let threads = self.add_existing_threads(program, cx);
        self.add_existing_code(program, cx, &threads);
        let mut unloads = self.gate.hold();
        unloads.threads = HashSet::new();
        self.gate.catching_up.store(false, Ordering::Relaxed);
    }

    /// Whether there may be code that no callback reports. It was there before us, another profiler
    /// has made it and only that one is notified of it, or it is not reported any more.
    pub(crate) fn has_unreported_code(&self) -> bool {
        self.arrival() == LoadMode::Attached || self.is_beside() || self.discovers_code()
    }

    /// Learns of the body at an address that was met in a sample and that was not reported: a
    /// dynamic method or a stub of before our time, or any other code that is found
    /// ([`Clr::discovers_code`]). Answers whether there is one. Agent thread.
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
            // It may be code that goes away; the next sample of this address asks again.
            return false;
        }
        if finalizer.is_some() && !self.gate.has_modules.load(Ordering::Relaxed) {
            self.learn_modules(program, cx);
        }
        self.gate.asking.store(true, Ordering::SeqCst);
        let mut found = false;
        // One that has just been announced may still be found; the next sample of this address asks
        // again. Of what is found by the runtime's own records it is known which they are.
        let may_ask = self.discovers_code() || !self.gate.is_any_unloading();
        if may_ask && let Some((function, rejit)) = self.function_at(cx, ip) {
            let dynamic = info.is_function_dynamic(cx, function).unwrap_or(false);
            let kind = if dynamic {
                MethodKind::Dynamic
            } else {
                MethodKind::Il
            };
            self.compiled(program, cx, function, rejit, kind);
            found = true;
        }
        self.gate.asking.store(false, Ordering::SeqCst);
        found
    }

    /// The method at an address: by the runtime's own records, which cost a tenth, or by asking.
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
        // SAFETY: the runtime's own records say so, and nothing goes away while we ask: see
        // `discover`.
        let key = unsafe { FunctionKey::from_parts(cx.info().index(), function) }?;
        Some((cx.info().id(key)?, RejitId::ORIGINAL))
    }

    /// Answers their ids.
    fn add_existing_threads(&self, program: &Program, cx: &mut Cx<'_, AgentThread>) -> Vec<u32> {
        let info = cx.info();
        // With the gate open: this takes the thread store's lock, and the finalizer thread holds
        // that while it reports the ends of threads (`Thread::CleanupDetachedThreads`).
        let threads = info.enum_threads(cx).unwrap_or_default();
        let unloads = self.gate.hold();
        let mut found = Vec::new();
        for thread in threads {
            if unloads.threads.contains(&thread.raw()) {
                continue;
            }
            // One that has not been started yet has no number; a callback reports it.
            if let Ok(tid) = info.get_thread_info(cx, thread)
                && tid != 0
            {
                found.push((thread, tid));
            }
        }
        // Some thread that was never interrupted by its runtime shows where they all keep what
        // matters.
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

    /// Whether code that was there before us is not known, as it went away all the time.
    pub(crate) fn has_given_up_on_code(&self) -> bool {
        self.gate.finalizer().is_some()
    }

    /// Learns of the code that is not in `done` yet. False: code went away, and the list was not
    /// followed to its end.
    ///
    /// By `EnumJITedFunctions`: with the versions, as `EnumJITedFunctions2` gives them, 3.1 looks
    /// into methods that are being unloaded, and ends by that (SIGSEGV in
    /// `CodeVersionManager::GetNonDefaultILVersionCount`).
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
        // First: the names and the ends of collectible methods hang on them.
        self.learn_modules(program, cx);
        let now = info.enum_jited_functions(cx).unwrap_or_default();
        for batch in now.chunks(BATCH) {
            for function in batch {
                // Once for all of its bodies in the list.
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

    /// Every body of a method. Dynamic ones are found when they are met.
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
