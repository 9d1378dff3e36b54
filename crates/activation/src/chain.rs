//! Finds the handlers behind the one that is in place.
//!
//! Each CLR keeps the handler that it found when it installed its own, and passes to it what comes
//! from other processes. Where several CLRs started before the agent came, that is the only place
//! in which the earlier handlers can be found: the kernel knows the last one alone. So the code of
//! a handler is searched for the word in its library's data that holds another CLR's code address
//! (`g_previous_activation.sa_sigaction` in `inject_activation_handler`, 3.1 to 10).
//!
//! Nothing is decoded but the four bytes by which x86-64 names a word of its own module. Invariant:
//! what is answered is code of a CLR to which the handler itself refers, and a handler refers to no
//! function of another CLR but the one that it replaced.

use std::mem::offset_of;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;

use crate::modules::Module;

/// How far into a handler is searched, bytes. The word is named within 300 in 3.1.23 and 8.0.4.
const SEARCHED: usize = 1024;
/// Most handlers of one chain.
pub(crate) const MAX_HANDLERS: usize = 16;

/// A CLR's handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Link {
    /// Its address.
    pub(crate) handler: usize,
    /// [`Module::lazy_locals`] of its CLR.
    pub(crate) lazy_locals: usize,
}

/// A handler that stands between those of CLRs and passes on what is not its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForwardingHandler {
    /// Its address.
    pub handler: usize,
    /// The handler to which it passes on; 0 for none.
    pub beneath: usize,
}

impl ForwardingHandler {
    /// There is none.
    pub(crate) const NONE: ForwardingHandler = ForwardingHandler {
        handler: usize::MAX,
        beneath: 0,
    };
}

/// The CLRs' handlers from `handler` on, oldest first. Empty when `handler` is no CLR's.
///
/// `flags` are those that `handler` was installed with: every CLR uses the same for one signal.
pub(crate) fn of(
    handler: usize,
    flags: c_int,
    modules: &[Module],
    between: ForwardingHandler,
) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    let mut next = Some(handler);
    while let Some(handler) = next.take() {
        let handler = if handler == between.handler {
            between.beneath
        } else {
            handler
        };
        let Some(module) = clr_of(handler, modules) else {
            break;
        };
        if links.len() == MAX_HANDLERS || links.iter().any(|link| link.handler == handler) {
            break;
        }
        links.push(Link {
            handler,
            lazy_locals: module.lazy_locals,
        });
        next = previous(handler, flags, module, modules, between);
    }
    links.reverse();
    links
}

const FLAGS_AT: usize = offset_of!(libc::sigaction, sa_flags);
const _: () = assert!(offset_of!(libc::sigaction, sa_sigaction) == 0);

/// The CLR whose code a handler is.
fn clr_of(handler: usize, modules: &[Module]) -> Option<&Module> {
    modules.iter().find(|m| m.is_clr && m.runs(handler))
}

/// The code of a handler of this CLR, as far as it is searched.
fn code_of(handler: usize, module: &Module) -> Option<&'static [u8]> {
    let segment = module.code.iter().find(|range| range.contains(&handler))?;
    // Not a byte further: the functions behind it name the words of other signals.
    let end = module.function_end(handler)?.min(segment.end);
    let length = SEARCHED.min(end.checked_sub(handler)?);
    // SAFETY: inside an executable segment of a CLR, which is never unloaded; its segments are
    // readable (PF_R is set in every libcoreclr.so).
    Some(unsafe { std::slice::from_raw_parts(handler as *const u8, length) })
}

/// Returns the address that the four bytes at `at` of a handler's code name. They are in an
/// instruction that ends so many bytes behind them.
fn named(handler: usize, code: &[u8], at: usize, behind: usize) -> Option<usize> {
    let offset = i32::from_le_bytes(code.get(at..at + 4)?.try_into().ok()?);
    Some((handler + at + 4 + behind).wrapping_add_signed(offset as isize))
}

/// Whether there can be a `struct sigaction` of this CLR.
fn holds_action(module: &Module, word: usize) -> bool {
    word.is_multiple_of(size_of::<usize>())
        && module.holds_word(word)
        && module.holds_word(word + FLAGS_AT)
}

/// Has the CLR of this handler give the signal back as ignored, where it has found it at its
/// default action.
///
/// Before it ends the process by `abort`, a CLR of .NET 5 to 8 gives its signals back as it found
/// them (`SEHCleanupSignals` in `PROCAbort`, src/coreclr/pal/src/thread/process.cpp). The default
/// action of this one ends the process: a tick that comes in between would, with another exit code,
/// and without the core file. The CLR itself makes no difference between the two: it calls neither.
pub(crate) fn restore_ignored(handler: usize, modules: &[Module]) {
    let Some(found) =
        clr_of(handler, modules).and_then(|module| action_of_handler(handler, module))
    else {
        return;
    };
    // SAFETY: aligned words in writable segments of a CLR, which is never unloaded. It has written
    // them before it installed the handler, and only reads them since.
    unsafe {
        let action = AtomicUsize::from_ptr(found as *mut usize);
        let flags = ((found + FLAGS_AT) as *const c_int).read_volatile();
        if flags == 0 {
            let _other = action.compare_exchange(libc::SIG_DFL, libc::SIG_IGN, Relaxed, Relaxed);
        }
    }
}

/// Where the CLR of this handler keeps what it has found: the `struct sigaction` whose flags the
/// handler's code tests for SA_SIGINFO and whose action it loads, as compilers write it. `None`
/// where that is not there, or more than one.
fn action_of_handler(handler: usize, module: &Module) -> Option<usize> {
    let code = code_of(handler, module)?;
    let named = |at, behind| named(handler, code, at, behind);
    let is_loaded = |word: usize| {
        // mov r64, [rip + offset]
        let loads =
            |at: usize| matches!(code[at..at + 3], [0x48 | 0x4c, 0x8b, by] if by & 0xc7 == 5);
        (0..code.len().saturating_sub(6)).any(|at| loads(at) && named(at + 3, 0) == Some(word))
    };
    let mut found = (0..code.len().saturating_sub(6)).filter_map(|at| {
        // test byte [rip + offset], SA_SIGINFO
        let tests = code[at..at + 2] == [0xf6, 0x05] && code[at + 6] == libc::SA_SIGINFO as u8;
        let flags = tests.then(|| named(at + 2, 1))??;
        let word = flags.checked_sub(FLAGS_AT)?;
        (holds_action(module, word) && is_loaded(word)).then_some(word)
    });
    let first = found.next()?;
    found.all(|other| other == first).then_some(first)
}

/// The handler of another CLR, or the one between, that the code at `handler` refers to: a `struct
/// sigaction` with the flags of a handler of the same signal.
fn previous(
    handler: usize,
    flags: c_int,
    module: &Module,
    modules: &[Module],
    between: ForwardingHandler,
) -> Option<usize> {
    /// The flags that distinguish handlers of faults, which have a stack of their own, from others.
    const COMPARED: c_int = libc::SA_SIGINFO | libc::SA_ONSTACK;
    let code = code_of(handler, module)?;
    (0..code.len()).find_map(|at| {
        let word = named(handler, code, at, 0).filter(|word| holds_action(module, *word))?;
        // SAFETY: aligned words in a writable segment of the same library.
        let (value, found) = unsafe {
            (
                (word as *const usize).read_volatile(),
                ((word + FLAGS_AT) as *const c_int).read_volatile(),
            )
        };
        if (found ^ flags) & COMPARED != 0 {
            return None;
        }
        let is_another = clr_of(value, modules).is_some_and(|other| !std::ptr::eq(other, module));
        (value == between.handler || is_another).then_some(value)
    })
}
