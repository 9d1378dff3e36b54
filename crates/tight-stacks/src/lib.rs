//! Test library: makes alternate signal stacks smaller, to simulate larger signal frames.
//!
//! It is preloaded into a program (`LD_PRELOAD`) and replaces `sigaltstack`. Every stack of the
//! size that a CLR uses becomes `TIGHT_STACKS_BY` bytes smaller, as if the kernel's signal frame
//! took more of it. Stacks are recognised by their size alone. Invariant: a query or a restore gets
//! the original bounds, because the owner may use them to unmap the stack.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Size of the stacks of .NET Core 3.1 to .NET 10, with the guard page at the low end
/// (pal/src/thread/thread.cpp, `EnsureSignalAlternateStack`).
const CLR_STACK: usize = 16384;

/// Bytes to remove from each stack; `usize::MAX` until it is known.
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

/// Replaces `sigaltstack` of the C library.
///
/// # Safety
/// As `sigaltstack`: null or valid pointers.
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
        // Shortened at the upper end, so that the guard page keeps its address.
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
