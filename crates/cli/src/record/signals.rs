//! Signals of the tool while it records, read in order from a descriptor, never in a handler.
//!
//! Invariant: the recorded program gets the signal mask and dispositions that it would get without
//! the tool. Ignored signals stay ignored, and blocked ones stay blocked.
//! So the tool blocks signals for itself and unblocks them only around the spawn. At that moment
//! handlers that do nothing (exec resets them) keep the tool alive. Dispositions of SIGPIPE and
//! SIGCHLD that Rust or the tool changed are restored in the child, between fork and exec.
//! Signals that were meant for the program but sent to the tool in its place (a service manager's
//! SIGUSR1, an `alarm` set before the tool was started) are forwarded to the program.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::init::Init;

/// Signals that users or the system send to end a program.
const ENDING: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGHUP,
];

/// Signals to forward to the program. They have no meaning for the tool, and would end it, so they
/// are ignored after the program has ended.
const PASSED: [Signal; 8] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGPWR,
    Signal::SIGSTKFLT,
];

/// More forwarded signals for the first process of a container. They end no process there, so their
/// sender means a program that catches them.
const PASSED_BY_INIT: [Signal; 5] = [
    Signal::SIGABRT,
    Signal::SIGCONT,
    Signal::SIGURG,
    Signal::SIGWINCH,
    Signal::SIGXCPU,
];

/// Signals whose disposition in the tool always differs from the parent's: Rust ignores SIGPIPE at
/// its start and gives a child its default action, and the tool needs SIGCHLD.
const DISPOSITION_CHANGED: [Signal; 2] = [Signal::SIGPIPE, Signal::SIGCHLD];

/// The signals of [`DISPOSITION_CHANGED`] that the parent left ignored; bit 0 is the first.
static IGNORED_AT_START: AtomicUsize = AtomicUsize::new(0);

/// Reads the dispositions before Rust's start code changes that of SIGPIPE. In `main` it would be
/// too late.
#[expect(
    unsafe_code,
    reason = "the loader calls what is in this section; there is no other moment"
)]
// SAFETY: glibc and musl call each word of `.init_array` as a function `extern "C" fn(c_int, argv,
// envp)`; one that takes no arguments may be called so on x86-64. The function only reads signal
// dispositions and writes an atomic, so it needs nothing of Rust's runtime, which has not started.
#[unsafe(link_section = ".init_array")]
#[used]
static RECORD_IGNORED: extern "C" fn() = record_ignored;

extern "C" fn record_ignored() {
    let mut ignored = 0;
    for (bit, signal) in DISPOSITION_CHANGED.into_iter().enumerate() {
        if is_ignored(signal) {
            ignored |= 1 << bit;
        }
    }
    IGNORED_AT_START.store(ignored, Ordering::Relaxed);
}

#[expect(
    unsafe_code,
    reason = "nix can only set a disposition, and returns the old one"
)]
fn is_ignored(signal: Signal) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is given, so none is set; the old one is written to `action`, which is
    // as large as it. All bytes were zero before, which is a valid `sigaction`, should it fail.
    let action = unsafe {
        libc::sigaction(signal as i32, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// A signal that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Received {
    /// A child ended, stopped or continued.
    ChildChanged,
    /// One of [`ENDING`].
    Ending {
        /// The signal.
        signal: Signal,
        /// Whether the recorded program has received it too: the kernel sent it to the whole
        /// process group (Ctrl-C, the end of a terminal's shell).
        to_all: bool,
    },
    /// One of [`PASSED`] or [`PASSED_BY_INIT`], of any sender.
    Passed(Signal),
}

/// The blocked signals and the descriptor to read them from.
pub(super) struct Signals {
    fd: SignalFd,
    taken: SigSet,
    original: SigSet,
    /// Number of the signal that arrived during the spawn, else 0.
    missed: Arc<AtomicUsize>,
    /// When set, a signal of [`ENDING`] ends the tool, as it would without handlers.
    released: Arc<AtomicBool>,
}

impl Signals {
    /// Blocks the signals and opens their descriptor. Must be called before a second thread starts.
    pub(super) fn take() -> io::Result<Self> {
        let ignored = ignored_signals()?;
        let mut taken = SigSet::empty();
        let missed = Arc::new(AtomicUsize::new(0));
        let released = Arc::new(AtomicBool::new(false));
        let of_init = PASSED_BY_INIT
            .into_iter()
            .filter(|_| Init::detect().is_some());
        for signal in ENDING.into_iter().chain(PASSED).chain(of_init) {
            let number = signal as i32;
            if ignored & 1 << (number - 1) != 0 {
                continue;
            }
            // A signal that is meant for the program never ends the tool. Without a program it is
            // dropped.
            if ENDING.contains(&signal) {
                signal_hook::flag::register_conditional_shutdown(
                    number,
                    128 + number,
                    Arc::clone(&released),
                )?;
            }
            signal_hook::flag::register_usize(
                number,
                Arc::clone(&missed),
                usize::try_from(number).unwrap_or_default(),
            )?;
            taken.add(signal);
        }
        // The parent may have left SIGCHLD ignored. Then no exit code would be available.
        signal_hook::flag::register(libc::SIGCHLD, Arc::new(AtomicBool::new(false)))?;
        taken.add(Signal::SIGCHLD);

        let original = SigSet::thread_get_mask()?;
        taken.thread_block()?;
        // Blocked and never read: exceeding RLIMIT_FSIZE becomes a write error like a full disk.
        let mut file_size = SigSet::empty();
        file_size.add(Signal::SIGXFSZ);
        file_size.thread_block()?;
        let fd = SignalFd::with_flags(&taken, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self {
            fd,
            taken,
            original,
            missed,
            released,
        })
    }

    /// Starts `command` with the signal mask and the ignored signals that the tool was started
    /// with.
    #[expect(
        unsafe_code,
        reason = "dispositions must be set behind Rust's own resetting of them in the child"
    )]
    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let ignored = IGNORED_AT_START.load(Ordering::Relaxed);
        if ignored != 0 {
            let ignore = move || {
                for (bit, signal) in DISPOSITION_CHANGED.into_iter().enumerate() {
                    if ignored & 1 << bit != 0 {
                        // SAFETY: SIG_IGN is no function that could be called.
                        unsafe {
                            sigaction(
                                signal,
                                &SigAction::new(
                                    SigHandler::SigIgn,
                                    SaFlags::empty(),
                                    SigSet::empty(),
                                ),
                            )
                        }?;
                    }
                }
                Ok(())
            };
            // SAFETY: between fork and exec it calls sigaction(2) alone, which is
            // async-signal-safe, and allocates nothing.
            unsafe { command.pre_exec(ignore) };
        }
        let blocked = SigSet::thread_get_mask()?;
        self.original.thread_set_mask()?;
        let child = command.spawn();
        blocked.thread_set_mask()?;
        child
    }

    /// The descriptor to poll.
    pub(super) fn fd(&self) -> &SignalFd {
        &self.fd
    }

    /// Returns the next signal that has arrived, without waiting.
    pub(super) fn next(&self) -> io::Result<Option<Received>> {
        let missed = self.missed.swap(0, Ordering::Relaxed);
        if missed != 0
            && let Some(signal) = i32::try_from(missed)
                .ok()
                .and_then(|number| Signal::try_from(number).ok())
        {
            if !ENDING.contains(&signal) {
                return Ok(Some(Received::Passed(signal)));
            }
            // The sender is unknown; most likely a key was pressed during the start.
            return Ok(Some(Received::Ending {
                signal,
                to_all: true,
            }));
        }
        loop {
            let info = match self.fd.read_signal() {
                Ok(Some(info)) => info,
                Ok(None) => return Ok(None),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let number = i32::try_from(info.ssi_signo).unwrap_or_default();
            let received = match Signal::try_from(number) {
                Ok(Signal::SIGCHLD) => Received::ChildChanged,
                Ok(signal) if !ENDING.contains(&signal) => Received::Passed(signal),
                Ok(signal) => Received::Ending {
                    signal,
                    to_all: info.ssi_code == libc::SI_KERNEL
                        && !(signal == Signal::SIGHUP && leads_session()),
                },
                Err(_) => continue,
            };
            return Ok(Some(received));
        }
    }

    /// Whether a signal that ends programs has arrived. The signal stays pending, for
    /// [`Signals::next`], or to end the tool when the signals are released.
    pub(super) fn is_end_requested(&self) -> bool {
        let ending = ENDING
            .iter()
            .fold(0, |mask, signal| mask | 1 << (*signal as i32 - 1));
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        // Pending for this thread, and for the process.
        ["SigPnd:", "ShdPnd:"]
            .iter()
            .any(|of| mask_in(&status, of) & ending != 0)
    }

    /// Lets [`ENDING`] end the tool again, when nothing is left to protect. Not called if the tool
    /// ends like the command: a late signal must not replace the command's end.
    pub(super) fn release(&self) {
        self.released.store(true, Ordering::Relaxed);
        let _ = self.taken.thread_unblock();
    }
}

/// Whether this process leads its session, as one started by `ssh -t` does. When a terminal hangs
/// up, the kernel signals only the leader (`tty_signal_session_leader` in
/// drivers/tty/tty_jobctrl.c).
fn leads_session() -> bool {
    rustix::process::getsid(None).is_ok_and(|leader| leader == rustix::process::getpid())
}

/// Ends the tool by the signal `number`, which ended the program. Shells and scripts check for
/// that: after Ctrl-C they continue a loop if they get an exit code.
/// Returns if this is impossible: for the first process of a container, on which signals have no
/// effect, or for a signal that ends no process.
#[expect(
    unsafe_code,
    reason = "nix has no name for signals in real time, of which programs die as well"
)]
pub(super) fn end_by(number: i32) {
    use std::io::Write as _;
    let _ = io::stdout().flush();
    // Prevents a core of the tool: the program's core is the interesting one.
    if nix::sys::prctl::set_dumpable(false).is_err() {
        return;
    }
    let mut only = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: SIG_DFL is no function that could be called; the set is on our stack, made by
    // `sigemptyset` before it is read; the rest are numbers, which the system checks.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), number);
        libc::raise(number);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), std::ptr::null_mut());
    }
}

/// The signals ignored by this process, bit 0 for signal 1.
fn ignored_signals() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    Ok(mask_in(&status, "SigIgn:"))
}

/// The mask on the line of `/proc/PID/status` that begins with `label`.
pub(super) fn mask_in(status: &str, label: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(label));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or_default()
}
