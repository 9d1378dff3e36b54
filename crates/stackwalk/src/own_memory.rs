//! Reads this process's own memory through the kernel: a missing page gives an error, not a fault.
//!
//! A mapped file may be truncated by any process. After that, an access to its pages behind the new
//! end is a SIGBUS, also to pages that were written to. All functions are async-signal-safe and use
//! nothing of libc. Invariant: no address is dereferenced, except by `copy` if the kernel does not
//! support the call, and by `read_in_place` for callers that guarantee that the page exists.

use std::arch::asm;

/// Errors of the kernel, as negative return values.
const FAULT: i64 = -(libc::EFAULT as i64);

/// `process_vm_readv` of this process. Returns the bytes read, or a negative error.
fn read(address: u64, buffer: *mut u8, length: usize) -> i64 {
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: length,
    };
    read_all(std::slice::from_ref(&remote), buffer, length)
}

/// As [`read`], for several ranges in order, up to the first that cannot be read.
fn read_all(ranges: &[libc::iovec], buffer: *mut u8, length: usize) -> i64 {
    if !syscalls::is_allowed(syscalls::Call::ProcessVmReadv) {
        return -i64::from(libc::ENOSYS);
    }
    let local = libc::iovec {
        iov_base: buffer.cast(),
        iov_len: length,
    };
    let mut result = libc::SYS_getpid;
    // SAFETY: a system call without arguments, which changes the registers named.
    unsafe {
        asm!("syscall", inlateout("rax") result, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    let process = result;
    result = libc::SYS_process_vm_readv;
    // SAFETY: two valid vectors, of one range and of as many as the slice has. The kernel checks
    // all ranges, and writes at most `length` bytes to `buffer`, which is the caller's.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") process,
            in("rsi") &raw const local,
            in("rdx") 1,
            in("r10") ranges.as_ptr(),
            in("r8") ranges.len(),
            in("r9") 0,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Reads the word at each of these addresses, or 0 if it cannot be read. Returns the number of
/// system calls: one, and at most one more for each unreadable word.
pub fn peek_words<const N: usize>(addresses: &[u64; N], words: &mut [u64; N]) -> usize {
    const WORD: usize = size_of::<u64>();
    let ranges = addresses.map(|address| libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: WORD,
    });
    *words = [0; N];
    let (mut from, mut asked) = (0, 0);
    while let (Some(ranges @ [_, ..]), Some(room)) = (ranges.get(from..), words.get_mut(from..)) {
        let length = WORD * room.len();
        let bytes = read_all(ranges, room.as_mut_ptr().cast(), length);
        // A word that cannot be read ends the call, and its result is 0.
        from += usize::try_from(bytes).unwrap_or(0) / WORD + 1;
        asked += 1;
    }
    asked
}

/// Reads the readable bytes at `address`, up to the buffer's length.
pub fn peek(address: u64, buffer: &mut [u8]) -> &[u8] {
    let read = read(address, buffer.as_mut_ptr(), buffer.len());
    buffer
        .get(..usize::try_from(read).unwrap_or(0))
        .unwrap_or_default()
}

/// As [`peek`], without the kernel. Returns nothing for an address outside user space.
///
/// # Safety
/// The buffer's length can be read at `address`, unless it is below the first page or outside user
/// space.
pub(crate) unsafe fn read_in_place(address: u64, buffer: &mut [u8]) -> &[u8] {
    if address < 4096 || address >> 47 != 0 {
        return &[];
    }
    let length = buffer.len();
    // SAFETY: the caller's promise; the buffer is as long, and is the caller's alone.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, buffer.as_mut_ptr(), length) };
    buffer
}

/// Whether no readable page is at `address`. False if the kernel does not report it.
///
/// `rt_sigprocmask` with an invalid operation copies the set of signals, eight bytes, before it
/// checks the operation (kernel/signal.c). So it returns EFAULT or EINVAL and changes nothing. It
/// takes a tenth of the time of [`peek`], which looks up a process and pins its pages. No sandbox
/// is known to forbid it.
pub fn is_missing(address: u64) -> bool {
    const SET: u64 = 8;
    let no_operation = -1_i64;
    let mut result = libc::SYS_rt_sigprocmask;
    // SAFETY: the kernel checks the address, which is read and not kept; without an operation the
    // mask stays as it is, and no old one is requested.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") no_operation,
            // Aligned, so within the page.
            in("rsi") address & !(SET - 1),
            in("rdx") 0,
            in("r10") SET,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    // 0 is the result for a null set, which is address 0.
    matches!(result, FAULT | 0)
}

/// Whether one of two pages is missing; as [`is_missing`].
///
/// For the first and the last page of a file. While a file is truncated to nothing, its pages are
/// removed from the first to the last. If it is truncated to a part, the first page remains.
pub fn is_one_missing(first: u64, last: u64) -> bool {
    is_missing(first) || is_missing(last)
}

/// Copies the bytes at `address`; `None` if a page of them is missing.
///
/// # Safety
/// As [`copy_into`].
pub(crate) unsafe fn copy(address: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    // SAFETY: the caller's promise.
    unsafe { copy_into(address, &mut bytes) }?;
    Some(bytes)
}

/// Copies the bytes at `address` into `bytes`; `None` if a page of them is missing. Allocates
/// nothing.
///
/// # Safety
/// `bytes.len()` bytes are mapped there, for reading, though their file may have been truncated.
pub(crate) unsafe fn copy_into(address: u64, bytes: &mut [u8]) -> Option<()> {
    let length = bytes.len();
    match read(address, bytes.as_mut_ptr(), length) {
        read if usize::try_from(read) == Ok(length) => Some(()),
        // Copied in part, or not at all.
        FAULT | 0.. => None,
        // The kernel does not say.
        // SAFETY: the caller's promise; the buffer is as long, and is the caller's alone.
        _ => unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), length);
            Some(())
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::{AsRawFd as _, FromRawFd as _};

    #[test]
    fn memory_of_a_file_that_was_cut_short_is_missing_and_not_read() {
        const PAGE: usize = 4096;
        // SAFETY: a name; the descriptor is new and ours alone.
        let mut file = unsafe {
            let fd = libc::memfd_create(c"short".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            std::fs::File::from_raw_fd(fd)
        };
        file.write_all(&[7; 3 * PAGE]).unwrap();
        // SAFETY: a new private mapping of the file.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                3 * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        // A written (private) page does not outlive the file's end either.
        // SAFETY: within the mapping, which no other code knows.
        unsafe { at.cast::<u8>().add(2 * PAGE).write(9) };
        let start = at as u64;
        let last = start + 3 * PAGE as u64 - 1;
        // SAFETY: mapped.
        let all = || unsafe { copy(start, 3 * PAGE) };
        assert!(!is_missing(start) && !is_missing(last));
        assert!(!is_one_missing(start, last));
        assert_eq!(all().unwrap()[2 * PAGE], 9);
        file.set_len(PAGE as u64).unwrap();
        assert!(!is_missing(start) && is_missing(last));
        assert!(is_one_missing(start, last) && is_one_missing(last, start));
        assert_eq!(all(), None);
        let mut buffer = [0; 2 * PAGE];
        assert_eq!(peek(start, &mut buffer), &[7; PAGE]);
        // SAFETY: this mapping is the test's.
        unsafe { libc::munmap(at, 3 * PAGE) };
        assert!(is_missing(start) && is_missing(0));
        // An address outside of user space, and one of the kernel's.
        assert!(is_missing(u64::MAX) && is_missing(1 << 60));
    }

    #[test]
    fn of_many_words_those_that_are_there_are_read() {
        let own = [5u64, 6, 7];
        let at = own.each_ref().map(|word| &raw const *word as u64);
        let missing = 1 << 60;
        let mut words = [9; 5];
        let asked = peek_words(&[at[2], missing, at[0], 16, missing], &mut words);
        assert_eq!((words, asked), ([7, 0, 5, 0, 0], 3));
        let mut words = [9; 3];
        assert_eq!((peek_words(&at, &mut words), words), (1, own));
    }

    #[test]
    fn asking_for_a_page_leaves_the_signal_mask_as_it_is() {
        let mask = || {
            // SAFETY: a null pointer for the new mask, an own place for the old one.
            unsafe {
                let mut mask: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(0, std::ptr::null(), &mut mask);
                [libc::SIGHUP, libc::SIGUSR1, libc::SIGURG, 40]
                    .map(|signal| libc::sigismember(&mask, signal))
            }
        };
        let before = mask();
        // All signals, if it were a mask, and at the last bytes of a page.
        let all = [u64::MAX; 1024];
        for at in &all {
            assert!(!is_missing(&raw const *at as u64 + 7));
        }
        assert_eq!(mask(), before);
    }
}
