//! A byte reader for IL: takes numbers from the front; errors carry the offset.

use super::{ReadError, ReadErrorKind};

/// The unread bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(all: &'a [u8]) -> Self {
        Self { all, at: 0 }
    }

    /// The offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.all.len()
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.all.get(self.at).copied()
    }

    /// Whether this offset has a byte.
    pub(super) fn holds(&self, offset: u32) -> bool {
        (offset as usize) < self.all.len()
    }

    /// An error at the position `back` bytes before the next byte.
    pub(super) fn error(&self, back: usize, kind: ReadErrorKind) -> ReadError {
        ReadError {
            offset: self.at.saturating_sub(back),
            kind,
        }
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], ReadError> {
        let end = self.at.checked_add(length);
        let taken = end.and_then(|end| self.all.get(self.at..end));
        let taken = taken.ok_or(ReadError {
            offset: self.all.len(),
            kind: ReadErrorKind::Truncated,
        })?;
        self.at += length;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        let taken = self.take(N)?;
        let mut array = [0; N];
        array.copy_from_slice(taken);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, ReadError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, ReadError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, ReadError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, ReadError> {
        self.array().map(i32::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, ReadError> {
        self.array().map(i64::from_le_bytes)
    }

    /// Skips padding up to a multiple of four.
    pub(super) fn align(&mut self) -> Result<(), ReadError> {
        self.take(self.at.wrapping_neg() & 3).map(drop)
    }
}
