//! Reasons why a server gave no file, with messages that say what to do.

use std::fmt;
use std::io;
use std::time::Duration;

use symbolize::FileMismatch;
use ureq::{Error, Timeout};

/// Why a server gave no file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// It has none.
    NotFound,
    /// It answers with this number.
    Status(u16),
    /// It cannot be reached.
    Unreachable(String),
    /// It said nothing for so long.
    NoData(Duration),
    /// It sends too slowly to get the file within this time; how many bytes are kept.
    Slow(Duration, u64),
    /// The connection ended in the middle: so many bytes are here, of so many where that is known.
    Broken(u64, Option<u64>),
    /// The file has more bytes than are allowed.
    TooLarge(u64),
    /// The answer contradicts itself.
    Contradictory(String),
    /// The file is not the one that was asked for.
    Refused(FileMismatch),
    /// It cannot be kept.
    Disk(io::Error),
    /// It could not be reached for another file of this run, and was not asked for this one.
    Skipped,
    /// Another process is getting it now.
    Busy,
    /// Somebody wants no more of it.
    Stopped,
}

impl Failure {
    /// Asking the same server for another file would end the same way.
    pub(crate) fn is_server_failure(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_) | Self::NoData(_) | Self::Status(401 | 403 | 407)
        )
    }

    /// Whether the received part is worth keeping, to continue from there.
    pub(crate) fn is_resumable(&self) -> bool {
        matches!(
            self,
            Self::Broken(..)
                | Self::Slow(..)
                | Self::NoData(_)
                | Self::Unreachable(_)
                | Self::Stopped
        )
    }
}

/// Classifies an error before or within an answer.
pub(crate) fn failure_of(error: Error, silence: Duration) -> Failure {
    match error {
        Error::Timeout(Timeout::Resolve) => {
            Failure::Unreachable("its name was not resolved in time".into())
        }
        Error::Timeout(Timeout::Connect) => {
            Failure::Unreachable(format!("no connection within {} s", silence.as_secs_f32()))
        }
        Error::Timeout(_) => Failure::NoData(silence),
        Error::HostNotFound => Failure::Unreachable("there is no host of that name".into()),
        Error::ConnectProxyFailed(why) => {
            Failure::Unreachable(format!("the proxy refuses: {}", why.trim()))
        }
        Error::RequireHttpsOnly(_) => {
            Failure::Contradictory("it redirects to an address that is not https".into())
        }
        Error::TooManyRedirects => Failure::Contradictory("it redirects too often".into()),
        Error::LargeResponseHeader(..) => {
            Failure::Contradictory("the header of its answer is too long".into())
        }
        Error::Io(error) if error.kind() == io::ErrorKind::TimedOut => Failure::NoData(silence),
        Error::Io(error) => Failure::Unreachable(error.to_string()),
        Error::Protocol(why) => Failure::Contradictory(why.to_string()),
        Error::BadUri(_) => Failure::Contradictory("it redirects to an invalid address".into()),
        other => Failure::Unreachable(other.to_string()),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("it has no such file"),
            Self::Status(status @ (401 | 403)) => {
                write!(
                    f,
                    "it refuses ({status}): servers with a password are not supported"
                )
            }
            Self::Status(407) => f.write_str("the proxy asks for a password (407)"),
            Self::Status(status @ (429 | 503)) => {
                write!(f, "it is busy ({status}): try again later")
            }
            Self::Status(status) => write!(f, "it answers {status}"),
            Self::Unreachable(why) => write!(
                f,
                "it cannot be reached ({why}); behind a proxy, set HTTPS_PROXY"
            ),
            Self::NoData(time) => write!(
                f,
                "it sent nothing for {} s: try again later, or give it more time with \
                 DEBUGINFOD_TIMEOUT=SECONDS",
                time.as_secs_f32()
            ),
            Self::Slow(time, bytes) => write!(
                f,
                "it is too slow: {bytes} bytes in {} s, which are kept; the next try continues \
                 there, DEBUGINFOD_MAXTIME=SECONDS gives it longer",
                time.as_secs_f32()
            ),
            Self::Broken(bytes, Some(total)) => write!(
                f,
                "the connection ended after {bytes} of {total} bytes, which are kept; the next try \
                 continues there"
            ),
            Self::Broken(bytes, None) => {
                write!(f, "the connection ended after {bytes} bytes: try again")
            }
            Self::TooLarge(limit) => write!(
                f,
                "the file has more than {limit} bytes: DEBUGINFOD_MAXSIZE=BYTES allows more"
            ),
            Self::Contradictory(why) => write!(f, "its answer is invalid: {why}"),
            Self::Refused(why) => write!(f, "its file is rejected: {why}"),
            Self::Disk(error) => write!(
                f,
                "the file cannot be kept ({error}): DEBUGINFOD_CACHE_PATH names another folder"
            ),
            Self::Skipped => f.write_str("skipped: it could not be reached for another file"),
            Self::Busy => f.write_str("another process is downloading it now"),
            Self::Stopped => f.write_str("stopped; the next try continues there"),
        }
    }
}
