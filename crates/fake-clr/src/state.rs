//! State of the fake runtime: its phase, the profiler's status, the mode of each thread.
//!
//! One mutex protects everything, and one condition variable signals every change.
//!
//! Invariant: the profiler is not called while the mutex is held.

pub(crate) mod journal;
pub(crate) mod rejit;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use corprof::sys::rules::RuntimeVersion;
use corprof::sys::{EventMaskHigh, EventMaskLow, FunctionIDMapper2, ICorProfilerCallback11};

use crate::check::Refusal;
use crate::slots::InfoObject;
use crate::state::journal::{Call, Meanwhile, When};
use crate::state::rejit::Rejits;
use crate::wait::Waits;
use crate::world::World;

/// State of the profiler (`ProfilerStatus`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// No profiler is loaded.
    None,
    /// In `Initialize`.
    InitializingForStartup,
    /// In `InitializeForAttach`.
    InitializingForAttach,
    /// Callbacks are raised.
    Active,
    /// `RequestProfilerDetach` was accepted.
    Detaching,
}

/// A managed thread of the script.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Thread(pub usize);

/// The callback state of a thread that runs on this operating system thread
/// (`Thread::m_profilerCallbackState`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningThread {
    pub(crate) thread: Thread,
    pub(crate) in_callback: bool,
    pub(crate) in_triggers_scope: bool,
    /// Whether `ForceGC` or `RequestReJIT` succeeded on the thread: it is then treated as native.
    pub(crate) forced: bool,
    pub(crate) cooperative: bool,
}

/// Hooks set by `SetEnterLeaveFunctionHooks3`.
#[derive(Clone, Copy)]
pub(crate) struct Hooks {
    pub(crate) enter: usize,
    pub(crate) leave: usize,
}

pub(crate) struct ClrState {
    pub(crate) status: Status,
    pub(crate) attached: bool,
    /// Whether the runtime has started; `false` in `Initialize`.
    pub(crate) started: bool,
    pub(crate) low: EventMaskLow,
    pub(crate) high: EventMaskHigh,
    pub(crate) callbacks: Option<CallbackPointer>,
    /// Major version that `GetRuntimeInformation` returns, if the script has set one.
    pub(crate) major: Option<u16>,
    pub(crate) world: World,
    pub(crate) waits: Waits,
    /// The operating system thread that called `SuspendRuntime`.
    pub(crate) suspended_by: Option<u64>,
    /// Number of calls of `SuspendRuntime` that still fail because the runtime is busy.
    pub(crate) busy: u32,
    /// Whether the next call that may trigger a collection does.
    pub(crate) collect_next: bool,
    pub(crate) mapper: Option<(FunctionIDMapper2, usize)>,
    pub(crate) hooks: Option<Hooks>,
    pub(crate) mapped: HashMap<usize, Option<usize>>,
    pub(crate) environment: HashMap<String, String>,
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) crashes: Vec<String>,
    pub(crate) calls: u64,
    pub(crate) journal: Vec<Call>,
    /// Scripts for the next call of a method.
    pub(crate) meanwhile: HashMap<(&'static str, When), Meanwhile>,
    /// The profiler has been detached, or the runtime has shut down. Later calls are crashes.
    pub(crate) is_released: bool,
    /// ReJIT has been enabled, which rules out a detach.
    pub(crate) rewrites: bool,
    pub(crate) rejits: Rejits,
    /// Active EventPipe sessions by id: keywords and level.
    pub(crate) event_sessions: BTreeMap<u64, (u64, u32)>,
}

/// The profiler's object, with one reference.
#[derive(Clone, Copy)]
pub(crate) struct CallbackPointer(pub(crate) *mut ICorProfilerCallback11);
// SAFETY: the object's methods may be called on any thread, as the CLR does.
unsafe impl Send for CallbackPointer {}

pub(crate) struct Shared {
    pub(crate) version: RuntimeVersion,
    /// Number of this runtime in the process, from 1.
    pub(crate) number: usize,
    state: Mutex<ClrState>,
    pub(crate) changed: Condvar,
    info: InfoObject,
}

impl Shared {
    pub(crate) fn new(version: RuntimeVersion) -> Arc<Self> {
        static NUMBERS: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Arc::new_cyclic(|weak| Self {
            version,
            number,
            state: Mutex::new(ClrState {
                status: Status::None,
                attached: false,
                started: false,
                low: EventMaskLow::empty(),
                high: EventMaskHigh::empty(),
                callbacks: None,
                major: None,
                world: World::new(number),
                waits: Waits::default(),
                suspended_by: None,
                busy: 0,
                collect_next: false,
                mapper: None,
                hooks: None,
                mapped: HashMap::new(),
                environment: HashMap::new(),
                refusals: Vec::new(),
                crashes: Vec::new(),
                calls: 0,
                journal: Vec::new(),
                meanwhile: HashMap::new(),
                is_released: false,
                rewrites: false,
                rejits: Rejits::default(),
                event_sessions: BTreeMap::new(),
            }),
            changed: Condvar::new(),
            info: InfoObject::new(weak.clone()),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ClrState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn info(&self) -> *mut InfoObject {
        core::ptr::from_ref(&self.info).cast_mut()
    }

    /// The managed thread of this runtime that runs on the calling OS thread, if any.
    pub(crate) fn running(&self) -> Option<RunningThread> {
        RUNNING.with_borrow(|all| all.get(&self.number).copied())
    }

    /// Sets the managed thread that runs on the calling OS thread; returns the previous one.
    pub(crate) fn set_running(&self, running: Option<RunningThread>) -> Option<RunningThread> {
        RUNNING.with_borrow_mut(|all| match running {
            Some(running) => all.insert(self.number, running),
            None => all.remove(&self.number),
        })
    }
}

thread_local! {
    /// Running managed thread, by runtime.
    static RUNNING: RefCell<HashMap<usize, RunningThread>> = RefCell::default();
    static OS_THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// A unique number of the calling operating system thread.
pub(crate) fn os_thread() -> u64 {
    OS_THREAD.with(|number| *number)
}
