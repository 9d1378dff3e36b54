//! Encoding of stacks in the ring buffer: only the frames that differ from the last record's stack.
//!
//! Two samples of a thread mostly differ near the leaf only. So a record has the frames that differ
//! and the number of root frames it shares with the record committed before it in the same ring.
//! Invariant: writer and reader both advance their "last stack" once for each committed record and
//! never otherwise.

/// Returns the number of equal frames at the root end (the end of both slices).
pub(crate) fn shared_root(new: &[u64], last: &[u64]) -> usize {
    new.iter()
        .rev()
        .zip(last.iter().rev())
        .take_while(|(a, b)| a == b)
        .count()
}

/// The head of a record, packed into its first word.
///
/// A record is: head, time, value, then `fresh` frames leaf first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// Number of frames in the record.
    pub(crate) fresh: u16,
    /// Number of root frames shared with the record before.
    pub(crate) shared: u16,
    /// The walker's end code.
    pub(crate) end: u8,
    /// Whether it is a wall-clock sample; if not, one of CPU time.
    pub(crate) wall: bool,
    /// Number of intervals, at most [`Head::MAX_COUNT`].
    pub(crate) count: u32,
}

/// Number of words of a record before its frames.
pub(crate) const HEAD_WORDS: usize = 3;

impl Head {
    /// Maximum `count` that is stored.
    pub(crate) const MAX_COUNT: u32 = (1 << 23) - 1;

    pub(crate) fn pack(self) -> u64 {
        u64::from(self.fresh)
            | u64::from(self.shared) << 16
            | u64::from(self.end) << 32
            | u64::from(self.wall) << 40
            | u64::from(self.count.min(Self::MAX_COUNT)) << 41
    }

    pub(crate) const fn unpack(word: u64) -> Self {
        Self {
            fresh: word as u16,
            shared: (word >> 16) as u16,
            end: (word >> 32) as u8,
            wall: word >> 40 & 1 != 0,
            count: (word >> 41) as u32,
        }
    }
}

/// The reader's last stack, at the end of its buffer so that shared root frames never move.
pub(crate) struct Rebuilt<'a> {
    pub(crate) buffer: &'a mut [u64],
    pub(crate) depth: usize,
}

impl Rebuilt<'_> {
    /// Puts `fresh` frames (from `read`, leaf first) in front of the last `shared` root frames.
    /// Returns `None`, with nothing changed, if the numbers do not fit the last stack.
    pub(crate) fn apply(
        &mut self,
        fresh: usize,
        shared: usize,
        read: impl Fn(usize) -> u64,
    ) -> Option<&[u64]> {
        if shared > self.depth {
            return None;
        }
        let start = self.buffer.len().checked_sub(fresh + shared)?;
        let place = self.buffer.get_mut(start..start + fresh)?;
        for (index, frame) in place.iter_mut().enumerate() {
            *frame = read(index);
        }
        self.depth = fresh + shared;
        self.buffer.get(start..)
    }

    /// Returns the last stack.
    pub(crate) fn last(&self) -> &[u64] {
        let start = self.buffer.len().saturating_sub(self.depth);
        self.buffer.get(start..).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any sequence of stacks is decoded unchanged.
        #[test]
        fn stacks_survive(stacks in prop::collection::vec(prop::collection::vec(0u64..3, 0..12), 1..40)) {
            let mut buffer = [0u64; 12];
            let mut rebuilt = Rebuilt { buffer: &mut buffer, depth: 0 };
            let mut last: Vec<u64> = Vec::new();
            for stack in stacks {
                let shared = shared_root(&stack, &last);
                let fresh = stack.len() - shared;
                let head = Head { fresh: fresh as u16, shared: shared as u16, wall: fresh.is_multiple_of(2), end: 3, count: 7 };
                prop_assert_eq!(Head::unpack(head.pack()), head);
                let got = rebuilt.apply(fresh, shared, |i| stack[i]);
                prop_assert_eq!(got, Some(&stack[..]));
                prop_assert_eq!(rebuilt.last(), &stack[..]);
                last = stack;
            }
        }

        /// The shared part has maximum length.
        #[test]
        fn sharing_is_maximal(a in prop::collection::vec(0u64..3, 0..12), b in prop::collection::vec(0u64..3, 0..12)) {
            let shared = shared_root(&a, &b);
            prop_assert_eq!(&a[a.len() - shared..], &b[b.len() - shared..]);
            if shared < a.len() && shared < b.len() {
                prop_assert_ne!(a[a.len() - shared - 1], b[b.len() - shared - 1]);
            }
        }
    }

    #[test]
    fn numbers_that_do_not_fit_change_nothing() {
        let mut buffer = [0u64; 4];
        let mut rebuilt = Rebuilt {
            buffer: &mut buffer,
            depth: 0,
        };
        assert_eq!(rebuilt.apply(2, 0, |i| i as u64 + 10), Some(&[10, 11][..]));
        assert_eq!(rebuilt.apply(1, 3, |_| 1), None);
        assert_eq!(rebuilt.apply(3, 2, |_| 1), None);
        assert_eq!(rebuilt.last(), &[10, 11]);
    }

    #[test]
    fn a_count_too_large_is_capped() {
        let head = Head {
            fresh: 0,
            shared: 0,
            wall: false,
            end: 0,
            count: u32::MAX,
        };
        assert_eq!(Head::unpack(head.pack()).count, Head::MAX_COUNT);
    }
}
