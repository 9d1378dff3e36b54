//! The shared signal handlers, and the list of CLR handlers that they call.
//!
//! The list only grows, because CLRs are never unloaded. Invariant: [`on_signal`] and the code it
//! calls here take no lock, allocate nothing, use no thread-local of this library and preserve
//! `errno`.

use core::mem::transmute;
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::chain::{Link, MAX_HANDLERS};

type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Returns the number of the signal by which CLRs interrupt their threads: the C library's
/// `SIGRTMIN`.
pub fn signal_number() -> i32 {
    libc::SIGRTMIN()
}

/// A signal that all CLRs handle, with our handler and the CLRs' ones.
pub(crate) struct SharedSignal {
    number: fn() -> i32,
    ours: Handler,
    pub(crate) handlers: Handlers,
}

/// The activation signal.
pub(crate) static ACTIVATION: SharedSignal = SharedSignal {
    number: signal_number,
    ours: on_signal,
    handlers: Handlers::new(),
};

/// Faults that CLRs turn into exceptions: a null reference, a division by zero.
pub(crate) static FAULTS: [SharedSignal; 2] = [
    SharedSignal {
        number: || libc::SIGSEGV,
        ours: on_fault,
        handlers: Handlers::new(),
    },
    SharedSignal {
        number: || libc::SIGFPE,
        ours: on_fault,
        handlers: Handlers::new(),
    },
];

/// The kernel's action on a signal.
#[derive(Clone, Copy)]
pub(crate) struct Disposition(libc::sigaction);

impl SharedSignal {
    /// Returns the address of our handler.
    pub(crate) fn address(&self) -> usize {
        self.ours as usize
    }

    /// Returns the kernel's current action for the signal.
    pub(crate) fn current(&self) -> Disposition {
        // SAFETY: all-zero is a valid sigaction (default action, empty mask).
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: a query; the out-pointer is valid. It fails for numbers that are not signals, and
        // the default is kept.
        unsafe { libc::sigaction((self.number)(), core::ptr::null(), &raw mut action) };
        Disposition(action)
    }

    pub(crate) fn is_ours(&self, found: &Disposition) -> bool {
        found.handler() == self.ours as usize
    }

    /// Installs our handler in place of `found`, with its mask and flags. Returns the action that
    /// was installed until then.
    pub(crate) fn replace(&self, found: &Disposition) -> Disposition {
        let mut action = found.0;
        action.sa_sigaction = self.ours as usize;
        action.sa_flags |= libc::SA_SIGINFO;
        let mut before = *found;
        // SAFETY: the function stays loaded (a program's, or the agent's, which is linked with
        // -z nodelete) and is a handler for SA_SIGINFO; both pointers are valid.
        unsafe { libc::sigaction((self.number)(), &raw const action, &raw mut before.0) };
        before
    }
}

impl Disposition {
    pub(crate) fn handler(&self) -> usize {
        self.0.sa_sigaction
    }

    pub(crate) fn flags(&self) -> c_int {
        self.0.sa_flags
    }

    pub(crate) fn is_default(&self) -> bool {
        matches!(self.handler(), libc::SIG_DFL | libc::SIG_IGN)
    }
}

/// The CLRs' handlers, oldest first. Writers hold the lock of [`crate::serve_all`]; the handler
/// reads without a lock.
pub(crate) struct Handlers {
    links: [(AtomicUsize, AtomicUsize); MAX_HANDLERS],
    /// Stored with Release once the link before it is written.
    length: AtomicUsize,
}

impl Handlers {
    const fn new() -> Handlers {
        Handlers {
            links: [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; MAX_HANDLERS],
            length: AtomicUsize::new(0),
        }
    }

    fn get(&self, at: usize) -> Option<Link> {
        self.iter().nth(at)
    }

    /// Returns the number of CLRs that are served.
    pub(crate) fn len(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    fn iter(&self) -> impl Iterator<Item = Link> + '_ {
        self.links.iter().take(self.len()).map(|link| Link {
            handler: link.0.load(Ordering::Relaxed),
            lazy_locals: link.1.load(Ordering::Relaxed),
        })
    }

    fn knows(&self, link: &Link) -> bool {
        self.iter().any(|known| known.handler == link.handler)
    }

    /// Returns the number of handlers if `links` were added.
    pub(crate) fn len_with(&self, links: &[Link]) -> usize {
        self.len() + links.iter().filter(|link| !self.knows(link)).count()
    }

    /// Adds the handlers that are not in the list yet. Must not run on two threads at the same
    /// time.
    pub(crate) fn add(&self, links: &[Link]) {
        for link in links {
            let length = self.len();
            if let Some(place) = self.links.get(length)
                && !self.knows(link)
            {
                place.0.store(link.handler, Ordering::Relaxed);
                place.1.store(link.lazy_locals, Ordering::Relaxed);
                self.length.store(length + 1, Ordering::Release);
            }
        }
    }
}

/// Mark in the unused end of the signal's `siginfo_t`: this handler is running, with its depth
/// behind the mark.
///
/// A CLR that is still starting passes its own signals on to the handler that it found, which may
/// be this one.
const MARK: u64 = 0x7369_6465_7761_6c6b;
const MARK_AT: usize = 14;
const DEPTH_AT: usize = 15;
const MAX_DEPTH: u64 = 2;

const _: () = assert!(size_of::<siginfo_t>() >= (DEPTH_AT + 1) * 8 && align_of::<siginfo_t>() >= 8);

/// Handler of the activation signal.
///
/// # Safety
/// Called by the kernel, or by a handler that the kernel called, with the kernel's arguments.
pub(crate) unsafe extern "C" fn on_signal(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    let words = info.cast::<u64>();
    // SAFETY: the kernel's structure on this thread's stack, 128 bytes, aligned to 8, used by no
    // other thread. The kernel's part for this signal (rt, tkill) ends at byte 32 and the rest is
    // zero (copy_siginfo_to_user). errno has a place of its own on every thread, allocated with it.
    unsafe {
        let errno = *libc::__errno_location();
        let depth = if *words.add(MARK_AT) == MARK {
            *words.add(DEPTH_AT)
        } else {
            0
        };
        if depth < MAX_DEPTH {
            *words.add(MARK_AT) = MARK;
            *words.add(DEPTH_AT) = depth + 1;
            call_all(signal, info, context);
            *words.add(DEPTH_AT) = depth;
        }
        *libc::__errno_location() = errno;
    }
}

/// # Safety
/// As for [`on_signal`].
unsafe fn call_all(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's structure; the union's part of tkill, kill and sigqueue begins with the
    // sender's pid. getpid has no preconditions.
    let is_own = unsafe { (*info).si_pid() == libc::getpid() };
    // Each CLR passes a signal of another process on to the handler that it found. The handler
    // found by the oldest CLR was installed before any CLR.
    let called = if is_own { usize::MAX } else { 1 };
    for link in ACTIVATION.handlers.iter().take(called) {
        if is_own && !has_locals(link.lazy_locals) {
            continue;
        }
        // SAFETY: the address was a CLR's handler for SA_SIGINFO (CLRs install no others), and CLRs
        // are never unloaded.
        unsafe {
            let handler: Handler = transmute(link.handler);
            handler(signal, info, context);
        }
    }
}

/// Handler of faults: passes a fault to the CLR that owns the thread.
///
/// Without it the CLR that was loaded last gets every fault first, on the alternate signal stack
/// that another CLR sized for its own needs. The stack is too small for both and a sample. That CLR
/// would also use its thread-locals, and so allocate some on a thread that it does not own.
///
/// # Safety
/// As for [`on_signal`].
pub(crate) unsafe extern "C" fn on_fault(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    let [memory, arithmetic] = &FAULTS;
    let handlers = if signal == libc::SIGFPE {
        &arithmetic.handlers
    } else {
        &memory.handlers
    };
    let words = info.cast::<u64>();
    // SAFETY: as in `on_signal`; the kernel's part for a fault ends at byte 48.
    let passed_on_by =
        unsafe { (*words.add(MARK_AT) == MARK).then(|| *words.add(DEPTH_AT) as usize) };
    let chosen = match passed_on_by {
        // A CLR that was loaded after this handler was installed passes on to it. The next one to
        // call is the one that was installed before that CLR.
        Some(at) => at.checked_sub(1),
        None => {
            let mut known = (0..)
                .zip(handlers.iter())
                .filter(|(_, link)| has_locals(link.lazy_locals))
                .map(|(at, _)| at);
            match (known.next(), known.next()) {
                (Some(owner), None) => Some(owner),
                // The newest, as without this handler: it passes the fault on to the others.
                _ => handlers.len().checked_sub(1),
            }
        }
    };
    let Some((at, link)) = chosen.and_then(|at| Some((at, handlers.get(at)?))) else {
        return;
    };
    // SAFETY: as in `on_signal` and `call_all`. The mark is left: a handler of a CLR does not
    // return when it makes an exception of the fault.
    unsafe {
        *words.add(MARK_AT) = MARK;
        *words.add(DEPTH_AT) = at as u64;
        let handler: Handler = transmute(link.handler);
        handler(signal, info, context);
    }
}

/// Whether the calling thread has the thread-locals of module `number`. A CLR has not seen a thread
/// without them: it stores its `Thread` in one (`t_CurrentThreadInfo`).
#[cfg(all(target_env = "gnu", target_arch = "x86_64"))]
fn has_locals(number: usize) -> bool {
    /// glibc's `dtv_t`: a length, a generation, or a pointer with what to free.
    type Entry = [usize; 2];
    const UNALLOCATED: usize = usize::MAX;
    if number == 0 {
        return true;
    }
    let vector: *const Entry;
    // SAFETY: the second word of the thread control block is the thread's vector of thread-locals
    // (the ABI of x86-64, "ELF Handling For Thread-Local Storage", section 3.4.2; glibc's
    // `tcbhead_t`); every thread has both.
    unsafe {
        core::arch::asm!("mov {}, fs:[8]", out(reg) vector, options(nostack, readonly, preserves_flags));
    }
    // SAFETY: the entry before the vector holds its length (`_dl_allocate_tls`, `dtv[-1].counter`),
    // and only this thread changes its vector, so it cannot change under its own handler.
    unsafe {
        let length = (*vector.sub(1))[0];
        let locals = if number <= length {
            (*vector.add(number))[0]
        } else {
            UNALLOCATED
        };
        // A vector that has grown has zeros in unallocated entries.
        locals != UNALLOCATED && locals != 0
    }
}

/// Always true: musl allocates a library's thread-locals for every thread when it loads the
/// library.
#[cfg(not(all(target_env = "gnu", target_arch = "x86_64")))]
fn has_locals(_number: usize) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        static CALLED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    fn note(name: &'static str) {
        CALLED.with_borrow_mut(|called| called.push(name));
    }

    unsafe extern "C" fn first(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        note("first");
    }

    /// A CLR that is still starting: it passes its signal on to the handler that it found.
    unsafe extern "C" fn starting(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        note("starting");
        // SAFETY: the arguments are the kernel's, as the caller guarantees.
        unsafe { on_signal(signal, info, context) };
    }

    /// Calls the handler as the kernel would for a signal of `pid`. Returns the names of the called
    /// handlers.
    fn signalled_by(pid: i32) -> Vec<&'static str> {
        // SAFETY: all-zero is a valid siginfo_t; the pid's place is checked below.
        unsafe {
            let mut info: siginfo_t = core::mem::zeroed();
            (&raw mut info).cast::<i32>().add(4).write(pid);
            assert_eq!(info.si_pid(), pid);
            *libc::__errno_location() = 77;
            on_signal(signal_number(), &raw mut info, core::ptr::null_mut());
            assert_eq!(*libc::__errno_location(), 77);
            assert_eq!((&raw const info).cast::<u64>().add(DEPTH_AT).read(), 0);
        }
        CALLED.take()
    }

    #[test]
    fn all_are_called_for_own_signals_the_oldest_for_others_and_none_for_ever() {
        let link = |handler: Handler, lazy_locals| Link {
            handler: handler as usize,
            lazy_locals,
        };
        let unused = link(starting, 1 << 20);
        let handlers = &ACTIVATION.handlers;
        handlers.add(&[link(first, 0), unused]);
        // SAFETY: getpid has no preconditions.
        let own = unsafe { libc::getpid() };
        // No thread has this many modules with thread-locals, so that CLR has not seen this thread.
        assert_eq!(signalled_by(own), ["first"]);
        assert_eq!(signalled_by(own + 1), ["first"]);
        let other = link(starting_with_locals, 0);
        assert_eq!(handlers.len_with(&[other, unused]), 3);
        handlers.add(&[other]);
        handlers.add(&[other]);
        assert_eq!(handlers.len(), 3);
        assert_eq!(
            signalled_by(own),
            ["first", "starting", "first", "starting"]
        );
    }

    unsafe extern "C" fn starting_with_locals(
        signal: c_int,
        info: *mut siginfo_t,
        context: *mut c_void,
    ) {
        // SAFETY: the caller's promise is the same.
        unsafe { starting(signal, info, context) };
    }

    unsafe extern "C" fn newer(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        note("newer");
        // Loaded after our handler was installed, this CLR passes a fault on to it.
        // SAFETY: the arguments are the kernel's, as the caller guarantees.
        unsafe { on_fault(signal, info, context) };
    }

    unsafe extern "C" fn older(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
        note("older");
    }

    #[test]
    fn a_fault_goes_to_the_only_clr_that_knows_the_thread_else_to_the_newest() {
        let fault = || {
            // SAFETY: all-zero is a valid siginfo_t.
            unsafe {
                let mut info: siginfo_t = core::mem::zeroed();
                on_fault(libc::SIGSEGV, &raw mut info, core::ptr::null_mut());
            }
            CALLED.take()
        };
        let link = |handler: Handler, lazy_locals| Link {
            handler: handler as usize,
            lazy_locals,
        };
        let handlers = &FAULTS[0].handlers;
        handlers.add(&[link(older, 0)]);
        handlers.add(&[link(first, 1 << 20)]);
        assert_eq!(fault(), ["older"]);
        handlers.add(&[link(newer, 0)]);
        assert_eq!(fault(), ["newer", "first"]);
    }

    #[test]
    fn a_thread_has_the_locals_that_it_has_used() {
        assert!(has_locals(0));
        #[cfg(target_env = "gnu")]
        assert!(!has_locals(1 << 20));
        // The program's own thread-locals have number 1 and are static.
        assert!(has_locals(1));
    }
}
