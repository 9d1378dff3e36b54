//! The agent's own heap, on mappings from the kernel, in place of the program's `malloc`.
//!
//! The program's `malloc` may belong to a heap profiler that unwinds stacks with locks held, may be
//! a replaced allocator, or may be the C library's with a thread of the program inside it. None of
//! them is called by the agent, and the agent's freed memory is in none of their arenas.
//!
//! Invariants: nothing of the C library is called but system calls, so locks that other code holds
//! do not matter. This includes what Rust's standard library requests from `malloc` (thread-local
//! data) independently of the global allocator. A `fork` leaves the heap consistent in the child. A
//! thread that crashed inside the heap delays a `fork` only for a bounded time.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::time::Duration;

use dlmalloc::{Allocator, Dlmalloc};
use libc::{c_char, c_int, c_void};

use crate::in_place::in_place_of;

/// Step by which the heap grows, bytes. Pages that are not written to use no memory.
const GRANULARITY: usize = 256 * 1024;
/// Number of frees of large pieces after which wholly free mappings are returned to the kernel.
const RELEASE_RATE: usize = 256;
/// Number of attempts of a `fork` to take the heap's lock, and the pause between two attempts.
const LOCK_RETRIES: u32 = 500;
const RETRY_PAUSE: Duration = Duration::from_millis(1);

struct Heap(Mutex<Dlmalloc<Mappings>>);

#[global_allocator]
static HEAP: Heap = Heap(Mutex::new(
    const {
        let mut heap = Dlmalloc::new_with_allocator(Mappings);
        assert!(heap.set_granularity(GRANULARITY), "a power of two");
        heap.set_max_release_check_rate(RELEASE_RATE);
        heap
    },
));

impl Heap {
    fn lock(&self) -> MutexGuard<'_, Dlmalloc<Mappings>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: pieces of one heap of the contract that `Dlmalloc` has, by one thread at a time.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size; an alignment of a layout.
        unsafe { self.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe { self.lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        // SAFETY: a piece of this heap and its layout, as the caller guarantees.
        unsafe { self.lock().free(piece, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: a piece of this heap and its layout, as the caller guarantees.
        unsafe {
            self.lock()
                .realloc(piece, layout.size(), layout.align(), size)
        }
    }
}

in_place_of!("malloc", own_malloc);
in_place_of!("calloc", own_calloc);
in_place_of!("realloc", own_realloc);
in_place_of!("posix_memalign", own_posix_memalign);
in_place_of!("free", own_free);
// The C library's `realpath` returns its own memory, which would be freed here. It is not needed.
in_place_of!("realpath", no_realpath);

unsafe extern "C" fn own_malloc(size: usize) -> *mut c_void {
    // SAFETY: any size.
    unsafe { HEAP.lock().c_malloc(size).cast() }
}

unsafe extern "C" fn own_calloc(count: usize, size: usize) -> *mut c_void {
    let Some(size) = count.checked_mul(size) else {
        return ptr::null_mut();
    };
    // SAFETY: any size; an alignment that `malloc` has.
    unsafe { HEAP.lock().calloc(size, 1).cast() }
}

unsafe extern "C" fn own_realloc(piece: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: a piece of this heap or null, as the caller guarantees.
    unsafe { HEAP.lock().c_realloc(piece.cast(), size).cast() }
}

unsafe extern "C" fn own_posix_memalign(
    into: *mut *mut c_void,
    align: usize,
    size: usize,
) -> c_int {
    // SAFETY: a power of two, as the caller guarantees.
    let piece = unsafe { HEAP.lock().c_memalign(align, size) };
    if piece.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: valid for writes, as the caller guarantees.
    unsafe { *into = piece.cast() };
    0
}

unsafe extern "C" fn own_free(piece: *mut c_void) {
    // SAFETY: a piece of this heap or null, as the caller guarantees.
    unsafe { HEAP.lock().c_free(piece.cast()) }
}

unsafe extern "C" fn no_realpath(_: *const c_char, _: *mut c_char) -> *mut c_char {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    ptr::null_mut()
}

/// Mappings for the agent's heap, made by system calls because tools replace the C functions.
struct Mappings;

// SAFETY: `alloc` returns memory that has no other owner, until it is freed.
unsafe impl Allocator for Mappings {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let no_file = -1_i64;
        // SAFETY: a mapping at an address of the kernel's choice overlaps no existing one.
        let at = unsafe {
            libc::syscall(
                libc::SYS_mmap,
                0_usize,
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                no_file,
                0_usize,
            )
        };
        match at {
            -1 => (ptr::null_mut(), 0, 0),
            at => (ptr::with_exposed_provenance_mut(at as usize), size, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, piece: *mut u8, old_size: usize, new_size: usize) -> bool {
        self.free(piece.wrapping_add(new_size), old_size - new_size)
    }

    fn free(&self, piece: *mut u8, size: usize) -> bool {
        // SAFETY: the heap asks for its own mappings only, and uses them no more.
        unsafe { libc::syscall(libc::SYS_munmap, piece, size) == 0 }
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

/// Returns free memory at the heap's end, and wholly free mappings, to the kernel.
pub(crate) fn release_free_memory() {
    // SAFETY: memory in use is not touched.
    unsafe { HEAP.lock().trim(0) };
}

/// The heap's lock, held by the thread that forks the process.
struct ForkLock {
    /// Thread (`pthread_self`) that forks the process, 0 if none. The thread's copy in the child
    /// has the same value.
    by: AtomicUsize,
    guard: UnsafeCell<Option<MutexGuard<'static, Dlmalloc<Mappings>>>>,
}

// SAFETY: `guard` is used by the thread `by` alone, which holds the heap's lock meanwhile.
unsafe impl Sync for ForkLock {}

static FORK_LOCK: ForkLock = ForkLock {
    by: AtomicUsize::new(0),
    guard: UnsafeCell::new(None),
};

/// Installs handlers by which a `fork` waits for threads inside the heap, so that the child's heap
/// is consistent.
pub(crate) fn install_fork_handlers() {
    static ONCE: Once = Once::new();
    // SAFETY: the functions stay loaded (the library is linked with -z nodelete).
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork));
    });
}

extern "C" fn before_fork() {
    for _ in 0..LOCK_RETRIES {
        let guard = match HEAP.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(RETRY_PAUSE);
                continue;
            }
        };
        // SAFETY: this thread has the lock, so no other one is here.
        unsafe { *FORK_LOCK.guard.get() = Some(guard) };
        FORK_LOCK.by.store(this_thread(), Ordering::Relaxed);
        return;
    }
}

extern "C" fn after_fork() {
    // The lock may be another thread's, if this thread gave up waiting for it.
    if FORK_LOCK.by.load(Ordering::Relaxed) == this_thread() {
        FORK_LOCK.by.store(0, Ordering::Relaxed);
        // SAFETY: this thread has the lock until the guard is dropped, so no other one is here.
        drop(unsafe { (*FORK_LOCK.guard.get()).take() });
    }
}

fn this_thread() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn allocate() -> usize {
        let pieces: Vec<Box<[u8]>> = (1..200).map(|size| vec![1; size * 7].into()).collect();
        pieces.iter().map(|piece| usize::from(piece[0])).sum()
    }

    #[test]
    fn a_forked_child_has_a_whole_heap() {
        install_fork_handlers();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(allocate(), 199);
                    }
                });
            }
            let mut status = 0;
            for _ in 0..200 {
                // SAFETY: the child allocates, which is what is tested, and ends without anything
                // of the parent's.
                unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        libc::alarm(20);
                        libc::_exit(i32::from(allocate() != 199));
                    }
                    libc::waitpid(child, &raw mut status, 0);
                }
                if status != 0 {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(status, 0);
        });
    }

    #[test]
    fn a_fork_waits_for_the_heap_for_a_bounded_time() {
        install_fork_handlers();
        let guard = HEAP.lock();
        // Nothing is allocated here: this thread has the heap, as one that crashed in it.
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        drop(guard);
        let mut status = -1;
        // SAFETY: a child of this process.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
