//! Symbol server for tests: real HTTP over a real socket, with every way in which a server can
//! fail.
//!
//! A test says what is at which path.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Answer of a path.
#[derive(Clone, Debug)]
pub enum TestResponse {
    /// This file, whole or in the part that is asked for, with this entity tag.
    File(Vec<u8>, &'static str),
    /// The same, but each connection ends after so many bytes.
    Cut(Vec<u8>, &'static str, usize),
    /// The whole file, whatever is asked for, and nothing that tells its version; the connection
    /// ends after so many bytes.
    Plain(Vec<u8>, usize),
    /// Another part than the one that is asked for.
    WrongPart(Vec<u8>),
    /// A number, and no more.
    Status(u16),
    /// On to another address.
    Redirect(String),
    /// Nothing at all, for as long as the client waits.
    NoReply,
    /// A file that says that it is this long, and never comes.
    DeclaredLength(u64),
    /// A file without an end.
    Endless,
    /// A byte, and a byte, and a byte.
    Drip,
    /// Said to be packed.
    Packed(Vec<u8>),
    /// No HTTP.
    Garbage,
    /// As a proxy: a way to this address, whatever host is asked for.
    Tunnel(String),
}

/// A request that was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceivedRequest {
    /// Path of the address, or `HOST:PORT` of a proxy.
    pub path: String,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
}

#[derive(Default)]
struct ServerState {
    responses: HashMap<String, TestResponse>,
    requests: Vec<ReceivedRequest>,
}

/// A server on a port of its own, until the test ends.
pub struct TestServer {
    port: u16,
    state: Arc<Mutex<ServerState>>,
}

impl Default for TestServer {
    fn default() -> Self {
        Self::new()
    }
}

impl TestServer {
    /// Starts one that has nothing.
    ///
    /// # Panics
    /// There is no port.
    #[must_use]
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let state = Arc::new(Mutex::new(ServerState::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // A client that goes away ends its connection only.
                std::thread::spawn(move || drop(serve(&stream, &state)));
            }
        });
        Self { port, state }
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Lets `answer` be at `path`, in place of what was there. What is nowhere is 404.
    ///
    /// # Panics
    /// A connection's thread has.
    pub fn put(&self, path: &str, answer: TestResponse) {
        let mut state = self.state.lock().expect("no thread has panicked");
        state.responses.insert(path.to_owned(), answer);
    }

    /// Takes the requests received so far.
    ///
    /// # Panics
    /// A connection's thread has.
    #[must_use]
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        std::mem::take(&mut self.state.lock().expect("no thread has panicked").requests)
    }

    /// The paths of it.
    #[must_use]
    pub fn requested_paths(&self) -> Vec<String> {
        self.requests()
            .into_iter()
            .map(|requests| requests.path)
            .collect()
    }
}

fn serve(stream: &TcpStream, state: &Mutex<ServerState>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let range = headers.get("range").and_then(|range| {
        let first = range.strip_prefix("bytes=")?.strip_suffix('-')?;
        first.parse::<usize>().ok()
    });
    let condition = headers.get("if-range").cloned();
    let answer = {
        let mut state = state.lock().map_err(|_| std::io::ErrorKind::Other)?;
        state.requests.push(ReceivedRequest {
            path: path.clone(),
            headers,
        });
        let any = state.responses.get("*").cloned();
        state.responses.get(&path).cloned().or(any)
    };
    match answer {
        None => head(stream, 404, &["Content-Length: 0"]),
        Some(TestResponse::Status(status)) => head(stream, status, &["Content-Length: 0"]),
        Some(TestResponse::File(bytes, tag)) => {
            part(stream, &bytes, tag, range, condition, usize::MAX)
        }
        Some(TestResponse::Cut(bytes, tag, after)) => {
            part(stream, &bytes, tag, range, condition, after)
        }
        Some(TestResponse::Plain(bytes, after)) => {
            head(stream, 200, &[&format!("Content-Length: {}", bytes.len())])?;
            send(stream, &bytes, after)
        }
        Some(TestResponse::WrongPart(bytes)) => match range {
            None => part(stream, &bytes, "\"x\"", None, None, bytes.len() / 2),
            Some(first) => {
                let last = bytes.len() - 1;
                let range = format!("Content-Range: bytes {}-{last}/{}", first + 1, bytes.len());
                head(stream, 206, &[&range])?;
                send(stream, &bytes[first + 1..], usize::MAX)
            }
        },
        Some(TestResponse::Redirect(to)) => head(
            stream,
            302,
            &[&format!("Location: {to}"), "Content-Length: 0"],
        ),
        Some(TestResponse::NoReply) => wait(stream),
        Some(TestResponse::DeclaredLength(length)) => {
            head(stream, 200, &[&format!("Content-Length: {length}")])?;
            wait(stream)
        }
        Some(TestResponse::Endless) => {
            head(stream, 200, &["Transfer-Encoding: chunked"])?;
            let piece = [b"10000\r\n".as_slice(), &vec![0; 0x10000], b"\r\n"].concat();
            loop {
                (&*stream).write_all(&piece)?;
            }
        }
        Some(TestResponse::Drip) => {
            head(stream, 200, &["Content-Length: 1000000000"])?;
            loop {
                (&*stream).write_all(b"x")?;
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
        Some(TestResponse::Packed(bytes)) => {
            let length = format!("Content-Length: {}", bytes.len());
            head(stream, 200, &["Content-Encoding: gzip", &length])?;
            send(stream, &bytes, usize::MAX)
        }
        Some(TestResponse::Garbage) => (&*stream).write_all(b"\x7fELF or what\r\n\r\n"),
        Some(TestResponse::Tunnel(to)) => tunnel(stream, &to),
    }
}

fn head(mut stream: &TcpStream, status: u16, headers: &[&str]) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} x\r\nConnection: close\r\n");
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    stream.write_all(text.as_bytes())
}

fn send(mut stream: &TcpStream, bytes: &[u8], most: usize) -> std::io::Result<()> {
    stream.write_all(&bytes[..bytes.len().min(most)])
}

fn part(
    stream: &TcpStream,
    bytes: &[u8],
    tag: &str,
    range: Option<usize>,
    condition: Option<String>,
    most: usize,
) -> std::io::Result<()> {
    let tag_header = format!("ETag: {tag}");
    let is_same = condition.is_none_or(|condition| condition == tag);
    match range.filter(|_| is_same) {
        Some(first) if first >= bytes.len() => head(stream, 416, &["Content-Length: 0"]),
        Some(first) => {
            let last = bytes.len() - 1;
            let range = format!("Content-Range: bytes {first}-{last}/{}", bytes.len());
            let length = format!("Content-Length: {}", bytes.len() - first);
            head(stream, 206, &[&tag_header, &range, &length])?;
            send(stream, &bytes[first..], most)
        }
        None => {
            let length = format!("Content-Length: {}", bytes.len());
            head(stream, 200, &[&tag_header, &length])?;
            send(stream, bytes, most)
        }
    }
}

/// Until the client goes away.
fn wait(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.read(&mut [0; 1]).map(drop)
}

fn tunnel(stream: &TcpStream, to: &str) -> std::io::Result<()> {
    let there = TcpStream::connect(to)?;
    (&*stream).write_all(b"HTTP/1.1 200 x\r\n\r\n")?;
    let (mut from, mut into) = (stream.try_clone()?, there.try_clone()?);
    std::thread::spawn(move || drop(std::io::copy(&mut from, &mut into)));
    std::io::copy(&mut &there, &mut &*stream)?;
    stream.shutdown(std::net::Shutdown::Both)
}
