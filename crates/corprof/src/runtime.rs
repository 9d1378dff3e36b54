//! One CLR of the process: its `ICorProfilerInfo`, found out once, and what it can do.
//!
//! It is not a registry: who keeps which [`Runtime`] is the profiler's business. The invariant: the
//! interface pointer answers for every slot below `slots`, and for none above.

use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::context::{Async, Brand, Cx, Signal};
use crate::id::{Id, Key, RuntimeIndex};
use crate::meter::{CallbackKind, Calls, Meter};
use crate::sys::{Hresult, ICorProfilerInfo15, IUnknown, Interface, InterfaceVersion};

/// The result of a call into the runtime.
pub type Result<T, E = Hresult> = core::result::Result<T, E>;

/// The runtime's side of the API, held with a reference.
#[derive(Debug)]
pub(crate) struct InfoPointer {
    pub(crate) pointer: NonNull<ICorProfilerInfo15>,
    version: &'static InterfaceVersion,
    /// The interface's number: 3 for `ICorProfilerInfo3`.
    number: u32,
}

// SAFETY: `ProfToEEInterfaceImpl` has no thread affinity: the runtime allows each method on any
// thread, subject to the call rules, which `Cx` enforces. Its reference count is interlocked.
unsafe impl Send for InfoPointer {}
// SAFETY: as for `Send`; every method of the interface may run on several threads at once.
unsafe impl Sync for InfoPointer {}

impl InfoPointer {
    /// Asks for the newest version that the runtime has.
    ///
    /// # Safety
    /// `unknown` is null or a live COM object.
    unsafe fn query(unknown: *mut IUnknown) -> Result<Self> {
        let object = NonNull::new(unknown).ok_or(Hresult::E_POINTER)?;
        for (index, version) in ICorProfilerInfo15::VERSIONS.iter().enumerate().rev() {
            let mut found: *mut c_void = core::ptr::null_mut();
            // SAFETY: the object is live; `QueryInterface` reads the id and writes the pointer.
            let answer = unsafe {
                let query = (*(*object.as_ptr()).vtbl).query_interface;
                query(object.as_ptr().cast(), &version.iid, &mut found)
            };
            if let (true, Some(pointer)) = (answer.is_ok(), NonNull::new(found)) {
                return Ok(Self {
                    pointer: pointer.cast(),
                    version,
                    number: index as u32 + 1,
                });
            }
        }
        Err(Hresult::E_NOINTERFACE)
    }
}

impl InfoPointer {
    /// Gives the reference back.
    ///
    /// # Safety
    /// The object lives, and this is the last use of it.
    unsafe fn release(&self) {
        // SAFETY: `query` got a reference of its own; the caller vouches for the rest.
        unsafe {
            let this = self.pointer.as_ptr();
            ((*(*this).vtbl).unknown.release)(this.cast());
        }
    }
}

/// State of one CLR. Made by `CreateInstance`, complete from `Initialize` on.
#[derive(Debug)]
pub(crate) struct RuntimeInner {
    index: RuntimeIndex,
    info: OnceLock<InfoPointer>,
    /// The runtime has let the profiler go, or not in: its interface is no more.
    gone: AtomicBool,
    panics: AtomicU64,
    meter: Meter,
}

impl Drop for RuntimeInner {
    fn drop(&mut self) {
        // The runtime frees its side when it has let us go, whoever holds references to it
        // (src/coreclr/vm/proftoeeinterfaceimpl.cpp: "The VM controls the lifetime").
        if self.gone.load(Ordering::Acquire) {
            return;
        }
        if let Some(info) = self.info.get() {
            // SAFETY: the runtime lives, as it is not gone; no other code has this any more.
            unsafe { info.release() };
        }
    }
}

impl RuntimeInner {
    pub(crate) fn new(index: RuntimeIndex) -> Self {
        Self {
            index,
            info: OnceLock::new(),
            gone: AtomicBool::new(false),
            panics: AtomicU64::new(0),
            meter: Meter::default(),
        }
    }

    /// Takes the interface that `Initialize` or `InitializeForAttach` brought.
    ///
    /// # Safety
    /// `unknown` is null or a live COM object whose answers follow `corprof.idl`.
    pub(crate) unsafe fn initialize(&self, unknown: *mut IUnknown) -> Result<()> {
        // SAFETY: the caller's promise.
        let pointer = unsafe { InfoPointer::query(unknown) }?;
        self.info
            .set(pointer)
            .map_err(|_| Hresult::E_ILLEGAL_METHOD_CALL)
    }

    pub(crate) fn is_initialized(&self) -> bool {
        self.info.get().is_some()
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The runtime is about to free its side: nothing is called from here on.
    pub(crate) fn release(&self) {
        self.gone.store(true, Ordering::Release); // pairs with `with_slot` and the drop
    }

    pub(crate) fn count_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }
}

/// One CLR of this process. Cheap to clone, kept for as long as the profiler likes.
///
/// It makes no calls itself: enter it from the agent's thread by [`crate::AgentCx::enter`], or take
/// the [`Info`] that a callback's [`Cx`] brings.
#[derive(Clone, Debug)]
pub struct Runtime {
    inner: Arc<RuntimeInner>,
}

impl Runtime {
    pub(crate) fn new(index: RuntimeIndex) -> Self {
        Self {
            inner: Arc::new(RuntimeInner::new(index)),
        }
    }

    pub(crate) fn inner(&self) -> &RuntimeInner {
        &self.inner
    }

    /// Number of this CLR in the process.
    pub fn index(&self) -> RuntimeIndex {
        self.inner.index
    }

    /// The newest `ICorProfilerInfo` that it has: 11 in .NET Core 3.1, 14 in .NET 8. 0 before
    /// `Initialize`.
    pub fn interface_version(&self) -> u32 {
        self.inner.info.get().map_or(0, |info| info.number)
    }

    /// How many callbacks of this runtime panicked and answered `E_FAIL`.
    pub fn panics(&self) -> u64 {
        self.inner.panics.load(Ordering::Relaxed)
    }

    /// How many callbacks it has made, and what CPU time they took, in the order of
    /// [`CallbackKind::ALL`]. The hooks of [`crate::elt`] are not among them.
    pub fn calls(&self) -> [Calls; CallbackKind::COUNT] {
        self.inner.meter.calls()
    }

    /// Runs `f` with the proof of code that the profiler put into a method's IL and that calls the
    /// profiler: asynchronous, because no callback of the runtime's is in between. The instrumented
    /// code says which runtime it belongs to, by a constant in the IL.
    ///
    /// # Safety
    /// The caller was called by managed code of this runtime, on this thread, and not from a signal
    /// handler; [`crate::Callbacks::initialize`] has returned.
    pub unsafe fn in_instrumented_code<R>(
        &self,
        f: impl for<'rt> FnOnce(&mut Cx<'rt, Async>) -> R,
    ) -> R {
        // SAFETY: the caller's promise; `f` is generic over the brand.
        f(&mut unsafe { Cx::assert(self) })
    }

    /// Runs `f` with the proof of a signal handler, by which nothing can be called.
    pub fn in_signal_handler<R>(&self, f: impl for<'rt> FnOnce(&mut Cx<'rt, Signal>) -> R) -> R {
        // SAFETY: `Signal` promises nothing, and `f` is generic over the brand.
        f(&mut unsafe { Cx::assert(self) })
    }
}

/// Interfaces that the runtime has, found out once by `QueryInterface`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Number of the newest `ICorProfilerInfo`.
    pub interface_version: u32,
    /// `GetNativeCodeStartAddresses`, `GetILToNativeMapping3`, `GetCodeInfo4` (3.0 on).
    pub native_code_versions: bool,
    /// `SuspendRuntime`, `ResumeRuntime` (3.0 on).
    pub suspend_runtime: bool,
    /// `EventPipe*` (5.0 on).
    pub event_pipe: bool,
    /// `CreateHandle` and its kin (7.0 on).
    pub object_handles: bool,
    /// `EnumerateGCHeapObjects` (.NET 10 on).
    pub enumerate_gc_heap: bool,
}

/// The `ICorProfilerInfo` of the runtime `'rt`: every call, each asking for the [`Cx`] that it
/// needs.
///
/// The methods have the runtime's names in snake case. They answer
/// [`Hresult::E_NOINTERFACE`] when the runtime is too old to have the method.
#[derive(Clone, Copy, Debug)]
pub struct Info<'rt> {
    runtime: &'rt Runtime,
    brand: Brand<'rt>,
}

impl<'rt> Info<'rt> {
    pub(crate) fn new(runtime: &'rt Runtime) -> Self {
        Self {
            runtime,
            brand: Brand::default(),
        }
    }

    /// The runtime in a form that may be kept.
    pub fn runtime(self) -> Runtime {
        self.runtime.clone()
    }

    /// Number of this CLR in the process.
    pub fn index(self) -> RuntimeIndex {
        self.runtime.inner.index
    }

    /// The number of the newest `ICorProfilerInfo` that the runtime has.
    pub fn interface_version(self) -> u32 {
        self.runtime.interface_version()
    }

    /// The runtime's interfaces and version.
    pub fn capabilities(self) -> Capabilities {
        let interface_version = self.interface_version();
        Capabilities {
            interface_version,
            native_code_versions: interface_version >= 9,
            suspend_runtime: interface_version >= 10,
            event_pipe: interface_version >= 12,
            object_handles: interface_version >= 13,
            enumerate_gc_heap: interface_version >= 15,
        }
    }

    /// A stored id, if this is the runtime that it belongs to.
    pub fn id<K>(self, key: Key<K>) -> Option<Id<'rt, K>> {
        if key.runtime() == self.index() {
            Id::new(key.raw())
        } else {
            None
        }
    }

    /// The id in a form that may be kept.
    pub fn key<K>(self, id: Id<'rt, K>) -> Key<K> {
        Key::new(self.index(), id.non_zero())
    }

    /// The raw interface and the number of slots that it has.
    ///
    /// Calls through it are checked by the runtime alone; the pointer must not outlive the
    /// profiler's stay in the process.
    pub fn as_raw(self) -> Option<(NonNull<ICorProfilerInfo15>, usize)> {
        let inner = &self.runtime.inner;
        if inner.gone.load(Ordering::Acquire) {
            return None;
        }
        inner
            .info
            .get()
            .map(|info| (info.pointer, info.version.slots))
    }

    /// The interface, when it has the slot at `offset` of its vtable.
    pub(crate) fn with_slot(self, offset: usize) -> Result<*mut ICorProfilerInfo15> {
        match self.as_raw() {
            Some((pointer, slots)) if offset < slots * size_of::<usize>() => Ok(pointer.as_ptr()),
            _ => Err(Hresult::E_NOINTERFACE),
        }
    }
}
