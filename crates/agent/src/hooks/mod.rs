//! Shadow stacks: exact call trees from the runtime's enter, leave and tailcall hooks.
//!
//! Each thread has its own stack and tree (`stack`), found by its thread pointer (`table`). Hooks
//! count calls. For the event `wall`, they charge the clock's ticks (`clock`) to the running call.
//! For the event `cpu`, a signal handler reads which call runs. The walker `shadow` writes the
//! growth of a tree as samples (`walkers::shadow`). Methods have numbers (`methods`).
//!
//! Invariants: a hook takes no lock, makes no CLR call and allocates nothing, except the first one
//! of a thread that the runtime has not announced. Each thread writes only its own stack and tree.
//! Memory is bounded. Calls without room are counted under a separate name.

mod clock;
mod methods;
mod resumed;
pub(crate) mod stack;
mod table;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use corprof::context::{Async, Callback};
use corprof::elt::{FastHooks, FunctionMapper, HookCall};
use corprof::{Cx, EventMaskLow, FunctionId};
use recording::Event;

use crate::base::proc;
use crate::clr::{Clr, names};
use crate::model::phase::PhaseReader;
use crate::model::{Settings, WalkerKind};
use crate::program::Program;
use methods::Methods;
use stack::ShadowStack;

pub(crate) use clock::Clock;

/// Event flags for a runtime. Inlined methods have no hooks, so inlining is disabled: the counts
/// are those of the program's source.
pub(crate) const EVENTS: EventMaskLow = EventMaskLow::MONITOR_ENTERLEAVE
    .union(EventMaskLow::MONITOR_EXCEPTIONS)
    .union(EventMaskLow::DISABLE_INLINING);

/// First .NET version with runtime async.
const RUNTIME_ASYNC: u16 = 11;

/// Maximum number of shadow stacks: as many as the sampler samples threads.
const MAX_STACKS: usize = 4096;

/// Shadow stacks without a thread, and those that the agent thread has not taken yet.
#[derive(Debug, Default)]
struct Pool {
    free: Vec<&'static ShadowStack>,
    /// Number of all shadow stacks.
    reserved: usize,
    begun: Vec<&'static ShadowStack>,
    /// Stacks of threads that have ended for the CLR, or of an ended session, while the thread
    /// runs: its hooks or a signal handler may still use them.
    lingering: Vec<&'static ShadowStack>,
}

/// The shadow stacks of a process.
#[derive(Debug)]
pub(crate) struct ShadowStacks {
    pub(crate) methods: Methods,
    pub(crate) clock: Clock,
    pub(crate) timed: bool,
    max_depth: u32,
    phase: PhaseReader,
    /// Whether the current session counts calls.
    wanted: AtomicBool,
    next_serial: AtomicU32,
    pool: Mutex<Pool>,
    /// Number of calls on threads without a shadow stack.
    without_stack: AtomicU64,
}

impl ShadowStacks {
    /// Creates them for a process whose first session has these settings.
    pub(crate) fn new(settings: &Settings, phase: PhaseReader) -> ShadowStacks {
        ShadowStacks {
            methods: Methods::default(),
            clock: Clock::new(),
            timed: settings.events.has(Event::Wall),
            max_depth: settings.max_depth,
            phase,
            wanted: AtomicBool::new(false),
            next_serial: AtomicU32::new(1),
            pool: Mutex::default(),
            without_stack: AtomicU64::new(0),
        }
    }

    /// Returns the clock's name in reports.
    pub(crate) fn clock_name(&self) -> &'static str {
        self.clock.name()
    }

    /// Begins a session: hooks count if its walker is `shadow`.
    pub(crate) fn begin(&self, settings: &Settings) {
        self.wanted
            .store(settings.walker == WalkerKind::Shadow, Relaxed);
    }

    /// Whether hooks count now.
    #[inline]
    fn is_on(&self) -> bool {
        self.phase.is_recording() && self.wanted.load(Relaxed)
    }

    /// Returns the stacks of threads that have started since the last call.
    pub(crate) fn take_begun(&self) -> Vec<&'static ShadowStack> {
        std::mem::take(&mut self.pool().begun)
    }

    /// Returns the number of calls on threads without a shadow stack since the last call.
    pub(crate) fn take_calls_without_stack(&self) -> u64 {
        self.without_stack.swap(0, Relaxed)
    }

    /// Releases a stack whose tree has been written completely. It is reused after the thread's
    /// end.
    pub(crate) fn release(&self, shadow: &'static ShadowStack) {
        table::remove(shadow);
        self.pool().lingering.push(shadow);
    }

    /// Reclaims the stacks of threads that have ended.
    pub(crate) fn reclaim(&self) {
        let lingering = std::mem::take(&mut self.pool().lingering);
        let (run, gone): (Vec<_>, Vec<_>) = lingering
            .into_iter()
            .partition(|shadow| proc::thread_exists(shadow.tid.load(Relaxed)));
        for shadow in &gone {
            shadow.end();
        }
        let mut pool = self.pool();
        pool.lingering.extend(run);
        pool.free.extend(gone);
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Assigns a shadow stack to the calling thread, unless it has one. `thread` is its number in
    /// the recording.
    pub(crate) fn own_thread_starts(&self, thread: u32) {
        let tid = proc::own_tid();
        if let Some(own) = table::own()
            && own.tid.load(Relaxed) == tid
            && own.thread.load(Relaxed) == thread
        {
            return;
        }
        if !self.is_on() {
            return;
        }
        let Some(shadow) = self.take() else { return };
        let serial = self.next_serial.fetch_add(1, Relaxed);
        shadow.begin(serial, thread, tid, self.clock.now());
        // An earlier stack of the table entry belongs to a thread that has ended. The agent thread
        // is notified of that end in other ways.
        match table::set_own(shadow) {
            Ok(_before) => self.pool().begun.push(shadow),
            Err(()) => {
                shadow.end();
                self.pool().free.push(shadow);
            }
        }
    }

    /// Returns a shadow stack without a thread.
    fn take(&self) -> Option<&'static ShadowStack> {
        let mut pool = self.pool();
        if let Some(free) = pool.free.pop() {
            return Some(free);
        }
        if pool.reserved >= MAX_STACKS {
            return None;
        }
        let shadow = ShadowStack::reserve(self.max_depth, self.timed)?;
        pool.reserved += 1;
        Some(Box::leak(Box::new(shadow)))
    }

    /// Marks the methods of a module that is being unloaded.
    pub(crate) fn module_unloaded(&self, runtime: u8, module: usize) {
        self.methods.module_unloaded(runtime, module);
    }

    /// `ExceptionThrown`, on the throwing thread.
    pub(crate) fn thrown(&self) {
        if let Some(own) = table::own() {
            own.thrown();
        }
    }

    /// `ExceptionSearchFilterEnter`, on the throwing thread.
    pub(crate) fn filter_begins(&self, runtime: u8, function: usize) {
        if let Some(own) = table::own() {
            let method = self.methods.number(runtime, function);
            own.filter_begins(method, function, self.clock.now());
        }
    }

    /// `ExceptionSearchFilterLeave`, on the throwing thread.
    pub(crate) fn filter_ends(&self) {
        if let Some(own) = table::own() {
            own.filter_ends(self.clock.now());
        }
    }

    /// `ExceptionUnwindFunctionEnter`, on the throwing thread.
    pub(crate) fn unwind_begins(&self, function: usize) {
        if let Some(own) = table::own() {
            own.unwind_begins(function, self.clock.now());
        }
    }

    /// `ExceptionUnwindFunctionLeave`, on the throwing thread.
    pub(crate) fn unwind_ends(&self) {
        if let Some(own) = table::own() {
            own.unwind_ends(self.clock.now());
        }
    }

    /// `ExceptionCatcherEnter`, on the throwing thread.
    pub(crate) fn caught(&self, function: usize) {
        if let Some(own) = table::own() {
            own.caught(function, self.clock.now());
        }
    }
}

/// Returns the call-tree node that runs on the calling thread, as a word for the walker `shadow`:
/// serial number of the stack, then node. 0 without a shadow stack. For the signal handler: loads
/// only.
pub(crate) fn own_word() -> u64 {
    table::own().map_or(0, |own| {
        u64::from(own.serial.load(Relaxed)) << 32 | u64::from(own.current())
    })
}

/// The hooks of one runtime.
pub(crate) struct Hooks {
    program: &'static Program,
    stacks: &'static ShadowStacks,
    clr: Arc<Clr>,
    is_runtime_async: OnceLock<bool>,
}

impl Hooks {
    pub(crate) fn new(
        program: &'static Program,
        stacks: &'static ShadowStacks,
        clr: Arc<Clr>,
    ) -> Hooks {
        Hooks {
            program,
            stacks,
            clr,
            is_runtime_async: OnceLock::new(),
        }
    }

    /// Returns the thread's shadow stack; `None` while nothing is recorded, or if there is none.
    #[inline]
    fn own(&self) -> Option<&'static ShadowStack> {
        if !self.stacks.is_on() {
            return None;
        }
        table::own().or_else(|| self.begin())
    }

    /// Handles the first hook on a thread that the runtime announced on another thread, or not at
    /// all.
    #[cold]
    #[inline(never)]
    fn begin(&self) -> Option<&'static ShadowStack> {
        let tid = proc::own_tid();
        if self.program.threads.number_of(tid).is_none() {
            self.program.threads.own_started();
        }
        if let Some(thread) = self.program.threads.number_of(tid) {
            self.stacks.own_thread_starts(thread);
        }
        let own = table::own();
        if own.is_none() {
            self.stacks.without_stack.fetch_add(1, Relaxed);
        }
        own
    }

    /// Whether the runtime may have methods of runtime async.
    fn is_runtime_async(&self, cx: &Cx<'_, Callback>) -> bool {
        *self.is_runtime_async.get_or_init(|| {
            let version = cx.info().get_runtime_information(cx);
            version.is_ok_and(|version| version.major >= RUNTIME_ASYNC)
        })
    }

    /// Returns the current ticks; 0 if times are not recorded.
    #[inline]
    fn now(&self) -> u64 {
        if self.stacks.timed {
            self.stacks.clock.now()
        } else {
            0
        }
    }
}

impl FunctionMapper for Hooks {
    fn map<'rt>(&self, cx: &mut Cx<'rt, Callback>, function: FunctionId<'rt>) -> Option<usize> {
        let flags = match self.is_runtime_async(cx) {
            true => resumed::flags(&self.clr, cx, function)?,
            false => 0,
        };
        let owner = self
            .clr
            .any_collectible()
            .then(|| names::collectible_owner(&self.clr, cx, function))
            .flatten();
        let unloadable = owner.map(|module| (module, names::of_function(&self.clr, cx, function)));
        let number = self
            .stacks
            .methods
            .insert(self.clr.number(), function.raw(), unloadable)?;
        // The tag contains the flags of the method's frames.
        usize::try_from(u64::from(flags) << 32 | u64::from(number)).ok()
    }

    fn is_current(&self, tag: usize) -> bool {
        self.stacks.methods.is_loaded(tag as u32)
    }
}

impl FastHooks for Hooks {
    #[inline]
    fn enter<'rt>(&self, _: &mut Cx<'rt, Async>, call: &HookCall<'rt>) {
        if let Some(own) = self.own() {
            // The mapper's number, and the flags.
            let (method, flags) = (call.tag as u32, (call.tag >> 32) as u32);
            let (function, caller) = (call.function.raw(), call.stack_pointer);
            own.enter_as(method, flags, function, caller, self.now());
        }
    }

    #[inline]
    fn leave<'rt>(&self, _: &mut Cx<'rt, Async>, call: &HookCall<'rt>) {
        if let Some(own) = self.own() {
            own.leave(call.function.raw(), call.stack_pointer, self.now());
        }
    }

    #[inline]
    fn tailcall<'rt>(&self, cx: &mut Cx<'rt, Async>, call: &HookCall<'rt>) {
        self.leave(cx, call);
    }
}
