//! Pages of a module's metadata, kept once they were read.
//!
//! Names lie beside each other: of a type's methods, of the methods of one file. Each alone would
//! ask the kernel twice, for the row and for the text, at 2 µs a call on a virtual machine; a page
//! asks once for some hundred.
//!
//! Invariants: a page is read whole or not kept, and never read again, so what was once read stays
//! whatever becomes of the file; no more is kept than the metadata is long; readers never wait.

use std::sync::OnceLock;

use super::{Bytes, InProcess};

/// Bytes that are read at once.
const PIECE: usize = 4096;

type Piece = [u8; PIECE];

/// A module's bytes, up to the end of its metadata.
#[derive(Debug)]
pub(super) struct Pieces {
    module: InProcess,
    /// From the module's base on, made where one is first needed.
    known: Box<[OnceLock<Box<Piece>>]>,
}

impl Pieces {
    /// Nothing is read yet. `end` is the offset behind the last byte that will be asked for.
    pub(super) fn new(module: InProcess, end: u64) -> Pieces {
        let number = usize::try_from(end).map_or(0, |end| end.div_ceil(PIECE));
        Pieces {
            module,
            known: std::iter::repeat_with(OnceLock::new).take(number).collect(),
        }
    }

    /// The module's base.
    pub(super) fn base(&self) -> u64 {
        self.module.0
    }

    /// A piece; `None` where not all of it is there.
    fn piece(&self, number: usize) -> Option<&Piece> {
        let place = self.known.get(number)?;
        if let Some(known) = place.get() {
            return Some(known);
        }
        let mut new = Box::new([0; PIECE]);
        self.module.read((number * PIECE) as u64, &mut new[..])?;
        // Another thread may have been first, with the same.
        let _same = place.set(new);
        place.get().map(|known| &**known)
    }

    /// The part of a piece that begins at an offset, at most so long.
    fn part(&self, at: u64, length: usize) -> Option<&[u8]> {
        let at = usize::try_from(at).ok()?;
        let from = self.piece(at / PIECE)?.get(at % PIECE..)?;
        from.get(..length.min(from.len()))
    }
}

impl Bytes for Pieces {
    fn read(&self, at: u64, into: &mut [u8]) -> Option<()> {
        // Whole tables and heaps are asked for once.
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
                // The last page of a file, or one that is not there.
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
        // Across the end of a piece, in one, and in the last, which is not whole.
        assert_eq!(read(PIECE - 2, 6).as_deref(), Some(&[7, 7, 1, 2, 3, 4][..]));
        assert_eq!(read(PIECE + 1, 2).as_deref(), Some(&[2, 3][..]));
        assert_eq!(read(3 * PIECE + 90, 10), Some(vec![7; 10]));
        let kept = |number: usize| pieces.known[number].get().is_some();
        assert!(kept(0) && kept(1) && !kept(2));
        // SAFETY: within the vector, of which there is no reference.
        unsafe { at.add(PIECE + 1).write(99) };
        assert_eq!(read(PIECE + 1, 1), Some(vec![2]));
        // More than a piece is what is there now.
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
