//! Format of recordings (`.swk`): what the agent sends to the tool and the tool keeps on disk.
//!
//! [`Writer`] encodes records into blocks, [`BlockSplitter`] finds the blocks in a stream,
//! [`Reader`] decodes the records of a file, and [`Cutter`] makes several recordings of one stream.
//! The crate does no IO of its own and depends on no other crate of the workspace.
//!
//! A file is [`file_header`] followed by blocks of any number of processes, in any order between
//! processes. The wire carries the same blocks without the header, so the tool only appends them.
//! `docs/recording-format.md` has every byte.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo)
)]

mod block;
mod codec;
mod cut;
pub mod histogram;
mod reader;
mod record;
mod split;
mod wire;
mod writer;

pub use block::{
    BLOCK_HEADER, BLOCK_VERSION, FILE_MAGIC, FILE_VERSION, FLUSH_AT, MAX_BLOCK, MAX_READ_BLOCK,
    SYNC, file_header,
};
pub use cut::{ClockReading, Cutter, limits};
pub use reader::{
    Damage, DamageReason, Item, MAX_UNPACK_FACTOR, MIN_UNPACK_LIMIT, OpenError, Reader,
};
pub use record::{
    CostPart, Event, Frame, MethodKind, ModuleKind, ProcessKey, Record, Tier, Unit, WalkEnd,
};
pub use split::{Block, BlockSplitter, InvalidStream};
pub use wire::MAX_STRING;
pub use writer::{PushOutcome, Writer};
