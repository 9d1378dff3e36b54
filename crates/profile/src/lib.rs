//! The format-neutral model of a profile, made from a recording.
//!
//! No IO. `import` reads a recording, `names` makes metadata names readable, `model` is what the
//! outputs in `formats` are written from, `ops` are the sums and trees that reports show.
#![forbid(unsafe_code)]

mod builder;
mod command;
mod ids;
mod import;
mod merge;
pub mod model;
pub mod names;
pub mod ops;
mod rewrite;
#[cfg(feature = "testing")]
pub mod testing;

pub use builder::Builder;
pub use import::{Import, LOST_FRAME, Origin, Totals};
pub use merge::merge;
pub use model::Profile;
pub use rewrite::{Replacement, replace_frames};
