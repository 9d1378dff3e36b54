//! Native test library: threads, forbidden timers, callbacks, and code with wrong unwind data.
//!
//! It has no dependency on the profiler. Invariant: each thread uses at least the requested CPU
//! time, and is joined before the call returns.

mod stacks;

use std::thread::JoinHandle;

fn cpu_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid out-pointer; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn burn(nanoseconds: u64, blocks: bool) {
    if blocks {
        // SAFETY: all-zero is a valid set, which sigfillset fills; the old one is not requested.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        }
    }
    let mut sum = 1u64;
    while cpu_ns() < nanoseconds {
        for step in 0..1000 {
            sum = std::hint::black_box(sum.wrapping_mul(31) ^ step);
        }
    }
}

/// Repeats `times` times: starts `at_once` threads that use `microseconds` of CPU time each, with
/// all signals blocked if `blocks` is not 0, and joins them.
#[unsafe(no_mangle)]
pub extern "C" fn native_threads(at_once: i32, times: i32, microseconds: i32, blocks: i32) {
    let nanoseconds = u64::from(microseconds.unsigned_abs()) * 1000;
    for _ in 0..times {
        let start = |_| std::thread::spawn(move || burn(nanoseconds, blocks != 0));
        let all: Vec<JoinHandle<()>> = (0..at_once).map(start).collect();
        for thread in all {
            let _burned = thread.join();
        }
    }
}

/// Burns CPU for `rounds` iterations with `word` on top of the stack. The unwind table omits the
/// word, as happens in hand-written code, so a walk takes it for the return address.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn burn_over(word: usize, rounds: u64) -> u64 {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi",
        "mov rax, rsi",
        "2: lea rax, [rax + rax * 2 + 1]",
        "dec rsi",
        "jnz 2b",
        "pop rdi",
        "ret",
        ".cfi_endproc",
    )
}

/// Burns CPU for `rounds` iterations above a buffer of 2 KiB and `words` words that it does not
/// write. It has no unwind table and uses the frame pointer as a general register, as compiled code
/// may.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn burn_in_buffer(words: usize, rounds: u64) -> u64 {
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "mov rbx, rsp",
        "shl rdi, 3",
        "sub rsp, 2048",
        "sub rsp, rdi",
        "mov rbp, rsi",
        "2: lea rax, [rax + rax * 2 + 1]",
        "dec rbp",
        "jnz 2b",
        "mov rsp, rbx",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Calls `function` from a frame of this library.
#[unsafe(no_mangle)]
pub extern "C" fn call_back(function: extern "C" fn()) -> i32 {
    function();
    std::hint::black_box(1)
}

/// Forbids timers, perf events and queued signals to every thread of the process, as a sandbox
/// does. Returns 0, or the errno of the call that failed.
#[unsafe(no_mangle)]
pub extern "C" fn refuse_timers() -> i32 {
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    let number = |call: libc::c_long| u32::try_from(call).unwrap_or(u32::MAX);
    let mut steps = [
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_IF_EQUAL, 3, 0, number(libc::SYS_timer_create)),
        step(JUMP_IF_EQUAL, 2, 0, number(libc::SYS_perf_event_open)),
        step(JUMP_IF_EQUAL, 1, 0, number(libc::SYS_rt_tgsigqueueinfo)),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, 0, refuse),
    ];
    let program = libc::sock_fprog {
        len: 6,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: a valid program of six steps, which the kernel checks and copies.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &raw const program,
            ) != 0
    };
    if failed {
        return std::io::Error::last_os_error().raw_os_error().unwrap_or(-1);
    }
    0
}
