//! Checks the vtable slots and GUIDs against windows-core, an independent COM implementation.
//!
//! Its `#[interface]` macro counts the slots of the interfaces as the IDL declares them.

#![allow(non_snake_case, reason = "the runtime's names")]

use corprof::sys::{ICorProfilerCallback11, ICorProfilerInfo15, Interface as _};
use corprof::{Callbacks, Guid};
use windows_core::Interface as _;

/// Declares the interfaces and lists, for each: name, identifier, methods with their slots.
macro_rules! interfaces {
    ($($iid:literal $name:ident: $base:ident { $($method:ident)* })*) => {
        #[allow(missing_docs, clippy::missing_safety_doc, reason = "an oracle")]
        mod declared {
            use windows_core::*;
            $(
                #[interface($iid)]
                pub unsafe trait $name: $base {
                    $(pub unsafe fn $method(&self) -> HRESULT;)*
                }
            )*
            pub(super) type Row = (&'static str, GUID, Vec<(&'static str, usize)>);
            pub(super) fn rows() -> Vec<Row> {
                vec![$((
                    stringify!($name),
                    $name::IID,
                    vec![$((
                        stringify!($method),
                        // Each vtable begins with that of its base.
                        core::mem::offset_of!(
                            <$name as Interface>::Vtable,
                            $method
                        ) / size_of::<usize>(),
                    ),)*],
                ),)*]
            }
        }
    };
}

interfaces! {
    "176FBED1-A55C-4796-98CA-A9DA0EF883E7" ICorProfilerCallback: IUnknown {
        Initialize Shutdown AppDomainCreationStarted AppDomainCreationFinished
        AppDomainShutdownStarted AppDomainShutdownFinished AssemblyLoadStarted
        AssemblyLoadFinished AssemblyUnloadStarted AssemblyUnloadFinished ModuleLoadStarted
        ModuleLoadFinished ModuleUnloadStarted ModuleUnloadFinished ModuleAttachedToAssembly
        ClassLoadStarted ClassLoadFinished ClassUnloadStarted ClassUnloadFinished
        FunctionUnloadStarted JITCompilationStarted JITCompilationFinished
        JITCachedFunctionSearchStarted JITCachedFunctionSearchFinished JITFunctionPitched
        JITInlining ThreadCreated ThreadDestroyed ThreadAssignedToOSThread
        RemotingClientInvocationStarted RemotingClientSendingMessage RemotingClientReceivingReply
        RemotingClientInvocationFinished RemotingServerReceivingMessage
        RemotingServerInvocationStarted RemotingServerInvocationReturned
        RemotingServerSendingReply UnmanagedToManagedTransition ManagedToUnmanagedTransition
        RuntimeSuspendStarted RuntimeSuspendFinished RuntimeSuspendAborted RuntimeResumeStarted
        RuntimeResumeFinished RuntimeThreadSuspended RuntimeThreadResumed MovedReferences
        ObjectAllocated ObjectsAllocatedByClass ObjectReferences RootReferences ExceptionThrown
        ExceptionSearchFunctionEnter ExceptionSearchFunctionLeave ExceptionSearchFilterEnter
        ExceptionSearchFilterLeave ExceptionSearchCatcherFound ExceptionOSHandlerEnter
        ExceptionOSHandlerLeave ExceptionUnwindFunctionEnter ExceptionUnwindFunctionLeave
        ExceptionUnwindFinallyEnter ExceptionUnwindFinallyLeave ExceptionCatcherEnter
        ExceptionCatcherLeave COMClassicVTableCreated COMClassicVTableDestroyed
        ExceptionCLRCatcherFound ExceptionCLRCatcherExecute
    }
    "8A8CC829-CCF2-49FE-BBAE-0F022228071A" ICorProfilerCallback2: ICorProfilerCallback {
        ThreadNameChanged GarbageCollectionStarted SurvivingReferences GarbageCollectionFinished
        FinalizeableObjectQueued RootReferences2 HandleCreated HandleDestroyed
    }
    "4FD2ED52-7731-4B8D-9469-03D2CC3086C5" ICorProfilerCallback3: ICorProfilerCallback2 {
        InitializeForAttach ProfilerAttachComplete ProfilerDetachSucceeded
    }
    "7B63B2E3-107D-4D48-B2F6-F61E229470D2" ICorProfilerCallback4: ICorProfilerCallback3 {
        ReJITCompilationStarted GetReJITParameters ReJITCompilationFinished ReJITError
        MovedReferences2 SurvivingReferences2
    }
    "8DFBA405-8C9F-45F8-BFFA-83B14CEF78B5" ICorProfilerCallback5: ICorProfilerCallback4 {
        ConditionalWeakTableElementReferences
    }
    "FC13DF4B-4448-4F4F-950C-BA8D19D00C36" ICorProfilerCallback6: ICorProfilerCallback5 {
        GetAssemblyReferences
    }
    "F76A2DBA-1D52-4539-866C-2AA518F9EFC3" ICorProfilerCallback7: ICorProfilerCallback6 {
        ModuleInMemorySymbolsUpdated
    }
    "5BED9B15-C079-4D47-BFE2-215A140C07E0" ICorProfilerCallback8: ICorProfilerCallback7 {
        DynamicMethodJITCompilationStarted DynamicMethodJITCompilationFinished
    }
    "27583EC3-C8F5-482F-8052-194B8CE4705A" ICorProfilerCallback9: ICorProfilerCallback8 {
        DynamicMethodUnloaded
    }
    "CEC5B60E-C69C-495F-87F6-84D28EE16FFB" ICorProfilerCallback10: ICorProfilerCallback9 {
        EventPipeEventDelivered EventPipeProviderCreated
    }
    "42350846-AAED-47F7-B128-FD0C98881CDE" ICorProfilerCallback11: ICorProfilerCallback10 {
        LoadAsNotificationOnly
    }
    "28B5557D-3F3F-48B4-90B2-5F9EEA2F6C48" ICorProfilerInfo: IUnknown {
        GetClassFromObject GetClassFromToken GetCodeInfo GetEventMask GetFunctionFromIP
        GetFunctionFromToken GetHandleFromThread GetObjectSize IsArrayClass GetThreadInfo
        GetCurrentThreadID GetClassIDInfo GetFunctionInfo SetEventMask SetEnterLeaveFunctionHooks
        SetFunctionIDMapper GetTokenAndMetaDataFromFunction GetModuleInfo GetModuleMetaData
        GetILFunctionBody GetILFunctionBodyAllocator SetILFunctionBody GetAppDomainInfo
        GetAssemblyInfo SetFunctionReJIT ForceGC SetILInstrumentedCodeMap
        GetInprocInspectionInterface GetInprocInspectionIThisThread GetThreadContext
        BeginInprocDebugging EndInprocDebugging GetILToNativeMapping
    }
    "CC0935CD-A518-487D-B0BB-A93214E65478" ICorProfilerInfo2: ICorProfilerInfo {
        DoStackSnapshot SetEnterLeaveFunctionHooks2 GetFunctionInfo2 GetStringLayout
        GetClassLayout GetClassIDInfo2 GetCodeInfo2 GetClassFromTokenAndTypeArgs
        GetFunctionFromTokenAndTypeArgs EnumModuleFrozenObjects GetArrayObjectInfo
        GetBoxClassLayout GetThreadAppDomain GetRVAStaticAddress GetAppDomainStaticAddress
        GetThreadStaticAddress GetContextStaticAddress GetStaticFieldInfo GetGenerationBounds
        GetObjectGeneration GetNotifiedExceptionClauseInfo
    }
    "B555ED4F-452A-4E54-8B39-B5360BAD32A0" ICorProfilerInfo3: ICorProfilerInfo2 {
        EnumJITedFunctions RequestProfilerDetach SetFunctionIDMapper2 GetStringLayout2
        SetEnterLeaveFunctionHooks3 SetEnterLeaveFunctionHooks3WithInfo GetFunctionEnter3Info
        GetFunctionLeave3Info GetFunctionTailcall3Info EnumModules GetRuntimeInformation
        GetThreadStaticAddress2 GetAppDomainsContainingModule GetModuleInfo2
    }
    "0D8FDCAA-6257-47BF-B1BF-94DAC88466EE" ICorProfilerInfo4: ICorProfilerInfo3 {
        EnumThreads InitializeCurrentThread RequestReJIT RequestRevert GetCodeInfo3
        GetFunctionFromIP2 GetReJITIDs GetILToNativeMapping2 EnumJITedFunctions2 GetObjectSize2
    }
    "07602928-CE38-4B83-81E7-74ADAF781214" ICorProfilerInfo5: ICorProfilerInfo4 {
        GetEventMask2 SetEventMask2
    }
    "F30A070D-BFFB-46A7-B1D8-8781EF7B698A" ICorProfilerInfo6: ICorProfilerInfo5 {
        EnumNgenModuleMethodsInliningThisMethod
    }
    "9AEECC0D-63E0-4187-8C00-E312F503F663" ICorProfilerInfo7: ICorProfilerInfo6 {
        ApplyMetaData GetInMemorySymbolsLength ReadInMemorySymbols
    }
    "C5AC80A6-782E-4716-8044-39598C60CFBF" ICorProfilerInfo8: ICorProfilerInfo7 {
        IsFunctionDynamic GetFunctionFromIP3 GetDynamicFunctionInfo
    }
    "008170DB-F8CC-4796-9A51-DC8AA0B47012" ICorProfilerInfo9: ICorProfilerInfo8 {
        GetNativeCodeStartAddresses GetILToNativeMapping3 GetCodeInfo4
    }
    "2F1B5152-C869-40C9-AA5F-3ABE026BD720" ICorProfilerInfo10: ICorProfilerInfo9 {
        EnumerateObjectReferences IsFrozenObject GetLOHObjectSizeThreshold
        RequestReJITWithInliners SuspendRuntime ResumeRuntime
    }
    "06398876-8987-4154-B621-40A00D6E4D04" ICorProfilerInfo11: ICorProfilerInfo10 {
        GetEnvironmentVariable SetEnvironmentVariable
    }
    "27B24CCD-1CB1-47C5-96EE-98190DC30959" ICorProfilerInfo12: ICorProfilerInfo11 {
        EventPipeStartSession EventPipeAddProviderToSession EventPipeStopSession
        EventPipeCreateProvider EventPipeGetProviderInfo EventPipeDefineEvent EventPipeWriteEvent
    }
    "6E6C7EE2-0701-4EC2-9D29-2E8733B66934" ICorProfilerInfo13: ICorProfilerInfo12 {
        CreateHandle DestroyHandle GetObjectIDFromHandle
    }
    "F460E352-D76D-4FE9-835F-F6AF9D6E862D" ICorProfilerInfo14: ICorProfilerInfo13 {
        EnumerateNonGCObjects GetNonGCHeapBounds EventPipeCreateProvider2
    }
    "B446462D-BD22-41DD-872D-DC714C49EB56" ICorProfilerInfo15: ICorProfilerInfo14 {
        EnumerateGCHeapObjects
    }
}

fn guid(guid: windows_core::GUID) -> Guid {
    Guid {
        data1: guid.data1,
        data2: guid.data2,
        data3: guid.data3,
        data4: guid.data4,
    }
}

#[test]
fn every_slot_is_where_windows_core_has_it() {
    let versions: Vec<_> = ICorProfilerCallback11::VERSIONS
        .iter()
        .chain(ICorProfilerInfo15::VERSIONS)
        .collect();
    let rows = declared::rows();
    assert_eq!(versions.len(), rows.len());
    let mut methods = ICorProfilerCallback11::METHODS
        .iter()
        .chain(ICorProfilerInfo15::METHODS);
    for (version, (name, iid, slots)) in versions.iter().zip(rows) {
        assert_eq!((version.name, version.iid), (name, guid(iid)));
        for (method, slot) in slots {
            let ours = methods.next().unwrap();
            assert_eq!((ours.interface, ours.name, ours.slot), (name, method, slot));
        }
    }
    assert!(methods.next().is_none());
    assert_eq!(ICorProfilerCallback11::SLOTS, 98);
    assert_eq!(ICorProfilerInfo15::SLOTS, 115);
}

struct Nothing;
impl Callbacks for Nothing {}

#[test]
fn the_profilers_object_answers_to_windows_core() {
    let object = corprof::callback_object(Box::new(Nothing));
    // SAFETY: a live COM object with one reference to pass on, which implements every callback
    // version.
    let newest = unsafe { declared::ICorProfilerCallback11::from_raw(object.cast()) };
    let first: declared::ICorProfilerCallback = newest.cast().unwrap();
    let third: declared::ICorProfilerCallback3 = newest.cast().unwrap();
    assert!(newest.cast::<declared::ICorProfilerInfo>().is_err());
    // SAFETY: methods without arguments, of the first and of a later version.
    unsafe {
        assert_eq!(first.Shutdown().0, 0);
        assert_eq!(first.ExceptionCLRCatcherExecute().0, 0);
        assert_eq!(third.ProfilerAttachComplete().0, 0);
    }
}
