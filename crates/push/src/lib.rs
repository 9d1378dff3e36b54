//! Delivery of finished profiles: to a folder, or to a store of profiles.
//!
//! The caller encodes profiles; contents are opaque here. Invariants: a target holds a bounded
//! amount, and the oldest goes first. No secret is in an address, so addresses can be shown.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo)
)]

mod folder;
mod stamp;

use std::path::PathBuf;

pub use folder::{Folder, FolderLimits};
pub use stamp::utc_stamp;

/// A place to push to, as its address names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// `file:///folder`.
    Folder(PathBuf),
}

/// The forms of [`Target::parse`], for messages.
const FORMS: &str = "file:///FOLDER";

impl Target {
    /// Parses an address.
    ///
    /// # Errors
    /// It is none; the text says what to give.
    pub fn parse(address: &str) -> Result<Target, String> {
        if let Some(path) = address.strip_prefix("file://") {
            return match path.starts_with('/') {
                true => Ok(Target::Folder(PathBuf::from(path))),
                false => Err("a folder is given by its whole path: file:///FOLDER".into()),
            };
        }
        Err(format!("expected {FORMS}"))
    }
}
