//! The control socket as the agent has it: opened where we come to a process, closed where we leave
//! it.
//!
//! It answers no client; [`clients`](super::clients) do. Invariant: the file is there only while
//! clients are answered, but for a process that was killed.

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

    /// Opens it at this path, unless it is open there already.
    pub(crate) fn open(&self, path: &Path) -> io::Result<()> {
        let mut listener = self.listener();
        let known = listener.as_ref();
        if known.is_some_and(|known| known.fd() >= 0 && known.path() == path) {
            return Ok(());
        }
        // Before another one is there, in the place of which its file would go.
        *listener = None;
        *listener = Some(Listener::bind(path)?);
        Ok(())
    }

    /// Opens it where the tool looks for that of a process which the agent came to by its
    /// environment.
    pub(crate) fn open_own(&self) {
        let proc = Path::new("/proc/self");
        if let Some(path) = control::socket_path(proc, std::process::id()) {
            // A process whose socket cannot be found is recorded all the same.
            let _unwritable = self.open(&path);
        }
    }

    /// Closes it: clients are not answered any more.
    pub(crate) fn close(&self) {
        *self.listener() = None;
    }

    /// For `poll`; -1, which it passes over, where it is closed.
    pub(crate) fn fd(&self) -> RawFd {
        self.listener().as_ref().map_or(-1, Listener::fd)
    }

    /// Accepts a client that has connected, without waiting.
    pub(crate) fn accept(&self) -> Option<(UnixStream, Peer)> {
        self.listener().as_ref().and_then(Listener::accept)
    }
}
