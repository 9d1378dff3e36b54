//! IL of methods: reading it, replacing it before compilation, and ReJIT afterwards.

use core::ptr::NonNull;

use super::{bytes, call, complete};
use crate::context::{Brand, Cx, MayRejit, MayTriggerGc, Synchronous};
use crate::id::{FunctionId, ModuleId, Token};
use crate::runtime::{Info, Result};
use crate::sys::{CorIlMap, CorPrfMethod, Hresult, IMethodMalloc, RejitFlags};

/// Allocates IL bodies for one module (`IMethodMalloc`).
#[derive(Debug)]
pub struct MethodMalloc<'rt> {
    pointer: NonNull<IMethodMalloc>,
    module: ModuleId<'rt>,
    brand: Brand<'rt>,
}

impl Drop for MethodMalloc<'_> {
    fn drop(&mut self) {
        // SAFETY: the runtime returned a reference, which is released here once.
        unsafe {
            let this = self.pointer.as_ptr();
            ((*(*this).vtbl).unknown.release)(this.cast());
        }
    }
}

/// An IL body in the memory of its module, header first.
#[derive(Debug)]
pub struct IlBody<'rt> {
    start: NonNull<u8>,
    length: usize,
    module: ModuleId<'rt>,
}

impl<'rt> MethodMalloc<'rt> {
    /// Allocates a body with this content.
    ///
    /// # Errors
    /// `E_OUTOFMEMORY`, or `E_INVALIDARG` for an empty or huge body.
    pub fn alloc(&self, il: &[u8]) -> Result<IlBody<'rt>> {
        let length = u32::try_from(il.len()).map_err(|_| Hresult::E_INVALIDARG)?;
        if length == 0 {
            return Err(Hresult::E_INVALIDARG);
        }
        // SAFETY: the object is live for as long as `self` is.
        let start = unsafe { IMethodMalloc::alloc(self.pointer.as_ptr(), length) };
        let start = NonNull::new(start.cast::<u8>()).ok_or(Hresult::E_OUTOFMEMORY)?;
        // SAFETY: the runtime allocated that many bytes for the caller to fill in.
        unsafe { start.copy_from_nonoverlapping(NonNull::from(il).cast(), il.len()) };
        Ok(IlBody {
            start,
            length: il.len(),
            module: self.module,
        })
    }
}

impl IlBody<'_> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }
    /// Whether the body has no bytes: always `false`.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl<'rt> Info<'rt> {
    /// A copy of a method's IL, header first (`GetILFunctionBody`). The runtime treats the call as
    /// asynchronous, but it takes the loader's locks, so a synchronous context is required here.
    /// `None` if the runtime does not have the data yet.
    ///
    /// # Errors
    /// `CORPROF_E_FUNCTION_NOT_IL` for a method without IL.
    pub fn get_il_function_body<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        module: ModuleId<'rt>,
        method: Token,
    ) -> Result<Option<Vec<u8>>> {
        let mut start = core::ptr::null();
        let mut length = 0;
        let answer = call!(
            self,
            get_il_function_body(module.raw(), method.0, &mut start, &mut length)
        );
        // SAFETY: the runtime lends the body, which lives as long as its module.
        complete(answer.ok().map(|()| unsafe { bytes(start, length) }))
    }

    /// Address of the body of [`Info::get_il_function_body`].
    ///
    /// # Errors
    /// As [`Info::get_il_function_body`].
    pub fn get_il_function_body_address<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        module: ModuleId<'rt>,
        method: Token,
    ) -> Result<Option<usize>> {
        let mut start: *const u8 = core::ptr::null();
        let mut length = 0;
        let answer = call!(
            self,
            get_il_function_body(module.raw(), method.0, &mut start, &mut length)
        );
        complete(answer.ok().map(|()| start.addr()))
    }

    /// Allocator of a module's IL bodies (`GetILFunctionBodyAllocator`, synchronous, may trigger a
    /// GC). `None` if the runtime does not have the data yet.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_il_function_body_allocator<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) -> Result<Option<MethodMalloc<'rt>>> {
        let mut found = core::ptr::null_mut();
        let answer = call!(
            self,
            get_il_function_body_allocator(module.raw(), &mut found)
        );
        let done = complete(answer.ok())?;
        Ok(done
            .and_then(|()| NonNull::new(found))
            .map(|pointer| MethodMalloc {
                pointer,
                module,
                brand: Brand::default(),
            }))
    }

    /// Replaces the IL of a method that has not been compiled yet (`SetILFunctionBody`,
    /// synchronous, may trigger a GC). The profiler cannot be detached afterwards.
    ///
    /// # Errors
    /// `E_INVALIDARG` for a body of another module; otherwise the failure that the runtime reports.
    pub fn set_il_function_body<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        module: ModuleId<'rt>,
        method: Token,
        body: IlBody<'rt>,
    ) -> Result<()> {
        if body.module != module {
            return Err(Hresult::E_INVALIDARG);
        }
        call!(
            self,
            set_il_function_body(module.raw(), method.0, body.start.as_ptr())
        )
        .ok()
    }

    /// Sets the map from replaced IL to the original, for debuggers (`SetILInstrumentedCodeMap`,
    /// synchronous, may trigger a GC). The runtime copies the map.
    ///
    /// # Errors
    /// `CORPROF_E_DEBUGGING_DISABLED` when the runtime runs without a debugger interface.
    pub fn set_il_instrumented_code_map<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        function: FunctionId<'rt>,
        start_jit: bool,
        map: &[CorIlMap],
    ) -> Result<()> {
        let length = u32::try_from(map.len()).map_err(|_| Hresult::E_INVALIDARG)?;
        call!(
            self,
            set_il_instrumented_code_map(function.raw(), start_jit.into(), length, map.as_ptr())
        )
        .ok()
    }

    /// Requests the recompilation of methods with new IL (`RequestReJIT`, synchronous, may trigger
    /// a GC). One request may have many methods. The runtime calls
    /// [`crate::Callbacks::get_rejit_parameters`] once for each, on the thread that next calls the
    /// method. Calls that are running continue in the old code.
    ///
    /// A request covers all generic instances of a method, including later ones. The method is not
    /// inlined any more, but existing inlined copies are unchanged. A method that cannot be
    /// recompiled is reported by [`crate::Callbacks::rejit_error`], not by the result. A method
    /// without IL, or of a collectible module, is not reported at all.
    ///
    /// The runtime never frees the IL and code of a request, so do not make requests in a loop.
    ///
    /// # Errors
    /// `CORPROF_E_REJIT_NOT_ENABLED` without the event mask's flag; `E_INVALIDARG` for no methods.
    pub fn request_rejit<C: MayRejit>(
        self,
        _: &mut Cx<'rt, C>,
        methods: &[(ModuleId<'rt>, Token)],
    ) -> Result<()> {
        let (modules, tokens, length) = split(methods)?;
        call!(
            self,
            request_rejit(length, modules.as_ptr(), tokens.as_ptr())
        )
        .ok()
    }

    /// As [`Info::request_rejit`], and also recompiles the methods into which these were inlined,
    /// with their original IL (`RequestReJITWithInliners`, synchronous, may trigger a GC).
    ///
    /// Before .NET 7 it crashes the program if such a caller is precompiled and not loaded yet:
    /// check [`Info::inliners_are_safe`].
    ///
    /// # Errors
    /// `E_INVALIDARG` without [`RejitFlags::BLOCK_INLINING`].
    pub fn request_rejit_with_inliners<C: MayRejit>(
        self,
        _: &mut Cx<'rt, C>,
        flags: RejitFlags,
        methods: &[(ModuleId<'rt>, Token)],
    ) -> Result<()> {
        let (modules, tokens, length) = split(methods)?;
        call!(
            self,
            request_rejit_with_inliners(flags.bits(), length, modules.as_ptr(), tokens.as_ptr())
        )
        .ok()
    }

    /// Reverts methods to their original IL and its code, from the next call on (`RequestRevert`,
    /// synchronous, may trigger a GC). Returns one result per method. Callers that were recompiled
    /// for [`Info::request_rejit_with_inliners`] are unchanged.
    ///
    /// # Errors
    /// `CORPROF_E_REJIT_NOT_ENABLED` without the event mask's flag; `E_INVALIDARG` for no methods.
    pub fn request_revert<C: MayRejit>(
        self,
        _: &mut Cx<'rt, C>,
        methods: &[(ModuleId<'rt>, Token)],
    ) -> Result<Vec<Hresult>> {
        let (modules, tokens, length) = split(methods)?;
        let mut status = vec![Hresult::S_OK; methods.len()];
        call!(
            self,
            request_revert(
                length,
                modules.as_ptr(),
                tokens.as_ptr(),
                status.as_mut_ptr()
            )
        )
        .ok()?;
        Ok(status)
    }

    /// Makes metadata that was added to a module usable for its code (`ApplyMetaData`, synchronous,
    /// may trigger a GC). `None` if the runtime does not have the data yet.
    ///
    /// Tokens of signatures, type specifications, and references to types and members are usable
    /// without it. New types, methods and assembly references need it. On .NET 11.0.0 precompiled
    /// code of the module fails afterwards (`BadImageFormatException`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn apply_meta_data<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) -> Result<Option<()>> {
        complete(call!(self, apply_meta_data(module.raw())).ok())
    }

    /// The methods of a module's precompiled code into which a method was inlined
    /// (`EnumNgenModuleMethodsInliningThisMethod`, synchronous, may trigger a GC), and whether the
    /// list is complete. Not available to an attached profiler. `None` if the runtime does not have
    /// the data yet.
    ///
    /// # Errors
    /// `CORPROF_E_UNSUPPORTED_FOR_ATTACHING_PROFILER`; otherwise the failure that the runtime
    /// reports.
    pub fn enum_ngen_module_methods_inlining_this_method<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        inliners: ModuleId<'rt>,
        inlinee: ModuleId<'rt>,
        method: Token,
    ) -> Result<Option<(Vec<CorPrfMethod>, bool)>> {
        let mut enumerator = core::ptr::null_mut();
        let mut incomplete = 0;
        let answer = call!(
            self,
            enum_ngen_module_methods_inlining_this_method(
                inliners.raw(),
                inlinee.raw(),
                method.0,
                &mut incomplete,
                &mut enumerator,
            )
        );
        if complete(answer.ok())?.is_none() {
            return Ok(None);
        }
        // SAFETY: the runtime returned an enumerator and a reference to it.
        let methods = unsafe { super::enumerate::methods(enumerator) }?;
        Ok(Some((methods, incomplete == 0)))
    }
}

fn split(methods: &[(ModuleId<'_>, Token)]) -> Result<(Vec<usize>, Vec<u32>, u32)> {
    let length = u32::try_from(methods.len()).map_err(|_| Hresult::E_INVALIDARG)?;
    let (modules, tokens) = methods
        .iter()
        .map(|(module, token)| (module.raw(), token.0))
        .unzip();
    Ok((modules, tokens, length))
}
