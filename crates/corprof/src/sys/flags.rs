//! Flag words of the profiling API, one type each: event masks, module flags, codegen flags.
//!
//! Unknown bits are kept, because a newer runtime may have more flags.
//!
//! Invariant: `COR_PRF_MONITOR` and `COR_PRF_HIGH_MONITOR` are different types, so they never mix.

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $flag:ident = $value:literal,)* })*) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(u32);
        impl $name {
            $($(#[$fdoc])* pub const $flag: Self = Self($value);)*
            /// Every flag with its C name, without the prefix.
            pub const FLAGS: &'static [(&'static str, Self)] = &[$((stringify!($flag), Self::$flag),)*];
            /// No flag.
            pub const fn empty() -> Self {
                Self(0)
            }
            /// The flags as a number.
            pub const fn bits(self) -> u32 {
                self.0
            }
            /// Converts a number; bits without a name are kept.
            pub const fn from_bits_retain(bits: u32) -> Self {
                Self(bits)
            }
            /// The union of both sets; as `|`, but usable in constants.
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
            /// The flags in both.
            pub const fn intersection(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
            /// The flags in this set and not in the other.
            pub const fn difference(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
            /// Whether every flag of `other` is in this set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
            /// Whether any flag of `other` is in this set.
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }
            /// Whether the set has no flag.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }
        impl core::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }
        impl core::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }
        impl core::ops::BitAnd for $name {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                self.intersection(other)
            }
        }
        impl core::ops::Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                self.difference(other)
            }
        }
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let mut rest = *self;
                let mut first = true;
                for &(name, flag) in Self::FLAGS {
                    if flag.0.is_power_of_two() && rest.contains(flag) {
                        if !first {
                            f.write_str(" | ")?;
                        }
                        f.write_str(name)?;
                        first = false;
                        rest = rest - flag;
                    }
                }
                if first || rest.0 != 0 {
                    if !first {
                        f.write_str(" | ")?;
                    }
                    write!(f, "{:#x}", rest.0)?;
                }
                Ok(())
            }
        }
    )* };
}

flags! {
    /// The low event mask (`COR_PRF_MONITOR`).
    EventMaskLow {
        /// `FunctionUnloadStarted`; CoreCLR never raises it.
        MONITOR_FUNCTION_UNLOADS = 0x1,
        /// `ClassLoad*`, `ClassUnload*`.
        MONITOR_CLASS_LOADS = 0x2,
        /// `ModuleLoad*`, `ModuleUnload*`, `ModuleAttachedToAssembly`.
        MONITOR_MODULE_LOADS = 0x4,
        /// `AssemblyLoad*`, `AssemblyUnload*`.
        MONITOR_ASSEMBLY_LOADS = 0x8,
        /// `AppDomain*`.
        MONITOR_APPDOMAIN_LOADS = 0x10,
        /// `JITCompilation*`, `DynamicMethodJITCompilation*`, `JITInlining`.
        MONITOR_JIT_COMPILATION = 0x20,
        /// `Exception*`.
        ///
        /// **Crashes programs on .NET 9 and 10.** Around filters and catch blocks the runtime
        /// switches to preemptive mode for these callbacks, while it holds the exception by an
        /// unprotected reference (`CallFilterFunclet`, `CallCatchFunclet` in
        /// src/coreclr/vm/exceptionhandling.cpp; dotnet/runtime issue 132462, fixed in .NET 11). If
        /// a collection runs then, the program crashes or misses the exception, whatever the
        /// callbacks do. On these versions use the runtime's event `ExceptionThrown`
        /// ([`crate::Info::event_pipe_start_session`]), which switches no mode.
        MONITOR_EXCEPTIONS = 0x40,
        /// All garbage collection callbacks. Disables concurrent collection if set in `Initialize`;
        /// [`EventMaskHigh::BASIC_GC`] does not.
        MONITOR_GC = 0x80,
        /// `ObjectAllocated`; needs [`EventMaskLow::ENABLE_OBJECT_ALLOCATED`] in `Initialize`.
        MONITOR_OBJECT_ALLOCATED = 0x100,
        /// `Thread*`.
        MONITOR_THREADS = 0x200,
        /// No effect in CoreCLR.
        MONITOR_REMOTING = 0x400,
        /// `*Transition`; disables P/Invoke inlining and ReadyToRun code.
        MONITOR_CODE_TRANSITIONS = 0x800,
        /// The enter, leave and tailcall hooks; disables ReadyToRun code.
        MONITOR_ENTERLEAVE = 0x1000,
        /// `COMClassicVTable*`.
        MONITOR_CCW = 0x2000,
        /// No effect in CoreCLR; includes `MONITOR_REMOTING`.
        MONITOR_REMOTING_COOKIE = 0x4400,
        /// No effect in CoreCLR; includes `MONITOR_REMOTING`.
        MONITOR_REMOTING_ASYNC = 0x8400,
        /// `RuntimeSuspend*`, `RuntimeResume*`, `RuntimeThread*`.
        MONITOR_SUSPENDS = 0x1_0000,
        /// `JITCachedFunctionSearch*`.
        MONITOR_CACHE_SEARCHES = 0x2_0000,
        /// Permits `RequestReJIT` and its callbacks.
        ENABLE_REJIT = 0x4_0000,
        /// No effect in CoreCLR.
        ENABLE_INPROC_DEBUGGING = 0x8_0000,
        /// Keeps IL maps.
        ENABLE_JIT_MAPS = 0x10_0000,
        /// Disables inlining in the whole process.
        DISABLE_INLINING = 0x20_0000,
        /// Disables optimisation in the whole process.
        DISABLE_OPTIMIZATIONS = 0x40_0000,
        /// Uses slow allocation paths, which can call `ObjectAllocated`.
        ENABLE_OBJECT_ALLOCATED = 0x80_0000,
        /// No callback in CoreCLR.
        MONITOR_CLR_EXCEPTIONS = 0x100_0000,
        /// Every callback.
        MONITOR_ALL = 0x107_ffff,
        /// Arguments for the hooks; selects the slow path.
        ENABLE_FUNCTION_ARGS = 0x200_0000,
        /// Return values for the hooks; selects the slow path.
        ENABLE_FUNCTION_RETVAL = 0x400_0000,
        /// Exact frames for the hooks; selects the slow path.
        ENABLE_FRAME_INFO = 0x800_0000,
        /// Permits `DoStackSnapshot`; no cost until the first call.
        ENABLE_STACK_SNAPSHOT = 0x1000_0000,
        /// In CoreCLR: disables ReadyToRun code.
        USE_PROFILE_IMAGES = 0x2000_0000,
        /// No effect in CoreCLR.
        DISABLE_TRANSPARENCY_CHECKS_UNDER_FULL_TRUST = 0x4000_0000,
        /// Disables ReadyToRun code: the JIT compiles everything.
        DISABLE_ALL_NGEN_IMAGES = 0x8000_0000,
        /// Flags that can be set in `Initialize` only (`COR_PRF_MONITOR_IMMUTABLE`).
        IMMUTABLE = 0xeef8_cc00,
    }
    /// The high event mask (`COR_PRF_HIGH_MONITOR`).
    EventMaskHigh {
        /// No effect in CoreCLR.
        ADD_ASSEMBLY_REFERENCES = 0x1,
        /// `ModuleInMemorySymbolsUpdated`.
        IN_MEMORY_SYMBOLS_UPDATED = 0x2,
        /// `DynamicMethodUnloaded`.
        MONITOR_DYNAMIC_FUNCTION_UNLOADS = 0x4,
        /// Disables tiered compilation. In `Initialize` only.
        DISABLE_TIERED_COMPILATION = 0x8,
        /// `GarbageCollectionStarted` and `…Finished`, but no other garbage collection callback.
        /// Concurrent collection stays enabled.
        BASIC_GC = 0x10,
        /// `MovedReferences2` without the other garbage collection callbacks.
        MONITOR_GC_MOVED_OBJECTS = 0x20,
        /// `ObjectAllocated` for large objects.
        MONITOR_LARGEOBJECT_ALLOCATED = 0x40,
        /// `EventPipe*`.
        MONITOR_EVENT_PIPE = 0x80,
        /// `ObjectAllocated` for pinned objects.
        MONITOR_PINNEDOBJECT_ALLOCATED = 0x100,
        /// Flags that can be set in `Initialize` only (`COR_PRF_HIGH_MONITOR_IMMUTABLE`).
        IMMUTABLE = 0x8,
    }
    /// Properties of a module (`COR_PRF_MODULE_FLAGS`).
    ModuleFlags {
        /// Loaded from a file.
        DISK = 0x1,
        /// Has ReadyToRun code.
        NGEN = 0x2,
        /// Made by `Reflection.Emit`.
        DYNAMIC = 0x4,
        /// Can be unloaded.
        COLLECTIBLE = 0x8,
        /// A resource.
        RESOURCE = 0x10,
        /// Laid out in memory as in the file, not as mapped sections.
        FLAT_LAYOUT = 0x20,
        /// Windows Runtime metadata.
        WINDOWS_RUNTIME = 0x40,
    }
    /// How a ReJIT version is compiled (`COR_PRF_CODEGEN_FLAGS`).
    CodegenFlags {
        /// Nothing is inlined into it.
        DISABLE_INLINING = 0x1,
        /// Not optimised.
        DISABLE_ALL_OPTIMIZATIONS = 0x2,
    }
    /// Flags of `RequestReJITWithInliners` (`COR_PRF_REJIT_FLAGS`).
    RejitFlags {
        /// The new version is not inlined.
        BLOCK_INLINING = 0x1,
        /// `GetReJITParameters` is called for inliners too. Without the flag, a method that is both
        /// requested and an inliner of another method of the request keeps its original IL: the
        /// runtime binds it twice, and the second time counts.
        INLINING_CALLBACKS = 0x2,
    }
    /// Flags of `DoStackSnapshot` (`COR_PRF_SNAPSHOT_INFO`).
    SnapshotFlags {
        /// Passes the register context of each frame.
        REGISTER_CONTEXT = 0x1,
        /// A faster, less exact walk; 32-bit x86 only.
        X86_OPTIMIZED = 0x2,
    }
    /// Flags of `GetModuleMetaData` (`CorOpenFlags`).
    OpenFlags {
        /// For writing. The empty set is for reading (`ofRead` is 0).
        WRITE = 0x1,
    }
}
