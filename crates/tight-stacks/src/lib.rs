//! A machine with larger signal frames, for tests: the signal stacks that CLRs make for themselves
//! come out smaller by `TIGHT_STACKS_BY` bytes, as if the kernel's frame took so much more of them.
//!
//! To be preloaded into a program (`LD_PRELOAD`). Not a CLR's stacks alone are meant, but all of
//! its size. It knows nothing of who uses them. Invariant: who asks for a stack's bounds, or gives
//! it back, gets those that it was made with, as its maker may unmap it by them.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Size of the stacks of 3.1 to 10 (pal/src/thread/thread.cpp, `EnsureSignalAlternateStack`), the
/// guard page at its low end included.
const CLR_STACK: usize = 16384;

/// How many bytes are taken; not yet known.
static BYTES_TAKEN: AtomicUsize = AtomicUsize::new(usize::MAX);

fn bytes_taken() -> usize {
    let known = BYTES_TAKEN.load(Ordering::Relaxed);
    if known != usize::MAX {
        return known;
    }
    let wanted = std::env::var("TIGHT_STACKS_BY").ok();
    let bytes = wanted
        .and_then(|bytes| bytes.parse().ok())
        .unwrap_or(0usize);
    let bytes = bytes.min(CLR_STACK - 4096) & !63;
    BYTES_TAKEN.store(bytes, Ordering::Relaxed);
    bytes
}

/// `sigaltstack` of the C library.
///
/// # Safety
/// As there: null or valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(
    new: *const libc::stack_t,
    old: *mut libc::stack_t,
) -> libc::c_int {
    // SAFETY: the caller's promise.
    let mut wanted = unsafe { new.as_ref().copied() };
    if let Some(stack) = &mut wanted
        && stack.ss_flags & libc::SS_DISABLE == 0
        && stack.ss_size == CLR_STACK
    {
        // From the upper end: the guard page stays where it is.
        stack.ss_size -= bytes_taken();
    }
    let wanted = wanted.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: null or valid pointers, as the kernel wants them.
    let done = unsafe { libc::syscall(libc::SYS_sigaltstack, wanted, old) };
    if done != 0 {
        return -1;
    }
    // SAFETY: the caller's promise; the kernel has filled it, as it succeeded.
    let old = unsafe { old.as_mut() };
    if let Some(stack) = old
        && stack.ss_size == CLR_STACK - bytes_taken()
    {
        stack.ss_size = CLR_STACK;
    }
    0
}
