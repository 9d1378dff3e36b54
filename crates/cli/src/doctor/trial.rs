//! Doctor's trials: each performs one system operation of recording once.
//!
//! The callers judge the results. Invariant: no timer, descriptor or file remains.

use std::io::IoSliceMut;
use std::os::fd::{FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::libc;
use nix::sys::signal::{SigEvent, SigevNotify};
use nix::sys::stat::Mode;
use nix::sys::timer::Timer;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::time::ClockId;
use nix::unistd::{Pid, gettid};
use syscalls::Call;

/// Fails if a seccomp filter forbids one of these calls, because making the call could kill the
/// tool.
fn check_allowed(calls: &[Call]) -> nix::Result<()> {
    match calls.iter().find(|call| !syscalls::is_allowed(**call)) {
        Some(call) => Err(Errno::from_raw(syscalls::refusal(*call))),
        None => Ok(()),
    }
}

/// Makes a timer on this thread's CPU clock. It is never armed, and would signal nothing: on musl
/// nix cannot name a thread, and the kernel counts a timer against the same limit either way.
pub(super) fn timer() -> nix::Result<()> {
    check_allowed(&[Call::TimerCreate, Call::TimerSettime, Call::TimerDelete])?;
    let notify = SigEvent::new(SigevNotify::SigevNone);
    Timer::new(ClockId::CLOCK_THREAD_CPUTIME_ID, notify).map(drop)
}

/// Sends this thread signal 0 (no signal), with the `siginfo` of a timer signal.
pub(super) fn signal() -> nix::Result<()> {
    check_allowed(&[Call::RtTgsigqueueinfo])?;
    // SI_TIMER, like the agent's signal. The kernel does not check the rest.
    let mut info = [0_i32; 32];
    info[2] = libc::SI_TIMER;
    #[expect(unsafe_code, reason = "no crate that we have makes this call")]
    // SAFETY: the kernel reads 128 bytes, which `info` has.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            libc::getpid(),
            gettid().as_raw(),
            0,
            info.as_ptr(),
        )
    };
    Errno::result(sent).map(drop)
}

/// Reads a byte of our own memory through the kernel.
pub(super) fn read_own_memory() -> nix::Result<()> {
    check_allowed(&[Call::ProcessVmReadv])?;
    let from = [42u8];
    let mut into = [0u8];
    let remote = RemoteIoVec {
        base: from.as_ptr().addr(),
        len: 1,
    };
    process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut into)], &[remote])?;
    if into == from {
        Ok(())
    } else {
        Err(Errno::EFAULT)
    }
}

/// Opens a folder with link resolution confined to it.
pub(super) fn open_in_root() -> nix::Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = open("/", flags, Mode::empty())?;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT);
    openat2(&root, ".", how).map(drop)
}

/// Opens the event that `--engine perf` uses, for this thread.
pub(super) fn perf_event(user_time_only: bool) -> nix::Result<()> {
    check_allowed(&[Call::PerfEventOpen])?;
    const TYPE_SOFTWARE: u64 = 1;
    const TASK_CLOCK: u64 = 1;
    /// Size of the first version of the attributes, which every kernel accepts.
    const SIZE: u64 = 64;
    const DISABLED: u64 = 1 << 0;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HV: u64 = 1 << 6;
    const FD_CLOEXEC: libc::c_ulong = 1 << 3;
    let excluded = if user_time_only {
        EXCLUDE_KERNEL | EXCLUDE_HV
    } else {
        0
    };
    // type and size; config; sample_period; sample_type; read_format; flags; the rest.
    let attributes: [u64; 8] = [
        TYPE_SOFTWARE | SIZE << 32,
        TASK_CLOCK,
        10_000_000,
        0,
        0,
        DISABLED | excluded,
        0,
        0,
    ];
    #[expect(unsafe_code, reason = "no crate that we have makes this call")]
    // SAFETY: `attributes` is a perf_event_attr of PERF_ATTR_SIZE_VER0 (64 bytes) that says so, and
    // lives as long as the call; thread 0 is this one, processor and group -1 are any and none.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            0,
            -1,
            -1,
            FD_CLOEXEC,
        )
    };
    let descriptor = i32::try_from(Errno::result(opened)?).map_err(|_| Errno::EBADF)?;
    #[expect(unsafe_code, reason = "it is closed as what it is")]
    // SAFETY: the kernel has just given it to us, and it has no other owner.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn trials_leave_nothing_behind() {
        let before = descriptors();
        timer().unwrap();
        signal().unwrap();
        read_own_memory().unwrap();
        open_in_root().unwrap();
        // If neither is allowed, no descriptor can remain.
        for user_time_only in [true, false] {
            let _ = perf_event(user_time_only);
        }
        assert_eq!(descriptors(), before);
        let timers = std::fs::read_to_string("/proc/self/timers").unwrap_or_default();
        assert_eq!(timers, "");
    }
}
