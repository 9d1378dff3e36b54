//! COM enumerators over a list. Only `Next` works; the other slots return `E_NOTIMPL`.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use corprof::sys::{
    CorPrfFunction, CorPrfMethod, Guid, Hresult, ICorProfilerFunctionEnum,
    ICorProfilerFunctionEnumVtbl, ICorProfilerMethodEnum, ICorProfilerMethodEnumVtbl,
    ICorProfilerModuleEnum, ICorProfilerModuleEnumVtbl, ICorProfilerObjectEnum,
    ICorProfilerObjectEnumVtbl, ICorProfilerThreadEnum, ICorProfilerThreadEnumVtbl, IUnknownVtbl,
};

#[repr(C)]
struct List<V: 'static, T> {
    vtbl: &'static V,
    references: AtomicU32,
    next: AtomicUsize,
    items: Vec<T>,
}

unsafe extern "system" fn query(_: *mut c_void, _: *const Guid, out: *mut *mut c_void) -> Hresult {
    // SAFETY: the caller passes a valid out-pointer.
    unsafe { *out = core::ptr::null_mut() };
    Hresult::E_NOINTERFACE
}

/// # Safety
/// `this` is a live list of that type.
unsafe fn add_ref<V: 'static, T>(this: *mut c_void) -> u32 {
    // SAFETY: guaranteed by the caller.
    let list = unsafe { &*this.cast::<List<V, T>>() };
    list.references.fetch_add(1, Ordering::Relaxed) + 1
}

/// # Safety
/// `this` is a live list of that type, and the caller owns a reference.
unsafe fn release<V: 'static, T>(this: *mut c_void) -> u32 {
    // SAFETY: guaranteed by the caller.
    let left = unsafe { &*this.cast::<List<V, T>>() }
        .references
        .fetch_sub(1, Ordering::AcqRel)
        - 1;
    if left == 0 {
        // SAFETY: that was the last reference, and the list was created with `Box`.
        drop(unsafe { Box::from_raw(this.cast::<List<V, T>>()) });
    }
    left
}

/// # Safety
/// `this` is a live list of that type; `out` has room for `wanted` items.
unsafe fn next<V: 'static, T: Copy>(
    this: *mut c_void,
    wanted: u32,
    out: *mut T,
    fetched: *mut u32,
) -> Hresult {
    // SAFETY: guaranteed by the caller.
    let list = unsafe { &*this.cast::<List<V, T>>() };
    let from = list.next.load(Ordering::Relaxed);
    let some = list.items.len().saturating_sub(from).min(wanted as usize);
    // SAFETY: guaranteed by the caller.
    unsafe {
        core::ptr::copy_nonoverlapping(list.items.as_ptr().add(from), out, some);
        if let Some(fetched) = fetched.as_mut() {
            *fetched = some as u32;
        }
    }
    list.next.store(from + some, Ordering::Relaxed);
    if some < wanted as usize {
        Hresult::S_FALSE
    } else {
        Hresult::S_OK
    }
}

macro_rules! enumerators {
    ($($name:ident: $interface:ident, $vtbl:ident of $item:ty;)*) => { $(
        pub(crate) fn $name(items: Vec<$item>) -> *mut $interface {
            unsafe extern "system" fn add(this: *mut c_void) -> u32 {
                // SAFETY: called through this list's vtable.
                unsafe { add_ref::<$vtbl, $item>(this) }
            }
            unsafe extern "system" fn give(this: *mut c_void) -> u32 {
                // SAFETY: called through this list's vtable.
                unsafe { release::<$vtbl, $item>(this) }
            }
            unsafe extern "system" fn skip(_: *mut $interface, _: u32) -> Hresult {
                Hresult::E_NOTIMPL
            }
            unsafe extern "system" fn reset(_: *mut $interface) -> Hresult {
                Hresult::E_NOTIMPL
            }
            unsafe extern "system" fn clone(_: *mut $interface, _: *mut *mut $interface) -> Hresult {
                Hresult::E_NOTIMPL
            }
            unsafe extern "system" fn get_count(_: *mut $interface, _: *mut u32) -> Hresult {
                Hresult::E_NOTIMPL
            }
            unsafe extern "system" fn next_items(
                this: *mut $interface,
                wanted: u32,
                out: *mut $item,
                fetched: *mut u32,
            ) -> Hresult {
                // SAFETY: called through this list's vtable, with room for `wanted` items.
                unsafe { next::<$vtbl, $item>(this.cast(), wanted, out, fetched) }
            }
            static VTBL: $vtbl = $vtbl {
                unknown: IUnknownVtbl { query_interface: query, add_ref: add, release: give },
                skip,
                reset,
                clone,
                get_count,
                next: next_items,
            };
            Box::into_raw(Box::new(List {
                vtbl: &VTBL,
                references: AtomicU32::new(1),
                next: AtomicUsize::new(0),
                items,
            }))
            .cast()
        }
    )* };
}

enumerators! {
    functions: ICorProfilerFunctionEnum, ICorProfilerFunctionEnumVtbl of CorPrfFunction;
    modules: ICorProfilerModuleEnum, ICorProfilerModuleEnumVtbl of usize;
    threads: ICorProfilerThreadEnum, ICorProfilerThreadEnumVtbl of usize;
    objects: ICorProfilerObjectEnum, ICorProfilerObjectEnumVtbl of usize;
    methods: ICorProfilerMethodEnum, ICorProfilerMethodEnumVtbl of CorPrfMethod;
}
