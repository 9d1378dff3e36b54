//! Reader of the bit stream in which GcInfo is encoded: least significant bit first, any alignment.
//!
//! It returns numbers; [`super`] interprets them. Invariant: nothing is read after the end of the
//! bytes, and every number is bounded by its encoded width.

use super::Error;

/// A position in a stream of bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    /// Returns a reader of `bytes` from bit `at` on.
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Returns the position, bits from the start of the bytes.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Returns the reader `bits` further on. If that is after the end, the next read fails.
    pub(super) fn skipped(self, bits: usize) -> Self {
        Self {
            at: self.at.saturating_add(bits),
            ..self
        }
    }

    /// Returns the reader at its next whole byte.
    pub(super) fn aligned(self) -> Self {
        Self {
            at: self.at.saturating_add(7) & !7,
            ..self
        }
    }

    /// Reads the next `width` bits, at most 32, as a number.
    pub(super) fn take(&mut self, width: u32) -> Result<u32, Error> {
        debug_assert!(width <= 32);
        let end = self
            .at
            .checked_add(width as usize)
            .ok_or(Error::Truncated)?;
        if end.div_ceil(8) > self.bytes.len() {
            return Err(Error::Truncated);
        }
        let mut buffer = [0; 8];
        let rest = self.bytes.get(self.at / 8..).unwrap_or_default();
        buffer
            .iter_mut()
            .zip(rest)
            .for_each(|(to, from)| *to = *from);
        let word = u64::from_le_bytes(buffer) >> (self.at % 8);
        self.at = end;
        Ok((word & ((1 << width) - 1)) as u32)
    }

    /// Reads the next bit.
    pub(super) fn bit(&mut self) -> Result<bool, Error> {
        Ok(self.take(1)? != 0)
    }

    /// Reads a number in groups of `base` bits, lowest first. A bit after each group says whether
    /// another follows. Returns the number and its bits.
    fn groups(&mut self, base: u32) -> Result<(u64, u32), Error> {
        let (mut number, mut bits) = (0, 0);
        loop {
            let group = u64::from(self.take(base + 1)?);
            number |= (group & ((1 << base) - 1)) << bits;
            bits += base;
            if group >> base == 0 {
                return Ok((number, bits));
            }
            if bits > 40 {
                return Err(Error::Malformed("a number of too many bits"));
            }
        }
    }

    /// Reads an unsigned number of any length.
    pub(super) fn unsigned(&mut self, base: u32) -> Result<u32, Error> {
        let (number, _) = self.groups(base)?;
        u32::try_from(number).map_err(|_| Error::Malformed("a number beyond 32 bits"))
    }

    /// Reads a signed number of any length. The highest bit of the last group is its sign.
    pub(super) fn signed(&mut self, base: u32) -> Result<i32, Error> {
        let (number, bits) = self.groups(base)?;
        let unused = 64 - bits;
        i32::try_from((number << unused) as i64 >> unused)
            .map_err(|_| Error::Malformed("a number beyond 32 bits"))
    }
}
