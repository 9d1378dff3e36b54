//! HTTP load generator for the web server of `workloads/`. It checks every response.
//!
//! Each connection is kept open and has one request under way. The result is the number of requests
//! and their durations. Invariant: an unexpected response ends the load with an error. No request
//! is repeated.

use std::io::{BufRead as _, BufReader, Error, Read as _, Result, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Paths that serve requests without throwing exceptions.
pub const SERVING: &[&str] = &["plain", "json", "cart", "regex"];

/// The results of a load.
#[derive(Clone, Copy)]
pub struct Loaded {
    /// Requests with the expected response.
    pub requests: u64,
    /// Wall time.
    pub seconds: f64,
    /// Median response time, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the response time, in microseconds.
    pub p99_us: f64,
}

/// Returns an address of this machine that no other process has: the process id is in it.
#[must_use]
pub fn own_address(port: u16) -> SocketAddr {
    let [.., b, c, d] = std::process::id().to_be_bytes();
    (Ipv4Addr::new(127, b | 0x80, c, d), port).into()
}

/// One connection to the server.
pub struct Client {
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Client {
    /// Connects to a loopback port.
    ///
    /// # Errors
    /// No server listens there.
    pub fn connect(port: u16) -> Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        // A hanging server gives an error instead of a hanging bench.
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Client {
            stream: BufReader::new(stream),
            body: Vec::new(),
        })
    }

    /// Returns the text of the response to `path`.
    ///
    /// # Errors
    /// The server closed the connection, refused it, or sent no HTTP response with a length.
    pub fn get(&mut self, path: &str) -> Result<&str> {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut length = None;
        let mut line = String::new();
        let mut first = true;
        loop {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(Error::other(format!("/{path}: the server hung up")));
            }
            let text = line.trim_end();
            if std::mem::take(&mut first) {
                if !text.starts_with("HTTP/1.1 200") {
                    return Err(Error::other(format!("/{path}: {text}")));
                }
            } else if text.is_empty() {
                break;
            } else if let Some((name, value)) = text.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse::<usize>().ok();
            }
        }
        let length =
            length.ok_or_else(|| Error::other(format!("/{path}: an answer of no length")))?;
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body)?;
        std::str::from_utf8(&self.body).map_err(Error::other)
    }
}

/// Returns the expected response to a path with `?n=`, computed independently of the server.
fn expected(path: &str, n: u64) -> String {
    let words = || {
        (n..n + 20)
            .map(|number| number.to_string().len())
            .sum::<usize>()
    };
    let price = |line: u64| (line as f64 + 0.25) * (n % 7 + line) as f64;
    match path {
        "plain" => format!("plain {n}"),
        "json" => format!("json {n} {:.2}", (0..10).map(price).sum::<f64>()),
        "cart" => format!("cart {}", n * 31 + 7 + 3 * (4 * n + 6)),
        "regex" => format!("regex {}", words()),
        "burn" => format!("burn {n}"),
        _ => format!("nullref caught {n}"),
    }
}

/// Requests `paths` in turn on `connections` connections at once, for `duration`.
///
/// # Errors
/// A request failed, or its response was unexpected.
pub fn load(port: u16, paths: &[&str], connections: usize, duration: Duration) -> Result<Loaded> {
    let over = AtomicBool::new(false);
    let start = Instant::now();
    let all: Result<Vec<Vec<u32>>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..connections)
            .map(|number| {
                let over = &over;
                scope.spawn(move || {
                    let times = request_loop(port, paths, number, over);
                    if times.is_err() {
                        over.store(true, Ordering::Relaxed);
                    }
                    times
                })
            })
            .collect();
        while start.elapsed() < duration && !over.load(Ordering::Relaxed) {
            std::thread::park_timeout(
                duration
                    .saturating_sub(start.elapsed())
                    .min(Duration::from_millis(50)),
            );
        }
        over.store(true, Ordering::Relaxed);
        clients
            .into_iter()
            .map(|client| {
                client
                    .join()
                    .unwrap_or_else(|_| Err(Error::other("a client panicked")))
            })
            .collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    let mut took: Vec<u32> = all?.into_iter().flatten().collect();
    took.sort_unstable();
    let at = |share: usize| {
        took.get(took.len() * share / 100)
            .copied()
            .map_or(f64::NAN, f64::from)
    };
    if took.is_empty() {
        return Err(Error::other("the server answered nothing"));
    }
    Ok(Loaded {
        requests: took.len() as u64,
        seconds,
        p50_us: at(50),
        p99_us: at(99),
    })
}

/// The load of one connection. Returns the duration of each request in microseconds.
fn request_loop(port: u16, paths: &[&str], number: usize, over: &AtomicBool) -> Result<Vec<u32>> {
    let mut client = Client::connect(port)?;
    let mut took = Vec::new();
    let mut n = number as u64 * 1000;
    while !over.load(Ordering::Relaxed) {
        let path = paths[n as usize % paths.len()];
        let start = Instant::now();
        let answer = client.get(&format!("{path}?n={n}"))?;
        took.push(u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX));
        let wanted = expected(path, n);
        if answer != wanted {
            let text = format!("/{path}?n={n} answered {answer:?}, not {wanted:?}");
            return Err(Error::other(text));
        }
        n += 1;
    }
    Ok(took)
}
