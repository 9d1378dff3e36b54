//! The connection to the tool: a Unix socket that sends blocks and receives one-byte commands.
//!
//! The contents of blocks are opaque here. Invariants: the descriptor is closed on exec. A tool
//! that has exited causes an error and never a signal (SIGPIPE). No write blocks longer than
//! `WRITE_TIMEOUT`, so a stopped tool cannot delay the program's end.

use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

/// Time in which the tool must send its go byte.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time until a block is accepted.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to the tool.
#[derive(Debug)]
pub struct Channel {
    stream: ManuallyDrop<UnixStream>,
    /// Device and inode of the socket. A program may close descriptors that it does not know, and
    /// then get the same descriptor for a socket of its own.
    identity: Option<(u64, u64)>,
}

/// The tool's command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Flush, write the end of the recording and close.
    Stop,
    /// The tool has closed the connection.
    Gone,
    /// No command yet.
    None,
}

impl From<UnixStream> for Channel {
    /// Connection to a tool that has sent its go byte.
    fn from(stream: UnixStream) -> Channel {
        Channel {
            identity: identity(stream.as_raw_fd()),
            stream: ManuallyDrop::new(stream),
        }
    }
}

/// Returns the device and inode of a descriptor's file.
fn identity(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: all-zero is a valid stat.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a valid out-pointer; `fstat` accepts any number.
    (unsafe { libc::fstat(fd, &raw mut found) } == 0).then_some((found.st_dev, found.st_ino))
}

impl Drop for Channel {
    fn drop(&mut self) {
        // If the program has reused the descriptor, closing it would close the program's file.
        if self.is_ours() {
            // SAFETY: dropped once, here, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.stream) };
        }
    }
}

impl Channel {
    /// Connects and waits for the tool's go byte. `None`: the tool does not record this process, or
    /// there is no tool.
    pub fn connect(path: &str) -> Option<Channel> {
        let mut stream = UnixStream::connect(path)
            .ok()
            .or_else(|| Self::connect_without_files(path))?;
        stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT)).ok()?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT)).ok()?;
        let mut word = [0u8; 1];
        stream.read_exact(&mut word).ok()?;
        (word == *b"G").then(|| Channel::from(stream))
    }

    /// Connects to the abstract socket of the same name, for a tool that sees other files than this
    /// process. Any process may listen there once the tool has exited, so only a peer of the same
    /// user or root is accepted.
    fn connect_without_files(path: &str) -> Option<UnixStream> {
        let address = SocketAddr::from_abstract_name(path.as_bytes()).ok()?;
        let stream = UnixStream::connect_addr(&address).ok()?;
        // SAFETY: takes nothing and cannot fail.
        let own = unsafe { libc::geteuid() };
        let peer = control::peer_of(&stream).ok()?;
        (peer.uid == own || peer.uid == 0).then_some(stream)
    }

    /// A channel to a client that has connected to the agent. It may become the tool of a session.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn from_client(stream: UnixStream, answer_timeout: Duration) -> io::Result<Channel> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(answer_timeout))?;
        Ok(Channel::from(stream))
    }

    /// Makes the client the session's tool.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn promote_to_tool(&mut self) -> io::Result<()> {
        if !self.is_ours() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.stream.set_write_timeout(Some(WRITE_TIMEOUT))
    }

    /// Returns the process at the other end, if visible.
    pub fn peer(&self) -> u32 {
        let peer = self.is_ours().then(|| control::peer_of(&self.stream));
        peer.and_then(Result::ok).map_or(0, |peer| peer.pid)
    }

    /// Reads available bytes, without blocking. 0: the peer has closed the connection.
    ///
    /// # Errors
    /// `WouldBlock`: nothing is available.
    pub fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !self.is_ours() {
            return Ok(0);
        }
        // SAFETY: `into` is valid for writes of its length, the descriptor is open while `self`
        // lives.
        let got = unsafe {
            libc::recv(
                self.fd(),
                into.as_mut_ptr().cast(),
                into.len(),
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Returns the descriptor for `poll`.
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Sends one complete block.
    ///
    /// # Errors
    /// The tool has exited or does not read. The connection cannot be used any more.
    pub fn send(&mut self, block: &[u8]) -> io::Result<()> {
        if !self.is_ours() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        // std writes to a socket by send with MSG_NOSIGNAL, so no SIGPIPE reaches the program.
        self.stream.write_all(block)
    }

    fn is_ours(&self) -> bool {
        self.identity.is_some() && identity(self.fd()) == self.identity
    }

    /// Returns the tool's command since the last call, without waiting.
    pub fn command(&mut self) -> Command {
        let mut word = [0u8; 16];
        match self.receive(&mut word) {
            Ok(0) => Command::Gone,
            Ok(n) if word.iter().take(n).any(|b| *b == b'S') => Command::Stop,
            Ok(_) => Command::None,
            Err(error) => match error.kind() {
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
    fn a_number_that_the_program_has_taken_is_not_written_to() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut channel = Channel::from(ours);
        channel.send(b"block").unwrap();
        let (program, mut reader) = UnixStream::pair().unwrap();
        // SAFETY: both are open; the program's socket gets the channel's number, as after
        // `closefrom`.
        unsafe { libc::dup2(program.as_raw_fd(), channel.fd()) };
        drop(program);
        assert!(channel.send(b"stray").is_err());
        assert_eq!(channel.command(), Command::Gone);
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"block");
        // The descriptor is now the program's file, which the program closes.
        reader.set_nonblocking(true).unwrap();
        assert!(
            reader
                .read(&mut [0; 8])
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        );
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
