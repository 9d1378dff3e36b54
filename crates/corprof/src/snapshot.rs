//! Stack snapshots: walks of managed stacks by the runtime (`DoStackSnapshot`).
//!
//! The runtime walks and calls back for each frame; this module checks seeds, converts frames and
//! names the errors. A seed is a register context from which a walk begins. [`crate::Suspension`]
//! walks other threads.
//!
//! Invariants: no data of a frame outlives its callback; a seed that is not in managed code on the
//! thread's own stack never reaches the runtime.

use core::ffi::c_void;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{ControlFlow, Range};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::context::{Brand, Context, Cx, Initializing};
use crate::id::{FunctionId, Id, RuntimeIndex, ThreadId};
use crate::info::call;
use crate::runtime::{Info, Result};
use crate::sys::{
    CONTEXT_CONTROL, CONTEXT_INTEGER, ContextAmd64, CorPrfFrameInfo, EventMaskHigh, EventMaskLow,
    Hresult, SnapshotFlags,
};

/// Proof that the event mask of a runtime permits stack snapshots. It can be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackSnapshots {
    runtime: RuntimeIndex,
}

/// A frame of a snapshot. Frames come leaf first.
#[derive(Clone, Copy, Debug)]
pub enum SnapshotFrame<'frame, 'rt> {
    /// A managed method with metadata. The runtime omits dynamic methods and stubs.
    Managed {
        /// The method. Instances that share generic code are not distinguished.
        function: FunctionId<'rt>,
        /// Address: the interrupted instruction of the leaf, a return address for the other frames.
        ip: usize,
        /// Frame info for [`Info::get_function_info2_of_frame`], within the callback only.
        info: FrameInfo<'frame, 'rt>,
    },
    /// A run of consecutive unmanaged frames.
    UnmanagedRun {
        /// Instruction pointer of the run's context.
        ip: usize,
    },
}

/// The runtime's description of a frame; it cannot be stored.
#[derive(Clone, Copy, Debug)]
pub struct FrameInfo<'frame, 'rt> {
    raw: CorPrfFrameInfo,
    borrow: PhantomData<(&'frame (), Brand<'rt>, *const ())>,
}

impl FrameInfo<'_, '_> {
    pub(crate) fn raw(self) -> CorPrfFrameInfo {
        self.raw
    }
    /// # Safety
    /// The runtime lends `raw` for the lifetimes.
    pub(crate) unsafe fn new(raw: CorPrfFrameInfo) -> Self {
        Self {
            raw,
            borrow: PhantomData,
        }
    }
}

/// Registers at the start of a walk, or of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers {
    /// Instruction pointer.
    pub rip: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Frame pointer.
    pub rbp: u64,
    /// Callee-saved.
    pub rbx: u64,
    /// Callee-saved.
    pub r12: u64,
    /// Callee-saved.
    pub r13: u64,
    /// Callee-saved.
    pub r14: u64,
    /// Callee-saved.
    pub r15: u64,
}

impl fmt::Debug for Registers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rip {:#x} rsp {:#x} rbp {:#x} rbx {:#x} r12 {:#x} r13 {:#x} r14 {:#x} r15 {:#x}",
            self.rip, self.rsp, self.rbp, self.rbx, self.r12, self.r13, self.r14, self.r15
        )
    }
}

/// A seed: the register context from which a walk begins.
///
/// The seed is a hint. The runtime uses it only if it has no better start: for a thread in
/// preemptive mode it ignores the seed and begins at the thread's newest transition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seed {
    registers: Registers,
    code: Range<usize>,
    stack: Range<usize>,
}

impl Seed {
    /// A seed at a managed frame: its current registers, its code body (from
    /// [`Info::get_code_info4`]) and the address range of its stack.
    ///
    /// # Safety
    /// The registers are those of a managed frame that is on that stack while the seed is used: the
    /// registers of the interrupted thread, or those that a walk returned for a frame that has not
    /// returned. Visible errors are refused before the runtime is called ([`SeedRefused`]). But
    /// with a stack pointer inside the stack that is not the frame's, the runtime reads wrong
    /// return addresses and crashes (measured on 8.0.4 and 3.1.23).
    pub unsafe fn new(registers: Registers, code: Range<usize>, stack: Range<usize>) -> Self {
        Self {
            registers,
            code,
            stack,
        }
    }
}

/// Reason why a seed was refused before a call into the runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeedRefused {
    /// The instruction pointer is not in the code body, or the body is not managed code.
    NotManaged,
    /// The stack pointer is not inside the thread's stack, or not aligned to 8.
    NotOnTheStack,
}

/// Reason why there is no stack, or only a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WalkError {
    /// The runtime cannot walk this thread now, because the thread holds a lock of the runtime or
    /// is being suspended (`CORPROF_E_STACKSNAPSHOT_UNSAFE`). Resume at once and try later.
    Unsafe,
    /// The leaf is code of the runtime, and there is no seed, or the seed is not managed
    /// (`CORPROF_E_STACKSNAPSHOT_UNMANAGED_CTX`).
    UnmanagedContext,
    /// The thread was interrupted at a point from which the runtime cannot walk
    /// (`CORPROF_E_ASYNCHRONOUS_UNSAFE`).
    AsynchronousUnsafe,
    /// The thread has ended (`CORPROF_E_STACKSNAPSHOT_INVALID_TGT_THREAD`).
    InvalidThread,
    /// Another thread can be walked only while the runtime is suspended (`E_NOTIMPL`; on Unix
    /// always). Rarely returned during a suspension too: a thread that returns from native to
    /// managed code is in cooperative mode until it notices the suspension, and cannot be walked
    /// until then (`proftoeeinterfaceimpl.cpp`, `DoStackSnapshot`). Resume, and try later.
    NotSuspended,
    /// The walk failed; most often the thread has no managed frame (`E_FAIL`).
    NoManagedFrames,
    /// Memory could not be read during the walk (`E_UNEXPECTED`).
    Fault,
    /// The event mask does not have the flag any more, or never had it
    /// (`CORPROF_E_INCONSISTENT_WITH_FLAGS`).
    NotEnabled,
    /// The profiler is being detached (`CORPROF_E_PROFILER_DETACHING`).
    Detaching,
    /// The seed was refused before a call into the runtime.
    Seed(SeedRefused),
    /// The [`StackSnapshots`] is for another runtime.
    OtherRuntime,
    /// Any other failure.
    Other(Hresult),
}

impl WalkError {
    /// Converts a failure of `DoStackSnapshot`.
    pub fn from_hresult(answer: Hresult) -> Self {
        match answer {
            Hresult::CORPROF_E_STACKSNAPSHOT_UNSAFE => Self::Unsafe,
            Hresult::CORPROF_E_STACKSNAPSHOT_UNMANAGED_CTX => Self::UnmanagedContext,
            Hresult::CORPROF_E_ASYNCHRONOUS_UNSAFE => Self::AsynchronousUnsafe,
            Hresult::CORPROF_E_STACKSNAPSHOT_INVALID_TGT_THREAD => Self::InvalidThread,
            Hresult::E_NOTIMPL => Self::NotSuspended,
            Hresult::E_FAIL => Self::NoManagedFrames,
            Hresult::E_UNEXPECTED => Self::Fault,
            Hresult::CORPROF_E_INCONSISTENT_WITH_FLAGS => Self::NotEnabled,
            Hresult::CORPROF_E_PROFILER_DETACHING => Self::Detaching,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for WalkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsafe => "the runtime cannot walk this thread now",
            Self::UnmanagedContext => "the walk would begin in unmanaged code",
            Self::AsynchronousUnsafe => "the thread was interrupted where it cannot be walked",
            Self::InvalidThread => "the thread is gone",
            Self::NotSuspended => {
                "another thread can be walked only while it is suspended or in native code"
            }
            Self::NoManagedFrames => "the thread has no managed frames",
            Self::Fault => "memory could not be read during the walk",
            Self::NotEnabled => "the event mask does not allow stack snapshots",
            Self::Detaching => "the profiler is being detached",
            Self::Seed(SeedRefused::NotManaged) => "the seed is not in managed code",
            Self::Seed(SeedRefused::NotOnTheStack) => "the seed is not on the thread's stack",
            Self::OtherRuntime => "the proof is for another runtime",
            Self::Other(answer) => return write!(f, "the runtime answered {answer}"),
        })
    }
}

impl core::error::Error for WalkError {}

/// A walk's outcome: `Break` with the callback's value when it stopped the walk.
pub type Walked<B> = core::result::Result<ControlFlow<B>, WalkError>;

/// Callback for each frame, with its registers.
pub(crate) type EachFrame<'f, 'rt, C, B> =
    dyn FnMut(&mut Cx<'rt, C>, SnapshotFrame<'_, 'rt>, &Registers) -> ControlFlow<B> + 'f;

struct RawFrame {
    function: usize,
    ip: usize,
    info: CorPrfFrameInfo,
    context: *const u8,
}

struct FrameVisit<'f> {
    on_frame: &'f mut dyn FnMut(&RawFrame) -> bool,
    panic: Option<Box<dyn Any + Send>>,
}

unsafe extern "system" fn on_frame(
    function: usize,
    ip: usize,
    info: CorPrfFrameInfo,
    _context_size: u32,
    context: *mut u8,
    state: *mut c_void,
) -> Hresult {
    // SAFETY: the runtime passes back the pointer that `walk` gave it, during that call.
    let state = unsafe { &mut *state.cast::<FrameVisit<'_>>() };
    let frame = RawFrame {
        function,
        ip,
        info,
        context,
    };
    match catch_unwind(AssertUnwindSafe(|| (state.on_frame)(&frame))) {
        Ok(true) => Hresult::S_OK,
        Ok(false) => Hresult::S_FALSE,
        Err(thrown) => {
            state.panic = Some(thrown);
            Hresult::S_FALSE
        }
    }
}

/// # Safety
/// `context` points to the PAL's register context of a frame.
unsafe fn registers(context: *const u8) -> Registers {
    // SAFETY: the fields that are read lie in the first 0x100 bytes, which every version of the
    // structure has; unaligned reads work for any address of the structure.
    let at = |offset: usize| unsafe { context.add(offset).cast::<u64>().read_unaligned() };
    Registers {
        rip: at(core::mem::offset_of!(ContextAmd64, rip)),
        rsp: at(core::mem::offset_of!(ContextAmd64, rsp)),
        rbp: at(core::mem::offset_of!(ContextAmd64, rbp)),
        rbx: at(core::mem::offset_of!(ContextAmd64, rbx)),
        r12: at(core::mem::offset_of!(ContextAmd64, r12)),
        r13: at(core::mem::offset_of!(ContextAmd64, r13)),
        r14: at(core::mem::offset_of!(ContextAmd64, r14)),
        r15: at(core::mem::offset_of!(ContextAmd64, r15)),
    }
}

impl<'rt> Info<'rt> {
    /// Sets the event masks with `ENABLE_STACK_SNAPSHOT` and returns the proof that walks take
    /// (`SetEventMask2`).
    ///
    /// # Errors
    /// As [`Info::set_event_mask2`].
    pub fn enable_stack_snapshots<C: Initializing>(
        self,
        cx: &Cx<'rt, C>,
        low: EventMaskLow,
        high: EventMaskHigh,
    ) -> Result<StackSnapshots> {
        self.set_event_mask2(cx, low | EventMaskLow::ENABLE_STACK_SNAPSHOT, high)?;
        Ok(StackSnapshots {
            runtime: self.index(),
        })
    }

    /// Walks the calling thread (`DoStackSnapshot`). Inside a callback the runtime needs no seed.
    ///
    /// `each` runs during the walk, in a context that is synchronous if and only if `C` is. The
    /// runtime may hold locks meanwhile, so copy the needed data and return.
    ///
    /// # Errors
    /// See [`WalkError`]. On a thread without a `Thread` object of the runtime, the walk has no
    /// frames.
    pub fn walk_current<C: Context, B>(
        self,
        cx: &mut Cx<'rt, C>,
        proof: &StackSnapshots,
        mut each: impl FnMut(&mut Cx<'rt, C::Walk>, SnapshotFrame<'_, 'rt>) -> ControlFlow<B>,
    ) -> Walked<B> {
        self.walk(cx, proof, None, None, |cx, frame, _| each(cx, frame))
    }

    /// As [`Info::walk_current`], with the registers of each frame.
    ///
    /// # Errors
    /// As [`Info::walk_current`].
    pub fn walk_current_with_registers<C: Context, B>(
        self,
        cx: &mut Cx<'rt, C>,
        proof: &StackSnapshots,
        mut each: impl FnMut(
            &mut Cx<'rt, C::Walk>,
            SnapshotFrame<'_, 'rt>,
            &Registers,
        ) -> ControlFlow<B>,
    ) -> Walked<B> {
        self.walk_with_registers(cx, proof, None, None, &mut each)
    }

    /// Walks the calling thread from a register context (`DoStackSnapshot` with a seed), where the
    /// runtime has no start of its own. The seed is a hint: see [`Seed`].
    ///
    /// # Errors
    /// [`WalkError::Seed`] when the seed is not managed code on this stack.
    pub fn walk_seeded<C: Context, B>(
        self,
        cx: &mut Cx<'rt, C>,
        proof: &StackSnapshots,
        seed: &Seed,
        mut each: impl FnMut(
            &mut Cx<'rt, C::Walk>,
            SnapshotFrame<'_, 'rt>,
            &Registers,
        ) -> ControlFlow<B>,
    ) -> Walked<B> {
        self.walk_with_registers(cx, proof, None, Some(seed), &mut each)
    }

    pub(crate) fn walk_with_registers<C: Context, B>(
        self,
        cx: &mut Cx<'rt, C>,
        proof: &StackSnapshots,
        thread: Option<ThreadId<'rt>>,
        seed: Option<&Seed>,
        each: &mut EachFrame<'_, 'rt, C::Walk, B>,
    ) -> Walked<B> {
        self.walk_raw(
            cx,
            proof,
            thread,
            seed,
            SnapshotFlags::REGISTER_CONTEXT,
            |cx, frame, context| {
                let registers = if context.is_null() {
                    Registers::default()
                } else {
                    // SAFETY: the runtime lends the register context during the callback.
                    unsafe { registers(context) }
                };
                each(cx, frame, &registers)
            },
        )
    }

    pub(crate) fn walk<C: Context, B>(
        self,
        cx: &mut Cx<'rt, C>,
        proof: &StackSnapshots,
        thread: Option<ThreadId<'rt>>,
        seed: Option<&Seed>,
        each: impl FnMut(&mut Cx<'rt, C::Walk>, SnapshotFrame<'_, 'rt>, *const u8) -> ControlFlow<B>,
    ) -> Walked<B> {
        self.walk_raw(cx, proof, thread, seed, SnapshotFlags::empty(), each)
    }

    fn walk_raw<C: Context, B>(
        self,
        cx: &mut Cx<'rt, C>,
        proof: &StackSnapshots,
        thread: Option<ThreadId<'rt>>,
        seed: Option<&Seed>,
        flags: SnapshotFlags,
        mut each: impl FnMut(&mut Cx<'rt, C::Walk>, SnapshotFrame<'_, 'rt>, *const u8) -> ControlFlow<B>,
    ) -> Walked<B> {
        if proof.runtime != self.index() {
            return Err(WalkError::OtherRuntime);
        }
        let seed = seed
            .map(|seed| self.check_seed(cx, seed))
            .transpose()
            .map_err(WalkError::Seed)?;
        let mut walk_cx = cx.in_walk();
        let mut broken = None;
        let mut deliver = |raw: &RawFrame| {
            let frame = match Id::new(raw.function) {
                Some(function) => SnapshotFrame::Managed {
                    function,
                    ip: raw.ip,
                    // SAFETY: lent for this callback, and the frame does not outlive it.
                    info: unsafe { FrameInfo::new(raw.info) },
                },
                None => SnapshotFrame::UnmanagedRun { ip: raw.ip },
            };
            match each(&mut walk_cx, frame, raw.context) {
                ControlFlow::Continue(()) => true,
                ControlFlow::Break(value) => {
                    broken = Some(value);
                    false
                }
            }
        };
        let mut state = FrameVisit {
            on_frame: &mut deliver,
            panic: None,
        };
        let answer = self.snapshot_call(thread, flags, seed.as_ref(), &mut state);
        if let Some(thrown) = state.panic.take() {
            resume_unwind(thrown);
        }
        match (broken, answer) {
            // The walk ends in CORPROF_E_STACKSNAPSHOT_ABORTED when the callback stops it.
            (Some(value), _) => Ok(ControlFlow::Break(value)),
            (None, Ok(())) => Ok(ControlFlow::Continue(())),
            (None, Err(answer)) => Err(WalkError::from_hresult(answer)),
        }
    }

    fn snapshot_call(
        self,
        thread: Option<ThreadId<'rt>>,
        flags: SnapshotFlags,
        seed: Option<&ContextAmd64>,
        state: &mut FrameVisit<'_>,
    ) -> Result<()> {
        let (seed, size) = match seed {
            Some(seed) => (
                core::ptr::from_ref(seed).cast::<u8>(),
                size_of::<ContextAmd64>() as u32,
            ),
            None => (core::ptr::null(), 0),
        };
        call!(
            self,
            do_stack_snapshot(
                thread.map_or(0, Id::raw),
                Some(on_frame),
                flags.bits(),
                core::ptr::from_mut(state).cast(),
                seed,
                size,
            )
        )
        .ok()
    }

    /// Checks a seed and converts it into the runtime's register context.
    fn check_seed<C: Context>(
        self,
        cx: &Cx<'rt, C>,
        seed: &Seed,
    ) -> core::result::Result<ContextAmd64, SeedRefused> {
        let sp = seed.registers.rsp as usize;
        if !seed.stack.contains(&sp) || !sp.is_multiple_of(8) {
            return Err(SeedRefused::NotOnTheStack);
        }
        let ip = seed.registers.rip as usize;
        // The runtime counts the gap after a body as part of the body, and its walk then fails. So
        // the body's own end is checked here, and the runtime checks that the body is managed code.
        let known = self.get_function_from_ip(cx, seed.code.start);
        if !seed.code.contains(&ip) || known.is_err() || known != self.get_function_from_ip(cx, ip)
        {
            return Err(SeedRefused::NotManaged);
        }
        let from = &seed.registers;
        let mut context = ContextAmd64::ZERO;
        context.context_flags = CONTEXT_CONTROL | CONTEXT_INTEGER;
        context.rip = from.rip;
        context.rsp = from.rsp;
        context.rbp = from.rbp;
        context.rbx = from.rbx;
        context.r12 = from.r12;
        context.r13 = from.r13;
        context.r14 = from.r14;
        context.r15 = from.r15;
        Ok(context)
    }
}
