//! Connections to the diagnostics socket of a process, with a deadline.
//!
//! The runtime makes the socket as `TMPDIR/dotnet-diagnostic-PID-START-socket`
//! (`ipc_transport_get_default_name`, ds-ipc-pal-socket.c). PID is the process id in the process's
//! own namespace.
//! START is not computed here, because it differs in time namespaces. The folder is searched
//! instead.
//! A killed process leaves its socket file behind, and in `/tmp` any user may make a file of that
//! name.
//! Invariant: a returned stream leads to the requested process. The kernel confirms it:
//! `SO_PEERCRED` is the process that called `listen`.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt, socket,
};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::sys::time::TimeVal;

use crate::protocol::{self, HEADER};
use crate::target::Folder;
use crate::{Error, Target};

/// A socket that is older than its process by more than this belongs to an earlier process.
const AGE_TOLERANCE: Duration = Duration::from_secs(2);

/// A connection to a runtime, with a deadline.
pub(crate) struct Stream {
    stream: UnixStream,
    pid: u32,
    wait: Duration,
    deadline: Instant,
}

/// Connects to the runtime of a process.
///
/// # Errors
/// No socket exists, no process or another process listens on it, or it cannot be reached.
pub(crate) fn connect_to(target: &Target, wait: Duration) -> Result<Stream, Error> {
    let deadline = Instant::now() + wait;
    let inside = target.pid_inside();
    let stream = connect_to_newest(target, wait, |name| is_of(name, inside))?;
    Ok(Stream {
        stream,
        pid: target.pid(),
        wait,
        deadline,
    })
}

/// Connects to the newest socket in the target's folder for temporary files whose name satisfies
/// `is_it` and on which the target itself listens.
///
/// # Errors
/// No socket exists, no process or another process listens on it, or it cannot be reached.
pub fn connect_to_newest(
    target: &Target,
    wait: Duration,
    is_it: impl Fn(&str) -> bool,
) -> Result<UnixStream, Error> {
    let deadline = Instant::now() + wait;
    let mut failure = None;
    for path in folders(target) {
        let Ok(folder) = target.open_folder(&path) else {
            // A missing folder has no socket.
            continue;
        };
        let path = target.path_from_here(&path);
        let names = match names_in(&folder, &is_it) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                failure = failure.or(Some(target.denied("its folder of sockets may not be read")));
                continue;
            }
            Err(_) => continue,
        };
        for (made, name) in names {
            match connect_at(target, &folder, &path.join(&name), &name, wait, deadline) {
                Ok(stream) => return Ok(stream),
                Err(Error::Stale { .. }) if is_older(target, made) => {}
                // The error of the newest socket is the one to report.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
    }
    // The process may have ended during the search.
    Target::new(target.pid())?;
    let [folder, ..] = folders(target);
    let open = target.open_folder(&folder).ok();
    let flags = open.map(|open| fstatvfs(&open).map_or(FsFlags::empty(), |found| found.flags()));
    let why = missing_socket_reason(&folder, flags);
    let (pid, folder) = (target.pid(), target.path_from_here(&folder));
    Err(failure.unwrap_or(Error::NoSocket { pid, folder, why }))
}

/// Why a runtime may have no socket in its folder for temporary files, which is on a file system
/// with these flags; `None` if the folder is not there.
fn missing_socket_reason(folder: &Path, flags: Option<FsFlags>) -> &'static str {
    /// The capacity of `sockaddr_un`, and the longest possible file name.
    const LONGEST_PATH: usize = 107;
    const NAME: &str = "/dotnet-diagnostic-4194304-1234567890-socket";
    if folder.as_os_str().len() + NAME.len() > LONGEST_PATH {
        return "the path of that folder is too long for a socket, so its runtime could not make one; start it with \
                a shorter TMPDIR";
    }
    let Some(flags) = flags else {
        return "that folder is not there, so its runtime could not make one; start it with a TMPDIR that can be \
                written to";
    };
    if flags.contains(FsFlags::ST_RDONLY) {
        return "that folder is read-only, so its runtime could not make one; start it with a TMPDIR that can be \
                written to";
    }
    "it runs no .NET, its diagnostics are switched off (DOTNET_EnableDiagnostics=0), its TMPDIR has changed since \
     it started, or the socket was removed"
}

/// Whether a file is so much older that an earlier process with the same id made it, unless a clock
/// was set.
fn is_older(target: &Target, made: SystemTime) -> bool {
    let uptime = target.uptime();
    let began = uptime.and_then(|uptime| SystemTime::now().checked_sub(uptime + AGE_TOLERANCE));
    began.is_some_and(|began| made < began)
}

/// Candidate folders for a socket, in the target's view. The environment that can be read is the
/// one that the process began with.
fn folders(target: &Target) -> [PathBuf; 2] {
    [target.temporary_folder(), PathBuf::from("/tmp")]
}

/// Names of the matching sockets in a folder, with the times when they were made, newest first.
fn names_in(
    folder: &Folder,
    is_it: impl Fn(&str) -> bool,
) -> io::Result<Vec<(SystemTime, String)>> {
    let mut found: Vec<(SystemTime, String)> = Vec::new();
    for entry in fs::read_dir(folder.path())? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if is_it(&name) {
            let made = entry.metadata().and_then(|m| m.modified());
            found.push((made.unwrap_or(SystemTime::UNIX_EPOCH), name));
        }
    }
    found.sort();
    found.reverse();
    Ok(found)
}

fn is_of(name: &str, pid: u32) -> bool {
    let key = name
        .strip_prefix("dotnet-diagnostic-")
        .and_then(|rest| rest.strip_prefix(&pid.to_string()))
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.strip_suffix("-socket"));
    key.is_some_and(|key| !key.is_empty() && key.bytes().all(|b| b.is_ascii_digit()))
}

/// Connects to a socket by its folder, because a path may be longer than a socket address allows.
fn connect_at(
    target: &Target,
    folder: &Folder,
    path: &Path,
    name: &str,
    wait: Duration,
    deadline: Instant,
) -> Result<UnixStream, Error> {
    let os = |what: &str| {
        let what = format!("cannot {what} {}", path.display());
        move |error: Errno| Error::Os {
            what,
            source: error.into(),
        }
    };
    let address = UnixAddr::new(&folder.path().join(name)).map_err(os("reach"))?;
    let socket = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .map_err(os("make a socket for"))?;
    loop {
        // A connect waits for a place in the listener's queue, for as long as the send timeout.
        set_timeouts(&socket, deadline).map_err(os("limit the time for"))?;
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => break,
            Err(Errno::EINTR) if Instant::now() < deadline => {}
            Err(Errno::EINTR | Errno::EAGAIN) => {
                return Err(Error::NoAnswer {
                    pid: target.pid(),
                    command: "a connection",
                    waited: wait,
                });
            }
            Err(Errno::ECONNREFUSED | Errno::ENOENT) => {
                return Err(Error::Stale {
                    path: path.to_owned(),
                });
            }
            Err(Errno::EACCES | Errno::EPERM) => {
                return Err(target.denied("its diagnostics socket may not be written to"));
            }
            Err(error) => return Err(os("connect to")(error)),
        }
    }
    let listener = getsockopt(&socket, PeerCredentials)
        .map_err(os("ask who listens on"))?
        .pid();
    if u32::try_from(listener) != Ok(target.pid()) {
        return Err(Error::Impostor {
            pid: target.pid(),
            listener,
            path: path.to_owned(),
        });
    }
    Ok(UnixStream::from(socket))
}

/// Limits a connect or send to the deadline.
fn set_timeouts(socket: &OwnedFd, deadline: Instant) -> nix::Result<()> {
    let left = time_until(deadline);
    let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
    let left = TimeVal::new(seconds, i64::from(left.subsec_micros()));
    setsockopt(&socket.as_fd(), SendTimeout, &left)
}

/// Returns the time left until the deadline. Never zero, which would mean no limit.
fn time_until(deadline: Instant) -> Duration {
    deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1))
}

impl Stream {
    /// Sends a command and reads the whole reply.
    ///
    /// # Errors
    /// No reply in time, or no valid one.
    pub(crate) fn exchange(
        mut self,
        message: &[u8],
        command: &'static str,
    ) -> Result<Vec<u8>, Error> {
        self.send(message, command)?;
        let mut header = [0; HEADER];
        self.receive(&mut header, command)?;
        let length = protocol::length_of(&header)?;
        let mut answer = vec![0; length];
        let (head, payload) = answer.split_at_mut(HEADER);
        head.copy_from_slice(&header);
        self.receive(payload, command)?;
        Ok(answer)
    }

    fn send(&mut self, mut message: &[u8], command: &'static str) -> Result<(), Error> {
        while !message.is_empty() {
            let left = Some(self.remaining(command)?);
            let sent = self
                .stream
                .set_write_timeout(left)
                .and_then(|()| self.stream.write(message));
            match sent {
                Ok(0) => return Err(self.end_error(command)),
                Ok(sent) => message = message.get(sent..).unwrap_or_default(),
                Err(error) => self.check_io_error(error, command)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, mut into: &mut [u8], command: &'static str) -> Result<(), Error> {
        while !into.is_empty() {
            let left = Some(self.remaining(command)?);
            let received = self
                .stream
                .set_read_timeout(left)
                .and_then(|()| self.stream.read(into));
            match received {
                Ok(0) => return Err(self.end_error(command)),
                Ok(received) => into = into.get_mut(received..).unwrap_or_default(),
                Err(error) => self.check_io_error(error, command)?,
            }
        }
        Ok(())
    }

    /// The time that is left.
    fn remaining(&self, command: &'static str) -> Result<Duration, Error> {
        if Instant::now() >= self.deadline {
            return Err(Error::NoAnswer {
                pid: self.pid,
                command,
                waited: self.wait,
            });
        }
        Ok(time_until(self.deadline))
    }

    /// Whether to continue after an error. The deadline is checked before each attempt.
    fn check_io_error(&self, error: io::Error, command: &'static str) -> Result<(), Error> {
        match error.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                Ok(())
            }
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                Err(self.end_error(command))
            }
            _ => Err(Error::Os {
                what: format!("cannot talk to process {}", self.pid),
                source: error,
            }),
        }
    }

    fn end_error(&self, command: &'static str) -> Error {
        Error::Ended {
            pid: self.pid,
            command,
            goes_on: Target::new(self.pid).is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_without_a_socket_has_its_reason() {
        let deep = format!("/tmp/{}", "d".repeat(100));
        for (folder, flags, expected) in [
            (&*deep, Some(FsFlags::empty()), "too long for a socket"),
            ("/tmp/none", None, "that folder is not there"),
            ("/tmp", Some(FsFlags::ST_RDONLY), "that folder is read-only"),
            ("/tmp", Some(FsFlags::ST_NOEXEC), "it runs no .NET"),
        ] {
            let why = missing_socket_reason(Path::new(folder), flags);
            assert!(why.contains(expected), "{folder}: {why}");
            let advice = why.contains("TMPDIR");
            assert!(advice, "{folder}: {why}");
        }
    }

    /// The folder is looked at in the target's view.
    #[test]
    fn a_target_without_dotnet_is_told_of_the_folder() {
        for (folder, expected) in [
            ("/none/such", "that folder is not there"),
            ("/tmp", "it runs no .NET"),
        ] {
            let mut child = std::process::Command::new("cat")
                .env("TMPDIR", folder)
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let target = Target::new(child.id()).unwrap();
            let found = connect_to_newest(&target, Duration::from_secs(1), |_| false);
            drop(child.stdin.take());
            child.wait().unwrap();
            let error = found.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn names_of_sockets() {
        for (name, is) in [
            ("dotnet-diagnostic-7-1350861-socket", true),
            ("dotnet-diagnostic-77-1350861-socket", false),
            ("dotnet-diagnostic-7--socket", false),
            ("dotnet-diagnostic-7-1x-socket", false),
            ("dotnet-diagnostic-7-1-socket.old", false),
            ("dotnet-diagnostic-7", false),
        ] {
            assert_eq!(is_of(name, 7), is, "{name}");
        }
    }
}
