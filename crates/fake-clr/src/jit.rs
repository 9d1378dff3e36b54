//! The fake JIT: calls enter and leave hooks with the register convention of compiled code.
//!
//! Source: `genProfilingEnterCallback`, `genProfilingLeaveCallback` (`jit/codegenxarch.cpp`).

use core::arch::naked_asm;

use corprof::sys::Hresult;

use crate::{FakeClr, Thread};

/// One activation of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The thread that runs it.
    pub thread: Thread,
    /// The function.
    pub function: usize,
}

/// Calls an enter hook: r14 is the client id, r15 the caller's stack pointer.
#[unsafe(naked)]
unsafe extern "C" fn call_enter(hook: usize, client: usize, stack_pointer: usize) {
    naked_asm!(
        "push r14",
        "push r15",
        "sub rsp, 8",
        "mov r14, rsi",
        "mov r15, rdx",
        "call rdi",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "ret",
    )
}

/// Calls a leave hook: rdi is the client id, rsi the caller's stack pointer.
#[unsafe(naked)]
unsafe extern "C" fn call_leave(hook: usize, client: usize, stack_pointer: usize) {
    naked_asm!(
        "push rbp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "call rax",
        "pop rbp",
        "ret",
    )
}

/// The hooks of a compiled function, for benchmarks.
#[derive(Clone, Copy, Debug)]
pub struct HookedCode {
    enter: usize,
    leave: usize,
    client: usize,
}

impl HookedCode {
    /// Calls the enter and leave hooks once, with nothing in between.
    pub fn enter_and_leave(&self) {
        // SAFETY: the profiler set the hooks, and its mapper returned the client id; both last for
        // the life of the process.
        unsafe {
            call_enter(self.enter, self.client, 0x1000);
            call_leave(self.leave, self.client, 0x1000);
        }
    }

    /// As [`HookedCode::enter_and_leave`], with hooks that return at once: the cost of the calls
    /// alone.
    pub fn bare(&self) {
        #[unsafe(naked)]
        unsafe extern "C" fn nothing() {
            naked_asm!("ret")
        }
        // SAFETY: a function that returns at once takes any arguments.
        unsafe {
            call_enter(nothing as *const () as usize, self.client, 0x1000);
            call_leave(nothing as *const () as usize, self.client, 0x1000);
        }
    }
}

impl FakeClr {
    /// The hooks that a function's code calls; `None` if the function is not hooked.
    pub fn hooked_code(&self, frame: Frame) -> Option<HookedCode> {
        let client = self.on_thread(frame.thread, || self.client_of(frame.function))?;
        let hooks = self.shared.lock().hooks?;
        Some(HookedCode {
            enter: hooks.enter,
            leave: hooks.leave,
            client,
        })
    }

    /// Runs `body` as a managed function of a thread, between its enter and leave hooks. The first
    /// call compiles and maps the function.
    pub fn run_function<R>(&self, frame: Frame, body: impl FnOnce() -> R) -> R {
        self.on_thread(frame.thread, || {
            let client = self.client_of(frame.function);
            let hooks = self.shared.lock().hooks;
            let stack_pointer = core::ptr::from_ref(&client).addr();
            if let (Some(client), Some(hooks)) = (client, hooks) {
                // SAFETY: the profiler set the hook, and its mapper returned the client id.
                unsafe { call_enter(hooks.enter, client, stack_pointer) };
            }
            let result = body();
            if let (Some(client), Some(hooks)) = (client, hooks) {
                // SAFETY: as above.
                unsafe { call_leave(hooks.leave, client, stack_pointer) };
            }
            result
        })
    }

    /// The mapper's client id of a function; `None` if the function is not hooked.
    fn client_of(&self, function: usize) -> Option<usize> {
        let (known, mapper) = {
            let state = self.shared.lock();
            (state.mapped.get(&function).copied(), state.mapper)
        };
        if let Some(known) = known {
            return known;
        }
        let (mapper, data) = mapper?;
        let mut hook = 1;
        let mut client = 0;
        // EEFunctionIDMapper is entered like an ordinary callback.
        self.callback(crate::CallbackMode::Preemptive, |_| {
            // SAFETY: the profiler set the mapper and its data.
            client = unsafe {
                mapper(
                    function,
                    core::ptr::with_exposed_provenance_mut(data),
                    &mut hook,
                )
            };
            Hresult::S_OK
        });
        let mapped = (hook != 0).then_some(client);
        self.shared.lock().mapped.insert(function, mapped);
        mapped
    }
}
