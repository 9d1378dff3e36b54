//! Test code that changes signals and stacks as other libraries do.
//!
//! It imitates another runtime's handler flag, a crash handler above the CLR's, and coroutines on
//! small stacks.

use std::ffi::c_void;
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use libc::{c_int, siginfo_t};

/// Adds SA_ONSTACK to a signal's handler, as Go's runtime does to every handler. Returns 0, or -1
/// if the signal has no handler.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn move_to_alternate_stack(signal: c_int) -> c_int {
    // SAFETY: all-zero is a valid sigaction; the call sets the present action plus one flag.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        if libc::sigaction(signal, null(), &raw mut action) != 0
            || matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
        {
            return -1;
        }
        action.sa_flags |= libc::SA_ONSTACK;
        libc::sigaction(signal, &raw const action, null_mut())
    }
}

/// The handler of SIGSEGV that [`handle_crashes`] replaced: the CLR's.
static PREVIOUS_HANDLER: Mutex<usize> = Mutex::new(0);

/// Passes a fault on to the replaced handler.
///
/// # Safety
/// As a handler with SA_SIGINFO.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // The lock is free: it was taken once, before this handler was installed.
    let beneath = PREVIOUS_HANDLER.try_lock().map_or(0, |beneath| *beneath);
    if beneath != 0 {
        type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
        // SAFETY: the replaced handler, which takes SA_SIGINFO like all handlers of a CLR; it gets
        // the kernel's arguments.
        unsafe { std::mem::transmute::<usize, Handler>(beneath)(signal, info, context) };
    }
}

/// Installs a handler of SIGSEGV above the present one, as crash handlers do: on the alternate
/// stack, with only its own signal blocked.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn handle_crashes() -> c_int {
    // SAFETY: all-zero is a valid sigaction; the handler stays loaded, as the program has this
    // library to its end.
    unsafe {
        let mut before: libc::sigaction = zeroed();
        libc::sigaction(libc::SIGSEGV, null(), &raw mut before);
        if let Ok(mut beneath) = PREVIOUS_HANDLER.lock() {
            *beneath = before.sa_sigaction;
        }
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &raw const action, null_mut())
    }
}

/// Size of the area of known content below a coroutine's stack.
const GUARD_BYTES: usize = 8192;
const FILL: u8 = 0xa5;

thread_local! {
    static BURN_END: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

extern "C" fn coroutine() {
    super::burn(BURN_END.get(), false);
}

/// Calls `function` on the stack that ends at `end`, as libraries of coroutines do. No walk leads
/// from there to the stack of the caller.
///
/// # Safety
/// `end` is the end of memory that nothing else uses, enough for `function`, and divisible by 16.
#[unsafe(naked)]
unsafe extern "C" fn call_on(end: *mut u8, function: extern "C" fn()) {
    std::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_undefined rip",
        "push rbp",
        "mov rbp, rsp",
        "mov rsp, rdi",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        "ret",
        ".cfi_endproc",
    )
}

/// Burns CPU for `microseconds` on a coroutine's stack of `bytes` bytes, on a thread with an
/// alternate signal stack. Returns the number of bytes that were written below the coroutine's
/// stack.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn burn_on_small_stack(bytes: c_int, microseconds: c_int) -> c_int {
    let bytes = bytes.unsigned_abs() as usize;
    let nanoseconds = u64::from(microseconds.unsigned_abs()) * 1000;
    let thread = std::thread::spawn(move || {
        let mut alternate = vec![0u8; 64 * 1024];
        let mut block = vec![FILL; GUARD_BYTES + bytes];
        BURN_END.set(nanoseconds);
        // SAFETY: both stacks live until the coroutine has returned, and the alternate one is
        // disabled before it is freed.
        unsafe {
            let mut stack: libc::stack_t = zeroed();
            let mut before: libc::stack_t = zeroed();
            stack.ss_sp = alternate.as_mut_ptr().cast();
            stack.ss_size = alternate.len();
            libc::sigaltstack(&raw const stack, &raw mut before);
            let end = block.as_mut_ptr_range().end;
            call_on(end.map_addr(|end| end & !15), coroutine);
            libc::sigaltstack(&raw const before, null_mut());
        }
        let written = block
            .iter()
            .take(GUARD_BYTES)
            .position(|byte| *byte != FILL);
        written.map_or(0, |lowest| GUARD_BYTES - lowest)
    });
    thread
        .join()
        .map_or(-1, |bytes| c_int::try_from(bytes).unwrap_or(c_int::MAX))
}
