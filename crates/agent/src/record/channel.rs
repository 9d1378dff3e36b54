//! The line to the tool: a unix socket over which blocks go out and single bytes come in.
//!
//! It knows nothing of what the blocks say. Invariants: the descriptor is closed on exec, a tool
//! that is gone is an error and never a signal (SIGPIPE), and no write waits longer than
//! [`WRITE_TIMEOUT`], so that a stopped tool cannot hold the program's end.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long the tool has to say go.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a block may take to be accepted.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to the tool.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
}

/// What the tool sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Flush, say goodbye and close.
    Stop,
    /// The tool is gone.
    Gone,
    /// Nothing yet.
    None,
}

impl From<UnixStream> for Channel {
    /// To a tool that has said go.
    fn from(stream: UnixStream) -> Channel {
        Channel { stream }
    }
}

impl Channel {
    /// Connects and waits for the tool's word. `None`: this process is not to be recorded, or
    /// there is no tool.
    pub fn connect(path: &str) -> Option<Channel> {
        let mut stream = UnixStream::connect(path).ok()?;
        stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT)).ok()?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT)).ok()?;
        let mut word = [0u8; 1];
        stream.read_exact(&mut word).ok()?;
        (word == *b"G").then(|| Channel::from(stream))
    }

    /// For `poll`.
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Sends one block whole.
    ///
    /// # Errors
    /// The tool is gone or does not read; the connection is of no use any more.
    pub fn send(&mut self, block: &[u8]) -> io::Result<()> {
        // std's write on a socket is send with MSG_NOSIGNAL, so no SIGPIPE reaches the program.
        self.stream.write_all(block)
    }

    /// What the tool said since the last call, without waiting.
    pub fn command(&mut self) -> Command {
        let mut word = [0u8; 16];
        // SAFETY: `word` is valid for writes of its length, the descriptor is open while `self`
        // lives.
        let got = unsafe {
            libc::recv(
                self.fd(),
                word.as_mut_ptr().cast(),
                word.len(),
                libc::MSG_DONTWAIT,
            )
        };
        match usize::try_from(got) {
            Ok(0) => Command::Gone,
            Ok(n) if word.iter().take(n).any(|b| *b == b'S') => Command::Stop,
            Ok(_) => Command::None,
            Err(_) => match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Command::None,
                _ => Command::Gone,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn listener() -> (UnixListener, String, std::path::PathBuf) {
        let folder = std::env::temp_dir().join(format!(
            "sidewalk-channel-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("s").to_str().unwrap().to_owned();
        let _ = std::fs::remove_file(&path);
        (UnixListener::bind(&path).unwrap(), path, folder)
    }

    #[test]
    fn go_then_stop_then_gone() {
        let (listener, path, folder) = listener();
        let tool = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            peer.write_all(b"G").unwrap();
            peer
        });
        let mut channel = Channel::connect(&path).unwrap();
        let mut peer = tool.join().unwrap();
        assert_eq!(channel.command(), Command::None);
        channel.send(b"block").unwrap();
        let mut got = [0u8; 5];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"block");
        peer.write_all(b"S").unwrap();
        assert_eq!(channel.command(), Command::Stop);
        drop(peer);
        assert_eq!(channel.command(), Command::Gone);
        assert!(channel.send(&[0; 1 << 20]).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn no_is_no() {
        let (listener, path, folder) = listener();
        let tool = std::thread::spawn(move || {
            listener.accept().unwrap().0.write_all(b"N").unwrap();
        });
        assert!(Channel::connect(&path).is_none());
        tool.join().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        assert!(Channel::connect(&path).is_none());
    }
}
