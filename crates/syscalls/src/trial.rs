//! A throwaway child process that makes system calls first, in the program's place.
//!
//! A filter may end the process that makes a call (SECCOMP_RET_KILL_PROCESS), so a child with the
//! same filter makes it first. The child runs on its own stack, makes raw system calls and touches
//! nothing but the answer sheet. It shares the program's memory if the kernel supports that safely,
//! to avoid copying a program of gigabytes. It sends no signal at its end (exit signal 0), so no
//! handler and no `wait` of the program observes it.
//!
//! Invariants: the calling thread is suspended until the child has ended (CLONE_VFORK). A call
//! without an answer in the sheet has ended its child.

use core::arch::asm;
use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use crate::proc;
use crate::table::{COUNT, TABLE};

/// Answer of a row that has not been tried yet.
pub(crate) const UNANSWERED: i64 = i64::MIN;

/// The child's results, in memory that it shares with the parent.
#[repr(C)]
pub(crate) struct AnswerSheet {
    /// Row that is being tried, or is tried next.
    at: AtomicUsize,
    answers: [AtomicI64; COUNT],
}

/// Length of the mapping that holds the sheet and the child's stack, bytes.
const LENGTH: usize = 64 * 1024;

const _: () = assert!(size_of::<AnswerSheet>() <= 4096);

/// Makes a system call of at most five arguments. The kernel's sixth is 0.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn raw(number: libc::c_long, arguments: [i64; 5]) -> i64 {
    let [first, second, third, fourth, fifth] = arguments;
    let mut result = number;
    // SAFETY: the caller's promise; the registers that the kernel changes are named.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") 0,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes the calls of the table and stores the kernel's result of each in `answers`, or
/// [`UNANSWERED`] if the call has ended the child. Returns the number of known rows. The other rows
/// are unknown because no child could be created, or because its end could not be reaped and no
/// second child was made. If `shares_memory` is false, the child has a copy of the program's
/// memory.
pub(crate) fn try_all(answers: &mut [i64; COUNT], shares_memory: bool) -> usize {
    answers.fill(UNANSWERED);
    let Some(sheet) = map() else { return 0 };
    let before = block_signals();
    let known = try_rows(sheet, shares_memory);
    restore_signals(before);
    for (answer, written) in answers.iter_mut().zip(&sheet.answers) {
        *answer = written.load(Ordering::Relaxed);
    }
    // SAFETY: our own mapping, which no child uses any more; `sheet` is not used below.
    unsafe { libc::munmap(core::ptr::from_ref(sheet).cast_mut().cast(), LENGTH) };
    known
}

fn try_rows(sheet: &'static AnswerSheet, shares_memory: bool) -> usize {
    loop {
        let at = sheet.at.load(Ordering::Relaxed);
        if at >= COUNT {
            return COUNT;
        }
        let Some(child) = child(sheet, shares_memory) else {
            return at;
        };
        let ended_at = sheet.at.load(Ordering::Relaxed);
        let waits = sheet
            .answers
            .first()
            .map(|answer| answer.load(Ordering::Relaxed));
        if waits != Some(-i64::from(libc::ECHILD)) {
            // The child remains a zombie until the program ends, so no second one is made.
            return (ended_at + 1).min(COUNT);
        }
        let mut status = 0;
        // SAFETY: a child of ours, which has ended, and a valid out-pointer.
        unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) };
        // The call of this row has ended the child, unless the child tried all rows.
        sheet.at.store(ended_at + 1, Ordering::Relaxed);
    }
}

fn map() -> Option<&'static AnswerSheet> {
    // SAFETY: new memory at an address of the kernel's choice.
    let memory = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            LENGTH,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: zeroed pages, which are a valid sheet; it is used until `try_all` unmaps it.
    let sheet = unsafe { &*memory.cast::<AnswerSheet>() };
    for answer in &sheet.answers {
        answer.store(UNANSWERED, Ordering::Relaxed);
    }
    Some(sheet)
}

const MASK_BYTES: i64 = size_of::<u64>() as i64;

/// Blocks all signals, also in the child. A SIGSYS from a filter then ends the child instead of
/// reaching a handler.
fn block_signals() -> u64 {
    let all = u64::MAX;
    let mut before = 0_u64;
    let (new, old) = (&raw const all as i64, &raw mut before as i64);
    // SAFETY: reads eight bytes and writes eight, both alive.
    unsafe {
        raw(
            libc::SYS_rt_sigprocmask,
            [libc::SIG_SETMASK.into(), new, old, MASK_BYTES, 0],
        )
    };
    before
}

fn restore_signals(before: u64) {
    let new = &raw const before as i64;
    // SAFETY: reads eight bytes.
    unsafe {
        raw(
            libc::SYS_rt_sigprocmask,
            [libc::SIG_SETMASK.into(), new, 0, MASK_BYTES, 0],
        )
    };
}

/// `struct clone_args` of include/uapi/linux/sched.h, first version.
#[repr(C)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

/// Creates a child and returns when it has ended. Returns its process id, or `None` on failure.
fn child(sheet: &'static AnswerSheet, shares_memory: bool) -> Option<libc::pid_t> {
    let memory = if shares_memory { libc::CLONE_VM } else { 0 };
    let flags = i64::from(memory | libc::CLONE_VFORK);
    let start = core::ptr::from_ref(sheet) as u64;
    let end = start + LENGTH as u64;
    let arguments = CloneArguments {
        flags: flags.unsigned_abs(),
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: 0,
        stack: start + 4096,
        stack_size: LENGTH as u64 - 4096,
        tls: 0,
    };
    let mut made = -i64::from(libc::ENOSYS);
    // The call with which glibc creates the program's threads since 2.34.
    if makes_threads_by_clone3() {
        let size = size_of::<CloneArguments>() as i64;
        // SAFETY: valid arguments; the child's stack is unused memory of the sheet's mapping.
        made = unsafe { split(libc::SYS_clone3, &raw const arguments as i64, size, sheet) };
    }
    if made < 0 {
        // SAFETY: as above.
        made = unsafe { split(libc::SYS_clone, flags, end.cast_signed(), sheet) };
    }
    libc::pid_t::try_from(made).ok().filter(|child| *child > 0)
}

/// Creates a child that runs [`run`]. Returns the parent's result.
///
/// # Safety
/// `number` is `clone` or `clone3`, the arguments are theirs and give the child an aligned stack of
/// its own, and have CLONE_VFORK.
unsafe fn split(number: libc::c_long, first: i64, second: i64, sheet: &'static AnswerSheet) -> i64 {
    let mut result = number;
    // SAFETY: the caller's promise. The child never returns: `run` does not return.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            in("r12") core::ptr::from_ref(sheet),
            in("r13") run as *const () as usize,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Code of the child. The child shares the thread-local storage of the thread that created it, so
/// nothing here uses thread-locals.
extern "C" fn run(sheet: &'static AnswerSheet) -> ! {
    // A limit of one byte: no core is written, and none is piped to a program (fs/coredump.c).
    let limit = [1_u64, 1];
    let limit_at = &raw const limit as i64;
    // SAFETY: reads sixteen bytes, of this process alone.
    unsafe {
        raw(
            libc::SYS_prlimit64,
            [0, libc::RLIMIT_CORE.into(), limit_at, 0, 0],
        )
    };
    let first = sheet.at.load(Ordering::Relaxed);
    for (at, row) in TABLE.iter().enumerate() {
        if at < first {
            continue;
        }
        sheet.at.store(at, Ordering::Relaxed);
        // SAFETY: arguments with which the call changes nothing.
        let answer = unsafe { raw(row.number, row.arguments) };
        if let Some(place) = sheet.answers.get(at) {
            place.store(answer, Ordering::Relaxed);
        }
        sheet.at.store(at + 1, Ordering::Relaxed);
    }
    loop {
        // SAFETY: ends this process, whose only thread this is.
        unsafe { raw(libc::SYS_exit, [0; 5]) };
    }
}

/// Whether a process survives if another one that shares its memory is ended with a core dump:
/// since Linux 5.16 (`zap_threads`, fs/coredump.c). Earlier kernels end all of them.
pub(crate) fn may_share_memory() -> bool {
    let mut text = [0_u8; 64];
    let release = proc::read_file(c"/proc/sys/kernel/osrelease", &mut text);
    version(release).is_some_and(|release| release >= (5, 16))
}

/// Parses the first two numbers of a version such as `5.15.0-91`.
fn version(text: &[u8]) -> Option<(u32, u32)> {
    let mut numbers = text.split(|byte| !byte.is_ascii_digit()).map(proc::decimal);
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(target_env = "gnu")]
fn makes_threads_by_clone3() -> bool {
    // SAFETY: a static string of the C library.
    let text = unsafe { core::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    version(text.to_bytes()).is_some_and(|version| version >= (2, 34))
}

#[cfg(not(target_env = "gnu"))]
fn makes_threads_by_clone3() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_with_memory_of_its_own_answers_the_same() {
        let mut answers = [[UNANSWERED; COUNT]; 2];
        let [shared, copied] = &mut answers;
        assert_eq!(try_all(shared, true), COUNT);
        assert_eq!(try_all(copied, false), COUNT);
        for ((row, shared), copied) in TABLE.iter().zip(shared).zip(copied) {
            assert_eq!(shared, copied, "{}", row.name);
            assert_ne!(*shared, UNANSWERED, "{}", row.name);
        }
    }
}
