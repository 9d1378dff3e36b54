//! Sends bodies to one server, in a thread of its own.
//!
//! Bodies wait in a bounded queue, in memory or in a spool ([`crate::queue`]).
//! Invariants: [`Sender::send`] never waits. A body that the server refuses is dropped and counted,
//! one that may be accepted later is tried again, a bounded number of times ([`crate::retry`]).
//! Tokens are read from their file for each request, and are in no message.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use http_client::{Address, Settings};
use ureq::Agent;

use crate::queue::{Body, Queue};
use crate::retry::{Answer, Pacing, Verdict, retry_after, verdict};
use crate::stamp::seconds_of_http_date;

/// Maximum time until the server answers.
const SILENCE: Duration = Duration::from_secs(10);
/// Maximum bytes of an answer that are read.
const MAX_ANSWER: u64 = 64 * 1024;
/// Maximum characters of an answer in a message.
const MAX_SHOWN: usize = 200;

/// Where the headers that grant access come from.
#[derive(Clone, Default, Debug)]
pub struct Credentials {
    /// File of a bearer token.
    pub token_file: Option<PathBuf>,
    /// Headers from files or the environment. Their values are secrets.
    pub headers: Vec<(String, String)>,
}

/// A server that takes bodies.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The whole address to post to.
    pub address: Address,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// Whether bodies are compressed here, with `Content-Encoding: gzip`.
    pub is_gzip: bool,
    /// Whether answers are those of OTLP.
    pub is_otlp: bool,
    /// Folder in which bodies that wait survive the tool.
    pub spool: Option<PathBuf>,
}

/// Numbers of bodies.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Accepted, and their bytes.
    pub sent: u64,
    /// See `sent`.
    pub sent_bytes: u64,
    /// Tries after the first ones.
    pub retries: u64,
    /// Refused by the server, or tried too often.
    pub refused: u64,
    /// Dropped because too many waited, or the end came first.
    pub dropped: u64,
    /// Kept in the spool for the next start.
    pub kept: u64,
    /// Profiles in accepted bodies that the server did not take.
    pub rejected_profiles: u64,
    /// The last failure, without secrets.
    pub last_failure: Option<String>,
}

impl Delivery {
    /// Bodies that did not arrive.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.refused + self.dropped
    }
}

/// The thread of a server.
pub struct Sender {
    is_gzip: bool,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    waiting: Queue,
    /// When the thread has to end.
    deadline: Option<Instant>,
    is_closed: bool,
    delivery: Delivery,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next body. `None`: there will be none, or the time is over.
    fn next(&self) -> Option<Body> {
        let mut state = self.state();
        loop {
            if state.deadline.is_some_and(|end| Instant::now() >= end) {
                return None;
            }
            if let Some(body) = state.waiting.pop() {
                return Some(body);
            }
            if state.is_closed {
                return None;
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits before another try. Returns false if the thread has to end first.
    fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state();
        loop {
            if state.deadline.is_some_and(|end| until > end) {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Sender {
    /// Starts the thread. `variable` reads the environment, for proxies.
    ///
    /// # Errors
    /// The proxy of the environment is none, the spool cannot be written, or the system has no more
    /// threads.
    pub fn start(
        endpoint: Endpoint,
        credentials: Credentials,
        pacing: Pacing,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Sender, String> {
        let settings = Settings {
            silence: SILENCE,
            // A redirection would need the headers sent elsewhere.
            redirects: 0,
        };
        let client = http_client::client(&endpoint.address, settings, variable)?;
        let waiting = match &endpoint.spool {
            None => Queue::in_memory(),
            Some(spool) => Queue::in_spool(spool, endpoint.address.as_str())
                .map_err(|error| format!("cannot use the spool {}: {error}", spool.display()))?,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                waiting,
                deadline: None,
                is_closed: false,
                delivery: Delivery::default(),
            }),
            changed: Condvar::new(),
        });
        let is_gzip = endpoint.is_gzip;
        let post = Post {
            client,
            endpoint,
            credentials,
        };
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("push".into())
            .spawn(move || run(&for_thread, &post, pacing))
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Sender {
            is_gzip,
            shared,
            thread: Some(thread),
        })
    }

    /// Sends a body when it is its turn.
    pub fn send(&self, content: &[u8]) {
        let content = match self.is_gzip {
            true => gzip(content),
            false => content.to_vec(),
        };
        let mut state = self.shared.state();
        let dropped = state.waiting.add(content);
        state.delivery.dropped += dropped;
        self.shared.changed.notify_all();
    }

    /// Returns a view of the numbers, for as long as it is kept.
    #[must_use]
    pub fn watch(&self) -> DeliveryWatch {
        DeliveryWatch(Arc::clone(&self.shared))
    }

    /// Lets the thread send what waits, for at most `time` beside a request that is under way, and
    /// then end. Nothing may be sent from here on. The time of the first call holds.
    pub fn close(&self, time: Duration) {
        let mut state = self.shared.state();
        state.is_closed = true;
        state.deadline = state.deadline.or_else(|| Instant::now().checked_add(time));
        self.shared.changed.notify_all();
    }

    /// Closes the sender, and waits for the end of the thread.
    #[must_use]
    pub fn finish(mut self, time: Duration) -> Delivery {
        self.close(time);
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it does, the rest is counted as dropped.
            let _ = thread.join();
        }
        let mut state = self.shared.state();
        let (kept, dropped) = state.waiting.end();
        state.delivery.kept += kept;
        state.delivery.dropped += dropped;
        state.delivery.clone()
    }
}

/// The numbers of a sender, while it sends.
pub struct DeliveryWatch(Arc<Shared>);

impl DeliveryWatch {
    /// Returns the numbers so far.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        self.0.state().delivery.clone()
    }

    /// Returns number and bytes of the bodies that wait.
    #[must_use]
    pub fn waiting(&self) -> (u64, u64) {
        self.0.state().waiting.size()
    }
}

/// A client and what all its requests have.
struct Post {
    client: Agent,
    endpoint: Endpoint,
    credentials: Credentials,
}

fn run(shared: &Shared, post: &Post, pacing: Pacing) {
    while let Some(mut body) = shared.next() {
        let Ok(content) = body.read() else {
            // Its file is gone.
            shared.state().delivery.dropped += 1;
            continue;
        };
        let answer = post.send(&content);
        drop(content);
        body.tries += 1;
        let verdict = verdict(&answer, post.endpoint.is_otlp, body.tries);
        let mut state = shared.state();
        match verdict {
            Verdict::Sent { rejected, message } => {
                state.delivery.sent += 1;
                state.delivery.sent_bytes += body.size();
                state.delivery.rejected_profiles += rejected;
                if rejected > 0 {
                    state.delivery.last_failure = Some(shown(&message));
                }
                body.remove();
            }
            Verdict::Refused => {
                state.delivery.refused += 1;
                state.delivery.last_failure = Some(answer.to_string());
                body.remove();
            }
            Verdict::Retry => {
                state.delivery.last_failure = Some(answer.to_string());
                drop(state);
                let pause = pacing.pause(body.tries, retry_after(&answer));
                let may_go_on = shared.pause(pause);
                let mut state = shared.state();
                state.delivery.retries += u64::from(may_go_on);
                // Behind the others: one bad body does not hold them up.
                state.waiting.push_back(body);
                if !may_go_on {
                    return;
                }
            }
        }
    }
}

impl Post {
    fn send(&self, content: &[u8]) -> Answer {
        let mut request = self
            .client
            .post(self.endpoint.address.as_str())
            .header("Content-Type", self.endpoint.content_type);
        if self.endpoint.is_gzip {
            request = request.header("Content-Encoding", "gzip");
        }
        for (name, value) in &self.credentials.headers {
            request = request.header(name, value);
        }
        if let Some(file) = &self.credentials.token_file {
            match std::fs::read_to_string(file) {
                Ok(token) => {
                    request = request.header("Authorization", format!("Bearer {}", token.trim()));
                }
                Err(error) => {
                    let file = file.display();
                    return Answer::failed(format!("cannot read the token in {file}: {error}"));
                }
            }
        }
        match request.send(content) {
            Ok(mut response) => {
                let header = response.headers().get("retry-after");
                let retry_after = header.and_then(|value| pause_of(value.to_str().ok()?));
                let mut body = Vec::new();
                let reader = response.body_mut().as_reader();
                // The status counts, whatever follows.
                let _ = reader.take(MAX_ANSWER).read_to_end(&mut body);
                Answer::Status {
                    status: response.status().as_u16(),
                    retry_after,
                    text: shown(&String::from_utf8_lossy(&body)),
                    body,
                }
            }
            Err(error) => Answer::failed(error.to_string()),
        }
    }
}

/// Reads `Retry-After`: seconds, or a date.
fn pause_of(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = Duration::from_secs(seconds_of_http_date(text)?);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()?;
    Some(until.saturating_sub(now))
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // A `Vec` takes everything.
    let _ = encoder.write_all(content);
    encoder.finish().unwrap_or_default()
}

/// A text for a message, of bounded length.
fn shown(text: &str) -> String {
    text.trim().chars().take(MAX_SHOWN).collect()
}
