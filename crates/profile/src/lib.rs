//! The format-neutral model of a profile, made from a recording.
//!
//! No IO. `import` reads a recording, `names` makes metadata names readable, `model` is what the
//! outputs in `formats` are written from.
#![forbid(unsafe_code)]

pub mod model;

pub use model::Profile;
