//! The Unix socket of the control protocol: the agent binds it, the tool connects to it.
//!
//! Invariants:
//! - Only the owner has access from the first moment (mode 0600, set before the socket is bound).
//! - A peer of another user gets no reply.
//! - If the program has closed the descriptor and reused its number, the agent neither accepts from
//!   it nor closes it.
//! - Paths of any length work, through the folder's descriptor.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The process at the other end, as this process sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Process id; 0 if it is in a namespace that this process cannot see.
    pub pid: u32,
    /// User id.
    pub uid: u32,
}

/// Returns the peer of a stream: the process that connected, or that first listened on the socket.
///
/// # Errors
/// The system's error.
pub fn peer_of(stream: &UnixStream) -> io::Result<Peer> {
    let mut found = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: the descriptor is open while `stream` lives; both out-pointers are valid and have the
    // stated lengths.
    let answer = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer {
        pid: u32::try_from(found.pid).unwrap_or(0),
        uid: found.uid,
    })
}

/// Returns a socket address, and the folder that must stay open while the address is used.
fn address(path: &Path) -> io::Result<(libc::sockaddr_un, Option<File>)> {
    // SAFETY: all-zero is a valid address: an empty name.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let room = address.sun_path.len() - 1;
    let mut short = path.as_os_str().as_bytes().to_vec();
    let mut folder = None;
    if short.len() > room {
        let (parent, name) = path
            .parent()
            .zip(path.file_name())
            .ok_or(io::ErrorKind::InvalidInput)?;
        let open = File::options()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
            .open(parent)?;
        short = format!("/proc/self/fd/{}/", open.as_raw_fd()).into_bytes();
        short.extend_from_slice(name.as_bytes());
        folder = Some(open);
    }
    if short.len() > room || short.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(short) {
        *to = from.cast_signed();
    }
    Ok((address, folder))
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: creates a descriptor.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created, without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

const ADDRESS: libc::socklen_t = size_of::<libc::sockaddr_un>() as libc::socklen_t;

/// Connects to an agent.
///
/// # Errors
/// `ConnectionRefused` or `NotFound` if no agent listens there.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let (address, _folder) = address(path)?;
    let socket = socket()?;
    // SAFETY: the address is valid and has the stated length.
    let answer = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), ADDRESS) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(UnixStream::from(socket))
}

/// The agent's end of the socket.
#[derive(Debug)]
pub struct Listener {
    socket: ManuallyDrop<UnixListener>,
    identity: Option<(u64, u64)>,
    path: PathBuf,
    /// Process id of the owner. A forked child has a copy of this value, and must not remove the
    /// socket.
    owner: u32,
}

/// Identity of a descriptor's file: device and inode.
fn identity(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: all-zero is a valid stat.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a valid out-pointer; `fstat` accepts any descriptor number.
    (unsafe { libc::fstat(fd, &raw mut found) } == 0).then_some((found.st_dev, found.st_ino))
}

impl Listener {
    /// Binds the path. Removes a socket that an earlier process left there.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens there; other errors of the system.
    pub fn bind(path: &Path) -> io::Result<Listener> {
        let (address, _folder) = address(path)?;
        let bind = || -> io::Result<OwnedFd> {
            let socket = socket()?;
            // The kernel creates the file with the mode of the socket (unix_bind).
            // SAFETY: an open descriptor; a valid address of the stated length.
            let bound = unsafe {
                libc::fchmod(socket.as_raw_fd(), 0o600);
                libc::bind(socket.as_raw_fd(), (&raw const address).cast(), ADDRESS)
            };
            if bound != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(socket)
        };
        let socket = match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let found = std::fs::symlink_metadata(path)?;
                let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
                if !found.file_type().is_socket() || !connect(path).is_err_and(refused) {
                    return Err(error);
                }
                std::fs::remove_file(path)?;
                bind()?
            }
            other => other?,
        };
        // SAFETY: an open socket.
        if unsafe { libc::listen(socket.as_raw_fd(), 8) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = UnixListener::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Listener {
            identity: identity(socket.as_raw_fd()),
            socket: ManuallyDrop::new(socket),
            path: path.to_owned(),
            owner: std::process::id(),
        })
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor, for `poll`; -1 if the program has closed it.
    pub fn fd(&self) -> RawFd {
        if self.is_ours() {
            self.socket.as_raw_fd()
        } else {
            -1
        }
    }

    fn is_ours(&self) -> bool {
        self.identity.is_some() && identity(self.socket.as_raw_fd()) == self.identity
    }

    /// Accepts a connected client of the own user or root, without waiting. Disconnects others.
    pub fn accept(&self) -> Option<(UnixStream, Peer)> {
        while self.is_ours() {
            let (stream, _) = self.socket.accept().ok()?;
            // SAFETY: takes no arguments and cannot fail.
            let own = unsafe { libc::geteuid() };
            let peer = peer_of(&stream).ok();
            if let Some(peer) = peer.filter(|peer| peer.uid == own || peer.uid == 0) {
                stream.set_nonblocking(true).ok()?;
                return Some((stream, peer));
            }
        }
        None
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if std::process::id() == self.owner {
            let _gone_already = std::fs::remove_file(&self.path);
        }
        // If the program has reused the number, closing it would close the program's file.
        if self.is_ours() {
            // SAFETY: dropped once, here, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.socket) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, receive, send};
    use std::os::unix::fs::PermissionsExt;

    fn wait_for(listener: &Listener) -> (UnixStream, Peer) {
        loop {
            if let Some(found) = listener.accept() {
                return found;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn two_talk_and_the_file_is_gone_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        // Longer than a socket address can hold.
        let deep = folder.path().join("d".repeat(60)).join("e".repeat(60));
        std::fs::create_dir_all(&deep).unwrap();
        for path in [folder.path().join("s"), deep.join("s")] {
            let listener = Listener::bind(&path).unwrap();
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert!(listener.accept().is_none());
            let tool = connect(&path).unwrap();
            let (agent, peer) = wait_for(&listener);
            assert_eq!(peer.pid, std::process::id());
            assert_eq!(peer_of(&tool).unwrap().pid, std::process::id());
            agent.set_nonblocking(false).unwrap();
            send(&tool, &Message::new("state")).unwrap();
            assert_eq!(receive(&agent).unwrap().verb, "state");
            let second = Listener::bind(&path);
            assert_eq!(second.unwrap_err().kind(), io::ErrorKind::AddrInUse);
            drop(listener);
            assert!(!path.exists());
            assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn what_a_killed_process_has_left_is_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        // A listener of std does not remove its file.
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!(
            connect(&path).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        let listener = Listener::bind(&path).unwrap();
        connect(&path).unwrap();
        wait_for(&listener);
        // A file that is not a socket is not removed.
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(Listener::bind(&file).is_err());
        assert!(file.exists());
    }

    #[test]
    fn a_number_that_the_program_has_taken_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&folder.path().join("s")).unwrap();
        let number = listener.fd();
        let file = File::open("/dev/null").unwrap();
        // SAFETY: both are open; the program's file takes over the socket's number, as after
        // `closefrom`.
        unsafe { libc::dup2(file.as_raw_fd(), number) };
        assert_eq!(listener.fd(), -1);
        assert!(listener.accept().is_none());
        drop(listener);
        assert!(identity(number).is_some(), "closed what is not ours");
        // SAFETY: a descriptor of this test.
        unsafe { libc::close(number) };
    }
}
