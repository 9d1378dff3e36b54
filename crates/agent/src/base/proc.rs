//! The kernel's facts about this process and its threads, from /proc and system calls.
//!
//! Functions that read /proc run on the agent thread or in callbacks, never in a signal handler.
//! Every function returns an empty value instead of an error: a missing fact is, for example, a
//! thread without a name.

use std::ops::Range;
use std::os::fd::AsRawFd as _;

/// Reads the thread ids of this process. Returns false if the kernel does not list them now, for
/// example without a free descriptor. Uses the system call, because the C library's `opendir`
/// allocates memory with the program's `malloc`.
pub fn thread_ids(into: &mut Vec<u32>) -> bool {
    let Ok(folder) = std::fs::File::open("/proc/self/task") else {
        return false;
    };
    into.clear();
    let mut room = [0u8; 8192];
    loop {
        // SAFETY: writes at most the length of `room`.
        let filled = unsafe {
            let (at, size) = (room.as_mut_ptr(), room.len());
            libc::syscall(libc::SYS_getdents64, folder.as_raw_fd(), at, size)
        };
        let filled = usize::try_from(filled).unwrap_or(0);
        let Some(mut entries) = room.get(..filled).filter(|entries| !entries.is_empty()) else {
            // The list contains the calling thread.
            return !into.is_empty();
        };
        while let Some((name, rest)) = next_entry(entries) {
            into.extend(
                std::str::from_utf8(name)
                    .iter()
                    .flat_map(|name| name.parse::<u32>()),
            );
            entries = rest;
        }
    }
}

/// Returns the name of the first entry and the entries behind it (`struct linux_dirent64`: its
/// length in bytes 16 and 17, the name from byte 19 to a zero).
fn next_entry(entries: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u16::from_ne_bytes(*entries.get(16..)?.first_chunk()?);
    let (entry, rest) = entries.split_at_checked(length.into())?;
    let name = entry.get(19..)?;
    Some((name.split(|byte| *byte == 0).next()?, rest))
}

/// Returns the number of threads of this process: the link count of their folder, which needs no
/// list.
pub fn thread_count() -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self/task").map_or(0, |folder| folder.nlink())
}

/// Returns the kernel's name of a thread (at most 15 bytes).
pub fn thread_name(tid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/self/task/{tid}/comm")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_end_matches('\n');
    (!text.is_empty()).then(|| text.to_owned())
}

/// The kernel's name of a thread: at most 15 bytes, and a zero. Not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelName([u8; 16]);

impl KernelName {
    /// Returns it as text: owned only if the kernel truncated it inside a character.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        let text = std::ffi::CStr::from_bytes_until_nul(&self.0).unwrap_or_default();
        text.to_string_lossy()
    }
}

/// Returns the name of the calling thread, by a system call without a file or allocation. Memory
/// that one thread allocates and another frees is expensive.
pub fn own_name() -> Option<KernelName> {
    let mut name = [0u8; 16];
    // SAFETY: writes at most 16 bytes, a terminated string, into `name`.
    if unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) } != 0 {
        return None;
    }
    (name[0] != 0).then_some(KernelName(name))
}

/// The current activity of a thread, as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadActivity {
    /// `R`, `S`, `D`, …; 0 if unknown.
    pub code: u8,
    /// The system call that it executes.
    pub syscall: Option<u32>,
    /// The kernel's function in which it waits; empty if there is none or it is not reported.
    pub wait: String,
}

/// Returns a thread's current activity.
pub fn thread_activity(tid: u32) -> Option<ThreadActivity> {
    let read = |what: &str| std::fs::read_to_string(format!("/proc/self/task/{tid}/{what}"));
    let stat = read("stat").ok()?;
    // The name before it may contain anything, even a bracket.
    let code = stat.rsplit_once(") ")?.1.bytes().next()?;
    // `running`, `-1 SP PC` or `NUMBER ARGUMENT… SP PC`.
    let syscall = read("syscall").unwrap_or_default();
    let syscall = syscall.split(' ').next().and_then(|word| word.parse().ok());
    let wait = read("wchan").unwrap_or_default();
    let wait = if wait == "0" { String::new() } else { wait };
    Some(ThreadActivity {
        code,
        syscall,
        wait,
    })
}

/// A thread that waits in a system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Number of the system call.
    pub syscall: u64,
    /// Stack pointer.
    pub stack_pointer: u64,
    /// Program counter.
    pub program_counter: u64,
    /// Number of its context switches: if unchanged, it has not run.
    pub switches: u64,
}

/// Returns where a thread waits; `None` if it runs, has ended, or the kernel does not report it.
pub fn blocked(tid: u32) -> Option<Blocked> {
    let switches = switches(tid)?;
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).ok()?;
    // `NUMBER ARGUMENT… SP PC`, the first decimal.
    let mut words = text.split_ascii_whitespace();
    let syscall = words.next()?.parse().ok()?;
    let mut from_the_end = words.rev().map(|word| {
        let digits = word.strip_prefix("0x")?;
        u64::from_str_radix(digits, 16).ok()
    });
    let program_counter = from_the_end.next()??;
    let stack_pointer = from_the_end.next()??;
    Some(Blocked {
        syscall,
        stack_pointer,
        program_counter,
        switches,
    })
}

/// Returns a thread's context switches, voluntary or not.
fn switches(tid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).ok()?;
    let numbers = text.lines().filter_map(|line| {
        let (name, number) = line.split_once(':')?;
        name.ends_with("voluntary_ctxt_switches")
            .then(|| number.trim().parse::<u64>().ok())?
    });
    Some(numbers.sum())
}

/// Returns a thread's start time, in the kernel's ticks.
pub fn thread_start(tid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    // The name before may contain anything; the state after it is field 3, this one 22.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Whether a thread blocks this signal.
pub fn blocks(tid: u32, signal: i32) -> bool {
    let bytes = std::fs::read(format!("/proc/self/task/{tid}/status")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mask = text.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = u32::try_from(signal - 1)
        .ok()
        .and_then(|bit| 1u64.checked_shl(bit));
    mask.zip(bit).is_some_and(|(mask, bit)| mask & bit != 0)
}

/// Returns the command line, words joined by NUL.
pub fn command_line() -> String {
    let bytes = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    String::from_utf8_lossy(&bytes)
        .trim_end_matches('\0')
        .to_owned()
}

/// A mapping of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address range.
    pub range: Range<u64>,
    /// Whether it is readable.
    pub readable: bool,
    /// Whether it is executable.
    pub executable: bool,
    /// Inode of its file; 0 for anonymous memory.
    pub inode: u64,
    /// File, `[stack]`, `/memfd:doublemapper (deleted)`, or empty.
    pub name: String,
}

/// Returns all mappings, sorted by address.
pub fn mappings() -> Vec<Mapping> {
    let bytes = std::fs::read("/proc/self/maps").unwrap_or_default();
    String::from_utf8_lossy(&bytes)
        .lines()
        .filter_map(parse_mapping)
        .collect()
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    // 7f0a2c000000-7f0a2c021000 rw-p 00000000 00:00 0    [name]
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let inode = words.nth(2)?.parse().ok()?;
    let name = words.next().unwrap_or("").trim_start();
    Some(Mapping {
        range: u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?,
        readable: rights.starts_with('r'),
        executable: rights.as_bytes().get(2) == Some(&b'x'),
        inode,
        name: name.to_owned(),
    })
}

impl Mapping {
    /// Whether it may contain code that a runtime generated: anonymous memory, or the memfd that
    /// .NET maps twice, once to write and once to execute.
    pub fn is_generated(&self) -> bool {
        self.name.is_empty() || self.name.contains("doublemapper")
    }
}

/// Returns the mapping that contains `address`, from a sorted list.
pub fn mapping_of(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let next = mappings.partition_point(|m| m.range.end <= address);
    mappings.get(next).filter(|m| m.range.contains(&address))
}

/// Returns the stack of the calling thread: lowest to one past the highest address.
///
/// Allocates and, on the main thread, reads /proc/self/maps: for callbacks, not for signal
/// handlers.
pub fn own_stack() -> Option<Range<u64>> {
    // SAFETY: `attr` is initialised by pthread_getattr_np before it is read and destroyed once;
    // pthread_self is always valid.
    unsafe {
        let mut attr: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attr) != 0 {
            return None;
        }
        let mut low = std::ptr::null_mut();
        let mut size = 0;
        let result = libc::pthread_attr_getstack(&raw const attr, &raw mut low, &raw mut size);
        libc::pthread_attr_destroy(&raw mut attr);
        let low = low as u64;
        (result == 0).then(|| low..low + size as u64)
    }
}

/// Returns the calling thread's id.
pub fn own_tid() -> u32 {
    // Not the C function of that name: glibc has it since 2.30, and a library that needs it cannot
    // be loaded with an older one. SAFETY: gettid has no preconditions.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) };
    u32::try_from(tid).unwrap_or(0)
}

/// Whether this process has a thread with this id.
pub fn thread_exists(tid: u32) -> bool {
    let pid = std::process::id();
    // SAFETY: signal 0 is delivered to no thread; the call only checks for existence.
    let found = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) };
    found == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Returns CLOCK_MONOTONIC, nanoseconds.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Returns CLOCK_REALTIME, nanoseconds.
pub fn unix_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

/// Returns a key that is unique among the processes of a recording: pid and time.
pub fn process_key() -> recording::ProcessKey {
    let pid = u64::from(std::process::id());
    recording::ProcessKey(pid << 32 | (unix_ns() / 1000) & 0xffff_ffff)
}

/// Returns the CPU time of the calling thread, nanoseconds.
pub fn own_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU time of the process, nanoseconds.
pub fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the CPU time of a thread of this process, nanoseconds.
pub fn thread_cpu_ns(tid: u32) -> Option<u64> {
    // The kernel's clock id for a thread's CPU time: MAKE_THREAD_CPUCLOCK(tid, CPUCLOCK_SCHED),
    // include/linux/posix-timers.h.
    let clock = (!tid.cast_signed() << 3) | 6;
    read_clock(clock)
}

/// Reads a clock that always exists.
fn clock_ns(clock: libc::clockid_t) -> u64 {
    read_clock(clock).unwrap_or(0)
}

/// Reads a clock in nanoseconds; `None` for one of a thread that has ended.
fn read_clock(clock: libc::clockid_t) -> Option<u64> {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is valid for writes; a clock that does not exist gives an error.
    let result = unsafe { libc::clock_gettime(clock, &raw mut now) };
    (result == 0).then(|| now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_thread_is_listed_with_its_stack() {
        let mut ids = Vec::new();
        thread_ids(&mut ids);
        assert!(ids.contains(&own_tid()));
        let stack = own_stack().unwrap();
        let here = (&raw const ids) as u64;
        assert!(stack.contains(&here));
        let maps = mappings();
        assert!(mapping_of(&maps, here).unwrap().readable);
        let code = own_stack as *const () as u64;
        assert!(mapping_of(&maps, code).unwrap().executable);
        assert!(mapping_of(&maps, 8).is_none());
    }

    #[test]
    fn a_thread_that_holds_a_signal_off_is_seen_to() {
        let (tid, signal) = (own_tid(), libc::SIGRTMIN() + 3);
        let hold = |how| {
            // SAFETY: a set of one signal, which this process never sends.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&raw mut set, signal);
                assert_eq!(
                    libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()),
                    0
                );
            }
        };
        assert!(!blocks(tid, signal));
        hold(libc::SIG_BLOCK);
        assert!(blocks(tid, signal));
        assert!(!blocks(tid, signal + 1));
        hold(libc::SIG_UNBLOCK);
        assert!(!blocks(tid, signal));
        assert!(!blocks(u32::MAX, signal), "no such thread");
    }

    #[test]
    fn a_name_with_spaces_is_kept() {
        let line = "7f00-7f10 r-xs 00000000 00:01 2049   /memfd:doublemapper (deleted)";
        assert_eq!(
            parse_mapping(line),
            Some(Mapping {
                range: 0x7f00..0x7f10,
                readable: true,
                executable: true,
                inode: 2049,
                name: "/memfd:doublemapper (deleted)".into()
            })
        );
        assert_eq!(parse_mapping("garbage"), None);
    }
}
