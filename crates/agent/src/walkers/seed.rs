//! Seeds: register contexts from which `DoStackSnapshot` begins a walk.
//!
//! With a wrong stack pointer inside the right stack, the runtime reads other words as return
//! addresses and crashes (measured on 3.1.23 and 8.0.4). So a seed is made only of a frame that the
//! agent's own walk has reached, on a suspended thread. A seed whose instruction, stack or frame
//! pointer differs from that frame is refused before the runtime is called (rule 14 of the
//! articles).

use std::ops::Range;

use corprof::{Registers, Seed, SeedRefused, WalkError};
use stackwalk::{ADDRESS, BY_FRAME_POINTER, CodeKind, CodeMap, HEURISTIC, Traced, lookup_address};

use crate::program::code::{Owner, can_query_runtime};

/// Outcome of a thread's seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeedState {
    /// No seed: there is no managed frame, or no walk by the agent.
    None,
    /// Passed to the runtime.
    Given,
    /// Refused before the runtime was called.
    SeedRefusal(SeedRefusal),
}

/// Reason why a seed is not passed to the runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeedRefusal {
    /// No frame of the agent's own walk equals the seed.
    NoSuchFrame,
    /// The frame was guessed, is older than a guessed one, or is no return address.
    Guessed,
    /// The instruction is not in managed code of this runtime.
    NotManaged,
    /// The stack pointer is not on the thread's stack.
    NotOnTheStack,
}

impl SeedState {
    /// Returns the state after the call. `corprof` checks the seed once more.
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

/// A frame to begin at. A walk of managed frames uses these three registers only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer.
    pub bp: u64,
}

/// Returns the first managed frame of `runtime` in a walk.
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

/// Returns the range of managed code of `runtime` from its start to a frame in it.
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

/// Returns the candidate as a seed, if it is a frame of `trace`, in managed code of `runtime`, and
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
    // SAFETY: a frame that the agent's own walk reached by exact rules, on a thread whose managed
    // frames do not change while the runtime is suspended; callee-saved registers other than rbp
    // are not needed to unwind managed frames.
    Ok(unsafe { Seed::new(registers, code, stack) })
}

/// Returns the seed of a stopped thread.
pub(super) fn of_trace(
    map: &CodeMap,
    runtime: u8,
    trace: &[Traced],
    stack: &Range<u64>,
) -> Result<Seed, SeedState> {
    let candidate = candidate(map, runtime, trace).ok_or(SeedState::None)?;
    check(map, runtime, trace, stack, candidate).map_err(SeedState::SeedRefusal)
}
