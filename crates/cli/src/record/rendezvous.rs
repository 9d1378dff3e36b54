//! The private folder and the socket in it, where agents report.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::console::shown;

/// `sockaddr_un` has room for 107 bytes and a zero; the agent keeps to this.
const LONGEST_PATH: usize = 99;

/// A listening socket that only this user can reach. The folder goes when this is dropped.
pub(super) struct Rendezvous {
    pub(super) listener: UnixListener,
    pub(super) path: PathBuf,
    pub(super) folder: TempDir,
}

impl Rendezvous {
    /// Makes folder and socket.
    ///
    /// # Errors
    /// There is no folder to make them in.
    pub(super) fn create() -> Result<Self> {
        let candidates = [
            std::env::var_os("XDG_RUNTIME_DIR"),
            std::env::var_os("TMPDIR"),
            Some("/tmp".into()),
        ];
        let mut last = None;
        for parent in candidates.iter().flatten().filter(|p| !p.is_empty()) {
            match Self::below(parent) {
                Ok(made) => return Ok(made),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) => Err(error.context("cannot make a private folder for the socket")),
            None => bail!("there is no folder for the socket"),
        }
    }

    fn below(parent: &OsStr) -> Result<Self> {
        let parent = Path::new(parent);
        let folder = tempfile::Builder::new()
            .prefix("sidewalk-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(std::path::absolute(parent)?)
            .with_context(|| format!("in {}", shown(parent)))?;
        let path = folder.path().join("agents");
        if path.as_os_str().as_bytes().len() > LONGEST_PATH {
            bail!("the path {} is too long for a socket", shown(&path));
        }
        let listener = UnixListener::bind(&path).with_context(|| format!("at {}", shown(&path)))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            path,
            folder,
        })
    }
}
