//! Invalid seeds: tests that `walkers::seed` refuses them, or that the runtime survives them.
//!
//! A seed is a register context from which a walk begins (rule 14 of the articles). Each thread is
//! walked with random seeds. Seeds that `walkers::seed` accepts are passed to the runtime.

use std::ops::{ControlFlow, Range};

use agent::base::random::next_random;
use agent::walkers::seed::{self, Candidate};
use agent::walkers::stopped::{ExtraWalk, OwnWalk};
use corprof::{StackSnapshots, Suspension, ThreadId};
use stackwalk::{ADDRESS, Traced};

/// Maximum number of seeds per thread and suspension.
const AT_ONCE: u32 = 8;

/// Generator of invalid seeds.
#[derive(Debug)]
pub(crate) struct RandomSeeds {
    /// Number of seeds still to try.
    pub(crate) left: u32,
    /// Seeds since the last [`RandomSeeds::take`]: refused by the check, and passed to the runtime.
    tried: (u32, u32),
    random: u64,
}

impl RandomSeeds {
    pub(crate) fn new(left: u32) -> RandomSeeds {
        RandomSeeds {
            left,
            tried: (0, 0),
            random: 0x2545_f491_4f6c_dd1d,
        }
    }

    /// Returns the numbers of refused and of walked seeds since the last call.
    pub(crate) fn take(&mut self) -> (u32, u32) {
        let (refused, walked) = std::mem::take(&mut self.tried);
        self.left = self.left.saturating_sub(refused + walked);
        (refused, walked)
    }
}

impl ExtraWalk for RandomSeeds {
    fn walk<'rt>(
        &mut self,
        suspension: &mut Suspension<'_, 'rt>,
        proof: &StackSnapshots,
        id: ThreadId<'rt>,
        own: &OwnWalk<'_>,
    ) {
        let Some(right) = seed::candidate(own.map, own.runtime, own.trace) else {
            return;
        };
        for _ in 0..self.left.min(AT_ONCE) {
            let wrong = spoil(right, own.trace, own.stack, &mut self.random);
            match seed::check(own.map, own.runtime, own.trace, own.stack, wrong) {
                Err(_) => self.tried.0 += 1,
                Ok(seed) => {
                    self.tried.1 += 1;
                    let _walked = suspension
                        .walk_seeded(proof, id, &seed, |_, _, _| ControlFlow::<()>::Continue(()));
                }
            }
        }
    }
}

/// Changes a candidate at random, perhaps without effect, as a faulty profiler might.
fn spoil(right: Candidate, trace: &[Traced], stack: &Range<u64>, random: &mut u64) -> Candidate {
    let mut next = || next_random(random);
    let mut wrong = right;
    let size = stack.end.saturating_sub(stack.start).max(16);
    let in_stack = stack.start.wrapping_add(next() % size);
    let other = trace.get((next() % trace.len().max(1) as u64) as usize);
    match next() % 12 {
        0 => wrong.ip = next(),
        1 => wrong.sp = next(),
        2 => wrong.bp = next(),
        3 => wrong.sp = in_stack & !7,
        4 => wrong.sp = right.sp.wrapping_add(next() % 512),
        5 => wrong.sp = right.sp.wrapping_sub(next() % 512),
        6 => wrong.bp = in_stack & !7,
        7 => wrong.ip = right.ip.wrapping_add(next() % 64),
        8 => wrong.ip = right.ip.wrapping_sub(next() % 64),
        9 => wrong.sp = other.map_or(0, |frame| frame.sp),
        10 => wrong.ip = other.map_or(0, |frame| frame.word & ADDRESS),
        _ => {
            wrong = Candidate {
                ip: next(),
                sp: in_stack,
                bp: next(),
            }
        }
    }
    wrong
}
