//! What a CLR had before we came to it: its modules, the code that its compiler had made, its threads.
//!
//! From `ProfilerAttachComplete` on, what is enumerated and what callbacks tell of is everything, some of it twice.
//! It is asked for on the agent thread, as no other command of the runtime's is served while that callback runs.
//! What has no list is found when a sample meets it (`code`): dynamic methods and stubs.
//!
//! An unload that had begun before is announced to nobody: only what is in the lists twice, 30 ms apart, is asked about.
//!
//! Invariants: nothing that was enumerated dies between that and the questions about it, because the callback that
//! announces its end waits at the [`Gate`]; it waits for [`BATCH`] methods at most. An id that is given out again
//! belongs to something newer, of which a callback tells.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use control::Arrival;
use corprof::context::AgentThread;
use corprof::{Cx, FunctionId, RejitId};
use recording::MethodKind;

use super::Clr;
use crate::base::proc;
use crate::target::Target;
use crate::target::threads::Started;

/// Methods that are asked about while an unload waits: some 100 µs.
const BATCH: usize = 64;

/// How often the end of a dynamic method looks whether it is still asked about: some 100 µs.
const QUESTIONS: u32 = 2000;

/// How long an unload may take from its announcement to its end, that began before we came.
const UNLOADING: Duration = Duration::from_millis(30);

/// For so long after the last end of a dynamic method its code may still be found, nanoseconds.
const DYING_NS: u64 = 1_000_000;

/// What is said at the gate.
#[derive(Debug, Default)]
struct Unloads {
    modules: u64,
    /// Threads that have ended since we came, until the catch-up is done.
    threads: HashSet<usize>,
}

/// Where the end of a module or of a thread waits while the agent thread asks about what it has enumerated.
///
/// The one lock of the agent that is held over calls into the CLR. Who waits here does so in preemptive mode, in a
/// callback that the runtime allows to block (`ModuleUnloadStarted`, `ThreadDestroyed`), and holds no lock of the
/// runtime's that these calls need: `OnThreadTerminate` takes the thread store's lock behind the callback.
#[derive(Debug, Default)]
pub(super) struct Gate {
    unloads: Mutex<Unloads>,
    catching_up: AtomicBool,
    /// The agent thread asks about a function that may be a dynamic method.
    asking: AtomicBool,
    /// When a dynamic method was last about to go, CLOCK_MONOTONIC.
    dynamic_ns: AtomicU64,
}

impl Gate {
    fn hold(&self) -> MutexGuard<'_, Unloads> {
        self.unloads.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn is_catching_up(&self) -> bool {
        self.catching_up.load(Ordering::Relaxed)
    }

    /// A module is about to go.
    pub(super) fn unloading(&self) {
        self.hold().modules += 1;
    }

    /// A dynamic method is about to go. The callback may not block: it gives the agent thread the time that its
    /// questions take, and no more.
    pub(super) fn dynamic_unloading(&self) {
        self.dynamic_ns.store(proc::now_ns(), Ordering::SeqCst);
        for _ in 0..QUESTIONS {
            if !self.asking.load(Ordering::SeqCst) {
                return;
            }
            std::hint::spin_loop();
        }
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

    /// We are about to be let in: what ends from here on is noted.
    pub(crate) fn begin_to_catch_up(&self) {
        self.gate.catching_up.store(true, Ordering::Relaxed);
    }

    /// Learns of everything that was there before us. Agent thread, after `ProfilerAttachComplete`.
    pub(crate) fn catch_up(&self, target: &Target, cx: &mut Cx<'_, AgentThread>) {
        self.threads_before_us(target, cx);
        self.code_before_us(target, cx);
        let mut unloads = self.gate.hold();
        unloads.threads = HashSet::new();
        self.gate.catching_up.store(false, Ordering::Relaxed);
    }

    /// Whether there may be code of which no callback tells: it was there before us, or another profiler has made it,
    /// of which only that one hears.
    pub(crate) fn has_untold_code(&self) -> bool {
        self.arrival() == Arrival::Attached || self.is_beside()
    }

    /// Learns of the body at an address that was met in a sample and that nobody has told of: a dynamic method or a
    /// stub of before our time. Answers whether there is one. Agent thread.
    pub(crate) fn meet(&self, target: &Target, cx: &mut Cx<'_, AgentThread>, address: u64) -> bool {
        let info = cx.info();
        let Ok(ip) = usize::try_from(address) else {
            return false;
        };
        self.gate.asking.store(true, Ordering::SeqCst);
        let last_ns = self.gate.dynamic_ns.load(Ordering::SeqCst);
        let mut found = false;
        // One that has just been announced may still be found; the next sample of this address asks again.
        if proc::now_ns().saturating_sub(last_ns) > DYING_NS
            && let Ok((function, rejit)) = info.get_function_from_ip3(cx, ip)
        {
            let dynamic = info.is_function_dynamic(cx, function).unwrap_or(false);
            let kind = if dynamic {
                MethodKind::Dynamic
            } else {
                MethodKind::Il
            };
            self.compiled(target, cx, function, rejit, kind);
            found = true;
        }
        self.gate.asking.store(false, Ordering::SeqCst);
        found
    }

    fn threads_before_us(&self, target: &Target, cx: &mut Cx<'_, AgentThread>) {
        let info = cx.info();
        let unloads = self.gate.hold();
        let mut found = Vec::new();
        for thread in info.enum_threads(cx).unwrap_or_default() {
            if unloads.threads.contains(&thread.raw()) {
                continue;
            }
            // One that has not been started yet has no number; a callback tells of it.
            if let Ok(tid) = info.get_thread_info(cx, thread)
                && tid != 0
            {
                found.push((thread, tid));
            }
        }
        // Some thread that was never interrupted by its runtime shows where they all keep what matters.
        for (thread, _) in &found {
            self.hijack_of(thread.raw());
        }
        for (thread, tid) in found {
            target.threads.pins.created(info.key(thread));
            target.threads.managed_started(Started {
                managed: (self.number(), thread.raw()),
                tid,
                own: None,
                hijack: self.hijack_of(thread.raw()),
            });
        }
    }

    fn code_before_us<'rt>(&self, target: &Target, cx: &mut Cx<'rt, AgentThread>) {
        // An unload that had begun before we came is announced to nobody: what is still in the lists when it has had time to
        // end is not part of it. What is made meanwhile is told by callbacks.
        let modules = self.modules_now(cx);
        let functions = self.functions_now(cx);
        std::thread::sleep(UNLOADING);
        let mut done = HashSet::new();
        while !self.code_until_unload(target, cx, (&modules, &functions), &mut done) {}
    }

    fn modules_now(&self, cx: &mut Cx<'_, AgentThread>) -> HashSet<usize> {
        let found = cx.info().enum_modules(cx).unwrap_or_default();
        found.into_iter().map(|module| module.raw()).collect()
    }

    /// By `EnumJITedFunctions`: with the versions, as `EnumJITedFunctions2` gives them, 3.1 looks into methods that are
    /// being unloaded, and ends by that (SIGSEGV in `CodeVersionManager::GetNonDefaultILVersionCount`).
    fn functions_now(&self, cx: &mut Cx<'_, AgentThread>) -> HashSet<usize> {
        let found = cx.info().enum_jited_functions(cx).unwrap_or_default();
        found.into_iter().map(|function| function.raw()).collect()
    }

    /// Learns of the code that is not in `done` yet. False: something was unloaded meanwhile, and the list was not
    /// followed to its end.
    fn code_until_unload<'rt>(
        &self,
        target: &Target,
        cx: &mut Cx<'rt, AgentThread>,
        (modules, functions): (&HashSet<usize>, &HashSet<usize>),
        done: &mut HashSet<usize>,
    ) -> bool {
        let info = cx.info();
        let mut unloads = self.gate.hold();
        let unloaded = unloads.modules;
        // First: the names and the ends of collectible methods hang on them.
        for module in info.enum_modules(cx).unwrap_or_default() {
            if modules.contains(&module.raw()) {
                self.module_loaded(target, cx, module);
            }
        }
        let now = info.enum_jited_functions(cx).unwrap_or_default();
        for batch in now.chunks(BATCH) {
            for function in batch {
                // Once for all of its bodies in the list.
                if functions.contains(&function.raw()) && done.insert(function.raw()) {
                    self.bodies_of(target, cx, *function);
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

    /// Every body of a method. Dynamic ones are found when they are met.
    fn bodies_of<'rt>(
        &self,
        target: &Target,
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
            self.compiled(target, cx, function, version, MethodKind::Il);
        }
    }
}
