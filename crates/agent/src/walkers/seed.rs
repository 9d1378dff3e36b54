//! Seeds: register contexts from which `DoStackSnapshot` may begin.
//!
//! A wrong stack pointer inside the right stack makes the runtime read what it takes for return
//! addresses, and it does not survive that (measured on 3.1.23 and 8.0.4). So a seed is made of
//! nothing but a frame that our own walk has reached, on a thread that stands still: whatever
//! differs from that frame in its instruction, stack or frame pointer is refused before the
//! runtime is asked (rule 14 of the articles).

use std::ops::Range;

use corprof::{Registers, Seed, SeedRefused, WalkError};
use stackwalk::{ADDRESS, BY_FRAME_POINTER, CodeKind, CodeMap, HEURISTIC, Traced, lookup_address};

use crate::program::code::{Owner, can_query_runtime};

/// The outcome of a thread's seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeedState {
    /// There is no managed frame to make one of, or no walk of our own.
    None,
    /// Given to the runtime, which may use it.
    Given,
    /// Refused before the runtime was asked.
    SeedRefusal(SeedRefusal),
}

/// Why a seed is not given to the runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeedRefusal {
    /// No frame of our own walk is the seed.
    NoSuchFrame,
    /// That frame was guessed, lies behind one that was, or is no return address.
    Guessed,
    /// It is not managed code of this runtime.
    NotManaged,
    /// It is not on the thread's stack.
    NotOnTheStack,
}

impl SeedState {
    /// After the runtime was asked; `corprof` looks at the seed once more.
    pub(super) fn of_answer(error: Option<WalkError>) -> SeedState {
        match error {
            Some(WalkError::Seed(SeedRefused::NotManaged)) => {
                SeedState::SeedRefusal(SeedRefusal::NotManaged)
            }
            Some(WalkError::Seed(SeedRefused::NotOnTheStack)) => {
                SeedState::SeedRefusal(SeedRefusal::NotOnTheStack)
            }
            _ => SeedState::Given,
        }
    }
}

/// A frame to begin at: three registers are all that a walk of managed frames follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer.
    pub bp: u64,
}

/// The first managed frame of `runtime` in a walk.
pub fn candidate(map: &CodeMap, runtime: u8, trace: &[Traced]) -> Option<Candidate> {
    let frame = trace
        .iter()
        .find(|frame| code_of(map, runtime, frame).is_some())?;
    Some(Candidate {
        ip: frame.word & ADDRESS,
        sp: frame.sp,
        bp: frame.bp,
    })
}

/// The piece of managed code of `runtime` that a frame is in: from its start to the frame.
fn code_of(map: &CodeMap, runtime: u8, frame: &Traced) -> Option<Range<u64>> {
    let ip = frame.word & ADDRESS;
    let lookup = lookup_address(frame.word);
    let region = map.lookup(lookup)?;
    if Owner::of_word(region.user).runtime != runtime {
        return None;
    }
    match region.kind {
        CodeKind::Native => None,
        CodeKind::Jit => Some(region.start..region.end),
        CodeKind::ReadyToRun => Some(map.r2r_function_start(lookup)?..ip.checked_add(1)?),
    }
}

/// The seed that a candidate is, if it is a frame of `trace`, of managed code of `runtime`, and
/// on `stack`.
pub fn check(
    map: &CodeMap,
    runtime: u8,
    trace: &[Traced],
    stack: &Range<u64>,
    candidate: Candidate,
) -> Result<Seed, SeedRefusal> {
    let is_it = |frame: &Traced| {
        (frame.word & ADDRESS, frame.sp, frame.bp) == (candidate.ip, candidate.sp, candidate.bp)
    };
    let at = trace
        .iter()
        .position(is_it)
        .ok_or(SeedRefusal::NoSuchFrame)?;
    let guessed = |frame: &Traced| frame.word & (BY_FRAME_POINTER | HEURISTIC) != 0;
    let is_stray = |frame: &Traced| !can_query_runtime(map, frame.word);
    if trace.iter().take(at + 1).any(guessed) || trace.get(at).is_some_and(is_stray) {
        return Err(SeedRefusal::Guessed);
    }
    let code = trace
        .get(at)
        .and_then(|frame| code_of(map, runtime, frame))
        .filter(|code| code.contains(&candidate.ip))
        .ok_or(SeedRefusal::NotManaged)?;
    if !stack.contains(&candidate.sp) {
        return Err(SeedRefusal::NotOnTheStack);
    }
    let registers = Registers {
        rip: candidate.ip,
        rsp: candidate.sp,
        rbp: candidate.bp,
        ..Registers::default()
    };
    let bytes = |range: &Range<u64>| -> Option<Range<usize>> {
        Some(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
    };
    let (Some(code), Some(stack)) = (bytes(&code), bytes(stack)) else {
        return Err(SeedRefusal::NotManaged);
    };
    // SAFETY: a frame that our own walk reached by exact rules, on a thread whose managed frames
    // stand still for as long as the runtime is stopped; callee-saved registers other than rbp are
    // not needed to unwind managed frames.
    Ok(unsafe { Seed::new(registers, code, stack) })
}

/// The seed of a thread that stands still.
pub(super) fn of_trace(
    map: &CodeMap,
    runtime: u8,
    trace: &[Traced],
    stack: &Range<u64>,
) -> Result<Seed, SeedState> {
    let candidate = candidate(map, runtime, trace).ok_or(SeedState::None)?;
    check(map, runtime, trace, stack, candidate).map_err(SeedState::SeedRefusal)
}
