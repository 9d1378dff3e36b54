//! Frames and stacks by number: each is written to the recording once.
//!
//! A stack is its leaf frame and its caller's stack, so that stacks share their root parts.
//! Invariant: memory is bounded. When a table has reached its limit it is emptied and numbering
//! goes on; the recording then says some things twice, and is none the worse for it.

use crate::base::numbers::NumberMap;

/// Most stacks kept for sharing: 24 bytes each in the table, so about 4 MiB.
const MAX_STACKS: usize = 128 * 1024;

/// The stacks known so far.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    known: NumberMap<(u32, u32), u32>,
    next: u32,
}

/// No caller: the frame is the thread's root.
const NO_PARENT: u32 = u32::MAX;

impl Stacks {
    /// The number of the stack `frame` called from the stack `parent`. `write` is told of one that is new: its
    /// number, its caller's, its leaf frame.
    pub(crate) fn child(
        &mut self,
        parent: Option<u32>,
        frame: u32,
        write: impl FnOnce(u32, Option<u32>, u32),
    ) -> u32 {
        self.make_room();
        let key = (parent.unwrap_or(NO_PARENT), frame);
        *self.known.entry(key).or_insert_with(|| {
            let number = self.next;
            self.next = self.next.wrapping_add(1);
            write(number, parent, frame);
            number
        })
    }

    fn make_room(&mut self) {
        if self.known.len() >= MAX_STACKS {
            self.known.clear();
            self.known.shrink_to(MAX_STACKS / 4);
        }
    }

    /// No stack is known, and numbering goes on.
    pub(crate) fn emptied(self) -> Stacks {
        Stacks {
            known: NumberMap::default(),
            next: self.next,
        }
    }

    /// Bytes held.
    pub(crate) fn memory(&self) -> u64 {
        // Key, value and one control byte for each slot of std's table.
        (self.known.capacity() * (size_of::<((u32, u32), u32)>() + 1)) as u64
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
    }
}
