//! Thin wrappers of the system calls that the sampler makes.
//!
//! Functions for the handler are marked "Handler": they take no lock and allocate nothing. `libc`'s
//! wrapper may set `errno`, which the handler restores.

use core::ffi::c_int;

use syscalls::{Call, proc};

use crate::config::Error;

/// Returns this thread's `errno`.
pub(crate) fn errno() -> i32 {
    // SAFETY: `__errno_location` gives this thread's errno, always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`. Handler.
pub(crate) fn set_errno(value: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value }
}

/// Returns the error of the call just made.
pub(crate) fn last_error(call: &'static str) -> Error {
    Error::Os {
        call,
        errno: errno(),
    }
}

/// Removes a signal from the calling thread's mask; in a handler, until that returns. Returns true
/// if it was blocked. Async-signal-safe, except for errno.
pub(crate) fn unblock_signal(signal: i32) -> bool {
    change_mask(libc::SIG_UNBLOCK, signal)
}

/// The reverse of [`unblock_signal`].
pub(crate) fn block_signal(signal: i32) {
    change_mask(libc::SIG_BLOCK, signal);
}

/// Changes the mask. Returns true if the signal was in it.
fn change_mask(how: c_int, signal: i32) -> bool {
    let set = bit(signal);
    let mut before: u64 = 0;
    // SAFETY: reads the eight bytes of `set` and writes those of `before`, which are the kernel's
    // sigset_t on x86-64.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const set,
            &raw mut before,
            size_of::<u64>(),
        )
    };
    before & set != 0
}

/// The kernel's action on a signal, in its own layout on x86-64
/// (arch/x86/include/uapi/asm/signal.h). It is read by system call because a library may replace
/// the C library's `sigaction`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Action {
    pub(crate) handler: usize,
    pub(crate) flags: u64,
    pub(crate) restorer: usize,
    pub(crate) mask: u64,
}

impl Action {
    /// Whether a handler is installed.
    pub(crate) fn is_handled(&self) -> bool {
        !matches!(self.handler, libc::SIG_DFL | libc::SIG_IGN)
    }

    pub(crate) fn has(&self, flag: c_int) -> bool {
        self.flags & u64::from(flag as u32) != 0
    }

    pub(crate) fn blocks(&self, signal: i32) -> bool {
        self.mask & bit(signal) != 0
    }

    /// Returns the action without a flag.
    pub(crate) fn without(self, flag: c_int) -> Self {
        Self {
            flags: self.flags & !u64::from(flag as u32),
            ..self
        }
    }

    /// Returns the action with this signal blocked too.
    pub(crate) fn blocking(self, signal: i32) -> Self {
        Self {
            mask: self.mask | bit(signal),
            ..self
        }
    }
}

/// Returns the bit of a signal in the kernel's set.
pub(crate) fn bit(signal: i32) -> u64 {
    1 << (signal - 1).clamp(0, 63)
}

/// Returns the kernel's present action on a signal. Handler.
pub(crate) fn action(signal: i32) -> Option<Action> {
    change_action(signal, core::ptr::null())
}

/// Changes the action to one that was installed before, or one that differs in mask and flags only.
/// Returns the previous action. Handler.
pub(crate) fn set_action(signal: i32, action: &Action) -> Option<Action> {
    change_action(signal, action)
}

fn change_action(signal: i32, new: *const Action) -> Option<Action> {
    let mut old = Action {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    // SAFETY: null or an action whose handler and restorer the kernel had before; a valid
    // out-pointer; the length of the kernel's set.
    let done = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            new,
            &raw mut old,
            size_of::<u64>(),
        )
    };
    (done == 0).then_some(old)
}

/// Whether eight bytes of this process's memory can be read. Handler. `rt_sigprocmask` with an
/// invalid operation copies the set before it checks the operation (kernel/signal.c): it returns
/// EFAULT or EINVAL, and nothing changes.
pub(crate) fn is_readable(address: u64) -> bool {
    const NO_OPERATION: c_int = -1;
    // SAFETY: the kernel checks the address, and changes nothing for an operation that it does not
    // know.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            NO_OPERATION,
            address,
            core::ptr::null_mut::<u64>(),
            size_of::<u64>(),
        )
    };
    errno() == libc::EINVAL
}

/// Returns the thread id of the caller.
pub(crate) fn own_tid() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Returns a clock in nanoseconds; 0 if it does not exist (of an ended thread). Handler.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid out-pointer.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return 0;
    }
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// Returns CLOCK_MONOTONIC. Handler (vdso).
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Returns the CPU time of the calling thread. Handler.
pub(crate) fn own_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU clock of another thread of this process, in the kernel's encoding
/// (include/linux/posix-timers.h, `MAKE_THREAD_CPUCLOCK` with CPUCLOCK_SCHED).
pub(crate) fn cpu_clock_of(tid: u32) -> libc::clockid_t {
    const PER_THREAD: u32 = 4;
    const SCHED: u32 = 2;
    ((!tid << 3) | PER_THREAD | SCHED) as libc::clockid_t
}

/// Returns the length of the kernel's tick: the resolution of the coarse clock.
pub(crate) fn tick_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid out-pointer.
    if unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) } != 0 {
        return 4_000_000;
    }
    (time.tv_nsec as u64).max(1)
}

/// Whether this is a virtual machine, according to bit 31 of ECX of CPUID leaf 1, which no
/// processor sets.
pub(crate) fn is_virtual() -> bool {
    core::arch::x86_64::__cpuid(1).ecx & (1 << 31) != 0
}

/// The kernel's information about a signal, in its layout on x86-64
/// (include/uapi/asm-generic/siginfo.h): the parts that are used.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SignalInfo {
    pub(crate) signo: i32,
    pub(crate) errno: i32,
    pub(crate) code: i32,
    pub(crate) padding: i32,
    /// SI_TIMER: timer id, or [`SENT`] or [`PRICED`] in our own signals. Kill: pid. POLL_*: low
    /// half of the band.
    pub(crate) first: i32,
    /// SI_TIMER: overrun. Kill: uid. POLL_*: high half of the band.
    pub(crate) second: i32,
    /// SI_TIMER: the value. POLL_*: the file descriptor, in the low half.
    pub(crate) value: u64,
    /// For the signals that reach us the kernel's part ends before this field and the rest is zero
    /// (copy_siginfo_to_user): room for [`SignalInfo::passed`].
    pub(crate) unused: [u64; 8],
    /// [`PASSED_ON`] once our handler has passed this signal on.
    pub(crate) passed: u64,
    /// Another crate of this project marks signals here (`activation`).
    pub(crate) foreign: [u64; 3],
}

/// "Timer id" of the signals that we send: no timer and no process has this number.
pub(crate) const SENT: i32 = -1;
/// The same in signals that are sent to measure their cost.
pub(crate) const PRICED: i32 = -2;
/// See [`SignalInfo::passed`].
pub(crate) const PASSED_ON: u64 = 0x7469_636b_7061_7373;

const _: () = assert!(size_of::<SignalInfo>() == size_of::<libc::siginfo_t>());

/// Whether `tid` is a thread of this process.
pub(crate) fn is_own_thread(pid: i32, tid: u32) -> bool {
    // SAFETY: signal 0 is not sent; the kernel only checks that the thread is there.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) == 0 }
}

/// Queues `signal` with `value` to one thread of this process. Not for the handler.
///
/// The signal is marked as a timer's, for two reasons. `execve` drops signals of timers and keeps
/// all others (fs/exec.c, `begin_new_exec`: `flush_itimer_signals`), which would reach a new
/// program without our handler. And a CLR whose handler gets it first compares `first` with its own
/// process's id.
pub(crate) fn queue_signal(pid: i32, tid: u32, signal: i32, value: u64) -> Result<(), i32> {
    queue(pid, tid, signal, SENT, value)
}

/// As [`queue_signal`], to measure its cost: our handler returns at once.
pub(crate) fn queue_for_price(pid: i32, tid: u32, signal: i32) -> Result<(), i32> {
    queue(pid, tid, signal, PRICED, 0)
}

fn queue(pid: i32, tid: u32, signal: i32, first: i32, value: u64) -> Result<(), i32> {
    if !syscalls::is_allowed(Call::RtTgsigqueueinfo) {
        return Err(syscalls::refusal(Call::RtTgsigqueueinfo));
    }
    let info = SignalInfo {
        signo: signal,
        errno: 0,
        code: libc::SI_TIMER,
        padding: 0,
        first,
        second: 0,
        value,
        unused: [0; 8],
        passed: 0,
        foreign: [0; 3],
    };
    // SAFETY: the kernel reads a siginfo_t, which `info` has the size and layout of.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            pid,
            tid,
            signal,
            &raw const info,
        )
    };
    if result == 0 { Ok(()) } else { Err(errno()) }
}

/// Returns the identity of the object behind a descriptor; 0 if it is not open. Handler. A socket's
/// number is reused only after 2^32 others.
pub(crate) fn identity(fd: c_int) -> u64 {
    // SAFETY: all-zero is a valid `stat`.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a valid out-pointer.
    if unsafe { libc::fstat(fd, &raw mut found) } != 0 {
        return 0;
    }
    found.st_ino ^ found.st_dev.rotate_left(32)
}

/// Creates a socket that is connected to itself. Data sent to it can be read from it, and no other
/// process may send to it (only the peer of a connected socket may, `unix_may_send`,
/// net/unix/af_unix.c). It needs one descriptor instead of a pair's two. It is a socket because
/// sending to a file that has got its number does nothing.
pub(crate) fn socket_to_itself() -> Result<c_int, Error> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: three numbers.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return Err(last_error("socket"));
    }
    // SAFETY: all-zero is a valid `sockaddr_un`.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let pointer = (&raw mut address).cast::<libc::sockaddr>();
    // A family without a name: the kernel assigns a free one (unix(7), "Autobind"), which is not a
    // file.
    let mut length = size_of::<libc::sa_family_t>() as libc::socklen_t;
    // SAFETY: as many readable bytes.
    if unsafe { libc::bind(socket, pointer, length) } != 0 {
        return Err(close_with(socket, "bind"));
    }
    length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: as many writable bytes, and a valid pointer to their number.
    if unsafe { libc::getsockname(socket, pointer, &raw mut length) } != 0 {
        return Err(close_with(socket, "getsockname"));
    }
    // SAFETY: as many readable bytes, which `getsockname` has written.
    if unsafe { libc::connect(socket, pointer, length) } != 0 {
        return Err(close_with(socket, "connect"));
    }
    Ok(socket)
}

/// Creates two connected sockets: data sent to the second can be read from the first.
pub(crate) fn socket_pair() -> Result<(c_int, c_int), Error> {
    let mut pair = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
        return Err(last_error("socketpair"));
    }
    let [first, second] = pair;
    Ok((first, second))
}

/// Closes a descriptor that is useless, because this call failed. Returns the error.
fn close_with(fd: c_int, call: &'static str) -> Error {
    let error = last_error(call);
    // SAFETY: opened by the caller, and not used elsewhere yet.
    unsafe { libc::close(fd) };
    error
}

/// Sends one byte. Handler. It uses the raw call, because `libc`'s is a cancellation point. A file
/// that is not a socket refuses the call, and no SIGPIPE is sent.
pub(crate) fn notify(socket: c_int) {
    let byte = 1u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one readable byte and no address. A failure (the socket is full) needs no answer: the
    // reader also comes at intervals.
    unsafe {
        libc::syscall(
            libc::SYS_sendto,
            socket,
            &raw const byte,
            1usize,
            flags,
            0usize,
            0,
        )
    };
}

/// Reads the bytes that [`notify`] has sent.
pub(crate) fn take_notices(socket: c_int) {
    let mut bytes = [0u8; 64];
    let flags = libc::MSG_DONTWAIT;
    // Each byte is read separately. There are rarely two (`WakeFlag`). If there are more, the rest
    // ends the next wait at once.
    for _ in 0..8 {
        // SAFETY: so many writable bytes.
        let read = unsafe { libc::recv(socket, bytes.as_mut_ptr().cast(), bytes.len(), flags) };
        if read <= 0 {
            return;
        }
    }
}

/// Makes the calling thread's waits end within a microsecond of their time, instead of the kernel's
/// default of 50.
pub(crate) fn set_timer_slack() {
    const SLACK_NS: libc::c_ulong = 1000;
    // SAFETY: changes a number of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
}

/// Waits while the word has this value, at most until the timeout. May return early.
pub(crate) fn futex_wait(word: &core::sync::atomic::AtomicU32, value: u32, timeout_ns: u64) {
    let timeout = libc::timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as i64,
        tv_nsec: (timeout_ns % 1_000_000_000) as i64,
    };
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the word and the timeout, both alive during the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            op,
            value,
            &raw const timeout,
        )
    };
}

/// Wakes the threads that wait on the word. Handler.
pub(crate) fn futex_wake(word: &core::sync::atomic::AtomicU32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the word's address alone.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, i32::MAX) };
}

/// Returns the program's limit of open descriptors.
pub(crate) fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid out-pointer.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 0;
    }
    limit.rlim_cur
}

/// Returns the number of descriptors that are neither open nor over the limit. The lowest free
/// number approximates the number of open ones: it does not include those opened above a hole.
pub(crate) fn free_descriptors() -> u64 {
    let limit = descriptor_limit();
    // SAFETY: a new descriptor of ours, closed below.
    let lowest = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if lowest < 0 {
        return 0;
    }
    close(lowest);
    limit.saturating_sub(lowest as u64)
}

/// Returns how many more signals the user may have queued ("SigQ: queued/limit" in
/// /proc/self/status).
pub(crate) fn free_signals() -> u64 {
    let mut text = [0u8; 2048];
    let text = proc::read_file(c"/proc/self/status", &mut text);
    let mut numbers = proc::field(text, b"SigQ:")
        .split(|byte| *byte == b'/')
        .map(proc::decimal::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Some(queued)), Some(Some(limit))) => limit.saturating_sub(queued),
        _ => 0,
    }
}

/// Whether a thread of this process runs or waits for a processor: the state letter in its `stat`
/// file, after its name, which may contain anything. Also true if the file cannot be read, such as
/// without a free descriptor: a thread is sampled unless it is known to wait.
pub(crate) fn is_runnable(tid: u32) -> bool {
    let mut text = [0u8; 128];
    let text = read_task_file(tid, b"/stat\0", &mut text);
    if text.is_empty() {
        return true;
    }
    let after_name = text.iter().rposition(|byte| *byte == b')');
    after_name.and_then(|at| text.get(at + 2)) == Some(&b'R')
}

/// Whether a signal is in the queue of a thread of this process: its `SigPnd`. Also true if that
/// cannot be read.
pub(crate) fn is_pending(tid: u32, signal: i32) -> bool {
    let mut text = [0u8; 2048];
    let text = read_task_file(tid, b"/status\0", &mut text);
    match proc::field(text, b"SigPnd:") {
        [] => true,
        digits => hexadecimal_digits(digits).is_none_or(|set| set & bit(signal) != 0),
    }
}

/// Returns the total time for which a runnable thread of this process has waited for a processor,
/// nanoseconds: the second number of its `schedstat` file
/// (Documentation/scheduler/sched-stats.rst). 0 if the kernel does not report it.
/// Reads a file; may be called in any context.
#[must_use]
pub fn queued_ns(tid: u32) -> u64 {
    let mut text = [0u8; 64];
    let text = read_task_file(tid, b"/schedstat\0", &mut text);
    let number = text.split(|byte| *byte == b' ').nth(1);
    number.and_then(proc::decimal).unwrap_or(0)
}

/// Returns stack pointer and program counter of a thread of this process that waits in a system
/// call, from its `syscall` file (`NUMBER ARGUMENT… SP PC`). A thread may always read those of its
/// own process (kernel/ptrace.c, `__ptrace_may_access`). `None` if the thread is runnable, waits
/// for a page or has ended, and if the kernel does not report it.
pub(crate) fn waits_at(tid: u32) -> Option<(u64, u64)> {
    let mut text = [0u8; 256];
    let text = read_task_file(tid, b"/syscall\0", &mut text);
    // "running", or "-1 …" outside of a system call.
    if !text.first()?.is_ascii_digit() {
        return None;
    }
    let mut words = text
        .trim_ascii_end()
        .rsplit(|byte| *byte == b' ')
        .map(hexadecimal);
    let (pc, sp) = (words.next()??, words.next()??);
    Some((sp, pc))
}

/// Parses the number in `0x…`.
fn hexadecimal(word: &[u8]) -> Option<u64> {
    hexadecimal_digits(word.strip_prefix(b"0x")?)
}

fn hexadecimal_digits(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |sum, digit| {
        let digit = char::from(*digit).to_digit(16)?;
        Some(sum.wrapping_mul(16).wrapping_add(digit.into()))
    })
}

/// Returns the address at which a thread of this process has the list of its robust mutexes: in its
/// control block, which glibc places at the upper end of a stack that it allocated. `None` if the
/// kernel does not report it.
pub(crate) fn robust_list_of(tid: u32) -> Option<u64> {
    if !syscalls::is_allowed(Call::GetRobustList) {
        return None;
    }
    let (mut head, mut length) = (0_u64, 0_usize);
    // SAFETY: valid out-pointers of the sizes that the kernel writes.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            tid,
            &raw mut head,
            &raw mut length,
        )
    };
    (asked == 0 && head != 0).then_some(head)
}

/// Reads this process's own memory at `address` into `into`. Returns false if it cannot be read.
/// The kernel reads it, because a thread's stack may be unmapped meanwhile.
pub(crate) fn read_own(address: u64, into: &mut [u64]) -> bool {
    if !syscalls::is_allowed(Call::ProcessVmReadv) {
        return false;
    }
    let length = size_of_val(into);
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: length,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: length,
    };
    // SAFETY: two valid vectors of one range each. The kernel checks both ranges, and writes at
    // most `length` bytes to `into`.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    usize::try_from(read) == Ok(length)
}

/// Reads the beginning of a file of a thread of this process. `name` is the file's name, with a
/// slash before it and a zero after it.
fn read_task_file<'a>(tid: u32, name: &[u8], text: &'a mut [u8]) -> &'a [u8] {
    const FRONT: &[u8] = b"/proc/self/task/";
    let mut path = [0u8; 40];
    let mut digits = [0u8; 10];
    let mut first = digits.len();
    let mut rest = tid;
    while let Some(place) = first.checked_sub(1).and_then(|at| digits.get_mut(at)) {
        *place = b'0' + (rest % 10) as u8;
        first -= 1;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let number = digits.get(first..).unwrap_or(&[]);
    let bytes = FRONT.iter().chain(number).chain(name);
    for (place, byte) in path.iter_mut().zip(bytes) {
        *place = *byte;
    }
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&path) else {
        return &[];
    };
    proc::read_file(path, text)
}

/// Maps fresh zeroed memory; `None` on failure.
pub(crate) fn map_memory(len: usize) -> Option<*mut u8> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches nothing
    // that exists.
    let memory = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    (memory != libc::MAP_FAILED).then_some(memory.cast::<u8>())
}

/// Closes a file descriptor of ours.
pub(crate) fn close(fd: c_int) {
    // SAFETY: the caller owns `fd` and forgets it.
    unsafe { libc::close(fd) };
}

/// Returns the kernel's action on a signal.
pub(crate) fn disposition(signal: i32) -> libc::sigaction {
    // SAFETY: all-zero is a valid sigaction (default action, empty mask).
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: a query with a valid out-pointer. It fails for numbers that are not signals, which
    // `check` has refused.
    unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut action) };
    action
}
