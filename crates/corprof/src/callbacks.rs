//! The trait that a profiler implements; every method has a default.
//!
//! It is the safe face of `ICorProfilerCallback` 1 to 11: the names are the runtime's in snake
//! case, pointers are slices, each method gets the proof of the context that the runtime calls it
//! in. The invariant: no method is called before `initialize` or `initialize_for_attach`, except
//! `load_as_notification_only`.
#![expect(unused_variables, reason = "the defaults ignore their arguments")]

use crate::context::{Attach, Callback, Cooperative, Cx, Detached, NoTrigger, Startup};
use crate::id::{
    AppDomainId, AssemblyId, ClassId, EventPipeProviderId, FunctionId, GcHandleId, ModuleId,
    ObjectId, RejitId, ThreadId, Token,
};
use crate::objects::{AssemblyReferences, FunctionControl};
use crate::runtime::Result;
use crate::sys::{
    CorPrfGcReason, CorPrfGcRootFlags, CorPrfGcRootKind, CorPrfJitCache, CorPrfSuspendReason,
    CorPrfTransitionReason, Guid, Hresult,
};

/// Arguments of `RootReferences2`; all slices have the same length.
#[derive(Clone, Copy, Debug)]
pub struct RootReferences<'a> {
    /// Addresses of the objects that the roots refer to; 0 for a root that refers to none.
    pub objects: &'a [usize],
    /// Kinds of the roots.
    pub kinds: &'a [CorPrfGcRootKind],
    /// Their properties.
    pub flags: &'a [CorPrfGcRootFlags],
    /// Owners: a function for a stack root, a handle for a handle.
    pub ids: &'a [usize],
}

/// Arguments of `EventPipeEventDelivered`.
#[derive(Clone, Copy, Debug)]
pub struct EventPipeEvent<'a, 'rt> {
    /// The provider that raised it.
    pub provider: EventPipeProviderId<'rt>,
    /// Its number in the provider.
    pub id: u32,
    /// Version of its data.
    pub version: u32,
    /// Description of its parameters.
    pub metadata: &'a [u8],
    /// Its data.
    pub data: &'a [u8],
    /// The activity it belongs to.
    pub activity: Option<Guid>,
    /// The activity that began that one.
    pub related_activity: Option<Guid>,
    /// The managed thread that raised it.
    pub thread: Option<ThreadId<'rt>>,
    /// Return addresses, leaf first.
    pub stack: &'a [usize],
}

/// A profiler. One object for each CLR of the process, called on any thread and on several at once.
///
/// The result is what the callback answers; a panic is caught, counted
/// ([`crate::Runtime::panics`]) and answered with `E_FAIL`. The runtime looks at the answers of
/// `initialize`, `initialize_for_attach`, `object_references` and the methods that return a value;
/// it ignores the others.
pub trait Callbacks: Send + Sync + 'static {
    /// `LoadAsNotificationOnly`: whether to come as one of several profilers, without the right to
    /// hooks and IL rewriting (.NET 6 on). Called before `initialize`, when the runtime cannot be
    /// asked anything yet.
    ///
    /// # Errors
    /// Taken as no.
    fn load_as_notification_only(&self) -> Result<bool> {
        Ok(false)
    }

    /// `Initialize`: the runtime starts with the profiler. Keep [`crate::Info::runtime`], set the
    /// event masks, set hooks. An error unloads the profiler;
    /// `CORPROF_E_PROFILER_CANCEL_ACTIVATION` does so quietly. The runtime has not started: it has
    /// no threads, no modules and no code yet.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> Result<()> {
        Ok(())
    }

    /// `Shutdown`: the runtime ends. Other threads may still be in callbacks; not called after a
    /// crash or `_exit`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn shutdown<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `AppDomainCreationStarted`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn app_domain_creation_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        app_domain: AppDomainId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `AppDomainCreationFinished`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn app_domain_creation_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        app_domain: AppDomainId<'rt>,
        status: Hresult,
    ) -> Result<()> {
        Ok(())
    }

    /// `AppDomainShutdownStarted`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn app_domain_shutdown_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        app_domain: AppDomainId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `AppDomainShutdownFinished`.
    /// The id names nothing any more: it may be compared, not asked about.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn app_domain_shutdown_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        app_domain: AppDomainId<'rt>,
        status: Hresult,
    ) -> Result<()> {
        Ok(())
    }

    /// `AssemblyLoadStarted`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn assembly_load_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        assembly: AssemblyId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `AssemblyLoadFinished`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn assembly_load_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        assembly: AssemblyId<'rt>,
        status: Hresult,
    ) -> Result<()> {
        Ok(())
    }

    /// `AssemblyUnloadStarted`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn assembly_unload_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        assembly: AssemblyId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `AssemblyUnloadFinished`.
    /// The id names nothing any more: it may be compared, not asked about.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn assembly_unload_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        assembly: AssemblyId<'rt>,
        status: Hresult,
    ) -> Result<()> {
        Ok(())
    }

    /// `ModuleLoadStarted`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn module_load_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ModuleLoadFinished`.
    /// Not every call works on it before [`Callbacks::module_attached_to_assembly`].
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn module_load_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        status: Hresult,
    ) -> Result<()> {
        Ok(())
    }

    /// `ModuleUnloadStarted`.
    /// Forget its addresses and ids before returning.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn module_unload_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ModuleUnloadFinished`.
    /// The id names nothing any more: it may be compared, not asked about.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn module_unload_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        status: Hresult,
    ) -> Result<()> {
        Ok(())
    }

    /// `ModuleAttachedToAssembly`: from here on the module can be asked about.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn module_attached_to_assembly<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        assembly: AssemblyId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ClassLoadStarted`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn class_load_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        class: ClassId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ClassLoadFinished`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn class_load_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        class: ClassId<'rt>,
        status: Hresult,
    ) -> Result<()> {
        Ok(())
    }

    /// `ClassUnloadStarted`.
    /// Forget its id before returning.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn class_unload_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        class: ClassId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ClassUnloadFinished`.
    /// The id names nothing any more: it may be compared, not asked about.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn class_unload_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        class: ClassId<'rt>,
        status: Hresult,
    ) -> Result<()> {
        Ok(())
    }

    /// `FunctionUnloadStarted`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn function_unload_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `JITCompilationStarted`: once for each tier.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn jit_compilation_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        is_safe_to_block: bool,
    ) -> Result<()> {
        Ok(())
    }

    /// `JITCompilationFinished`: the code is published.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn jit_compilation_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        status: Hresult,
        is_safe_to_block: bool,
    ) -> Result<()> {
        Ok(())
    }

    /// `JITCachedFunctionSearchStarted`: whether precompiled code may be used.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn jit_cached_function_search_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
    ) -> Result<bool> {
        Ok(true)
    }

    /// `JITCachedFunctionSearchFinished`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn jit_cached_function_search_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        result: CorPrfJitCache,
    ) -> Result<()> {
        Ok(())
    }

    /// `JITFunctionPitched`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn jit_function_pitched<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `JITInlining`: whether `callee` may be inlined into `caller`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn jit_inlining<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        caller: FunctionId<'rt>,
        callee: FunctionId<'rt>,
    ) -> Result<bool> {
        Ok(true)
    }

    /// `ThreadCreated`: not always on that thread.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn thread_created<'rt>(&self, cx: &mut Cx<'rt, Callback>, thread: ThreadId<'rt>) -> Result<()> {
        Ok(())
    }

    /// `ThreadDestroyed`: not always on that thread. Do not return while a walk of it goes on.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn thread_destroyed<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        thread: ThreadId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ThreadAssignedToOSThread`: on that thread; `os_thread` is its tid.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn thread_assigned_to_os_thread<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        thread: ThreadId<'rt>,
        os_thread: u32,
    ) -> Result<()> {
        Ok(())
    }

    /// `RemotingClientInvocationStarted`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn remoting_client_invocation_started<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `RemotingClientSendingMessage`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn remoting_client_sending_message<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        cookie: Option<Guid>,
        is_async: bool,
    ) -> Result<()> {
        Ok(())
    }

    /// `RemotingClientReceivingReply`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn remoting_client_receiving_reply<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        cookie: Option<Guid>,
        is_async: bool,
    ) -> Result<()> {
        Ok(())
    }

    /// `RemotingClientInvocationFinished`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn remoting_client_invocation_finished<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `RemotingServerReceivingMessage`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn remoting_server_receiving_message<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        cookie: Option<Guid>,
        is_async: bool,
    ) -> Result<()> {
        Ok(())
    }

    /// `RemotingServerInvocationStarted`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn remoting_server_invocation_started<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `RemotingServerInvocationReturned`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn remoting_server_invocation_returned<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `RemotingServerSendingReply`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn remoting_server_sending_reply<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        cookie: Option<Guid>,
        is_async: bool,
    ) -> Result<()> {
        Ok(())
    }

    /// `UnmanagedToManagedTransition`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn unmanaged_to_managed_transition<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: Option<FunctionId<'rt>>,
        reason: CorPrfTransitionReason,
    ) -> Result<()> {
        Ok(())
    }

    /// `ManagedToUnmanagedTransition`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn managed_to_unmanaged_transition<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: Option<FunctionId<'rt>>,
        reason: CorPrfTransitionReason,
    ) -> Result<()> {
        Ok(())
    }

    /// `RuntimeSuspendStarted`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn runtime_suspend_started<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        reason: CorPrfSuspendReason,
    ) -> Result<()> {
        Ok(())
    }

    /// `RuntimeSuspendFinished`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn runtime_suspend_finished<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>) -> Result<()> {
        Ok(())
    }

    /// `RuntimeSuspendAborted`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn runtime_suspend_aborted<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>) -> Result<()> {
        Ok(())
    }

    /// `RuntimeResumeStarted`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn runtime_resume_started<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>) -> Result<()> {
        Ok(())
    }

    /// `RuntimeResumeFinished`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn runtime_resume_finished<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>) -> Result<()> {
        Ok(())
    }

    /// `RuntimeThreadSuspended`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn runtime_thread_suspended<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        thread: ThreadId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `RuntimeThreadResumed`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn runtime_thread_resumed<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        thread: ThreadId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `MovedReferences`: ranges of objects that a collection moved, lengths in bytes. Runtimes
    /// that have `MovedReferences2` call that one instead.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn moved_references<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        old_starts: &[usize],
        new_starts: &[usize],
        lengths: &[u32],
    ) -> Result<()> {
        Ok(())
    }

    /// `ObjectAllocated`: in cooperative mode, so do not block.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn object_allocated<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        object: ObjectId<'rt>,
        class: ClassId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ObjectsAllocatedByClass`: since the last collection.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn objects_allocated_by_class<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        classes: &[Option<ClassId<'rt>>],
        counts: &[u32],
    ) -> Result<()> {
        Ok(())
    }

    /// `ObjectReferences`: the addresses of an object and of what it refers to, which may not be
    /// looked at before [`Callbacks::garbage_collection_finished`]. An error stops these calls for
    /// this collection.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn object_references<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        object: usize,
        class: Option<ClassId<'rt>>,
        references: &[usize],
    ) -> Result<()> {
        Ok(())
    }

    /// `RootReferences`: addresses of objects, which may not be looked at before
    /// [`Callbacks::garbage_collection_finished`].
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn root_references<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>, roots: &[usize]) -> Result<()> {
        Ok(())
    }

    /// `ExceptionThrown`: on the thread that throws.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_thrown<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        object: ObjectId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ExceptionSearchFunctionEnter`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_search_function_enter<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ExceptionSearchFunctionLeave`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_search_function_leave<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `ExceptionSearchFilterEnter`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_search_filter_enter<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ExceptionSearchFilterLeave`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_search_filter_leave<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `ExceptionSearchCatcherFound`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_search_catcher_found<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ExceptionOSHandlerEnter`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_os_handler_enter<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `ExceptionOSHandlerLeave`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_os_handler_leave<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `ExceptionUnwindFunctionEnter`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_unwind_function_enter<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        function: FunctionId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ExceptionUnwindFunctionLeave`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_unwind_function_leave<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>) -> Result<()> {
        Ok(())
    }

    /// `ExceptionUnwindFinallyEnter`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_unwind_finally_enter<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        function: FunctionId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ExceptionUnwindFinallyLeave`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_unwind_finally_leave<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>) -> Result<()> {
        Ok(())
    }

    /// `ExceptionCatcherEnter`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_catcher_enter<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        function: FunctionId<'rt>,
        object: Option<ObjectId<'rt>>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ExceptionCatcherLeave`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_catcher_leave<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `COMClassicVTableCreated`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn com_classic_vtable_created<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        class: ClassId<'rt>,
        iid: Option<Guid>,
        vtable: usize,
        slots: u32,
    ) -> Result<()> {
        Ok(())
    }

    /// `COMClassicVTableDestroyed`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn com_classic_vtable_destroyed<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        class: ClassId<'rt>,
        iid: Option<Guid>,
        vtable: usize,
    ) -> Result<()> {
        Ok(())
    }

    /// `ExceptionCLRCatcherFound`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_clr_catcher_found<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `ExceptionCLRCatcherExecute`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn exception_clr_catcher_execute<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `ThreadNameChanged`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn thread_name_changed<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        thread: ThreadId<'rt>,
        name: &str,
    ) -> Result<()> {
        Ok(())
    }

    /// `GarbageCollectionStarted`: which generations are collected, by number.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn garbage_collection_started<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        generations: &[bool],
        reason: CorPrfGcReason,
    ) -> Result<()> {
        Ok(())
    }

    /// `SurvivingReferences`: ranges of objects that stayed, lengths in bytes. Runtimes that have
    /// `SurvivingReferences2` call that one instead.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn surviving_references<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        starts: &[usize],
        lengths: &[u32],
    ) -> Result<()> {
        Ok(())
    }

    /// `GarbageCollectionFinished`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn garbage_collection_finished<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>) -> Result<()> {
        Ok(())
    }

    /// `FinalizeableObjectQueued`: in cooperative mode, so do not block.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn finalizeable_object_queued<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        is_critical: bool,
        object: ObjectId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `RootReferences2`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn root_references2<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        roots: RootReferences<'_>,
    ) -> Result<()> {
        Ok(())
    }

    /// `HandleCreated`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn handle_created<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        handle: GcHandleId<'rt>,
        object: Option<ObjectId<'rt>>,
    ) -> Result<()> {
        Ok(())
    }

    /// `HandleDestroyed`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn handle_destroyed<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        handle: GcHandleId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `InitializeForAttach`: the profiler came to a running program. As [`Callbacks::initialize`],
    /// without hooks and immutable flags.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn initialize_for_attach<'rt>(
        &self,
        cx: &mut Cx<'rt, Attach>,
        client_data: &[u8],
    ) -> Result<()> {
        Ok(())
    }

    /// `ProfilerAttachComplete`: callbacks come from now on; catch up on what is there already.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn profiler_attach_complete<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `ProfilerDetachSucceeded`: the last call; nothing of the runtime answers any more.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn profiler_detach_succeeded<'rt>(&self, cx: &mut Cx<'rt, Detached>) -> Result<()> {
        Ok(())
    }

    /// `ReJITCompilationStarted`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn rejit_compilation_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        rejit: RejitId,
        is_safe_to_block: bool,
    ) -> Result<()> {
        Ok(())
    }

    /// `GetReJITParameters`: the time to set the new IL.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn get_rejit_parameters<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        method: Token,
        control: FunctionControl<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ReJITCompilationFinished`: the code is published.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn rejit_compilation_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        rejit: RejitId,
        status: Hresult,
        is_safe_to_block: bool,
    ) -> Result<()> {
        Ok(())
    }

    /// `ReJITError`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn rejit_error<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        method: Token,
        function: Option<FunctionId<'rt>>,
        status: Hresult,
    ) -> Result<()> {
        Ok(())
    }

    /// `MovedReferences2`: ranges of objects that a collection moved, lengths in bytes.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn moved_references2<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        old_starts: &[usize],
        new_starts: &[usize],
        lengths: &[usize],
    ) -> Result<()> {
        Ok(())
    }

    /// `SurvivingReferences2`: ranges of objects that stayed, lengths in bytes.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn surviving_references2<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        starts: &[usize],
        lengths: &[usize],
    ) -> Result<()> {
        Ok(())
    }

    /// `ConditionalWeakTableElementReferences`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn conditional_weak_table_element_references<'rt>(
        &self,
        cx: &mut Cx<'rt, NoTrigger>,
        keys: &[usize],
        values: &[usize],
        handles: &[Option<GcHandleId<'rt>>],
    ) -> Result<()> {
        Ok(())
    }

    /// `GetAssemblyReferences`; CoreCLR never calls it.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn get_assembly_references<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        path: &str,
        provider: AssemblyReferences<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `ModuleInMemorySymbolsUpdated`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn module_in_memory_symbols_updated<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `DynamicMethodJITCompilationStarted`: a function without metadata, and its IL with header.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn dynamic_method_jit_compilation_started<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        is_safe_to_block: bool,
        il: &[u8],
    ) -> Result<()> {
        Ok(())
    }

    /// `DynamicMethodJITCompilationFinished`: the code is published.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn dynamic_method_jit_compilation_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        function: FunctionId<'rt>,
        status: Hresult,
        is_safe_to_block: bool,
    ) -> Result<()> {
        Ok(())
    }

    /// `DynamicMethodUnloaded`: in cooperative mode, so do not block. Forget its addresses and id
    /// before returning.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn dynamic_method_unloaded<'rt>(
        &self,
        cx: &mut Cx<'rt, Cooperative>,
        function: FunctionId<'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `EventPipeEventDelivered`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn event_pipe_event_delivered<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        event: EventPipeEvent<'_, 'rt>,
    ) -> Result<()> {
        Ok(())
    }

    /// `EventPipeProviderCreated`.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn event_pipe_provider_created<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        provider: EventPipeProviderId<'rt>,
    ) -> Result<()> {
        Ok(())
    }
}
