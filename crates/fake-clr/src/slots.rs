//! The fake `ICorProfilerInfo`: checks the call rules, then returns data of the script's world.
//!
//! The profiler calls it on any thread. The checks are in `check`, the data in `world`. Methods
//! that would need a heap return `E_NOTIMPL` after the check.
//!
//! Invariant: no method returns data before the check has accepted the call.

mod metadata;

use core::ffi::c_void;
use core::mem::offset_of;
use core::ops::Range;
use std::sync::{Arc, Weak};

use corprof::sys::rules::{CallRule, Entry, RuntimeVersion};
use corprof::sys::*;

use crate::check::{Refusal, admit};
use crate::enumerators;
use crate::state::journal::{Call, When, own_name};

use crate::state::{Hooks, Shared, Status, os_thread};
use crate::world::{Function, Module};
use crate::{FakeClr, Thread};

/// Result of a method.
pub(crate) type Answer = Result<(), Hresult>;

/// The COM object, which is a part of its runtime.
#[repr(C)]
pub(crate) struct InfoObject {
    vtbl: &'static ICorProfilerInfo15Vtbl,
    shared: Weak<Shared>,
}

impl InfoObject {
    pub(crate) fn new(shared: Weak<Shared>) -> Self {
        Self {
            vtbl: &VTBL,
            shared,
        }
    }
}

/// # Safety
/// `this` is the object of a live runtime.
unsafe fn shared(this: *mut c_void) -> Option<Arc<Shared>> {
    // SAFETY: guaranteed by the caller.
    unsafe { &*this.cast::<InfoObject>() }.shared.upgrade()
}

/// Entry of every method: checks the call and records it.
///
/// # Safety
/// `this` is the object of a live runtime.
unsafe fn enter(
    this: *mut ICorProfilerInfo15,
    offset: usize,
    body: impl FnOnce(&Arc<Shared>) -> Answer,
) -> Hresult {
    // SAFETY: guaranteed by the caller.
    let Some(clr) = (unsafe { shared(this.cast()) }) else {
        return Hresult::E_UNEXPECTED;
    };
    let Some(rule) = CallRule::of_slot(offset / size_of::<usize>()) else {
        return Hresult::E_UNEXPECTED;
    };
    let number = {
        let mut state = clr.lock();
        state.calls += 1;
        if state.is_released {
            // The runtime has freed its object.
            let crash = format!("{} was called of a runtime that is no more", rule.name);
            state.crashes.push(crash);
            return Hresult::E_UNEXPECTED;
        }
        if let Err(answer) = admit(&clr, &state, rule) {
            state.refusals.push(Refusal {
                method: rule.name,
                answer,
            });
            return answer;
        }
        let thread = own_name();
        state.journal.push(Call {
            method: rule.name,
            thread,
            arguments: Vec::new(),
            is_over: false,
        });
        state.journal.len() - 1
    };
    clr.meanwhile(rule.name, When::Before);
    let triggers = matches!(
        rule.entry(clr.version),
        Entry::AsyncTriggers | Entry::SyncTriggers
    );
    // No collection during a suspension: it would wait for the suspending thread itself.
    if triggers && clr.lock().suspended_by.is_none() && clr.may_collect().is_err() {
        return Hresult::E_ABORT;
    }
    let answer = body(&clr);
    clr.meanwhile(rule.name, When::After);
    if let Some(call) = clr.lock().journal.get_mut(number) {
        call.is_over = true;
    }
    clr.changed.notify_all();
    answer.err().unwrap_or(Hresult::S_OK)
}

/// Writes a value to an out-pointer.
pub(crate) fn put<T>(out: *mut T, value: T) -> Answer {
    if !out.is_null() {
        // SAFETY: not null, and by the contract it points to a `T`.
        unsafe { out.write(value) };
    }
    Ok(())
}

pub(crate) fn fill_only<T: Copy>(list: &[T], capacity: u32, out: *mut T) -> Answer {
    let some = list.len().min(capacity as usize);
    if !out.is_null() {
        // SAFETY: not null, and by the contract it has room for `capacity` elements.
        unsafe { core::ptr::copy_nonoverlapping(list.as_ptr(), out, some) };
    }
    Ok(())
}

/// Writes a list as the runtime does: as many elements as fit, and the total number.
fn fill<T: Copy>(list: &[T], capacity: u32, length: *mut u32, out: *mut T) -> Answer {
    put(length, list.len() as u32)?;
    fill_only(list, capacity, out)
}

/// Writes a text as the runtime does: the length includes the NUL, and a buffer that is too short
/// is an error.
pub(crate) fn text(value: &str, capacity: u32, length: *mut u32, out: *mut u16) -> Answer {
    let units: Vec<u16> = value.encode_utf16().chain([0]).collect();
    put(length, units.len() as u32)?;
    if (capacity as usize) < units.len() && !out.is_null() {
        return Err(Hresult::E_INSUFFICIENT_BUFFER);
    }
    fill_only(&units, capacity, out)
}

fn wide_text(start: *const u16) -> String {
    let mut units = Vec::new();
    // SAFETY: null or a text with a NUL at its end, by the contract.
    unsafe {
        let mut at = start;
        while !at.is_null() && *at != 0 {
            units.push(*at);
            at = at.add(1);
        }
    }
    String::from_utf16_lossy(&units)
}

fn code(body: &Range<usize>) -> CorPrfCodeInfo {
    CorPrfCodeInfo {
        start_address: body.start,
        size: body.len(),
    }
}

fn il_map(
    il_offset: u32,
    native_start_offset: u32,
    native_end_offset: u32,
) -> CorDebugIlToNativeMap {
    CorDebugIlToNativeMap {
        il_offset,
        native_start_offset,
        native_end_offset,
    }
}

impl Shared {
    pub(crate) fn crash(&self, what: &str) {
        self.lock().crashes.push(what.to_owned());
    }

    /// Refuses a number that is not an id of this runtime. A real runtime would crash.
    fn ours(&self, method: &str, id: usize) -> Answer {
        if id == 0 {
            return Err(Hresult::E_INVALIDARG);
        }
        let mut state = self.lock();
        if state.world.is_gone(id) {
            let crash = format!("{method} was given {id:#x}, the id of something that is gone");
            state.crashes.push(crash);
            return Err(Hresult::E_UNEXPECTED);
        }
        if state.world.is_ours(id) {
            return Ok(());
        }
        let crash = format!("{method} was given {id:#x}, an id of another runtime");
        state.crashes.push(crash);
        Err(Hresult::E_UNEXPECTED)
    }

    fn function(&self, method: &str, id: usize) -> Result<Function, Hresult> {
        self.ours(method, id)?;
        let state = self.lock();
        state
            .world
            .functions
            .get(&id)
            .cloned()
            .ok_or(Hresult::E_INVALIDARG)
    }

    fn with_metadata(&self, method: &str, id: usize) -> Result<Function, Hresult> {
        let function = self.function(method, id)?;
        match function.dynamic {
            None => Ok(function),
            Some(_) => Err(Hresult::E_INVALIDARG),
        }
    }

    fn class(&self, method: &str, id: usize) -> Result<(usize, u32), Hresult> {
        self.ours(method, id)?;
        let state = self.lock();
        let class = state.world.classes.get(&id).ok_or(Hresult::E_INVALIDARG)?;
        Ok((class.module, class.token))
    }

    fn module(&self, method: &str, id: usize) -> Result<Module, Hresult> {
        self.ours(method, id)?;
        let state = self.lock();
        state
            .world
            .modules
            .get(&id)
            .cloned()
            .ok_or(Hresult::CORPROF_E_DATAINCOMPLETE)
    }

    /// Operating system id of a thread.
    fn thread(&self, method: &str, id: usize) -> Result<u32, Hresult> {
        self.ours(method, id)?;
        let state = self.lock();
        let thread = state.world.threads.get(&Thread(id));
        Ok(thread.ok_or(Hresult::E_INVALIDARG)?.os_thread)
    }

    /// The function at an address.
    fn at(&self, ip: usize, dynamic: bool) -> Result<usize, Hresult> {
        let state = self.lock();
        if !state.started {
            return Err(Hresult::CORPROF_E_NOT_YET_AVAILABLE);
        }
        match state.world.at(ip) {
            Some((function, _)) if dynamic || function.dynamic.is_none() => Ok(function.id),
            _ => Err(Hresult::E_FAIL),
        }
    }

    /// The code body that starts at an address.
    fn body(&self, start: usize) -> Result<Range<usize>, Hresult> {
        let state = self.lock();
        match state.world.at(start) {
            Some((_, body)) if body.start == start => Ok(body),
            _ => Err(Hresult::E_INVALIDARG),
        }
    }

    fn jitted(&self) -> Vec<CorPrfFunction> {
        self.lock()
            .world
            .functions
            .keys()
            .map(|id| CorPrfFunction {
                function_id: *id,
                rejit_id: 0,
            })
            .collect()
    }

    /// `SetEventMask2`: refuses changes of immutable flags after initialisation, and flags that an
    /// attached profiler may not set.
    fn set_masks(&self, low: EventMaskLow, high: EventMaskHigh) -> Answer {
        /// `COR_PRF_ALLOWABLE_AFTER_ATTACH`.
        const AFTER_ATTACH: EventMaskLow = EventMaskLow::MONITOR_THREADS
            .union(EventMaskLow::MONITOR_MODULE_LOADS)
            .union(EventMaskLow::MONITOR_ASSEMBLY_LOADS)
            .union(EventMaskLow::MONITOR_APPDOMAIN_LOADS)
            .union(EventMaskLow::ENABLE_STACK_SNAPSHOT)
            .union(EventMaskLow::MONITOR_GC)
            .union(EventMaskLow::MONITOR_SUSPENDS)
            .union(EventMaskLow::MONITOR_CLASS_LOADS)
            .union(EventMaskLow::MONITOR_EXCEPTIONS)
            .union(EventMaskLow::MONITOR_JIT_COMPILATION)
            .union(EventMaskLow::ENABLE_REJIT);
        /// `COR_PRF_HIGH_ALLOWABLE_AFTER_ATTACH`, including the EventPipe flag that .NET 5 added.
        const HIGH_AFTER_ATTACH: u32 = 0x76;
        const SINCE_NET5: u32 = 0x80;
        self.note([low.bits().into(), high.bits().into()]);
        let mut state = self.lock();
        let allowed = match self.version {
            RuntimeVersion::Core31 => HIGH_AFTER_ATTACH,
            _ => HIGH_AFTER_ATTACH | SINCE_NET5,
        };
        if state.attached && (!AFTER_ATTACH.contains(low) || high.bits() & !allowed != 0) {
            return Err(Hresult::CORPROF_E_UNSUPPORTED_FOR_ATTACHING_PROFILER);
        }
        if state.status == Status::Active {
            let changed = EventMaskLow::from_bits_retain(low.bits() ^ state.low.bits());
            let changed_high = EventMaskHigh::from_bits_retain(high.bits() ^ state.high.bits());
            if changed.intersects(EventMaskLow::IMMUTABLE)
                || changed_high.intersects(EventMaskHigh::IMMUTABLE)
            {
                return Err(Hresult::E_FAIL);
            }
        }
        state.low = low;
        state.high = high;
        state.rewrites |= low.contains(EventMaskLow::ENABLE_REJIT);
        Ok(())
    }

    fn set_hooks(&self, slow: bool, enter: usize, leave: usize) -> Answer {
        let needs_slow = EventMaskLow::ENABLE_FUNCTION_ARGS
            | EventMaskLow::ENABLE_FUNCTION_RETVAL
            | EventMaskLow::ENABLE_FRAME_INFO;
        let mut state = self.lock();
        if state.low.intersects(needs_slow) != slow {
            return Err(Hresult::CORPROF_E_INCONSISTENT_WITH_FLAGS);
        }
        // Slow-path hooks need a frame of the runtime, which the fake does not have.
        if !slow {
            state.hooks = Some(Hooks { enter, leave });
        }
        Ok(())
    }

    /// Marks a thread after `ForceGC` or `RequestReJIT`: from then on its callback state is not
    /// checked.
    fn mark_forced(&self) {
        if let Some(mut running) = self.running() {
            running.forced = true;
            self.set_running(Some(running));
        }
    }

    fn request_detach(&self, milliseconds: u32) -> Answer {
        self.note([milliseconds.into()]);
        let mut state = self.lock();
        if !state.started {
            return Err(Hresult::CORPROF_E_RUNTIME_UNINITIALIZED);
        }
        if state.status != Status::Active {
            return Err(Hresult::CORPROF_E_PROFILER_NOT_YET_INITIALIZED);
        }
        if state.low.intersects(EventMaskLow::IMMUTABLE)
            || state.high.intersects(EventMaskHigh::IMMUTABLE)
        {
            return Err(Hresult::CORPROF_E_IMMUTABLE_FLAGS_SET);
        }
        // `SetModifiedRejitState`: enabling ReJIT once is enough.
        if state.hooks.is_some() || state.rewrites {
            return Err(Hresult::CORPROF_E_IRREVERSIBLE_INSTRUMENTATION_PRESENT);
        }
        state.status = Status::Detaching;
        Ok(())
    }

    fn suspend(&self) -> Answer {
        let mut state = self.lock();
        if state.busy > 0 || state.suspended_by.is_some() || state.waits.collector().is_some() {
            state.busy = state.busy.saturating_sub(1);
            return Err(Hresult::CORPROF_E_SUSPENSION_IN_PROGRESS);
        }
        state.suspended_by = Some(os_thread());
        Ok(())
    }

    fn resume(&self) -> Answer {
        self.lock().suspended_by = None;
        self.changed.notify_all();
        Ok(())
    }

    /// `DoStackSnapshot`, with the runtime's checks in their order.
    fn snapshot(
        &self,
        thread: usize,
        callback: Option<StackSnapshotCallback>,
        flags: u32,
        client_data: *mut c_void,
        seeded: bool,
    ) -> Answer {
        let callback = callback.ok_or(Hresult::E_INVALIDARG)?;
        let running = self.running();
        let stack = {
            let state = self.lock();
            if !state.started {
                return Err(Hresult::CORPROF_E_STACKSNAPSHOT_UNSAFE);
            }
            if !state.low.contains(EventMaskLow::ENABLE_STACK_SNAPSHOT) {
                return Err(Hresult::CORPROF_E_INCONSISTENT_WITH_FLAGS);
            }
            if flags & !SnapshotFlags::REGISTER_CONTEXT.bits() != 0 {
                return Err(Hresult::E_INVALIDARG);
            }
            let own = running.map(|running| running.thread);
            let target = match thread {
                0 => own,
                id => Some(Thread(id)),
            };
            // A thread unknown to the runtime has no frames.
            let Some(target) = target else {
                return Ok(());
            };
            let Some(found) = state.world.threads.get(&target) else {
                return Ok(());
            };
            if found.holds_runtime_lock {
                return Err(Hresult::CORPROF_E_STACKSNAPSHOT_UNSAFE);
            }
            if Some(target) != own && state.suspended_by.is_none() {
                return Err(Hresult::E_NOTIMPL);
            }
            // Outside a callback a walk has no frame to begin at.
            let outside = running.is_some_and(|running| !running.in_callback);
            if Some(target) == own && outside && !seeded {
                return Err(Hresult::E_FAIL);
            }
            if found.in_runtime_code && !seeded {
                return Err(Hresult::CORPROF_E_STACKSNAPSHOT_UNMANAGED_CTX);
            }
            found.stack.clone()
        };
        if stack.is_empty() {
            return Err(Hresult::E_FAIL);
        }
        let mut context = ContextAmd64::ZERO;
        for (function, ip) in stack {
            context.rip = ip as u64;
            let (registers, size) = if flags & SnapshotFlags::REGISTER_CONTEXT.bits() != 0 {
                (core::ptr::from_mut(&mut context).cast(), 1232)
            } else {
                (core::ptr::null_mut(), 0)
            };
            // SAFETY: the profiler's callback, with its own client data.
            let answer = unsafe { callback(function, ip, 0, size, registers, client_data) };
            if answer != Hresult::S_OK {
                return Err(Hresult::CORPROF_E_STACKSNAPSHOT_ABORTED);
            }
        }
        Ok(())
    }
}

unsafe extern "system" fn query_interface(
    this: *mut c_void,
    iid: *const Guid,
    out: *mut *mut c_void,
) -> Hresult {
    // SAFETY: the contract of `QueryInterface`; `this` is the object of a live runtime.
    unsafe {
        *out = core::ptr::null_mut();
        let Some(clr) = shared(this) else {
            return Hresult::E_UNEXPECTED;
        };
        let clr = FakeClr { shared: clr };
        let known =
            *iid == IUnknown::IID || clr.interfaces().iter().any(|version| version.iid == *iid);
        if !known {
            return Hresult::E_NOINTERFACE;
        }
        add_ref(this);
        *out = this;
    }
    Hresult::S_OK
}

unsafe extern "system" fn add_ref(this: *mut c_void) -> u32 {
    // SAFETY: `this` is the object of a live runtime.
    match unsafe { shared(this) } {
        // The reference keeps the whole runtime.
        Some(clr) => {
            core::mem::forget(clr);
            1
        }
        None => 0,
    }
}

unsafe extern "system" fn release(this: *mut c_void) -> u32 {
    // SAFETY: `this` is the object of a live runtime, because the caller has a reference.
    if let Some(clr) = unsafe { shared(this) } {
        // SAFETY: `add_ref` leaked a strong reference, which the caller releases.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(&clr)) };
    }
    1
}

macro_rules! slots {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?) => |$clr:ident| $body:expr;)*) => {
        $(
            unsafe extern "system" fn $name(
                this: *mut ICorProfilerInfo15 $(, $arg: $ty)*
            ) -> Hresult {
                // SAFETY: the caller has a reference, so the runtime is alive.
                unsafe {
                    enter(
                        this,
                        offset_of!(ICorProfilerInfo15Vtbl, $name),
                        #[allow(unused_variables, reason = "not every method looks at the world")]
                        |$clr| $body,
                    )
                }
            }
        )*
        static VTBL: ICorProfilerInfo15Vtbl = ICorProfilerInfo15Vtbl {
            unknown: IUnknownVtbl { query_interface, add_ref, release },
            $($name,)*
        };
    };
}

slots! {
    get_class_from_object(object_id: ObjectID, p_class_id: *mut ClassID) => |clr| {
    let state = clr.lock();
    let (class, _) = *state.world.objects.get(&object_id).ok_or(Hresult::E_INVALIDARG)?;
    put(p_class_id, class)
};
    get_class_from_token(module_id: ModuleID, type_def: MdToken, p_class_id: *mut ClassID) => |clr| {
    clr.ours("GetClassFromToken", module_id)?;
    let state = clr.lock();
    let class = state.world.classes.iter().find(|(_, of)| (of.module, of.token) == (module_id, type_def));
    put(p_class_id, *class.ok_or(Hresult::CORPROF_E_DATAINCOMPLETE)?.0)
};
    get_code_info(function_id: FunctionID, p_start: *mut *const u8, pc_size: *mut u32) => |clr| {
    let body = clr.function("GetCodeInfo", function_id)?.bodies.remove(0);
    put(p_start, core::ptr::without_provenance(body.start))?;
    put(pc_size, body.len() as u32)
};
    get_event_mask(pdw_events: *mut u32) => |clr| put(pdw_events, clr.lock().low.bits());
    get_function_from_ip(ip: *const u8, p_function_id: *mut FunctionID) => |clr| put(p_function_id, clr.at(ip.addr(), false)?);
    get_function_from_token(module_id: ModuleID, token: MdToken, p_function_id: *mut FunctionID) => |clr| {
    clr.ours("GetFunctionFromToken", module_id)?;
    let state = clr.lock();
    let function = state.world.functions.values().find(|function| (function.module, function.token) == (module_id, token));
    put(p_function_id, function.ok_or(Hresult::CORPROF_E_DATAINCOMPLETE)?.id)
};
    get_handle_from_thread(thread_id: ThreadID, ph_thread: *mut *mut c_void) => |clr| { clr.thread("GetHandleFromThread", thread_id)?; put(ph_thread, core::ptr::without_provenance_mut(thread_id)) };
    get_object_size(object_id: ObjectID, pc_size: *mut u32) => |clr| {
    let size = clr.lock().world.objects.get(&object_id).ok_or(Hresult::E_INVALIDARG)?.1;
    put(pc_size, size as u32)
};
    is_array_class(class_id: ClassID, _p_base_elem_type: *mut u32, _p_base_class_id: *mut ClassID, _pc_rank: *mut u32) => |clr| { clr.class("IsArrayClass", class_id)?; Err(Hresult::S_FALSE) };
    get_thread_info(thread_id: ThreadID, pdw_win32_thread_id: *mut u32) => |clr| put(pdw_win32_thread_id, clr.thread("GetThreadInfo", thread_id)?);
    get_current_thread_id(p_thread_id: *mut ThreadID) => |clr| put(p_thread_id, clr.running().ok_or(Hresult::CORPROF_E_NOT_MANAGED_THREAD)?.thread.0);
    get_class_id_info(class_id: ClassID, p_module_id: *mut ModuleID, p_type_def_token: *mut MdToken) => |clr| {
    let (module, token) = clr.class("GetClassIDInfo", class_id)?;
    put(p_module_id, module)?;
    put(p_type_def_token, token)
};
    get_function_info(function_id: FunctionID, p_class_id: *mut ClassID, p_module_id: *mut ModuleID, p_token: *mut MdToken) => |clr| {
    let function = clr.with_metadata("GetFunctionInfo", function_id)?;
    put(p_class_id, function.class)?;
    put(p_module_id, function.module)?;
    put(p_token, function.token)
};
    set_event_mask(dw_events: u32) => |clr| {
    let high = clr.lock().high;
    clr.set_masks(EventMaskLow::from_bits_retain(dw_events), high)
};
    set_enter_leave_function_hooks(_p_func_enter: Option<FunctionEnter>, _p_func_leave: Option<FunctionLeave>, _p_func_tailcall: Option<FunctionTailcall>) => |clr| Err(Hresult::E_NOTIMPL);
    set_function_id_mapper(_p_func: Option<FunctionIDMapper>) => |clr| Ok(());
    get_token_and_meta_data_from_function(_function_id: FunctionID, _riid: *const Guid, _pp_import: *mut *mut IUnknown, _p_token: *mut MdToken) => |clr| Err(Hresult::E_NOTIMPL);
    get_module_info(module_id: ModuleID, pp_base_load_address: *mut *const u8, cch_name: u32, pcch_name: *mut u32, sz_name: *mut u16, p_assembly_id: *mut AssemblyID) => |clr| {
    let path = clr.module("GetModuleInfo", module_id)?.path;
    put(pp_base_load_address, core::ptr::null())?;
    let assembly = clr.lock().world.assembly;
    put(p_assembly_id, assembly)?;
    text(&path, cch_name, pcch_name, sz_name)
};
    get_module_meta_data(module_id: ModuleID, dw_open_flags: u32, riid: *const Guid, pp_out: *mut *mut IUnknown) => |clr| {
    clr.module("GetModuleMetaData", module_id)?;
    clr.note([dw_open_flags.into()]);
    let iid = riid.as_ref().ok_or(Hresult::E_INVALIDARG)?;
    put(pp_out, metadata::open(clr, module_id, iid)?.cast())
};
    get_il_function_body(module_id: ModuleID, method_id: MdToken, pp_method_header: *mut *const u8, pcb_method_size: *mut u32) => |clr| {
    clr.module("GetILFunctionBody", module_id)?;
    let state = clr.lock();
    let function = state.world.functions.values().find(|function| (function.module, function.token) == (module_id, method_id));
    // Lent: it lives as long as the function.
    let il = &function.ok_or(Hresult::CORPROF_E_FUNCTION_NOT_IL)?.il;
    put(pp_method_header, il.as_ptr())?;
    put(pcb_method_size, il.len() as u32)
};
    get_il_function_body_allocator(_module_id: ModuleID, _pp_malloc: *mut *mut IMethodMalloc) => |clr| Err(Hresult::E_NOTIMPL);
    set_il_function_body(_module_id: ModuleID, _methodid: MdToken, _pb_new_il_method_header: *const u8) => |clr| Err(Hresult::E_NOTIMPL);
    get_app_domain_info(app_domain_id: AppDomainID, cch_name: u32, pcch_name: *mut u32, sz_name: *mut u16, p_process_id: *mut ProcessID) => |clr| {
    if app_domain_id != clr.lock().world.domain { return Err(Hresult::E_INVALIDARG); }
    put(p_process_id, std::process::id() as usize)?;
    text("clrhost", cch_name, pcch_name, sz_name)
};
    get_assembly_info(assembly_id: AssemblyID, cch_name: u32, pcch_name: *mut u32, sz_name: *mut u16, p_app_domain_id: *mut AppDomainID, p_module_id: *mut ModuleID) => |clr| {
    let (assembly, domain, module) = {
        let state = clr.lock();
        (state.world.assembly, state.world.domain, state.world.modules.keys().next().copied())
    };
    if assembly_id != assembly { return Err(Hresult::E_INVALIDARG); }
    put(p_app_domain_id, domain)?;
    put(p_module_id, module.unwrap_or(0))?;
    text("fake", cch_name, pcch_name, sz_name)
};
    set_function_rejit(_function_id: FunctionID) => |clr| Err(Hresult::E_NOTIMPL);
    force_gc() => |clr| { clr.mark_forced(); clr.begin_collection().map_err(|_| Hresult::E_FAIL)?; clr.end_collection(); Ok(()) };
    set_il_instrumented_code_map(_function_id: FunctionID, _f_start_jit: Bool, _c_il_map_entries: u32, _rg_il_map_entries: *const CorIlMap) => |clr| Err(Hresult::E_NOTIMPL);
    get_inproc_inspection_interface(_ppicd: *mut *mut IUnknown) => |clr| Err(Hresult::E_NOTIMPL);
    get_inproc_inspection_i_this_thread(_ppicd: *mut *mut IUnknown) => |clr| Err(Hresult::E_NOTIMPL);
    get_thread_context(thread_id: ThreadID, p_context_id: *mut ContextID) => |clr| { clr.thread("GetThreadContext", thread_id)?; put(p_context_id, thread_id) };
    begin_inproc_debugging(_f_this_thread_only: Bool, _pdw_profiler_context: *mut u32) => |clr| Err(Hresult::E_NOTIMPL);
    end_inproc_debugging(_dw_profiler_context: u32) => |clr| Err(Hresult::E_NOTIMPL);
    get_il_to_native_mapping(_function_id: FunctionID, _c_map: u32, _pc_map: *mut u32, _map: *mut CorDebugIlToNativeMap) => |clr| Err(Hresult::E_NOTIMPL);
    do_stack_snapshot(thread: ThreadID, callback: Option<StackSnapshotCallback>, info_flags: u32, client_data: *mut c_void, context: *const u8, _context_size: u32) => |clr| clr.snapshot(thread, callback, info_flags, client_data, !context.is_null());
    set_enter_leave_function_hooks2(_p_func_enter: Option<FunctionEnter2>, _p_func_leave: Option<FunctionLeave2>, _p_func_tailcall: Option<FunctionTailcall2>) => |clr| Err(Hresult::E_NOTIMPL);
    get_function_info2(func_id: FunctionID, _frame_info: CorPrfFrameInfo, p_class_id: *mut ClassID, p_module_id: *mut ModuleID, p_token: *mut MdToken, c_type_args: u32, pc_type_args: *mut u32, type_args: *mut ClassID) => |clr| {
    let function = clr.with_metadata("GetFunctionInfo2", func_id)?;
    put(p_class_id, function.class)?;
    put(p_module_id, function.module)?;
    put(p_token, function.token)?;
    fill(&[], c_type_args, pc_type_args, type_args)
};
    get_string_layout(_p_buffer_length_offset: *mut u32, _p_string_length_offset: *mut u32, _p_buffer_offset: *mut u32) => |clr| Err(Hresult::E_NOTIMPL);
    get_class_layout(class_id: ClassID, r_field_offset: *mut CorFieldOffset, c_field_offset: u32, pc_field_offset: *mut u32, pul_class_size: *mut u32) => |clr| {
    clr.class("GetClassLayout", class_id)?;
    put(pul_class_size, 24)?;
    fill(&[], c_field_offset, pc_field_offset, r_field_offset)
};
    get_class_id_info2(class_id: ClassID, p_module_id: *mut ModuleID, p_type_def_token: *mut MdToken, p_parent_class_id: *mut ClassID, c_num_type_args: u32, pc_num_type_args: *mut u32, type_args: *mut ClassID) => |clr| {
    let (module, token) = clr.class("GetClassIDInfo2", class_id)?;
    put(p_module_id, module)?;
    put(p_type_def_token, token)?;
    put(p_parent_class_id, 0)?;
    fill(&[], c_num_type_args, pc_num_type_args, type_args)
};
    get_code_info2(function_id: FunctionID, c_code_infos: u32, pc_code_infos: *mut u32, code_infos: *mut CorPrfCodeInfo) => |clr| {
    let body = clr.function("GetCodeInfo2", function_id)?.bodies.remove(0);
    fill(&[code(&body)], c_code_infos, pc_code_infos, code_infos)
};
    get_class_from_token_and_type_args(module_id: ModuleID, type_def: MdToken, _c_type_args: u32, _type_args: *const ClassID, p_class_id: *mut ClassID) => |clr| {
    clr.ours("GetClassFromTokenAndTypeArgs", module_id)?;
    let state = clr.lock();
    let class = state.world.classes.iter().find(|(_, of)| (of.module, of.token) == (module_id, type_def));
    put(p_class_id, *class.ok_or(Hresult::CORPROF_E_DATAINCOMPLETE)?.0)
};
    get_function_from_token_and_type_args(module_id: ModuleID, func_def: MdToken, _class_id: ClassID, _c_type_args: u32, _type_args: *const ClassID, p_function_id: *mut FunctionID) => |clr| {
    clr.ours("GetFunctionFromTokenAndTypeArgs", module_id)?;
    let state = clr.lock();
    let function = state.world.functions.values().find(|function| (function.module, function.token) == (module_id, func_def));
    put(p_function_id, function.ok_or(Hresult::CORPROF_E_DATAINCOMPLETE)?.id)
};
    enum_module_frozen_objects(_module_id: ModuleID, _pp_enum: *mut *mut ICorProfilerObjectEnum) => |clr| Err(Hresult::E_NOTIMPL);
    get_array_object_info(_object_id: ObjectID, _c_dimensions: u32, _p_dimension_sizes: *mut u32, _p_dimension_lower_bounds: *mut i32, _pp_data: *mut *mut u8) => |clr| Err(Hresult::E_NOTIMPL);
    get_box_class_layout(_class_id: ClassID, _p_buffer_offset: *mut u32) => |clr| Err(Hresult::E_NOTIMPL);
    get_thread_app_domain(thread_id: ThreadID, p_app_domain_id: *mut AppDomainID) => |clr| { clr.thread("GetThreadAppDomain", thread_id)?; let domain = clr.lock().world.domain; put(p_app_domain_id, domain) };
    get_rva_static_address(_class_id: ClassID, _field_token: MdToken, _pp_address: *mut *mut c_void) => |clr| Err(Hresult::E_NOTIMPL);
    get_app_domain_static_address(_class_id: ClassID, _field_token: MdToken, _app_domain_id: AppDomainID, _pp_address: *mut *mut c_void) => |clr| Err(Hresult::E_NOTIMPL);
    get_thread_static_address(_class_id: ClassID, _field_token: MdToken, _thread_id: ThreadID, _pp_address: *mut *mut c_void) => |clr| Err(Hresult::E_NOTIMPL);
    get_context_static_address(_class_id: ClassID, _field_token: MdToken, _context_id: ContextID, _pp_address: *mut *mut c_void) => |clr| Err(Hresult::E_NOTIMPL);
    get_static_field_info(class_id: ClassID, _field_token: MdToken, p_field_info: *mut CorPrfStaticType) => |clr| { clr.class("GetStaticFieldInfo", class_id)?; put(p_field_info, CorPrfStaticType::FIELD_NOT_A_STATIC) };
    get_generation_bounds(_c_object_ranges: u32, _pc_object_ranges: *mut u32, _ranges: *mut CorPrfGcGenerationRange) => |clr| Err(Hresult::E_NOTIMPL);
    get_object_generation(_object_id: ObjectID, _range: *mut CorPrfGcGenerationRange) => |clr| Err(Hresult::E_NOTIMPL);
    get_notified_exception_clause_info(_pinfo: *mut CorPrfExClauseInfo) => |clr| Err(Hresult::S_FALSE);
    enum_jited_functions(pp_enum: *mut *mut ICorProfilerFunctionEnum) => |clr| put(pp_enum, enumerators::functions(clr.jitted()));
    request_profiler_detach(dw_expected_completion_milliseconds: u32) => |clr| clr.request_detach(dw_expected_completion_milliseconds);
    set_function_id_mapper2(p_func: Option<FunctionIDMapper2>, client_data: *mut c_void) => |clr| {
    clr.lock().mapper = p_func.map(|mapper| (mapper, client_data.expose_provenance()));
    Ok(())
};
    get_string_layout2(p_string_length_offset: *mut u32, p_buffer_offset: *mut u32) => |clr| { put(p_string_length_offset, 8)?; put(p_buffer_offset, 12) };
    set_enter_leave_function_hooks3(p_func_enter3: Option<FunctionEnter3>, p_func_leave3: Option<FunctionLeave3>, _p_func_tailcall3: Option<FunctionTailcall3>) => |clr| clr.set_hooks(false, p_func_enter3.map_or(0, |hook| hook as usize), p_func_leave3.map_or(0, |hook| hook as usize));
    set_enter_leave_function_hooks3_with_info(p_func_enter3_with_info: Option<FunctionEnter3WithInfo>, p_func_leave3_with_info: Option<FunctionLeave3WithInfo>, _p_func_tailcall3_with_info: Option<FunctionTailcall3WithInfo>) => |clr| clr.set_hooks(true, p_func_enter3_with_info.map_or(0, |hook| hook as usize), p_func_leave3_with_info.map_or(0, |hook| hook as usize));
    get_function_enter3_info(_function_id: FunctionID, _elt_info: CorPrfEltInfo, _p_frame_info: *mut CorPrfFrameInfo, _pcb_argument_info: *mut u32, _p_argument_info: *mut CorPrfFunctionArgumentInfo) => |clr| Err(Hresult::E_NOTIMPL);
    get_function_leave3_info(_function_id: FunctionID, _elt_info: CorPrfEltInfo, _p_frame_info: *mut CorPrfFrameInfo, _p_retval_range: *mut CorPrfFunctionArgumentRange) => |clr| Err(Hresult::E_NOTIMPL);
    get_function_tailcall3_info(_function_id: FunctionID, _elt_info: CorPrfEltInfo, _p_frame_info: *mut CorPrfFrameInfo) => |clr| Err(Hresult::E_NOTIMPL);
    enum_modules(pp_enum: *mut *mut ICorProfilerModuleEnum) => |clr| put(pp_enum, enumerators::modules(clr.lock().world.modules.keys().copied().collect()));
    get_runtime_information(p_clr_instance_id: *mut u16, p_runtime_type: *mut CorPrfRuntimeType, p_major_version: *mut u16, p_minor_version: *mut u16, p_build_number: *mut u16, p_qfe_version: *mut u16, cch_version_string: u32, pcch_version_string: *mut u32, sz_version_string: *mut u16) => |clr| {
    let (major, minor) = match clr.version {
        RuntimeVersion::Core31 => (4, 0),
        RuntimeVersion::Net8 => (8, 0),
        RuntimeVersion::Net10 => (10, 0),
    };
    let major = clr.lock().major.unwrap_or(major);
    // The version outputs are written unchecked, as in 3.1.
    put(p_clr_instance_id, clr.number as u16)?;
    put(p_runtime_type, CorPrfRuntimeType::CORE_CLR)?;
    put(p_major_version, major)?;
    put(p_minor_version, minor)?;
    put(p_build_number, 0)?;
    put(p_qfe_version, 0)?;
    if cch_version_string == 0 && clr.version == RuntimeVersion::Core31 {
        return Err(Hresult::E_INSUFFICIENT_BUFFER);
    }
    text(&format!("{major}.{minor}.0"), cch_version_string, pcch_version_string, sz_version_string)
};
    get_thread_static_address2(_class_id: ClassID, _field_token: MdToken, _app_domain_id: AppDomainID, _thread_id: ThreadID, _pp_address: *mut *mut c_void) => |clr| Err(Hresult::E_NOTIMPL);
    get_app_domains_containing_module(module_id: ModuleID, c_app_domain_ids: u32, pc_app_domain_ids: *mut u32, app_domain_ids: *mut AppDomainID) => |clr| {
    clr.module("GetAppDomainsContainingModule", module_id)?;
    let domain = clr.lock().world.domain;
    fill(&[domain], c_app_domain_ids, pc_app_domain_ids, app_domain_ids)
};
    get_module_info2(module_id: ModuleID, pp_base_load_address: *mut *const u8, cch_name: u32, pcch_name: *mut u32, sz_name: *mut u16, p_assembly_id: *mut AssemblyID, pdw_module_flags: *mut u32) => |clr| {
    let module = clr.module("GetModuleInfo2", module_id)?;
    // The module is not in memory.
    put(pp_base_load_address, core::ptr::null())?;
    let assembly = clr.lock().world.assembly;
    put(p_assembly_id, assembly)?;
    put(pdw_module_flags, module.flags.bits())?;
    text(&module.path, cch_name, pcch_name, sz_name)
};
    enum_threads(pp_enum: *mut *mut ICorProfilerThreadEnum) => |clr| put(pp_enum, enumerators::threads(clr.lock().world.threads.keys().map(|thread| thread.0).collect()));
    initialize_current_thread() => |clr| Ok(());
    request_rejit(c_functions: u32, module_ids: *const ModuleID, method_ids: *const MdToken) => |clr| clr.request_rejit(c_functions, module_ids, method_ids);
    request_revert(c_functions: u32, module_ids: *const ModuleID, method_ids: *const MdToken, status: *mut Hresult) => |clr| clr.request_revert(c_functions, module_ids, method_ids, status);
    get_code_info3(function_id: FunctionID, _rejit_id: ReJITID, c_code_infos: u32, pc_code_infos: *mut u32, code_infos: *mut CorPrfCodeInfo) => |clr| {
    let body = clr.function("GetCodeInfo3", function_id)?.bodies.remove(0);
    fill(&[code(&body)], c_code_infos, pc_code_infos, code_infos)
};
    get_function_from_ip2(ip: *const u8, p_function_id: *mut FunctionID, p_rejit_id: *mut ReJITID) => |clr| { put(p_rejit_id, 0)?; put(p_function_id, clr.at(ip.addr(), false)?) };
    get_rejit_ids(function_id: FunctionID, c_rejit_ids: u32, pc_rejit_ids: *mut u32, rejit_ids: *mut ReJITID) => |clr| { clr.function("GetReJITIDs", function_id)?; fill(&clr.rejit_ids(function_id), c_rejit_ids, pc_rejit_ids, rejit_ids) };
    get_il_to_native_mapping2(_function_id: FunctionID, _rejit_id: ReJITID, _c_map: u32, _pc_map: *mut u32, _map: *mut CorDebugIlToNativeMap) => |clr| Err(Hresult::E_NOTIMPL);
    enum_jited_functions2(pp_enum: *mut *mut ICorProfilerFunctionEnum) => |clr| put(pp_enum, enumerators::functions(clr.jitted()));
    get_object_size2(object_id: ObjectID, pc_size: *mut usize) => |clr| {
    let size = clr.lock().world.objects.get(&object_id).ok_or(Hresult::E_INVALIDARG)?.1;
    put(pc_size, size)
};
    get_event_mask2(pdw_events_low: *mut u32, pdw_events_high: *mut u32) => |clr| {
    let (low, high) = { let state = clr.lock(); (state.low, state.high) };
    put(pdw_events_low, low.bits())?;
    put(pdw_events_high, high.bits())
};
    set_event_mask2(dw_events_low: u32, dw_events_high: u32) => |clr| clr.set_masks(EventMaskLow::from_bits_retain(dw_events_low), EventMaskHigh::from_bits_retain(dw_events_high));
    enum_ngen_module_methods_inlining_this_method(inliners_module_id: ModuleID, _inlinee_module_id: ModuleID, _inlinee_method_id: MdToken, incomplete_data: *mut Bool, pp_enum: *mut *mut ICorProfilerMethodEnum) => |clr| { clr.module("EnumNgenModuleMethodsInliningThisMethod", inliners_module_id)?; put(incomplete_data, 0)?; put(pp_enum, enumerators::methods(Vec::new())) };
    apply_meta_data(module_id: ModuleID) => |clr| clr.module("ApplyMetaData", module_id).map(drop);
    get_in_memory_symbols_length(module_id: ModuleID, p_count_symbol_bytes: *mut u32) => |clr| { clr.module("GetInMemorySymbolsLength", module_id)?; put(p_count_symbol_bytes, 0) };
    read_in_memory_symbols(_module_id: ModuleID, _symbols_read_offset: u32, _p_symbol_bytes: *mut u8, _count_symbol_bytes: u32, _p_count_symbol_bytes_read: *mut u32) => |clr| Err(Hresult::E_NOTIMPL);
    is_function_dynamic(function_id: FunctionID, is_dynamic: *mut Bool) => |clr| put(is_dynamic, clr.function("IsFunctionDynamic", function_id)?.dynamic.is_some().into());
    get_function_from_ip3(ip: *const u8, function_id: *mut FunctionID, p_rejit_id: *mut ReJITID) => |clr| { put(p_rejit_id, 0)?; put(function_id, clr.at(ip.addr(), true)?) };
    get_dynamic_function_info(function_id: FunctionID, module_id: *mut ModuleID, ppv_sig: *mut *const u8, pb_sig: *mut u32, cch_name: u32, pcch_name: *mut u32, wsz_name: *mut u16) => |clr| {
    let function = clr.function("GetDynamicFunctionInfo", function_id)?;
    let name = function.dynamic.ok_or(Hresult::E_INVALIDARG)?;
    put(module_id, function.module)?;
    put(ppv_sig, core::ptr::null())?;
    put(pb_sig, 0)?;
    text(&name, cch_name, pcch_name, wsz_name)
};
    get_native_code_start_addresses(function_id: FunctionID, rejit_id: ReJITID, c_code_start_addresses: u32, pc_code_start_addresses: *mut u32, code_start_addresses: *mut usize) => |clr| {
    let function = clr.function("GetNativeCodeStartAddresses", function_id)?;
    let starts: Vec<usize> = match rejit_id {
        0 => function.bodies.iter().map(|body| body.start).collect(),
        _ => function.rejitted.iter().filter(|(id, _)| *id == rejit_id).map(|(_, body)| body.start).collect(),
    };
    fill(&starts, c_code_start_addresses, pc_code_start_addresses, code_start_addresses)
};
    get_il_to_native_mapping3(p_native_code_start_address: usize, c_map: u32, pc_map: *mut u32, map_out: *mut CorDebugIlToNativeMap) => |clr| {
    let body = clr.body(p_native_code_start_address)?;
    let map = [
        il_map(CorDebugIlToNativeMap::PROLOG, 0, 4),
        il_map(0, 4, body.len() as u32 - 1),
        il_map(CorDebugIlToNativeMap::EPILOG, body.len() as u32 - 1, body.len() as u32),
    ];
    // The runtime copies as many entries as fit into the buffer: with a longer buffer it reads
    // beyond the map.
    if c_map as usize > map.len() {
        clr.crash("GetILToNativeMapping3 was given a buffer longer than the map");
    }
    put(pc_map, map.len() as u32)?;
    fill_only(&map, c_map, map_out)
};
    get_code_info4(p_native_code_start_address: usize, c_code_infos: u32, pc_code_infos: *mut u32, code_infos: *mut CorPrfCodeInfo) => |clr| {
    let body = clr.body(p_native_code_start_address)?;
    fill(&[code(&body)], c_code_infos, pc_code_infos, code_infos)
};
    enumerate_object_references(object_id: ObjectID, callback: Option<ObjectReferenceCallback>, client_data: *mut c_void) => |clr| { if !clr.lock().world.objects.contains_key(&object_id) { return Err(Hresult::E_INVALIDARG); } let _ = (callback, client_data); Err(Hresult::S_FALSE) };
    is_frozen_object(_object_id: ObjectID, pb_frozen: *mut Bool) => |clr| put(pb_frozen, 0);
    get_loh_object_size_threshold(p_threshold: *mut u32) => |clr| put(p_threshold, 85_000);
    request_rejit_with_inliners(_dw_rejit_flags: u32, c_functions: u32, module_ids: *const ModuleID, method_ids: *const MdToken) => |clr| clr.request_rejit(c_functions, module_ids, method_ids);
    suspend_runtime() => |clr| clr.suspend();
    resume_runtime() => |clr| clr.resume();
    get_environment_variable(sz_name: *const u16, cch_value: u32, pcch_value: *mut u32, sz_value: *mut u16) => |clr| {
    let name = wide_text(sz_name);
    let value = clr.lock().environment.get(&name).cloned();
    text(&value.ok_or(Hresult::from_bits(0x8007_00cb))?, cch_value, pcch_value, sz_value)
};
    set_environment_variable(sz_name: *const u16, sz_value: *const u16) => |clr| {
    let (name, value) = (wide_text(sz_name), wide_text(sz_value));
    let environment = &mut clr.lock().environment;
    if sz_value.is_null() { environment.remove(&name); } else { environment.insert(name, value); }
    Ok(())
};
    event_pipe_start_session(c_provider_configs: u32, p_provider_configs: *const CorPrfEventpipeProviderConfig, _request_rundown: Bool, p_session: *mut EventPipeSessionID) => |clr| put(p_session, clr.start_session(c_provider_configs, p_provider_configs)?);
    event_pipe_add_provider_to_session(_session: EventPipeSessionID, _provider_config: CorPrfEventpipeProviderConfig) => |clr| Err(Hresult::E_NOTIMPL);
    event_pipe_stop_session(session: EventPipeSessionID) => |clr| clr.stop_session(session);
    event_pipe_create_provider(_provider_name: *const u16, _p_provider: *mut EventPipeProviderID) => |clr| Err(Hresult::E_NOTIMPL);
    event_pipe_get_provider_info(_provider: EventPipeProviderID, _cch_name: u32, _pcch_name: *mut u32, _provider_name: *mut u16) => |clr| Err(Hresult::E_NOTIMPL);
    event_pipe_define_event(_provider: EventPipeProviderID, _event_name: *const u16, _event_id: u32, _keywords: u64, _event_version: u32, _level: u32, _opcode: u8, _need_stack: Bool, _c_param_descs: u32, _p_param_descs: *const CorPrfEventpipeParamDesc, _p_event: *mut EventPipeEventID) => |clr| Err(Hresult::E_NOTIMPL);
    event_pipe_write_event(_event: EventPipeEventID, _c_data: u32, _data: *const CorPrfEventData, _p_activity_id: *const Guid, _p_related_activity_id: *const Guid) => |clr| Err(Hresult::E_NOTIMPL);
    create_handle(object: ObjectID, _kind: CorPrfHandleType, p_handle: *mut ObjectHandleID) => |clr| { if !clr.lock().world.objects.contains_key(&object) { return Err(Hresult::E_INVALIDARG); } put(p_handle, core::ptr::without_provenance_mut(object)) };
    destroy_handle(_handle: ObjectHandleID) => |clr| Ok(());
    get_object_id_from_handle(handle: ObjectHandleID, p_object: *mut ObjectID) => |clr| put(p_object, handle.addr());
    enumerate_non_gc_objects(pp_enum: *mut *mut ICorProfilerObjectEnum) => |clr| put(pp_enum, enumerators::objects(Vec::new()));
    get_non_gc_heap_bounds(c_object_ranges: u32, pc_object_ranges: *mut u32, ranges: *mut CorPrfNongcHeapRange) => |clr| fill(&[], c_object_ranges, pc_object_ranges, ranges);
    event_pipe_create_provider2(_provider_name: *const u16, _p_callback: Option<EventPipeProviderCallback>, _p_provider: *mut EventPipeProviderID) => |clr| Err(Hresult::E_NOTIMPL);
    enumerate_gc_heap_objects(callback: Option<ObjectCallback>, callback_state: *mut c_void) => |clr| {
    let objects: Vec<usize> = clr.lock().world.objects.keys().copied().collect();
    let callback = callback.ok_or(Hresult::E_INVALIDARG)?;
    for object in objects {
        // The profiler's callback, with its own state.
        if callback(object, callback_state) == 0 { break; }
    }
    Ok(())
};
}
