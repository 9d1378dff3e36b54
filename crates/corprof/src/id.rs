//! Ids of runtime objects: [`Id`] for use within a callback, [`Key`] for storing.
//!
//! An id is a pointer of one runtime. Passing it to another CLR in the same process crashes that
//! CLR.
//!
//! - An [`Id`] lives as long as the callback that passed it, and type-checks with the same
//!   runtime's [`crate::Info`] only.
//! - A [`Key`] can be stored: it carries the number of its runtime. [`crate::Info::id`] checks that
//!   number and turns it back into an [`Id`].
//! - An [`ObjectId`] cannot be stored, because the next garbage collection moves the object.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;
use core::num::NonZeroUsize;

use crate::context::Brand;

/// Number of a CLR in this process, from 0 in the order of their `CreateInstance`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RuntimeIndex(pub u32);

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident, $id:ident, $key:ident;)*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $kind {}
        #[doc = concat!("Id of a [`", stringify!($kind), "`].")]
        pub type $id<'rt> = Id<'rt, $kind>;
        #[doc = concat!("Stored id of a [`", stringify!($kind), "`].")]
        pub type $key = Key<$kind>;
        impl Kind for $kind {
            const NAME: &'static str = stringify!($kind);
        }
    )* };
}

/// The kind of thing that an id identifies.
pub trait Kind {
    /// Name of the kind, for messages.
    const NAME: &'static str;
}

kinds! {
    /// An application domain. CoreCLR has one.
    AppDomain, AppDomainId, AppDomainKey;
    /// An assembly.
    Assembly, AssemblyId, AssemblyKey;
    /// A module.
    Module, ModuleId, ModuleKey;
    /// A loaded class: a type with its type arguments.
    Class, ClassId, ClassKey;
    /// A function: a method with its type arguments.
    Function, FunctionId, FunctionKey;
    /// A managed thread.
    Thread, ThreadId, ThreadKey;
    /// A garbage collection handle.
    GcHandle, GcHandleId, GcHandleKey;
    /// A context of .NET Framework.
    ContextOf, ContextId, ContextKey;
    /// An EventPipe provider.
    EventPipeProvider, EventPipeProviderId, EventPipeProviderKey;
    /// An EventPipe event.
    EventPipeEventKind, EventPipeEventId, EventPipeEventKey;
}

/// An id of the runtime `'rt`.
#[repr(transparent)]
pub struct Id<'rt, K>(NonZeroUsize, PhantomData<(Brand<'rt>, fn() -> K)>);

impl<K> Id<'_, K> {
    /// Wraps the runtime's raw id; `None` for 0.
    pub(crate) fn new(raw: usize) -> Option<Self> {
        NonZeroUsize::new(raw).map(|raw| Self(raw, PhantomData))
    }
    pub(crate) fn non_zero(self) -> NonZeroUsize {
        self.0
    }
    /// The raw number, for a log or as a map key within one runtime.
    pub fn raw(self) -> usize {
        self.0.get()
    }
}

impl<K> Clone for Id<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Id<'_, K> {}
impl<K> PartialEq for Id<'_, K> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<K> Eq for Id<'_, K> {}
impl<K> Hash for Id<'_, K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<K: Kind> fmt::Debug for Id<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:#x})", K::NAME, self.0)
    }
}

/// An id that can be stored, with the number of its runtime.
///
/// The runtime frees the target of an id when a collectible assembly or a dynamic method is
/// unloaded. Drop its keys before the `…UnloadStarted` or `DynamicMethodUnloaded` callback returns.
/// Nothing checks this.
pub struct Key<K> {
    runtime: RuntimeIndex,
    raw: NonZeroUsize,
    kind: PhantomData<fn() -> K>,
}

impl<K> Key<K> {
    pub(crate) fn new(runtime: RuntimeIndex, raw: NonZeroUsize) -> Self {
        Self {
            runtime,
            raw,
            kind: PhantomData,
        }
    }
    /// Rebuilds a key from its [`Key::runtime`] and [`Key::raw`]; `None` for 0.
    ///
    /// # Safety
    /// `raw` is an id of kind `K` that this runtime gave to the profiler.
    pub unsafe fn from_parts(runtime: RuntimeIndex, raw: usize) -> Option<Self> {
        NonZeroUsize::new(raw).map(|raw| Self::new(runtime, raw))
    }
    /// Number of the runtime to which the id belongs.
    pub fn runtime(self) -> RuntimeIndex {
        self.runtime
    }
    /// The raw number.
    pub fn raw(self) -> usize {
        self.raw.get()
    }
}

impl<K> Clone for Key<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Key<K> {}
impl<K> PartialEq for Key<K> {
    fn eq(&self, other: &Self) -> bool {
        (self.runtime, self.raw) == (other.runtime, other.raw)
    }
}
impl<K> Eq for Key<K> {}
impl<K> Hash for Key<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.runtime, self.raw).hash(state);
    }
}
impl<K> PartialOrd for Key<K> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Key<K> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.runtime, self.raw).cmp(&(other.runtime, other.raw))
    }
}
impl<K: Kind> fmt::Debug for Key<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}({:#x} of runtime {})",
            K::NAME,
            self.raw,
            self.runtime.0
        )
    }
}

/// Address of an object, valid until the callback returns.
///
/// Only callbacks in which objects do not move pass one. It cannot be stored and is neither `Send`
/// nor `Sync`, so its holder may read the object.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectId<'rt>(NonZeroUsize, PhantomData<(Brand<'rt>, *const ())>);

impl ObjectId<'_> {
    pub(crate) fn new(raw: usize) -> Option<Self> {
        NonZeroUsize::new(raw).map(|raw| Self(raw, PhantomData))
    }
    /// The address.
    pub fn raw(self) -> usize {
        self.0.get()
    }
}

impl<'rt> ObjectId<'rt> {
    /// Wraps an address from elsewhere, such as one of `ObjectReferences`, whose addresses are
    /// valid from `GarbageCollectionFinished` on. `None` for 0.
    ///
    /// # Safety
    /// `address` is that of an object, which does not move until the callback of `_cx` returns.
    pub unsafe fn from_address<C: crate::context::Synchronous>(
        _cx: &crate::Cx<'rt, C>,
        address: usize,
    ) -> Option<Self> {
        Self::new(address)
    }
}

impl fmt::Debug for ObjectId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({:#x})", self.0)
    }
}

/// A version of a function's IL: 0 is the original, others come from ReJIT.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct RejitId(pub usize);

impl RejitId {
    /// The original IL.
    pub const ORIGINAL: Self = Self(0);
}

/// A metadata token: the table in the high byte, the row in the low three.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u32);

impl Token {
    /// The table, such as 0x02 for a type definition and 0x06 for a method.
    pub const fn table(self) -> u8 {
        (self.0 >> 24) as u8
    }
    /// The row, counted from 1; 0 for a nil token.
    pub const fn row(self) -> u32 {
        self.0 & 0x00ff_ffff
    }
    /// Whether the token is nil: row 0.
    pub const fn is_nil(self) -> bool {
        self.row() == 0
    }
    /// Table of type references.
    pub const TYPE_REF: u8 = 0x01;
    /// Table of type definitions.
    pub const TYPE_DEF: u8 = 0x02;
    /// Table of methods.
    pub const METHOD_DEF: u8 = 0x06;
    /// Table of references to members.
    pub const MEMBER_REF: u8 = 0x0a;
    /// Table of type specifications.
    pub const TYPE_SPEC: u8 = 0x1b;
    /// Table of instances of generic methods.
    pub const METHOD_SPEC: u8 = 0x2b;
    /// Table of assembly references.
    pub const ASSEMBLY_REF: u8 = 0x23;
    /// Table of generic parameters.
    pub const GENERIC_PARAM: u8 = 0x2a;
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Views a raw array of ids as ids; `None` for entries of 0.
pub(crate) fn ids<'rt, K>(raw: &[usize]) -> &[Option<Id<'rt, K>>] {
    // SAFETY: `Id` is `repr(transparent)` over `NonZeroUsize`, so `Option<Id>` has the layout of
    // `usize` and 0 is `None` (documented niche guarantee of `NonZero`).
    unsafe { core::slice::from_raw_parts(raw.as_ptr().cast(), raw.len()) }
}
