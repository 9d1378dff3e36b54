//! Handles memory exhaustion of the tool: prints a message and keeps the program's exit code.
//!
//! Rust would abort, and the exit code 134 would look like the recorded program's.
//! Invariants: the tool still waits for the recorded program, which may run for long. After the
//! failed allocation nothing is allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::libc;

use crate::console::escaped;

/// Process id of the recorded program while it runs, else 0.
static PROGRAM_PID: AtomicI32 = AtomicI32::new(0);
/// Exit code for the tool: the recorded program's, once it has ended.
static EXIT_CODE: AtomicI32 = AtomicI32::new(NONE);
const NONE: i32 = -1;
/// Message after the program has ended, when only the outputs are missing.
const OUT_OF_MEMORY_AT_END: &[u8] =
    b"sidewalk: error: not enough memory to write the outputs; the recording is complete, and \
      sidewalk convert can read it on a machine with more\n";
/// The recording, while it is in a temporary file.
static RECORDING: OnceLock<TemporaryRecording> = OnceLock::new();
const OUT_OF_MEMORY: &[u8] = b"sidewalk: error: there is not enough memory\n";

/// Registers the started program.
pub(crate) fn set_program(pid: u32) {
    PROGRAM_PID.store(pid.cast_signed(), Ordering::Relaxed);
}

/// Registers that the program has ended, and the exit code for the tool.
pub(crate) fn set_exit_code(code: i32) {
    EXIT_CODE.store(code, Ordering::Relaxed);
    PROGRAM_PID.store(0, Ordering::Relaxed);
}

/// A recording that gets a name if its outputs cannot be written.
struct TemporaryRecording {
    path: CString,
    name: CString,
    /// The message that says the name.
    message: String,
}

/// Registers the complete recording at `path`, to be kept as `name` if the memory is exhausted from
/// now on.
pub(crate) fn set_recording(path: &Path, name: &Path) {
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).ok();
    if let (Some(path), Some(c_name)) = (text(path), text(name)) {
        let _ = RECORDING.set(TemporaryRecording {
            path,
            name: c_name,
            message: format!("sidewalk: the recording is kept as {}\n", escaped(name)),
        });
    }
}

/// The system's allocator, but a failed allocation ends the tool.
struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

#[expect(
    unsafe_code,
    reason = "the trait is unsafe; all is handed to the system's"
)]
// SAFETY: each call goes to the system's allocator with the arguments given by the caller. That
// allocator keeps the contract.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are those that the system's allocator requires.
        non_null_or_exit(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        non_null_or_exit(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; `pointer` came from the same allocator.
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
    let text = if code == NONE && RECORDING.get().is_none() {
        OUT_OF_MEMORY
    } else {
        OUT_OF_MEMORY_AT_END
    };
    if code == NONE {
        code = 1;
    }
    // SAFETY: the texts live as long as the process and are of that length, or end in NUL; the rest
    // are numbers, or a variable on our stack that is as large as what is written to it. None of
    // these calls allocates.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len());
        if let Some(recording) = RECORDING.get()
            && libc::rename(recording.path.as_ptr(), recording.name.as_ptr()) == 0
        {
            let message = recording.message.as_bytes();
            libc::write(2, message.as_ptr().cast(), message.len());
        }
        if program != 0 {
            // Closes the agents' connections, so that agents see the end of their reader.
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
        // As for other failed outputs: not 0, even if the program succeeded.
        libc::_exit(code.max(1))
    }
}

/// The exit code that a shell gives for a program with this status. Allocates nothing.
pub(crate) fn shell_code(status: ExitStatus) -> i32 {
    let by_signal = || status.signal().map(|signal| 128 + signal);
    status.code().or_else(by_signal).unwrap_or(1)
}
