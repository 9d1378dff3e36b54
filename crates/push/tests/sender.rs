//! A sender and a real server on a socket that answers as the test says.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use http_client::Address;
use push::{Credentials, Delivery, Endpoint, Pacing, Sender};

/// Bodies and headers in the order in which they came.
type Received = Arc<Mutex<Vec<(Vec<u8>, String)>>>;

/// An answer of the server.
#[derive(Clone)]
enum Reply {
    /// A status line with more headers, and a body.
    Status(&'static str, &'static [u8]),
    /// The connection closes without an answer.
    Close,
}

const OK: Reply = Reply::Status("200 OK", b"\x0a\x00");

/// Starts a server that gives these answers, then 200 for ever. It answers nothing while `gate` is
/// locked.
fn server(replies: &[Reply], gate: &Arc<Mutex<()>>) -> (Address, Received) {
    let gate = Arc::clone(gate);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/in?name=x", listener.local_addr().unwrap());
    let received = Received::default();
    let shared = Arc::clone(&received);
    let mut replies: VecDeque<Reply> = replies.iter().cloned().collect();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).unwrap() == 0 {
                    break;
                }
            }
            let lower = head.to_lowercase();
            let length = lower.split("content-length: ").nth(1);
            let length = length.and_then(|rest| rest.lines().next()?.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut body).unwrap();
            shared.lock().unwrap().push((body, lower));
            drop(gate.lock().unwrap());
            match replies.pop_front().unwrap_or(OK) {
                Reply::Close => {}
                Reply::Status(status, body) => {
                    let length = body.len();
                    let head = format!(
                        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                    );
                    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
                }
            }
        }
    });
    (Address::parse(&address).unwrap(), received)
}

fn sender(address: Address, is_otlp: bool, credentials: Credentials) -> Sender {
    let endpoint = Endpoint {
        address,
        content_type: "application/x-protobuf",
        is_gzip: !credentials.headers.is_empty(),
        is_otlp,
        spool: None,
    };
    let pacing = Pacing {
        first: Duration::from_micros(100),
        most: Duration::from_millis(1),
    };
    Sender::start(endpoint, credentials, pacing, &|_| None).unwrap()
}

/// Sends these bodies. Returns the numbers, and the bodies that the server received.
fn deliver(replies: &[Reply], is_otlp: bool, bodies: &[&str]) -> (Delivery, Vec<String>) {
    let gate = Arc::default();
    let (address, received) = server(replies, &gate);
    let sender = sender(address, is_otlp, Credentials::default());
    // All wait before the first is answered.
    let closed = gate.lock().unwrap();
    for body in bodies {
        sender.send(body.as_bytes());
    }
    drop(closed);
    let delivery = sender.finish(Duration::from_secs(60));
    let received = received.lock().unwrap();
    let received = received
        .iter()
        .map(|(body, _)| String::from_utf8(body.clone()).unwrap());
    (delivery, received.collect())
}

#[test]
fn bodies_arrive_in_order_and_whole() {
    let (delivery, received) = deliver(&[], true, &["one", "two", "three"]);
    assert_eq!(received, ["one", "two", "three"]);
    assert_eq!(
        (delivery.sent, delivery.sent_bytes, delivery.lost()),
        (3, 11, 0)
    );
    assert_eq!(delivery.last_failure, None);
}

#[test]
fn a_busy_server_gets_it_again_and_a_refusal_is_final() {
    let busy = Reply::Status("503 Busy\r\nretry-after: 0", b"");
    let bad = Reply::Status("400 Bad", b"no such field");
    let (delivery, received) = deliver(&[busy.clone(), bad, busy], true, &["one", "two"]);
    // One waits, two is refused, one waits again and arrives.
    assert_eq!(received, ["one", "two", "one", "one"]);
    assert_eq!(
        (delivery.sent, delivery.refused, delivery.retries),
        (1, 1, 2)
    );
}

#[test]
fn a_body_that_is_never_accepted_does_not_hold_up_the_others() {
    let broken = Reply::Status("500 Broken", b"cannot parse");
    let replies = [broken.clone(), OK, OK, broken.clone(), broken];
    let (delivery, received) = deliver(&replies, false, &["bad", "a", "b"]);
    assert_eq!(received, ["bad", "a", "b", "bad", "bad"]);
    assert_eq!((delivery.sent, delivery.refused), (2, 1));
    let why = delivery.last_failure.unwrap();
    assert_eq!(why, "it answers 500 (cannot parse)");
}

#[test]
fn a_partial_success_is_not_sent_again() {
    let partial = Reply::Status("200 OK", b"\x0a\x07\x08\x02\x12\x03bad");
    let (delivery, received) = deliver(&[partial], true, &["one"]);
    assert_eq!(received, ["one"]);
    assert_eq!((delivery.sent, delivery.rejected_profiles), (1, 2));
    assert_eq!(delivery.last_failure.as_deref(), Some("bad"));
}

#[test]
fn a_lost_connection_is_tried_again() {
    let (delivery, received) = deliver(&[Reply::Close, Reply::Close], true, &["one"]);
    assert_eq!(received, ["one"; 3]);
    assert_eq!((delivery.sent, delivery.retries), (1, 2));
}

#[test]
fn too_many_bodies_push_out_the_oldest() {
    // There is no listener on a port that was just free.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let address = Address::parse(&format!("http://{free}/")).unwrap();
    let endpoint = Endpoint {
        address,
        content_type: "text/plain",
        is_gzip: false,
        is_otlp: true,
        spool: None,
    };
    let long = Duration::from_secs(3600);
    let pacing = Pacing {
        first: long,
        most: long,
    };
    let sender = Sender::start(endpoint, Credentials::default(), pacing, &|_| None).unwrap();
    for _ in 0..100 {
        sender.send(&[0; 1000]);
    }
    let delivery = sender.finish(Duration::ZERO);
    assert_eq!((delivery.sent, delivery.lost()), (0, 100));
}

#[test]
fn secrets_are_sent_and_are_in_no_message() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "t0ken\n").unwrap();
    let credentials = Credentials {
        token_file: Some(file.clone()),
        headers: vec![("X-Scope-OrgID".into(), "ten4nt".into())],
    };
    let (address, received) = server(&[Reply::Status("401 No", b"who are you")], &Arc::default());
    let shared = sender(address, true, credentials);
    shared.send(b"one");
    let delivery = shared.finish(Duration::from_secs(60));
    let why = delivery.last_failure.unwrap();
    assert!(!why.contains("t0ken") && !why.contains("ten4nt"), "{why}");
    let (body, head) = received.lock().unwrap()[0].clone();
    let mut unpacked = String::new();
    flate2::read::GzDecoder::new(&body[..])
        .read_to_string(&mut unpacked)
        .unwrap();
    assert_eq!(unpacked, "one");
    for header in [
        "authorization: bearer t0ken",
        "x-scope-orgid: ten4nt",
        "content-encoding: gzip",
        "post /in?name=x http/1.1",
    ] {
        assert!(head.contains(header), "{head}");
    }
}

#[test]
fn a_spool_survives_the_sender() {
    let spool = tempfile::tempdir().unwrap();
    // Nothing listens there at first.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = listener.local_addr().unwrap();
    drop(listener);
    let endpoint = Endpoint {
        address: Address::parse(&format!("http://{free}/")).unwrap(),
        content_type: "text/plain",
        is_gzip: false,
        is_otlp: true,
        spool: Some(spool.path().to_owned()),
    };
    let long = Duration::from_secs(3600);
    let pacing = Pacing {
        first: long,
        most: long,
    };
    let start = || Sender::start(endpoint.clone(), Credentials::default(), pacing, &|_| None);
    let first = start().unwrap();
    for body in [b"one", b"two"] {
        first.send(body);
    }
    let delivery = first.finish(Duration::ZERO);
    assert_eq!((delivery.sent, delivery.lost(), delivery.kept), (0, 0, 2));
    // A later tool sends them first.
    let (received, bodies) = mpsc::channel();
    let listener = TcpListener::bind(free).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = vec![0; 4096];
            let mut length = 0;
            while !request[..length]
                .windows(3)
                .any(|it| [b"one", b"two", b"six"].contains(&it.try_into().unwrap()))
            {
                length += stream.read(&mut request[length..]).unwrap();
            }
            received.send(request[length - 3..length].to_vec()).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
            stream.write_all(answer).unwrap();
        }
    });
    let second = start().unwrap();
    second.send(b"six");
    let delivery = second.finish(Duration::from_secs(60));
    assert_eq!((delivery.sent, delivery.kept, delivery.lost()), (3, 0, 0));
    let bodies: Vec<Vec<u8>> = bodies.try_iter().collect();
    let mut sorted = bodies.clone();
    sorted.sort();
    assert_eq!(sorted, [b"one", b"six", b"two"]);
}
