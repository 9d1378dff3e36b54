//! Merges several walks of one thread into one stack, ordered by stack pointer.
//!
//! Stacks grow downwards, so the callee has the lower stack pointer of two frames on one stack.
//! That holds for managed frames that two CLRs report, and for the native frames that the agent's
//! own walk finds between them. Invariant: the result is sorted by stack pointer, and contains each
//! frame once.

use stackwalk::{ADDRESS, CodeMap, EXACT, Traced};

use super::stopped::FrameRecord;
use crate::model::NATIVE_RUN;

/// A word of a stack and its frame's stack pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Placed {
    pub(super) sp: u64,
    pub(super) word: u64,
}

/// Appends the frames of one `DoStackSnapshot`, with their stack pointers.
pub(super) fn place(map: &CodeMap, frames: &[FrameRecord], into: &mut Vec<Placed>) {
    let mut last_sp = 0;
    for frame in frames {
        if frame.function == 0 {
            // Only the callee shows the position of a native run: the runtime's context for the run
            // is that of the native code before the transition.
            into.push(Placed {
                sp: last_sp,
                word: frame.ip & ADDRESS | NATIVE_RUN,
            });
            continue;
        }
        last_sp = frame.sp;
        into.push(Placed {
            sp: frame.sp,
            word: word_of(map, frame.ip),
        });
    }
}

/// Returns the word of a managed frame. `DoStackSnapshot` does not distinguish an interrupted
/// instruction from a return address. An address that is not behind a call is no return address.
pub(super) fn word_of(map: &CodeMap, ip: u64) -> u64 {
    let exact = if map.is_behind_call(ip) { 0 } else { EXACT };
    ip & ADDRESS | exact
}

/// Sorts the frames of several CLRs (managed frames and native runs) into one stack.
pub(super) fn by_stack_pointer(placed: &mut [Placed]) {
    // Stable: a run stays behind its callee, with which it shares the stack pointer.
    placed.sort_by_key(|frame| frame.sp);
}

/// Appends the words, leaf first. Adjacent native runs become one.
pub(super) fn words(placed: &[Placed], into: &mut Vec<u64>) {
    for frame in placed {
        let run = frame.word & NATIVE_RUN != 0;
        if run && into.last().is_some_and(|last| last & NATIVE_RUN != 0) {
            continue;
        }
        into.push(frame.word);
    }
}

/// Adds the frames of the agent's own walk: its native frames, and the managed ones that
/// `DoStackSnapshot` leaves out (dynamic methods, stubs). A frame in both is taken from the agent's
/// walk, which knows whether its instruction has run.
pub(super) fn fill(placed: &mut Vec<Placed>, trace: &[Traced]) {
    placed.retain(|frame| {
        frame.word & NATIVE_RUN == 0 && !trace.iter().any(|own| own.sp == frame.sp)
    });
    placed.extend(trace.iter().map(|own| Placed {
        sp: own.sp,
        word: own.word,
    }));
    by_stack_pointer(placed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn managed(sp: u64, ip: u64) -> Placed {
        Placed { sp, word: ip }
    }

    fn run(sp: u64) -> Placed {
        Placed {
            sp,
            word: NATIVE_RUN,
        }
    }

    fn own(sp: u64, word: u64) -> Traced {
        Traced { word, sp, bp: 0 }
    }

    fn merged(placed: &[Placed]) -> Vec<u64> {
        let mut out = Vec::new();
        words(placed, &mut out);
        out
    }

    #[test]
    fn a_stack_that_crosses_two_runtimes_twice() {
        // A calls B calls A calls B. Each CLR reports its own frames and treats the others as
        // native.
        let mut placed = vec![
            managed(300, 0xa2),
            run(300),
            managed(700, 0xa1),
            run(700),
            managed(100, 0xb2),
            run(100),
            managed(500, 0xb1),
            run(500),
        ];
        by_stack_pointer(&mut placed);
        assert_eq!(
            merged(&placed),
            [
                0xb2, NATIVE_RUN, 0xa2, NATIVE_RUN, 0xb1, NATIVE_RUN, 0xa1, NATIVE_RUN
            ]
        );
    }

    #[test]
    fn holes_are_filled_and_frames_that_both_have_are_one() {
        let mut placed = vec![managed(200, 0xd), run(200), managed(500, 0xc), run(500)];
        let trace = [
            own(100, 1 | EXACT),
            own(200, 0xd),
            own(300, 2),
            own(400, 3),
            own(500, 0xc),
            own(600, 4),
        ];
        fill(&mut placed, &trace);
        assert_eq!(merged(&placed), [1 | EXACT, 0xd, 2, 3, 0xc, 4]);
    }

    #[test]
    fn a_managed_frame_that_our_walk_missed_is_kept_in_its_place() {
        let mut placed = vec![managed(200, 0xd), managed(300, 0xe), run(300)];
        fill(&mut placed, &[own(100, 1), own(200, 0xd), own(400, 4)]);
        assert_eq!(merged(&placed), [1, 0xd, 0xe, 4]);
    }
}
