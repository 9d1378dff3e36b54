//! Small objects that the runtime lends for one callback: ReJIT parameters, assembly references.
//!
//! Invariant: they carry the callback's lifetime, so they cannot be stored.

use core::ptr::NonNull;

use crate::context::Brand;
use crate::runtime::Result;
use crate::sys::{
    CodegenFlags, CorIlMap, CorPrfAssemblyReferenceInfo, Hresult,
    ICorProfilerAssemblyReferenceProvider, ICorProfilerFunctionControl,
};

macro_rules! lent {
    ($($(#[$doc:meta])* $name:ident: $interface:ident;)*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<'rt> {
            pointer: NonNull<$interface>,
            brand: Brand<'rt>,
        }
        impl $name<'_> {
            /// # Safety
            /// `pointer` is null or the runtime lends the object for the lifetime.
            pub(crate) unsafe fn new(pointer: *mut $interface) -> Result<Self> {
                Ok(Self {
                    pointer: NonNull::new(pointer).ok_or(Hresult::E_POINTER)?,
                    brand: Brand::default(),
                })
            }
        }
    )* };
}

lent! {
    /// Parameters of a ReJIT compilation (`ICorProfilerFunctionControl`).
    FunctionControl: ICorProfilerFunctionControl;
    /// Receives additional references of an assembly (`ICorProfilerAssemblyReferenceProvider`).
    AssemblyReferences: ICorProfilerAssemblyReferenceProvider;
}

impl FunctionControl<'_> {
    /// Sets how the version is compiled (`SetCodegenFlags`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn set_codegen_flags(&self, flags: CodegenFlags) -> Result<()> {
        // SAFETY: the object is lent for the lifetime of `self`.
        unsafe {
            ICorProfilerFunctionControl::set_codegen_flags(self.pointer.as_ptr(), flags.bits())
        }
        .ok()
    }

    /// Sets the new IL, header first (`SetILFunctionBody`). The runtime copies it.
    ///
    /// # Errors
    /// `E_INVALIDARG` for an empty body, otherwise the failure that the runtime reports.
    pub fn set_il_function_body(&self, il: &[u8]) -> Result<()> {
        let length = u32::try_from(il.len()).map_err(|_| Hresult::E_INVALIDARG)?;
        // SAFETY: the object is lent for the lifetime of `self`; the body has the stated length.
        unsafe {
            ICorProfilerFunctionControl::set_il_function_body(
                self.pointer.as_ptr(),
                length,
                il.as_ptr(),
            )
        }
        .ok()
    }
}

impl FunctionControl<'_> {
    /// Sets the map from the new IL to the original, for debuggers and stack traces
    /// (`SetILInstrumentedCodeMap`). The runtime copies the map.
    ///
    /// # Errors
    /// `CORPROF_E_DEBUGGING_DISABLED` when the runtime runs without a debugger interface. The new
    /// IL works without the map.
    pub fn set_il_instrumented_code_map(&self, map: &[CorIlMap]) -> Result<()> {
        let length = u32::try_from(map.len()).map_err(|_| Hresult::E_INVALIDARG)?;
        // SAFETY: the object is lent for the lifetime of `self`; the map has the stated length.
        unsafe {
            ICorProfilerFunctionControl::set_il_instrumented_code_map(
                self.pointer.as_ptr(),
                length,
                map.as_ptr(),
            )
        }
        .ok()
    }
}

impl AssemblyReferences<'_> {
    /// Adds a reference (`AddAssemblyReference`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    ///
    /// # Safety
    /// The pointers in `reference` are null or point to values of the types that the structure
    /// declares.
    pub unsafe fn add_assembly_reference(
        &self,
        reference: &CorPrfAssemblyReferenceInfo,
    ) -> Result<()> {
        // SAFETY: the object is lent for the lifetime of `self`; the caller guarantees the rest.
        unsafe {
            ICorProfilerAssemblyReferenceProvider::add_assembly_reference(
                self.pointer.as_ptr(),
                reference,
            )
        }
        .ok()
    }
}
