//! Scalar types, structures, enumerations and function types of the profiling API.
//!
//! These are the raw types of the C interface. The typed layer has its own, such as [`crate::Id`].
//!
//! Invariant: each structure has the size that a 64-bit C compiler gives it.

use core::ffi::c_void;

use super::Hresult;

/// A C `BOOL`: 0 is false, anything else true.
pub type Bool = i32;
/// Identifies a process (`UINT_PTR`).
pub type ProcessID = usize;
/// Identifies an application domain (`UINT_PTR`).
pub type AppDomainID = usize;
/// Identifies an assembly (`UINT_PTR`).
pub type AssemblyID = usize;
/// Identifies a module (`UINT_PTR`).
pub type ModuleID = usize;
/// Identifies a class (`UINT_PTR`).
pub type ClassID = usize;
/// Identifies a managed thread (`UINT_PTR`).
pub type ThreadID = usize;
/// Identifies a context (`UINT_PTR`).
pub type ContextID = usize;
/// Identifies a function (`UINT_PTR`).
pub type FunctionID = usize;
/// Identifies an object until the next garbage collection (`UINT_PTR`).
pub type ObjectID = usize;
/// Identifies a handle to an object (`UINT_PTR`).
pub type GCHandleID = usize;
/// Identifies a version of a function's IL; 0 is the original (`UINT_PTR`).
pub type ReJITID = usize;
/// A handle made by `CreateHandle`.
pub type ObjectHandleID = *mut c_void;
/// Opaque information for the ELT info functions; valid within the hook only.
pub type CorPrfEltInfo = usize;
/// Opaque information on a frame; valid within the hook or frame callback only.
pub type CorPrfFrameInfo = usize;
/// Identifies an EventPipe provider (`UINT_PTR`).
pub type EventPipeProviderID = usize;
/// Identifies an EventPipe event (`UINT_PTR`).
pub type EventPipeEventID = usize;
/// Identifies an EventPipe session (`UINT64`).
pub type EventPipeSessionID = u64;
/// A metadata token: table in the high byte, row in the others.
pub type MdToken = u32;
/// A metadata enumeration in progress.
pub type HCorEnum = *mut c_void;

macro_rules! open_enum {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal,)* })*) => { $(
        $(#[$doc])*
        ///
        /// Any number may occur, because a newer runtime may have more values.
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
        impl $name {
            $($(#[$vdoc])* pub const $variant: Self = Self($value);)*
            /// The symbolic name of a known value.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($variant)),)*
                    _ => None,
                }
            }
        }
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({:#x})"), self.0),
                }
            }
        }
    )* };
}

open_enum! {
    /// Why the runtime suspends itself (`COR_PRF_SUSPEND_REASON`).
    CorPrfSuspendReason {
        /// None of the others.
        OTHER = 0,
        /// A garbage collection.
        FOR_GC = 1,
        /// Shutdown of an application domain.
        FOR_APPDOMAIN_SHUTDOWN = 2,
        /// Code pitching: compiled code is discarded.
        FOR_CODE_PITCHING = 3,
        /// Shutdown of the runtime.
        FOR_SHUTDOWN = 4,
        /// An in-process debugger.
        FOR_INPROC_DEBUGGER = 6,
        /// Preparation of a garbage collection.
        FOR_GC_PREP = 7,
        /// A ReJIT.
        FOR_REJIT = 8,
        /// `SuspendRuntime` of a profiler.
        FOR_PROFILER = 9,
    }
    /// Result of a search for precompiled code (`COR_PRF_JIT_CACHE`).
    CorPrfJitCache {
        /// Precompiled code exists and is used.
        FUNCTION_FOUND = 0,
        /// No precompiled code: the function is compiled.
        FUNCTION_NOT_FOUND = 1,
    }
    /// Direction of a transition (`COR_PRF_TRANSITION_REASON`).
    CorPrfTransitionReason {
        /// A call.
        CALL = 0,
        /// The return from a call.
        RETURN = 1,
    }
    /// Cause of a garbage collection (`COR_PRF_GC_REASON`).
    CorPrfGcReason {
        /// The runtime's own decision.
        OTHER = 0,
        /// A call of `GC.Collect`.
        INDUCED = 1,
    }
    /// Kind of a root (`COR_PRF_GC_ROOT_KIND`).
    CorPrfGcRootKind {
        /// None of the others.
        OTHER = 0,
        /// A variable on a stack.
        STACK = 1,
        /// The finalizer queue.
        FINALIZER = 2,
        /// A handle.
        HANDLE = 3,
    }
    /// Properties of a root (`COR_PRF_GC_ROOT_FLAGS`), bits.
    CorPrfGcRootFlags {
        /// Pins the object.
        PINNING = 1,
        /// Does not keep the object alive.
        WEAKREF = 2,
        /// Points to the interior of the object.
        INTERIOR = 4,
        /// Counts references.
        REFCOUNTED = 8,
    }
    /// Family of runtimes (`COR_PRF_RUNTIME_TYPE`).
    CorPrfRuntimeType {
        /// .NET Framework.
        DESKTOP_CLR = 1,
        /// .NET Core and later.
        CORE_CLR = 2,
    }
    /// Kind of an exception clause (`COR_PRF_CLAUSE_TYPE`).
    CorPrfClauseType {
        /// Not in a clause.
        NONE = 0,
        /// A filter.
        FILTER = 1,
        /// A catch.
        CATCH = 2,
        /// A finally or fault.
        FINALLY = 3,
    }
    /// A generation of the heap (`COR_PRF_GC_GENERATION`).
    CorPrfGcGeneration {
        /// Generation 0.
        GEN_0 = 0,
        /// Generation 1.
        GEN_1 = 1,
        /// Generation 2.
        GEN_2 = 2,
        /// Large objects.
        LARGE_OBJECT_HEAP = 3,
        /// Pinned objects.
        PINNED_OBJECT_HEAP = 4,
    }
    /// Kind of a handle made by `CreateHandle` (`COR_PRF_HANDLE_TYPE`).
    CorPrfHandleType {
        /// Does not keep the object alive.
        WEAK = 1,
        /// Keeps the object alive.
        STRONG = 2,
        /// Keeps the object alive and pins it.
        PINNED = 3,
    }
    /// Storage of a static field (`COR_PRF_STATIC_TYPE`), bits.
    CorPrfStaticType {
        /// Not a static field.
        FIELD_NOT_A_STATIC = 0,
        /// One for each application domain.
        FIELD_APP_DOMAIN_STATIC = 1,
        /// One for each thread.
        FIELD_THREAD_STATIC = 2,
        /// One for each context.
        FIELD_CONTEXT_STATIC = 4,
        /// At a fixed place in the image.
        FIELD_RVA_STATIC = 8,
    }
    /// Element type of a signature (`CorElementType`).
    CorElementType {
        /// End of a list.
        END = 0x00,
        /// `void`.
        VOID = 0x01,
        /// `bool`.
        BOOLEAN = 0x02,
        /// `char`.
        CHAR = 0x03,
        /// `sbyte`.
        I1 = 0x04,
        /// `byte`.
        U1 = 0x05,
        /// `short`.
        I2 = 0x06,
        /// `ushort`.
        U2 = 0x07,
        /// `int`.
        I4 = 0x08,
        /// `uint`.
        U4 = 0x09,
        /// `long`.
        I8 = 0x0a,
        /// `ulong`.
        U8 = 0x0b,
        /// `float`.
        R4 = 0x0c,
        /// `double`.
        R8 = 0x0d,
        /// `string`.
        STRING = 0x0e,
        /// An unmanaged pointer; the type pointed to follows.
        PTR = 0x0f,
        /// A managed reference; the type referred to follows.
        BYREF = 0x10,
        /// A value type; its token follows.
        VALUETYPE = 0x11,
        /// A class; its token follows.
        CLASS = 0x12,
        /// A type parameter of the class; its number follows.
        VAR = 0x13,
        /// An array of any rank; type and shape follow.
        ARRAY = 0x14,
        /// A constructed generic type; type, count and arguments follow.
        GENERICINST = 0x15,
        /// `TypedReference`.
        TYPEDBYREF = 0x16,
        /// `nint`.
        I = 0x18,
        /// `nuint`.
        U = 0x19,
        /// A function pointer; its signature follows.
        FNPTR = 0x1b,
        /// `object`.
        OBJECT = 0x1c,
        /// A one-dimensional array with lower bound 0; the element type follows.
        SZARRAY = 0x1d,
        /// A type parameter of the method; its number follows.
        MVAR = 0x1e,
        /// A required modifier; its token follows.
        CMOD_REQD = 0x1f,
        /// An optional modifier; its token follows.
        CMOD_OPT = 0x20,
        /// Ends the fixed arguments of a vararg call.
        SENTINEL = 0x41,
        /// A pinned local.
        PINNED = 0x45,
    }
}

impl CorPrfGcRootFlags {
    /// Whether every bit of `flags` is set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

macro_rules! c_struct {
    ($($(#[$doc:meta])* $name:ident, $size:literal { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* })*) => { $(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $size, concat!(stringify!($name), " has another size"));
    )* };
}

c_struct! {
    /// A range of code (`COR_PRF_CODE_INFO`).
    CorPrfCodeInfo, 16 {
        /// First address.
        start_address: usize,
        /// Length in bytes.
        size: usize,
    }
    /// A function and its version (`COR_PRF_FUNCTION`).
    CorPrfFunction, 16 {
        /// The function.
        function_id: FunctionID,
        /// The version of its IL.
        rejit_id: ReJITID,
    }
    /// A method by its token (`COR_PRF_METHOD`).
    CorPrfMethod, 16 {
        /// The module.
        module_id: ModuleID,
        /// The method's token.
        method_id: MdToken,
    }
    /// One entry of a map from IL to native code (`COR_DEBUG_IL_TO_NATIVE_MAP`).
    CorDebugIlToNativeMap, 12 {
        /// Offset in the IL, or one of this type's constants.
        il_offset: u32,
        /// First offset in the code body, in bytes.
        native_start_offset: u32,
        /// First offset after it, in bytes.
        native_end_offset: u32,
    }
    /// One entry of a map from original to rewritten IL (`COR_IL_MAP`).
    CorIlMap, 12 {
        /// Offset in the original IL.
        old_offset: u32,
        /// Offset in the new IL.
        new_offset: u32,
        /// Whether the mapping is exact.
        accurate: Bool,
    }
    /// Offset of a field (`COR_FIELD_OFFSET`).
    CorFieldOffset, 8 {
        /// The field's token.
        rid_of_field: MdToken,
        /// Its offset in bytes.
        offset: u32,
    }
    /// A run of argument memory (`COR_PRF_FUNCTION_ARGUMENT_RANGE`).
    CorPrfFunctionArgumentRange, 16 {
        /// First address.
        start_address: usize,
        /// Length in bytes.
        length: u32,
    }
    /// Memory ranges of the arguments of a call (`COR_PRF_FUNCTION_ARGUMENT_INFO`); more ranges
    /// follow.
    CorPrfFunctionArgumentInfo, 24 {
        /// Number of ranges.
        num_ranges: u32,
        /// Total size of all arguments in bytes.
        total_argument_size: u32,
        /// The first of the ranges.
        ranges: [CorPrfFunctionArgumentRange; 1],
    }
    /// A range of a generation (`COR_PRF_GC_GENERATION_RANGE`).
    CorPrfGcGenerationRange, 32 {
        /// The generation.
        generation: CorPrfGcGeneration,
        /// First address.
        range_start: usize,
        /// Bytes used.
        range_length: usize,
        /// Bytes reserved.
        range_length_reserved: usize,
    }
    /// A range of the heap that is never collected (`COR_PRF_NONGC_HEAP_RANGE`).
    CorPrfNongcHeapRange, 24 {
        /// First address.
        range_start: usize,
        /// Bytes used.
        range_length: usize,
        /// Bytes reserved.
        range_length_reserved: usize,
    }
    /// The exception clause that is about to run (`COR_PRF_EX_CLAUSE_INFO`).
    CorPrfExClauseInfo, 32 {
        /// Kind of clause.
        clause_type: CorPrfClauseType,
        /// Address of its code.
        program_counter: usize,
        /// Frame pointer of the method.
        frame_pointer: usize,
        /// Shadow stack pointer of the clause.
        shadow_stack_pointer: usize,
    }
    /// A provider of a session (`COR_PRF_EVENTPIPE_PROVIDER_CONFIG`).
    CorPrfEventpipeProviderConfig, 32 {
        /// Name, UTF-16, NUL-terminated.
        provider_name: *const u16,
        /// Requested keywords.
        keywords: u64,
        /// Requested level.
        logging_level: u32,
        /// Filter text, UTF-16, NUL-terminated, or null.
        filter_data: *const u16,
    }
    /// A parameter of an event (`COR_PRF_EVENTPIPE_PARAM_DESC`).
    CorPrfEventpipeParamDesc, 16 {
        /// Type (`COR_PRF_EVENTPIPE_PARAM_TYPE`).
        kind: u32,
        /// Element type of an array.
        element_kind: u32,
        /// Name, UTF-16, NUL-terminated.
        name: *const u16,
    }
    /// A run of event data (`COR_PRF_EVENT_DATA`).
    CorPrfEventData, 16 {
        /// Its address.
        pointer: u64,
        /// Its size in bytes.
        size: u32,
        /// Must be 0.
        reserved: u32,
    }
    /// Filter of an EventPipe provider (`COR_PRF_FILTER_DATA`).
    CorPrfFilterData, 16 {
        /// Its address.
        pointer: u64,
        /// Its size in bytes.
        size: u32,
        /// Its type.
        kind: u32,
    }
    /// An assembly reference to add (`COR_PRF_ASSEMBLY_REFERENCE_INFO`).
    CorPrfAssemblyReferenceInfo, 48 {
        /// Public key or token.
        public_key_or_token: *const c_void,
        /// Its length in bytes.
        public_key_or_token_length: u32,
        /// Name, UTF-16, NUL-terminated.
        name: *const u16,
        /// Version and culture.
        metadata: *const AssemblyMetadata,
        /// Hash of the assembly.
        hash_value: *const c_void,
        /// Its length in bytes.
        hash_value_length: u32,
        /// Flags.
        flags: u32,
    }
    /// Operating system of an assembly (`OSINFO`).
    OsInfo, 12 {
        /// Platform.
        platform_id: u32,
        /// Major version.
        major_version: u32,
        /// Minor version.
        minor_version: u32,
    }
    /// Version and culture of an assembly (`ASSEMBLYMETADATA`).
    AssemblyMetadata, 56 {
        /// Major version.
        major_version: u16,
        /// Minor version.
        minor_version: u16,
        /// Build number.
        build_number: u16,
        /// Revision.
        revision_number: u16,
        /// Buffer for the culture's name.
        locale: *mut u16,
        /// Its length in UTF-16 units.
        locale_length: u32,
        /// Buffer for processors.
        processor: *mut u32,
        /// Its length.
        processor_count: u32,
        /// Buffer for operating systems.
        os: *mut OsInfo,
        /// Its length.
        os_count: u32,
    }
    /// A security attribute (`COR_SECATTR`).
    CorSecAttr, 24 {
        /// Its constructor.
        constructor: MdToken,
        /// The blob.
        custom_attribute: *const c_void,
        /// Length of the blob in bytes.
        custom_attribute_length: u32,
    }
}

impl CorDebugIlToNativeMap {
    /// `il_offset` of code without corresponding IL.
    pub const NO_MAPPING: u32 = -1i32 as u32;
    /// `il_offset` of the prologue.
    pub const PROLOG: u32 = -2i32 as u32;
    /// `il_offset` of an epilogue.
    pub const EPILOG: u32 = -3i32 as u32;
}

/// Argument of a hook: the function, or the mapper's value for it.
#[repr(C)]
#[derive(Clone, Copy)]
pub union FunctionIDOrClientID {
    /// The function, when no mapper is set.
    pub function_id: FunctionID,
    /// The mapper's value.
    pub client_id: usize,
}
const _: () = assert!(size_of::<FunctionIDOrClientID>() == 8);

impl core::fmt::Debug for FunctionIDOrClientID {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // SAFETY: both fields are integers of the same size; every value is valid for both.
        write!(f, "{:#x}", unsafe { self.client_id })
    }
}

/// A hook of the first generation. On x86-64 it needs a stub.
pub type FunctionEnter = unsafe extern "system" fn(FunctionID);
/// See [`FunctionEnter`].
pub type FunctionLeave = unsafe extern "system" fn(FunctionID);
/// See [`FunctionEnter`].
pub type FunctionTailcall = unsafe extern "system" fn(FunctionID);
/// A hook of the second generation: function, client data, frame, arguments.
pub type FunctionEnter2 =
    unsafe extern "system" fn(FunctionID, usize, CorPrfFrameInfo, *mut CorPrfFunctionArgumentInfo);
/// See [`FunctionEnter2`]; the last argument is the memory range of the return value.
pub type FunctionLeave2 =
    unsafe extern "system" fn(FunctionID, usize, CorPrfFrameInfo, *mut CorPrfFunctionArgumentRange);
/// See [`FunctionEnter2`].
pub type FunctionTailcall2 = unsafe extern "system" fn(FunctionID, usize, CorPrfFrameInfo);
/// A hook of the third generation, fast path. On x86-64 it is called with a special convention
/// (`genProfilingEnterCallback`), so a Rust function needs a stub.
pub type FunctionEnter3 = unsafe extern "system" fn(FunctionIDOrClientID);
/// See [`FunctionEnter3`].
pub type FunctionLeave3 = unsafe extern "system" fn(FunctionIDOrClientID);
/// See [`FunctionEnter3`].
pub type FunctionTailcall3 = unsafe extern "system" fn(FunctionIDOrClientID);
/// A hook of the third generation, slow path: an ordinary C function.
pub type FunctionEnter3WithInfo = unsafe extern "system" fn(FunctionIDOrClientID, CorPrfEltInfo);
/// See [`FunctionEnter3WithInfo`].
pub type FunctionLeave3WithInfo = unsafe extern "system" fn(FunctionIDOrClientID, CorPrfEltInfo);
/// See [`FunctionEnter3WithInfo`].
pub type FunctionTailcall3WithInfo = unsafe extern "system" fn(FunctionIDOrClientID, CorPrfEltInfo);
/// Maps a function to the argument of its hooks, and determines whether it is hooked.
pub type FunctionIDMapper = unsafe extern "system" fn(FunctionID, *mut Bool) -> usize;
/// As [`FunctionIDMapper`], with the client data given to `SetFunctionIDMapper2`.
pub type FunctionIDMapper2 = unsafe extern "system" fn(FunctionID, *mut c_void, *mut Bool) -> usize;
/// Called for each frame of a walk: function (0 for a run of unmanaged frames), instruction
/// pointer, frame info, size of the register context, the context, client data.
pub type StackSnapshotCallback = unsafe extern "system" fn(
    FunctionID,
    usize,
    CorPrfFrameInfo,
    u32,
    *mut u8,
    *mut c_void,
) -> Hresult;
/// Called for each reference in an object: root, address of the reference, client data.
pub type ObjectReferenceCallback =
    unsafe extern "system" fn(ObjectID, *mut ObjectID, *mut c_void) -> Bool;
/// Called for each object of the heap: object, client data.
pub type ObjectCallback = unsafe extern "system" fn(ObjectID, *mut c_void) -> Bool;
/// Called when an EventPipe provider is enabled or disabled.
pub type EventPipeProviderCallback =
    unsafe extern "system" fn(*const u8, u32, u8, u64, u64, *mut CorPrfFilterData, *mut c_void);
