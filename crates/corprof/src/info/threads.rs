//! Managed threads: the current one, all of them, their OS thread ids.

use super::{call, complete};
use crate::context::{Context, Cx, Synchronous};
use crate::id::{AppDomainId, ContextId, Id, ThreadId};
use crate::runtime::{Info, Result};
use crate::sys::Hresult;

impl<'rt> Info<'rt> {
    /// The managed thread that runs this code (`GetCurrentThreadID`, asynchronous).
    ///
    /// # Errors
    /// `CORPROF_E_NOT_MANAGED_THREAD` if the thread has no `Thread` object of the runtime.
    pub fn get_current_thread_id<C: Context>(self, _: &Cx<'rt, C>) -> Result<ThreadId<'rt>> {
        let mut thread = 0;
        call!(self, get_current_thread_id(&mut thread)).ok()?;
        Id::new(thread).ok_or(Hresult::CORPROF_E_NOT_MANAGED_THREAD)
    }

    /// The operating system's id of a managed thread (`GetThreadInfo`, synchronous): on Linux a tid
    /// in the thread's own PID namespace.
    ///
    /// # Errors
    /// `E_FAIL` if the thread has not been started yet.
    pub fn get_thread_info<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        thread: ThreadId<'rt>,
    ) -> Result<u32> {
        let mut os_thread = 0;
        call!(self, get_thread_info(thread.raw(), &mut os_thread)).ok()?;
        Ok(os_thread)
    }

    /// The application domain in which a thread runs (`GetThreadAppDomain`, asynchronous).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_thread_app_domain<C: Context>(
        self,
        _: &Cx<'rt, C>,
        thread: ThreadId<'rt>,
    ) -> Result<Option<AppDomainId<'rt>>> {
        let mut domain = 0;
        call!(self, get_thread_app_domain(thread.raw(), &mut domain)).ok()?;
        Ok(Id::new(domain))
    }

    /// Every managed thread (`EnumThreads`, synchronous; takes the thread store's lock).
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn enum_threads<C: Synchronous>(self, _: &Cx<'rt, C>) -> Result<Vec<ThreadId<'rt>>> {
        let mut enumerator = core::ptr::null_mut();
        call!(self, enum_threads(&mut enumerator)).ok()?;
        // SAFETY: the runtime returned an enumerator and a reference to it.
        let found = unsafe { super::enumerate::threads(enumerator) }?;
        Ok(found.into_iter().filter_map(Id::new).collect())
    }

    /// Prepares the calling thread for calls into the runtime (`InitializeCurrentThread`,
    /// synchronous): it sets up thread-local data and makes no managed thread.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn initialize_current_thread<C: Synchronous>(self, _: &Cx<'rt, C>) -> Result<()> {
        call!(self, initialize_current_thread()).ok()
    }

    /// The platform layer's handle of a managed thread (`GetHandleFromThread`, synchronous). On
    /// Linux it has no meaning outside the runtime.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_handle_from_thread<C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        thread: ThreadId<'rt>,
    ) -> Result<usize> {
        let mut handle = core::ptr::null_mut();
        call!(self, get_handle_from_thread(thread.raw(), &mut handle)).ok()?;
        Ok(handle.addr())
    }

    /// The .NET context of a thread, not its registers (`GetThreadContext`, asynchronous). CoreCLR
    /// has one for all threads.
    ///
    /// # Errors
    /// The failure that the runtime reports.
    pub fn get_thread_context<C: Context>(
        self,
        _: &Cx<'rt, C>,
        thread: ThreadId<'rt>,
    ) -> Result<Option<ContextId<'rt>>> {
        let mut context = 0;
        let answer = call!(self, get_thread_context(thread.raw(), &mut context));
        Ok(complete(answer.ok())?.and_then(|()| Id::new(context)))
    }
}
