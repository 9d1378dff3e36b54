//! Test library: a `malloc` in front of the C library's that behaves like a heap profiler.
//!
//! It is preloaded into a program (`LD_PRELOAD`). Each call enumerates the loaded modules with a
//! lock of this library held, as unwinders do. A caller that holds the dynamic linker's lock can
//! thus deadlock the program. Callers are counted by address. At process exit, the calls of each
//! module are written to a file in the folder `WATCHED_MALLOC`, named after the process id.

use std::arch::naked_asm;
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Defines a function under the C library's name. It calls `$own` with one more argument, the
/// caller's address.
macro_rules! watched {
    ($name:ident, $caller:literal, $own:path) => {
        /// The C library's function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub extern "C" fn $name() {
            naked_asm!(
                concat!("mov ", $caller, ", [rsp]"),
                "jmp {own}",
                own = sym $own,
            );
        }
    };
}

watched!(malloc, "rsi", own_malloc);
watched!(calloc, "rdx", own_calloc);
watched!(realloc, "rdx", own_realloc);
watched!(free, "rsi", own_free);

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(piece: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(piece: *mut c_void);
}

extern "C" fn own_malloc(size: usize, caller: usize) -> *mut c_void {
    count_call(caller);
    // SAFETY: the C library's own.
    unsafe { __libc_malloc(size) }
}

extern "C" fn own_calloc(count: usize, size: usize, caller: usize) -> *mut c_void {
    count_call(caller);
    // SAFETY: the C library's own.
    unsafe { __libc_calloc(count, size) }
}

extern "C" fn own_realloc(piece: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    count_call(caller);
    // SAFETY: the program's promise.
    unsafe { __libc_realloc(piece, size) }
}

extern "C" fn own_free(piece: *mut c_void, caller: usize) {
    count_call(caller);
    // SAFETY: the program's promise.
    unsafe { __libc_free(piece) }
}

thread_local! {
    /// Whether the thread is in a call of the dynamic linker.
    static IS_IN_LINKER: Cell<bool> = const { Cell::new(false) };
}

static LOCK: Mutex<()> = Mutex::new(());

/// Callers' addresses, with the number of calls of each. Larger than any program needs.
static CALLS: [(AtomicUsize, AtomicUsize); 1 << 16] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 1 << 16];

fn count_call(caller: usize) {
    let first = caller.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    for step in 0..CALLS.len() {
        let (at, calls) = &CALLS[(first + step) % CALLS.len()];
        let now = at.compare_exchange(0, caller, Ordering::Relaxed, Ordering::Relaxed);
        if now.is_ok() || now == Err(caller) {
            calls.fetch_add(1, Ordering::Relaxed);
            break;
        }
    }
    if IS_IN_LINKER.replace(true) {
        return;
    }
    let guard = LOCK.lock();
    // SAFETY: the callback does nothing.
    unsafe { libc::dl_iterate_phdr(Some(ignore_module), std::ptr::null_mut()) };
    drop(guard);
    IS_IN_LINKER.set(false);
}

unsafe extern "C" fn ignore_module(_: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    0
}

// SAFETY: the linker calls each word of `.fini_array` as a function `extern "C" fn()` at the
// program's end.
#[unsafe(link_section = ".fini_array")]
#[used]
static AT_END: extern "C" fn() = write_counts;

/// Writes the number of calls of each module, one module a line.
extern "C" fn write_counts() {
    IS_IN_LINKER.set(true);
    let Some(folder) = std::env::var_os("WATCHED_MALLOC") else {
        return;
    };
    let file = std::path::Path::new(&folder).join(std::process::id().to_string());
    let mut modules = std::collections::BTreeMap::<String, usize>::new();
    for (at, calls) in &CALLS {
        let (at, calls) = (at.load(Ordering::Relaxed), calls.load(Ordering::Relaxed));
        if at != 0 {
            *modules.entry(module(at)).or_default() += calls;
        }
    }
    let lines = modules
        .iter()
        .map(|(module, calls)| format!("{calls} {module}\n"));
    let _written = std::fs::write(file, lines.collect::<String>());
}

fn module(at: usize) -> String {
    // SAFETY: all-zero is a valid Dl_info.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address is allowed.
    let is_found = unsafe { libc::dladdr(at as *const c_void, &raw mut found) } != 0;
    if !is_found || found.dli_fname.is_null() {
        return "?".into();
    }
    // SAFETY: on success it is a string that lives as long as the module.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    name.to_string_lossy().into_owned()
}
