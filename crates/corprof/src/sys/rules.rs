//! The call rules of `ICorProfilerInfo`: one row for each method.
//!
//! A call rule states from which callbacks and threads a method may be called. The typed layer is
//! the safe API of this crate. Tests compare its trait bounds with this table. The checks of the
//! test double (`fake-clr`) and `docs/call-contexts.md` are made from the table.
//!
//! Invariant: row *n* is the method at slot *n* + 3. The typed layer's bound is at least as strict
//! as the checks of every supported runtime.
//!
//! Source: the `PROFILER_TO_CLR_ENTRYPOINT_*` macro at the head of each method of
//! `vm/proftoeeinterfaceimpl.cpp`, extracted by script from the sources of 3.1 (November 2019) and
//! 5.0 (June 2020). The checks of 10 are those of its main branch. Where 5.0 and 10 differ, the 8.0
//! source was read. Tests check the 3.1 and 8.0 columns on 3.1.23 and 8.0.4.

use core::fmt::Write as _;

/// Check that a method's entry macro makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// No such method in this version.
    Absent,
    /// `E_NOTIMPL`, whatever the context.
    NotImplemented,
    /// No check.
    Unchecked,
    /// `…_ASYNC`: refused only while detaching.
    Async,
    /// `…_ASYNC` with `kP2EETriggers`: as `Async`, but the method may trigger a GC.
    AsyncTriggers,
    /// `…_SYNC`: accepted inside a callback, or on a thread without a `Thread` object.
    Sync,
    /// `…_SYNC` with `kP2EETriggers`: accepted inside a callback that has a triggers scope, or on a
    /// thread without a `Thread` object.
    SyncTriggers,
    /// `…_CALLABLE_ON_INIT_ONLY`: accepted in `Initialize` only.
    InitOnly,
}

impl Entry {
    /// Short form for the table in the documentation.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Absent => "–",
            Self::NotImplemented => "E_NOTIMPL",
            Self::Unchecked => "none",
            Self::Async => "async",
            Self::AsyncTriggers => "async, GC",
            Self::Sync => "sync",
            Self::SyncTriggers => "sync, GC",
            Self::InitOnly => "init",
        }
    }

    /// The weakest bound under which every call passes this check.
    pub const fn bound(self) -> Bound {
        match self {
            Self::Absent | Self::NotImplemented | Self::Unchecked | Self::Async => Bound::Context,
            Self::Sync => Bound::Synchronous,
            Self::AsyncTriggers | Self::SyncTriggers => Bound::MayTriggerGc,
            Self::InitOnly => Bound::Startup,
        }
    }
}

/// Bounds on the caller's context in the typed layer, weakest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Bound {
    /// [`crate::context::Context`].
    Context,
    /// [`crate::context::Synchronous`].
    Synchronous,
    /// [`crate::context::ObjectsStay`].
    ObjectsStay,
    /// [`crate::context::MayTriggerGc`].
    MayTriggerGc,
    /// [`crate::context::RuntimeThread`].
    RuntimeThread,
    /// [`crate::context::MayRejit`].
    MayRejit,
    /// [`crate::context::NativeThread`].
    NativeThread,
    /// [`crate::context::Startup`] itself.
    Startup,
}

impl Bound {
    /// Name of the trait or context.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Context => "Context",
            Self::Synchronous => "Synchronous",
            Self::ObjectsStay => "ObjectsStay",
            Self::MayTriggerGc => "MayTriggerGc",
            Self::RuntimeThread => "RuntimeThread",
            Self::MayRejit => "MayRejit",
            Self::NativeThread => "NativeThread",
            Self::Startup => "Startup",
        }
    }
}

/// How the typed layer offers a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Typed {
    /// As the method of [`crate::Info`] with the runtime's name in snake case.
    Method(Bound),
    /// Under the given other names.
    As(Bound, &'static str),
    /// Only in the raw layer, for this reason.
    NotOffered(&'static str),
}

/// Runtimes with a column in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuntimeVersion {
    /// .NET Core 3.1.
    Core31 = 0,
    /// .NET 8.
    Net8 = 1,
    /// .NET 10.
    Net10 = 2,
}

impl RuntimeVersion {
    /// All, oldest first.
    pub const ALL: [Self; 3] = [Self::Core31, Self::Net8, Self::Net10];

    /// The newest `ICorProfilerInfo` that this runtime has.
    pub const fn interface(self) -> u32 {
        match self {
            Self::Core31 => 11,
            Self::Net8 => 14,
            Self::Net10 => 15,
        }
    }
}

/// The rules of one method.
#[derive(Clone, Copy, Debug)]
pub struct CallRule {
    /// Slot in the vtable.
    pub slot: usize,
    /// C name.
    pub name: &'static str,
    /// Number of the `ICorProfilerInfo` that added the method.
    pub interface: u32,
    /// The checks, by [`RuntimeVersion`].
    pub entry: [Entry; 3],
    flags: u8,
    /// How the typed layer offers the method.
    pub typed: Typed,
    /// Why the typed layer is stricter than the runtime; empty if it is not.
    pub reason: &'static str,
}

impl CallRule {
    /// The checks of one runtime.
    pub const fn entry(&self, version: RuntimeVersion) -> Entry {
        self.entry[version as usize]
    }
    /// Whether an attached profiler may call the method (`kP2EEAllowableAfterAttach`).
    pub const fn after_attach(&self) -> bool {
        self.flags & ATTACH != 0
    }
    /// Whether only the main profiler may call the method, not a notification profiler.
    pub const fn main_profiler_only(&self) -> bool {
        self.flags & MAIN != 0
    }
    /// Whether the method takes locks according to its contract, or the contract is silent.
    pub const fn takes_locks(&self) -> bool {
        self.flags & LOCKS != 0
    }
    /// The typed layer's bound; `None` if it does not offer the method.
    pub const fn bound(&self) -> Option<Bound> {
        match self.typed {
            Typed::Method(bound) | Typed::As(bound, _) => Some(bound),
            Typed::NotOffered(_) => None,
        }
    }
    /// The rules of the method at a slot.
    pub fn of_slot(slot: usize) -> Option<&'static Self> {
        RULES.get(slot.checked_sub(3)?)
    }
}

const ATTACH: u8 = 1;
const MAIN: u8 = 2;
const LOCKS: u8 = 4;

const fn rule(
    slot: usize,
    name: &'static str,
    interface: u32,
    entry: [Entry; 3],
    flags: u8,
    typed: Typed,
    reason: &'static str,
) -> CallRule {
    CallRule {
        slot,
        name,
        interface,
        entry,
        flags,
        typed,
        reason,
    }
}

const __: Entry = Entry::Absent;
const X: Entry = Entry::NotImplemented;
const N: Entry = Entry::Unchecked;
const A: Entry = Entry::Async;
const AT: Entry = Entry::AsyncTriggers;
const S: Entry = Entry::Sync;
const ST: Entry = Entry::SyncTriggers;
const I: Entry = Entry::InitOnly;

/// The table, by slot from 3.
#[rustfmt::skip]
pub static RULES: [CallRule; 112] = [
    rule(3, "GetClassFromObject", 1, [S, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(4, "GetClassFromToken", 1, [ST, ST, ST], ATTACH | LOCKS, Typed::Method(Bound::RuntimeThread), "it loads the class, of which the runtime dies elsewhere"),
    rule(5, "GetCodeInfo", 1, [A, A, A], ATTACH | LOCKS, Typed::Method(Bound::Context), ""),
    rule(6, "GetEventMask", 1, [A, A, A], ATTACH, Typed::NotOffered("superseded: see GetEventMask2"), ""),
    rule(7, "GetFunctionFromIP", 1, [A, A, A], ATTACH | LOCKS, Typed::Method(Bound::Context), ""),
    rule(8, "GetFunctionFromToken", 1, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(9, "GetHandleFromThread", 1, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(10, "GetObjectSize", 1, [S, S, S], ATTACH, Typed::NotOffered("superseded: see GetObjectSize2 (32 bits)"), ""),
    rule(11, "IsArrayClass", 1, [A, A, A], ATTACH, Typed::Method(Bound::Context), ""),
    rule(12, "GetThreadInfo", 1, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(13, "GetCurrentThreadID", 1, [A, A, A], ATTACH, Typed::Method(Bound::Context), ""),
    rule(14, "GetClassIDInfo", 1, [A, A, A], ATTACH, Typed::Method(Bound::Context), ""),
    rule(15, "GetFunctionInfo", 1, [A, A, A], ATTACH, Typed::Method(Bound::Context), ""),
    rule(16, "SetEventMask", 1, [A, A, A], ATTACH, Typed::NotOffered("superseded: see SetEventMask2"), ""),
    rule(17, "SetEnterLeaveFunctionHooks", 1, [I, I, I], MAIN, Typed::NotOffered("superseded by the third generation"), ""),
    rule(18, "SetFunctionIDMapper", 1, [A, A, A], MAIN, Typed::NotOffered("superseded: it has no client data to tell runtimes apart"), ""),
    rule(19, "GetTokenAndMetaDataFromFunction", 1, [S, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(20, "GetModuleInfo", 1, [A, A, A], ATTACH | LOCKS, Typed::NotOffered("superseded: see GetModuleInfo2"), ""),
    rule(21, "GetModuleMetaData", 1, [S, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(22, "GetILFunctionBody", 1, [A, A, A], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), "it takes the loader's locks"),
    rule(23, "GetILFunctionBodyAllocator", 1, [ST, ST, ST], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(24, "SetILFunctionBody", 1, [ST, ST, ST], ATTACH | MAIN | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(25, "GetAppDomainInfo", 1, [ST, ST, S], ATTACH, Typed::Method(Bound::MayTriggerGc), ""),
    rule(26, "GetAssemblyInfo", 1, [S, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(27, "SetFunctionReJIT", 1, [X, X, X], 0, Typed::NotOffered("answers E_NOTIMPL in every CoreCLR"), ""),
    rule(28, "ForceGC", 1, [AT, AT, AT], ATTACH | LOCKS, Typed::Method(Bound::NativeThread), "in a callback the runtime refuses it"),
    rule(29, "SetILInstrumentedCodeMap", 1, [ST, ST, ST], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(30, "GetInprocInspectionInterface", 1, [X, X, X], 0, Typed::NotOffered("answers E_NOTIMPL in every CoreCLR"), ""),
    rule(31, "GetInprocInspectionIThisThread", 1, [X, X, X], 0, Typed::NotOffered("answers E_NOTIMPL in every CoreCLR"), ""),
    rule(32, "GetThreadContext", 1, [A, A, A], ATTACH, Typed::Method(Bound::Context), ""),
    rule(33, "BeginInprocDebugging", 1, [X, X, X], 0, Typed::NotOffered("answers E_NOTIMPL in every CoreCLR"), ""),
    rule(34, "EndInprocDebugging", 1, [X, X, X], 0, Typed::NotOffered("answers E_NOTIMPL in every CoreCLR"), ""),
    rule(35, "GetILToNativeMapping", 1, [S, S, S], ATTACH | LOCKS, Typed::NotOffered("first code body only: see GetILToNativeMapping3"), ""),
    rule(36, "DoStackSnapshot", 2, [A, A, A], ATTACH | LOCKS, Typed::As(Bound::Context, "walk_current, Suspension::walk, walk_seeded"), ""),
    rule(37, "SetEnterLeaveFunctionHooks2", 2, [I, I, I], MAIN, Typed::NotOffered("superseded by the third generation"), ""),
    rule(38, "GetFunctionInfo2", 2, [A, A, A], ATTACH | LOCKS, Typed::Method(Bound::Context), ""),
    rule(39, "GetStringLayout", 2, [S, S, S], ATTACH, Typed::NotOffered("superseded: see GetStringLayout2"), ""),
    rule(40, "GetClassLayout", 2, [A, A, A], ATTACH, Typed::Method(Bound::Context), ""),
    rule(41, "GetClassIDInfo2", 2, [A, A, A], ATTACH, Typed::Method(Bound::Context), ""),
    rule(42, "GetCodeInfo2", 2, [A, A, A], ATTACH | LOCKS, Typed::Method(Bound::Context), ""),
    rule(43, "GetClassFromTokenAndTypeArgs", 2, [ST, ST, ST], ATTACH | LOCKS, Typed::Method(Bound::RuntimeThread), "it loads the class, of which the runtime dies elsewhere"),
    rule(44, "GetFunctionFromTokenAndTypeArgs", 2, [ST, ST, ST], ATTACH | LOCKS, Typed::Method(Bound::RuntimeThread), "it loads the class, of which the runtime dies elsewhere"),
    rule(45, "EnumModuleFrozenObjects", 2, [S, S, S], ATTACH, Typed::NotOffered("answers with an empty list in every CoreCLR"), ""),
    rule(46, "GetArrayObjectInfo", 2, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(47, "GetBoxClassLayout", 2, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(48, "GetThreadAppDomain", 2, [A, A, A], ATTACH, Typed::Method(Bound::Context), ""),
    rule(49, "GetRVAStaticAddress", 2, [S, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(50, "GetAppDomainStaticAddress", 2, [S, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(51, "GetThreadStaticAddress", 2, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(52, "GetContextStaticAddress", 2, [S, S, S], ATTACH, Typed::NotOffered("answers E_NOTIMPL in every CoreCLR"), ""),
    rule(53, "GetStaticFieldInfo", 2, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(54, "GetGenerationBounds", 2, [S, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(55, "GetObjectGeneration", 2, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(56, "GetNotifiedExceptionClauseInfo", 2, [S, S, S], 0, Typed::Method(Bound::Synchronous), ""),
    rule(57, "EnumJITedFunctions", 3, [S, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(58, "RequestProfilerDetach", 3, [ST, AT, AT], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(59, "SetFunctionIDMapper2", 3, [A, A, A], MAIN, Typed::As(Bound::Startup, "set_fast_hooks, set_slow_hooks"), "functions compiled before it would not be mapped"),
    rule(60, "GetStringLayout2", 3, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(61, "SetEnterLeaveFunctionHooks3", 3, [I, I, I], MAIN, Typed::As(Bound::Startup, "set_fast_hooks"), ""),
    rule(62, "SetEnterLeaveFunctionHooks3WithInfo", 3, [I, I, I], MAIN, Typed::As(Bound::Startup, "set_slow_hooks"), ""),
    rule(63, "GetFunctionEnter3Info", 3, [S, S, S], MAIN | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(64, "GetFunctionLeave3Info", 3, [S, S, S], MAIN | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(65, "GetFunctionTailcall3Info", 3, [S, S, S], MAIN | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(66, "EnumModules", 3, [ST, ST, ST], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(67, "GetRuntimeInformation", 3, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(68, "GetThreadStaticAddress2", 3, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(69, "GetAppDomainsContainingModule", 3, [ST, ST, ST], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(70, "GetModuleInfo2", 3, [A, A, A], ATTACH | LOCKS, Typed::Method(Bound::Context), ""),
    rule(71, "EnumThreads", 4, [S, S, S], ATTACH | LOCKS, Typed::As(Bound::Synchronous, "enum_threads"), ""),
    rule(72, "InitializeCurrentThread", 4, [S, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(73, "RequestReJIT", 4, [ST, ST, ST], ATTACH | MAIN | LOCKS, Typed::Method(Bound::MayRejit), "it makes the thread one of the runtime\'s, and needs ENABLE_REJIT"),
    rule(74, "RequestRevert", 4, [ST, ST, ST], ATTACH | MAIN | LOCKS, Typed::Method(Bound::MayRejit), "it makes the thread one of the runtime\'s, and needs ENABLE_REJIT"),
    rule(75, "GetCodeInfo3", 4, [ST, ST, S], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(76, "GetFunctionFromIP2", 4, [ST, ST, S], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(77, "GetReJITIDs", 4, [S, S, ST], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(78, "GetILToNativeMapping2", 4, [S, S, S], ATTACH | LOCKS, Typed::NotOffered("does not look at the version: see GetILToNativeMapping3"), ""),
    rule(79, "EnumJITedFunctions2", 4, [ST, ST, ST], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(80, "GetObjectSize2", 4, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(81, "GetEventMask2", 5, [A, A, A], ATTACH, Typed::Method(Bound::Context), ""),
    rule(82, "SetEventMask2", 5, [A, A, A], ATTACH, Typed::Method(Bound::Context), ""),
    rule(83, "EnumNgenModuleMethodsInliningThisMethod", 6, [ST, ST, ST], LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(84, "ApplyMetaData", 7, [ST, ST, ST], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(85, "GetInMemorySymbolsLength", 7, [S, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(86, "ReadInMemorySymbols", 7, [S, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(87, "IsFunctionDynamic", 8, [A, A, A], ATTACH | LOCKS, Typed::Method(Bound::Context), ""),
    rule(88, "GetFunctionFromIP3", 8, [ST, ST, A], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(89, "GetDynamicFunctionInfo", 8, [A, A, A], ATTACH | LOCKS, Typed::Method(Bound::Context), ""),
    rule(90, "GetNativeCodeStartAddresses", 9, [A, A, A], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), "it takes the code versioning lock"),
    rule(91, "GetILToNativeMapping3", 9, [S, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(92, "GetCodeInfo4", 9, [ST, ST, S], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(93, "EnumerateObjectReferences", 10, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(94, "IsFrozenObject", 10, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(95, "GetLOHObjectSizeThreshold", 10, [S, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(96, "RequestReJITWithInliners", 10, [ST, ST, ST], ATTACH | MAIN | LOCKS, Typed::Method(Bound::MayRejit), "it makes the thread one of the runtime\'s, and needs ENABLE_REJIT"),
    rule(97, "SuspendRuntime", 10, [ST, ST, AT], ATTACH | LOCKS, Typed::As(Bound::NativeThread, "suspend_runtime"), "a thread that runs managed code must not suspend the runtime"),
    rule(98, "ResumeRuntime", 10, [ST, ST, AT], ATTACH | LOCKS, Typed::As(Bound::NativeThread, "Suspension::resume"), "it ends what SuspendRuntime began"),
    rule(99, "GetEnvironmentVariable", 11, [A, A, A], ATTACH, Typed::Method(Bound::Synchronous), "it takes a lock and allocates"),
    rule(100, "SetEnvironmentVariable", 11, [A, A, A], ATTACH, Typed::Method(Bound::Synchronous), "it takes a lock and allocates"),
    rule(101, "EventPipeStartSession", 12, [__, AT, AT], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(102, "EventPipeAddProviderToSession", 12, [__, AT, AT], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(103, "EventPipeStopSession", 12, [__, AT, AT], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(104, "EventPipeCreateProvider", 12, [__, AT, AT], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(105, "EventPipeGetProviderInfo", 12, [__, A, A], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), "it may take locks"),
    rule(106, "EventPipeDefineEvent", 12, [__, AT, AT], ATTACH | LOCKS, Typed::Method(Bound::MayTriggerGc), ""),
    rule(107, "EventPipeWriteEvent", 12, [__, A, A], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), "it may take locks"),
    rule(108, "CreateHandle", 13, [__, S, S], ATTACH, Typed::Method(Bound::Synchronous), ""),
    rule(109, "DestroyHandle", 13, [__, A, A], ATTACH, Typed::Method(Bound::ObjectsStay), "a collection orders the handle table without its lock"),
    rule(110, "GetObjectIDFromHandle", 13, [__, A, A], ATTACH, Typed::Method(Bound::ObjectsStay), "the object stays where it is only inside a callback"),
    rule(111, "EnumerateNonGCObjects", 14, [__, S, S], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), ""),
    rule(112, "GetNonGCHeapBounds", 14, [__, N, N], ATTACH | LOCKS, Typed::Method(Bound::Synchronous), "it takes a lock"),
    rule(113, "EventPipeCreateProvider2", 14, [__, AT, AT], ATTACH | LOCKS, Typed::NotOffered("its callback comes on any thread without a state to prove; use the raw layer"), ""),
    rule(114, "EnumerateGCHeapObjects", 15, [__, __, AT], ATTACH | LOCKS, Typed::Method(Bound::NativeThread), "it suspends the runtime"),
];

/// The methods that the article lists as asynchronous.
///
/// Source: "Why we have CORPROF_E_UNSUPPORTED_CALL_SEQUENCE" (David Broman's blog, 2008).
pub const ASYNCHRONOUS_OF_THE_ARTICLE: [&str; 16] = [
    "GetEventMask",
    "SetEventMask",
    "GetCurrentThreadID",
    "GetThreadContext",
    "GetThreadAppDomain",
    "GetFunctionFromIP",
    "GetFunctionInfo",
    "GetFunctionInfo2",
    "GetCodeInfo",
    "GetCodeInfo2",
    "GetModuleInfo",
    "GetClassIDInfo",
    "GetClassIDInfo2",
    "IsArrayClass",
    "SetFunctionIDMapper",
    "DoStackSnapshot",
];

/// The table in Markdown, for `docs/call-contexts.md`.
pub fn markdown_table() -> String {
    let mut text = String::from(
        "| slot | `ICorProfilerInfo` | method | 3.1 | 8 | 10 | locks | after attach | typed layer asks for |\n\
         | ---: | ---: | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for rule in &RULES {
        let typed = match rule.typed {
            Typed::Method(bound) => format!("`{}`", bound.text()),
            Typed::As(bound, names) => format!("`{}`, as {names}", bound.text()),
            Typed::NotOffered(why) => format!("not offered: {why}"),
        };
        let reason = if rule.reason.is_empty() {
            String::new()
        } else {
            format!(" ({})", rule.reason)
        };
        let attach = match (rule.after_attach(), rule.main_profiler_only()) {
            (true, false) => "yes",
            (true, true) => "yes, main profiler",
            (false, false) => "no",
            (false, true) => "no, main profiler",
        };
        // Writing into a `String` does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {attach} | {typed}{reason} |",
            rule.slot,
            rule.interface,
            rule.name,
            rule.entry[0].text(),
            rule.entry[1].text(),
            rule.entry[2].text(),
            if rule.takes_locks() { "yes" } else { "no" },
        );
    }
    text
}
