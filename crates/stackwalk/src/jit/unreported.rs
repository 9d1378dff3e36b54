//! Unwind rules of unreported code: bodies that a walk finds before they are in the code map.
//!
//! Like [`super`], it reads code headers, but in a signal handler, so it allocates nothing. Memory
//! that may be freed meanwhile is read by a system call, which fails instead of faulting, into a
//! buffer sufficient for most bodies. A larger body has no rule until the agent thread has read it.

use super::{FUNCTION, FunctionEntries, FunctionEntry, Header};
use crate::heaps::{HeapCode, read, reader};
use crate::rule::Rule;
use crate::{unwind_info, x86};

/// Room for the RUNTIME_FUNCTIONs of a main part and six funclets. More are read in parts of this
/// size.
const FUNCTIONS: usize = 7;
/// Room for an UNWIND_INFO of thirty codes.
const INFO: usize = 64;
/// Bytes of code before and after an instruction, from which its position in a prologue's loop or
/// in an epilogue is found.
const BEFORE: u64 = 32;
const BEHIND: u64 = 64;

/// Returns the rule for the instruction at `lookup` in a body known from its runtime's records
/// only. `None` if it is after the body, or if nothing certain is known. Async-signal-safe.
pub(crate) fn rule(code: HeapCode, lookup: u64, exact: bool) -> Option<Rule> {
    let offset = u32::try_from(lookup.checked_sub(code.start)?).ok()?;
    let peek = reader(|at, buffer| read(code.may_go, at, buffer));
    let (function, end) = function_at(peek, code, offset)?;
    let into = offset - function.begin;
    let mut buffer = [0; INFO];
    let info = function
        .info(peek, |length| buffer.get_mut(..length))
        .ok()?;
    let by_codes = || unwind_info::rule(info, into, |_| &[]);
    if !exact {
        return by_codes();
    }
    let begin = code.start + u64::from(function.begin);
    let stop = code.start + u64::from(function.end);
    let from = lookup.saturating_sub(BEFORE).max(begin);
    let length = stop.min(lookup + BEHIND).checked_sub(from)?;
    let mut buffer = [0; (BEFORE + BEHIND) as usize];
    let bytes = peek(from, buffer.get_mut(..length as usize)?);
    let rest = bytes.get((lookup - from) as usize..)?;
    let body = code.start..code.start + u64::from(end);
    x86::interrupted(
        (lookup, into),
        &body,
        || Some(rest),
        by_codes,
        |back| {
            let at = lookup.saturating_sub(back as u64).max(from);
            bytes.get((at - from) as usize..).unwrap_or_default()
        },
    )
}

/// Returns the function of a body at this offset, and the end of the body.
fn function_at(
    peek: impl Fn(u64, &mut [u8]) -> &[u8],
    code: HeapCode,
    offset: u32,
) -> Option<(FunctionEntry, u32)> {
    let header = Header::read(&peek, code.start, code.function).ok()?;
    let (at, count) = header.functions(&peek).ok()?;
    let mut buffer = [0; FUNCTIONS * FUNCTION];
    let (mut found, mut listing) = (None, FunctionEntries::new(code.start));
    for done in (0..count).step_by(FUNCTIONS) {
        let now = (count - done).min(FUNCTIONS);
        let at = at + (done * FUNCTION) as u64;
        let (functions, _) = peek(at, buffer.get_mut(..now * FUNCTION)?).as_chunks::<FUNCTION>();
        if functions.len() != now {
            return None;
        }
        for function in functions {
            let listed = listing.next(function).ok()?;
            if (listed.begin..listed.end).contains(&offset) {
                found = Some(listed);
            }
        }
    }
    Some((found?, listing.end))
}
