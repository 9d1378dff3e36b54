//! Context tokens: the compiler checks which profiling API calls may be made where.
//!
//! At each entry point of `ICorProfilerInfo` the CLR checks the state of the calling thread. It
//! returns `CORPROF_E_UNSUPPORTED_CALL_SEQUENCE` for a thread in the wrong state. In this crate
//! each method names the weakest context in which every supported runtime accepts it, and takes a
//! [`Cx`] (context token) of at least that strength.
//!
//! Invariant: a profiler cannot create a `Cx` in safe code. The vtable thunks, the hook stubs,
//! threads that this crate spawns and [`crate::Runtime`] pass one to the profiler. A `Cx` leaves
//! neither the thread nor the call for which it was created.

use core::marker::PhantomData;

use crate::runtime::{Info, Runtime};

mod sealed {
    pub trait Sealed {}
}

/// A context in which asynchronous calls are accepted (`PROFILER_TO_CLR_ENTRYPOINT_ASYNC`): the
/// weakest one that permits any call.
#[diagnostic::on_unimplemented(
    message = "no CLR call can be made in the context `{Self}`",
    label = "nothing of the CLR is async-signal-safe, and nothing of it answers after a detach",
    note = "in a signal handler: record the address raw and resolve it on the agent's thread"
)]
pub trait Context: sealed::Sealed {
    /// The context of the frame callback of a stack snapshot that is started here. It is
    /// synchronous if and only if this context is. It never permits a GC, because the walk may hold
    /// locks.
    type Walk: Context;
}

/// A context in which synchronous calls are accepted (`PROFILER_TO_CLR_ENTRYPOINT_SYNC`): the
/// thread is inside a callback (`COR_PRF_CALLBACKSTATE_INCALLBACK`), or the runtime has no `Thread`
/// object for it.
#[diagnostic::on_unimplemented(
    message = "this CLR call is synchronous: it can't be made in the context `{Self}`",
    label = "the runtime would answer CORPROF_E_UNSUPPORTED_CALL_SEQUENCE",
    note = "defer it: push a record to the agent's thread and resolve it there"
)]
pub trait Synchronous: Context {}

/// A context in which a call may trigger a garbage collection
/// (`COR_PRF_CALLBACKSTATE_IN_TRIGGERS_SCOPE`).
#[diagnostic::on_unimplemented(
    message = "this CLR call may trigger a GC: it can't be made in the context `{Self}`",
    label = "the runtime would answer CORPROF_E_UNSUPPORTED_CALL_SEQUENCE"
)]
pub trait MayTriggerGc: Synchronous {}

/// The thread has a `Thread` object of the runtime: a thread of the program or of the runtime.
///
/// On other threads the runtime cannot load a class: it uses the missing `Thread` object and
/// crashes with SIGSEGV (measured on 8.0.33 and 10.0.14, `GetClassFromToken` of a class that was
/// not loaded yet).
#[diagnostic::on_unimplemented(
    message = "this CLR call is made on a thread that the runtime knows only, not in `{Self}`",
    label = "it may load a class, of which a runtime dies on a thread that it does not know",
    note = "make it in a callback, and keep the key of what it gives"
)]
pub trait RuntimeThread: MayTriggerGc {}

/// The profiler created the thread, which has never run managed code.
#[diagnostic::on_unimplemented(
    message = "this CLR call is made from the agent's own thread only, not in `{Self}`",
    label = "a thread that runs managed code must not suspend the runtime",
    note = "use `corprof::spawn_agent_thread` and `AgentCx::enter`"
)]
pub trait NativeThread: MayTriggerGc {}

/// The thread is for ReJIT requests ([`crate::Rejit::spawn`]), and the profiler may make them.
#[diagnostic::on_unimplemented(
    message = "this CLR call is made on a thread of `Rejit::spawn` only, not in the context `{Self}`",
    label = "it makes the thread one of the runtime's, which takes part in suspensions from then on",
    note = "`corprof::enable_rejit` gives the `Rejit` that makes such a thread"
)]
pub trait MayRejit: MayTriggerGc {}

/// Objects do not move: the thread is in cooperative mode for the whole call, so no collection can
/// start.
#[diagnostic::on_unimplemented(
    message = "this CLR call is made where no collection can be under way only, not in `{Self}`",
    label = "a collection moves objects, and orders the handle table without the lock that calls take",
    note = "`handle_has_object` asks less; `destroy_handle_between_collections` is for who keeps collections off otherwise"
)]
pub trait ObjectsStay: Synchronous {}

/// Code may take a lock that belongs to the profiler ([`crate::AgentLock`]).
#[diagnostic::on_unimplemented(
    message = "no lock of the profiler's own can be taken in the context `{Self}`",
    label = "a suspended or interrupted thread may hold it, and then nothing would ever go on"
)]
pub trait MayLock: Context {}

/// The profiler is being initialised: immutable flags of the event masks can still be set.
#[diagnostic::on_unimplemented(
    message = "this CLR call is made while the profiler is initialised only, not in `{Self}`",
    label = "the runtime would answer CORPROF_E_CALL_ONLY_FROM_INIT or E_FAIL"
)]
pub trait Initializing: MayTriggerGc {}

macro_rules! contexts {
    ($($(#[$doc:meta])* $name:ident $(walks $walk:ident)?: $($trait:ident)*;)*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {}
        impl sealed::Sealed for $name {}
        $(impl Context for $name {
            type Walk = $walk;
        })?
        $(impl $trait for $name {})*
    )* }
}

contexts! {
    /// In a signal handler: no lock, no allocation, nothing of the CLR.
    Signal: ;
    /// After a detach: nothing of the CLR answers any more.
    Detached: ;
    /// In a fast-path enter, leave or tailcall hook, in code called by a probe in IL, or in a frame
    /// callback of a walk started in such a place.
    Async walks Async: MayLock;
    /// While the profiler has the runtime suspended: other threads may be stopped anywhere inside
    /// the runtime, so only calls that take no lock are safe.
    Suspended walks Suspended: ;
    /// In a callback in which no GC may be triggered (the runtime opens no triggers scope): garbage
    /// collection, suspension, exception unwinding.
    NoTrigger walks NoTrigger: Synchronous MayLock;
    /// In a callback that passes objects and that the runtime makes in cooperative mode. No
    /// collection can start before it returns, so it must not block. The runtime permits some of
    /// these callbacks to trigger a collection. This crate does not, because a collection would
    /// move the objects.
    Cooperative walks NoTrigger: Synchronous ObjectsStay MayLock;
    /// In any other callback, in a slow-path hook and in the function id mapper.
    Callback walks NoTrigger: Synchronous MayTriggerGc RuntimeThread MayLock;
    /// In `ICorProfilerCallback::Initialize`: the only place to set hooks and immutable flags.
    Startup walks NoTrigger: Synchronous MayTriggerGc Initializing MayLock;
    /// In `ICorProfilerCallback3::InitializeForAttach`.
    Attach walks NoTrigger: Synchronous MayTriggerGc Initializing MayLock;
    /// On a thread of [`crate::spawn_agent_thread`].
    AgentThread walks NoTrigger: Synchronous MayTriggerGc NativeThread MayLock;
    /// On a thread of [`crate::Rejit::spawn`].
    RejitThread walks NoTrigger: Synchronous MayTriggerGc MayRejit MayLock;
}
/// Ties a value to one runtime. Invariant in `'rt`, so that values of two runtimes never unify.
pub(crate) type Brand<'rt> = PhantomData<fn(&'rt ()) -> &'rt ()>;

/// Proof that the code runs in context `C` of the runtime `'rt`.
///
/// Neither `Send` nor `Sync`, and bound to the lifetime of the callback, so it cannot be stored or
/// passed to another thread. The lifetime is also the runtime's brand: an id of another runtime
/// does not type-check. A call that may trigger a garbage collection borrows the token mutably.
/// Nothing else that borrows the token, such as a [`crate::AgentLockGuard`], can be held across
/// such a call.
#[derive(Debug)]
pub struct Cx<'rt, C> {
    runtime: &'rt Runtime,
    brand: Brand<'rt>,
    context: PhantomData<(C, *const ())>,
}

impl<'rt, C> Cx<'rt, C> {
    /// Creates a token by asserting the context.
    ///
    /// # Safety
    /// The code runs in context `C` of `runtime`, on this thread, until the value is dropped;
    /// `runtime` has been initialised; `'rt` is a lifetime that the code which receives the value
    /// cannot choose.
    pub(crate) unsafe fn assert(runtime: &'rt Runtime) -> Self {
        Self {
            runtime,
            brand: PhantomData,
            context: PhantomData,
        }
    }

    /// The calling runtime. Copy it out before borrowing the token for a call.
    pub fn info(&self) -> Info<'rt> {
        Info::new(self.runtime)
    }

    /// The token for the frame callback of a walk that is started with this token.
    pub(crate) fn in_walk(&mut self) -> Cx<'rt, C::Walk>
    where
        C: Context,
    {
        // SAFETY: the frame callback runs on this thread, during the walk, and inherits the
        // caller's callback state (`DoStackSnapshot`); `C::Walk` claims no more than that.
        unsafe { Cx::assert(self.runtime) }
    }

    /// The token for the duration of a suspension by this thread.
    pub(crate) fn suspended(&mut self) -> Cx<'rt, Suspended>
    where
        C: NativeThread,
    {
        // SAFETY: it claims less than `C` does.
        unsafe { Cx::assert(self.runtime) }
    }
}
