//! Proof of the context in which code runs: what may be called there is decided by the compiler.
//!
//! The CLR checks at each entry point of `ICorProfilerInfo` in which state the calling thread is,
//! and answers `CORPROF_E_UNSUPPORTED_CALL_SEQUENCE` when it does not like it. Here each method
//! names the weakest context in which every supported runtime accepts it, and asks for a [`Cx`] of
//! at least that strength. The invariant: a `Cx` is minted by the vtable thunks, the hook stubs and
//! the thread spawner alone, and it leaves neither the thread nor the call that it was made for.

use core::marker::PhantomData;

use crate::runtime::{Info, Runtime};

mod sealed {
    pub trait Sealed {}
}

/// A context in which the runtime may be called at all (`PROFILER_TO_CLR_ENTRYPOINT_ASYNC`).
#[diagnostic::on_unimplemented(
    message = "no CLR call can be made in the context `{Self}`",
    label = "nothing of the CLR is async-signal-safe, and nothing of it answers after a detach",
    note = "in a signal handler: record the address raw and resolve it on the agent's thread"
)]
pub trait Context: sealed::Sealed {
    /// The context of the frame callback of a stack snapshot that is begun here: synchronous if and
    /// only if this one is. It never may trigger a GC, because the walk may hold locks.
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

/// The thread is one that the runtime knows: of the program's, or of its own.
///
/// On another one the runtime cannot load a class: it looks for its own thread object and ends by
/// SIGSEGV (measured on 8.0.33 and 10.0.14, `GetClassFromToken` of a class that was not loaded
/// yet).
#[diagnostic::on_unimplemented(
    message = "this CLR call is made on a thread that the runtime knows only, not in `{Self}`",
    label = "it may load a class, of which a runtime dies on a thread that it does not know",
    note = "make it in a callback, and keep the key of what it gives"
)]
pub trait RuntimeThread: MayTriggerGc {}

/// The thread is one that the profiler created and that has never run managed code.
#[diagnostic::on_unimplemented(
    message = "this CLR call is made from the agent's own thread only, not in `{Self}`",
    label = "a thread that runs managed code must not suspend the runtime",
    note = "use `corprof::spawn_agent_thread` and `AgentCx::enter`"
)]
pub trait NativeThread: MayTriggerGc {}

/// The thread is one for requests to compile methods again, of a profiler that may make them.
#[diagnostic::on_unimplemented(
    message = "this CLR call is made on a thread of `Rejit::spawn` only, not in the context `{Self}`",
    label = "it makes the thread one of the runtime's, which takes part in suspensions from then on",
    note = "`corprof::enable_rejit` gives the `Rejit` that makes such a thread"
)]
pub trait MayRejit: MayTriggerGc {}

/// Objects stay where they are: the thread is in cooperative mode, in which no collection can
/// begin, and the call does not leave it.
#[diagnostic::on_unimplemented(
    message = "this CLR call is made where no collection can be under way only, not in `{Self}`",
    label = "a collection moves objects, and orders the handle table without the lock that calls take",
    note = "`handle_has_object` asks less; `destroy_handle_between_collections` is for who keeps collections off otherwise"
)]
pub trait ObjectsStay: Synchronous {}

/// Code may take a lock of the profiler's own ([`crate::AgentLock`]).
#[diagnostic::on_unimplemented(
    message = "no lock of the profiler's own can be taken in the context `{Self}`",
    label = "a suspended or interrupted thread may hold it, and then nothing would ever go on"
)]
pub trait MayLock: Context {}

/// The profiler is being initialised: event masks that cannot be changed later are still open.
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
    /// In a fast-path enter, leave or tailcall hook, in code that the profiler put into IL, or in a
    /// frame callback of a walk that was begun in such a place.
    Async walks Async: MayLock;
    /// While the runtime is suspended by us: other threads may stand anywhere inside the runtime,
    /// so only what takes no lock is called.
    Suspended walks Suspended: ;
    /// In a callback that the runtime makes without a triggers scope: garbage collection,
    /// suspension, exception unwinding.
    NoTrigger walks NoTrigger: Synchronous MayLock;
    /// In a callback that hands out objects and that the runtime makes in cooperative mode: a
    /// collection cannot begin before it returns, so do not block. The runtime would let some of
    /// them trigger a collection; here they do not, because it would move the objects.
    Cooperative walks NoTrigger: Synchronous ObjectsStay MayLock;
    /// In any other callback, in a slow-path hook and in the function id mapper.
    Callback walks NoTrigger: Synchronous MayTriggerGc RuntimeThread MayLock;
    /// In `ICorProfilerCallback::Initialize`: the only place for hooks and immutable flags.
    Startup walks NoTrigger: Synchronous MayTriggerGc Initializing MayLock;
    /// In `ICorProfilerCallback3::InitializeForAttach`.
    Attach walks NoTrigger: Synchronous MayTriggerGc Initializing MayLock;
    /// On a thread that [`crate::spawn_agent_thread`] made.
    AgentThread walks NoTrigger: Synchronous MayTriggerGc NativeThread MayLock;
    /// On a thread that [`crate::Rejit::spawn`] made.
    RejitThread walks NoTrigger: Synchronous MayTriggerGc MayRejit MayLock;
}
/// Ties a value to one runtime: invariant, so that two runtimes' values never unify.
pub(crate) type Brand<'rt> = PhantomData<fn(&'rt ()) -> &'rt ()>;

/// Proof that the code runs in context `C` of the runtime `'rt`.
///
/// It is neither `Send` nor `Sync`, and its lifetime is that of the callback: it can be neither
/// kept nor handed to another thread. The lifetime is also the runtime's brand: an id of another
/// runtime does not fit. A call that may trigger a garbage collection borrows it mutably, so that
/// nothing that borrows it too, such as a [`crate::AgentLockGuard`], can be held across the call.
#[derive(Debug)]
pub struct Cx<'rt, C> {
    runtime: &'rt Runtime,
    brand: Brand<'rt>,
    context: PhantomData<(C, *const ())>,
}

impl<'rt, C> Cx<'rt, C> {
    /// Asserts the context.
    ///
    /// # Safety
    /// The code runs in context `C` of `runtime`, on this thread, until the value is gone;
    /// `runtime` has been initialised; `'rt` is a lifetime that the code which gets the value
    /// cannot choose.
    pub(crate) unsafe fn assert(runtime: &'rt Runtime) -> Self {
        Self {
            runtime,
            brand: PhantomData,
            context: PhantomData,
        }
    }

    /// The runtime that called. Copy it out before borrowing the proof for a call.
    pub fn info(&self) -> Info<'rt> {
        Info::new(self.runtime)
    }

    /// The proof for the frame callback of a walk that is begun with this one.
    pub(crate) fn in_walk(&mut self) -> Cx<'rt, C::Walk>
    where
        C: Context,
    {
        // SAFETY: the frame callback runs on this thread, during the walk, and inherits the
        // caller's callback state (`DoStackSnapshot`); `C::Walk` claims no more than that.
        unsafe { Cx::assert(self.runtime) }
    }

    /// The proof for the time of a suspension that this thread made.
    pub(crate) fn suspended(&mut self) -> Cx<'rt, Suspended>
    where
        C: NativeThread,
    {
        // SAFETY: it claims less than `C` does.
        unsafe { Cx::assert(self.runtime) }
    }
}
