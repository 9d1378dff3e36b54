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
mod private;
mod queue;
mod retry;
mod sender;
mod stamp;

use std::path::PathBuf;

use http_client::Address;

pub use folder::{Folder, FolderLimits};
pub use retry::Pacing;
pub use sender::{Credentials, Delivery, DeliveryWatch, Endpoint, Sender};
pub use stamp::utc_stamp;

/// A place to push to, as its address names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// `file:///folder`.
    Folder(PathBuf),
    /// `pprof+http(s)://…`: each profile is posted to the address.
    Pprof(Address),
    /// `otlp+http(s)://…`: the address that takes OTLP profiles.
    Otlp(Address),
    /// `pyroscope+http(s)://…`: the address of Pyroscope's push API.
    Pyroscope(Address),
    /// An address with a user or a password, to be refused without repeating it. It is not an error
    /// of [`Target::parse`], because parsers of command lines repeat what they refuse.
    WithPassword,
}

/// The message about [`Target::WithPassword`].
pub const WITH_PASSWORD: &str = "a password in an address is seen by all users of the machine: \
                                 use --push-token-file or --push-header-file";

/// The forms of [`Target::parse`], for messages.
const FORMS: &str = "file:///FOLDER, otlp+http(s)://HOST:PORT, pyroscope+http(s)://HOST:PORT or \
                     pprof+http(s)://HOST:PORT/PATH";

/// Path of OTLP profiles on a server.
const OTLP_PATH: &str = "/v1development/profiles";
/// Path of Pyroscope's push API on a server.
const PYROSCOPE_PATH: &str = "/push.v1.PusherService/Push";

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
        let (_, rest) = address.split_once("//").unwrap_or_default();
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if host.contains('@') {
            return Ok(Target::WithPassword);
        }
        let parse = Address::parse;
        if let Some(address) = address.strip_prefix("pprof+") {
            return Ok(Target::Pprof(parse(address)?));
        }
        if let Some(address) = address.strip_prefix("otlp+") {
            let base = address.trim_end_matches('/');
            // As OTEL_EXPORTER_OTLP_ENDPOINT: a base, unless it is whole already.
            return Ok(Target::Otlp(match base.ends_with("/profiles") {
                true => parse(base)?,
                false => parse(&format!("{base}{OTLP_PATH}"))?,
            }));
        }
        if let Some(address) = address.strip_prefix("pyroscope+") {
            let base = address.trim_end_matches('/');
            return Ok(Target::Pyroscope(parse(&format!(
                "{base}{PYROSCOPE_PATH}"
            ))?));
        }
        Err(format!("expected {FORMS}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        let pprof = |address| Target::Pprof(Address::parse(address).unwrap());
        let otlp = |address| Target::Otlp(Address::parse(address).unwrap());
        for (address, target) in [
            ("file:///var/p", Target::Folder("/var/p".into())),
            ("pprof+https://a/in?name=x", pprof("https://a/in?name=x")),
            (
                "otlp+http://a:4318",
                otlp("http://a:4318/v1development/profiles"),
            ),
            (
                "otlp+https://a/b/",
                otlp("https://a/b/v1development/profiles"),
            ),
            ("otlp+http://a/v1/profiles", otlp("http://a/v1/profiles")),
            (
                "pyroscope+https://a:4040/x/",
                Target::Pyroscope(
                    Address::parse("https://a:4040/x/push.v1.PusherService/Push").unwrap(),
                ),
            ),
        ] {
            assert_eq!(Target::parse(address), Ok(target), "{address}");
        }
        for wrong in ["", "http://a", "file://p", "otlp+ftp://a", "otlp+http://"] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
        for secret in [
            "pprof+http://me:secret@a",
            "otlp+https://me@a/b",
            "http://me:x@a",
        ] {
            assert_eq!(Target::parse(secret), Ok(Target::WithPassword), "{secret}");
        }
        assert_eq!(
            Target::parse("pprof+https://a/x@y"),
            Ok(pprof("https://a/x@y"))
        );
    }
}
