//! Headers of a recording: of the file, and of each block of records.
//!
//! The records in a block are coded by `codec`. Invariant: a [`BlockHeader`] from
//! [`BlockHeader::parse`] has a valid checksum and lengths within the limits below, so a reader may
//! allocate that much.

use crate::record::ProcessKey;

/// First bytes of a recording on disk. The first byte is not text; the last two reveal a transfer
/// that changed line ends.
pub const FILE_MAGIC: [u8; 8] = *b"\x89SWREC\r\n";

/// Version of the file's frame. A reader refuses a greater one.
pub const FILE_VERSION: u16 = 1;

/// First bytes of each block, the mark that a reader looks for after damage.
pub const SYNC: [u8; 8] = *b"\xF7SWBLK\r\n";

/// Version of the block's frame and of the coding of records. A reader skips blocks of another one.
pub const BLOCK_VERSION: u8 = 1;

/// Bytes of a block's header.
pub const BLOCK_HEADER: usize = 40;

/// Maximum length of a block that a reader accepts, compressed or not, in bytes. The writer stays
/// far below it ([`MAX_BLOCK`]); later writers may use the rest.
pub const MAX_READ_BLOCK: usize = 4 * 1024 * 1024;

/// Bytes of records at which a block should be taken from the writer.
pub const FLUSH_AT: usize = 64 * 1024;

/// Maximum bytes of records in one block of a writer.
pub const MAX_BLOCK: usize = 256 * 1024;

/// Creators' names are cut at this many bytes.
const MAX_CREATOR: usize = 255;

/// [`BlockHeader::flags`]: the payload is lz4, else it is stored as it is.
const FLAG_LZ4: u8 = 1;
/// [`BlockHeader::flags`]: the block holds [`crate::Record::End`].
const FLAG_END: u8 = 2;
/// [`BlockHeader::flags`]: the block holds a [`crate::Record::Note`].
const FLAG_NOTE: u8 = 4;

/// Header of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockHeader {
    pub(crate) version: u8,
    pub(crate) compressed: bool,
    pub(crate) is_end: bool,
    pub(crate) has_note: bool,
    pub(crate) process: ProcessKey,
    pub(crate) sequence: u32,
    pub(crate) raw_length: u32,
    pub(crate) payload_length: u32,
    pub(crate) payload_checksum: u32,
}

impl BlockHeader {
    pub(crate) fn to_bytes(self) -> [u8; BLOCK_HEADER] {
        let mut bytes = [0; BLOCK_HEADER];
        let flags = (u8::from(self.compressed) * FLAG_LZ4)
            | (u8::from(self.is_end) * FLAG_END)
            | (u8::from(self.has_note) * FLAG_NOTE);
        bytes[0..8].copy_from_slice(&SYNC);
        bytes[8] = self.version;
        bytes[9] = flags;
        bytes[12..16].copy_from_slice(&self.raw_length.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.payload_length.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.process.0.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.payload_checksum.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..36]);
        bytes[36..40].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// `None`: this is no header (no sync word, wrong checksum, lengths out of bounds).
    pub(crate) fn parse(bytes: &[u8; BLOCK_HEADER]) -> Option<BlockHeader> {
        let header = BlockHeader {
            version: bytes[8],
            compressed: bytes[9] & FLAG_LZ4 != 0,
            is_end: bytes[9] & FLAG_END != 0,
            has_note: bytes[9] & FLAG_NOTE != 0,
            raw_length: u32_at(bytes, 12),
            payload_length: u32_at(bytes, 16),
            process: ProcessKey(u64::from(u32_at(bytes, 20)) | u64::from(u32_at(bytes, 24)) << 32),
            sequence: u32_at(bytes, 28),
            payload_checksum: u32_at(bytes, 32),
        };
        let whole = bytes.starts_with(&SYNC) && crc32fast::hash(&bytes[..36]) == u32_at(bytes, 36);
        let within = header.raw_length as usize <= MAX_READ_BLOCK
            && header.payload_length as usize <= MAX_READ_BLOCK;
        (whole && within).then_some(header)
    }
}

fn u32_at(bytes: &[u8; BLOCK_HEADER], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The bytes that open a recording on disk, before its first block. `creator` says what wrote it
/// (`sidewalk 0.1.0`), at most 255 bytes.
#[must_use]
pub fn file_header(creator: &str) -> Vec<u8> {
    let creator = &creator[..creator.floor_char_boundary(MAX_CREATOR)];
    let mut bytes = FILE_MAGIC.to_vec();
    bytes.extend_from_slice(&FILE_VERSION.to_le_bytes());
    bytes.push(creator.len() as u8);
    bytes.extend_from_slice(creator.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_and_any_flipped_bit_is_seen() {
        let header = BlockHeader {
            version: 1,
            compressed: true,
            is_end: false,
            has_note: true,
            process: ProcessKey(0x0123_4567_89AB_CDEF),
            sequence: 7,
            raw_length: 70_000,
            payload_length: 33_333,
            payload_checksum: 0xDEAD_BEEF,
        };
        let bytes = header.to_bytes();
        assert_eq!(BlockHeader::parse(&bytes), Some(header));
        for bit in 0..BLOCK_HEADER * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BlockHeader::parse(&damaged), None, "bit {bit}");
        }
    }
}
