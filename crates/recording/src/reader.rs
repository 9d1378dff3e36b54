//! Reader of recordings: bytes in, records out, also from a damaged file.
//!
//! Ids are not checked here: after a lost block some are undefined, which the consumer
//! (`profile::import`) reports. Invariants: any input is read to its end without a panic. Every
//! whole block is delivered, and every other byte is reported once, as [`Damage`]. Memory is
//! bounded by one block, its records and a few bytes per process. The records delivered are bounded
//! by the bytes read ([`MIN_UNPACK_LIMIT`], [`MAX_UNPACK_FACTOR`]), so a small file cannot expand
//! into a large profile.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read};

use crate::block::{
    BLOCK_HEADER, BLOCK_VERSION, BlockHeader, FILE_MAGIC, FILE_VERSION, MAX_READ_BLOCK, SYNC,
};
use crate::codec::{self, Deltas};
use crate::record::{ProcessKey, Record};
use crate::wire::{BodyReader, Malformed};

/// Bytes per read from the source.
const READ_SIZE: usize = 64 * 1024;

/// Bytes to which any recording may unpack …
pub const MIN_UNPACK_LIMIT: u64 = 16 << 20;
/// … and to this many times its size. Recordings of real programs unpack to less than four times
/// theirs.
pub const MAX_UNPACK_FACTOR: u64 = 32;

/// Why a file cannot be read at all.
#[derive(Debug)]
pub enum OpenError {
    /// The source failed.
    Io(io::Error),
    /// The file does not begin as a recording does.
    NotARecording,
    /// The file's frame is newer than this reader.
    NewerVersion(u16),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Io(error) => write!(f, "cannot read the recording: {error}"),
            OpenError::NotARecording => write!(f, "not a sidewalk recording"),
            OpenError::NewerVersion(version) => write!(
                f,
                "the recording has format version {version}, this sidewalk reads up to \
                 {FILE_VERSION}: use a newer one"
            ),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        OpenError::Io(error)
    }
}

/// A part of the recording that could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Bytes of the file that were skipped; 0 where blocks are missing altogether.
    pub length: u64,
    /// Process whose records are lost, where that can be known.
    pub process: Option<ProcessKey>,
    /// The reason.
    pub reason: DamageReason,
}

/// Reason why a part of a recording cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DamageReason {
    /// The file ends inside a block.
    Truncated,
    /// Bytes that are not a block, or a block with a wrong checksum.
    Corrupt,
    /// This many blocks of the process are missing before this place.
    MissingBlocks(u32),
    /// A block of this process again, or out of order; its records are delivered.
    OutOfOrder,
    /// The block's checksum is right but a record in it is malformed. Earlier records were
    /// delivered.
    Malformed,
    /// A block of this version, which this reader does not know.
    OtherVersion(u8),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { offset, length, .. } = self;
        match self.reason {
            DamageReason::Truncated => {
                write!(
                    f,
                    "the file ends inside a block (last {length} bytes, from {offset}, lost)"
                )
            }
            DamageReason::Corrupt => write!(f, "{length} damaged bytes at {offset} skipped"),
            DamageReason::MissingBlocks(1) => write!(f, "a block is missing before byte {offset}"),
            DamageReason::MissingBlocks(count) => {
                write!(f, "{count} blocks are missing before byte {offset}")
            }
            DamageReason::OutOfOrder => write!(f, "the block at byte {offset} is out of order"),
            DamageReason::Malformed => {
                write!(
                    f,
                    "the block at byte {offset} has a record that cannot be read"
                )
            }
            DamageReason::OtherVersion(version) => {
                write!(
                    f,
                    "the block at byte {offset} has version {version}, not {BLOCK_VERSION}"
                )
            }
        }
    }
}

/// An item of a reader.
#[derive(Clone, PartialEq, Debug)]
pub enum Item<'a> {
    /// A fact about a process.
    Record(ProcessKey, Record<'a>),
    /// A record of this process in a newer format; it was skipped.
    Newer(ProcessKey),
    /// A part that could not be read.
    Damage(Damage),
}

/// Reads a recording. `&[u8]` is a source too.
///
/// ```
/// # use recording::{Item, ProcessKey, Reader, Record, Writer, file_header};
/// let mut file = file_header("an example");
/// let mut writer = Writer::new(ProcessKey(7));
/// let _ = writer.push(&Record::Note { text: "hello".into() });
/// writer.take_block_into(&mut file);
///
/// let mut reader = Reader::open(file.as_slice())?;
/// let item = reader.next_item()?;
/// assert_eq!(item, Some(Item::Record(ProcessKey(7), Record::Note { text: "hello".into() })));
/// assert_eq!(reader.next_item()?, None);
/// # Ok::<(), recording::OpenError>(())
/// ```
pub struct Reader<R> {
    source: R,
    creator: String,
    buffer: Vec<u8>,
    /// Offset in `buffer` of the first unused byte.
    start: usize,
    /// Offset of `buffer[start]` in the file.
    offset: u64,
    source_ended: bool,
    /// The part that is being skipped.
    skipping: Option<Skipped>,
    /// The next sequence number of each process.
    expected: HashMap<ProcessKey, u32>,
    /// The block whose records are being given out.
    block: OpenBlock,
    /// Found, and to be given out before the next block.
    pending_damage: Option<Damage>,
    /// Bytes of records unpacked so far.
    unpacked: u64,
    /// Bytes that may be unpacked beyond the file size's share.
    unpack_limit: u64,
}

/// Bytes that are no whole block.
#[derive(Clone, Copy)]
struct Skipped {
    offset: u64,
    /// They begin as a block does, and the file ends before the block could.
    cut: bool,
}

/// A block's records, unpacked.
struct OpenBlock {
    process: ProcessKey,
    offset: u64,
    records: Vec<u8>,
    at: usize,
    deltas: Deltas,
}

impl<R: Read> Reader<R> {
    /// Reads the file's header.
    ///
    /// # Errors
    /// The source fails, it is no recording, or one of a newer version.
    pub fn open(source: R) -> Result<Reader<R>, OpenError> {
        let mut reader = Reader {
            source,
            creator: String::new(),
            buffer: Vec::new(),
            start: 0,
            offset: 0,
            source_ended: false,
            skipping: None,
            expected: HashMap::new(),
            block: OpenBlock {
                process: ProcessKey(0),
                offset: 0,
                records: Vec::new(),
                at: 0,
                deltas: Deltas::default(),
            },
            pending_damage: None,
            unpacked: 0,
            unpack_limit: MIN_UNPACK_LIMIT,
        };
        let fixed = FILE_MAGIC.len() + 3;
        reader.fill(fixed)?;
        let head = reader.unread();
        if !head.starts_with(&FILE_MAGIC) {
            return Err(OpenError::NotARecording);
        }
        let &[low, high, creator_length] = head.get(FILE_MAGIC.len()..fixed).unwrap_or_default()
        else {
            return Err(OpenError::NotARecording);
        };
        let version = u16::from_le_bytes([low, high]);
        if version > FILE_VERSION {
            return Err(OpenError::NewerVersion(version));
        }
        let length = fixed + usize::from(creator_length);
        reader.fill(length)?;
        let creator = reader
            .unread()
            .get(fixed..length)
            .ok_or(OpenError::NotARecording)?;
        reader.creator = String::from_utf8_lossy(creator).into_owned();
        reader.consume(length);
        Ok(reader)
    }

    /// Allows this many bytes of records, whatever the size of the file; [`MIN_UNPACK_LIMIT`]
    /// otherwise.
    #[must_use]
    pub fn with_unpack_limit(mut self, bytes: u64) -> Reader<R> {
        self.unpack_limit = bytes;
        self
    }

    /// The source, so that more can be put into one that grows. Reading goes on from there: an end
    /// that has been met was only the end so far. Put whole blocks into it; the beginning of one is
    /// damage.
    pub fn source_mut(&mut self) -> &mut R {
        self.source_ended = false;
        &mut self.source
    }

    /// Program that wrote the file, e.g. `sidewalk 0.1.0`.
    #[must_use]
    pub fn creator(&self) -> &str {
        &self.creator
    }

    /// The sequence number that the next block of a process would have ([`crate::Writer::resume`]);
    /// right when the reader has come to the end.
    #[must_use]
    pub fn next_sequence(&self, process: ProcessKey) -> u32 {
        self.expected.get(&process).copied().unwrap_or(0)
    }

    /// The next record or damage, `None` at the end.
    ///
    /// # Errors
    /// The source fails, or the recording unpacks to more than is allowed (`FileTooLarge`). Damage
    /// is no error.
    pub fn next_item(&mut self) -> io::Result<Option<Item<'_>>> {
        while self.pending_damage.is_some() || self.block.at >= self.block.records.len() {
            if let Some(damage) = self.pending_damage.take() {
                return Ok(Some(Item::Damage(damage)));
            }
            if !self.open_block()? && self.pending_damage.is_none() {
                return Ok(None);
            }
        }
        let OpenBlock {
            process,
            offset,
            records,
            at,
            deltas,
        } = &mut self.block;
        let mut rest = BodyReader(records.get(*at..).unwrap_or_default());
        let decoded = codec::take_record(&mut rest).and_then(|(kind, body)| {
            *at = records.len() - rest.0.len();
            codec::decode(kind, body, deltas)
        });
        Ok(Some(match decoded {
            Ok(Some(record)) => Item::Record(*process, record),
            Ok(None) => Item::Newer(*process),
            Err(Malformed) => {
                *at = records.len();
                let reason = DamageReason::Malformed;
                Item::Damage(Damage {
                    offset: *offset,
                    length: 0,
                    process: Some(*process),
                    reason,
                })
            }
        }))
    }

    /// Unpacks the next whole block. `false`: there is none, or damage waits to be told first.
    fn open_block(&mut self) -> io::Result<bool> {
        loop {
            self.fill(BLOCK_HEADER)?;
            let rest = self.unread();
            if rest.is_empty() {
                self.end_skipping();
                return Ok(false);
            }
            let header = rest
                .first_chunk::<BLOCK_HEADER>()
                .and_then(BlockHeader::parse);
            let Some(header) = header else {
                let begins = rest.len() < BLOCK_HEADER
                    && SYNC.starts_with(&rest[..rest.len().min(SYNC.len())]);
                self.skip_to_sync(begins);
                continue;
            };
            let length = BLOCK_HEADER + header.payload_length as usize;
            self.fill(length)?;
            let place = self.start + BLOCK_HEADER..self.start + length;
            let checksum = self.buffer.get(place.clone()).map(crc32fast::hash);
            if checksum != Some(header.payload_checksum) {
                self.skip_to_sync(checksum.is_none());
                continue;
            }
            if self.end_skipping() {
                // Tell of the damage first, then come back for this block.
                return Ok(false);
            }
            let payload = &self.buffer[place];
            let offset = self.offset;
            let damage = |reason, length: usize| Damage {
                offset,
                length: length as u64,
                process: Some(header.process),
                reason,
            };
            if header.version != BLOCK_VERSION {
                self.pending_damage =
                    Some(damage(DamageReason::OtherVersion(header.version), length));
                self.expected
                    .insert(header.process, header.sequence.wrapping_add(1));
                self.consume(length);
                return Ok(false);
            }
            let raw_length = if header.compressed {
                u64::from(header.raw_length)
            } else {
                u64::from(header.payload_length)
            };
            self.unpacked = self.unpacked.saturating_add(raw_length);
            let read = offset.saturating_add(length as u64);
            let unpack_limit = read
                .saturating_mul(MAX_UNPACK_FACTOR)
                .max(self.unpack_limit);
            if self.unpacked > unpack_limit {
                return Err(io::Error::new(
                    io::ErrorKind::FileTooLarge,
                    format!(
                        "the recording unpacks to more than {unpack_limit} bytes at byte {offset}: no \
                         program that was recorded makes such a file"
                    ),
                ));
            }
            let records = &mut self.block.records;
            records.clear();
            let unpacked = if header.compressed {
                records.resize(header.raw_length as usize, 0);
                lz4_flex::block::decompress_into(payload, records)
                    .is_ok_and(|length| length == records.len())
            } else {
                records.extend_from_slice(payload);
                true
            };
            self.block.process = header.process;
            self.block.offset = offset;
            self.block.at = 0;
            self.block.deltas = Deltas::default();
            let expected = self
                .expected
                .insert(header.process, header.sequence.wrapping_add(1))
                .unwrap_or(0);
            if !unpacked {
                self.block.records.clear();
                self.pending_damage = Some(damage(DamageReason::Malformed, length));
            } else if header.sequence > expected {
                let missing = header.sequence - expected;
                self.pending_damage = Some(damage(DamageReason::MissingBlocks(missing), 0));
            } else if header.sequence < expected {
                self.pending_damage = Some(damage(DamageReason::OutOfOrder, 0));
            }
            self.consume(length);
            return Ok(true);
        }
    }

    /// Passes over at least one byte, up to the next place where a block may begin.
    fn skip_to_sync(&mut self, cut: bool) {
        self.skipping.get_or_insert(Skipped {
            offset: self.offset,
            cut,
        });
        let rest = self.unread();
        let next = rest
            .windows(SYNC.len())
            .skip(1)
            .position(|window| window == SYNC);
        let length = match next {
            Some(position) => position + 1,
            // Its first bytes may be the last ones that we have.
            None if !self.source_ended => (rest.len() + 1).saturating_sub(SYNC.len()).max(1),
            None => rest.len(),
        };
        self.consume(length);
    }

    /// Makes a damage of the bytes that were passed over, if there are any.
    fn end_skipping(&mut self) -> bool {
        let Some(Skipped { offset, cut }) = self.skipping.take() else {
            return false;
        };
        let at_end = self.unread().is_empty();
        let reason = if at_end && cut {
            DamageReason::Truncated
        } else {
            DamageReason::Corrupt
        };
        self.pending_damage = Some(Damage {
            offset,
            length: self.offset - offset,
            process: None,
            reason,
        });
        true
    }

    fn unread(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    fn consume(&mut self, length: usize) {
        self.start = (self.start + length).min(self.buffer.len());
        self.offset += length as u64;
    }

    /// Reads until `length` bytes are unread, or the source ends.
    fn fill(&mut self, length: usize) -> io::Result<()> {
        debug_assert!(length <= BLOCK_HEADER + MAX_READ_BLOCK);
        while self.unread().len() < length && !self.source_ended {
            self.buffer.drain(..self.start);
            self.start = 0;
            let end = self.buffer.len();
            let want = (length - end).max(READ_SIZE);
            self.buffer.resize(end + want, 0);
            let got = loop {
                match self.source.read(&mut self.buffer[end..]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other,
                }
            };
            self.buffer.truncate(end + *got.as_ref().unwrap_or(&0));
            self.source_ended = got? == 0;
        }
        Ok(())
    }
}
