//! Small interfaces of the runtime: enumerators, function control, allocators, assembly references.
//!
//! Declarations only, generated once from the IDL and since then maintained by hand.
//!
//! Invariant: the macro asserts each slot number at compile time.

use core::ffi::c_void;

use super::*;
use crate::com_interface;

com_interface! {
    /// Parameters of a ReJIT compilation.
    ///
    /// Source: `corprof.idl`.
    pub interface ICorProfilerFunctionControl, ICorProfilerFunctionControlVtbl {
        version ICorProfilerFunctionControl = "F0963021-E1EA-4732-8581-E01B0BD3C0C6" {
            3 SetCodegenFlags set_codegen_flags(flags: u32) -> Hresult;
            4 SetILFunctionBody set_il_function_body(cb_new_il_method_header: u32, pb_new_il_method_header: *const u8) -> Hresult;
            5 SetILInstrumentedCodeMap set_il_instrumented_code_map(c_il_map_entries: u32, rg_il_map_entries: *const CorIlMap) -> Hresult;
        }
    }
}

com_interface! {
    /// Allocates IL method bodies of one module.
    ///
    /// Source: `corprof.idl`.
    pub interface IMethodMalloc, IMethodMallocVtbl {
        version IMethodMalloc = "A0EFB28B-6EE2-4D7B-B983-A75EF7BEEDB8" {
            3 Alloc alloc(cb: u32) -> *mut c_void;
        }
    }
}

com_interface! {
    /// Enumerates functions.
    ///
    /// Source: `corprof.idl`.
    pub interface ICorProfilerFunctionEnum, ICorProfilerFunctionEnumVtbl {
        version ICorProfilerFunctionEnum = "FF71301A-B994-429D-A10B-B345A65280EF" {
            3 Skip skip(celt: u32) -> Hresult;
            4 Reset reset() -> Hresult;
            5 Clone clone(pp_enum: *mut *mut ICorProfilerFunctionEnum) -> Hresult;
            6 GetCount get_count(pcelt: *mut u32) -> Hresult;
            7 Next next(celt: u32, ids: *mut CorPrfFunction, pcelt_fetched: *mut u32) -> Hresult;
        }
    }
}

com_interface! {
    /// Enumerates modules.
    ///
    /// Source: `corprof.idl`.
    pub interface ICorProfilerModuleEnum, ICorProfilerModuleEnumVtbl {
        version ICorProfilerModuleEnum = "B0266D75-2081-4493-AF7F-028BA34DB891" {
            3 Skip skip(celt: u32) -> Hresult;
            4 Reset reset() -> Hresult;
            5 Clone clone(pp_enum: *mut *mut ICorProfilerModuleEnum) -> Hresult;
            6 GetCount get_count(pcelt: *mut u32) -> Hresult;
            7 Next next(celt: u32, ids: *mut ModuleID, pcelt_fetched: *mut u32) -> Hresult;
        }
    }
}

com_interface! {
    /// Enumerates managed threads.
    ///
    /// Source: `corprof.idl`.
    pub interface ICorProfilerThreadEnum, ICorProfilerThreadEnumVtbl {
        version ICorProfilerThreadEnum = "571194F7-25ED-419F-AA8B-7016B3159701" {
            3 Skip skip(celt: u32) -> Hresult;
            4 Reset reset() -> Hresult;
            5 Clone clone(pp_enum: *mut *mut ICorProfilerThreadEnum) -> Hresult;
            6 GetCount get_count(pcelt: *mut u32) -> Hresult;
            7 Next next(celt: u32, ids: *mut ThreadID, pcelt_fetched: *mut u32) -> Hresult;
        }
    }
}

com_interface! {
    /// Enumerates objects.
    ///
    /// Source: `corprof.idl`.
    pub interface ICorProfilerObjectEnum, ICorProfilerObjectEnumVtbl {
        version ICorProfilerObjectEnum = "2C6269BD-2D13-4321-AE12-6686365FD6AF" {
            3 Skip skip(celt: u32) -> Hresult;
            4 Reset reset() -> Hresult;
            5 Clone clone(pp_enum: *mut *mut ICorProfilerObjectEnum) -> Hresult;
            6 GetCount get_count(pcelt: *mut u32) -> Hresult;
            7 Next next(celt: u32, objects: *mut ObjectID, pcelt_fetched: *mut u32) -> Hresult;
        }
    }
}

com_interface! {
    /// Enumerates methods.
    ///
    /// Source: `corprof.idl`.
    pub interface ICorProfilerMethodEnum, ICorProfilerMethodEnumVtbl {
        version ICorProfilerMethodEnum = "FCCEE788-0088-454B-A811-C99F298D1942" {
            3 Skip skip(celt: u32) -> Hresult;
            4 Reset reset() -> Hresult;
            5 Clone clone(pp_enum: *mut *mut ICorProfilerMethodEnum) -> Hresult;
            6 GetCount get_count(pcelt: *mut u32) -> Hresult;
            7 Next next(celt: u32, elements: *mut CorPrfMethod, pcelt_fetched: *mut u32) -> Hresult;
        }
    }
}

com_interface! {
    /// Receives assembly references in `GetAssemblyReferences`.
    ///
    /// Source: `corprof.idl`.
    pub interface ICorProfilerAssemblyReferenceProvider, ICorProfilerAssemblyReferenceProviderVtbl {
        version ICorProfilerAssemblyReferenceProvider = "66A78C24-2EEF-4F65-B45F-DD1D8038BF3C" {
            3 AddAssemblyReference add_assembly_reference(p_assembly_ref_info: *const CorPrfAssemblyReferenceInfo) -> Hresult;
        }
    }
}
