//! The interfaces that the runtime implements: `ICorProfilerInfo` to `ICorProfilerInfo15`.
//!
//! Declarations only, generated once from the IDL and since then maintained by hand.
//! [`crate::Info`] has the safe calls.
//!
//! Invariant: the macro asserts each slot number at compile time.

use core::ffi::c_void;

use super::*;
use crate::com_interface;

com_interface! {
    /// The runtime's interface: `ICorProfilerInfo` to `ICorProfilerInfo15`.
    ///
    /// Source: `corprof.idl`.
    pub interface ICorProfilerInfo15, ICorProfilerInfo15Vtbl {
        version ICorProfilerInfo = "28B5557D-3F3F-48B4-90B2-5F9EEA2F6C48" {
            3 GetClassFromObject get_class_from_object(object_id: ObjectID, p_class_id: *mut ClassID) -> Hresult;
            4 GetClassFromToken get_class_from_token(module_id: ModuleID, type_def: MdToken, p_class_id: *mut ClassID) -> Hresult;
            5 GetCodeInfo get_code_info(function_id: FunctionID, p_start: *mut *const u8, pc_size: *mut u32) -> Hresult;
            6 GetEventMask get_event_mask(pdw_events: *mut u32) -> Hresult;
            7 GetFunctionFromIP get_function_from_ip(ip: *const u8, p_function_id: *mut FunctionID) -> Hresult;
            8 GetFunctionFromToken get_function_from_token(module_id: ModuleID, token: MdToken, p_function_id: *mut FunctionID) -> Hresult;
            9 GetHandleFromThread get_handle_from_thread(thread_id: ThreadID, ph_thread: *mut *mut c_void) -> Hresult;
            10 GetObjectSize get_object_size(object_id: ObjectID, pc_size: *mut u32) -> Hresult;
            11 IsArrayClass is_array_class(class_id: ClassID, p_base_elem_type: *mut u32, p_base_class_id: *mut ClassID, pc_rank: *mut u32) -> Hresult;
            12 GetThreadInfo get_thread_info(thread_id: ThreadID, pdw_win32_thread_id: *mut u32) -> Hresult;
            13 GetCurrentThreadID get_current_thread_id(p_thread_id: *mut ThreadID) -> Hresult;
            14 GetClassIDInfo get_class_id_info(class_id: ClassID, p_module_id: *mut ModuleID, p_type_def_token: *mut MdToken) -> Hresult;
            15 GetFunctionInfo get_function_info(function_id: FunctionID, p_class_id: *mut ClassID, p_module_id: *mut ModuleID, p_token: *mut MdToken) -> Hresult;
            16 SetEventMask set_event_mask(dw_events: u32) -> Hresult;
            17 SetEnterLeaveFunctionHooks set_enter_leave_function_hooks(p_func_enter: Option<FunctionEnter>, p_func_leave: Option<FunctionLeave>, p_func_tailcall: Option<FunctionTailcall>) -> Hresult;
            18 SetFunctionIDMapper set_function_id_mapper(p_func: Option<FunctionIDMapper>) -> Hresult;
            19 GetTokenAndMetaDataFromFunction get_token_and_meta_data_from_function(function_id: FunctionID, riid: *const Guid, pp_import: *mut *mut IUnknown, p_token: *mut MdToken) -> Hresult;
            20 GetModuleInfo get_module_info(module_id: ModuleID, pp_base_load_address: *mut *const u8, cch_name: u32, pcch_name: *mut u32, sz_name: *mut u16, p_assembly_id: *mut AssemblyID) -> Hresult;
            21 GetModuleMetaData get_module_meta_data(module_id: ModuleID, dw_open_flags: u32, riid: *const Guid, pp_out: *mut *mut IUnknown) -> Hresult;
            22 GetILFunctionBody get_il_function_body(module_id: ModuleID, method_id: MdToken, pp_method_header: *mut *const u8, pcb_method_size: *mut u32) -> Hresult;
            23 GetILFunctionBodyAllocator get_il_function_body_allocator(module_id: ModuleID, pp_malloc: *mut *mut IMethodMalloc) -> Hresult;
            24 SetILFunctionBody set_il_function_body(module_id: ModuleID, methodid: MdToken, pb_new_il_method_header: *const u8) -> Hresult;
            25 GetAppDomainInfo get_app_domain_info(app_domain_id: AppDomainID, cch_name: u32, pcch_name: *mut u32, sz_name: *mut u16, p_process_id: *mut ProcessID) -> Hresult;
            26 GetAssemblyInfo get_assembly_info(assembly_id: AssemblyID, cch_name: u32, pcch_name: *mut u32, sz_name: *mut u16, p_app_domain_id: *mut AppDomainID, p_module_id: *mut ModuleID) -> Hresult;
            27 SetFunctionReJIT set_function_rejit(function_id: FunctionID) -> Hresult;
            28 ForceGC force_gc() -> Hresult;
            29 SetILInstrumentedCodeMap set_il_instrumented_code_map(function_id: FunctionID, f_start_jit: Bool, c_il_map_entries: u32, rg_il_map_entries: *const CorIlMap) -> Hresult;
            30 GetInprocInspectionInterface get_inproc_inspection_interface(ppicd: *mut *mut IUnknown) -> Hresult;
            31 GetInprocInspectionIThisThread get_inproc_inspection_i_this_thread(ppicd: *mut *mut IUnknown) -> Hresult;
            32 GetThreadContext get_thread_context(thread_id: ThreadID, p_context_id: *mut ContextID) -> Hresult;
            33 BeginInprocDebugging begin_inproc_debugging(f_this_thread_only: Bool, pdw_profiler_context: *mut u32) -> Hresult;
            34 EndInprocDebugging end_inproc_debugging(dw_profiler_context: u32) -> Hresult;
            35 GetILToNativeMapping get_il_to_native_mapping(function_id: FunctionID, c_map: u32, pc_map: *mut u32, map: *mut CorDebugIlToNativeMap) -> Hresult;
        }
        version ICorProfilerInfo2 = "CC0935CD-A518-487D-B0BB-A93214E65478" {
            36 DoStackSnapshot do_stack_snapshot(thread: ThreadID, callback: Option<StackSnapshotCallback>, info_flags: u32, client_data: *mut c_void, context: *const u8, context_size: u32) -> Hresult;
            37 SetEnterLeaveFunctionHooks2 set_enter_leave_function_hooks2(p_func_enter: Option<FunctionEnter2>, p_func_leave: Option<FunctionLeave2>, p_func_tailcall: Option<FunctionTailcall2>) -> Hresult;
            38 GetFunctionInfo2 get_function_info2(func_id: FunctionID, frame_info: CorPrfFrameInfo, p_class_id: *mut ClassID, p_module_id: *mut ModuleID, p_token: *mut MdToken, c_type_args: u32, pc_type_args: *mut u32, type_args: *mut ClassID) -> Hresult;
            39 GetStringLayout get_string_layout(p_buffer_length_offset: *mut u32, p_string_length_offset: *mut u32, p_buffer_offset: *mut u32) -> Hresult;
            40 GetClassLayout get_class_layout(class_id: ClassID, r_field_offset: *mut CorFieldOffset, c_field_offset: u32, pc_field_offset: *mut u32, pul_class_size: *mut u32) -> Hresult;
            41 GetClassIDInfo2 get_class_id_info2(class_id: ClassID, p_module_id: *mut ModuleID, p_type_def_token: *mut MdToken, p_parent_class_id: *mut ClassID, c_num_type_args: u32, pc_num_type_args: *mut u32, type_args: *mut ClassID) -> Hresult;
            42 GetCodeInfo2 get_code_info2(function_id: FunctionID, c_code_infos: u32, pc_code_infos: *mut u32, code_infos: *mut CorPrfCodeInfo) -> Hresult;
            43 GetClassFromTokenAndTypeArgs get_class_from_token_and_type_args(module_id: ModuleID, type_def: MdToken, c_type_args: u32, type_args: *const ClassID, p_class_id: *mut ClassID) -> Hresult;
            44 GetFunctionFromTokenAndTypeArgs get_function_from_token_and_type_args(module_id: ModuleID, func_def: MdToken, class_id: ClassID, c_type_args: u32, type_args: *const ClassID, p_function_id: *mut FunctionID) -> Hresult;
            45 EnumModuleFrozenObjects enum_module_frozen_objects(module_id: ModuleID, pp_enum: *mut *mut ICorProfilerObjectEnum) -> Hresult;
            46 GetArrayObjectInfo get_array_object_info(object_id: ObjectID, c_dimensions: u32, p_dimension_sizes: *mut u32, p_dimension_lower_bounds: *mut i32, pp_data: *mut *mut u8) -> Hresult;
            47 GetBoxClassLayout get_box_class_layout(class_id: ClassID, p_buffer_offset: *mut u32) -> Hresult;
            48 GetThreadAppDomain get_thread_app_domain(thread_id: ThreadID, p_app_domain_id: *mut AppDomainID) -> Hresult;
            49 GetRVAStaticAddress get_rva_static_address(class_id: ClassID, field_token: MdToken, pp_address: *mut *mut c_void) -> Hresult;
            50 GetAppDomainStaticAddress get_app_domain_static_address(class_id: ClassID, field_token: MdToken, app_domain_id: AppDomainID, pp_address: *mut *mut c_void) -> Hresult;
            51 GetThreadStaticAddress get_thread_static_address(class_id: ClassID, field_token: MdToken, thread_id: ThreadID, pp_address: *mut *mut c_void) -> Hresult;
            52 GetContextStaticAddress get_context_static_address(class_id: ClassID, field_token: MdToken, context_id: ContextID, pp_address: *mut *mut c_void) -> Hresult;
            53 GetStaticFieldInfo get_static_field_info(class_id: ClassID, field_token: MdToken, p_field_info: *mut CorPrfStaticType) -> Hresult;
            54 GetGenerationBounds get_generation_bounds(c_object_ranges: u32, pc_object_ranges: *mut u32, ranges: *mut CorPrfGcGenerationRange) -> Hresult;
            55 GetObjectGeneration get_object_generation(object_id: ObjectID, range: *mut CorPrfGcGenerationRange) -> Hresult;
            56 GetNotifiedExceptionClauseInfo get_notified_exception_clause_info(pinfo: *mut CorPrfExClauseInfo) -> Hresult;
        }
        version ICorProfilerInfo3 = "B555ED4F-452A-4E54-8B39-B5360BAD32A0" {
            57 EnumJITedFunctions enum_jited_functions(pp_enum: *mut *mut ICorProfilerFunctionEnum) -> Hresult;
            58 RequestProfilerDetach request_profiler_detach(dw_expected_completion_milliseconds: u32) -> Hresult;
            59 SetFunctionIDMapper2 set_function_id_mapper2(p_func: Option<FunctionIDMapper2>, client_data: *mut c_void) -> Hresult;
            60 GetStringLayout2 get_string_layout2(p_string_length_offset: *mut u32, p_buffer_offset: *mut u32) -> Hresult;
            61 SetEnterLeaveFunctionHooks3 set_enter_leave_function_hooks3(p_func_enter3: Option<FunctionEnter3>, p_func_leave3: Option<FunctionLeave3>, p_func_tailcall3: Option<FunctionTailcall3>) -> Hresult;
            62 SetEnterLeaveFunctionHooks3WithInfo set_enter_leave_function_hooks3_with_info(p_func_enter3_with_info: Option<FunctionEnter3WithInfo>, p_func_leave3_with_info: Option<FunctionLeave3WithInfo>, p_func_tailcall3_with_info: Option<FunctionTailcall3WithInfo>) -> Hresult;
            63 GetFunctionEnter3Info get_function_enter3_info(function_id: FunctionID, elt_info: CorPrfEltInfo, p_frame_info: *mut CorPrfFrameInfo, pcb_argument_info: *mut u32, p_argument_info: *mut CorPrfFunctionArgumentInfo) -> Hresult;
            64 GetFunctionLeave3Info get_function_leave3_info(function_id: FunctionID, elt_info: CorPrfEltInfo, p_frame_info: *mut CorPrfFrameInfo, p_retval_range: *mut CorPrfFunctionArgumentRange) -> Hresult;
            65 GetFunctionTailcall3Info get_function_tailcall3_info(function_id: FunctionID, elt_info: CorPrfEltInfo, p_frame_info: *mut CorPrfFrameInfo) -> Hresult;
            66 EnumModules enum_modules(pp_enum: *mut *mut ICorProfilerModuleEnum) -> Hresult;
            67 GetRuntimeInformation get_runtime_information(p_clr_instance_id: *mut u16, p_runtime_type: *mut CorPrfRuntimeType, p_major_version: *mut u16, p_minor_version: *mut u16, p_build_number: *mut u16, p_qfe_version: *mut u16, cch_version_string: u32, pcch_version_string: *mut u32, sz_version_string: *mut u16) -> Hresult;
            68 GetThreadStaticAddress2 get_thread_static_address2(class_id: ClassID, field_token: MdToken, app_domain_id: AppDomainID, thread_id: ThreadID, pp_address: *mut *mut c_void) -> Hresult;
            69 GetAppDomainsContainingModule get_app_domains_containing_module(module_id: ModuleID, c_app_domain_ids: u32, pc_app_domain_ids: *mut u32, app_domain_ids: *mut AppDomainID) -> Hresult;
            70 GetModuleInfo2 get_module_info2(module_id: ModuleID, pp_base_load_address: *mut *const u8, cch_name: u32, pcch_name: *mut u32, sz_name: *mut u16, p_assembly_id: *mut AssemblyID, pdw_module_flags: *mut u32) -> Hresult;
        }
        version ICorProfilerInfo4 = "0D8FDCAA-6257-47BF-B1BF-94DAC88466EE" {
            71 EnumThreads enum_threads(pp_enum: *mut *mut ICorProfilerThreadEnum) -> Hresult;
            72 InitializeCurrentThread initialize_current_thread() -> Hresult;
            73 RequestReJIT request_rejit(c_functions: u32, module_ids: *const ModuleID, method_ids: *const MdToken) -> Hresult;
            74 RequestRevert request_revert(c_functions: u32, module_ids: *const ModuleID, method_ids: *const MdToken, status: *mut Hresult) -> Hresult;
            75 GetCodeInfo3 get_code_info3(function_id: FunctionID, rejit_id: ReJITID, c_code_infos: u32, pc_code_infos: *mut u32, code_infos: *mut CorPrfCodeInfo) -> Hresult;
            76 GetFunctionFromIP2 get_function_from_ip2(ip: *const u8, p_function_id: *mut FunctionID, p_rejit_id: *mut ReJITID) -> Hresult;
            77 GetReJITIDs get_rejit_ids(function_id: FunctionID, c_rejit_ids: u32, pc_rejit_ids: *mut u32, rejit_ids: *mut ReJITID) -> Hresult;
            78 GetILToNativeMapping2 get_il_to_native_mapping2(function_id: FunctionID, rejit_id: ReJITID, c_map: u32, pc_map: *mut u32, map: *mut CorDebugIlToNativeMap) -> Hresult;
            79 EnumJITedFunctions2 enum_jited_functions2(pp_enum: *mut *mut ICorProfilerFunctionEnum) -> Hresult;
            80 GetObjectSize2 get_object_size2(object_id: ObjectID, pc_size: *mut usize) -> Hresult;
        }
        version ICorProfilerInfo5 = "07602928-CE38-4B83-81E7-74ADAF781214" {
            81 GetEventMask2 get_event_mask2(pdw_events_low: *mut u32, pdw_events_high: *mut u32) -> Hresult;
            82 SetEventMask2 set_event_mask2(dw_events_low: u32, dw_events_high: u32) -> Hresult;
        }
        version ICorProfilerInfo6 = "F30A070D-BFFB-46A7-B1D8-8781EF7B698A" {
            83 EnumNgenModuleMethodsInliningThisMethod enum_ngen_module_methods_inlining_this_method(inliners_module_id: ModuleID, inlinee_module_id: ModuleID, inlinee_method_id: MdToken, incomplete_data: *mut Bool, pp_enum: *mut *mut ICorProfilerMethodEnum) -> Hresult;
        }
        version ICorProfilerInfo7 = "9AEECC0D-63E0-4187-8C00-E312F503F663" {
            84 ApplyMetaData apply_meta_data(module_id: ModuleID) -> Hresult;
            85 GetInMemorySymbolsLength get_in_memory_symbols_length(module_id: ModuleID, p_count_symbol_bytes: *mut u32) -> Hresult;
            86 ReadInMemorySymbols read_in_memory_symbols(module_id: ModuleID, symbols_read_offset: u32, p_symbol_bytes: *mut u8, count_symbol_bytes: u32, p_count_symbol_bytes_read: *mut u32) -> Hresult;
        }
        version ICorProfilerInfo8 = "C5AC80A6-782E-4716-8044-39598C60CFBF" {
            87 IsFunctionDynamic is_function_dynamic(function_id: FunctionID, is_dynamic: *mut Bool) -> Hresult;
            88 GetFunctionFromIP3 get_function_from_ip3(ip: *const u8, function_id: *mut FunctionID, p_rejit_id: *mut ReJITID) -> Hresult;
            89 GetDynamicFunctionInfo get_dynamic_function_info(function_id: FunctionID, module_id: *mut ModuleID, ppv_sig: *mut *const u8, pb_sig: *mut u32, cch_name: u32, pcch_name: *mut u32, wsz_name: *mut u16) -> Hresult;
        }
        version ICorProfilerInfo9 = "008170DB-F8CC-4796-9A51-DC8AA0B47012" {
            90 GetNativeCodeStartAddresses get_native_code_start_addresses(function_id: FunctionID, rejit_id: ReJITID, c_code_start_addresses: u32, pc_code_start_addresses: *mut u32, code_start_addresses: *mut usize) -> Hresult;
            91 GetILToNativeMapping3 get_il_to_native_mapping3(p_native_code_start_address: usize, c_map: u32, pc_map: *mut u32, map: *mut CorDebugIlToNativeMap) -> Hresult;
            92 GetCodeInfo4 get_code_info4(p_native_code_start_address: usize, c_code_infos: u32, pc_code_infos: *mut u32, code_infos: *mut CorPrfCodeInfo) -> Hresult;
        }
        version ICorProfilerInfo10 = "2F1B5152-C869-40C9-AA5F-3ABE026BD720" {
            93 EnumerateObjectReferences enumerate_object_references(object_id: ObjectID, callback: Option<ObjectReferenceCallback>, client_data: *mut c_void) -> Hresult;
            94 IsFrozenObject is_frozen_object(object_id: ObjectID, pb_frozen: *mut Bool) -> Hresult;
            95 GetLOHObjectSizeThreshold get_loh_object_size_threshold(p_threshold: *mut u32) -> Hresult;
            96 RequestReJITWithInliners request_rejit_with_inliners(dw_rejit_flags: u32, c_functions: u32, module_ids: *const ModuleID, method_ids: *const MdToken) -> Hresult;
            97 SuspendRuntime suspend_runtime() -> Hresult;
            98 ResumeRuntime resume_runtime() -> Hresult;
        }
        version ICorProfilerInfo11 = "06398876-8987-4154-B621-40A00D6E4D04" {
            99 GetEnvironmentVariable get_environment_variable(sz_name: *const u16, cch_value: u32, pcch_value: *mut u32, sz_value: *mut u16) -> Hresult;
            100 SetEnvironmentVariable set_environment_variable(sz_name: *const u16, sz_value: *const u16) -> Hresult;
        }
        version ICorProfilerInfo12 = "27B24CCD-1CB1-47C5-96EE-98190DC30959" {
            101 EventPipeStartSession event_pipe_start_session(c_provider_configs: u32, p_provider_configs: *const CorPrfEventpipeProviderConfig, request_rundown: Bool, p_session: *mut EventPipeSessionID) -> Hresult;
            102 EventPipeAddProviderToSession event_pipe_add_provider_to_session(session: EventPipeSessionID, provider_config: CorPrfEventpipeProviderConfig) -> Hresult;
            103 EventPipeStopSession event_pipe_stop_session(session: EventPipeSessionID) -> Hresult;
            104 EventPipeCreateProvider event_pipe_create_provider(provider_name: *const u16, p_provider: *mut EventPipeProviderID) -> Hresult;
            105 EventPipeGetProviderInfo event_pipe_get_provider_info(provider: EventPipeProviderID, cch_name: u32, pcch_name: *mut u32, provider_name: *mut u16) -> Hresult;
            106 EventPipeDefineEvent event_pipe_define_event(provider: EventPipeProviderID, event_name: *const u16, event_id: u32, keywords: u64, event_version: u32, level: u32, opcode: u8, need_stack: Bool, c_param_descs: u32, p_param_descs: *const CorPrfEventpipeParamDesc, p_event: *mut EventPipeEventID) -> Hresult;
            107 EventPipeWriteEvent event_pipe_write_event(event: EventPipeEventID, c_data: u32, data: *const CorPrfEventData, p_activity_id: *const Guid, p_related_activity_id: *const Guid) -> Hresult;
        }
        version ICorProfilerInfo13 = "6E6C7EE2-0701-4EC2-9D29-2E8733B66934" {
            108 CreateHandle create_handle(object: ObjectID, kind: CorPrfHandleType, p_handle: *mut ObjectHandleID) -> Hresult;
            109 DestroyHandle destroy_handle(handle: ObjectHandleID) -> Hresult;
            110 GetObjectIDFromHandle get_object_id_from_handle(handle: ObjectHandleID, p_object: *mut ObjectID) -> Hresult;
        }
        version ICorProfilerInfo14 = "F460E352-D76D-4FE9-835F-F6AF9D6E862D" {
            111 EnumerateNonGCObjects enumerate_non_gc_objects(pp_enum: *mut *mut ICorProfilerObjectEnum) -> Hresult;
            112 GetNonGCHeapBounds get_non_gc_heap_bounds(c_object_ranges: u32, pc_object_ranges: *mut u32, ranges: *mut CorPrfNongcHeapRange) -> Hresult;
            113 EventPipeCreateProvider2 event_pipe_create_provider2(provider_name: *const u16, p_callback: Option<EventPipeProviderCallback>, p_provider: *mut EventPipeProviderID) -> Hresult;
        }
        version ICorProfilerInfo15 = "B446462D-BD22-41DD-872D-DC714C49EB56" {
            114 EnumerateGCHeapObjects enumerate_gc_heap_objects(callback: Option<ObjectCallback>, callback_state: *mut c_void) -> Hresult;
        }
    }
}
