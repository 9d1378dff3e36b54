//! One CLR of the process: its `ICorProfilerInfo` and its capabilities.
//!
//! [`Runtime`] is the handle that a profiler stores, [`Info`] the calls within a context. The
//! interface version is queried once, in `Initialize`.
//!
//! Invariant: the interface pointer has exactly the slots below `slots`.

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

/// The runtime's side of the API, with one COM reference.
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
    /// Queries the newest interface version that the runtime has.
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
    /// Releases the reference.
    ///
    /// # Safety
    /// The object is alive, and this is its last use.
    unsafe fn release(&self) {
        // SAFETY: `query` got its own reference; the caller guarantees the rest.
        unsafe {
            let this = self.pointer.as_ptr();
            ((*(*this).vtbl).unknown.release)(this.cast());
        }
    }
}

/// State of one CLR. Created by `CreateInstance`, complete from `Initialize` on.
#[derive(Debug)]
pub(crate) struct RuntimeInner {
    index: RuntimeIndex,
    info: OnceLock<InfoPointer>,
    /// The profiler was detached, or refused at start: the runtime's interface is freed.
    gone: AtomicBool,
    panics: AtomicU64,
    meter: Meter,
}

impl Drop for RuntimeInner {
    fn drop(&mut self) {
        // The runtime frees its side after a detach, whatever references exist
        // (src/coreclr/vm/proftoeeinterfaceimpl.cpp: "The VM controls the lifetime").
        if self.gone.load(Ordering::Acquire) {
            return;
        }
        if let Some(info) = self.info.get() {
            // SAFETY: the runtime is alive, as `gone` is not set; no other code holds this pointer
            // any more.
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

    /// Takes the interface that `Initialize` or `InitializeForAttach` passed.
    ///
    /// # Safety
    /// `unknown` is null or a live COM object that implements `corprof.idl`.
    pub(crate) unsafe fn initialize(&self, unknown: *mut IUnknown) -> Result<()> {
        // SAFETY: guaranteed by the caller.
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

    /// Records that the runtime is about to free its side: no calls from here on.
    pub(crate) fn release(&self) {
        self.gone.store(true, Ordering::Release); // pairs with `with_slot` and the drop
    }

    pub(crate) fn count_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }
}

/// One CLR of this process. Cheap to clone, may be stored without limit.
///
/// To make calls, enter it from the agent thread with [`crate::AgentCx::enter`], or use the
/// [`Info`] of a callback's [`Cx`].
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

    /// Number of the newest `ICorProfilerInfo` that the runtime has: 11 in .NET Core 3.1, 14 in
    /// .NET 8. 0 before `Initialize`.
    pub fn interface_version(&self) -> u32 {
        self.inner.info.get().map_or(0, |info| info.number)
    }

    /// Number of callbacks of this runtime that panicked and returned `E_FAIL`.
    pub fn panics(&self) -> u64 {
        self.inner.panics.load(Ordering::Relaxed)
    }

    /// Number and CPU time of the runtime's callbacks, in the order of [`CallbackKind::ALL`],
    /// without the hooks of [`crate::elt`].
    pub fn calls(&self) -> [Calls; CallbackKind::COUNT] {
        self.inner.meter.calls()
    }

    /// Runs `f` with the context token of a probe: native code called from IL that the profiler put
    /// into a method. The context is asynchronous, because no callback of the runtime is in
    /// between. The probe identifies the runtime by a constant in the IL.
    ///
    /// # Safety
    /// The caller was called by managed code of this runtime, on this thread, and not from a signal
    /// handler; [`crate::Callbacks::initialize`] has returned.
    pub unsafe fn in_instrumented_code<R>(
        &self,
        f: impl for<'rt> FnOnce(&mut Cx<'rt, Async>) -> R,
    ) -> R {
        // SAFETY: guaranteed by the caller; `f` is generic over the brand.
        f(&mut unsafe { Cx::assert(self) })
    }

    /// Runs `f` with the context token of a signal handler, which permits no calls.
    pub fn in_signal_handler<R>(&self, f: impl for<'rt> FnOnce(&mut Cx<'rt, Signal>) -> R) -> R {
        // SAFETY: `Signal` promises nothing, and `f` is generic over the brand.
        f(&mut unsafe { Cx::assert(self) })
    }
}

/// Interfaces that the runtime has, queried once with `QueryInterface`.
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

/// The `ICorProfilerInfo` of the runtime `'rt`: every call takes the [`Cx`] that it requires.
///
/// The methods have the runtime's names in snake case. They return [`Hresult::E_NOINTERFACE`] if
/// the runtime is too old to have the method.
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

    /// The runtime in a form that can be stored.
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

    /// The id of a key; `None` if the key belongs to another runtime.
    pub fn id<K>(self, key: Key<K>) -> Option<Id<'rt, K>> {
        if key.runtime() == self.index() {
            Id::new(key.raw())
        } else {
            None
        }
    }

    /// The id in a form that can be stored.
    pub fn key<K>(self, id: Id<'rt, K>) -> Key<K> {
        Key::new(self.index(), id.non_zero())
    }

    /// The raw interface and the number of slots that it has.
    ///
    /// Only the runtime checks calls through it. The pointer is invalid after a detach.
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

    /// The interface, if it has the slot at `offset` of its vtable.
    pub(crate) fn with_slot(self, offset: usize) -> Result<*mut ICorProfilerInfo15> {
        match self.as_raw() {
            Some((pointer, slots)) if offset < slots * size_of::<usize>() => Ok(pointer.as_ptr()),
            _ => Err(Hresult::E_NOINTERFACE),
        }
    }
}
