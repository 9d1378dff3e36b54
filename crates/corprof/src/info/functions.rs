//! Functions: their metadata, and the function at a code address.

use super::{call, complete, read_list, read_text};
use crate::context::{Context, Cx, MayTriggerGc, RuntimeThread, Synchronous};
use crate::id::{ClassId, FunctionId, Id, ModuleId, RejitId, Token};
use crate::metadata::MetadataImport;
use crate::runtime::{Info, Result};
use crate::sys::{
    CorPrfClauseType, CorPrfExClauseInfo, CorPrfFrameInfo, Hresult, IMetaDataImport2, Interface,
};

/// Result of `GetFunctionInfo2`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionInfo<'rt> {
    /// Class; `None` for code that several classes share, where only a frame determines it.
    pub class: Option<ClassId<'rt>>,
    /// Module.
    pub module: Option<ModuleId<'rt>>,
    /// Metadata token.
    pub token: Token,
    /// Type arguments of the method itself (not of its class); shared code has `System.__Canon`.
    pub type_args: Vec<Option<ClassId<'rt>>>,
}

/// Result of `GetDynamicFunctionInfo`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DynamicFunctionInfo<'rt> {
    /// Module in which the function was created.
    pub module: Option<ModuleId<'rt>>,
    /// Signature blob.
    pub signature: Vec<u8>,
    /// Name; `IL_STUB…` for stubs of the runtime.
    pub name: String,
}

impl<'rt> Info<'rt> {
    /// The function whose code is at `ip` (`GetFunctionFromIP`, asynchronous).
    ///
    /// On a thread without a `Thread` object of the runtime the call takes no lock, so it must not
    /// race with the unloading of that code. Dynamic methods and stubs are not found.
    ///
    /// For an address in ReadyToRun code, the method must have run. The runtime searches backwards
    /// through the image for a method that has run; if there is none, it reads before its table and
    /// crashes (3.1 to 10: `ReadyToRunJitManager::JitCodeToMethodInfo`). So pass only addresses of
    /// interrupted instructions and return addresses.
    ///
    /// # Errors
    /// `E_FAIL` if `ip` is not in managed code, `CORPROF_E_ASYNCHRONOUS_UNSAFE` if the thread was
    /// interrupted while it held the lock, `CORPROF_E_NOT_YET_AVAILABLE` in `Initialize`.
    pub fn get_function_from_ip<C: Context>(
        self,
        _: &Cx<'rt, C>,
        ip: usize,
    ) -> Result<FunctionId<'rt>> {
        let mut function = 0;
        call!(self, get_function_from_ip(ip as *const u8, &mut function)).ok()?;
        Id::new(function).ok_or(Hresult::E_FAIL)
    }

    /// As [`Info::get_function_from_ip`], for the same addresses, but includes dynamic methods and
    /// returns the version of the IL (`GetFunctionFromIP3`; asynchronous in .NET 10, before that
    /// synchronous and may trigger a GC).
    ///
    /// # Errors
    /// `E_FAIL` if `ip` is not in managed code.
    pub fn get_function_from_ip3<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        ip: usize,
    ) -> Result<(FunctionId<'rt>, RejitId)> {
        let (mut function, mut rejit) = (0, 0);
        call!(
            self,
            get_function_from_ip3(ip as *const u8, &mut function, &mut rejit)
        )
        .ok()?;
        Ok((Id::new(function).ok_or(Hresult::E_FAIL)?, RejitId(rejit)))
    }

    /// Class, module, token and type arguments of a function (`GetFunctionInfo2`, asynchronous).
    /// `None` if the runtime does not have the data yet.
    ///
    /// # Errors
    /// `E_INVALIDARG` for a dynamic method.
    pub fn get_function_info2<C: Context>(
        self,
        cx: &Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) -> Result<Option<FunctionInfo<'rt>>> {
        self.function_info2(cx, function, 0)
    }

    fn function_info2<C: Context>(
        self,
        _: &Cx<'rt, C>,
        function: FunctionId<'rt>,
        frame: CorPrfFrameInfo,
    ) -> Result<Option<FunctionInfo<'rt>>> {
        let (mut class, mut module, mut token) = (0, 0, 0);
        let type_args = read_list::<_, 4>(0, |buffer, capacity, length| {
            Ok(call!(
                self,
                get_function_info2(
                    function.raw(),
                    frame,
                    &mut class,
                    &mut module,
                    &mut token,
                    capacity,
                    length,
                    buffer,
                )
            ))
        });
        complete(type_args.map(|type_args| FunctionInfo {
            class: Id::new(class),
            module: Id::new(module),
            token: Token(token),
            type_args: type_args.into_iter().map(Id::new).collect(),
        }))
    }

    /// Whether the function has no metadata: a DynamicMethod or a stub of the runtime
    /// (`IsFunctionDynamic`, asynchronous).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn is_function_dynamic<C: Context>(
        self,
        _: &Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) -> Result<bool> {
        let mut dynamic = 0;
        call!(self, is_function_dynamic(function.raw(), &mut dynamic)).ok()?;
        Ok(dynamic != 0)
    }

    /// Module, signature and name of a function without metadata (`GetDynamicFunctionInfo`,
    /// asynchronous).
    ///
    /// # Errors
    /// `E_INVALIDARG` for a function that has metadata.
    pub fn get_dynamic_function_info<C: Context>(
        self,
        _: &Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) -> Result<DynamicFunctionInfo<'rt>> {
        let mut module = 0;
        let mut signature = core::ptr::null();
        let mut signature_length = 0;
        let name = read_text(|buffer, capacity, length| {
            Ok(call!(
                self,
                get_dynamic_function_info(
                    function.raw(),
                    &mut module,
                    &mut signature,
                    &mut signature_length,
                    capacity,
                    length,
                    buffer,
                )
            ))
        })?;
        // SAFETY: the runtime lends the signature, which lives as long as the function, and the
        // function outlives the call that `cx` stands for.
        let signature = unsafe { super::bytes(signature, signature_length) };
        Ok(DynamicFunctionInfo {
            module: Id::new(module),
            signature,
            name,
        })
    }

    /// Every function with JIT-compiled code, with its version (`EnumJITedFunctions2`, synchronous,
    /// may trigger a GC).
    ///
    /// Functions that run from ReadyToRun code are not included.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enum_jited_functions2<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
    ) -> Result<Vec<(FunctionId<'rt>, RejitId)>> {
        let mut enumerator = core::ptr::null_mut();
        call!(self, enum_jited_functions2(&mut enumerator)).ok()?;
        // SAFETY: the runtime returned an enumerator and a reference to it.
        let found = unsafe { super::enumerate::functions(enumerator) }?;
        Ok(found
            .into_iter()
            .filter_map(|found| Some((Id::new(found.function_id)?, RejitId(found.rejit_id))))
            .collect())
    }

    /// The versions of a function's IL (`GetReJITIDs`, synchronous, may trigger a GC).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_rejit_ids<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) -> Result<Vec<RejitId>> {
        let ids = read_list::<_, 8>(0, |buffer, capacity, length| {
            Ok(call!(
                self,
                get_rejit_ids(function.raw(), capacity, length, buffer)
            ))
        })?;
        Ok(ids.into_iter().map(RejitId).collect())
    }

    /// The function of a method without type parameters (`GetFunctionFromToken`, synchronous).
    /// `None` if its class is not loaded.
    ///
    /// # Errors
    /// `CORPROF_E_FUNCTION_IS_PARAMETERIZED` if the method has type parameters.
    pub fn get_function_from_token<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        module: ModuleId<'rt>,
        token: Token,
    ) -> Result<Option<FunctionId<'rt>>> {
        let mut function = 0;
        let answer = call!(
            self,
            get_function_from_token(module.raw(), token.0, &mut function)
        );
        Ok(complete(answer.ok())?.and_then(|()| Id::new(function)))
    }

    /// The function of a method with these type arguments, in a class
    /// (`GetFunctionFromTokenAndTypeArgs`, synchronous, may trigger a GC). `None` if the runtime
    /// does not have the data yet.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_function_from_token_and_type_args<C: RuntimeThread>(
        self,
        _: &mut Cx<'rt, C>,
        module: ModuleId<'rt>,
        method: Token,
        class: ClassId<'rt>,
        type_args: &[ClassId<'rt>],
    ) -> Result<Option<FunctionId<'rt>>> {
        let raw: Vec<usize> = type_args.iter().map(|class| class.raw()).collect();
        let length = u32::try_from(raw.len()).map_err(|_| Hresult::E_INVALIDARG)?;
        let mut function = 0;
        let answer = call!(
            self,
            get_function_from_token_and_type_args(
                module.raw(),
                method.0,
                class.raw(),
                length,
                raw.as_ptr(),
                &mut function,
            )
        );
        Ok(complete(answer.ok())?.and_then(|()| Id::new(function)))
    }

    /// As [`Info::get_function_from_ip`], with the version of the IL (`GetFunctionFromIP2`,
    /// synchronous; may trigger a GC before .NET 9).
    ///
    /// # Errors
    /// `E_FAIL` if `ip` is not in managed code.
    pub fn get_function_from_ip2<C: MayTriggerGc>(
        self,
        _: &mut Cx<'rt, C>,
        ip: usize,
    ) -> Result<(FunctionId<'rt>, RejitId)> {
        let (mut function, mut rejit) = (0, 0);
        call!(
            self,
            get_function_from_ip2(ip as *const u8, &mut function, &mut rejit)
        )
        .ok()?;
        Ok((Id::new(function).ok_or(Hresult::E_FAIL)?, RejitId(rejit)))
    }

    /// Class, module and token of a function (`GetFunctionInfo`, asynchronous). The type arguments
    /// stay empty: prefer [`Info::get_function_info2`]. `None` if the runtime does not have the
    /// data yet.
    ///
    /// # Errors
    /// `E_INVALIDARG` for a dynamic method.
    pub fn get_function_info<C: Context>(
        self,
        _: &Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) -> Result<Option<FunctionInfo<'rt>>> {
        let (mut class, mut module, mut token) = (0, 0, 0);
        complete(
            call!(
                self,
                get_function_info(function.raw(), &mut class, &mut module, &mut token)
            )
            .ok()
            .map(|()| FunctionInfo {
                class: Id::new(class),
                module: Id::new(module),
                token: Token(token),
                type_args: Vec::new(),
            }),
        )
    }

    /// As [`Info::get_function_info2`], for a frame that is on the stack now. The frame may
    /// determine the exact type arguments of shared code.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_function_info2_of_frame<C: Context>(
        self,
        cx: &Cx<'rt, C>,
        function: FunctionId<'rt>,
        frame: crate::FrameInfo<'_, 'rt>,
    ) -> Result<Option<FunctionInfo<'rt>>> {
        self.function_info2(cx, function, frame.raw())
    }

    /// Metadata and token of a function (`GetTokenAndMetaDataFromFunction`, synchronous). `None` if
    /// the runtime does not have the data yet.
    ///
    /// # Errors
    /// `E_INVALIDARG` for a dynamic method.
    pub fn get_token_and_meta_data_from_function<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        function: FunctionId<'rt>,
    ) -> Result<Option<(MetadataImport<'rt>, Token)>> {
        let mut found = core::ptr::null_mut();
        let mut token = 0;
        let answer = call!(
            self,
            get_token_and_meta_data_from_function(
                function.raw(),
                &IMetaDataImport2::IID,
                &mut found,
                &mut token,
            )
        );
        // SAFETY: on success the runtime returned a reference to the requested interface.
        let import = complete(answer.ok())?.and_then(|()| unsafe { MetadataImport::new(found) });
        Ok(import.map(|import| (import, Token(token))))
    }

    /// Every function with JIT-compiled code (`EnumJITedFunctions`, synchronous). Prefer
    /// [`Info::enum_jited_functions2`], which includes the ReJIT versions.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enum_jited_functions<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
    ) -> Result<Vec<FunctionId<'rt>>> {
        let mut enumerator = core::ptr::null_mut();
        call!(self, enum_jited_functions(&mut enumerator)).ok()?;
        // SAFETY: the runtime returned an enumerator and a reference to it.
        let found = unsafe { super::enumerate::functions(enumerator) }?;
        Ok(found
            .into_iter()
            .filter_map(|found| Id::new(found.function_id))
            .collect())
    }

    /// The exception clause that is about to run on this thread (`GetNotifiedExceptionClauseInfo`,
    /// synchronous); `None` if there is none. Not available to an attached profiler.
    ///
    /// # Errors
    /// `CORPROF_E_UNSUPPORTED_FOR_ATTACHING_PROFILER`, `CORPROF_E_NOT_MANAGED_THREAD`.
    pub fn get_notified_exception_clause_info<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
    ) -> Result<Option<CorPrfExClauseInfo>> {
        let mut clause = CorPrfExClauseInfo {
            clause_type: CorPrfClauseType::NONE,
            program_counter: 0,
            frame_pointer: 0,
            shadow_stack_pointer: 0,
        };
        let answer = call!(self, get_notified_exception_clause_info(&mut clause));
        answer.ok()?;
        Ok((answer != Hresult::S_FALSE).then_some(clause))
    }
}
