//! Output of records: encodes them into blocks and sends each full block to the tool.
//!
//! Wraps the recording's writer and the [`Channel`]. When the tool has exited, all later records
//! are dropped. A call blocks no longer than the channel does and never fails, as a record that
//! cannot be sent is of no use.

use recording::{ProcessKey, Record, Writer};

use super::channel::{Channel, Command};

/// Destination of records. By default they are dropped.
#[derive(Default)]
pub(crate) struct Outlet {
    writer: Option<Writer>,
    channel: Option<Channel>,
    block: Vec<u8>,
    /// Number of records so far.
    pushed: u64,
}

impl Outlet {
    pub(crate) fn new(process: ProcessKey, channel: Channel) -> Outlet {
        Outlet {
            writer: Some(Writer::new(process)),
            channel: Some(channel),
            block: Vec::new(),
            pushed: 0,
        }
    }

    /// Adds a record, and sends the block when it is full.
    pub(crate) fn push(&mut self, record: &Record<'_>) {
        let Some(writer) = self.writer.as_mut().filter(|_| self.channel.is_some()) else {
            return;
        };
        self.pushed = self.pushed.wrapping_add(1);
        self.block.clear();
        writer.push_into(record, &mut self.block);
        self.send();
    }

    /// Returns the number of records pushed so far.
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Sends the pushed records.
    pub(crate) fn flush(&mut self) {
        self.block.clear();
        if let Some(writer) = &mut self.writer {
            writer.take_block_into(&mut self.block);
        }
        self.send();
    }

    fn send(&mut self) {
        if !self.block.is_empty()
            && let Some(channel) = &mut self.channel
            && channel.send(&self.block).is_err()
        {
            self.channel = None;
        }
    }

    /// Returns the descriptor for `poll`, or -1, which `poll` skips, if the tool has exited.
    pub(crate) fn fd(&self) -> i32 {
        self.channel.as_ref().map_or(-1, Channel::fd)
    }

    /// Returns the tool's command.
    pub(crate) fn command(&mut self) -> Command {
        let command = self
            .channel
            .as_mut()
            .map_or(Command::Gone, Channel::command);
        if command == Command::Gone {
            self.channel = None;
        }
        command
    }

    /// Sends the rest and closes the connection.
    pub(crate) fn close(&mut self) {
        self.flush();
        *self = Outlet::default();
    }

    /// Bytes held.
    pub(crate) fn memory(&self) -> u64 {
        let written = self.writer.as_ref().map_or(0, |_| 2 * recording::MAX_BLOCK);
        (self.block.capacity() + written) as u64
    }
}
