//! The end of a tool that has no memory left: a message, and the recorded program's exit code.
//!
//! Rust would abort, and the exit code 134 would be taken for the program's. Invariants: the
//! recorded program is waited for, as it may go on for long; from here on nothing is allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::libc;

/// The recorded program while it runs, else 0.
static PROGRAM_PID: AtomicI32 = AtomicI32::new(0);
/// Exit code for the tool: the recorded program's, once it has one.
static EXIT_CODE: AtomicI32 = AtomicI32::new(NONE);
const NONE: i32 = -1;
/// The program has ended, and what is left to do is ours.
const OUT_OF_MEMORY_AT_END: &[u8] =
    b"sidewalk: error: not enough memory to write the outputs; the recording is complete, and \
      sidewalk convert can read it on a machine with more\n";
const OUT_OF_MEMORY: &[u8] = b"sidewalk: error: there is not enough memory\n";

/// The recorded program has been started.
pub(crate) fn set_program(pid: u32) {
    PROGRAM_PID.store(pid.cast_signed(), Ordering::Relaxed);
}

/// It has ended, and the tool is to end with this code.
pub(crate) fn set_exit_code(code: i32) {
    EXIT_CODE.store(code, Ordering::Relaxed);
    PROGRAM_PID.store(0, Ordering::Relaxed);
}

/// The system's allocator, which never says that it has nothing.
struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

#[expect(
    unsafe_code,
    reason = "the trait is unsafe; all is handed to the system's"
)]
// SAFETY: each call is the system allocator's, with the arguments that were given; it keeps the
// contract.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that it asks for.
        non_null_or_exit(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        non_null_or_exit(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; what it has given came from the same allocator.
        non_null_or_exit(unsafe { System.realloc(pointer, layout, size) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn non_null_or_exit(pointer: *mut u8) -> *mut u8 {
    if pointer.is_null() {
        exit_out_of_memory();
    }
    pointer
}

#[cold]
#[expect(unsafe_code, reason = "what is safe may allocate")]
fn exit_out_of_memory() -> ! {
    let program = PROGRAM_PID.load(Ordering::Relaxed);
    let mut code = EXIT_CODE.load(Ordering::Relaxed);
    let text = if code == NONE {
        OUT_OF_MEMORY
    } else {
        OUT_OF_MEMORY_AT_END
    };
    if code == NONE {
        code = 1;
    }
    // SAFETY: the text is a constant of that length; the rest are numbers, or a variable on our
    // stack that is as large as what is written to it. None of these calls allocates.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len());
        if program != 0 {
            // Agents see that their reader is gone.
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
            let mut status = 0;
            loop {
                if libc::waitpid(program, &raw mut status, 0) == program {
                    code = shell_code(ExitStatus::from_raw(status));
                    break;
                }
                if *libc::__errno_location() != libc::EINTR {
                    break;
                }
            }
        }
        // As where outputs fail in another way: not 0, although the program ended well.
        libc::_exit(code.max(1))
    }
}

/// The exit code that a shell gives for a program that ended so; allocates nothing.
pub(crate) fn shell_code(status: ExitStatus) -> i32 {
    let by_signal = || status.signal().map(|signal| 128 + signal);
    status.code().or_else(by_signal).unwrap_or(1)
}
