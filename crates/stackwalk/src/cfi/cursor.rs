//! Reads DWARF-encoded numbers from a module's bytes.
//!
//! The meaning of the numbers is the caller's part ([`super`], `expression`). Invariant: it never
//! reads outside its slice, and missing or malformed data is `None`.

use crate::native::NativeCode;

/// Bytes of a module with their address.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(code: &'a NativeCode, at: u64) -> Self {
        Self {
            bytes: code.bytes_at(at),
            at,
        }
    }

    pub(super) fn take(&mut self, len: u64) -> Option<Cursor<'a>> {
        let (head, tail) = self.bytes.split_at_checked(usize::try_from(len).ok()?)?;
        let taken = Cursor {
            bytes: head,
            at: self.at,
        };
        self.bytes = tail;
        self.at = self.at.wrapping_add(len);
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N as u64)?.bytes.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        let [byte] = self.array()?;
        Some(byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn uleb(&mut self) -> Option<u64> {
        let (value, ..) = self.leb([0, 1])?;
        Some(value)
    }

    pub(super) fn sleb(&mut self) -> Option<i64> {
        let (value, bits, last) = self.leb([0, 0x7f])?;
        let sign = u64::MAX.checked_shl(bits).unwrap_or(0);
        let is_negative = last & 0x40 != 0;
        Some(if is_negative { value | sign } else { value }.cast_signed())
    }

    /// Reads a number in seven bits of each byte, the lowest first. Returns the number, its bits
    /// and the last byte, or `None` if it takes more than 64 bits. The tenth byte contributes one
    /// bit and must be one of `tenth`.
    fn leb(&mut self, tenth: [u8; 2]) -> Option<(u64, u32, u8)> {
        let mut value = 0u64;
        let mut bits = 0u32;
        loop {
            let byte = self.u8()?;
            if bits == 63 && !tenth.contains(&byte) {
                return None;
            }
            value |= u64::from(byte & 0x7f) << bits;
            bits += 7;
            if byte & 0x80 == 0 {
                return Some((value, bits, byte));
            }
        }
    }

    /// Reads a value in one of the DW_EH_PE formats, without applying it to a base.
    pub(super) fn format(&mut self, encoding: u8) -> Option<u64> {
        Some(match encoding & 0x0f {
            0x00 | 0x04 => self.u64()?,
            0x01 => self.uleb()?,
            0x02 => self.u16()?.into(),
            0x03 => self.u32()?.into(),
            0x09 => self.sleb()?.cast_unsigned(),
            0x0a => i64::from(self.u16()?.cast_signed()).cast_unsigned(),
            0x0b => i64::from(self.u32()?.cast_signed()).cast_unsigned(),
            0x0c => self.u64()?,
            _ => return None,
        })
    }

    /// Reads a pointer to code: absolute or relative to its own address. Indirect ones are not
    /// code.
    pub(super) fn pointer(&mut self, encoding: u8) -> Option<u64> {
        let at = self.at;
        let value = self.format(encoding)?;
        match encoding & 0xf0 {
            0x00 => Some(value),
            0x10 => Some(at.wrapping_add(value)),
            _ => None,
        }
    }
}
