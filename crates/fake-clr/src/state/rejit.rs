//! ReJIT of the fake runtime: requests, the new IL from the profiler, and reverts.
//!
//! Invariant: for each request the profiler is called once for a method's IL, on the thread that
//! next calls the method.

use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use corprof::sys::{
    CorIlMap, EventMaskLow, Guid, Hresult, ICorProfilerCallback11, ICorProfilerFunctionControl,
    ICorProfilerFunctionControlVtbl, IUnknownVtbl, MdToken,
};

use crate::state::{RunningThread, Shared};
use crate::{CallbackMode, FakeClr};

/// `CORPROF_E_ACTIVE_REJIT_REQUEST_NOT_FOUND`.
const NOT_FOUND: Hresult = Hresult::from_bits(0x8013_1380);

/// Active requests by module and token.
#[derive(Default)]
pub(crate) struct Rejits {
    last: usize,
    active: HashMap<(usize, u32), Active>,
}

#[derive(Clone)]
struct Active {
    id: usize,
    /// `None` before `GetReJITParameters`, `Some(None)` if the profiler gave no IL.
    il: Option<Option<Vec<u8>>>,
}

/// Copies a list argument; empty for a null pointer.
///
/// # Safety
/// `start` is null or points to that many elements.
pub(crate) unsafe fn list<T: Copy>(start: *const T, count: u32) -> Vec<T> {
    if start.is_null() {
        return Vec::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { core::slice::from_raw_parts(start, count as usize) }.to_vec()
}

impl Shared {
    /// Registers the calling thread permanently with the runtime, in preemptive mode. With `forced`
    /// the call rules still treat it as native.
    pub(crate) fn adopt(self: &Arc<Self>, forced: bool) {
        let before = self.running();
        let running = match before {
            Some(running) if !forced => running,
            Some(running) => RunningThread { forced, ..running },
            None => {
                let clr = FakeClr::of(self);
                let thread = clr.add_thread();
                clr.set_os_thread(thread, own_tid());
                RunningThread {
                    thread,
                    in_callback: false,
                    in_triggers_scope: false,
                    forced,
                    cooperative: false,
                }
            }
        };
        self.set_running(Some(running));
    }

    fn rejit_is_enabled(&self) -> Result<(), Hresult> {
        match self.lock().low.contains(EventMaskLow::ENABLE_REJIT) {
            true => Ok(()),
            false => Err(Hresult::CORPROF_E_REJIT_NOT_ENABLED),
        }
    }

    /// The methods of a request.
    fn named(
        &self,
        count: u32,
        modules: *const usize,
        methods: *const MdToken,
    ) -> Result<Vec<(usize, u32)>, Hresult> {
        if count == 0 {
            return Err(Hresult::E_INVALIDARG);
        }
        self.rejit_is_enabled()?;
        // SAFETY: by the contract both lists have that length.
        let (modules, methods) = unsafe { (list(modules, count), list(methods, count)) };
        self.note(methods.iter().map(|token| u64::from(*token)));
        Ok(modules.into_iter().zip(methods).collect())
    }

    /// `RequestReJIT`, `RequestReJITWithInliners`.
    pub(crate) fn request_rejit(
        self: &Arc<Self>,
        count: u32,
        modules: *const usize,
        methods: *const MdToken,
    ) -> Result<(), Hresult> {
        let named = self.named(count, modules, methods)?;
        self.adopt(true);
        let rejits = &mut self.lock().rejits;
        for method in named {
            rejits.last += 1;
            let id = rejits.last;
            rejits.active.insert(method, Active { id, il: None });
        }
        Ok(())
    }

    /// `RequestRevert`.
    pub(crate) fn request_revert(
        self: &Arc<Self>,
        count: u32,
        modules: *const usize,
        methods: *const MdToken,
        status: *mut Hresult,
    ) -> Result<(), Hresult> {
        let named = self.named(count, modules, methods)?;
        self.adopt(true);
        let rejits = &mut self.lock().rejits;
        for (at, method) in named.iter().enumerate() {
            let answer = match rejits.active.remove(method) {
                Some(_) => Hresult::S_OK,
                None => NOT_FOUND,
            };
            if !status.is_null() {
                // SAFETY: by the contract `status` has room for `count` results.
                unsafe { status.add(at).write(answer) };
            }
        }
        Ok(())
    }

    /// `GetReJITIDs`.
    pub(crate) fn rejit_ids(&self, function: usize) -> Vec<usize> {
        let state = self.lock();
        let function = state.world.functions.get(&function);
        let rejitted = function.into_iter().flat_map(|function| &function.rejitted);
        rejitted.map(|(id, _)| *id).collect()
    }
}

/// Kernel id of the calling thread.
pub(crate) fn own_tid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

impl FakeClr {
    /// Returns the IL that the next call of a function runs: that of its active request, or the
    /// original. The first call after a request gets the IL from the profiler and compiles it, on
    /// this thread.
    pub fn prepare_call(&self, function: usize) -> Arc<[u8]> {
        let found = self.function(function).expect("no such function");
        let method = (found.module, found.token);
        let active = self.shared.lock().rejits.active.get(&method).cloned();
        let Some(active) = active else {
            return found.il;
        };
        let il = active.il.unwrap_or_else(|| {
            let il = self.request_il_body(method);
            let state = &mut *self.shared.lock();
            if let Some(active) = state.rejits.active.get_mut(&method) {
                active.il = Some(il.clone());
            }
            let body = state.world.heap.add(function, 0x100);
            if let Some(function) = state.world.functions.get_mut(&function) {
                function.rejitted.push((active.id, body));
            }
            il
        });
        self.rejit_compilation_finished(function, active.id);
        il.map_or(found.il, Arc::from)
    }

    /// `GetReJITParameters`.
    fn request_il_body(&self, (module, token): (usize, u32)) -> Option<Vec<u8>> {
        let mut control = Control {
            vtbl: &VTBL,
            il: Mutex::new(None),
        };
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live, and `control` lives until the call returns.
            unsafe {
                ICorProfilerCallback11::get_rejit_parameters(
                    callbacks,
                    module,
                    token,
                    (&raw mut control).cast(),
                )
            }
        });
        control.il.into_inner().ok().flatten()
    }
}

/// `ICorProfilerFunctionControl`, valid during its callback.
#[repr(C)]
struct Control {
    vtbl: &'static ICorProfilerFunctionControlVtbl,
    il: Mutex<Option<Vec<u8>>>,
}

static VTBL: ICorProfilerFunctionControlVtbl = ICorProfilerFunctionControlVtbl {
    unknown: IUnknownVtbl {
        query_interface,
        add_ref: count,
        release: count,
    },
    set_codegen_flags,
    set_il_function_body,
    set_il_instrumented_code_map,
};

unsafe extern "system" fn query_interface(
    _: *mut c_void,
    _: *const Guid,
    out: *mut *mut c_void,
) -> Hresult {
    // SAFETY: the caller passes a valid out-pointer.
    unsafe { *out = core::ptr::null_mut() };
    Hresult::E_NOINTERFACE
}

unsafe extern "system" fn count(_: *mut c_void) -> u32 {
    1
}

unsafe extern "system" fn set_codegen_flags(
    _: *mut ICorProfilerFunctionControl,
    _: u32,
) -> Hresult {
    Hresult::S_OK
}

unsafe extern "system" fn set_il_function_body(
    this: *mut ICorProfilerFunctionControl,
    length: u32,
    il: *const u8,
) -> Hresult {
    // SAFETY: called through this vtable, with IL of that length.
    let (control, il) = unsafe { (&*this.cast::<Control>(), list(il, length)) };
    if let Ok(mut place) = control.il.lock() {
        *place = Some(il);
    }
    Hresult::S_OK
}

unsafe extern "system" fn set_il_instrumented_code_map(
    _: *mut ICorProfilerFunctionControl,
    _: u32,
    _: *const CorIlMap,
) -> Hresult {
    Hresult::CORPROF_E_DEBUGGING_DISABLED
}
