//! The agent's end of the control socket: opened when the agent loads, closed when it detaches.
//!
//! Requests are handled in [`clients`](super::clients). Invariant: the socket file exists only
//! while clients are served. A process that was killed leaves it behind.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use control::{Listener, Peer};

/// The control socket, if it is open.
#[derive(Debug, Default)]
pub(crate) struct ControlSocket(Mutex<Option<Listener>>);

impl ControlSocket {
    fn listener(&self) -> MutexGuard<'_, Option<Listener>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Opens the socket at this path, unless it is open there already.
    pub(crate) fn open(&self, path: &Path) -> io::Result<()> {
        let mut listener = self.listener();
        let known = listener.as_ref();
        if known.is_some_and(|known| known.fd() >= 0 && known.path() == path) {
            return Ok(());
        }
        // Dropped first, because `Drop` unlinks the path.
        *listener = None;
        *listener = Some(Listener::bind(path)?);
        Ok(())
    }

    /// Opens the socket at the path where the tool looks for a process that loaded the agent by its
    /// environment.
    pub(crate) fn open_own(&self) {
        let proc = Path::new("/proc/self");
        if let Some(path) = control::socket_path(proc, std::process::id()) {
            // A process whose socket cannot be opened is recorded all the same.
            let _unwritable = self.open(&path);
        }
    }

    /// Closes the socket. Clients are not served any more.
    pub(crate) fn close(&self) {
        *self.listener() = None;
    }

    /// Returns the descriptor for `poll`, or -1, which `poll` skips, if the socket is closed.
    pub(crate) fn fd(&self) -> RawFd {
        self.listener().as_ref().map_or(-1, Listener::fd)
    }

    /// Accepts a connected client, without blocking.
    pub(crate) fn accept(&self) -> Option<(UnixStream, Peer)> {
        self.listener().as_ref().and_then(Listener::accept)
    }
}
