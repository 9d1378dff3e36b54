//! The interfaces that the profiler implements: `ICorProfilerCallback` to `ICorProfilerCallback11`.
//!
//! Declarations only, generated once from the IDL and since then maintained by hand.
//! [`crate::Callbacks`] is the safe trait.
//!
//! Invariant: the macro asserts each slot number at compile time.

use core::ffi::c_void;

use super::*;
use crate::com_interface;

com_interface! {
    /// The profiler's interface: `ICorProfilerCallback` to `ICorProfilerCallback11`.
    ///
    /// Source: `corprof.idl`.
    pub interface ICorProfilerCallback11, ICorProfilerCallback11Vtbl {
        version ICorProfilerCallback = "176FBED1-A55C-4796-98CA-A9DA0EF883E7" {
            3 Initialize initialize(p_cor_profiler_info_unk: *mut IUnknown) -> Hresult;
            4 Shutdown shutdown() -> Hresult;
            5 AppDomainCreationStarted app_domain_creation_started(app_domain_id: AppDomainID) -> Hresult;
            6 AppDomainCreationFinished app_domain_creation_finished(app_domain_id: AppDomainID, hr_status: Hresult) -> Hresult;
            7 AppDomainShutdownStarted app_domain_shutdown_started(app_domain_id: AppDomainID) -> Hresult;
            8 AppDomainShutdownFinished app_domain_shutdown_finished(app_domain_id: AppDomainID, hr_status: Hresult) -> Hresult;
            9 AssemblyLoadStarted assembly_load_started(assembly_id: AssemblyID) -> Hresult;
            10 AssemblyLoadFinished assembly_load_finished(assembly_id: AssemblyID, hr_status: Hresult) -> Hresult;
            11 AssemblyUnloadStarted assembly_unload_started(assembly_id: AssemblyID) -> Hresult;
            12 AssemblyUnloadFinished assembly_unload_finished(assembly_id: AssemblyID, hr_status: Hresult) -> Hresult;
            13 ModuleLoadStarted module_load_started(module_id: ModuleID) -> Hresult;
            14 ModuleLoadFinished module_load_finished(module_id: ModuleID, hr_status: Hresult) -> Hresult;
            15 ModuleUnloadStarted module_unload_started(module_id: ModuleID) -> Hresult;
            16 ModuleUnloadFinished module_unload_finished(module_id: ModuleID, hr_status: Hresult) -> Hresult;
            17 ModuleAttachedToAssembly module_attached_to_assembly(module_id: ModuleID, assembly_id: AssemblyID) -> Hresult;
            18 ClassLoadStarted class_load_started(class_id: ClassID) -> Hresult;
            19 ClassLoadFinished class_load_finished(class_id: ClassID, hr_status: Hresult) -> Hresult;
            20 ClassUnloadStarted class_unload_started(class_id: ClassID) -> Hresult;
            21 ClassUnloadFinished class_unload_finished(class_id: ClassID, hr_status: Hresult) -> Hresult;
            22 FunctionUnloadStarted function_unload_started(function_id: FunctionID) -> Hresult;
            23 JITCompilationStarted jit_compilation_started(function_id: FunctionID, f_is_safe_to_block: Bool) -> Hresult;
            24 JITCompilationFinished jit_compilation_finished(function_id: FunctionID, hr_status: Hresult, f_is_safe_to_block: Bool) -> Hresult;
            25 JITCachedFunctionSearchStarted jit_cached_function_search_started(function_id: FunctionID, pb_use_cached_function: *mut Bool) -> Hresult;
            26 JITCachedFunctionSearchFinished jit_cached_function_search_finished(function_id: FunctionID, result: CorPrfJitCache) -> Hresult;
            27 JITFunctionPitched jit_function_pitched(function_id: FunctionID) -> Hresult;
            28 JITInlining jit_inlining(caller_id: FunctionID, callee_id: FunctionID, pf_should_inline: *mut Bool) -> Hresult;
            29 ThreadCreated thread_created(thread_id: ThreadID) -> Hresult;
            30 ThreadDestroyed thread_destroyed(thread_id: ThreadID) -> Hresult;
            31 ThreadAssignedToOSThread thread_assigned_to_os_thread(managed_thread_id: ThreadID, os_thread_id: u32) -> Hresult;
            32 RemotingClientInvocationStarted remoting_client_invocation_started() -> Hresult;
            33 RemotingClientSendingMessage remoting_client_sending_message(p_cookie: *mut Guid, f_is_async: Bool) -> Hresult;
            34 RemotingClientReceivingReply remoting_client_receiving_reply(p_cookie: *mut Guid, f_is_async: Bool) -> Hresult;
            35 RemotingClientInvocationFinished remoting_client_invocation_finished() -> Hresult;
            36 RemotingServerReceivingMessage remoting_server_receiving_message(p_cookie: *mut Guid, f_is_async: Bool) -> Hresult;
            37 RemotingServerInvocationStarted remoting_server_invocation_started() -> Hresult;
            38 RemotingServerInvocationReturned remoting_server_invocation_returned() -> Hresult;
            39 RemotingServerSendingReply remoting_server_sending_reply(p_cookie: *mut Guid, f_is_async: Bool) -> Hresult;
            40 UnmanagedToManagedTransition unmanaged_to_managed_transition(function_id: FunctionID, reason: CorPrfTransitionReason) -> Hresult;
            41 ManagedToUnmanagedTransition managed_to_unmanaged_transition(function_id: FunctionID, reason: CorPrfTransitionReason) -> Hresult;
            42 RuntimeSuspendStarted runtime_suspend_started(suspend_reason: CorPrfSuspendReason) -> Hresult;
            43 RuntimeSuspendFinished runtime_suspend_finished() -> Hresult;
            44 RuntimeSuspendAborted runtime_suspend_aborted() -> Hresult;
            45 RuntimeResumeStarted runtime_resume_started() -> Hresult;
            46 RuntimeResumeFinished runtime_resume_finished() -> Hresult;
            47 RuntimeThreadSuspended runtime_thread_suspended(thread_id: ThreadID) -> Hresult;
            48 RuntimeThreadResumed runtime_thread_resumed(thread_id: ThreadID) -> Hresult;
            49 MovedReferences moved_references(c_moved_object_id_ranges: u32, old_object_id_range_start: *const ObjectID, new_object_id_range_start: *const ObjectID, c_object_id_range_length: *const u32) -> Hresult;
            50 ObjectAllocated object_allocated(object_id: ObjectID, class_id: ClassID) -> Hresult;
            51 ObjectsAllocatedByClass objects_allocated_by_class(c_class_count: u32, class_ids: *const ClassID, c_objects: *const u32) -> Hresult;
            52 ObjectReferences object_references(object_id: ObjectID, class_id: ClassID, c_object_refs: u32, object_ref_ids: *const ObjectID) -> Hresult;
            53 RootReferences root_references(c_root_refs: u32, root_ref_ids: *const ObjectID) -> Hresult;
            54 ExceptionThrown exception_thrown(thrown_object_id: ObjectID) -> Hresult;
            55 ExceptionSearchFunctionEnter exception_search_function_enter(function_id: FunctionID) -> Hresult;
            56 ExceptionSearchFunctionLeave exception_search_function_leave() -> Hresult;
            57 ExceptionSearchFilterEnter exception_search_filter_enter(function_id: FunctionID) -> Hresult;
            58 ExceptionSearchFilterLeave exception_search_filter_leave() -> Hresult;
            59 ExceptionSearchCatcherFound exception_search_catcher_found(function_id: FunctionID) -> Hresult;
            60 ExceptionOSHandlerEnter exception_os_handler_enter(unused: usize) -> Hresult;
            61 ExceptionOSHandlerLeave exception_os_handler_leave(unused: usize) -> Hresult;
            62 ExceptionUnwindFunctionEnter exception_unwind_function_enter(function_id: FunctionID) -> Hresult;
            63 ExceptionUnwindFunctionLeave exception_unwind_function_leave() -> Hresult;
            64 ExceptionUnwindFinallyEnter exception_unwind_finally_enter(function_id: FunctionID) -> Hresult;
            65 ExceptionUnwindFinallyLeave exception_unwind_finally_leave() -> Hresult;
            66 ExceptionCatcherEnter exception_catcher_enter(function_id: FunctionID, object_id: ObjectID) -> Hresult;
            67 ExceptionCatcherLeave exception_catcher_leave() -> Hresult;
            68 COMClassicVTableCreated com_classic_vtable_created(wrapped_class_id: ClassID, implemented_iid: *const Guid, p_vtable: *mut c_void, c_slots: u32) -> Hresult;
            69 COMClassicVTableDestroyed com_classic_vtable_destroyed(wrapped_class_id: ClassID, implemented_iid: *const Guid, p_vtable: *mut c_void) -> Hresult;
            70 ExceptionCLRCatcherFound exception_clr_catcher_found() -> Hresult;
            71 ExceptionCLRCatcherExecute exception_clr_catcher_execute() -> Hresult;
        }
        version ICorProfilerCallback2 = "8A8CC829-CCF2-49FE-BBAE-0F022228071A" {
            72 ThreadNameChanged thread_name_changed(thread_id: ThreadID, cch_name: u32, name: *const u16) -> Hresult;
            73 GarbageCollectionStarted garbage_collection_started(c_generations: i32, generation_collected: *const Bool, reason: CorPrfGcReason) -> Hresult;
            74 SurvivingReferences surviving_references(c_surviving_object_id_ranges: u32, object_id_range_start: *const ObjectID, c_object_id_range_length: *const u32) -> Hresult;
            75 GarbageCollectionFinished garbage_collection_finished() -> Hresult;
            76 FinalizeableObjectQueued finalizeable_object_queued(finalizer_flags: u32, object_id: ObjectID) -> Hresult;
            77 RootReferences2 root_references2(c_root_refs: u32, root_ref_ids: *const ObjectID, root_kinds: *const CorPrfGcRootKind, root_flags: *const CorPrfGcRootFlags, root_ids: *const usize) -> Hresult;
            78 HandleCreated handle_created(handle_id: GCHandleID, initial_object_id: ObjectID) -> Hresult;
            79 HandleDestroyed handle_destroyed(handle_id: GCHandleID) -> Hresult;
        }
        version ICorProfilerCallback3 = "4FD2ED52-7731-4B8D-9469-03D2CC3086C5" {
            80 InitializeForAttach initialize_for_attach(p_cor_profiler_info_unk: *mut IUnknown, pv_client_data: *mut c_void, cb_client_data: u32) -> Hresult;
            81 ProfilerAttachComplete profiler_attach_complete() -> Hresult;
            82 ProfilerDetachSucceeded profiler_detach_succeeded() -> Hresult;
        }
        version ICorProfilerCallback4 = "7B63B2E3-107D-4D48-B2F6-F61E229470D2" {
            83 ReJITCompilationStarted rejit_compilation_started(function_id: FunctionID, rejit_id: ReJITID, f_is_safe_to_block: Bool) -> Hresult;
            84 GetReJITParameters get_rejit_parameters(module_id: ModuleID, method_id: MdToken, p_function_control: *mut ICorProfilerFunctionControl) -> Hresult;
            85 ReJITCompilationFinished rejit_compilation_finished(function_id: FunctionID, rejit_id: ReJITID, hr_status: Hresult, f_is_safe_to_block: Bool) -> Hresult;
            86 ReJITError rejit_error(module_id: ModuleID, method_id: MdToken, function_id: FunctionID, hr_status: Hresult) -> Hresult;
            87 MovedReferences2 moved_references2(c_moved_object_id_ranges: u32, old_object_id_range_start: *const ObjectID, new_object_id_range_start: *const ObjectID, c_object_id_range_length: *const usize) -> Hresult;
            88 SurvivingReferences2 surviving_references2(c_surviving_object_id_ranges: u32, object_id_range_start: *const ObjectID, c_object_id_range_length: *const usize) -> Hresult;
        }
        version ICorProfilerCallback5 = "8DFBA405-8C9F-45F8-BFFA-83B14CEF78B5" {
            89 ConditionalWeakTableElementReferences conditional_weak_table_element_references(c_root_refs: u32, key_ref_ids: *const ObjectID, value_ref_ids: *const ObjectID, root_ids: *const GCHandleID) -> Hresult;
        }
        version ICorProfilerCallback6 = "FC13DF4B-4448-4F4F-950C-BA8D19D00C36" {
            90 GetAssemblyReferences get_assembly_references(wsz_assembly_path: *const u16, p_asm_ref_provider: *mut ICorProfilerAssemblyReferenceProvider) -> Hresult;
        }
        version ICorProfilerCallback7 = "F76A2DBA-1D52-4539-866C-2AA518F9EFC3" {
            91 ModuleInMemorySymbolsUpdated module_in_memory_symbols_updated(module_id: ModuleID) -> Hresult;
        }
        version ICorProfilerCallback8 = "5BED9B15-C079-4D47-BFE2-215A140C07E0" {
            92 DynamicMethodJITCompilationStarted dynamic_method_jit_compilation_started(function_id: FunctionID, f_is_safe_to_block: Bool, p_il_header: *const u8, cb_il_header: u32) -> Hresult;
            93 DynamicMethodJITCompilationFinished dynamic_method_jit_compilation_finished(function_id: FunctionID, hr_status: Hresult, f_is_safe_to_block: Bool) -> Hresult;
        }
        version ICorProfilerCallback9 = "27583EC3-C8F5-482F-8052-194B8CE4705A" {
            94 DynamicMethodUnloaded dynamic_method_unloaded(function_id: FunctionID) -> Hresult;
        }
        version ICorProfilerCallback10 = "CEC5B60E-C69C-495F-87F6-84D28EE16FFB" {
            95 EventPipeEventDelivered event_pipe_event_delivered(provider: EventPipeProviderID, event_id: u32, event_version: u32, cb_metadata_blob: u32, metadata_blob: *const u8, cb_event_data: u32, event_data: *const u8, p_activity_id: *const Guid, p_related_activity_id: *const Guid, event_thread: ThreadID, num_stack_frames: u32, stack_frames: *const usize) -> Hresult;
            96 EventPipeProviderCreated event_pipe_provider_created(provider: EventPipeProviderID) -> Hresult;
        }
        version ICorProfilerCallback11 = "42350846-AAED-47F7-B128-FD0C98881CDE" {
            97 LoadAsNotificationOnly load_as_notification_only(pb_notification_only: *mut Bool) -> Hresult;
        }
    }
}
