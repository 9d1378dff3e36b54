//! Raises further callbacks: module loads, compilations, unloads, exceptions.
//!
//! An unloaded item is removed when its callback has returned. `drive` has the basic callbacks.
//!
//! Invariant: a callback is raised in the same thread mode as in the runtime, and only if the event
//! mask enables it.

use corprof::EventMaskHigh;
use corprof::sys::{EventMaskLow, Hresult, ICorProfilerCallback11};

use crate::{CallbackMode, FakeClr, Thread};

impl FakeClr {
    fn wants_high(&self, high: EventMaskHigh) -> bool {
        self.shared.lock().high.contains(high)
    }

    /// `ModuleLoadFinished`.
    pub fn module_load_finished(&self, module: usize) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_MODULE_LOADS) {
            return Hresult::S_OK;
        }
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe {
                ICorProfilerCallback11::module_load_finished(callbacks, module, Hresult::S_OK)
            }
        })
    }

    /// `ModuleUnloadStarted`, then removes the module with its classes, functions and code.
    pub fn module_unloaded(&self, module: usize) -> Hresult {
        let answer = if self.wants(EventMaskLow::MONITOR_MODULE_LOADS) {
            self.callback(CallbackMode::Preemptive, |callbacks| {
                // SAFETY: the profiler's object is live.
                unsafe { ICorProfilerCallback11::module_unload_started(callbacks, module) }
            })
        } else {
            Hresult::S_OK
        };
        self.shared.lock().world.remove_module(module);
        answer
    }

    /// `ClassLoadFinished`.
    pub fn class_load_finished(&self, class: usize) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_CLASS_LOADS) {
            return Hresult::S_OK;
        }
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe { ICorProfilerCallback11::class_load_finished(callbacks, class, Hresult::S_OK) }
        })
    }

    /// `JITInlining`: whether the profiler lets `callee` be inlined into `caller`.
    pub fn may_inline(&self, caller: usize, callee: usize) -> bool {
        let mut answer = 1;
        if self.wants(EventMaskLow::MONITOR_JIT_COMPILATION) {
            self.callback(CallbackMode::Preemptive, |callbacks| {
                // SAFETY: the profiler's object is live, and `answer` outlives the call.
                unsafe {
                    ICorProfilerCallback11::jit_inlining(callbacks, caller, callee, &mut answer)
                }
            });
        }
        answer != 0
    }

    /// `DynamicMethodJITCompilationFinished`.
    pub fn dynamic_compilation_finished(&self, function: usize) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_JIT_COMPILATION) {
            return Hresult::S_OK;
        }
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe {
                ICorProfilerCallback11::dynamic_method_jit_compilation_finished(
                    callbacks,
                    function,
                    Hresult::S_OK,
                    1,
                )
            }
        })
    }

    /// `DynamicMethodUnloaded`, then removes the function and its code.
    pub fn dynamic_method_unloaded(&self, function: usize) -> Hresult {
        let answer = if self.wants_high(EventMaskHigh::MONITOR_DYNAMIC_FUNCTION_UNLOADS) {
            self.callback(CallbackMode::Cooperative, |callbacks| {
                // SAFETY: the profiler's object is live.
                unsafe { ICorProfilerCallback11::dynamic_method_unloaded(callbacks, function) }
            })
        } else {
            Hresult::S_OK
        };
        self.shared.lock().world.remove_function(function);
        answer
    }

    /// `ReJITCompilationFinished`.
    pub(crate) fn rejit_compilation_finished(&self, function: usize, request: usize) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_JIT_COMPILATION) {
            return Hresult::S_OK;
        }
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe {
                ICorProfilerCallback11::rejit_compilation_finished(
                    callbacks,
                    function,
                    request,
                    Hresult::S_OK,
                    1,
                )
            }
        })
    }

    /// `ReJITError`: the function cannot be compiled with its new IL.
    pub fn rejit_error(&self, function: usize) -> Hresult {
        let found = self.function(function).expect("no such function");
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe {
                ICorProfilerCallback11::rejit_error(
                    callbacks,
                    found.module,
                    found.token,
                    function,
                    Hresult::COR_E_INVALIDPROGRAM,
                )
            }
        })
    }

    /// `ExceptionSearchCatcherFound`.
    pub fn exception_search_catcher_found(&self, function: usize) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_EXCEPTIONS) {
            return Hresult::S_OK;
        }
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live.
            unsafe { ICorProfilerCallback11::exception_search_catcher_found(callbacks, function) }
        })
    }

    /// `ThreadNameChanged`.
    pub fn thread_name_changed(&self, thread: Thread, name: &str) -> Hresult {
        if !self.wants(EventMaskLow::MONITOR_THREADS) {
            return Hresult::S_OK;
        }
        let name: Vec<u16> = name.encode_utf16().collect();
        self.callback(CallbackMode::Preemptive, |callbacks| {
            // SAFETY: the profiler's object is live, and the name has the stated length.
            unsafe {
                ICorProfilerCallback11::thread_name_changed(
                    callbacks,
                    thread.0,
                    name.len() as u32,
                    name.as_ptr().cast_mut(),
                )
            }
        })
    }
}
