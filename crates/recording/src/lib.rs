//! The recording: what the agent sends and the tool keeps, on the wire and on disk.
//!
//! No IO of its own: the writer makes blocks of bytes, the reader takes bytes. It depends on
//! nothing of ours.
#![forbid(unsafe_code)]

mod record;

pub use record::{Event, Frame, MethodKind, ModuleKind, ProcessKey, Record, Tier, WalkEnd};
