//! The rule of code that nobody has told of: what a walk needs of a body at the moment at which it meets it first.
//!
//! As `jit` reads a header for the code map, and in a signal handler: nothing is allocated, and what may go is read by the
//! kernel's leave, into a buffer that holds what most bodies need. What does not fit has no rule, until the agent
//! thread has read the body.

use super::{Header, MAX_BODY, MAX_FUNCTIONS};
use crate::heaps::{Code, read, reader};
use crate::rule::Rule;
use crate::{unwind_info, x86};

/// Room for the RUNTIME_FUNCTIONs of a main part and six funclets; others are read so many at a time.
const FUNCTIONS: usize = 7;
/// Bytes of a RUNTIME_FUNCTION.
const FUNCTION: usize = 12;
/// Room for an UNWIND_INFO of thirty codes.
const INFO: usize = 64;
/// Bytes of code before and behind an instruction that say where in a prologue's loop or an epilogue it is.
const BEFORE: u64 = 32;
const BEHIND: u64 = 64;

/// Functions of a body, as offsets from where it begins, and where an UNWIND_INFO is.
#[derive(Clone, Copy)]
struct Function {
    begin: u32,
    end: u32,
    info: u64,
}

/// The rule for the instruction at `lookup` in a body of which only its runtime's records tell. `None` where it lies
/// behind the body, or where nothing certain is known. Async-signal-safe.
pub(crate) fn rule(code: Code, lookup: u64, exact: bool) -> Option<Rule> {
    let offset = u32::try_from(lookup.checked_sub(code.start)?).ok()?;
    let peek = reader(|at, buffer| read(code.may_go, at, buffer));
    let header = Header::read(peek, code.start, code.function).ok()?;
    let (function, end) = function_at(peek, &header, code.start, offset)?;
    let into = offset - function.begin;
    let mut buffer = [0; INFO];
    let length = unwind_info::length(peek(function.info, buffer.get_mut(..4)?))?;
    let info = peek(function.info, buffer.get_mut(..length)?);
    let is_sound = |info: &unwind_info::UnwindInfo<'_>| {
        info.chained.is_none() && u32::from(info.prologue_len) <= function.end - function.begin
    };
    unwind_info::UnwindInfo::parse(info).filter(is_sound)?;
    if !exact {
        return unwind_info::rule(info, into, |_| &[]);
    }
    let mut buffer = [0; (BEFORE + BEHIND) as usize];
    let begin = code.start + u64::from(function.begin);
    let stop = code.start + u64::from(function.end);
    let from = lookup.saturating_sub(BEFORE).max(begin);
    let length = stop.min(lookup + BEHIND).checked_sub(from)?;
    let bytes = peek(from, buffer.get_mut(..length as usize)?);
    let rest = bytes.get((lookup - from) as usize..)?;
    let body = code.start..code.start + u64::from(end);
    if into > 0
        && let Some(rule) = x86::epilogue(rest, lookup, &body, true)
    {
        return Some(rule);
    }
    let rule = unwind_info::rule(info, into, |_| &[])?;
    Some(x86::in_probe_loop(rule, |back| {
        let at = lookup.saturating_sub(back as u64).max(from);
        bytes.get((at - from) as usize..).unwrap_or_default()
    }))
}

/// The function of a body that has this offset, and where the body ends.
fn function_at(
    peek: impl Fn(u64, &mut [u8]) -> &[u8],
    header: &Header,
    code_start: u64,
    offset: u32,
) -> Option<(Function, u32)> {
    let count_at = header.at + header.method as u64 * 8 + 8;
    let count = u32::from_le_bytes(*peek(count_at, &mut [0; 4]).first_chunk()?) as usize;
    if !(1..=MAX_FUNCTIONS).contains(&count) {
        return None;
    }
    let mut buffer = [0; FUNCTIONS * FUNCTION];
    let (mut base_rva, mut found, mut end) = (None, None, 0);
    let mut done = 0;
    while done < count {
        let now = (count - done).min(FUNCTIONS);
        let at = count_at + 4 + (done * FUNCTION) as u64;
        let read = peek(at, buffer.get_mut(..now * FUNCTION)?);
        let (functions, _) = read.as_chunks::<FUNCTION>();
        if functions.len() != now {
            return None;
        }
        for function in functions {
            let (words, _) = function.as_chunks::<4>();
            let words: &[[u8; 4]; 3] = words.try_into().ok()?;
            let [begin, stop, info] = words.map(u32::from_le_bytes);
            let base = *base_rva.get_or_insert(begin);
            let (begin, stop) = (begin.checked_sub(base)?, stop.checked_sub(base)?);
            if begin < end || stop <= begin || stop > MAX_BODY {
                return None;
            }
            end = stop;
            if (begin..stop).contains(&offset) {
                let image = code_start.wrapping_sub(base.into());
                found = Some(Function {
                    begin,
                    end: stop,
                    info: image.wrapping_add(info.into()),
                });
            }
        }
        done += now;
    }
    Some((found?, end))
}
