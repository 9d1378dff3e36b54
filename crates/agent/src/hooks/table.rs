//! Signal-safe table of shadow stacks: finds the calling thread's by its thread pointer.
//!
//! Hooks and the signal handler look it up by the thread pointer (`fs:0`), which is unique among
//! running threads. Thread-local storage of a loaded library is not used, as the C library may have
//! to allocate it; neither is a system call.
//!
//! Invariants: each thread creates its own entry, so a lookup finds the thread's own stack or none.
//! A lookup is a bounded number of loads. Its result is readable for ever, because shadow stacks
//! are reused but never freed.

use std::arch::asm;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed, fence};

use super::stack::ShadowStack;

/// Twice the number of the sampler's slots, so that half of the entries are free.
const ENTRIES: usize = 8192;
/// Maximum distance of an entry from its hash position.
const REACH: usize = 64;
/// An entry that was never used.
const FREE: usize = 0;
/// An entry whose thread has ended.
const LEFT: usize = 1;

struct ShadowEntry {
    thread: AtomicUsize,
    shadow: AtomicPtr<ShadowStack>,
}

static SHADOW_ENTRY: [ShadowEntry; ENTRIES] = [const {
    ShadowEntry {
        thread: AtomicUsize::new(FREE),
        shadow: AtomicPtr::new(std::ptr::null_mut()),
    }
}; ENTRIES];

/// Held to create or remove an entry, not for a lookup.
static CHANGES: Mutex<()> = Mutex::new(());

/// Returns the calling thread's pointer.
#[inline]
fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: on x86-64 Linux, fs:0 holds the address of the thread's control block (psABI, TLS
    // variant II), in every C library.
    unsafe {
        asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}

fn place(thread: usize) -> usize {
    // Control blocks are at the ends of stacks: their low bits are alike.
    let mixed = (thread as u64 >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 51) as usize % ENTRIES
}

fn entries_for(thread: usize) -> impl Iterator<Item = &'static ShadowEntry> {
    let first = place(thread);
    (0..REACH).filter_map(move |step| SHADOW_ENTRY.get((first + step) % ENTRIES))
}

/// Returns the calling thread's shadow stack, if it has one. Callable from a signal handler.
#[inline]
pub(super) fn own() -> Option<&'static ShadowStack> {
    let thread = thread_pointer();
    for entry in entries_for(thread) {
        match entry.thread.load(Relaxed) {
            found if found == thread => {
                // SAFETY: null, or a shadow stack, which is never freed; this thread stored the
                // pointer.
                return unsafe { entry.shadow.load(Relaxed).as_ref() };
            }
            FREE => return None,
            _ => {}
        }
    }
    None
}

/// Sets the calling thread's shadow stack. Returns the previous one, which may be that of an
/// earlier thread with the same control block. `Err` if no entry is free.
pub(super) fn set_own(shadow: &'static ShadowStack) -> Result<Option<&'static ShadowStack>, ()> {
    let thread = thread_pointer();
    let _changes = CHANGES.lock().unwrap_or_else(|e| e.into_inner());
    let pointer = std::ptr::from_ref(shadow).cast_mut();
    let mut usable = None;
    for entry in entries_for(thread) {
        match entry.thread.load(Relaxed) {
            found if found == thread => {
                // SAFETY: as in `own`.
                return Ok(unsafe { entry.shadow.swap(pointer, Relaxed).as_ref() });
            }
            FREE => {
                usable = usable.or(Some(entry));
                break;
            }
            LEFT => usable = usable.or(Some(entry)),
            _ => {}
        }
    }
    let entry = usable.ok_or(())?;
    entry.shadow.store(pointer, Relaxed);
    // A handler on this thread that reads the number sees the pointer too.
    fence(Ordering::Release);
    entry.thread.store(thread, Relaxed);
    Ok(None)
}

/// Removes the entry of `shadow`, whose thread has ended. A newer thread with the same control
/// block keeps its own.
pub(super) fn remove(shadow: &'static ShadowStack) {
    let _changes = CHANGES.lock().unwrap_or_else(|e| e.into_inner());
    for entry in &SHADOW_ENTRY {
        if std::ptr::eq(entry.shadow.load(Relaxed), shadow) {
            entry.thread.store(LEFT, Relaxed);
            entry.shadow.store(std::ptr::null_mut(), Relaxed);
        }
    }
}
