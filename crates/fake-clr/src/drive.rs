//! Script side of the fake CLR: loads a profiler, runs managed threads, raises callbacks.
//!
//! Invariant: while a callback runs, the thread's callback state is as set by that callback's entry
//! macro in `vm/eetoprofinterfaceimpl.cpp`.

use core::ffi::c_void;

use corprof::sys::{
    Bool, CorPrfGcReason, CorPrfSuspendReason, EventMaskLow, Guid, Hresult, IClassFactory,
    ICorProfilerCallback11, Interface,
};
use corprof::{Constructor, EventMaskHigh};

use crate::state::{CallbackPointer, RunningThread, Status};
use crate::wait::Deadlock;
use crate::{FakeClr, Thread};

/// Thread mode and triggers scope of a callback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallbackMode {
    /// In preemptive mode, with a triggers scope.
    Preemptive,
    /// In cooperative mode, with a triggers scope.
    Cooperative,
    /// Without a triggers scope (`kEE2PNoTrigger`), in preemptive mode.
    NoTrigger,
    /// Without a triggers scope, in cooperative mode.
    NoTriggerCooperative,
}

/// `DllGetClassObject`: class id, interface id, out-pointer for the object.
pub type GetClassObject =
    unsafe extern "system" fn(*const Guid, *const Guid, *mut *mut c_void) -> Hresult;

impl FakeClr {
    /// Loads a profiler as `CORECLR_ENABLE_PROFILING` does, and starts the runtime.
    ///
    /// # Errors
    /// The profiler's failure; the runtime starts all the same.
    pub fn start(&self, constructor: Constructor) -> Result<(), Hresult> {
        self.start_from(|clsid, iid, out| {
            // SAFETY: `load` passes live arguments.
            unsafe { corprof::class_object(clsid, iid, out, constructor) }
        })
    }

    /// As [`FakeClr::start`], with the `DllGetClassObject` of a profiler's library.
    ///
    /// # Safety
    /// The function fulfils the CLR's contract.
    ///
    /// # Errors
    /// The profiler's failure; the runtime starts all the same.
    pub unsafe fn start_library(&self, get_class_object: GetClassObject) -> Result<(), Hresult> {
        self.start_from(|clsid, iid, out| {
            // SAFETY: `load` passes live arguments; the caller guarantees the function.
            unsafe { get_class_object(clsid, iid, out) }
        })
    }

    /// Loads a profiler as the diagnostics command `AttachProfiler` does: a class of a profiler's
    /// library.
    ///
    /// # Safety
    /// The function fulfils the CLR's contract.
    ///
    /// # Errors
    /// The profiler's failure.
    pub unsafe fn attach_library(
        &self,
        get_class_object: GetClassObject,
        class: Guid,
        client_data: &[u8],
    ) -> Result<(), Hresult> {
        self.attach_from(client_data, |_, iid, out| {
            // SAFETY: `load` passes live arguments; the caller guarantees the function.
            unsafe { get_class_object(&class, iid, out) }
        })
    }

    fn start_from(
        &self,
        get_class_object: impl FnOnce(*const Guid, *const Guid, *mut *mut c_void) -> Hresult,
    ) -> Result<(), Hresult> {
        let status = Status::InitializingForStartup;
        let loaded = self.load(get_class_object, status, |callbacks| {
            // SAFETY: the objects of the profiler and of the runtime are live.
            unsafe { ICorProfilerCallback11::initialize(callbacks, self.info().cast()) }
        });
        self.shared.lock().started = true;
        loaded
    }

    /// Loads a profiler as the diagnostics command `AttachProfiler` does. The runtime has started.
    ///
    /// # Errors
    /// The profiler's failure.
    pub fn attach(&self, constructor: Constructor, client_data: &[u8]) -> Result<(), Hresult> {
        self.attach_from(client_data, |clsid, iid, out| {
            // SAFETY: `load` passes live arguments.
            unsafe { corprof::class_object(clsid, iid, out, constructor) }
        })
    }

    fn attach_from(
        &self,
        client_data: &[u8],
        get_class_object: impl FnOnce(*const Guid, *const Guid, *mut *mut c_void) -> Hresult,
    ) -> Result<(), Hresult> {
        {
            let mut state = self.shared.lock();
            if state.status != Status::None {
                return Err(Hresult::CORPROF_E_PROFILER_ALREADY_ACTIVE);
            }
            state.started = true;
            state.attached = true;
        }
        self.load(
            get_class_object,
            Status::InitializingForAttach,
            |callbacks| {
                // SAFETY: the objects of the profiler and of the runtime are live; the data has
                // that length.
                unsafe {
                    ICorProfilerCallback11::initialize_for_attach(
                        callbacks,
                        self.info().cast(),
                        client_data.as_ptr().cast_mut().cast(),
                        client_data.len() as u32,
                    )
                }
            },
        )?;
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe { ICorProfilerCallback11::profiler_attach_complete(callbacks) }
        })
        .ok()
    }

    fn load(
        &self,
        get_class_object: impl FnOnce(*const Guid, *const Guid, *mut *mut c_void) -> Hresult,
        status: Status,
        initialize: impl FnOnce(*mut ICorProfilerCallback11) -> Hresult,
    ) -> Result<(), Hresult> {
        let clsid = Guid::new("5B1F1D3E-1E6B-4E6E-9F55-0A4F2B8D7C11");
        let mut factory: *mut c_void = core::ptr::null_mut();
        let mut found: *mut c_void = core::ptr::null_mut();
        // SAFETY: live arguments, used as the CLR uses them (`CreateProfiler`): the class factory,
        // an instance as Callback2, then the newest version that the instance has.
        let callbacks = unsafe {
            get_class_object(&clsid, &IClassFactory::IID, &mut factory).ok()?;
            let factory = factory.cast::<IClassFactory>();
            let callback2 = ICorProfilerCallback11::VERSIONS[1].iid;
            let created = IClassFactory::create_instance(
                factory,
                core::ptr::null_mut(),
                &callback2,
                &mut found,
            );
            ((*(*factory).vtbl).unknown.release)(factory.cast());
            created.ok()?;
            found.cast::<ICorProfilerCallback11>()
        };
        {
            let mut state = self.shared.lock();
            state.status = status;
            state.callbacks = Some(CallbackPointer(callbacks));
            state.is_released = false;
        }
        let answer = initialize(callbacks);
        let mut state = self.shared.lock();
        if answer.is_err() {
            state.status = Status::None;
            state.callbacks = None;
            (state.low, state.high) = (EventMaskLow::empty(), EventMaskHigh::empty());
            state.is_released = true;
            drop(state);
            // SAFETY: releases the runtime's reference.
            unsafe { ((*(*callbacks).vtbl).unknown.release)(callbacks.cast()) };
            return Err(answer);
        }
        state.status = Status::Active;
        Ok(())
    }

    /// Completes a requested detach: raises the last callback, then releases the profiler.
    pub fn finish_detach(&self) {
        let callbacks = {
            let state = self.shared.lock();
            if state.status != Status::Detaching {
                return;
            }
            state.callbacks
        };
        let Some(CallbackPointer(callbacks)) = callbacks else {
            return;
        };
        // SAFETY: the profiler's object is live; the runtime's reference is released last.
        unsafe {
            ICorProfilerCallback11::profiler_detach_succeeded(callbacks);
            self.shared.lock().is_released = true;
            ((*(*callbacks).vtbl).unknown.release)(callbacks.cast());
        }
        let mut state = self.shared.lock();
        state.callbacks = None;
        state.status = Status::None;
        (state.low, state.high) = (EventMaskLow::empty(), EventMaskHigh::empty());
    }

    /// Raises `Shutdown` and releases the profiler.
    pub fn shutdown(&self) {
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe { ICorProfilerCallback11::shutdown(callbacks) }
        });
        let callbacks = {
            let mut state = self.shared.lock();
            state.is_released = true;
            state.callbacks.take()
        };
        if let Some(CallbackPointer(callbacks)) = callbacks {
            // SAFETY: releases the runtime's reference.
            unsafe { ((*(*callbacks).vtbl).unknown.release)(callbacks.cast()) };
        }
        self.shared.lock().status = Status::None;
    }

    /// State of the profiler.
    pub fn status(&self) -> Status {
        self.shared.lock().status
    }

    /// The current event masks.
    pub fn event_mask(&self) -> (EventMaskLow, EventMaskHigh) {
        let state = self.shared.lock();
        (state.low, state.high)
    }

    /// Runs `f` on this OS thread as managed code of `thread`: in cooperative mode, outside of
    /// callbacks.
    pub fn on_thread<R>(&self, thread: Thread, f: impl FnOnce() -> R) -> R {
        self.run_as(
            Some(RunningThread {
                thread,
                in_callback: false,
                in_triggers_scope: false,
                forced: false,
                cooperative: true,
            }),
            f,
        )
    }

    fn run_as<R>(&self, running: Option<RunningThread>, f: impl FnOnce() -> R) -> R {
        let before = self.shared.set_running(running);
        self.announce(before, running);
        let result = f();
        let after = self.shared.set_running(before);
        self.announce(after, before);
        result
    }

    /// Notifies waiting threads of a change of mode.
    fn announce(&self, from: Option<RunningThread>, to: Option<RunningThread>) {
        let mut state = self.shared.lock();
        if let Some(from) = from {
            state.waits.set_cooperative(from.thread, false);
        }
        if let Some(to) = to {
            state.waits.set_cooperative(to.thread, to.cooperative);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Makes a callback on this thread; `call` selects the slot. Returns the profiler's result, or
    /// `S_OK` if no profiler is loaded.
    pub fn callback(
        &self,
        kind: CallbackMode,
        call: impl FnOnce(*mut ICorProfilerCallback11) -> Hresult,
    ) -> Hresult {
        let callbacks = {
            let state = self.shared.lock();
            match (state.callbacks, state.status) {
                (Some(callbacks), Status::Active) => callbacks,
                _ => return Hresult::S_OK,
            }
        };
        let running = self.shared.running().map(|before| RunningThread {
            in_callback: true,
            in_triggers_scope: matches!(kind, CallbackMode::Preemptive | CallbackMode::Cooperative),
            cooperative: matches!(
                kind,
                CallbackMode::Cooperative | CallbackMode::NoTriggerCooperative
            ),
            ..before
        });
        self.run_as(running, || call(callbacks.0))
    }

    pub(crate) fn wants(&self, low: EventMaskLow) -> bool {
        self.shared.lock().low.contains(low)
    }

    /// `ModuleLoadStarted`, in cooperative mode as in its contract (3.1).
    pub fn module_load_started(&self, module: usize) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_MODULE_LOADS) {
            return Hresult::S_OK;
        }
        self.callback(CallbackMode::Cooperative, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe { ICorProfilerCallback11::module_load_started(callbacks, module) }
        })
    }

    /// `JITCompilationStarted`.
    pub fn jit_compilation_started(&self, function: usize) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_JIT_COMPILATION) {
            return Hresult::S_OK;
        }
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe { ICorProfilerCallback11::jit_compilation_started(callbacks, function, 1) }
        })
    }

    /// `JITCompilationFinished`.
    pub fn jit_compilation_finished(&self, function: usize) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_JIT_COMPILATION) {
            return Hresult::S_OK;
        }
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe {
                ICorProfilerCallback11::jit_compilation_finished(
                    callbacks,
                    function,
                    Hresult::S_OK,
                    1,
                )
            }
        })
    }

    /// `ThreadCreated`.
    pub fn thread_created(&self, thread: Thread) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_THREADS) {
            return Hresult::S_OK;
        }
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe { ICorProfilerCallback11::thread_created(callbacks, thread.0) }
        })
    }

    /// `ThreadAssignedToOSThread`.
    pub fn thread_assigned_to_os_thread(&self, thread: Thread) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_THREADS) {
            return Hresult::S_OK;
        }
        let os_thread = self
            .shared
            .lock()
            .world
            .threads
            .get(&thread)
            .map_or(0, |thread| thread.os_thread);
        self.callback(CallbackMode::NoTrigger, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe {
                ICorProfilerCallback11::thread_assigned_to_os_thread(callbacks, thread.0, os_thread)
            }
        })
    }

    /// `ThreadDestroyed`, then removes the thread.
    pub fn thread_destroyed(&self, thread: Thread) -> Hresult {
        let answer = if self.wants(EventMaskLow::MONITOR_THREADS) {
            self.callback(CallbackMode::Preemptive, |callbacks| {
                // SAFETY: the profiler's object is live.
                unsafe { ICorProfilerCallback11::thread_destroyed(callbacks, thread.0) }
            })
        } else {
            Hresult::S_OK
        };
        self.shared.lock().world.remove_thread(thread);
        answer
    }

    /// `ObjectAllocated`.
    pub fn object_allocated(&self, object: usize) -> Hresult {
        let class = {
            let state = self.shared.lock();
            if !state.low.contains(EventMaskLow::MONITOR_OBJECT_ALLOCATED) {
                return Hresult::S_OK;
            }
            state
                .world
                .objects
                .get(&object)
                .map_or(0, |(class, _)| *class)
        };
        self.callback(CallbackMode::Cooperative, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe { ICorProfilerCallback11::object_allocated(callbacks, object, class) }
        })
    }

    /// `ExceptionThrown`.
    pub fn exception_thrown(&self, object: usize) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_EXCEPTIONS) {
            return Hresult::S_OK;
        }
        self.callback(CallbackMode::Cooperative, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe { ICorProfilerCallback11::exception_thrown(callbacks, object) }
        })
    }

    /// `ExceptionUnwindFunctionEnter`.
    pub fn exception_unwind_function_enter(&self, function: usize) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_EXCEPTIONS) {
            return Hresult::S_OK;
        }
        self.callback(CallbackMode::NoTrigger, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe { ICorProfilerCallback11::exception_unwind_function_enter(callbacks, function) }
        })
    }

    /// `RuntimeSuspendStarted`.
    pub fn runtime_suspend_started(&self, reason: CorPrfSuspendReason) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_SUSPENDS) {
            return Hresult::S_OK;
        }
        self.callback(CallbackMode::NoTrigger, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe { ICorProfilerCallback11::runtime_suspend_started(callbacks, reason) }
        })
    }

    /// Runs a whole collection on this thread, with `GarbageCollectionStarted` and `…Finished`.
    ///
    /// # Errors
    /// [`Deadlock`] if it would wait for ever.
    pub fn collect(&self) -> Result<(), Deadlock> {
        self.shared.begin_collection()?;
        let wanted = {
            let state = self.shared.lock();
            state.low.contains(EventMaskLow::MONITOR_GC)
                || state.high.contains(EventMaskHigh::BASIC_GC)
        };
        if wanted {
            let generations: [Bool; 3] = [1, 0, 0];
            self.callback(CallbackMode::NoTriggerCooperative, |callbacks| {
                // SAFETY: the profiler's object is live; the array has that length.
                unsafe {
                    ICorProfilerCallback11::garbage_collection_started(
                        callbacks,
                        generations.len() as i32,
                        generations.as_ptr(),
                        CorPrfGcReason::OTHER,
                    )
                }
            });
            self.callback(CallbackMode::NoTriggerCooperative, |callbacks| {
                // SAFETY: the profiler's object is live.
                unsafe { ICorProfilerCallback11::garbage_collection_finished(callbacks) }
            });
        }
        self.shared.end_collection();
        Ok(())
    }

    /// Makes this many calls of `SuspendRuntime` fail because the runtime is busy.
    pub fn set_busy(&self, times: u32) {
        self.shared.lock().busy = times;
    }

    /// Whether the profiler has suspended the runtime.
    pub fn is_suspended(&self) -> bool {
        self.shared.lock().suspended_by.is_some()
    }
}
