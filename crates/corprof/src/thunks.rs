//! The COM object that the runtime holds: vtable thunks that forward to [`Callbacks`].
//!
//! The runtime calls a slot on any of its threads. The slot converts the arguments into safe types,
//! creates the token of its context and calls the [`Callbacks`] method.
//!
//! Invariants: no panic leaves a slot. Only the `initialize` slots create a token before the
//! runtime's interface is known.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::callbacks::{Callbacks, EventPipeEvent, RootReferences};
use crate::context::{Attach, Callback, Cooperative, Cx, Detached, NoTrigger, Startup};
use crate::id::{Id, ObjectId, RejitId, RuntimeIndex, Token, ids};
use crate::meter::CallbackKind;
use crate::objects::{AssemblyReferences, FunctionControl};
use crate::runtime::{Result, Runtime};
use crate::sys::*;

/// The object that the runtime holds: `ICorProfilerCallback` 1 to 11 with one vtable.
#[repr(C)]
struct Object {
    vtbl: &'static ICorProfilerCallback11Vtbl,
    references: AtomicU32,
    runtime: Runtime,
    callbacks: Box<dyn Callbacks>,
}

/// Creates the object, with one reference for the caller.
pub(crate) fn create(
    index: RuntimeIndex,
    callbacks: Box<dyn Callbacks>,
) -> *mut ICorProfilerCallback11 {
    Box::into_raw(Box::new(Object {
        vtbl: &VTBL,
        references: AtomicU32::new(1),
        runtime: Runtime::new(index),
        callbacks,
    }))
    .cast()
}

/// Forwards a call, if the runtime's interface is known.
///
/// # Safety
/// `this` came from [`create`] and the caller holds a reference; the runtime is in a callback of
/// context `C` on this thread.
unsafe fn enter<C>(
    this: *mut ICorProfilerCallback11,
    kind: CallbackKind,
    f: impl for<'rt> FnOnce(&dyn Callbacks, &mut Cx<'rt, C>) -> Result<()>,
) -> Hresult {
    // SAFETY: the runtime passes the pointer that `create` returned and holds a reference to it.
    let object = unsafe { &*this.cast::<Object>() };
    guard(object, || {
        if !object.runtime.inner().is_initialized() {
            return Ok(());
        }
        object.runtime.inner().meter().run(kind, || {
            // SAFETY: the caller guarantees the context; the closure is generic over the brand.
            f(&*object.callbacks, &mut unsafe {
                Cx::assert(&object.runtime)
            })
        })
    })
}

/// Runs `f` and stops a panic from unwinding into the runtime.
fn guard(object: &Object, f: impl FnOnce() -> Result<()>) -> Hresult {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(answer) => answer.into(),
        Err(panic) => {
            object.runtime.inner().count_panic();
            // Dropping the payload could panic again, and so could dropping that payload.
            core::mem::forget(panic);
            Hresult::E_FAIL
        }
    }
}

fn id<'rt, K>(raw: usize) -> Result<Id<'rt, K>> {
    Id::new(raw).ok_or(Hresult::E_INVALIDARG)
}

fn object<'rt>(raw: usize) -> Result<ObjectId<'rt>> {
    ObjectId::new(raw).ok_or(Hresult::E_INVALIDARG)
}

/// # Safety
/// `start` is null or points to `length` elements that are valid for `'a`.
unsafe fn slice<'a, T>(start: *const T, length: u32) -> &'a [T] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { core::slice::from_raw_parts(start, length as usize) }
}

/// # Safety
/// `pointer` is null or points to a GUID.
unsafe fn guid(pointer: *const Guid) -> Option<Guid> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_ref() }.copied()
}

/// # Safety
/// As for [`slice`]. The text may have a NUL at its end.
unsafe fn text(start: *const u16, length: u32) -> String {
    // SAFETY: guaranteed by the caller.
    let units = unsafe { slice(start, length) };
    String::from_utf16_lossy(units.strip_suffix(&[0]).unwrap_or(units))
}

/// # Safety
/// `start` is null or points to a text with a NUL at its end.
unsafe fn terminated_text(start: *const u16) -> String {
    let mut length = 0;
    // SAFETY: the text ends with a NUL, so nothing after it is read.
    while !start.is_null() && unsafe { *start.add(length as usize) } != 0 {
        length += 1;
    }
    // SAFETY: `length` units were just read.
    unsafe { text(start, length) }
}

/// # Safety
/// `start` is null or points to `count` elements.
unsafe fn generations(start: *const Bool, count: i32) -> Vec<bool> {
    // SAFETY: guaranteed by the caller; a negative count is none.
    let flags = unsafe { slice(start, u32::try_from(count).unwrap_or(0)) };
    flags.iter().map(|flag| *flag != 0).collect()
}

unsafe extern "system" fn query_interface(
    this: *mut c_void,
    iid: *const Guid,
    out: *mut *mut c_void,
) -> Hresult {
    if out.is_null() || iid.is_null() {
        return Hresult::E_POINTER;
    }
    // SAFETY: not null, and valid by the contract of `QueryInterface`.
    let (iid, out) = unsafe { (*iid, &mut *out) };
    let known = iid == IUnknown::IID
        || ICorProfilerCallback11::VERSIONS
            .iter()
            .any(|version| version.iid == iid);
    if known {
        // SAFETY: the caller holds a reference.
        unsafe { add_ref(this) };
        *out = this;
        Hresult::S_OK
    } else {
        *out = core::ptr::null_mut();
        Hresult::E_NOINTERFACE
    }
}

unsafe extern "system" fn add_ref(this: *mut c_void) -> u32 {
    // SAFETY: the runtime passes the pointer that `create` returned and holds a reference to it.
    let object = unsafe { &*this.cast::<Object>() };
    object.references.fetch_add(1, Ordering::Relaxed) + 1
}

unsafe extern "system" fn release(this: *mut c_void) -> u32 {
    let left = {
        // SAFETY: the runtime passes the pointer that `create` returned and releases its reference.
        let object = unsafe { &*this.cast::<Object>() };
        object.references.fetch_sub(1, Ordering::Release) - 1
    };
    if left == 0 {
        fence(Ordering::Acquire);
        // SAFETY: that was the last reference, and `create` made the object with `Box`.
        let object = unsafe { Box::from_raw(this.cast::<Object>()) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(object))).map_err(core::mem::forget);
    }
    left
}

unsafe extern "system" fn initialize(
    this: *mut ICorProfilerCallback11,
    info: *mut IUnknown,
) -> Hresult {
    // SAFETY: the runtime passes the pointer that `create` returned and holds a reference to it.
    let object = unsafe { &*this.cast::<Object>() };
    // SAFETY: the runtime passes its own `ICorProfilerInfo`.
    let known = unsafe { object.runtime.inner().initialize(info) };
    if let Err(error) = known {
        return error;
    }
    // SAFETY: this is `Initialize`.
    let answer = unsafe {
        enter::<Startup>(this, CallbackKind::Life, |callbacks, cx| {
            callbacks.initialize(cx)
        })
    };
    if answer.is_err() {
        object.runtime.inner().release();
    }
    answer
}

unsafe extern "system" fn initialize_for_attach(
    this: *mut ICorProfilerCallback11,
    info: *mut IUnknown,
    client_data: *mut c_void,
    client_data_length: u32,
) -> Hresult {
    // SAFETY: the runtime passes the pointer that `create` returned and holds a reference to it.
    let object = unsafe { &*this.cast::<Object>() };
    // SAFETY: the runtime passes its own `ICorProfilerInfo`.
    let known = unsafe { object.runtime.inner().initialize(info) };
    if let Err(error) = known {
        return error;
    }
    // SAFETY: this is `InitializeForAttach`; the runtime lends the data for the call.
    let answer = unsafe {
        enter::<Attach>(this, CallbackKind::Life, |callbacks, cx| {
            callbacks.initialize_for_attach(
                cx,
                slice(client_data.cast_const().cast(), client_data_length),
            )
        })
    };
    if answer.is_err() {
        object.runtime.inner().release();
    }
    answer
}

unsafe extern "system" fn profiler_detach_succeeded(this: *mut ICorProfilerCallback11) -> Hresult {
    // SAFETY: the runtime passes the pointer that `create` returned and holds a reference to it.
    let object = unsafe { &*this.cast::<Object>() };
    // Before the callback, so that other holders of this runtime make no more calls.
    object.runtime.inner().release();
    // SAFETY: this is `ProfilerDetachSucceeded`.
    unsafe {
        enter::<Detached>(this, CallbackKind::Life, |callbacks, cx| {
            callbacks.profiler_detach_succeeded(cx)
        })
    }
}

unsafe extern "system" fn load_as_notification_only(
    this: *mut ICorProfilerCallback11,
    answer: *mut Bool,
) -> Hresult {
    // SAFETY: the runtime passes the pointer that `create` returned and holds a reference to it.
    let object = unsafe { &*this.cast::<Object>() };
    guard(object, || {
        let only = object.callbacks.load_as_notification_only()?;
        // SAFETY: null or the address to which the runtime wants the result written.
        if let Some(answer) = unsafe { answer.as_mut() } {
            *answer = only.into();
        }
        Ok(())
    })
}

unsafe extern "system" fn jit_cached_function_search_started(
    this: *mut ICorProfilerCallback11,
    function: FunctionID,
    use_cached: *mut Bool,
) -> Hresult {
    // SAFETY: an ordinary callback; `use_cached` is null or the address to which the runtime wants
    // the result written. It is written first, because some runtimes leave it unset.
    unsafe {
        if let Some(answer) = use_cached.as_mut() {
            *answer = 1;
        }
        enter::<Callback>(this, CallbackKind::Jit, |callbacks, cx| {
            let answer = callbacks.jit_cached_function_search_started(cx, id(function)?)?;
            if let Some(use_cached) = use_cached.as_mut() {
                *use_cached = answer.into();
            }
            Ok(())
        })
    }
}

unsafe extern "system" fn jit_inlining(
    this: *mut ICorProfilerCallback11,
    caller: FunctionID,
    callee: FunctionID,
    should_inline: *mut Bool,
) -> Hresult {
    // SAFETY: an ordinary callback; `should_inline` is null or the address to which the runtime
    // wants the result written. It is written first, because some runtimes leave it unset (2020,
    // `vm/jitinterface.cpp`).
    unsafe {
        if let Some(answer) = should_inline.as_mut() {
            *answer = 1;
        }
        enter::<Callback>(this, CallbackKind::Jit, |callbacks, cx| {
            let answer = callbacks.jit_inlining(cx, id(caller)?, id(callee)?)?;
            if let Some(should_inline) = should_inline.as_mut() {
                *should_inline = answer.into();
            }
            Ok(())
        })
    }
}

macro_rules! thunks {
    ($($context:ident $name:ident($($arg:ident: $ty:ty),* $(,)?) => ($($value:expr),* $(,)?);)*) => { $(
        unsafe extern "system" fn $name(
            this: *mut ICorProfilerCallback11 $(, $arg: $ty)*
        ) -> Hresult {
            // SAFETY: the runtime calls this slot in this context (`eetoprofinterfaceimpl.cpp`, the
            // entry macro of the method) and lends what the pointers point to for the call.
            #[allow(unused_unsafe, reason = "not every slot has pointers")]
            unsafe {
                enter::<$context>(this, const { CallbackKind::of(stringify!($name)) }, |callbacks, cx| callbacks.$name(cx $(, $value)*))
            }
        }
    )* };
}

thunks! {
    Callback shutdown() =>
        ();
    Callback app_domain_creation_started(app_domain_id: AppDomainID) =>
        (id(app_domain_id)?);
    Callback app_domain_creation_finished(app_domain_id: AppDomainID, hr_status: Hresult) =>
        (id(app_domain_id)?, hr_status);
    Callback app_domain_shutdown_started(app_domain_id: AppDomainID) =>
        (id(app_domain_id)?);
    Callback app_domain_shutdown_finished(app_domain_id: AppDomainID, hr_status: Hresult) =>
        (id(app_domain_id)?, hr_status);
    Callback assembly_load_started(assembly_id: AssemblyID) =>
        (id(assembly_id)?);
    Callback assembly_load_finished(assembly_id: AssemblyID, hr_status: Hresult) =>
        (id(assembly_id)?, hr_status);
    Callback assembly_unload_started(assembly_id: AssemblyID) =>
        (id(assembly_id)?);
    Callback assembly_unload_finished(assembly_id: AssemblyID, hr_status: Hresult) =>
        (id(assembly_id)?, hr_status);
    Callback module_load_started(module_id: ModuleID) =>
        (id(module_id)?);
    Callback module_load_finished(module_id: ModuleID, hr_status: Hresult) =>
        (id(module_id)?, hr_status);
    Callback module_unload_started(module_id: ModuleID) =>
        (id(module_id)?);
    Callback module_unload_finished(module_id: ModuleID, hr_status: Hresult) =>
        (id(module_id)?, hr_status);
    Callback module_attached_to_assembly(module_id: ModuleID, assembly_id: AssemblyID) =>
        (id(module_id)?, id(assembly_id)?);
    Callback class_load_started(class_id: ClassID) =>
        (id(class_id)?);
    Callback class_load_finished(class_id: ClassID, hr_status: Hresult) =>
        (id(class_id)?, hr_status);
    Callback class_unload_started(class_id: ClassID) =>
        (id(class_id)?);
    Callback class_unload_finished(class_id: ClassID, hr_status: Hresult) =>
        (id(class_id)?, hr_status);
    Callback function_unload_started(function_id: FunctionID) =>
        (id(function_id)?);
    Callback jit_compilation_started(function_id: FunctionID, f_is_safe_to_block: Bool) =>
        (id(function_id)?, f_is_safe_to_block != 0);
    Callback jit_compilation_finished(function_id: FunctionID, hr_status: Hresult, f_is_safe_to_block: Bool) =>
        (id(function_id)?, hr_status, f_is_safe_to_block != 0);
    Callback jit_cached_function_search_finished(function_id: FunctionID, result: CorPrfJitCache) =>
        (id(function_id)?, result);
    Callback jit_function_pitched(function_id: FunctionID) =>
        (id(function_id)?);
    Callback thread_created(thread_id: ThreadID) =>
        (id(thread_id)?);
    Callback thread_destroyed(thread_id: ThreadID) =>
        (id(thread_id)?);
    NoTrigger thread_assigned_to_os_thread(managed_thread_id: ThreadID, os_thread_id: u32) =>
        (id(managed_thread_id)?, os_thread_id);
    Callback remoting_client_invocation_started() =>
        ();
    Callback remoting_client_sending_message(p_cookie: *mut Guid, f_is_async: Bool) =>
        (guid(p_cookie), f_is_async != 0);
    Callback remoting_client_receiving_reply(p_cookie: *mut Guid, f_is_async: Bool) =>
        (guid(p_cookie), f_is_async != 0);
    Callback remoting_client_invocation_finished() =>
        ();
    Callback remoting_server_receiving_message(p_cookie: *mut Guid, f_is_async: Bool) =>
        (guid(p_cookie), f_is_async != 0);
    Callback remoting_server_invocation_started() =>
        ();
    Callback remoting_server_invocation_returned() =>
        ();
    Callback remoting_server_sending_reply(p_cookie: *mut Guid, f_is_async: Bool) =>
        (guid(p_cookie), f_is_async != 0);
    Callback unmanaged_to_managed_transition(function_id: FunctionID, reason: CorPrfTransitionReason) =>
        (Id::new(function_id), reason);
    Callback managed_to_unmanaged_transition(function_id: FunctionID, reason: CorPrfTransitionReason) =>
        (Id::new(function_id), reason);
    NoTrigger runtime_suspend_started(suspend_reason: CorPrfSuspendReason) =>
        (suspend_reason);
    NoTrigger runtime_suspend_finished() =>
        ();
    NoTrigger runtime_suspend_aborted() =>
        ();
    NoTrigger runtime_resume_started() =>
        ();
    NoTrigger runtime_resume_finished() =>
        ();
    NoTrigger runtime_thread_suspended(thread_id: ThreadID) =>
        (id(thread_id)?);
    NoTrigger runtime_thread_resumed(thread_id: ThreadID) =>
        (id(thread_id)?);
    NoTrigger moved_references(c_moved_object_id_ranges: u32, old_object_id_range_start: *const ObjectID, new_object_id_range_start: *const ObjectID, c_object_id_range_length: *const u32) =>
        (slice(old_object_id_range_start, c_moved_object_id_ranges), slice(new_object_id_range_start, c_moved_object_id_ranges), slice(c_object_id_range_length, c_moved_object_id_ranges));
    Cooperative object_allocated(object_id: ObjectID, class_id: ClassID) =>
        (object(object_id)?, id(class_id)?);
    NoTrigger objects_allocated_by_class(c_class_count: u32, class_ids: *const ClassID, c_objects: *const u32) =>
        (ids(slice(class_ids, c_class_count)), slice(c_objects, c_class_count));
    NoTrigger object_references(object_id: ObjectID, class_id: ClassID, c_object_refs: u32, object_ref_ids: *const ObjectID) =>
        (object_id, Id::new(class_id), slice(object_ref_ids, c_object_refs));
    NoTrigger root_references(c_root_refs: u32, root_ref_ids: *const ObjectID) =>
        (slice(root_ref_ids, c_root_refs));
    Cooperative exception_thrown(thrown_object_id: ObjectID) =>
        (object(thrown_object_id)?);
    Callback exception_search_function_enter(function_id: FunctionID) =>
        (id(function_id)?);
    Callback exception_search_function_leave() =>
        ();
    Callback exception_search_filter_enter(function_id: FunctionID) =>
        (id(function_id)?);
    Callback exception_search_filter_leave() =>
        ();
    Callback exception_search_catcher_found(function_id: FunctionID) =>
        (id(function_id)?);
    Callback exception_os_handler_enter(_unused: usize) =>
        ();
    Callback exception_os_handler_leave(_unused: usize) =>
        ();
    NoTrigger exception_unwind_function_enter(function_id: FunctionID) =>
        (id(function_id)?);
    NoTrigger exception_unwind_function_leave() =>
        ();
    NoTrigger exception_unwind_finally_enter(function_id: FunctionID) =>
        (id(function_id)?);
    NoTrigger exception_unwind_finally_leave() =>
        ();
    Cooperative exception_catcher_enter(function_id: FunctionID, object_id: ObjectID) =>
        (id(function_id)?, ObjectId::new(object_id));
    Callback exception_catcher_leave() =>
        ();
    Callback com_classic_vtable_created(wrapped_class_id: ClassID, implemented_iid: *const Guid, p_vtable: *mut c_void, c_slots: u32) =>
        (id(wrapped_class_id)?, guid(implemented_iid), p_vtable.addr(), c_slots);
    Callback com_classic_vtable_destroyed(wrapped_class_id: ClassID, implemented_iid: *const Guid, p_vtable: *mut c_void) =>
        (id(wrapped_class_id)?, guid(implemented_iid), p_vtable.addr());
    Callback exception_clr_catcher_found() =>
        ();
    Callback exception_clr_catcher_execute() =>
        ();
    Callback thread_name_changed(thread_id: ThreadID, cch_name: u32, name: *const u16) =>
        (id(thread_id)?, &text(name, cch_name));
    NoTrigger garbage_collection_started(c_generations: i32, generation_collected: *const Bool, reason: CorPrfGcReason) =>
        (&generations(generation_collected, c_generations), reason);
    NoTrigger surviving_references(c_surviving_object_id_ranges: u32, object_id_range_start: *const ObjectID, c_object_id_range_length: *const u32) =>
        (slice(object_id_range_start, c_surviving_object_id_ranges), slice(c_object_id_range_length, c_surviving_object_id_ranges));
    NoTrigger garbage_collection_finished() =>
        ();
    Cooperative finalizeable_object_queued(finalizer_flags: u32, object_id: ObjectID) =>
        (finalizer_flags & 1 != 0, object(object_id)?);
    NoTrigger root_references2(c_root_refs: u32, root_ref_ids: *const ObjectID, root_kinds: *const CorPrfGcRootKind, root_flags: *const CorPrfGcRootFlags, root_ids: *const usize) =>
        (RootReferences { objects: slice(root_ref_ids, c_root_refs), kinds: slice(root_kinds, c_root_refs), flags: slice(root_flags, c_root_refs), ids: slice(root_ids, c_root_refs) });
    Cooperative handle_created(handle_id: GCHandleID, initial_object_id: ObjectID) =>
        (id(handle_id)?, ObjectId::new(initial_object_id));
    NoTrigger handle_destroyed(handle_id: GCHandleID) =>
        (id(handle_id)?);
    Callback profiler_attach_complete() =>
        ();
    Callback rejit_compilation_started(function_id: FunctionID, rejit_id: ReJITID, f_is_safe_to_block: Bool) =>
        (id(function_id)?, RejitId(rejit_id), f_is_safe_to_block != 0);
    Callback get_rejit_parameters(module_id: ModuleID, method_id: MdToken, p_function_control: *mut ICorProfilerFunctionControl) =>
        (id(module_id)?, Token(method_id), FunctionControl::new(p_function_control)?);
    Callback rejit_compilation_finished(function_id: FunctionID, rejit_id: ReJITID, hr_status: Hresult, f_is_safe_to_block: Bool) =>
        (id(function_id)?, RejitId(rejit_id), hr_status, f_is_safe_to_block != 0);
    Callback rejit_error(module_id: ModuleID, method_id: MdToken, function_id: FunctionID, hr_status: Hresult) =>
        (id(module_id)?, Token(method_id), Id::new(function_id), hr_status);
    NoTrigger moved_references2(c_moved_object_id_ranges: u32, old_object_id_range_start: *const ObjectID, new_object_id_range_start: *const ObjectID, c_object_id_range_length: *const usize) =>
        (slice(old_object_id_range_start, c_moved_object_id_ranges), slice(new_object_id_range_start, c_moved_object_id_ranges), slice(c_object_id_range_length, c_moved_object_id_ranges));
    NoTrigger surviving_references2(c_surviving_object_id_ranges: u32, object_id_range_start: *const ObjectID, c_object_id_range_length: *const usize) =>
        (slice(object_id_range_start, c_surviving_object_id_ranges), slice(c_object_id_range_length, c_surviving_object_id_ranges));
    NoTrigger conditional_weak_table_element_references(c_root_refs: u32, key_ref_ids: *const ObjectID, value_ref_ids: *const ObjectID, root_ids: *const GCHandleID) =>
        (slice(key_ref_ids, c_root_refs), slice(value_ref_ids, c_root_refs), ids(slice(root_ids, c_root_refs)));
    Callback get_assembly_references(wsz_assembly_path: *const u16, p_asm_ref_provider: *mut ICorProfilerAssemblyReferenceProvider) =>
        (&terminated_text(wsz_assembly_path), AssemblyReferences::new(p_asm_ref_provider)?);
    Callback module_in_memory_symbols_updated(module_id: ModuleID) =>
        (id(module_id)?);
    Callback dynamic_method_jit_compilation_started(function_id: FunctionID, f_is_safe_to_block: Bool, p_il_header: *const u8, cb_il_header: u32) =>
        (id(function_id)?, f_is_safe_to_block != 0, slice(p_il_header, cb_il_header));
    Callback dynamic_method_jit_compilation_finished(function_id: FunctionID, hr_status: Hresult, f_is_safe_to_block: Bool) =>
        (id(function_id)?, hr_status, f_is_safe_to_block != 0);
    Cooperative dynamic_method_unloaded(function_id: FunctionID) =>
        (id(function_id)?);
    Callback event_pipe_event_delivered(provider: EventPipeProviderID, event_id: u32, event_version: u32, cb_metadata_blob: u32, metadata_blob: *const u8, cb_event_data: u32, event_data: *const u8, p_activity_id: *const Guid, p_related_activity_id: *const Guid, event_thread: ThreadID, num_stack_frames: u32, stack_frames: *const usize) =>
        (EventPipeEvent { provider: id(provider)?, id: event_id, version: event_version, metadata: slice(metadata_blob, cb_metadata_blob), data: slice(event_data, cb_event_data), activity: guid(p_activity_id), related_activity: guid(p_related_activity_id), thread: Id::new(event_thread), stack: slice(stack_frames, num_stack_frames) });
    Callback event_pipe_provider_created(provider: EventPipeProviderID) =>
        (id(provider)?);
}

static VTBL: ICorProfilerCallback11Vtbl = ICorProfilerCallback11Vtbl {
    unknown: IUnknownVtbl {
        query_interface,
        add_ref,
        release,
    },
    initialize,
    shutdown,
    app_domain_creation_started,
    app_domain_creation_finished,
    app_domain_shutdown_started,
    app_domain_shutdown_finished,
    assembly_load_started,
    assembly_load_finished,
    assembly_unload_started,
    assembly_unload_finished,
    module_load_started,
    module_load_finished,
    module_unload_started,
    module_unload_finished,
    module_attached_to_assembly,
    class_load_started,
    class_load_finished,
    class_unload_started,
    class_unload_finished,
    function_unload_started,
    jit_compilation_started,
    jit_compilation_finished,
    jit_cached_function_search_started,
    jit_cached_function_search_finished,
    jit_function_pitched,
    jit_inlining,
    thread_created,
    thread_destroyed,
    thread_assigned_to_os_thread,
    remoting_client_invocation_started,
    remoting_client_sending_message,
    remoting_client_receiving_reply,
    remoting_client_invocation_finished,
    remoting_server_receiving_message,
    remoting_server_invocation_started,
    remoting_server_invocation_returned,
    remoting_server_sending_reply,
    unmanaged_to_managed_transition,
    managed_to_unmanaged_transition,
    runtime_suspend_started,
    runtime_suspend_finished,
    runtime_suspend_aborted,
    runtime_resume_started,
    runtime_resume_finished,
    runtime_thread_suspended,
    runtime_thread_resumed,
    moved_references,
    object_allocated,
    objects_allocated_by_class,
    object_references,
    root_references,
    exception_thrown,
    exception_search_function_enter,
    exception_search_function_leave,
    exception_search_filter_enter,
    exception_search_filter_leave,
    exception_search_catcher_found,
    exception_os_handler_enter,
    exception_os_handler_leave,
    exception_unwind_function_enter,
    exception_unwind_function_leave,
    exception_unwind_finally_enter,
    exception_unwind_finally_leave,
    exception_catcher_enter,
    exception_catcher_leave,
    com_classic_vtable_created,
    com_classic_vtable_destroyed,
    exception_clr_catcher_found,
    exception_clr_catcher_execute,
    thread_name_changed,
    garbage_collection_started,
    surviving_references,
    garbage_collection_finished,
    finalizeable_object_queued,
    root_references2,
    handle_created,
    handle_destroyed,
    initialize_for_attach,
    profiler_attach_complete,
    profiler_detach_succeeded,
    rejit_compilation_started,
    get_rejit_parameters,
    rejit_compilation_finished,
    rejit_error,
    moved_references2,
    surviving_references2,
    conditional_weak_table_element_references,
    get_assembly_references,
    module_in_memory_symbols_updated,
    dynamic_method_jit_compilation_started,
    dynamic_method_jit_compilation_finished,
    dynamic_method_unloaded,
    event_pipe_event_delivered,
    event_pipe_provider_created,
    load_as_notification_only,
};
