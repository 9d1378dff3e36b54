//! Writer of recordings: records in, blocks out. It runs on the agent thread, in the profiled
//! process.
//!
//! It does no IO: the caller sends the bytes that [`Writer::take_block_into`] appends. Invariant:
//! it holds at most [`MAX_BLOCK`] bytes of records plus fixed buffers, and neither `push` nor
//! `take` panics.

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

use crate::block::{BLOCK_HEADER, BLOCK_VERSION, BlockHeader, FLUSH_AT, MAX_BLOCK};
use crate::codec::{self, Deltas};
use crate::record::{ProcessKey, Record};

/// Result of pushing a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum PushOutcome {
    /// It is in the current block.
    Added,
    /// It is in the current block, and the block is big enough to be taken.
    FlushDue,
    /// It is not in the block: the block is full ([`MAX_BLOCK`]). Take the block and push again,
    /// or count the record as lost.
    Full,
}

/// Turns the records of one process into blocks.
///
/// Allocates when its buffers grow towards their bounds, not per record. Not for a signal handler.
pub struct Writer {
    process: ProcessKey,
    sequence: u32,
    deltas: Deltas,
    has_end: bool,
    has_note: bool,
    records: Vec<u8>,
    body: Vec<u8>,
    table: CompressTable,
}

impl Writer {
    /// Returns a writer for a process, at its first block.
    #[must_use]
    pub fn new(process: ProcessKey) -> Writer {
        Writer::resume(process, 0)
    }

    /// Returns a writer that continues behind block `sequence - 1` of the process. The tool uses it
    /// to add symbols to an agent's blocks.
    #[must_use]
    pub fn resume(process: ProcessKey, sequence: u32) -> Writer {
        Writer {
            process,
            sequence,
            deltas: Deltas::default(),
            has_end: false,
            has_note: false,
            records: Vec::new(),
            body: Vec::new(),
            table: CompressTable::large(),
        }
    }

    /// Returns the process whose records are written.
    #[must_use]
    pub fn process(&self) -> ProcessKey {
        self.process
    }

    /// Returns the bytes of records in the current block.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.records.len()
    }

    /// Adds a record to the current block. Strings longer than 16 KiB are cut.
    pub fn push(&mut self, record: &Record<'_>) -> PushOutcome {
        let before = self.deltas;
        self.body.clear();
        let kind = codec::encode(record, &mut self.deltas, &mut self.body);
        // A head is at most 1 + 10 bytes.
        if self.records.len() + self.body.len() + 11 > MAX_BLOCK {
            self.deltas = before;
            return PushOutcome::Full;
        }
        self.make_room(self.body.len() + 11);
        codec::put_head(&mut self.records, kind, self.body.len());
        self.records.extend_from_slice(&self.body);
        self.has_end |= matches!(record, Record::End { .. });
        self.has_note |= matches!(record, Record::Note { .. });
        if self.records.len() >= FLUSH_AT {
            PushOutcome::FlushDue
        } else {
            PushOutcome::Added
        }
    }

    /// As [`Writer::push`], and appends the block to `out` when that is due.
    pub fn push_into(&mut self, record: &Record<'_>, out: &mut Vec<u8>) {
        match self.push(record) {
            PushOutcome::Added => {}
            PushOutcome::FlushDue => drop(self.take_block_into(out)),
            PushOutcome::Full => {
                self.take_block_into(out);
                // An empty block has room for any single record.
                let _again = self.push(record);
            }
        }
    }

    /// Grows the buffer by doubling, but never beyond the most that it may hold.
    fn make_room(&mut self, more: usize) {
        let needed = self.records.len() + more;
        if needed > self.records.capacity() {
            let doubled = (2 * self.records.capacity()).clamp(FLUSH_AT / 4, MAX_BLOCK);
            self.records
                .reserve_exact(doubled.max(needed) - self.records.len());
        }
    }

    /// Closes the current block and returns it, `None` where it holds no record.
    pub fn take_block(&mut self) -> Option<Vec<u8>> {
        let mut block = Vec::new();
        self.take_block_into(&mut block).then_some(block)
    }

    /// Closes the current block and appends it to `out`; `false` where it holds no record.
    pub fn take_block_into(&mut self, out: &mut Vec<u8>) -> bool {
        if self.records.is_empty() {
            return false;
        }
        let start = out.len();
        let payload_at = start + BLOCK_HEADER;
        out.resize(payload_at + get_maximum_output_size(self.records.len()), 0);
        let room = out.get_mut(payload_at..).unwrap_or_default();
        let packed = compress_into_with_table(&self.records, room, &mut self.table);
        let compressed = match packed {
            Ok(length) if length < self.records.len() => {
                out.truncate(payload_at + length);
                true
            }
            // It does not shrink.
            _ => {
                out.truncate(payload_at);
                out.extend_from_slice(&self.records);
                false
            }
        };
        let payload = out.get(payload_at..).unwrap_or_default();
        let header = BlockHeader {
            version: BLOCK_VERSION,
            compressed,
            is_end: self.has_end,
            has_note: self.has_note,
            process: self.process,
            sequence: self.sequence,
            raw_length: self.records.len() as u32,
            payload_length: payload.len() as u32,
            payload_checksum: crc32fast::hash(payload),
        };
        if let Some(place) = out.get_mut(start..payload_at) {
            place.copy_from_slice(&header.to_bytes());
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.deltas = Deltas::default();
        self.has_end = false;
        self.has_note = false;
        self.records.clear();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MAX_STRING;

    #[test]
    fn buffers_stay_within_their_bounds() {
        let mut writer = Writer::new(ProcessKey(1));
        let long = "x".repeat(MAX_STRING);
        let mut number = 0u64;
        loop {
            number += 1;
            let text = &long[..number as usize * 97 % MAX_STRING];
            let record = Record::Method {
                method: number as u32,
                runtime: 0,
                kind: crate::MethodKind::Il,
                module: None,
                token: 0,
                type_name: text.into(),
                name: text.into(),
            };
            if writer.push(&record) == PushOutcome::Full {
                break;
            }
        }
        assert!(
            writer.records.capacity() <= MAX_BLOCK,
            "{}",
            writer.records.capacity()
        );
        assert!(
            writer.body.capacity() <= 4 * MAX_STRING,
            "{}",
            writer.body.capacity()
        );
    }
}
