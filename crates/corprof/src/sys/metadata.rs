//! The metadata interfaces that a profiler needs to resolve names and to rewrite IL.
//!
//! Declarations only, generated once from the IDL and since then maintained by hand.
//!
//! Invariant: the macro asserts each slot number at compile time.

use core::ffi::c_void;

use super::*;
use crate::com_interface;

com_interface! {
    /// Reads the metadata of a module: `IMetaDataImport` and `IMetaDataImport2`.
    ///
    /// Source: `cor.h`.
    pub interface IMetaDataImport2, IMetaDataImport2Vtbl {
        version IMetaDataImport = "7DAC8207-D3AE-4C75-9B67-92801A497D44" {
            3 CloseEnum close_enum(h_enum: HCorEnum) -> ();
            4 CountEnum count_enum(h_enum: HCorEnum, pul_count: *mut u32) -> Hresult;
            5 ResetEnum reset_enum(h_enum: HCorEnum, ul_pos: u32) -> Hresult;
            6 EnumTypeDefs enum_type_defs(ph_enum: *mut HCorEnum, r_type_defs: *mut MdToken, c_max: u32, pc_type_defs: *mut u32) -> Hresult;
            7 EnumInterfaceImpls enum_interface_impls(ph_enum: *mut HCorEnum, td: MdToken, r_impls: *mut MdToken, c_max: u32, pc_impls: *mut u32) -> Hresult;
            8 EnumTypeRefs enum_type_refs(ph_enum: *mut HCorEnum, r_type_refs: *mut MdToken, c_max: u32, pc_type_refs: *mut u32) -> Hresult;
            9 FindTypeDefByName find_type_def_by_name(sz_type_def: *const u16, tk_enclosing_class: MdToken, ptd: *mut MdToken) -> Hresult;
            10 GetScopeProps get_scope_props(sz_name: *mut u16, cch_name: u32, pch_name: *mut u32, pmvid: *mut Guid) -> Hresult;
            11 GetModuleFromScope get_module_from_scope(pmd: *mut MdToken) -> Hresult;
            12 GetTypeDefProps get_type_def_props(td: MdToken, sz_type_def: *mut u16, cch_type_def: u32, pch_type_def: *mut u32, pdw_type_def_flags: *mut u32, ptk_extends: *mut MdToken) -> Hresult;
            13 GetInterfaceImplProps get_interface_impl_props(ii_impl: MdToken, p_class: *mut MdToken, ptk_iface: *mut MdToken) -> Hresult;
            14 GetTypeRefProps get_type_ref_props(tr: MdToken, ptk_resolution_scope: *mut MdToken, sz_name: *mut u16, cch_name: u32, pch_name: *mut u32) -> Hresult;
            15 ResolveTypeRef resolve_type_ref(tr: MdToken, riid: *const Guid, pp_i_scope: *mut *mut IUnknown, ptd: *mut MdToken) -> Hresult;
            16 EnumMembers enum_members(ph_enum: *mut HCorEnum, cl: MdToken, r_members: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            17 EnumMembersWithName enum_members_with_name(ph_enum: *mut HCorEnum, cl: MdToken, sz_name: *const u16, r_members: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            18 EnumMethods enum_methods(ph_enum: *mut HCorEnum, cl: MdToken, r_methods: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            19 EnumMethodsWithName enum_methods_with_name(ph_enum: *mut HCorEnum, cl: MdToken, sz_name: *const u16, r_methods: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            20 EnumFields enum_fields(ph_enum: *mut HCorEnum, cl: MdToken, r_fields: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            21 EnumFieldsWithName enum_fields_with_name(ph_enum: *mut HCorEnum, cl: MdToken, sz_name: *const u16, r_fields: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            22 EnumParams enum_params(ph_enum: *mut HCorEnum, mb: MdToken, r_params: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            23 EnumMemberRefs enum_member_refs(ph_enum: *mut HCorEnum, tk_parent: MdToken, r_member_refs: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            24 EnumMethodImpls enum_method_impls(ph_enum: *mut HCorEnum, td: MdToken, r_method_body: *mut MdToken, r_method_decl: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            25 EnumPermissionSets enum_permission_sets(ph_enum: *mut HCorEnum, tk: MdToken, dw_actions: u32, r_permission: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            26 FindMember find_member(td: MdToken, sz_name: *const u16, pv_sig_blob: *const u8, cb_sig_blob: u32, pmb: *mut MdToken) -> Hresult;
            27 FindMethod find_method(td: MdToken, sz_name: *const u16, pv_sig_blob: *const u8, cb_sig_blob: u32, pmb: *mut MdToken) -> Hresult;
            28 FindField find_field(td: MdToken, sz_name: *const u16, pv_sig_blob: *const u8, cb_sig_blob: u32, pmb: *mut MdToken) -> Hresult;
            29 FindMemberRef find_member_ref(td: MdToken, sz_name: *const u16, pv_sig_blob: *const u8, cb_sig_blob: u32, pmr: *mut MdToken) -> Hresult;
            30 GetMethodProps get_method_props(mb: MdToken, p_class: *mut MdToken, sz_method: *mut u16, cch_method: u32, pch_method: *mut u32, pdw_attr: *mut u32, ppv_sig_blob: *mut *const u8, pcb_sig_blob: *mut u32, pul_code_rva: *mut u32, pdw_impl_flags: *mut u32) -> Hresult;
            31 GetMemberRefProps get_member_ref_props(mr: MdToken, ptk: *mut MdToken, sz_member: *mut u16, cch_member: u32, pch_member: *mut u32, ppv_sig_blob: *mut *const u8, pb_sig: *mut u32) -> Hresult;
            32 EnumProperties enum_properties(ph_enum: *mut HCorEnum, td: MdToken, r_properties: *mut MdToken, c_max: u32, pc_properties: *mut u32) -> Hresult;
            33 EnumEvents enum_events(ph_enum: *mut HCorEnum, td: MdToken, r_events: *mut MdToken, c_max: u32, pc_events: *mut u32) -> Hresult;
            34 GetEventProps get_event_props(ev: MdToken, p_class: *mut MdToken, sz_event: *const u16, cch_event: u32, pch_event: *mut u32, pdw_event_flags: *mut u32, ptk_event_type: *mut MdToken, pmd_add_on: *mut MdToken, pmd_remove_on: *mut MdToken, pmd_fire: *mut MdToken, rmd_other_method: *mut MdToken, c_max: u32, pc_other_method: *mut u32) -> Hresult;
            35 EnumMethodSemantics enum_method_semantics(ph_enum: *mut HCorEnum, mb: MdToken, r_event_prop: *mut MdToken, c_max: u32, pc_event_prop: *mut u32) -> Hresult;
            36 GetMethodSemantics get_method_semantics(mb: MdToken, tk_event_prop: MdToken, pdw_semantics_flags: *mut u32) -> Hresult;
            37 GetClassLayout get_class_layout(td: MdToken, pdw_pack_size: *mut u32, r_field_offset: *mut CorFieldOffset, c_max: u32, pc_field_offset: *mut u32, pul_class_size: *mut u32) -> Hresult;
            38 GetFieldMarshal get_field_marshal(tk: MdToken, ppv_native_type: *mut *const u8, pcb_native_type: *mut u32) -> Hresult;
            39 GetRVA get_rva(tk: MdToken, pul_code_rva: *mut u32, pdw_impl_flags: *mut u32) -> Hresult;
            40 GetPermissionSetProps get_permission_set_props(pm: MdToken, pdw_action: *mut u32, ppv_permission: *mut *const c_void, pcb_permission: *mut u32) -> Hresult;
            41 GetSigFromToken get_sig_from_token(md_sig: MdToken, ppv_sig: *mut *const u8, pcb_sig: *mut u32) -> Hresult;
            42 GetModuleRefProps get_module_ref_props(mur: MdToken, sz_name: *mut u16, cch_name: u32, pch_name: *mut u32) -> Hresult;
            43 EnumModuleRefs enum_module_refs(ph_enum: *mut HCorEnum, r_module_refs: *mut MdToken, cmax: u32, pc_module_refs: *mut u32) -> Hresult;
            44 GetTypeSpecFromToken get_type_spec_from_token(typespec: MdToken, ppv_sig: *mut *const u8, pcb_sig: *mut u32) -> Hresult;
            45 GetNameFromToken get_name_from_token(tk: MdToken, psz_utf8_name_ptr: *mut *const u8) -> Hresult;
            46 EnumUnresolvedMethods enum_unresolved_methods(ph_enum: *mut HCorEnum, r_methods: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            47 GetUserString get_user_string(stk: MdToken, sz_string: *mut u16, cch_string: u32, pch_string: *mut u32) -> Hresult;
            48 GetPinvokeMap get_pinvoke_map(tk: MdToken, pdw_mapping_flags: *mut u32, sz_import_name: *mut u16, cch_import_name: u32, pch_import_name: *mut u32, pmr_import_dll: *mut MdToken) -> Hresult;
            49 EnumSignatures enum_signatures(ph_enum: *mut HCorEnum, r_signatures: *mut MdToken, cmax: u32, pc_signatures: *mut u32) -> Hresult;
            50 EnumTypeSpecs enum_type_specs(ph_enum: *mut HCorEnum, r_type_specs: *mut MdToken, cmax: u32, pc_type_specs: *mut u32) -> Hresult;
            51 EnumUserStrings enum_user_strings(ph_enum: *mut HCorEnum, r_strings: *mut MdToken, cmax: u32, pc_strings: *mut u32) -> Hresult;
            52 GetParamForMethodIndex get_param_for_method_index(md: MdToken, ul_param_seq: u32, ppd: *mut MdToken) -> Hresult;
            53 EnumCustomAttributes enum_custom_attributes(ph_enum: *mut HCorEnum, tk: MdToken, tk_type: MdToken, r_custom_attributes: *mut MdToken, c_max: u32, pc_custom_attributes: *mut u32) -> Hresult;
            54 GetCustomAttributeProps get_custom_attribute_props(cv: MdToken, ptk_obj: *mut MdToken, ptk_type: *mut MdToken, pp_blob: *mut *const c_void, pcb_size: *mut u32) -> Hresult;
            55 FindTypeRef find_type_ref(tk_resolution_scope: MdToken, sz_name: *const u16, ptr: *mut MdToken) -> Hresult;
            56 GetMemberProps get_member_props(mb: MdToken, p_class: *mut MdToken, sz_member: *mut u16, cch_member: u32, pch_member: *mut u32, pdw_attr: *mut u32, ppv_sig_blob: *mut *const u8, pcb_sig_blob: *mut u32, pul_code_rva: *mut u32, pdw_impl_flags: *mut u32, pdw_c_plus_type_flag: *mut u32, pp_value: *mut *const c_void, pcch_value: *mut u32) -> Hresult;
            57 GetFieldProps get_field_props(mb: MdToken, p_class: *mut MdToken, sz_field: *mut u16, cch_field: u32, pch_field: *mut u32, pdw_attr: *mut u32, ppv_sig_blob: *mut *const u8, pcb_sig_blob: *mut u32, pdw_c_plus_type_flag: *mut u32, pp_value: *mut *const c_void, pcch_value: *mut u32) -> Hresult;
            58 GetPropertyProps get_property_props(prop: MdToken, p_class: *mut MdToken, sz_property: *const u16, cch_property: u32, pch_property: *mut u32, pdw_prop_flags: *mut u32, ppv_sig: *mut *const u8, pb_sig: *mut u32, pdw_c_plus_type_flag: *mut u32, pp_default_value: *mut *const c_void, pcch_default_value: *mut u32, pmd_setter: *mut MdToken, pmd_getter: *mut MdToken, rmd_other_method: *mut MdToken, c_max: u32, pc_other_method: *mut u32) -> Hresult;
            59 GetParamProps get_param_props(tk: MdToken, pmd: *mut MdToken, pul_sequence: *mut u32, sz_name: *mut u16, cch_name: u32, pch_name: *mut u32, pdw_attr: *mut u32, pdw_c_plus_type_flag: *mut u32, pp_value: *mut *const c_void, pcch_value: *mut u32) -> Hresult;
            60 GetCustomAttributeByName get_custom_attribute_by_name(tk_obj: MdToken, sz_name: *const u16, pp_data: *mut *const c_void, pcb_data: *mut u32) -> Hresult;
            61 IsValidToken is_valid_token(tk: MdToken) -> Bool;
            62 GetNestedClassProps get_nested_class_props(td_nested_class: MdToken, ptd_enclosing_class: *mut MdToken) -> Hresult;
            63 GetNativeCallConvFromSig get_native_call_conv_from_sig(pv_sig: *const c_void, cb_sig: u32, p_call_conv: *mut u32) -> Hresult;
            64 IsGlobal is_global(pd: MdToken, pb_global: *mut i32) -> Hresult;
        }
        version IMetaDataImport2 = "FCE5EFA0-8BBA-4F8E-A036-8F2022B08466" {
            65 EnumGenericParams enum_generic_params(ph_enum: *mut HCorEnum, tk: MdToken, r_generic_params: *mut MdToken, c_max: u32, pc_generic_params: *mut u32) -> Hresult;
            66 GetGenericParamProps get_generic_param_props(gp: MdToken, pul_param_seq: *mut u32, pdw_param_flags: *mut u32, pt_owner: *mut MdToken, reserved: *mut u32, wzname: *mut u16, cch_name: u32, pch_name: *mut u32) -> Hresult;
            67 GetMethodSpecProps get_method_spec_props(mi: MdToken, tk_parent: *mut MdToken, ppv_sig_blob: *mut *const u8, pcb_sig_blob: *mut u32) -> Hresult;
            68 EnumGenericParamConstraints enum_generic_param_constraints(ph_enum: *mut HCorEnum, tk: MdToken, r_generic_param_constraints: *mut MdToken, c_max: u32, pc_generic_param_constraints: *mut u32) -> Hresult;
            69 GetGenericParamConstraintProps get_generic_param_constraint_props(gpc: MdToken, pt_generic_param: *mut MdToken, ptk_constraint_type: *mut MdToken) -> Hresult;
            70 GetPEKind get_pe_kind(pdw_pe_kind: *mut u32, pdw_m_achine: *mut u32) -> Hresult;
            71 GetVersionString get_version_string(pwz_buf: *mut u16, cc_buf_size: u32, pcc_buf_size: *mut u32) -> Hresult;
            72 EnumMethodSpecs enum_method_specs(ph_enum: *mut HCorEnum, tk: MdToken, r_method_specs: *mut MdToken, c_max: u32, pc_method_specs: *mut u32) -> Hresult;
        }
    }
}

com_interface! {
    /// Reads the manifest of an assembly.
    ///
    /// Source: `cor.h`.
    pub interface IMetaDataAssemblyImport, IMetaDataAssemblyImportVtbl {
        version IMetaDataAssemblyImport = "EE62470B-E94B-424E-9B7C-2F00C9249F93" {
            3 GetAssemblyProps get_assembly_props(mda: MdToken, ppb_public_key: *mut *const c_void, pcb_public_key: *mut u32, pul_hash_alg_id: *mut u32, sz_name: *mut u16, cch_name: u32, pch_name: *mut u32, p_meta_data: *mut AssemblyMetadata, pdw_assembly_flags: *mut u32) -> Hresult;
            4 GetAssemblyRefProps get_assembly_ref_props(mdar: MdToken, ppb_public_key_or_token: *mut *const c_void, pcb_public_key_or_token: *mut u32, sz_name: *mut u16, cch_name: u32, pch_name: *mut u32, p_meta_data: *mut AssemblyMetadata, ppb_hash_value: *mut *const c_void, pcb_hash_value: *mut u32, pdw_assembly_ref_flags: *mut u32) -> Hresult;
            5 GetFileProps get_file_props(mdf: MdToken, sz_name: *mut u16, cch_name: u32, pch_name: *mut u32, ppb_hash_value: *mut *const c_void, pcb_hash_value: *mut u32, pdw_file_flags: *mut u32) -> Hresult;
            6 GetExportedTypeProps get_exported_type_props(mdct: MdToken, sz_name: *mut u16, cch_name: u32, pch_name: *mut u32, ptk_implementation: *mut MdToken, ptk_type_def: *mut MdToken, pdw_exported_type_flags: *mut u32) -> Hresult;
            7 GetManifestResourceProps get_manifest_resource_props(mdmr: MdToken, sz_name: *mut u16, cch_name: u32, pch_name: *mut u32, ptk_implementation: *mut MdToken, pdw_offset: *mut u32, pdw_resource_flags: *mut u32) -> Hresult;
            8 EnumAssemblyRefs enum_assembly_refs(ph_enum: *mut HCorEnum, r_assembly_refs: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            9 EnumFiles enum_files(ph_enum: *mut HCorEnum, r_files: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            10 EnumExportedTypes enum_exported_types(ph_enum: *mut HCorEnum, r_exported_types: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            11 EnumManifestResources enum_manifest_resources(ph_enum: *mut HCorEnum, r_manifest_resources: *mut MdToken, c_max: u32, pc_tokens: *mut u32) -> Hresult;
            12 GetAssemblyFromScope get_assembly_from_scope(ptk_assembly: *mut MdToken) -> Hresult;
            13 FindExportedTypeByName find_exported_type_by_name(sz_name: *const u16, mdt_exported_type: MdToken, ptk_exported_type: *mut MdToken) -> Hresult;
            14 FindManifestResourceByName find_manifest_resource_by_name(sz_name: *const u16, ptk_manifest_resource: *mut MdToken) -> Hresult;
            15 CloseEnum close_enum(h_enum: HCorEnum) -> ();
            16 FindAssembliesByName find_assemblies_by_name(sz_app_base: *const u16, sz_private_bin: *const u16, sz_assembly_name: *const u16, pp_i_unk: *mut *mut IUnknown, c_max: u32, pc_assemblies: *mut u32) -> Hresult;
        }
    }
}

com_interface! {
    /// Adds to the metadata of a module: `IMetaDataEmit` and `IMetaDataEmit2`.
    ///
    /// Source: `cor.h`.
    pub interface IMetaDataEmit2, IMetaDataEmit2Vtbl {
        version IMetaDataEmit = "BA3FEE4C-ECB9-4E41-83B7-183FA41CD859" {
            3 SetModuleProps set_module_props(sz_name: *const u16) -> Hresult;
            4 Save save(sz_file: *const u16, dw_save_flags: u32) -> Hresult;
            5 SaveToStream save_to_stream(p_i_stream: *mut c_void, dw_save_flags: u32) -> Hresult;
            6 GetSaveSize get_save_size(f_save: u32, pdw_save_size: *mut u32) -> Hresult;
            7 DefineTypeDef define_type_def(sz_type_def: *const u16, dw_type_def_flags: u32, tk_extends: MdToken, rtk_implements: *const MdToken, ptd: *mut MdToken) -> Hresult;
            8 DefineNestedType define_nested_type(sz_type_def: *const u16, dw_type_def_flags: u32, tk_extends: MdToken, rtk_implements: *const MdToken, td_encloser: MdToken, ptd: *mut MdToken) -> Hresult;
            9 SetHandler set_handler(p_unk: *mut IUnknown) -> Hresult;
            10 DefineMethod define_method(td: MdToken, sz_name: *const u16, dw_method_flags: u32, pv_sig_blob: *const u8, cb_sig_blob: u32, ul_code_rva: u32, dw_impl_flags: u32, pmd: *mut MdToken) -> Hresult;
            11 DefineMethodImpl define_method_impl(td: MdToken, tk_body: MdToken, tk_decl: MdToken) -> Hresult;
            12 DefineTypeRefByName define_type_ref_by_name(tk_resolution_scope: MdToken, sz_name: *const u16, ptr: *mut MdToken) -> Hresult;
            13 DefineImportType define_import_type(p_assem_import: *mut IMetaDataAssemblyImport, pb_hash_value: *const c_void, cb_hash_value: u32, p_import: *mut IMetaDataImport2, td_import: MdToken, p_assem_emit: *mut IUnknown, ptr: *mut MdToken) -> Hresult;
            14 DefineMemberRef define_member_ref(tk_import: MdToken, sz_name: *const u16, pv_sig_blob: *const u8, cb_sig_blob: u32, pmr: *mut MdToken) -> Hresult;
            15 DefineImportMember define_import_member(p_assem_import: *mut IMetaDataAssemblyImport, pb_hash_value: *const c_void, cb_hash_value: u32, p_import: *mut IMetaDataImport2, mb_member: MdToken, p_assem_emit: *mut IUnknown, tk_parent: MdToken, pmr: *mut MdToken) -> Hresult;
            16 DefineEvent define_event(td: MdToken, sz_event: *const u16, dw_event_flags: u32, tk_event_type: MdToken, md_add_on: MdToken, md_remove_on: MdToken, md_fire: MdToken, rmd_other_methods: *const MdToken, pmd_event: *mut MdToken) -> Hresult;
            17 SetClassLayout set_class_layout(td: MdToken, dw_pack_size: u32, r_field_offsets: *const CorFieldOffset, ul_class_size: u32) -> Hresult;
            18 DeleteClassLayout delete_class_layout(td: MdToken) -> Hresult;
            19 SetFieldMarshal set_field_marshal(tk: MdToken, pv_native_type: *const u8, cb_native_type: u32) -> Hresult;
            20 DeleteFieldMarshal delete_field_marshal(tk: MdToken) -> Hresult;
            21 DefinePermissionSet define_permission_set(tk: MdToken, dw_action: u32, pv_permission: *const c_void, cb_permission: u32, ppm: *mut MdToken) -> Hresult;
            22 SetRVA set_rva(md: MdToken, ul_rva: u32) -> Hresult;
            23 GetTokenFromSig get_token_from_sig(pv_sig: *const u8, cb_sig: u32, pmsig: *mut MdToken) -> Hresult;
            24 DefineModuleRef define_module_ref(sz_name: *const u16, pmur: *mut MdToken) -> Hresult;
            25 SetParent set_parent(mr: MdToken, tk: MdToken) -> Hresult;
            26 GetTokenFromTypeSpec get_token_from_type_spec(pv_sig: *const u8, cb_sig: u32, ptypespec: *mut MdToken) -> Hresult;
            27 SaveToMemory save_to_memory(pb_data: *mut c_void, cb_data: u32) -> Hresult;
            28 DefineUserString define_user_string(sz_string: *const u16, cch_string: u32, pstk: *mut MdToken) -> Hresult;
            29 DeleteToken delete_token(tk_obj: MdToken) -> Hresult;
            30 SetMethodProps set_method_props(md: MdToken, dw_method_flags: u32, ul_code_rva: u32, dw_impl_flags: u32) -> Hresult;
            31 SetTypeDefProps set_type_def_props(td: MdToken, dw_type_def_flags: u32, tk_extends: MdToken, rtk_implements: *const MdToken) -> Hresult;
            32 SetEventProps set_event_props(ev: MdToken, dw_event_flags: u32, tk_event_type: MdToken, md_add_on: MdToken, md_remove_on: MdToken, md_fire: MdToken, rmd_other_methods: *const MdToken) -> Hresult;
            33 SetPermissionSetProps set_permission_set_props(tk: MdToken, dw_action: u32, pv_permission: *const c_void, cb_permission: u32, ppm: *mut MdToken) -> Hresult;
            34 DefinePinvokeMap define_pinvoke_map(tk: MdToken, dw_mapping_flags: u32, sz_import_name: *const u16, mr_import_dll: MdToken) -> Hresult;
            35 SetPinvokeMap set_pinvoke_map(tk: MdToken, dw_mapping_flags: u32, sz_import_name: *const u16, mr_import_dll: MdToken) -> Hresult;
            36 DeletePinvokeMap delete_pinvoke_map(tk: MdToken) -> Hresult;
            37 DefineCustomAttribute define_custom_attribute(tk_owner: MdToken, tk_ctor: MdToken, p_custom_attribute: *const c_void, cb_custom_attribute: u32, pcv: *mut MdToken) -> Hresult;
            38 SetCustomAttributeValue set_custom_attribute_value(pcv: MdToken, p_custom_attribute: *const c_void, cb_custom_attribute: u32) -> Hresult;
            39 DefineField define_field(td: MdToken, sz_name: *const u16, dw_field_flags: u32, pv_sig_blob: *const u8, cb_sig_blob: u32, dw_c_plus_type_flag: u32, p_value: *const c_void, cch_value: u32, pmd: *mut MdToken) -> Hresult;
            40 DefineProperty define_property(td: MdToken, sz_property: *const u16, dw_prop_flags: u32, pv_sig: *const u8, cb_sig: u32, dw_c_plus_type_flag: u32, p_value: *const c_void, cch_value: u32, md_setter: MdToken, md_getter: MdToken, rmd_other_methods: *const MdToken, pmd_prop: *mut MdToken) -> Hresult;
            41 DefineParam define_param(md: MdToken, ul_param_seq: u32, sz_name: *const u16, dw_param_flags: u32, dw_c_plus_type_flag: u32, p_value: *const c_void, cch_value: u32, ppd: *mut MdToken) -> Hresult;
            42 SetFieldProps set_field_props(fd: MdToken, dw_field_flags: u32, dw_c_plus_type_flag: u32, p_value: *const c_void, cch_value: u32) -> Hresult;
            43 SetPropertyProps set_property_props(pr: MdToken, dw_prop_flags: u32, dw_c_plus_type_flag: u32, p_value: *const c_void, cch_value: u32, md_setter: MdToken, md_getter: MdToken, rmd_other_methods: *const MdToken) -> Hresult;
            44 SetParamProps set_param_props(pd: MdToken, sz_name: *const u16, dw_param_flags: u32, dw_c_plus_type_flag: u32, p_value: *const c_void, cch_value: u32) -> Hresult;
            45 DefineSecurityAttributeSet define_security_attribute_set(tk_obj: MdToken, r_sec_attrs: *const CorSecAttr, c_sec_attrs: u32, pul_error_attr: *mut u32) -> Hresult;
            46 ApplyEditAndContinue apply_edit_and_continue(p_import: *mut IUnknown) -> Hresult;
            47 TranslateSigWithScope translate_sig_with_scope(p_assem_import: *mut IMetaDataAssemblyImport, pb_hash_value: *const c_void, cb_hash_value: u32, import_scope: *mut IMetaDataImport2, pb_sig_blob: *const u8, cb_sig_blob: u32, p_assem_emit: *mut IUnknown, emit: *mut IMetaDataEmit2, pv_translated_sig: *mut u8, cb_translated_sig_max: u32, pcb_translated_sig: *mut u32) -> Hresult;
            48 SetMethodImplFlags set_method_impl_flags(md: MdToken, dw_impl_flags: u32) -> Hresult;
            49 SetFieldRVA set_field_rva(fd: MdToken, ul_rva: u32) -> Hresult;
            50 Merge merge(p_import: *mut IMetaDataImport2, p_host_map_token: *mut IUnknown, p_handler: *mut IUnknown) -> Hresult;
            51 MergeEnd merge_end() -> Hresult;
        }
        version IMetaDataEmit2 = "F5DD9950-F693-42E6-830E-7B833E8146A9" {
            52 DefineMethodSpec define_method_spec(tk_parent: MdToken, pv_sig_blob: *const u8, cb_sig_blob: u32, pmi: *mut MdToken) -> Hresult;
            53 GetDeltaSaveSize get_delta_save_size(f_save: u32, pdw_save_size: *mut u32) -> Hresult;
            54 SaveDelta save_delta(sz_file: *const u16, dw_save_flags: u32) -> Hresult;
            55 SaveDeltaToStream save_delta_to_stream(p_i_stream: *mut c_void, dw_save_flags: u32) -> Hresult;
            56 SaveDeltaToMemory save_delta_to_memory(pb_data: *mut c_void, cb_data: u32) -> Hresult;
            57 DefineGenericParam define_generic_param(tk: MdToken, ul_param_seq: u32, dw_param_flags: u32, szname: *const u16, reserved: u32, rtk_constraints: *const MdToken, pgp: *mut MdToken) -> Hresult;
            58 SetGenericParamProps set_generic_param_props(gp: MdToken, dw_param_flags: u32, sz_name: *const u16, reserved: u32, rtk_constraints: *const MdToken) -> Hresult;
            59 ResetENCLog reset_enc_log() -> Hresult;
        }
    }
}

com_interface! {
    /// Adds references to the manifest of a module.
    ///
    /// Source: `cor.h`.
    pub interface IMetaDataAssemblyEmit, IMetaDataAssemblyEmitVtbl {
        version IMetaDataAssemblyEmit = "211EF15B-5317-4438-B196-DEC87B887693" {
            3 DefineAssembly define_assembly(pb_public_key: *const c_void, cb_public_key: u32, ul_hash_alg_id: u32, sz_name: *const u16, p_meta_data: *const AssemblyMetadata, dw_assembly_flags: u32, pma: *mut MdToken) -> Hresult;
            4 DefineAssemblyRef define_assembly_ref(pb_public_key_or_token: *const c_void, cb_public_key_or_token: u32, sz_name: *const u16, p_meta_data: *const AssemblyMetadata, pb_hash_value: *const c_void, cb_hash_value: u32, dw_assembly_ref_flags: u32, pmdar: *mut MdToken) -> Hresult;
            5 DefineFile define_file(sz_name: *const u16, pb_hash_value: *const c_void, cb_hash_value: u32, dw_file_flags: u32, pmdf: *mut MdToken) -> Hresult;
            6 DefineExportedType define_exported_type(sz_name: *const u16, tk_implementation: MdToken, tk_type_def: MdToken, dw_exported_type_flags: u32, pmdct: *mut MdToken) -> Hresult;
            7 DefineManifestResource define_manifest_resource(sz_name: *const u16, tk_implementation: MdToken, dw_offset: u32, dw_resource_flags: u32, pmdmr: *mut MdToken) -> Hresult;
            8 SetAssemblyProps set_assembly_props(pma: MdToken, pb_public_key: *const c_void, cb_public_key: u32, ul_hash_alg_id: u32, sz_name: *const u16, p_meta_data: *const AssemblyMetadata, dw_assembly_flags: u32) -> Hresult;
            9 SetAssemblyRefProps set_assembly_ref_props(ar: MdToken, pb_public_key_or_token: *const c_void, cb_public_key_or_token: u32, sz_name: *const u16, p_meta_data: *const AssemblyMetadata, pb_hash_value: *const c_void, cb_hash_value: u32, dw_assembly_ref_flags: u32) -> Hresult;
            10 SetFileProps set_file_props(file: MdToken, pb_hash_value: *const c_void, cb_hash_value: u32, dw_file_flags: u32) -> Hresult;
            11 SetExportedTypeProps set_exported_type_props(ct: MdToken, tk_implementation: MdToken, tk_type_def: MdToken, dw_exported_type_flags: u32) -> Hresult;
            12 SetManifestResourceProps set_manifest_resource_props(mr: MdToken, tk_implementation: MdToken, dw_offset: u32, dw_resource_flags: u32) -> Hresult;
        }
    }
}
