//! Rules for another try: which answers allow one, how often, and after which pause.
//!
//! The rules for OTLP are those of its specification (`docs/specification.md` of
//! opentelemetry-proto, "Failures"): 429, 502, 503 and 504, never after a partial success.
//! Other stores answer 500 for what they will never take and 429 for what is too large for them, so
//! those are tried a few times only.

use std::fmt;
use std::time::Duration;

use prost::Message as _;

/// Maximum number of tries.
const MAX_TRIES: u32 = 10;
/// Maximum number of tries after a status that may be final.
const MAX_TRIES_OF_ERRORS: u32 = 3;
/// Maximum pause that a server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// A server's answer.
pub(crate) enum Answer {
    /// It answered.
    Status {
        status: u16,
        retry_after: Option<Duration>,
        /// The beginning of the body.
        text: String,
        body: Vec<u8>,
    },
    /// It did not, for this reason.
    Failed(String),
}

impl Answer {
    pub(crate) fn failed(why: String) -> Answer {
        Answer::Failed(why)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Failed(why) => f.write_str(why),
            Answer::Status { status, text, .. } => {
                let meaning = match status {
                    300..=399 => ", a redirection: give the address that it leads to",
                    401 | 403 => ": it wants another token or header (--push-token-file)",
                    404 | 405 => ": it takes no profiles at this address",
                    413 => ": the profile is too large for it",
                    415 => ": it does not know this format",
                    429 => ": it takes no more for now",
                    _ => "",
                };
                write!(f, "it answers {status}{meaning}")?;
                // An answer in another format is no text.
                match text.chars().all(|c| !c.is_control()) && !text.is_empty() {
                    true => write!(f, " ({text})"),
                    false => Ok(()),
                }
            }
        }
    }
}

/// The consequence of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The body has arrived. The server did not take so many of its profiles.
    Sent { rejected: u64, message: String },
    /// It will never be accepted, or was tried too often.
    Refused,
    /// It may be accepted later.
    Retry,
}

/// Judges the answer to try number `tries`.
pub(crate) fn verdict(answer: &Answer, is_otlp: bool, tries: u32) -> Verdict {
    let most = match answer {
        Answer::Status { status, body, .. } => match status {
            200..=299 => {
                let (rejected, message) = match is_otlp {
                    true => partial_success(body),
                    false => (0, String::new()),
                };
                return Verdict::Sent { rejected, message };
            }
            429 if !is_otlp => MAX_TRIES_OF_ERRORS,
            429 | 502 | 503 | 504 => MAX_TRIES,
            408 | 500 if !is_otlp => MAX_TRIES_OF_ERRORS,
            _ => 0,
        },
        Answer::Failed(_) => MAX_TRIES,
    };
    match tries < most {
        true => Verdict::Retry,
        false => Verdict::Refused,
    }
}

/// The pause that the server asks for.
pub(crate) fn retry_after(answer: &Answer) -> Option<Duration> {
    match answer {
        Answer::Status { retry_after, .. } => *retry_after,
        Answer::Failed(_) => None,
    }
}

/// `ExportProfilesServiceResponse` of opentelemetry-proto.
#[derive(Clone, PartialEq, prost::Message)]
struct Response {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_profiles: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// Reads the number of profiles that were not taken, and the server's message. A body that cannot
/// be read is a full success.
fn partial_success(body: &[u8]) -> (u64, String) {
    let response = Response::decode(body).unwrap_or_default();
    let success = response.partial_success.unwrap_or_default();
    let rejected = u64::try_from(success.rejected_profiles).unwrap_or(0);
    (rejected, success.error_message)
}

/// Lengths of pauses.
#[derive(Clone, Copy, Debug)]
pub struct Pacing {
    /// Before the second try. It doubles with each try.
    pub first: Duration,
    /// The longest.
    pub most: Duration,
}

impl Default for Pacing {
    fn default() -> Pacing {
        Pacing {
            first: Duration::from_secs(1),
            most: Duration::from_secs(60),
        }
    }
}

impl Pacing {
    /// The pause after try number `tries`: half of it to all of it by chance, so that a fleet does
    /// not come back in step, and not less than the server asks for.
    pub(crate) fn pause(self, tries: u32, asked: Option<Duration>) -> Duration {
        let doublings = tries.saturating_sub(1).min(16);
        let longest = self.first.saturating_mul(1 << doublings).min(self.most);
        let pause = longest.mul_f64(0.5 + 0.5 * fastrand::f64());
        pause.max(asked.unwrap_or_default().min(MAX_RETRY_AFTER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &[u8]) -> Answer {
        Answer::Status {
            status,
            retry_after: None,
            text: String::new(),
            body: body.to_vec(),
        }
    }

    #[test]
    fn what_may_be_tried_again() {
        // Tries of OTLP and of other stores.
        for (status, otlp, other) in [
            (301, 1, 1),
            (400, 1, 1),
            (401, 1, 1),
            (404, 1, 1),
            (408, 1, 3),
            (413, 1, 1),
            (422, 1, 1),
            (429, 10, 3),
            (500, 1, 3),
            (501, 1, 1),
            (502, 10, 10),
            (503, 10, 10),
            (504, 10, 10),
        ] {
            for (is_otlp, most) in [(true, otlp), (false, other)] {
                let verdicts =
                    (1..=most).map(|tries| verdict(&answer(status, b""), is_otlp, tries));
                let verdicts: Vec<Verdict> = verdicts.collect();
                let (last, before) = verdicts.split_last().unwrap();
                assert_eq!(*last, Verdict::Refused, "{status} {is_otlp}");
                assert!(before.iter().all(|one| *one == Verdict::Retry), "{status}");
            }
        }
        assert_eq!(
            verdict(&Answer::failed("x".into()), true, 9),
            Verdict::Retry
        );
        assert_eq!(
            verdict(&Answer::failed("x".into()), true, 10),
            Verdict::Refused
        );
    }

    #[test]
    fn partial_successes() {
        let sent = |rejected, message: &str| Verdict::Sent {
            rejected,
            message: message.into(),
        };
        let of = |body: &[u8]| verdict(&answer(200, body), true, 1);
        // An empty `partial_success` is no refusal.
        assert_eq!(of(b"\x0a\x00"), sent(0, ""));
        assert_eq!(of(b""), sent(0, ""));
        assert_eq!(of(b"\x0a\x07\x08\x03\x12\x03bad"), sent(3, "bad"));
        for broken in [
            &b"\x0a\x7f\x08"[..],
            b"\xff",
            b"<html>",
            b"\x0a\x02\x08\x80",
        ] {
            assert_eq!(of(broken), sent(0, ""), "{broken:?}");
        }
    }

    #[test]
    fn pauses_grow_to_a_limit_and_follow_the_server() {
        let pacing = Pacing::default();
        for (tries, most) in [(1, 1), (2, 2), (3, 4), (7, 60), (u32::MAX, 60)] {
            let most = Duration::from_secs(most);
            for _ in 0..100 {
                let pause = pacing.pause(tries, None);
                assert!(pause >= most / 2 && pause <= most, "{pause:?}");
            }
        }
        let asked = |seconds| {
            pacing
                .pause(1, Some(Duration::from_secs(seconds)))
                .as_secs()
        };
        assert_eq!((asked(30), asked(4000)), (30, 300));
    }
}
