//! Table of the system calls that the agent makes in a program and a CLR does not make by itself.
//!
//! It is based on strace: the calls of a recorded program (each engine, `wall`, events, attach,
//! dump) that a bare one does not make. Calls that only the kernel makes (`rt_sigreturn`,
//! `restart_syscall`) are omitted. Each row has arguments with which the call changes nothing, for
//! [`crate::trial`].

use libc::{EBADF, ECHILD, EFAULT, EINVAL};

/// A system call of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Call {
    /// Reaps the child in which calls are tried. Tried first.
    Wait4,
    /// Reads memory that may be unmapped.
    ProcessVmReadv,
    /// Sends a signal with a value that identifies its purpose.
    RtTgsigqueueinfo,
    /// Creates a timer on a thread's clock.
    TimerCreate,
    /// Starts and stops a timer.
    TimerSettime,
    /// Deletes a timer.
    TimerDelete,
    /// Opens the events of `--engine perf`.
    PerfEventOpen,
    /// Finds a thread's stack without waking the thread.
    GetRobustList,
    /// Waits for file descriptors.
    Ppoll,
    /// Reads the CPU clock of a thread. The wall clock needs no system call.
    ClockGettime,
    /// Sleeps.
    ClockNanosleep,
    /// Finds the lowest free descriptor number, to estimate how many are free.
    Eventfd2,
    /// Reads a file's metadata.
    Statx,
    /// Connects to the tool.
    Connect,
    /// Accepts a connection of the tool.
    Accept4,
    /// Returns the bound address.
    Getsockname,
    /// Returns the credentials of the peer.
    Getsockopt,
    /// Sets the timeout of messages.
    Setsockopt,
    /// Sends to the tool.
    Sendto,
    /// Receives from the tool.
    Recvfrom,
    /// Returns the program's parent.
    Getppid,
    /// Returns the program's user.
    Geteuid,
}

/// A system call, and how it is tried.
pub(crate) struct Row {
    pub(crate) call: Call,
    pub(crate) name: &'static str,
    pub(crate) number: libc::c_long,
    /// Whether the agent has a fallback. Without one, it does not attach to a process whose filter
    /// would end it for the call.
    pub(crate) is_optional: bool,
    pub(crate) arguments: [i64; 5],
    /// Expected results of the trial: 0 or more without an error, or one of these errors.
    pub(crate) answers: &'static [i32],
}

const fn row(
    call: Call,
    name: &'static str,
    number: libc::c_long,
    is_optional: bool,
    arguments: [i64; 5],
    answers: &'static [i32],
) -> Row {
    Row {
        call,
        name,
        number,
        is_optional,
        arguments,
        answers,
    }
}

/// Number of calls in the table.
pub const COUNT: usize = 22;

const NO_FILE: [i64; 5] = [-1, 0, 0, 0, 0];
/// No clock has this number.
const NO_CLOCK: [i64; 5] = [1 << 20, 0, 0, 0, 0];
const ANY_CHILD: [i64; 5] = [-1, 0, libc::WNOHANG as i64 | libc::__WALL as i64, 0, 0];
const OWN_CLOCK: [i64; 5] = [libc::CLOCK_THREAD_CPUTIME_ID as i64, 0, 0, 0, 0];

#[rustfmt::skip]
pub(crate) static TABLE: [Row; COUNT] = [
    row(Call::Wait4, "wait4", libc::SYS_wait4, true, ANY_CHILD, &[ECHILD]),
    row(Call::ProcessVmReadv, "process_vm_readv", libc::SYS_process_vm_readv, true, [0; 5], &[]),
    row(Call::RtTgsigqueueinfo, "rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo, true, [0; 5], &[EFAULT]),
    row(Call::TimerCreate, "timer_create", libc::SYS_timer_create, true, OWN_CLOCK, &[EFAULT]),
    row(Call::TimerSettime, "timer_settime", libc::SYS_timer_settime, true, NO_FILE, &[EINVAL]),
    row(Call::TimerDelete, "timer_delete", libc::SYS_timer_delete, true, NO_FILE, &[EINVAL]),
    row(Call::PerfEventOpen, "perf_event_open", libc::SYS_perf_event_open, true, [0; 5], &[EFAULT]),
    row(Call::GetRobustList, "get_robust_list", libc::SYS_get_robust_list, true, [0; 5], &[EFAULT]),
    row(Call::Ppoll, "ppoll", libc::SYS_ppoll, true, [1, 1, 0, 0, 0], &[EFAULT, EINVAL]),
    row(Call::ClockGettime, "clock_gettime", libc::SYS_clock_gettime, false, NO_CLOCK, &[EINVAL]),
    row(Call::ClockNanosleep, "clock_nanosleep", libc::SYS_clock_nanosleep, false, NO_CLOCK, &[EINVAL]),
    row(Call::Eventfd2, "eventfd2", libc::SYS_eventfd2, false, [0, -1, 0, 0, 0], &[EINVAL]),
    row(Call::Statx, "statx", libc::SYS_statx, false, NO_FILE, &[EFAULT]),
    row(Call::Connect, "connect", libc::SYS_connect, false, NO_FILE, &[EBADF]),
    row(Call::Accept4, "accept4", libc::SYS_accept4, false, NO_FILE, &[EBADF]),
    row(Call::Getsockname, "getsockname", libc::SYS_getsockname, false, NO_FILE, &[EBADF]),
    row(Call::Getsockopt, "getsockopt", libc::SYS_getsockopt, false, NO_FILE, &[EBADF]),
    row(Call::Setsockopt, "setsockopt", libc::SYS_setsockopt, false, NO_FILE, &[EBADF]),
    row(Call::Sendto, "sendto", libc::SYS_sendto, false, NO_FILE, &[EBADF]),
    row(Call::Recvfrom, "recvfrom", libc::SYS_recvfrom, false, NO_FILE, &[EBADF]),
    row(Call::Getppid, "getppid", libc::SYS_getppid, false, [0; 5], &[]),
    row(Call::Geteuid, "geteuid", libc::SYS_geteuid, false, [0; 5], &[]),
];

impl Call {
    pub(crate) fn row(self) -> Option<&'static Row> {
        TABLE.get(self as usize)
    }

    /// Returns the kernel's name of the call.
    pub fn name(self) -> &'static str {
        self.row().map_or("", |row| row.name)
    }

    /// Returns its number on x86-64.
    pub fn number(self) -> libc::c_long {
        self.row().map_or(-1, |row| row.number)
    }

    /// Whether the agent has a fallback for the call.
    pub fn is_optional(self) -> bool {
        self.row().is_some_and(|row| row.is_optional)
    }

    /// Iterates over all calls, in the order of the table.
    pub fn all() -> impl Iterator<Item = Call> {
        TABLE.iter().map(|row| row.call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_where_its_call_looks_for_it() {
        for (at, row) in TABLE.iter().enumerate() {
            assert_eq!(row.call as usize, at, "{}", row.name);
        }
    }
}
