//! Entry points of a profiler's library: a class factory that creates one profiler per CLR.
//!
//! A CLR calls `DllGetClassObject` and then `CreateInstance`, on the thread that starts it. The
//! factory's only state is the constructor and a counter of CLRs.
//!
//! Invariant: the constructor runs once for each `CreateInstance`. Several may run at the same
//! time.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};
use std::panic::catch_unwind;

use crate::callbacks::Callbacks;
use crate::id::RuntimeIndex;
use crate::runtime::Result;
use crate::sys::*;
use crate::thunks;

/// A CLR's request for its profiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassRequest {
    /// Class id from `CORECLR_PROFILER` or the attach command.
    pub clsid: Guid,
    /// Number of this CLR in the process.
    pub runtime: RuntimeIndex,
}

/// Creates the profiler for one CLR. To refuse, return
/// [`Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION`]: the CLR then continues without the profiler.
///
/// Called on several threads at once when CLRs start at the same time.
pub type Constructor = fn(&ClassRequest) -> Result<Box<dyn Callbacks>>;

static NEXT_RUNTIME: AtomicU32 = AtomicU32::new(0);

#[repr(C)]
struct Factory {
    vtbl: &'static IClassFactoryVtbl,
    references: AtomicU32,
    clsid: Guid,
    constructor: Constructor,
}

/// Exports `DllGetClassObject`, the only symbol that a CLR looks up in a profiler's library.
///
/// The argument is the [`Constructor`]. Use it once, in the crate that is the `cdylib`.
#[macro_export]
macro_rules! export_profiler {
    ($constructor:expr) => {
        /// Returns the profiler's class factory to a CLR.
        ///
        /// # Safety
        /// The CLR's contract: `clsid` and `iid` point to GUIDs, `out` to a pointer.
        #[unsafe(no_mangle)]
        pub unsafe extern "system" fn DllGetClassObject(
            clsid: *const $crate::sys::Guid,
            iid: *const $crate::sys::Guid,
            out: *mut *mut core::ffi::c_void,
        ) -> $crate::sys::Hresult {
            // SAFETY: the caller guarantees the same.
            unsafe { $crate::class_object(clsid, iid, out, $constructor) }
        }
    };
}

/// Implements `DllGetClassObject`; see [`export_profiler`](crate::export_profiler).
///
/// # Safety
/// `clsid` and `iid` are null or point to GUIDs, `out` is null or points to a pointer.
pub unsafe fn class_object(
    clsid: *const Guid,
    iid: *const Guid,
    out: *mut *mut c_void,
    constructor: Constructor,
) -> Hresult {
    if clsid.is_null() || iid.is_null() || out.is_null() {
        return Hresult::E_POINTER;
    }
    // SAFETY: not null; the caller guarantees the rest.
    let clsid = unsafe { *clsid };
    let factory: *mut Factory = Box::into_raw(Box::new(Factory {
        vtbl: &VTBL,
        references: AtomicU32::new(1),
        clsid,
        constructor,
    }));
    // SAFETY: the factory was just created with one reference, released after the query.
    unsafe {
        let answer = query_interface(factory.cast(), iid, out);
        release(factory.cast());
        answer
    }
}

/// Creates the object that a CLR holds, with one reference, for an existing profiler. For hosts
/// other than a CLR, such as a test double.
pub fn callback_object(callbacks: Box<dyn Callbacks>) -> *mut ICorProfilerCallback11 {
    thunks::create(next_runtime(), callbacks)
}

fn next_runtime() -> RuntimeIndex {
    RuntimeIndex(NEXT_RUNTIME.fetch_add(1, Ordering::Relaxed))
}

static VTBL: IClassFactoryVtbl = IClassFactoryVtbl {
    unknown: IUnknownVtbl {
        query_interface,
        add_ref,
        release,
    },
    create_instance,
    lock_server,
};

unsafe extern "system" fn query_interface(
    this: *mut c_void,
    iid: *const Guid,
    out: *mut *mut c_void,
) -> Hresult {
    if iid.is_null() || out.is_null() {
        return Hresult::E_POINTER;
    }
    // SAFETY: not null, and valid by the contract of `QueryInterface`.
    unsafe {
        let known = *iid == IUnknown::IID || *iid == IClassFactory::IID;
        *out = if known { this } else { core::ptr::null_mut() };
        if !known {
            return Hresult::E_NOINTERFACE;
        }
        add_ref(this);
    }
    Hresult::S_OK
}

unsafe extern "system" fn add_ref(this: *mut c_void) -> u32 {
    // SAFETY: the caller holds a reference to a factory that `class_object` created.
    let factory = unsafe { &*this.cast::<Factory>() };
    factory.references.fetch_add(1, Ordering::Relaxed) + 1
}

unsafe extern "system" fn release(this: *mut c_void) -> u32 {
    let left = {
        // SAFETY: the caller releases a reference to a factory that `class_object` created.
        let factory = unsafe { &*this.cast::<Factory>() };
        factory.references.fetch_sub(1, Ordering::AcqRel) - 1
    };
    if left == 0 {
        // SAFETY: that was the last reference, and `class_object` created the factory with `Box`.
        drop(unsafe { Box::from_raw(this.cast::<Factory>()) });
    }
    left
}

unsafe extern "system" fn create_instance(
    this: *mut IClassFactory,
    outer: *mut IUnknown,
    iid: *const Guid,
    out: *mut *mut c_void,
) -> Hresult {
    if iid.is_null() || out.is_null() {
        return Hresult::E_POINTER;
    }
    // SAFETY: not null, and by COM's contract it points to a pointer.
    unsafe { *out = core::ptr::null_mut() };
    if !outer.is_null() {
        return Hresult::CLASS_E_NOAGGREGATION;
    }
    // SAFETY: the caller holds a reference to a factory that `class_object` created.
    let factory = unsafe { &*this.cast::<Factory>() };
    let request = ClassRequest {
        clsid: factory.clsid,
        runtime: next_runtime(),
    };
    let constructor = factory.constructor;
    let callbacks = match catch_unwind(|| constructor(&request)) {
        Ok(Ok(callbacks)) => callbacks,
        Ok(Err(refusal)) => return refusal,
        Err(panic) => {
            core::mem::forget(panic);
            return Hresult::E_FAIL;
        }
    };
    let object = thunks::create(request.runtime, callbacks);
    // SAFETY: the object was just created with one reference, released after the query; `iid` and
    // `out` are not null.
    unsafe {
        let unknown = &(*(*object).vtbl).unknown;
        let answer = (unknown.query_interface)(object.cast(), iid, out);
        (unknown.release)(object.cast());
        answer
    }
}

unsafe extern "system" fn lock_server(_this: *mut IClassFactory, _lock: Bool) -> Hresult {
    Hresult::S_OK
}
