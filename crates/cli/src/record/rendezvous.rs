//! The sockets to which agents connect: one in a private folder and an abstract one.
//!
//! A program may have another view of files than the tool (bwrap, PrivateTmp, chroot). Its agent
//! then uses the abstract socket of the same name, which belongs to the network namespace. Any
//! process in that namespace may connect to it.
//! Invariant: only connections of our own user and of root are answered.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::console::escaped;

/// Maximum path length. `sockaddr_un` has room for 107 bytes and a zero; the agent relies on this.
const LONGEST_PATH: usize = 99;

/// Candidate parent folders. The first that works is used.
const FOLDERS: [&str; 3] = ["/tmp", "/dev/shm", "/var/tmp"];

/// Listening sockets for this user. The folder is removed when this is dropped.
pub(super) struct Rendezvous {
    pub(super) listeners: Vec<UnixListener>,
    pub(super) path: PathBuf,
    pub(super) folder: TempDir,
}

impl Rendezvous {
    /// Makes the folder and the sockets.
    ///
    /// # Errors
    /// No folder is suitable.
    pub(super) fn create() -> Result<Self> {
        let named = ["XDG_RUNTIME_DIR", "TMPDIR"].map(std::env::var_os);
        let named = named
            .into_iter()
            .flatten()
            .filter(|folder| !folder.is_empty());
        let mut tried = Vec::new();
        for parent in named.chain(FOLDERS.map(Into::into)) {
            match Self::below(&parent) {
                Ok(made) => return Ok(made),
                Err(error) => tried.push(format!("{error:#}")),
            }
        }
        tried.dedup();
        bail!(
            "there is no folder for the socket: {}; set TMPDIR to a folder that can be written to, with a short \
             path",
            tried.join("; ")
        )
    }

    fn below(parent: &OsStr) -> Result<Self> {
        let parent = Path::new(parent);
        let folder = tempfile::Builder::new()
            .prefix("sidewalk-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(std::path::absolute(parent)?)
            .with_context(|| format!("in {}", escaped(parent)))?;
        let path = folder.path().join("agents");
        if path.as_os_str().as_bytes().len() > LONGEST_PATH {
            bail!("the path {} is too long for a socket", escaped(&path));
        }
        let listener =
            UnixListener::bind(&path).with_context(|| format!("at {}", escaped(&path)))?;
        let mut listeners = vec![listener];
        // An abstract socket may be unavailable (in a sandbox of ours). The first socket is enough
        // for programs that see our files.
        let nameless = SocketAddr::from_abstract_name(path.as_os_str().as_bytes())
            .and_then(|address| UnixListener::bind_addr(&address));
        listeners.extend(nameless);
        for listener in &listeners {
            listener.set_nonblocking(true)?;
        }
        Ok(Self {
            listeners,
            path,
            folder,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn who_does_not_see_the_folder_finds_the_socket_all_the_same() {
        let made = Rendezvous::create().unwrap();
        let name = made.path.as_os_str().as_bytes();
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let _agent = UnixStream::connect_addr(&address).unwrap();
        let accepted = made
            .listeners
            .iter()
            .filter(|listener| listener.accept().is_ok());
        assert_eq!(accepted.count(), 1);
    }
}
