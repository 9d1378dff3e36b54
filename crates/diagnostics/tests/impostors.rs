//! Tests of sockets with the right name whose listener is not a runtime.
//!
//! This process is the target. Its socket is in `/tmp`, where another user may have made it, or its
//! listener sends what no runtime sends.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use diagnostics::{Diagnostics, Error, Target};

/// Serialises the tests: all use the socket name of this process.
static NAME: Mutex<()> = Mutex::new(());

fn path(pid: u32) -> PathBuf {
    let folder = Target::new(pid).unwrap().temporary_folder();
    folder.join(format!("dotnet-diagnostic-{pid}-1-socket"))
}

/// Accepts a command and sends this reply.
fn listen(answer: impl FnOnce(UnixStream) + Send + 'static) -> (PathBuf, JoinHandle<()>) {
    let path = path(std::process::id());
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut command = [0; 20];
        stream.read_exact(&mut command).unwrap();
        answer(stream);
    });
    (path, thread)
}

/// Returns the error of a query to this process.
fn failure(wait: Duration) -> Error {
    let target = Target::new(std::process::id()).unwrap();
    Diagnostics::new(&target, wait).process_info().unwrap_err()
}

fn failure_of(answer: &'static [u8]) -> Error {
    let _name = NAME.lock().unwrap_or_else(|e| e.into_inner());
    let (path, thread) = listen(move |mut stream| stream.write_all(answer).unwrap());
    let error = failure(Duration::from_secs(20));
    thread.join().unwrap();
    std::fs::remove_file(path).unwrap();
    error
}

#[test]
fn garbage_is_no_answer() {
    for answer in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"DOTNET_IPC_V1\0\x13\x00\xff\x00\0\0",
        b"DOTNET_IPC_V1\0\x14\x00\xff\x00\0\0",
        b"DOTNET_IPC_V1\0\x14\x00\x04\x00\0\0",
        b"DOTNET_IPC_V1\0\x16\x00\xff\xff\0\0ab",
    ] {
        let error = failure_of(answer);
        assert!(matches!(error, Error::Malformed(_)), "{error}");
    }
}

#[test]
fn an_answer_that_breaks_off_is_an_end() {
    for answer in [
        &b""[..],
        b"DOTNET",
        b"DOTNET_IPC_V1\0\x50\x00\xff\x00\0\0abc",
    ] {
        let error = failure_of(answer);
        assert!(matches!(error, Error::Ended { .. }), "{error}");
    }
}

/// Each read ends in time, but the whole reply does not.
#[test]
fn an_answer_that_trickles_is_not_waited_for() {
    let _name = NAME.lock().unwrap_or_else(|e| e.into_inner());
    let (path, thread) = listen(|mut stream| {
        stream
            .write_all(b"DOTNET_IPC_V1\0\xff\xff\xff\x00\0\0")
            .unwrap();
        // Until the reader has closed the stream.
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let before = Instant::now();
    let wait = Duration::from_millis(100);
    let error = failure(wait);
    assert!(matches!(error, Error::NoAnswer { .. }), "{error}");
    assert!(before.elapsed() >= wait);
    thread.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

/// The queue is full: a plain connect would block for ever.
#[test]
fn a_listener_that_accepts_nobody_is_not_waited_for() {
    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
    };
    use std::os::fd::AsRawFd as _;

    let _name = NAME.lock().unwrap_or_else(|e| e.into_inner());
    let path = path(std::process::id());
    let _ = std::fs::remove_file(&path);
    let listener = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let first = UnixStream::connect(&path).unwrap();
    let error = failure(Duration::from_millis(100));
    assert!(
        matches!(
            error,
            Error::NoAnswer {
                command: "a connection",
                ..
            }
        ),
        "{error}"
    );
    drop(first);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_socket_that_nobody_listens_on_is_told() {
    let _name = NAME.lock().unwrap_or_else(|e| e.into_inner());
    let path = path(std::process::id());
    let _ = std::fs::remove_file(&path);
    drop(UnixListener::bind(&path).unwrap());
    let error = failure(Duration::from_secs(20));
    assert!(matches!(error, Error::Stale { .. }), "{error}");
    std::fs::remove_file(path).unwrap();
}

/// Killed programs leave sockets behind, and process ids are reused.
#[test]
fn a_socket_of_another_process_that_had_the_number_is_none() {
    let _name = NAME.lock().unwrap_or_else(|e| e.into_inner());
    let path = path(std::process::id());
    let _ = std::fs::remove_file(&path);
    drop(UnixListener::bind(&path).unwrap());
    let times = [nix::sys::time::TimeSpec::new(1_000_000_000, 0); 2];
    nix::sys::stat::utimensat(
        nix::fcntl::AT_FDCWD,
        path.as_path(),
        &times[0],
        &times[1],
        nix::sys::stat::UtimensatFlags::NoFollowSymlink,
    )
    .unwrap();
    let error = failure(Duration::from_secs(20));
    assert!(matches!(error, Error::NoSocket { .. }), "{error}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn nothing_is_sent_to_another_process() {
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let path = path(child.id());
    let listener = UnixListener::bind(&path).unwrap();
    let target = Target::new(child.id()).unwrap();
    let error = Diagnostics::new(&target, Duration::from_secs(20))
        .process_info()
        .unwrap_err();
    let us = std::process::id().cast_signed();
    assert!(
        matches!(error, Error::Impostor { listener, .. } if listener == us),
        "{error}"
    );
    let (mut stream, _) = listener.accept().unwrap();
    let mut sent = Vec::new();
    stream.read_to_end(&mut sent).unwrap();
    assert_eq!(sent, b"");
    std::fs::remove_file(path).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}
