//! The signal handler's code: walks the interrupted thread's stack with the selected walker.
//!
//! Input: the interrupted context and the thread's stack. Output: return addresses as words, and
//! behind them the async chain (the awaiting methods behind a resumed one), if requested.
//!
//! This is the only reader of more than one signal-safe static: code map, tables and heap gates of
//! async chains, table of hijacks, table of shadow stacks, and the waker of the agent thread. Each
//! is private to its module. Invariants: no lock, no allocation, no CLR call, no thread-local.
//! Every loop is bounded. The sampler preserves errno.

use stackwalk::ADDRESS;

use crate::base::waker;
use crate::hooks;
use crate::model::EndCode;
use crate::program::chains::{self, finder::AsyncFrameFinder};
use crate::program::code::CODE_MAP;
use crate::program::hijacks;

/// The walker's memory for one thread, owned by the sampler.
#[repr(C)]
struct Scratch {
    head: sampler::Scratch,
    /// [`READY`] once `walker` is initialised; the sampler hands out zeroed memory.
    ready: u64,
    walker: stackwalk::Scratch,
    /// Heap gate + 1 of the chain reading in progress. Not 0 at the start of a walk: the last one
    /// never returned from it.
    inside: u32,
}

const READY: u64 = 0x7363_7261_7463_6831;
const _: () = assert!(align_of::<Scratch>() <= 64);

/// Bytes of [`Scratch`] that the sampler must hand out after its own head.
pub(crate) const SCRATCH_LEN: usize = size_of::<Scratch>() - size_of::<sampler::Scratch>();

/// Walks the interrupted thread's stack. Runs in the signal handler.
///
/// # Safety
/// The sampler's contract ([`sampler::WalkFn`]): `context` is the interrupted context of the
/// calling thread, everything from its stack pointer to `stack_end` is its stack, `scratch` is this
/// thread's block of `scratch_len` bytes, `out` has room for `cap` words.
pub(crate) unsafe extern "C" fn walk(
    context: *const libc::ucontext_t,
    stack_end: u64,
    scratch: *mut sampler::Scratch,
    out: *mut u64,
    cap: usize,
) -> sampler::WalkResult {
    // SAFETY: the contract above. The block is zeroed or holds what this function left there, is
    // aligned to 64 bytes and as large as `Scratch`; no other code touches it while the handler
    // runs.
    unsafe {
        let scratch = prepared(scratch);
        let (regs, stack) = interrupted(context, stack_end);
        let out = std::slice::from_raw_parts_mut(out, cap);
        let cold = (*scratch).walker.cold;
        let walk = stackwalk::walk(&CODE_MAP, regs, &stack, &mut (*scratch).walker, out);
        request_module_refresh((*scratch).walker.cold != cold, walk, out);
        walked(walk.depth, walk.end)
    }
}

/// Walks as [`walk`], and appends the async chain of the youngest resumed async method, if there is
/// one ([`crate::model::chain`]).
///
/// # Safety
/// As [`walk`].
pub(crate) unsafe extern "C" fn walk_with_chain(
    context: *const libc::ucontext_t,
    stack_end: u64,
    scratch: *mut sampler::Scratch,
    out: *mut u64,
    cap: usize,
) -> sampler::WalkResult {
    // SAFETY: as in `walk`.
    unsafe {
        let own = prepared(scratch);
        let (regs, stack) = interrupted(context, stack_end);
        let words = std::slice::from_raw_parts_mut(out, cap);
        let inside = &mut (*own).inside;
        let finder = chains::tables().and_then(|tables| {
            AsyncFrameFinder::new(tables, &CODE_MAP, regs.all, stack_end, words, inside)
        });
        let Some(mut finder) = finder else {
            return self::walk(context, stack_end, scratch, out, cap);
        };
        let cold = (*own).walker.cold;
        let walk = stackwalk::walk_into(&CODE_MAP, regs, &stack, &mut (*own).walker, &mut finder);
        let words = finder.finish(walk.depth);
        let out = std::slice::from_raw_parts(out, cap);
        request_module_refresh((*own).walker.cold != cold, walk, out);
        walked(words, walk.end)
    }
}

/// Wakes the agent thread if a walk found code without a rule: a library may just have been loaded.
/// Only a walk that missed the rule cache (`is_cold`) can have found such code. Async-signal-safe.
fn request_module_refresh(is_cold: bool, walk: stackwalk::Walk, out: &[u64]) {
    if is_cold
        && (walk.end == stackwalk::End::Broken(stackwalk::Reason::UnknownCode)
            || out
                .iter()
                .take(walk.depth)
                .any(|word| word & stackwalk::BY_FRAME_POINTER != 0))
    {
        waker::wake_from_handler();
    }
}

/// Walks as [`walk`], and writes the stack and frame pointer of each frame too.
///
/// # Safety
/// As [`walk`], but `out` has room for `cap` frames of three words.
pub(crate) unsafe extern "C" fn trace(
    context: *const libc::ucontext_t,
    stack_end: u64,
    scratch: *mut sampler::Scratch,
    out: *mut u64,
    cap: usize,
) -> sampler::WalkResult {
    // SAFETY: the contract above; `Traced` is three words, `repr(C)`.
    let walk = unsafe {
        let scratch = prepared(scratch);
        let (regs, stack) = interrupted(context, stack_end);
        let out = std::slice::from_raw_parts_mut(out.cast::<stackwalk::Traced>(), cap);
        stackwalk::trace(&CODE_MAP, regs, &stack, &mut (*scratch).walker, out)
    };
    walked(walk.depth, walk.end)
}

/// The walk that identifies an unchanged waiting thread ([`sampler::Config::wait`]). The depth is 0
/// if the return addresses do not determine the whole stack and what a sample adds to it.
///
/// # Safety
/// As [`trace`].
pub(crate) unsafe extern "C" fn wait_walk(
    context: *const libc::ucontext_t,
    stack_end: u64,
    scratch: *mut sampler::Scratch,
    out: *mut u64,
    cap: usize,
) -> sampler::WalkResult {
    // SAFETY: the contract above.
    let walked = unsafe { trace(context, stack_end, scratch, out, cap) };
    // SAFETY: `trace` has written `depth` frames of three words each, and no more than `cap`.
    let frames = unsafe {
        let depth = cap.min(walked.depth as usize);
        std::slice::from_raw_parts_mut(out.cast::<[u64; 3]>(), depth)
    };
    let whole = walked.end == EndCode::of(stackwalk::End::Root);
    let low = frames.first().map_or(0, |[_, sp, _]| *sp);
    let is_said = frames.iter_mut().enumerate().all(|(at, frame)| {
        let [word, sp, _] = *frame;
        let address = word & ADDRESS;
        if at == 0 {
            *frame = [word, sp, address];
            return !is_async(address);
        }
        let slot = sp.wrapping_sub(RETURN_ADDRESS);
        *frame = [word, slot, address];
        word == address
            && (low..stack_end.saturating_sub(RETURN_ADDRESS)).contains(&slot)
            && slot.is_multiple_of(RETURN_ADDRESS)
            && !is_async(address.wrapping_sub(1))
            // SAFETY: aligned, and between the interrupted stack pointer and the end of this
            // thread's stack.
            && unsafe { (slot as *const u64).read_volatile() } == address
    });
    sampler::WalkResult {
        depth: if whole && is_said { walked.depth } else { 0 },
        ..walked
    }
}

/// Size of a return address. A frame's stack pointer is just above its return address.
const RETURN_ADDRESS: u64 = 8;

/// Whether the session records async chains and this is code of an async method. The same stack may
/// then belong to another chain.
fn is_async(lookup: u64) -> bool {
    chains::tables().is_some_and(|tables| tables.bodies.at(lookup).is_some())
}

const _: () = assert!(size_of::<stackwalk::Traced>() == 24);

/// Returns the outcome of a walk for the sampler. The agent's walkers never refuse a walk.
/// Async-signal-safe.
fn walked(depth: usize, end: stackwalk::End) -> sampler::WalkResult {
    sampler::WalkResult {
        depth: u32::try_from(depth).unwrap_or(0),
        end: EndCode::of(end),
        reason: 0,
    }
}

/// Returns the walker's memory, initialised for the interrupted thread.
///
/// # Safety
/// As for `scratch` of [`walk`].
unsafe fn prepared(scratch: *mut sampler::Scratch) -> *mut Scratch {
    let scratch = scratch.cast::<Scratch>();
    // SAFETY: the block is zeroed or holds what this function left there, is aligned to 64 bytes
    // and as large as `Scratch`; no other code touches it while the handler runs.
    unsafe {
        if (*scratch).ready != READY {
            (&raw mut (*scratch).walker).write(stackwalk::Scratch::new());
            (*scratch).inside = 0;
            (*scratch).ready = READY;
        }
        (*scratch).walker.hijacks = hijacks::of_interrupted((*scratch).head.slot);
    }
    scratch
}

/// Returns an interrupted thread's registers and stacks.
///
/// # Safety
/// `context` is the context of the signal being handled.
unsafe fn interrupted(
    context: *const libc::ucontext_t,
    stack_end: u64,
) -> (stackwalk::Regs, stackwalk::Stack) {
    // SAFETY: the caller's promise.
    let (regs, alt) = unsafe { stackwalk::regs_from_ucontext(context) };
    let stack = stackwalk::Stack {
        low: 0,
        end: stack_end,
        alt,
    };
    (regs, stack)
}

/// Writes one word from the shadow stack: the call-tree node that the interrupted thread runs. Runs
/// in the signal handler.
///
/// # Safety
/// The sampler's contract ([`sampler::WalkFn`]): `out` has room for `cap` words.
pub(crate) unsafe extern "C" fn shadow_walk(
    _context: *const libc::ucontext_t,
    _stack_end: u64,
    _scratch: *mut sampler::Scratch,
    out: *mut u64,
    cap: usize,
) -> sampler::WalkResult {
    if cap > 0 {
        // SAFETY: there is room for a word.
        unsafe { out.write(hooks::own_word()) };
    }
    walked(1, stackwalk::End::Root)
}
