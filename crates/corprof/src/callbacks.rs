//! The trait that a profiler implements: one method per callback, each with a default.
//!
//! Safe wrapper of `ICorProfilerCallback` 1 to 11. Methods have the runtime's names in snake case.
//! Pointers are slices. Each method gets a [`Cx`], the proof of the context in which the runtime
//! calls it ([`crate::context`]).
//!
//! Invariant: the runtime calls no method before `initialize` or `initialize_for_attach`, except
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
    /// Address of the object to which each root refers; 0 if it refers to none.
    pub objects: &'a [usize],
    /// Kinds of the roots.
    pub kinds: &'a [CorPrfGcRootKind],
    /// Properties of the roots.
    pub flags: &'a [CorPrfGcRootFlags],
    /// Owner of each root: the function for a stack root, the handle for a handle.
    pub ids: &'a [usize],
}

/// Arguments of `EventPipeEventDelivered`.
#[derive(Clone, Copy, Debug)]
pub struct EventPipeEvent<'a, 'rt> {
    /// Provider of the event.
    pub provider: EventPipeProviderId<'rt>,
    /// Number of the event in its provider.
    pub id: u32,
    /// Version of the event's data.
    pub version: u32,
    /// Metadata blob that describes the parameters.
    pub metadata: &'a [u8],
    /// The event's payload.
    pub data: &'a [u8],
    /// Activity to which the event belongs.
    pub activity: Option<Guid>,
    /// Activity that started `activity`.
    pub related_activity: Option<Guid>,
    /// Managed thread that raised the event.
    pub thread: Option<ThreadId<'rt>>,
    /// Return addresses, leaf first.
    pub stack: &'a [usize],
}

/// A profiler: one object for each CLR of the process. The runtime calls it on any thread, and on
/// several threads at once.
///
/// A method's result is returned to the runtime. A panic is caught, counted
/// ([`crate::Runtime::panics`]) and returned as `E_FAIL`. The runtime evaluates the results of
/// `initialize`, `initialize_for_attach`, `object_references` and the methods that return a value.
/// It ignores all others.
pub trait Callbacks: Send + Sync + 'static {
    /// `LoadAsNotificationOnly`: whether to load as a notification profiler, one of several and
    /// without hooks and IL rewriting (.NET 6 on). Called before `initialize`, when no call into
    /// the runtime is possible yet.
    ///
    /// # Errors
    /// The runtime takes an error for `false`.
    fn load_as_notification_only(&self) -> Result<bool> {
        Ok(false)
    }

    /// `Initialize`: the runtime starts with the profiler. Store [`crate::Info::runtime`], set the
    /// event masks and the hooks here. An error unloads the profiler;
    /// `CORPROF_E_PROFILER_CANCEL_ACTIVATION` does so without an error message. The runtime has no
    /// threads, modules or code yet.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> Result<()> {
        Ok(())
    }

    /// `Shutdown`: the runtime shuts down. Other threads may still be in callbacks. Not called
    /// after a crash or `_exit`.
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

    /// `AppDomainShutdownFinished`: the id is now invalid; compare it, but pass it to no call.
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

    /// `AssemblyUnloadFinished`: the id is now invalid; compare it, but pass it to no call.
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

    /// `ModuleLoadFinished`. Some calls fail for the module before
    /// [`Callbacks::module_attached_to_assembly`].
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

    /// `ModuleUnloadStarted`. Drop all addresses and ids of the module before returning.
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

    /// `ModuleUnloadFinished`: the id is now invalid; compare it, but pass it to no call.
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

    /// `ModuleAttachedToAssembly`: from here on all calls work for the module.
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

    /// `ClassUnloadStarted`. Drop the class's id before returning.
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

    /// `ClassUnloadFinished`: the id is now invalid; compare it, but pass it to no call.
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

    /// `JITCompilationStarted`: called once for each tier.
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

    /// `ThreadCreated`: not always called on the new thread.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn thread_created<'rt>(&self, cx: &mut Cx<'rt, Callback>, thread: ThreadId<'rt>) -> Result<()> {
        Ok(())
    }

    /// `ThreadDestroyed`: not always called on the ending thread. Do not return while that thread
    /// is being walked ([`crate::ThreadPins`]).
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

    /// `ThreadAssignedToOSThread`: called on the thread itself; `os_thread` is its tid.
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
    /// that have `MovedReferences2` call only that.
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

    /// `ObjectAllocated`: called in cooperative mode, so it must not block.
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

    /// `ObjectsAllocatedByClass`: number of objects allocated since the last collection, by class.
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

    /// `ObjectReferences`: address of an object and of the objects to which it refers. Do not read
    /// the objects before [`Callbacks::garbage_collection_finished`]. An error stops these
    /// callbacks for this collection.
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

    /// `RootReferences`: addresses of objects. Do not read the objects before
    /// [`Callbacks::garbage_collection_finished`].
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn root_references<'rt>(&self, cx: &mut Cx<'rt, NoTrigger>, roots: &[usize]) -> Result<()> {
        Ok(())
    }

    /// `ExceptionThrown`: called on the thread that throws.
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

    /// `GarbageCollectionStarted`: whether each generation is collected, by generation number.
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

    /// `SurvivingReferences`: ranges of objects that survived without moving, lengths in bytes.
    /// Runtimes that have `SurvivingReferences2` call only that.
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

    /// `FinalizeableObjectQueued`: called in cooperative mode, so it must not block.
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

    /// `InitializeForAttach`: the profiler was attached to a running program. As
    /// [`Callbacks::initialize`], but without hooks and immutable flags.
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

    /// `ProfilerAttachComplete`: callbacks arrive from now on. Enumerate existing modules, code and
    /// threads here.
    ///
    /// # Errors
    /// The failure to report to the runtime.
    fn profiler_attach_complete<'rt>(&self, cx: &mut Cx<'rt, Callback>) -> Result<()> {
        Ok(())
    }

    /// `ProfilerDetachSucceeded`: the last callback. No call into the runtime is possible any more.
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

    /// `GetReJITParameters`: set the new IL here.
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

    /// `SurvivingReferences2`: ranges of objects that survived without moving, lengths in bytes.
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

    /// `DynamicMethodJITCompilationStarted`: a function without metadata, and its IL, header first.
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

    /// `DynamicMethodUnloaded`: called in cooperative mode, so it must not block. Drop the method's
    /// addresses and id before returning.
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
