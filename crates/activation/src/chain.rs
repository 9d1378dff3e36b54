//! Which handlers stand behind the one that is in place.
//!
//! Each CLR keeps the handler that it found when it installed its own, and passes to it what comes
//! from other processes. Where several CLRs started before anybody looked, that is the only place
//! in which the earlier handlers can be found: the kernel knows the last one alone. So the code of
//! a handler is searched for the word in its library's data that holds another CLR's code address
//! (`g_previous_activation.sa_sigaction` in `inject_activation_handler`, 3.1 to 10).
//!
//! Nothing is decoded but the four bytes by which x86-64 names a word of its own module. Invariant:
//! what is answered is code of a CLR to which the handler itself refers, and a handler refers to no
//! function of another CLR but the one that it replaced.

use std::mem::offset_of;

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
pub struct Between {
    /// Its address.
    pub handler: usize,
    /// The handler to which it passes on; 0 for none.
    pub beneath: usize,
}

impl Between {
    /// There is none.
    pub(crate) const NONE: Between = Between {
        handler: usize::MAX,
        beneath: 0,
    };
}

/// The CLRs' handlers from `handler` on, oldest first. Empty when `handler` is no CLR's.
///
/// `flags` are those that `handler` was installed with: every CLR uses the same for one signal.
pub(crate) fn of(handler: usize, flags: c_int, modules: &[Module], between: Between) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    let mut next = Some(handler);
    while let Some(handler) = next.take() {
        let handler = if handler == between.handler {
            between.beneath
        } else {
            handler
        };
        let Some(module) = modules.iter().find(|m| m.is_clr && m.runs(handler)) else {
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

/// The handler of another CLR, or the one between, that the code at `handler` refers to: a `struct sigaction` with the
/// flags of a handler of the same signal.
fn previous(
    handler: usize,
    flags: c_int,
    module: &Module,
    modules: &[Module],
    between: Between,
) -> Option<usize> {
    /// What tells the handlers of faults, which have a stack of their own, from the others.
    const COMPARED: c_int = libc::SA_SIGINFO | libc::SA_ONSTACK;
    const FLAGS_AT: usize = offset_of!(libc::sigaction, sa_flags);
    const _: () = assert!(offset_of!(libc::sigaction, sa_sigaction) == 0);
    let segment = module.code.iter().find(|range| range.contains(&handler))?;
    // Not a byte further: the functions behind it name the words of other signals.
    let end = module.function_end(handler)?.min(segment.end);
    let length = SEARCHED.min(end.checked_sub(handler)?);
    // SAFETY: inside an executable segment of a CLR, which is never unloaded; its segments are
    // readable (PF_R is set in every libcoreclr.so).
    let code = unsafe { std::slice::from_raw_parts(handler as *const u8, length) };
    code.windows(4).enumerate().find_map(|(at, bytes)| {
        let offset = i32::from_le_bytes(bytes.try_into().ok()?);
        let word = (handler + at + 4).wrapping_add_signed(offset as isize);
        if !word.is_multiple_of(size_of::<usize>())
            || !module.holds_word(word)
            || !module.holds_word(word + FLAGS_AT)
        {
            return None;
        }
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
        let elsewhere = |m: &&Module| m.is_clr && !std::ptr::eq(*m, module) && m.runs(value);
        (value == between.handler || modules.iter().any(|m| elsewhere(&m))).then_some(value)
    })
}
