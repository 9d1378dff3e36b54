//! The recording: what the agent sends and the tool keeps, on the wire and on disk.
//!
//! No IO of its own: [`Writer`] makes blocks of bytes, [`BlockSplitter`] finds them again in a
//! stream, [`Reader`] gives the records of a file. It depends on nothing of ours.
//!
//! A file is [`file_header`] and blocks of any number of processes, in any order between
//! processes; the wire carries the same blocks without the header, so the tool only appends.
//! `docs/recording-format.md` has every byte.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo)
)]

mod block;
mod codec;
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
pub use reader::{
    Damage, DamageReason, Item, MAX_UNPACK_FACTOR, MIN_UNPACK_LIMIT, OpenError, Reader,
};
pub use record::{
    CostPart, Event, Frame, MethodKind, ModuleKind, ProcessKey, Record, Tier, Unit, WalkEnd,
};
pub use split::{Block, BlockSplitter, InvalidStream};
pub use wire::MAX_STRING;
pub use writer::{PushOutcome, Writer};
