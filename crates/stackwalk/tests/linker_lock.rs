//! Checks that nothing is allocated while the dynamic linker's lock is held.
//!
//! An allocator of a heap profiler may call the dynamic linker with its own lock held. If an agent
//! then allocates while it holds the linker's lock, the program deadlocks. The allocator here
//! counts the allocations under the linker's lock.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use stackwalk::CodeMap;

thread_local! {
    /// Whether the thread is inside `dl_iterate_phdr`.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Number of allocations under the linker's lock.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all is the system's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        INSIDE.fetch_add(IS_INSIDE.get().into(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        INSIDE.fetch_add(IS_INSIDE.get().into(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        INSIDE.fetch_add(IS_INSIDE.get().into(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

type Each =
    unsafe extern "C" fn(*mut libc::dl_phdr_info, libc::size_t, *mut libc::c_void) -> libc::c_int;

/// The program's own `dl_iterate_phdr`, which the crate under test calls too: the linker's, with a
/// mark while it holds its lock.
///
/// # Safety
/// That of the linker's.
#[unsafe(no_mangle)]
unsafe extern "C" fn dl_iterate_phdr(each: Each, data: *mut libc::c_void) -> libc::c_int {
    // SAFETY: a string; the next definition is the C library's.
    let real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dl_iterate_phdr".as_ptr()) };
    // SAFETY: the type of that function.
    let real: unsafe extern "C" fn(Each, *mut libc::c_void) -> libc::c_int =
        unsafe { std::mem::transmute(real) };
    IS_INSIDE.set(true);
    // SAFETY: the caller's promise.
    let answer = unsafe { real(each, data) };
    IS_INSIDE.set(false);
    answer
}

#[test]
fn nothing_is_allocated_under_the_linkers_lock() {
    let map = Box::new(CodeMap::new());
    let mut modules = 0;
    map.refresh_native(&mut |_| {
        modules += 1;
        0
    });
    assert!(modules >= 4, "{modules}");
    // One more module is loaded and unloaded.
    for _ in 0..2 {
        // SAFETY: a library of the C library's own; its constructors do nothing.
        let library = unsafe { libc::dlopen(c"libanl.so.1".as_ptr(), libc::RTLD_NOW) };
        let before = modules;
        map.refresh_native(&mut |_| {
            modules += 1;
            0
        });
        assert!(library.is_null() || modules == before + 1, "{modules}");
        if !library.is_null() {
            // SAFETY: opened above.
            unsafe { libc::dlclose(library) };
        }
        map.refresh_native(&mut |_| 0);
    }
    assert_eq!(INSIDE.load(Ordering::Relaxed), 0);
    // The mark is visible to the allocator.
    unsafe extern "C" fn allocate(
        _: *mut libc::dl_phdr_info,
        _: libc::size_t,
        _: *mut libc::c_void,
    ) -> libc::c_int {
        drop(std::hint::black_box(Box::new(1)));
        1
    }
    // SAFETY: the callback uses nothing.
    unsafe { dl_iterate_phdr(allocate, std::ptr::null_mut()) };
    assert!(INSIDE.load(Ordering::Relaxed) > 0);
}
