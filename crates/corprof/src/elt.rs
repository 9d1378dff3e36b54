//! Enter, leave and tailcall hooks (ELT): Rust functions called for each hooked method.
//!
//! The hooks run on the program's thread. Compiled code calls fast-path hooks with a special
//! convention, in the middle of a prologue, while all argument registers are live. The naked stubs
//! here preserve every register that the hooked method or its caller uses. The function id mapper
//! puts a pointer to the runtime and function into the compiled code.
//!
//! Invariants: a hook gets the runtime and function for which it was compiled; no panic leaves a
//! hook.
//!
//! Source: `genProfilingEnterCallback`, `genProfilingLeaveCallback` (`jit/codegenxarch.cpp`),
//! `ProfileEnterNaked` (`vm/amd64`), the `COR_PRF_FUNCTION_…` part of `corprof.idl`.

use core::arch::naked_asm;
use core::ffi::c_void;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use crate::context::{Async, Brand, Callback, Cx, Startup, Synchronous};
use crate::id::{FunctionId, FunctionKey, Id};
use crate::info::call;
use crate::runtime::{Info, Result, Runtime};
use crate::snapshot::FrameInfo;
use crate::sys::{
    Bool, CorPrfEltInfo, CorPrfFunctionArgumentInfo, CorPrfFunctionArgumentRange, FunctionID,
    FunctionIDOrClientID, Hresult,
};

/// Chooses the functions to hook; for [`FastHooks`] and [`SlowHooks`].
pub trait FunctionMapper: Send + Sync + 'static {
    /// Returns a tag if `function` is to be hooked. Each hook call passes the tag back. Called when
    /// the function is compiled, perhaps several times and on several threads at once; the first
    /// result counts. The JIT holds locks: do not wait for other managed threads.
    fn map<'rt>(&self, cx: &mut Cx<'rt, Callback>, function: FunctionId<'rt>) -> Option<usize> {
        let _ = (cx, function);
        Some(0)
    }

    /// Whether the function that was mapped to `tag` still has its id. The runtime reuses the id of
    /// an unloaded function. A profiler that records unloads returns `false` here, and
    /// [`FunctionMapper::map`] is called again. Called when a function, or another one with its id,
    /// is compiled again, under the same rules as `map`.
    fn is_current(&self, tag: usize) -> bool {
        let _ = tag;
        true
    }
}

/// Fast-path hooks. They are called without a transition, so the context is asynchronous. The
/// thread is in cooperative mode, so they must not block.
pub trait FastHooks: FunctionMapper {
    /// Called when a function begins.
    fn enter<'rt>(&self, cx: &mut Cx<'rt, Async>, call: &HookCall<'rt>);
    /// Called when a function returns.
    fn leave<'rt>(&self, cx: &mut Cx<'rt, Async>, call: &HookCall<'rt>);
    /// Called when a function ends by a tail call.
    fn tailcall<'rt>(&self, cx: &mut Cx<'rt, Async>, call: &HookCall<'rt>);
}

/// Slow-path hooks. They are called with a transition frame, so the context is synchronous, and
/// arguments, return value and exact frame are available.
pub trait SlowHooks: FunctionMapper {
    /// Called when a function begins.
    fn enter<'rt>(&self, cx: &mut Cx<'rt, Callback>, call: &HookCall<'rt>, elt: EltInfo<'_, 'rt>);
    /// Called when a function returns.
    fn leave<'rt>(&self, cx: &mut Cx<'rt, Callback>, call: &HookCall<'rt>, elt: EltInfo<'_, 'rt>);
    /// Called when a function ends by a tail call.
    fn tailcall<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        call: &HookCall<'rt>,
        elt: EltInfo<'_, 'rt>,
    );
}

/// One call of a hook.
#[derive(Clone, Copy, Debug)]
pub struct HookCall<'rt> {
    /// The function that begins or ends.
    pub function: FunctionId<'rt>,
    /// The tag that [`FunctionMapper::map`] returned for the function.
    pub tag: usize,
    /// In a fast-path hook, the stack pointer of the caller: the same in enter and leave of one
    /// call, different for each call on the stack. 0 in a slow-path hook.
    pub stack_pointer: usize,
}

/// The runtime's description of a hooked call; valid within the hook only.
#[derive(Clone, Copy, Debug)]
pub struct EltInfo<'hook, 'rt> {
    raw: CorPrfEltInfo,
    borrow: PhantomData<(&'hook (), Brand<'rt>, *const ())>,
}

/// Arguments of a hooked call.
#[derive(Clone, Debug)]
pub struct EnterInfo<'hook, 'rt> {
    /// The frame.
    pub frame: FrameInfo<'hook, 'rt>,
    /// Address and length in bytes of each run of argument memory.
    pub arguments: Vec<(usize, u32)>,
}

/// Return value of a hooked call.
#[derive(Clone, Copy, Debug)]
pub struct LeaveInfo<'hook, 'rt> {
    /// The frame.
    pub frame: FrameInfo<'hook, 'rt>,
    /// Address and length in bytes of the return value; `None` for none.
    pub value: Option<(usize, u32)>,
}

/// The hooks of one runtime. Never freed, because compiled code refers to it.
struct Installed<H: 'static> {
    runtime: Runtime,
    hooks: H,
    functions: Mutex<HashMap<FunctionID, KnownFunction<H>>>,
}

/// The mapper's result for a function.
struct KnownFunction<H: 'static> {
    /// Kept when a later function with the same id is not hooked, because the next one may be
    /// hooked again. Freed code no longer refers to it.
    hooked: Option<&'static Hooked<H>>,
    wanted: bool,
}

/// A hooked function, which its code passes to the hooks. Never freed, but reused for the next
/// function with the same id: 32 bytes a function.
struct Hooked<H: 'static> {
    installed: &'static Installed<H>,
    function: FunctionKey,
    /// Changed only when no code compiled with the old tag is left.
    tag: AtomicUsize,
}

/// The function id mapper.
///
/// # Safety
/// The runtime calls it with the `client_data` that `install` passed.
unsafe extern "system" fn map<H: FunctionMapper>(
    function: FunctionID,
    client_data: *mut c_void,
    hook: *mut Bool,
) -> usize {
    // SAFETY: `client_data` is what `install` leaked.
    let installed = unsafe { &*client_data.cast_const().cast::<Installed<H>>() };
    let hooked = catch_unwind(AssertUnwindSafe(|| hooked(installed, function)))
        .map_err(|thrown| {
            installed.runtime.inner().count_panic();
            core::mem::forget(thrown);
        })
        .ok()
        .flatten();
    // SAFETY: null or the address to which the runtime wants the result written.
    if let Some(hook) = unsafe { hook.as_mut() } {
        *hook = hooked.is_some().into();
    }
    match hooked {
        Some(hooked) => core::ptr::from_ref(hooked).expose_provenance(),
        // Not hooked, but the runtime requires a number other than 0.
        None => function,
    }
}

fn hooked<H: FunctionMapper>(
    installed: &'static Installed<H>,
    raw: FunctionID,
) -> Option<&'static Hooked<H>> {
    let functions = || {
        installed
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    };
    let known = functions()
        .get(&raw)
        .map(|known| known.hooked.filter(|_| known.wanted));
    match known {
        Some(None) => return None,
        Some(Some(hooked)) if installed.hooks.is_current(hooked.tag.load(Relaxed)) => {
            return Some(hooked);
        }
        _ => {}
    }
    let function = Id::new(raw)?;
    // SAFETY: the mapper is called like an ordinary callback (`EEFunctionIDMapper`), and the id
    // does not leave this function.
    let mut cx: Cx<'_, Callback> = unsafe { Cx::assert(&installed.runtime) };
    let tag = installed.hooks.map(&mut cx, function);
    let function = cx.info().key(function);
    let mut functions = functions();
    let known = functions.entry(raw).or_insert(KnownFunction {
        hooked: None,
        wanted: false,
    });
    match (tag, known.hooked) {
        (None, _) => known.wanted = false,
        // Another thread was first, and its result counts, or the function that had the id is
        // unloaded.
        (Some(tag), Some(hooked)) => {
            if !known.wanted || !installed.hooks.is_current(hooked.tag.load(Relaxed)) {
                hooked.tag.store(tag, Relaxed);
            }
            known.wanted = true;
        }
        (Some(tag), None) => {
            known.hooked = Some(Box::leak(Box::new(Hooked {
                installed,
                function,
                tag: AtomicUsize::new(tag),
            })));
            known.wanted = true;
        }
    }
    known.hooked.filter(|_| known.wanted)
}

/// The hook of a call that runs.
enum Event {
    Enter,
    Leave,
    Tailcall,
}

/// Runs a fast-path hook.
///
/// # Safety
/// `client` is a pointer that [`map`] returned for hooks of type `H`.
unsafe fn fast<H: FastHooks>(client: *const c_void, stack_pointer: usize, event: Event) {
    // SAFETY: guaranteed by the caller; a `Hooked` is never freed.
    let hooked = unsafe { &*client.cast::<Hooked<H>>() };
    let installed = hooked.installed;
    let run = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: a fast-path hook of this very runtime; the hooks are generic over the brand.
        let mut cx: Cx<'_, Async> = unsafe { Cx::assert(&installed.runtime) };
        if let Some(function) = cx.info().id(hooked.function) {
            let call = HookCall {
                function,
                tag: hooked.tag.load(Relaxed),
                stack_pointer,
            };
            match event {
                Event::Enter => installed.hooks.enter(&mut cx, &call),
                Event::Leave => installed.hooks.leave(&mut cx, &call),
                Event::Tailcall => installed.hooks.tailcall(&mut cx, &call),
            }
        }
    }));
    if let Err(thrown) = run {
        installed.runtime.inner().count_panic();
        core::mem::forget(thrown);
    }
}

unsafe extern "C" fn fast_enter<H: FastHooks>(client: *const c_void, stack_pointer: usize) {
    // SAFETY: the stub passes on the arguments of the compiled code.
    unsafe { fast::<H>(client, stack_pointer, Event::Enter) }
}
unsafe extern "C" fn fast_leave<H: FastHooks>(client: *const c_void, stack_pointer: usize) {
    // SAFETY: as in `fast_enter`.
    unsafe { fast::<H>(client, stack_pointer, Event::Leave) }
}
unsafe extern "C" fn fast_tailcall<H: FastHooks>(client: *const c_void, stack_pointer: usize) {
    // SAFETY: as in `fast_enter`.
    unsafe { fast::<H>(client, stack_pointer, Event::Tailcall) }
}

/// The stub that compiled code calls at the end of a prologue. r14 is the client id, r15 the
/// caller's stack pointer. Both are callee-saved, so the call preserves them. Every register that
/// may carry an argument is live: the six integer ones, xmm0 to xmm7, and rax for calls with a
/// variable number of arguments.
#[cfg(all(target_arch = "x86_64", unix))]
#[unsafe(naked)]
unsafe extern "system" fn enter_stub<H: FastHooks>(_: FunctionIDOrClientID) {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        // Seven integer registers and eight vector registers. In the middle of a prologue the stack
        // may have any alignment.
        "and rsp, -16",
        "sub rsp, 192",
        "mov [rsp], rax",
        "mov [rsp + 8], rcx",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rsi",
        "mov [rsp + 32], rdi",
        "mov [rsp + 40], r8",
        "mov [rsp + 48], r9",
        "movaps [rsp + 64], xmm0",
        "movaps [rsp + 80], xmm1",
        "movaps [rsp + 96], xmm2",
        "movaps [rsp + 112], xmm3",
        "movaps [rsp + 128], xmm4",
        "movaps [rsp + 144], xmm5",
        "movaps [rsp + 160], xmm6",
        "movaps [rsp + 176], xmm7",
        "mov rdi, r14",
        "mov rsi, r15",
        "call {target}",
        "mov rax, [rsp]",
        "mov rcx, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rsi, [rsp + 24]",
        "mov rdi, [rsp + 32]",
        "mov r8, [rsp + 40]",
        "mov r9, [rsp + 48]",
        "movaps xmm0, [rsp + 64]",
        "movaps xmm1, [rsp + 80]",
        "movaps xmm2, [rsp + 96]",
        "movaps xmm3, [rsp + 112]",
        "movaps xmm4, [rsp + 128]",
        "movaps xmm5, [rsp + 144]",
        "movaps xmm6, [rsp + 160]",
        "movaps xmm7, [rsp + 176]",
        "mov rsp, rbp",
        "pop rbp",
        "ret",
        target = sym fast_enter::<H>,
    )
}

/// The stub that compiled code calls in an epilogue and before a tail jump. rdi is the client id,
/// rsi the caller's stack pointer. The registers of the return value are live: rax, rdx, xmm0 and
/// xmm1.
#[cfg(all(target_arch = "x86_64", unix))]
macro_rules! leave_stub {
    ($name:ident, $target:ident) => {
        #[unsafe(naked)]
        unsafe extern "system" fn $name<H: FastHooks>(_: FunctionIDOrClientID) {
            naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "and rsp, -16",
                "sub rsp, 48",
                "mov [rsp], rax",
                "mov [rsp + 8], rdx",
                "movaps [rsp + 16], xmm0",
                "movaps [rsp + 32], xmm1",
                "call {target}",
                "mov rax, [rsp]",
                "mov rdx, [rsp + 8]",
                "movaps xmm0, [rsp + 16]",
                "movaps xmm1, [rsp + 32]",
                "mov rsp, rbp",
                "pop rbp",
                "ret",
                target = sym $target::<H>,
            )
        }
    };
}
#[cfg(all(target_arch = "x86_64", unix))]
leave_stub!(leave_stub, fast_leave);
#[cfg(all(target_arch = "x86_64", unix))]
leave_stub!(tailcall_stub, fast_tailcall);

/// Runs a slow-path hook.
///
/// # Safety
/// `client` is the value that [`map`] returned for hooks of type `H`; the runtime lends `elt` for
/// the call.
unsafe fn slow<H: SlowHooks>(client: FunctionIDOrClientID, elt: CorPrfEltInfo, event: Event) {
    // SAFETY: the caller's promise: the client id is the address of a `Hooked` that is never freed.
    let hooked: &'static Hooked<H> =
        unsafe { &*core::ptr::with_exposed_provenance(client.client_id) };
    let installed = hooked.installed;
    let run = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: a slow-path hook of this very runtime is called inside a callback with a triggers
        // scope (`ProfileEnter` and its kin); the hooks are generic over the brand.
        let mut cx: Cx<'_, Callback> = unsafe { Cx::assert(&installed.runtime) };
        let elt = EltInfo {
            raw: elt,
            borrow: PhantomData,
        };
        if let Some(function) = cx.info().id(hooked.function) {
            let call = HookCall {
                function,
                tag: hooked.tag.load(Relaxed),
                stack_pointer: 0,
            };
            match event {
                Event::Enter => installed.hooks.enter(&mut cx, &call, elt),
                Event::Leave => installed.hooks.leave(&mut cx, &call, elt),
                Event::Tailcall => installed.hooks.tailcall(&mut cx, &call, elt),
            }
        }
    }));
    if let Err(thrown) = run {
        installed.runtime.inner().count_panic();
        core::mem::forget(thrown);
    }
}

unsafe extern "system" fn slow_enter<H: SlowHooks>(client: FunctionIDOrClientID, elt: usize) {
    // SAFETY: the runtime passes the client id of the compiled code and lends `elt`.
    unsafe { slow::<H>(client, elt, Event::Enter) }
}
unsafe extern "system" fn slow_leave<H: SlowHooks>(client: FunctionIDOrClientID, elt: usize) {
    // SAFETY: as in `slow_enter`.
    unsafe { slow::<H>(client, elt, Event::Leave) }
}
unsafe extern "system" fn slow_tailcall<H: SlowHooks>(client: FunctionIDOrClientID, elt: usize) {
    // SAFETY: as in `slow_enter`.
    unsafe { slow::<H>(client, elt, Event::Tailcall) }
}

impl<'rt> Info<'rt> {
    /// Sets fast-path hooks and their mapper (`SetFunctionIDMapper2`,
    /// `SetEnterLeaveFunctionHooks3`).
    ///
    /// Set the event mask first, with [`crate::EventMaskLow::MONITOR_ENTERLEAVE`] and without
    /// arguments, return values and frame info. The hooks last for the life of the process and make
    /// a detach impossible. On x86-64 Unix only.
    ///
    /// # Errors
    /// `CORPROF_E_INCONSISTENT_WITH_FLAGS` for an event mask that selects the slow path.
    #[cfg(all(target_arch = "x86_64", unix))]
    pub fn set_fast_hooks<H: FastHooks>(
        self,
        cx: &Cx<'rt, Startup>,
        hooks: H,
    ) -> Result<&'static H> {
        let installed = self.install(cx, hooks)?;
        call!(
            self,
            set_enter_leave_function_hooks3(
                Some(enter_stub::<H>),
                Some(leave_stub::<H>),
                Some(tailcall_stub::<H>),
            )
        )
        .ok()?;
        Ok(&installed.hooks)
    }

    /// Sets slow-path hooks and their mapper (`SetFunctionIDMapper2`,
    /// `SetEnterLeaveFunctionHooks3WithInfo`).
    ///
    /// Set the event mask first, with [`crate::EventMaskLow::MONITOR_ENTERLEAVE`] and at least one
    /// of arguments, return values and frame info. The hooks last for the life of the process and
    /// make a detach impossible.
    ///
    /// # Errors
    /// `CORPROF_E_INCONSISTENT_WITH_FLAGS` for an event mask that selects the fast path.
    pub fn set_slow_hooks<H: SlowHooks>(
        self,
        cx: &Cx<'rt, Startup>,
        hooks: H,
    ) -> Result<&'static H> {
        let installed = self.install(cx, hooks)?;
        call!(
            self,
            set_enter_leave_function_hooks3_with_info(
                Some(slow_enter::<H>),
                Some(slow_leave::<H>),
                Some(slow_tailcall::<H>),
            )
        )
        .ok()?;
        Ok(&installed.hooks)
    }

    fn install<H: FunctionMapper>(
        self,
        _cx: &Cx<'rt, Startup>,
        hooks: H,
    ) -> Result<&'static Installed<H>> {
        let installed: &'static Installed<H> = Box::leak(Box::new(Installed {
            runtime: self.runtime(),
            hooks,
            functions: Mutex::default(),
        }));
        let data = core::ptr::from_ref(installed).cast_mut().cast::<c_void>();
        call!(self, set_function_id_mapper2(Some(map::<H>), data)).ok()?;
        Ok(installed)
    }

    /// Frame and arguments of the call, in a slow-path enter hook (`GetFunctionEnter3Info`,
    /// synchronous).
    ///
    /// # Errors
    /// `CORPROF_E_INCONSISTENT_WITH_FLAGS` when the event mask does not select them. `E_NOTIMPL` on
    /// .NET Core 3.1, without a call: that runtime writes the arguments over the copies of xmm0 and
    /// xmm1 of `ProfileEnterNaked`, which would corrupt values of the program
    /// (`amd64/asmhelpers.S`; corrected in 5.0).
    pub fn get_function_enter3_info<'hook, C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        function: FunctionId<'rt>,
        elt: EltInfo<'hook, 'rt>,
    ) -> Result<EnterInfo<'hook, 'rt>> {
        if self.interface_version() < 12 {
            return Err(Hresult::E_NOTIMPL);
        }
        let mut frame = 0;
        let mut length = 0;
        let sized = call!(
            self,
            get_function_enter3_info(
                function.raw(),
                elt.raw,
                &mut frame,
                &mut length,
                core::ptr::null_mut()
            )
        );
        if sized.is_err() && sized != Hresult::E_INSUFFICIENT_BUFFER {
            return Err(sized);
        }
        // `u64` units give the buffer the structure's alignment.
        let mut buffer = vec![0u64; (length as usize).div_ceil(8).max(3)];
        let mut arguments = Vec::new();
        if length != 0 {
            length = (buffer.len() * 8) as u32;
            let argument_info = buffer.as_mut_ptr().cast::<CorPrfFunctionArgumentInfo>();
            call!(
                self,
                get_function_enter3_info(
                    function.raw(),
                    elt.raw,
                    &mut frame,
                    &mut length,
                    argument_info
                )
            )
            .ok()?;
            let room = (buffer.len() * 8 - 8) / size_of::<CorPrfFunctionArgumentRange>();
            // SAFETY: the buffer is as long and as aligned as the structure with `room` ranges
            // needs; the runtime filled it in.
            arguments = unsafe {
                let count = (*argument_info).num_ranges as usize;
                let first =
                    (&raw const (*argument_info).ranges).cast::<CorPrfFunctionArgumentRange>();
                core::slice::from_raw_parts(first, count.min(room))
                    .iter()
                    .map(|range| (range.start_address, range.length))
                    .collect()
            };
        }
        Ok(EnterInfo {
            // SAFETY: the runtime lends it for the hook's call.
            frame: unsafe { FrameInfo::new(frame) },
            arguments,
        })
    }

    /// Frame and return value of the call, in a slow-path leave hook (`GetFunctionLeave3Info`,
    /// synchronous).
    ///
    /// # Errors
    /// `CORPROF_E_INCONSISTENT_WITH_FLAGS` when the event mask does not select them. `E_NOTIMPL` on
    /// .NET Core 3.1: see [`Info::get_function_enter3_info`].
    pub fn get_function_leave3_info<'hook, C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        function: FunctionId<'rt>,
        elt: EltInfo<'hook, 'rt>,
    ) -> Result<LeaveInfo<'hook, 'rt>> {
        if self.interface_version() < 12 {
            return Err(Hresult::E_NOTIMPL);
        }
        let mut frame = 0;
        let mut range = CorPrfFunctionArgumentRange {
            start_address: 0,
            length: 0,
        };
        call!(
            self,
            get_function_leave3_info(function.raw(), elt.raw, &mut frame, &mut range)
        )
        .ok()?;
        Ok(LeaveInfo {
            // SAFETY: the runtime lends it for the hook's call.
            frame: unsafe { FrameInfo::new(frame) },
            value: (range.length != 0).then_some((range.start_address, range.length)),
        })
    }

    /// Frame of the call, in a slow-path tailcall hook (`GetFunctionTailcall3Info`, synchronous).
    ///
    /// # Errors
    /// `CORPROF_E_INCONSISTENT_WITH_FLAGS` when the event mask does not select it.
    pub fn get_function_tailcall3_info<'hook, C: Synchronous>(
        self,
        _: &Cx<'rt, C>,
        function: FunctionId<'rt>,
        elt: EltInfo<'hook, 'rt>,
    ) -> Result<FrameInfo<'hook, 'rt>> {
        let mut frame = 0;
        call!(
            self,
            get_function_tailcall3_info(function.raw(), elt.raw, &mut frame)
        )
        .ok()?;
        // SAFETY: the runtime lends it for the hook's call.
        Ok(unsafe { FrameInfo::new(frame) })
    }
}

/// The stubs and the mapper's entry point, for tests and benchmarks that take the part of the JIT.
#[doc(hidden)]
#[cfg(all(target_arch = "x86_64", unix))]
pub mod stubs {
    use super::*;

    /// The three stubs for hooks of type `H`.
    pub fn fast<H: FastHooks>() -> [crate::sys::FunctionEnter3; 3] {
        [enter_stub::<H>, leave_stub::<H>, tailcall_stub::<H>]
    }
}
