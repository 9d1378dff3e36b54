//! Compressed numbers of signatures and blobs: one, two or four bytes (ECMA-335 II.23.2).

use super::bytes::Bytes;
use super::{ReadError, ReadErrorKind};

/// The first number that has no compressed form.
pub(super) const LIMIT: u32 = 1 << 29;

impl Bytes<'_> {
    /// Reads a number; returns it and the width of its encoding in bits.
    fn compressed_bits(&mut self) -> Result<(u32, u32), ReadError> {
        let first = self.u8()?;
        match first.leading_ones() {
            0 => Ok((first.into(), 7)),
            1 => {
                let [second] = self.array()?;
                Ok((u16::from_be_bytes([first & 0x3f, second]).into(), 14))
            }
            2 => {
                let [b, c, d] = self.array()?;
                Ok((u32::from_be_bytes([first & 0x1f, b, c, d]), 29))
            }
            _ => Err(self.error(1, ReadErrorKind::Number(first))),
        }
    }

    pub(super) fn compressed(&mut self) -> Result<u32, ReadError> {
        self.compressed_bits().map(|(value, _)| value)
    }

    /// Reads a signed number. The sign is the lowest bit; a negative number wraps around at its
    /// width.
    pub(super) fn compressed_signed(&mut self) -> Result<i32, ReadError> {
        let (value, bits) = self.compressed_bits()?;
        let magnitude = (value >> 1) as i32;
        Ok(if value & 1 == 0 {
            magnitude
        } else {
            magnitude - (1 << (bits - 1))
        })
    }
}

/// Reads a compressed number from the front; returns it and its length in bytes.
///
/// # Errors
/// The bytes are malformed.
pub fn read_compressed(bytes: &[u8]) -> Result<(u32, usize), ReadError> {
    let mut bytes = Bytes::new(bytes);
    let value = bytes.compressed()?;
    Ok((value, bytes.at()))
}

/// As [`read_compressed`], for a signed number.
///
/// # Errors
/// The bytes are malformed.
pub fn read_compressed_signed(bytes: &[u8]) -> Result<(i32, usize), ReadError> {
    let mut bytes = Bytes::new(bytes);
    let value = bytes.compressed_signed()?;
    Ok((value, bytes.at()))
}

/// Appends a number in its shortest form. Returns `false` and appends nothing from 2²⁹ on.
#[must_use]
pub fn write_compressed(value: u32, out: &mut Vec<u8>) -> bool {
    match value {
        0..0x80 => write_bits(value, 7, out),
        0x80..0x4000 => write_bits(value, 14, out),
        0x4000..LIMIT => write_bits(value, 29, out),
        _ => return false,
    }
    true
}

/// Appends a signed number in its shortest form. Returns `false` and appends nothing outside of
/// ±2²⁸.
#[must_use]
pub fn write_compressed_signed(value: i32, out: &mut Vec<u8>) -> bool {
    let bits = match value {
        -0x40..0x40 => 7,
        -0x2000..0x2000 => 14,
        -0x1000_0000..0x1000_0000 => 29,
        _ => return false,
    };
    let mask = (1u32 << bits) - 1;
    let rotated = ((value as u32) << 1) & mask | u32::from(value < 0);
    write_bits(rotated, bits, out);
    true
}

fn write_bits(value: u32, bits: u32, out: &mut Vec<u8>) {
    match bits {
        7 => out.push(value as u8),
        14 => out.extend_from_slice(&(value as u16 | 0x8000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000).to_be_bytes()),
    }
}
