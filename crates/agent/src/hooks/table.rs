//! The table of shadow stacks: finds the calling thread's.
//!
//! Hooks and the signal handler find it by the thread pointer (`fs:0`), which is a thread's own for
//! as long as it lives: no thread-local storage of a loaded library, which the C library may have
//! to allocate, and no system call.
//!
//! Invariants: an entry is made by its own thread, so a thread finds its own or none; finding is
//! a bounded number of loads; what is found stays readable for ever, because shadow stacks are
//! used again but never freed.

use std::arch::asm;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed, fence};

use super::stack::ShadowStack;

/// As many as the sampler has slots, and half of the entries free.
const ENTRIES: usize = 8192;
/// How far an entry may be from where it belongs.
const REACH: usize = 64;
/// An entry that belongs to no thread and never did.
const FREE: usize = 0;
/// An entry of no thread any more.
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

/// Held to make or remove an entry; not to find one.
static CHANGES: Mutex<()> = Mutex::new(());

/// The calling thread's pointer.
#[inline]
fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: on x86-64 Linux, fs:0 holds the address of the thread's control block (psABI, TLS
    // variant II), whichever C library there is.
    unsafe {
        asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}

fn place(thread: usize) -> usize {
    // Control blocks lie at the ends of stacks: their low bits are alike.
    let mixed = (thread as u64 >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 51) as usize % ENTRIES
}

fn entries_for(thread: usize) -> impl Iterator<Item = &'static ShadowEntry> {
    let first = place(thread);
    (0..REACH).filter_map(move |step| SHADOW_ENTRY.get((first + step) % ENTRIES))
}

/// The calling thread's shadow stack, if it has one. May be called in a signal handler.
#[inline]
pub(super) fn own() -> Option<&'static ShadowStack> {
    let thread = thread_pointer();
    for entry in entries_for(thread) {
        match entry.thread.load(Relaxed) {
            found if found == thread => {
                // SAFETY: null, or a shadow stack, which is never freed; this thread stored it.
                return unsafe { entry.shadow.load(Relaxed).as_ref() };
            }
            FREE => return None,
            _ => {}
        }
    }
    None
}

/// Makes `shadow` the calling thread's. Answers the one that it had, which may be an earlier
/// thread's with the same control block. `Err`: there is no entry left.
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
    // A handler on this thread that sees the number sees the pointer too.
    fence(Ordering::Release);
    entry.thread.store(thread, Relaxed);
    Ok(None)
}

/// Removes the entry of `shadow`, whose thread has ended. A thread that has its control block by
/// now keeps its own.
pub(super) fn remove(shadow: &'static ShadowStack) {
    let _changes = CHANGES.lock().unwrap_or_else(|e| e.into_inner());
    for entry in &SHADOW_ENTRY {
        if std::ptr::eq(entry.shadow.load(Relaxed), shadow) {
            entry.thread.store(LEFT, Relaxed);
            entry.shadow.store(std::ptr::null_mut(), Relaxed);
        }
    }
}
