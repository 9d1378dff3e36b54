//! Splitter of a connection's bytes into whole blocks, which the tool appends to its file.
//!
//! Records are not decoded here, except notes for the user. Invariant: each block returned is whole
//! and has valid checksums; at most one incomplete block is kept beside the bytes that the caller
//! fed.

use std::fmt;
use std::io::Read as _;

use crate::block::{BLOCK_HEADER, BlockHeader, SYNC, file_header};
use crate::reader::{Item, Reader};
use crate::record::{ProcessKey, Record};

/// One whole block, as it lies on the wire and on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block<'a> {
    /// Process of these records.
    pub process: ProcessKey,
    /// Number of the block among those of its process, from 0.
    pub sequence: u32,
    /// Whether it holds [`crate::Record::End`], behind which this process's agent sends nothing.
    pub is_end: bool,
    /// Whether it holds a [`crate::Record::Note`].
    pub has_note: bool,
    /// Everything, header included: append it to a file as it is.
    pub bytes: &'a [u8],
}

impl Block<'_> {
    /// Returns the block's notes for the user. Only a block that has some is decoded.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.has_note {
            return notes;
        }
        let header = file_header("");
        if let Ok(mut reader) = Reader::open(header.as_slice().chain(self.bytes)) {
            while let Ok(Some(item)) = reader.next_item() {
                if let Item::Record(_, Record::Note { text }) = item {
                    notes.push(text.into_owned());
                }
            }
        }
        notes
    }
}

/// Error: the peer sent something other than valid blocks. The connection cannot be used further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidStream {
    /// Bytes of this connection before the place.
    pub offset: u64,
    /// The kind of error.
    pub reason: &'static str,
}

impl fmt::Display for InvalidStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the stream is not a recording at byte {}: {}",
            self.offset, self.reason
        )
    }
}

impl std::error::Error for InvalidStream {}

/// Cuts a stream of bytes into blocks.
///
/// ```
/// # use recording::{BlockSplitter, ProcessKey, Record, Writer};
/// # let mut writer = Writer::new(ProcessKey(7));
/// # let _ = writer.push(&Record::End { time_ns: 1 });
/// # let received = writer.take_block().unwrap();
/// let mut splitter = BlockSplitter::new();
/// for part in received.chunks(10) {
///     splitter.feed(part);
///     while let Some(block) = splitter.next_block()? {
///         assert!(block.is_end && block.bytes == received);
///     }
/// }
/// assert_eq!(splitter.pending(), 0);
/// # Ok::<(), recording::InvalidStream>(())
/// ```
#[derive(Debug, Default)]
pub struct BlockSplitter {
    buffer: Vec<u8>,
    /// Offset in `buffer` of the first byte not yet returned.
    start: usize,
    /// Offset of `buffer[start]` in the stream.
    offset: u64,
    failed: Option<InvalidStream>,
}

impl BlockSplitter {
    /// A splitter at the start of a stream (behind the file's header, where there is one).
    #[must_use]
    pub fn new() -> BlockSplitter {
        BlockSplitter::default()
    }

    /// Adds received bytes. Take all blocks before feeding more: then memory is bounded by one
    /// block and one feed.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole block, `None` until more is fed.
    ///
    /// # Errors
    /// The next bytes are no block. Every later call gives the same error.
    pub fn next_block(&mut self) -> Result<Option<Block<'_>>, InvalidStream> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let rest = self.buffer.get(self.start..).unwrap_or_default();
        let known = rest.len().min(SYNC.len());
        if rest[..known] != SYNC[..known] {
            return Err(self.fail("no sync word"));
        }
        let Some(header) = rest.first_chunk::<BLOCK_HEADER>() else {
            return Ok(None);
        };
        let Some(header) = BlockHeader::parse(header) else {
            return Err(self.fail("damaged block header"));
        };
        let length = BLOCK_HEADER + header.payload_length as usize;
        let Some(bytes) = rest.get(..length) else {
            return Ok(None);
        };
        if crc32fast::hash(&bytes[BLOCK_HEADER..]) != header.payload_checksum {
            return Err(self.fail("damaged block"));
        }
        let start = self.start;
        self.start += length;
        self.offset += length as u64;
        Ok(Some(Block {
            process: header.process,
            sequence: header.sequence,
            is_end: header.is_end,
            has_note: header.has_note,
            bytes: &self.buffer[start..start + length],
        }))
    }

    /// Bytes of an incomplete block. If this is not 0 when the peer closes, the peer ended in the
    /// middle of a block.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }

    fn fail(&mut self, reason: &'static str) -> InvalidStream {
        let failed = InvalidStream {
            offset: self.offset,
            reason,
        };
        self.failed = Some(failed);
        self.buffer = Vec::new();
        self.start = 0;
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Writer;

    #[test]
    fn garbage_is_an_error_at_its_first_byte_and_stays_one() {
        let mut writer = Writer::new(ProcessKey(1));
        let _ = writer.push(&Record::Note { text: "a".into() });
        let block = writer.take_block().unwrap();
        let mut splitter = BlockSplitter::new();
        splitter.feed(&block);
        splitter.feed(b"GET / HTTP/1.1\r\n");
        assert_eq!(splitter.next_block().unwrap().unwrap().bytes, block);
        let failed = splitter.next_block().unwrap_err();
        assert_eq!(
            (failed.offset, failed.reason),
            (block.len() as u64, "no sync word")
        );
        splitter.feed(&block);
        assert_eq!(splitter.next_block(), Err(failed));
    }

    #[test]
    fn notes_are_read_where_there_are_some() {
        let mut writer = Writer::new(ProcessKey(1));
        let mut splitter = BlockSplitter::new();
        for texts in [&[][..], &["a", "b"], &[]] {
            let _ = writer.push(&Record::End { time_ns: 1 });
            for text in texts {
                let _ = writer.push(&Record::Note {
                    text: (*text).into(),
                });
            }
            splitter.feed(&writer.take_block().unwrap());
            let block = splitter.next_block().unwrap().unwrap();
            assert_eq!(block.has_note, !texts.is_empty());
            assert_eq!(block.notes(), texts);
        }
    }

    #[test]
    fn a_damaged_payload_is_an_error() {
        let mut writer = Writer::new(ProcessKey(1));
        let _ = writer.push(&Record::Note { text: "a".into() });
        let mut block = writer.take_block().unwrap();
        *block.last_mut().unwrap() ^= 1;
        let mut splitter = BlockSplitter::new();
        splitter.feed(&block);
        assert_eq!(splitter.next_block().unwrap_err().reason, "damaged block");
    }
}
