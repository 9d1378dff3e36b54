//! Suspension of the whole runtime (`SuspendRuntime`) for the lifetime of a value.
//!
//! While suspended, the agent thread enumerates and walks the stopped threads.
//!
//! Invariants: only a native thread of the profiler suspends. During a suspension it neither holds
//! nor takes an [`crate::AgentLock`], and makes no call that takes a lock of the runtime or
//! triggers a collection. The [`Suspension`] borrows the thread's context token mutably, so such
//! code does not compile.

use core::fmt;
use core::marker::PhantomData;
use core::ops::ControlFlow;
use core::time::Duration;

use crate::context::{AgentThread, Cx, NativeThread, Suspended};
use crate::id::{Id, ThreadId};
use crate::info::call;
use crate::runtime::{Info, Result};
use crate::snapshot::{Registers, Seed, SnapshotFrame, StackSnapshots, Walked};
use crate::sys::Hresult;

/// Reason why the runtime was not suspended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SuspendError {
    /// The runtime is suspending itself (`CORPROF_E_SUSPENSION_IN_PROGRESS`). Common with frequent
    /// collections; try later.
    InProgress,
    /// The runtime has not started (`CORPROF_E_RUNTIME_UNINITIALIZED`).
    NotStarted,
    /// The runtime is older than 3.0.
    Unsupported,
    /// Any other failure.
    Other(Hresult),
}

impl SuspendError {
    /// Converts a failure of `SuspendRuntime`.
    pub fn from_hresult(answer: Hresult) -> Self {
        match answer {
            Hresult::CORPROF_E_SUSPENSION_IN_PROGRESS => Self::InProgress,
            Hresult::CORPROF_E_RUNTIME_UNINITIALIZED => Self::NotStarted,
            Hresult::E_NOINTERFACE => Self::Unsupported,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for SuspendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InProgress => "the runtime is suspending for itself",
            Self::NotStarted => "the runtime has not started",
            Self::Unsupported => "the runtime cannot be suspended by a profiler",
            Self::Other(answer) => return write!(f, "the runtime answered {answer}"),
        })
    }
}

impl core::error::Error for SuspendError {}

/// A suspended runtime, which resumes when the value is dropped.
///
/// Managed code is stopped. Native code runs until it would return to managed code. The profiler
/// may allocate memory, because threads inside `malloc` are not stopped.
#[derive(Debug)]
pub struct Suspension<'s, 'rt> {
    cx: Cx<'rt, Suspended>,
    /// Number of retries that were needed.
    retries: u32,
    borrow: PhantomData<&'s mut Cx<'rt, AgentThread>>,
}

impl<'rt> Info<'rt> {
    /// Suspends the runtime (`SuspendRuntime`, may trigger a GC). Only a native thread of the
    /// profiler may do so, because a thread that runs managed code could not suspend itself.
    ///
    /// # Errors
    /// See [`SuspendError`].
    pub fn suspend_runtime<'s, C: NativeThread>(
        self,
        cx: &'s mut Cx<'rt, C>,
    ) -> Result<Suspension<'s, 'rt>, SuspendError> {
        self.suspend_runtime_with_retries(cx, 0, Duration::ZERO)
    }

    /// As [`Info::suspend_runtime`], with up to `retries` retries, `pause` apart, while the runtime
    /// is suspending itself. [`Suspension::retries`] returns their number.
    ///
    /// # Errors
    /// See [`SuspendError`].
    pub fn suspend_runtime_with_retries<'s, C: NativeThread>(
        self,
        cx: &'s mut Cx<'rt, C>,
        retries: u32,
        pause: Duration,
    ) -> Result<Suspension<'s, 'rt>, SuspendError> {
        // The token already proves this, except for managed code that other code runs on this
        // thread.
        debug_assert!(
            self.get_current_thread_id(cx).is_err(),
            "a thread that has run managed code must not suspend the runtime"
        );
        let mut tried = 0;
        loop {
            match self.suspend_call() {
                Ok(()) => {
                    return Ok(Suspension {
                        cx: cx.suspended(),
                        retries: tried,
                        borrow: PhantomData,
                    });
                }
                Err(Hresult::CORPROF_E_SUSPENSION_IN_PROGRESS) if tried < retries => {
                    tried += 1;
                    std::thread::sleep(pause);
                }
                Err(answer) => return Err(SuspendError::from_hresult(answer)),
            }
        }
    }

    fn suspend_call(self) -> Result<()> {
        call!(self, suspend_runtime()).ok()
    }

    fn resume_call(self) -> Result<()> {
        call!(self, resume_runtime()).ok()
    }
}

impl<'rt> Suspension<'_, 'rt> {
    /// The context token during the suspension. It permits only calls that take no lock.
    pub fn cx(&mut self) -> &mut Cx<'rt, Suspended> {
        &mut self.cx
    }

    /// Number of retries that were needed.
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// Every managed thread (`EnumThreads`; while suspended it takes no lock).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enum_threads(&self) -> Result<Vec<ThreadId<'rt>>> {
        let mut enumerator = core::ptr::null_mut();
        call!(self.cx.info(), enum_threads(&mut enumerator)).ok()?;
        // SAFETY: the runtime returned an enumerator and a reference to it.
        let found = unsafe { crate::info::enumerate::threads(enumerator) }?;
        Ok(found.into_iter().filter_map(Id::new).collect())
    }

    /// As [`Suspension::enum_threads`], without allocating: replaces the content of `into`, up to
    /// its capacity. Returns whether all threads fit.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enum_threads_into(&self, into: &mut Vec<ThreadId<'rt>>) -> Result<bool> {
        into.clear();
        let mut enumerator = core::ptr::null_mut();
        call!(self.cx.info(), enum_threads(&mut enumerator)).ok()?;
        // SAFETY: the runtime returned an enumerator and a reference to it.
        unsafe { crate::info::enumerate::threads_into(enumerator, into, Id::new) }
    }

    /// The operating system's thread id of a managed thread (`GetThreadInfo`).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_thread_info(&self, thread: ThreadId<'rt>) -> Result<u32> {
        let mut os_thread = 0;
        call!(
            self.cx.info(),
            get_thread_info(thread.raw(), &mut os_thread)
        )
        .ok()?;
        Ok(os_thread)
    }

    /// Walks a thread (`DoStackSnapshot`).
    ///
    /// # Errors
    /// See [`crate::WalkError`]; `NoManagedFrames` is common for the runtime's own threads.
    pub fn walk<B>(
        &mut self,
        proof: &StackSnapshots,
        thread: ThreadId<'rt>,
        mut each: impl FnMut(&mut Cx<'rt, Suspended>, SnapshotFrame<'_, 'rt>) -> ControlFlow<B>,
    ) -> Walked<B> {
        let info = self.cx.info();
        info.walk(&mut self.cx, proof, Some(thread), None, |cx, frame, _| {
            each(cx, frame)
        })
    }

    /// As [`Suspension::walk`], with the registers of each frame.
    ///
    /// # Errors
    /// As [`Suspension::walk`].
    pub fn walk_with_registers<B>(
        &mut self,
        proof: &StackSnapshots,
        thread: ThreadId<'rt>,
        mut each: impl FnMut(
            &mut Cx<'rt, Suspended>,
            SnapshotFrame<'_, 'rt>,
            &Registers,
        ) -> ControlFlow<B>,
    ) -> Walked<B> {
        let info = self.cx.info();
        info.walk_with_registers(&mut self.cx, proof, Some(thread), None, &mut each)
    }

    /// As [`Suspension::walk_with_registers`], from a seed; see [`Seed`].
    ///
    /// # Errors
    /// As [`Suspension::walk`], and [`crate::WalkError::Seed`].
    pub fn walk_seeded<B>(
        &mut self,
        proof: &StackSnapshots,
        thread: ThreadId<'rt>,
        seed: &Seed,
        mut each: impl FnMut(
            &mut Cx<'rt, Suspended>,
            SnapshotFrame<'_, 'rt>,
            &Registers,
        ) -> ControlFlow<B>,
    ) -> Walked<B> {
        let info = self.cx.info();
        info.walk_with_registers(&mut self.cx, proof, Some(thread), Some(seed), &mut each)
    }

    /// Resumes the runtime (`ResumeRuntime`) and returns the result. Dropping the value resumes
    /// too, but discards the result.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn resume(self) -> Result<()> {
        let info = self.cx.info();
        core::mem::forget(self);
        info.resume_call()
    }
}

impl Drop for Suspension<'_, '_> {
    fn drop(&mut self) {
        // `drop` cannot return the result; `resume` can.
        let _ = self.cx.info().resume_call();
    }
}
