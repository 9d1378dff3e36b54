//! Finds the CLR signal handlers behind the installed one.
//!
//! Each CLR stores the handler that it found when it installed its own, and passes signals of other
//! processes on to it. If several CLRs started before the agent, the earlier handlers are stored
//! nowhere else: the kernel has the last one only. So the code of a handler is searched for a
//! reference to the word in its library's data that holds another CLR's code address
//! (`g_previous_activation.sa_sigaction` in `inject_activation_handler`, 3.1 to 10).
//!
//! Instructions are not decoded: only the four bytes are read by which x86-64 addresses a word of
//! its own module. Invariant: a result is code of a CLR to which the handler itself refers. A
//! handler refers to no function of another CLR except the one that it replaced.

use std::mem::offset_of;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;

use crate::modules::Module;

/// Length of a handler's code that is searched, bytes. The reference is within 300 in 3.1.23 and
/// 8.0.4.
const SEARCHED: usize = 1024;
/// Maximum number of handlers in a chain.
pub(crate) const MAX_HANDLERS: usize = 16;

/// A CLR's handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Link {
    /// Address of the handler.
    pub(crate) handler: usize,
    /// [`Module::lazy_locals`] of its CLR.
    pub(crate) lazy_locals: usize,
}

/// A handler, not a CLR's, that is installed between those of CLRs and passes on foreign signals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForwardingHandler {
    /// Address of the handler.
    pub handler: usize,
    /// The handler to which it passes signals on; 0 if none.
    pub beneath: usize,
}

impl ForwardingHandler {
    /// No such handler.
    pub(crate) const NONE: ForwardingHandler = ForwardingHandler {
        handler: usize::MAX,
        beneath: 0,
    };
}

/// Returns the CLRs' handlers from `handler` on, oldest first. Empty if `handler` is not a CLR's.
///
/// `flags` are those that `handler` was installed with. Every CLR uses the same ones for one
/// signal.
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

/// Returns the CLR that contains the code of a handler.
fn clr_of(handler: usize, modules: &[Module]) -> Option<&Module> {
    modules.iter().find(|m| m.is_clr && m.runs(handler))
}

/// Returns the code of a handler of this CLR, at most [`SEARCHED`] bytes.
fn code_of(handler: usize, module: &Module) -> Option<&'static [u8]> {
    let segment = module.code.iter().find(|range| range.contains(&handler))?;
    // Limited to the function, because the next ones refer to the words of other signals.
    let end = module.function_end(handler)?.min(segment.end);
    let length = SEARCHED.min(end.checked_sub(handler)?);
    // SAFETY: inside an executable segment of a CLR, which is never unloaded; its segments are
    // readable (PF_R is set in every libcoreclr.so).
    Some(unsafe { std::slice::from_raw_parts(handler as *const u8, length) })
}

/// Returns the address that the four bytes at `at` of a handler's code refer to. The instruction
/// ends `behind` bytes after them.
fn named(handler: usize, code: &[u8], at: usize, behind: usize) -> Option<usize> {
    let offset = i32::from_le_bytes(code.get(at..at + 4)?.try_into().ok()?);
    Some((handler + at + 4 + behind).wrapping_add_signed(offset as isize))
}

/// Whether `word` can be the address of a `struct sigaction` of this CLR.
fn holds_action(module: &Module, word: usize) -> bool {
    word.is_multiple_of(size_of::<usize>())
        && module.holds_word(word)
        && module.holds_word(word + FLAGS_AT)
}

/// Makes the CLR of this handler restore the signal as ignored if it found the signal at its
/// default action.
///
/// Before it ends the process by `abort`, a CLR of .NET 5 to 8 restores its signals as it found
/// them (`SEHCleanupSignals` in `PROCAbort`, src/coreclr/pal/src/thread/process.cpp). The default
/// action of this signal ends the process. A tick in between would end it with another exit code
/// and without the core file. The CLR treats the default action and ignoring alike: it calls
/// neither.
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

/// Returns the address at which the CLR of this handler stores the action that it found: the
/// `struct sigaction` whose flags the handler's code tests for SA_SIGINFO and whose action it
/// loads, in the form that compilers write. `None` if there is none, or more than one.
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

/// Returns the handler of another CLR, or `between`, to which the code at `handler` refers: a
/// `struct sigaction` with the flags of a handler of the same signal.
fn previous(
    handler: usize,
    flags: c_int,
    module: &Module,
    modules: &[Module],
    between: ForwardingHandler,
) -> Option<usize> {
    /// Flags that distinguish handlers of faults, which run on an alternate stack, from others.
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
