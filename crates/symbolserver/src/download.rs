//! Download of one file from one address.
//!
//! Invariant: a download ends, whatever the server does. No part of a response takes longer than
//! [`Limits::silence`], the whole no longer than [`Limits::time`], and at most [`Limits::bytes`]
//! are written.

use std::io::Read as _;
use std::time::Instant;

use ureq::http::{HeaderMap, Response, header};
use ureq::{Agent, Body};

use crate::Limits;
use crate::failure::{self, Failure};
use crate::partial::{DownloadOrigin, PartialDownload};

/// Read at once.
const PIECE: usize = 64 << 10;
/// How often a connection that broke is made again, where the server lets us go on.
const MAX_ATTEMPTS: u32 = 5;

/// Is told of bytes that are there and of those that there will be; says whether to go on.
pub(crate) type Watch<'w> = &'w dyn Fn(u64, Option<u64>) -> bool;

/// Gets the file at `address` into `partial`, going on with what is there.
pub(crate) fn download(
    client: &Agent,
    address: &str,
    headers: &[(&str, &str)],
    partial: &mut PartialDownload,
    limits: Limits,
    watch: Watch<'_>,
) -> Result<(), Failure> {
    let start = Instant::now();
    let mut attempts = 0;
    loop {
        let before = partial.length();
        let result = attempt(client, address, headers, partial, limits, start, watch);
        attempts += 1;
        let goes_on = matches!(result, Err(Failure::Broken(..)))
            && partial.length() > before
            && partial.resume_at(address).is_some()
            && attempts < MAX_ATTEMPTS;
        if !goes_on {
            return result;
        }
    }
}

fn attempt(
    client: &Agent,
    address: &str,
    headers: &[(&str, &str)],
    partial: &mut PartialDownload,
    limits: Limits,
    start: Instant,
    watch: Watch<'_>,
) -> Result<(), Failure> {
    let mut request = client.get(address);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let known = partial.resume_at(address).cloned();
    if let Some(origin) = &known {
        request = request
            .header(header::RANGE, format!("bytes={}-", partial.length()))
            .header(header::IF_RANGE, &origin.mark);
    }
    let response = request
        .call()
        .map_err(|error| failure::failure_of(error, limits.silence))?;
    let total = match (response.status().as_u16(), known) {
        (200, _) => {
            let origin = DownloadOrigin {
                address: address.to_owned(),
                mark: version_tag(response.headers()),
                total: length(&response),
            };
            let total = origin.total;
            refuse_large(total, limits)?;
            partial.begin(origin).map_err(Failure::Disk)?;
            total
        }
        (206, Some(known)) => {
            let (first, total) = range(response.headers()).ok_or_else(|| {
                Failure::Contradictory("a part of a file, without its position".into())
            })?;
            if first != partial.length() || known.total.is_some_and(|known| known != total) {
                partial.clear().map_err(Failure::Disk)?;
                return Err(Failure::Contradictory("another part of a file".into()));
            }
            refuse_large(Some(total), limits)?;
            Some(total)
        }
        // It was whole already, or is another one now.
        (416, Some(known)) if known.total == Some(partial.length()) => return Ok(()),
        (416, Some(_)) => {
            partial.clear().map_err(Failure::Disk)?;
            return Err(Failure::Broken(0, None));
        }
        (404 | 410, _) => return Err(Failure::NotFound),
        (status, _) => return Err(Failure::Status(status)),
    };
    if let Some(packed) = response.headers().get(header::CONTENT_ENCODING)
        && packed != "identity"
    {
        partial.clear().map_err(Failure::Disk)?;
        return Err(Failure::Contradictory(
            "it is compressed without a request for that".into(),
        ));
    }
    read_body(response, partial, total, limits, start, watch)
}

fn read_body(
    mut response: Response<Body>,
    partial: &mut PartialDownload,
    total: Option<u64>,
    limits: Limits,
    start: Instant,
    watch: Watch<'_>,
) -> Result<(), Failure> {
    let mut body = response.body_mut().with_config().limit(u64::MAX).reader();
    let mut piece = vec![0; PIECE];
    loop {
        if !watch(partial.length(), total) {
            return Err(Failure::Stopped);
        }
        if start.elapsed() > limits.time {
            return Err(Failure::Slow(limits.time, partial.length()));
        }
        let count = match body.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(
                    match failure::failure_of(ureq::Error::from(error), limits.silence) {
                        Failure::NoData(time) => Failure::NoData(time),
                        _ => Failure::Broken(partial.length(), total),
                    },
                );
            }
        };
        let piece = piece.get(..count).unwrap_or_default();
        refuse_large(Some(partial.length() + count as u64), limits)?;
        partial.append(piece).map_err(Failure::Disk)?;
    }
    match total {
        Some(total) if partial.length() != total => {
            Err(Failure::Broken(partial.length(), Some(total)))
        }
        _ => Ok(()),
    }
}

fn refuse_large(bytes: Option<u64>, limits: Limits) -> Result<(), Failure> {
    match bytes {
        Some(bytes) if bytes > limits.bytes => Err(Failure::TooLarge(limits.bytes)),
        _ => Ok(()),
    }
}

/// Version of a file: a strong entity tag, else the date of its last change.
fn version_tag(headers: &HeaderMap) -> String {
    let text = |name| {
        let value = headers.get(name)?.to_str().ok()?;
        (!value.is_empty() && value.len() < 1024).then(|| value.to_owned())
    };
    let tag = text(header::ETAG).filter(|tag| tag.starts_with('"'));
    tag.or_else(|| text(header::LAST_MODIFIED))
        .unwrap_or_default()
}

fn length(response: &Response<Body>) -> Option<u64> {
    let value = response.headers().get(header::CONTENT_LENGTH)?;
    value.to_str().ok()?.trim().parse().ok()
}

/// First byte and length of the whole, of `bytes FIRST-LAST/TOTAL`.
fn range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let value = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    Some((first.parse().ok()?, total.parse().ok()?))
}
