//! Profiles: the format-neutral model that is made from a recording and written by `formats`.
//!
//! `import` makes a profile of a recording's records, `model` is its data, `names` makes metadata
//! names readable, and `ops` computes the sums, trees and filters that reports show. The crate does
//! no IO.
#![forbid(unsafe_code)]

mod builder;
mod clocks;
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
