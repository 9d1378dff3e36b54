//! Page cache for a module's metadata.
//!
//! Related names are adjacent: those of a type's methods, of one file's methods. Without the cache
//! each name needs two system calls, for the row and the text, at 2 µs a call on a virtual machine.
//! With it one call reads a page for about a hundred names.
//!
//! Invariants: a page is read completely or not kept, and never read again, so its content outlives
//! changes of the file. The cache is no larger than the metadata. Readers never wait.

use std::sync::OnceLock;

use super::{Bytes, InProcess};

/// Bytes read at once.
const PIECE: usize = 4096;

type Piece = [u8; PIECE];

/// The bytes of a module up to the end of its metadata.
#[derive(Debug)]
pub(super) struct Pieces {
    module: InProcess,
    /// The pieces from the module's base on, read on demand.
    known: Box<[OnceLock<Box<Piece>>]>,
}

impl Pieces {
    /// Creates an empty cache. `end` is the offset behind the last byte to be read.
    pub(super) fn new(module: InProcess, end: u64) -> Pieces {
        let number = usize::try_from(end).map_or(0, |end| end.div_ceil(PIECE));
        Pieces {
            module,
            known: std::iter::repeat_with(OnceLock::new).take(number).collect(),
        }
    }

    /// Returns the module's base.
    pub(super) fn base(&self) -> u64 {
        self.module.0
    }

    /// Returns a piece; `None` if it cannot be read completely.
    fn piece(&self, number: usize) -> Option<&Piece> {
        let place = self.known.get(number)?;
        if let Some(known) = place.get() {
            return Some(known);
        }
        let mut new = Box::new([0; PIECE]);
        self.module.read((number * PIECE) as u64, &mut new[..])?;
        // Another thread may have been first, with the same content.
        let _same = place.set(new);
        place.get().map(|known| &**known)
    }

    /// Returns the part of a piece that begins at an offset, at most `length` bytes.
    fn part(&self, at: u64, length: usize) -> Option<&[u8]> {
        let at = usize::try_from(at).ok()?;
        let from = self.piece(at / PIECE)?.get(at % PIECE..)?;
        from.get(..length.min(from.len()))
    }
}

impl Bytes for Pieces {
    fn read(&self, at: u64, into: &mut [u8]) -> Option<()> {
        // Whole tables and heaps are read only once, so they are not cached.
        if into.len() > PIECE {
            return self.module.read(at, into);
        }
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let from = at.checked_add(done as u64)?;
            match self.part(from, rest.len()) {
                Some(part) => {
                    rest.get_mut(..part.len())?.copy_from_slice(part);
                    done += part.len();
                }
                // The last page of a file, or an unmapped one.
                None => return self.module.read(from, rest),
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_stays_as_it_was() {
        let mut memory = vec![7u8; 3 * PIECE + 100];
        memory[PIECE..PIECE + 4].copy_from_slice(&[1, 2, 3, 4]);
        let at = memory.as_mut_ptr();
        let pieces = Pieces::new(InProcess(at as u64), memory.len() as u64);
        let read = |at: usize, length: usize| {
            let mut into = vec![0; length];
            pieces.read(at as u64, &mut into).map(|()| into)
        };
        // Across the end of a piece, inside one, and in the last, incomplete one.
        assert_eq!(read(PIECE - 2, 6).as_deref(), Some(&[7, 7, 1, 2, 3, 4][..]));
        assert_eq!(read(PIECE + 1, 2).as_deref(), Some(&[2, 3][..]));
        assert_eq!(read(3 * PIECE + 90, 10), Some(vec![7; 10]));
        let kept = |number: usize| pieces.known[number].get().is_some();
        assert!(kept(0) && kept(1) && !kept(2));
        // SAFETY: within the vector, to which there is no reference.
        unsafe { at.add(PIECE + 1).write(99) };
        assert_eq!(read(PIECE + 1, 1), Some(vec![2]));
        // Reads longer than a piece return the current content.
        assert_eq!(read(1, PIECE + 1).unwrap()[PIECE], 99);
        assert_eq!(read(0, 0), Some(vec![]));
    }

    #[test]
    fn what_is_not_there_is_not_read() {
        let pieces = Pieces::new(InProcess(16), 1 << 20);
        assert!(pieces.read(0, &mut [0; 8]).is_none());
        assert!(pieces.read(u64::MAX - 3, &mut [0; 8]).is_none());
        assert!(pieces.read(1 << 40, &mut [0; 8]).is_none());
        assert!(pieces.known.iter().all(|place| place.get().is_none()));
    }
}
