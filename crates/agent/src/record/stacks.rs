//! Table of stacks by number, so that each stack is written to the recording once.
//!
//! A stack is its leaf frame and its caller's stack, so stacks share their root parts. Most stacks
//! have a single callee, which is stored beside them. A new stack of fifty frames then touches a
//! few adjacent cache lines; a hash table would miss the caches fifty times.
//!
//! Invariant: memory is bounded. At the limit all stacks are dropped. Numbers are not reused, so
//! the recording repeats some stacks and stays correct.

use crate::base::numbers::NumberMap;

/// Maximum number of stacks kept for sharing: 8 bytes each, and 13 to 26 more in the table for
/// those that are not the first callee of their caller.
const MAX_STACKS: usize = recording::limits::STACKS;

/// The numbered stacks.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    /// First callee of each stack. Index 0 is the stack with number `first`.
    callees: Vec<Callee>,
    first: u32,
    /// The other callees by caller and frame, including those of dropped callers and of no caller.
    others: NumberMap<(u32, u32), u32>,
}

/// A frame, and the stack with it as its leaf.
#[derive(Clone, Copy, Debug)]
struct Callee {
    frame: u32,
    stack: u32,
}

/// No caller: the frame is the thread's root.
const NO_PARENT: u32 = u32::MAX;
/// No callee yet.
const NO_STACK: u32 = u32::MAX;

impl Stacks {
    /// Returns the number of the stack with the leaf `frame`, called from the stack `parent`. Calls
    /// `write` for a new stack, with its number, its caller's number and its leaf frame.
    pub(crate) fn child(
        &mut self,
        parent: Option<u32>,
        frame: u32,
        write: impl FnOnce(u32, Option<u32>, u32),
    ) -> u32 {
        self.make_room();
        let number = self.first.wrapping_add(self.callees.len() as u32);
        let known = parent.and_then(|parent| {
            let at = parent.wrapping_sub(self.first);
            self.callees.get_mut(at as usize)
        });
        match known {
            Some(first) if first.stack == NO_STACK => {
                *first = Callee {
                    frame,
                    stack: number,
                };
            }
            Some(first) if first.frame == frame => return first.stack,
            _ => {
                let key = (parent.unwrap_or(NO_PARENT), frame);
                let stack = *self.others.entry(key).or_insert(number);
                if stack != number {
                    return stack;
                }
            }
        }
        self.callees.push(Callee {
            frame: 0,
            stack: NO_STACK,
        });
        write(number, parent, frame);
        number
    }

    fn make_room(&mut self) {
        if self.callees.len() >= MAX_STACKS {
            *self = std::mem::take(self).emptied();
        }
    }

    /// Returns an empty table that continues the numbering.
    pub(crate) fn emptied(self) -> Stacks {
        Stacks {
            first: self.first.wrapping_add(self.callees.len() as u32),
            ..Stacks::default()
        }
    }

    /// Bytes held.
    pub(crate) fn memory(&self) -> u64 {
        // Key, value and one control byte for each slot of std's table.
        let others = self.others.capacity() * (size_of::<((u32, u32), u32)>() + 1);
        (others + self.callees.capacity() * size_of::<Callee>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_share_their_roots() {
        let mut stacks = Stacks::default();
        let mut written = Vec::new();
        let mut add = |frames: &[u32]| {
            frames.iter().fold(None, |parent, frame| {
                Some(stacks.child(parent, *frame, |id, parent, frame| {
                    written.push((id, parent, frame));
                }))
            })
        };
        assert_eq!(add(&[7, 8, 9]), Some(2));
        assert_eq!(add(&[7, 8, 5]), Some(3));
        assert_eq!(add(&[7, 8, 9]), Some(2));
        assert_eq!(add(&[]), None);
        assert_eq!(
            written,
            [
                (0, None, 7),
                (1, Some(0), 8),
                (2, Some(1), 9),
                (3, Some(1), 5)
            ]
        );
    }

    #[test]
    fn a_full_table_starts_again_with_new_numbers() {
        let mut stacks = Stacks::default();
        let limit = u32::try_from(MAX_STACKS).unwrap();
        for frame in 0..limit {
            stacks.child(None, frame, |_, _, _| {});
        }
        let mut written = 0;
        let again = stacks.child(None, 1, |_, _, _| written += 1);
        assert_eq!((again, written), (limit, 1));
        // Twice for a dropped stack.
        let mut of_forgotten = || stacks.child(Some(7), 1, |_, _, _| written += 1);
        assert_eq!((of_forgotten(), of_forgotten()), (limit + 1, limit + 1));
        assert_eq!(written, 2);
        let child = stacks.child(Some(limit + 1), 9, |_, _, _| {});
        let other = stacks.child(Some(limit + 1), 8, |_, _, _| {});
        assert_eq!((child, other), (limit + 2, limit + 3));
        assert_eq!(stacks.child(Some(limit + 1), 8, |_, _, _| {}), other);
        assert_eq!(stacks.child(Some(limit + 1), 9, |_, _, _| {}), child);
    }

    /// Compared with a map that drops nothing.
    #[test]
    fn each_stack_has_one_number() {
        let mut random = 7;
        let mut next = |below: u64| crate::base::random::next_random(&mut random) % below;
        let mut stacks = Stacks::default();
        let mut known = std::collections::HashMap::new();
        for _ in 0..40_000 {
            let parent = next(3000) as u32;
            let parent = ((parent as usize) < known.len()).then_some(parent);
            let frame = next(5) as u32;
            let mut is_new = false;
            let stack = stacks.child(parent, frame, |_, _, _| is_new = true);
            let number = known.len() as u32;
            let expected = *known.entry((parent, frame)).or_insert(number);
            assert_eq!((stack, is_new), (expected, expected == number));
        }
        assert!(known.len() > 10_000);
    }
}
