//! Test profiler of CLR 2's age: implements `ICorProfilerCallback` and `…Callback2` only.
//!
//! It writes one line for each event of its life to the file that `V2_AGENT_LOG` names:
//! `created N`, `initialized N LIBRARY` (the CLR's), `shutdown N`, `released N`, where N is the
//! number of the instance. It uses corprof's raw layer, because the typed layer implements newer
//! interfaces. Invariant: every slot of an implemented interface has a function.

use std::ffi::{CStr, c_void};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use corprof::EventMaskLow;
use corprof::sys::{
    Bool, Guid, Hresult, IClassFactory, IClassFactoryVtbl, ICorProfilerCallback11,
    ICorProfilerInfo15, IUnknown, IUnknownVtbl, Interface,
};

/// `ICorProfilerCallback` and `ICorProfilerCallback2`.
const ANSWERED: usize = 2;
const SLOTS: usize = ICorProfilerCallback11::VERSIONS[ANSWERED - 1].slots;

static CREATED: AtomicU32 = AtomicU32::new(0);

/// A vtable by slot. The slots are untyped, because the types of the functions differ.
#[expect(dead_code, reason = "read by the CLR")]
struct Vtable([*const c_void; SLOTS]);

// SAFETY: addresses of functions, never written.
unsafe impl Sync for Vtable {}

static VTABLE: Vtable = {
    let mut slots = [nothing as *const c_void; SLOTS];
    slots[0] = query_interface as *const c_void;
    slots[1] = add_ref as *const c_void;
    slots[2] = release as *const c_void;
    slots[3] = initialize as *const c_void;
    slots[4] = shutdown as *const c_void;
    Vtable(slots)
};

#[repr(C)]
struct Profiler {
    vtbl: *const Vtable,
    references: AtomicU32,
    number: u32,
}

fn log_line(line: &str) {
    let Some(path) = std::env::var_os("V2_AGENT_LOG") else {
        return;
    };
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) {
        // A line is one write, so lines of several CLRs do not mix.
        let _told = file.write_all(format!("{line}\n").as_bytes());
    }
}

/// Callback that does nothing, for any slot. It ignores its arguments: in the calling convention of
/// x86-64 and arm64 the caller removes them.
extern "system" fn nothing() -> Hresult {
    Hresult::S_OK
}

/// # Safety
/// COM's contract for `QueryInterface`.
unsafe extern "system" fn query_interface(
    this: *mut c_void,
    iid: *const Guid,
    out: *mut *mut c_void,
) -> Hresult {
    if iid.is_null() || out.is_null() {
        return Hresult::E_POINTER;
    }
    // SAFETY: not null, and the caller guarantees both.
    unsafe {
        let known = *iid == IUnknown::IID
            || ICorProfilerCallback11::VERSIONS[..ANSWERED]
                .iter()
                .any(|version| version.iid == *iid);
        *out = if known { this } else { null_mut() };
        if !known {
            return Hresult::E_NOINTERFACE;
        }
        add_ref(this);
    }
    Hresult::S_OK
}

/// # Safety
/// `this` is a live profiler of this library.
unsafe extern "system" fn add_ref(this: *mut c_void) -> u32 {
    // SAFETY: the caller's promise.
    let profiler = unsafe { &*this.cast::<Profiler>() };
    profiler.references.fetch_add(1, Ordering::Relaxed) + 1
}

/// # Safety
/// `this` is a live profiler of this library, and the caller gives back a reference of its own.
unsafe extern "system" fn release(this: *mut c_void) -> u32 {
    let (left, number) = {
        // SAFETY: the caller's promise.
        let profiler = unsafe { &*this.cast::<Profiler>() };
        let left = profiler.references.fetch_sub(1, Ordering::AcqRel) - 1;
        (left, profiler.number)
    };
    if left == 0 {
        // SAFETY: that was the last reference to what `create_instance` boxed.
        drop(unsafe { Box::from_raw(this.cast::<Profiler>()) });
        log_line(&format!("released {number}"));
    }
    left
}

/// # Safety
/// The CLR's contract: `this` is a live profiler of this library, `info` a live COM object.
unsafe extern "system" fn initialize(this: *mut c_void, info: *mut IUnknown) -> Hresult {
    // SAFETY: the caller's promise.
    let number = unsafe { (*this.cast::<Profiler>()).number };
    let mut info2: *mut ICorProfilerInfo15 = null_mut();
    let wanted = ICorProfilerInfo15::VERSIONS[1].iid;
    // SAFETY: a live object, whose vtable begins with `IUnknown`'s; the pointers are valid.
    let answer = unsafe {
        ((*(*info).vtbl).query_interface)(info.cast(), &raw const wanted, (&raw mut info2).cast())
    };
    if answer.is_err() {
        return answer;
    }
    // SAFETY: it returned ICorProfilerInfo2, which has SetEventMask, and its reference is released
    // once.
    let answer = unsafe {
        let answer =
            ICorProfilerInfo15::set_event_mask(info2, EventMaskLow::MONITOR_THREADS.bits());
        ((*(*info2).vtbl).unknown.release)(info2.cast());
        answer
    };
    // SAFETY: the object's vtable lies in the CLR's library.
    let library = library_of(unsafe { (*info).vtbl }.cast());
    log_line(&format!("initialized {number} {library}"));
    answer
}

/// # Safety
/// The CLR's contract: `this` is a live profiler of this library.
unsafe extern "system" fn shutdown(this: *mut c_void) -> Hresult {
    // SAFETY: the caller's promise.
    let number = unsafe { (*this.cast::<Profiler>()).number };
    log_line(&format!("shutdown {number}"));
    Hresult::S_OK
}

fn library_of(address: *const c_void) -> String {
    // SAFETY: all-zero is a valid Dl_info; any address is allowed; if the result is not 0 the name
    // is a string that lives as long as the library.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &raw mut found) == 0 || found.dli_fname.is_null() {
            return "unknown".to_owned();
        }
        CStr::from_ptr(found.dli_fname)
            .to_string_lossy()
            .into_owned()
    }
}

/// The one class factory. It is never freed, so its references are not counted.
#[repr(C)]
struct Factory {
    vtbl: &'static IClassFactoryVtbl,
}

static FACTORY: Factory = Factory {
    vtbl: &IClassFactoryVtbl {
        unknown: IUnknownVtbl {
            query_interface: query_factory,
            add_ref: count_nothing,
            release: count_nothing,
        },
        create_instance,
        lock_server,
    },
};

/// # Safety
/// COM's contract for `QueryInterface`.
unsafe extern "system" fn query_factory(
    this: *mut c_void,
    iid: *const Guid,
    out: *mut *mut c_void,
) -> Hresult {
    if iid.is_null() || out.is_null() {
        return Hresult::E_POINTER;
    }
    // SAFETY: not null, and the caller guarantees both.
    unsafe {
        let known = *iid == IUnknown::IID || *iid == IClassFactory::IID;
        *out = if known { this } else { null_mut() };
        if known {
            Hresult::S_OK
        } else {
            Hresult::E_NOINTERFACE
        }
    }
}

extern "system" fn count_nothing(_this: *mut c_void) -> u32 {
    1
}

/// # Safety
/// COM's contract for `CreateInstance`.
unsafe extern "system" fn create_instance(
    _this: *mut IClassFactory,
    _outer: *mut IUnknown,
    iid: *const Guid,
    out: *mut *mut c_void,
) -> Hresult {
    let number = CREATED.fetch_add(1, Ordering::Relaxed) + 1;
    let profiler = Box::into_raw(Box::new(Profiler {
        vtbl: &raw const VTABLE,
        references: AtomicU32::new(1),
        number,
    }));
    log_line(&format!("created {number}"));
    // SAFETY: a live profiler with one reference, which is released after the query; the caller
    // guarantees the rest.
    unsafe {
        let answer = query_interface(profiler.cast(), iid, out);
        release(profiler.cast());
        answer
    }
}

extern "system" fn lock_server(_this: *mut IClassFactory, _lock: Bool) -> Hresult {
    Hresult::S_OK
}

/// Class factory entry point of the profiler's library. It returns the factory for any class.
///
/// # Safety
/// The CLR's contract: `iid` points to a GUID, `out` to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn DllGetClassObject(
    _clsid: *const Guid,
    iid: *const Guid,
    out: *mut *mut c_void,
) -> Hresult {
    let factory: *const Factory = &raw const FACTORY;
    // SAFETY: the factory is static; the caller guarantees the pointers.
    unsafe { query_factory(factory.cast_mut().cast(), iid, out) }
}

const _: () = assert!(SLOTS == 80);
