//! Replacement of `mkfifo`: lets CLRs of one process share the debugger pipes.
//!
//! A CLR waits for a debugger on two pipes. Their names contain the process's id and start time, so
//! they are the same for all CLRs of a process. Each CLR removes and creates them when it starts
//! (src/coreclr/debug/shared/twowaypipe.cpp and its PAL). Two CLRs that start at the same moment
//! can interfere between these steps; then one does not start (3 of 150 times). So this program
//! defines `mkfifo`, which the loader finds before the C library's.

use std::ffi::{CStr, c_char, c_int};

/// As POSIX `mkfifo`, but an existing debugger pipe of a CLR is accepted.
///
/// # Safety
/// `path` is a string.
#[unsafe(no_mangle)]
unsafe extern "C" fn mkfifo(path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's string.
    let made = unsafe { libc::mknod(path, mode | libc::S_IFIFO, 0) };
    // SAFETY: errno is thread-local; the caller's string.
    let is_taken = unsafe {
        made != 0
            && *libc::__errno_location() == libc::EEXIST
            && is_debugger_pipe(CStr::from_ptr(path).to_bytes())
    };
    if is_taken { 0 } else { made }
}

fn is_debugger_pipe(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let own = format!("clr-debug-pipe-{}-", std::process::id());
    name.starts_with(own.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::FileTypeExt as _;

    #[test]
    fn only_a_debuggers_pipe_may_be_there_already() {
        let folder = tempfile::tempdir().unwrap();
        let own = format!("clr-debug-pipe-{}-1-in", std::process::id());
        for (name, second) in [(own.as_str(), 0), ("clr-debug-pipe-1-1-in", -1), ("x", -1)] {
            let path = folder.path().join(name);
            let text = CString::new(path.as_os_str().as_bytes()).unwrap();
            // SAFETY: a string.
            let make = || unsafe { mkfifo(text.as_ptr(), 0o600) };
            assert_eq!(make(), 0);
            assert!(path.metadata().unwrap().file_type().is_fifo());
            assert_eq!(make(), second, "{name}");
        }
    }
}
