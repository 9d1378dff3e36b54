//! Byte encoding of numbers and strings: LEB128 varints, zigzag for signed differences.
//!
//! `codec` builds records from these. Invariant: [`BodyReader`] never panics and never allocates,
//! whatever the bytes.

use std::borrow::Cow;

/// Maximum bytes of a string. The writer cuts longer ones.
pub const MAX_STRING: usize = 16 * 1024;

/// Error: a record's body does not fit its kind. If the checksum is valid, the writer is faulty or
/// newer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

/// Appends an unsigned varint: seven bits a byte, least significant first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends `value - base` (wrapping) so that small differences of either sign are short.
pub(crate) fn put_delta(out: &mut Vec<u8>, base: u64, value: u64) {
    let delta = value.wrapping_sub(base) as i64;
    put_varint(out, ((delta << 1) ^ (delta >> 63)) as u64);
}

/// Appends the length and the bytes, at most [`MAX_STRING`] of them.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = bytes.get(..MAX_STRING).unwrap_or(bytes);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends the length and the text, cut at a character so that it is at most [`MAX_STRING`] long.
pub(crate) fn put_str(out: &mut Vec<u8>, text: &str) {
    let end = text.floor_char_boundary(MAX_STRING);
    put_bytes(out, text.as_bytes().get(..end).unwrap_or_default());
}

/// The unread rest of a record's body (or of a block).
#[derive(Clone, Copy)]
pub(crate) struct BodyReader<'a>(pub(crate) &'a [u8]);

impl<'a> BodyReader<'a> {
    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.0.split_first().ok_or(Malformed)?;
        self.0 = rest;
        Ok(first)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    pub(crate) fn varint32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.varint()?).map_err(|_| Malformed)
    }

    pub(crate) fn delta(&mut self, base: u64) -> Result<u64, Malformed> {
        let coded = self.varint()?;
        let delta = (coded >> 1) as i64 ^ -((coded & 1) as i64);
        Ok(base.wrapping_add(delta as u64))
    }

    pub(crate) fn delta32(&mut self, base: u64) -> Result<u32, Malformed> {
        u32::try_from(self.delta(base)?).map_err(|_| Malformed)
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
        self.take(length)
    }

    /// Text; bytes that are not UTF-8 (a path, a thread's name) become U+FFFD.
    pub(crate) fn text(&mut self) -> Result<Cow<'a, str>, Malformed> {
        Ok(String::from_utf8_lossy(self.bytes()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_their_edges() {
        let edges = [
            0,
            1,
            0x7F,
            0x80,
            0x3FFF,
            0x4000,
            u64::from(u32::MAX),
            1 << 63,
            u64::MAX,
        ];
        for value in edges {
            for base in edges {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                put_delta(&mut out, base, value);
                let mut body = BodyReader(&out);
                assert_eq!(body.varint(), Ok(value));
                assert_eq!(body.delta(base), Ok(value));
                assert!(body.0.is_empty());
            }
        }
    }

    #[test]
    fn too_long_a_number_is_malformed() {
        assert_eq!(BodyReader(&[0x80; 11]).varint(), Err(Malformed));
        let more_than_64_bits = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02];
        assert_eq!(BodyReader(&more_than_64_bits).varint(), Err(Malformed));
    }

    #[test]
    fn a_long_string_is_cut_at_a_character() {
        let long = format!("{}é tail", "x".repeat(MAX_STRING - 1));
        let mut out = Vec::new();
        put_str(&mut out, &long);
        assert_eq!(BodyReader(&out).text().unwrap(), "x".repeat(MAX_STRING - 1));
    }
}
