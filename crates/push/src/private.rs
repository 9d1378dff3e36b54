//! Folders and unfinished files of this user alone.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// First part of the name of a file that is being written.
const TEMPORARY: &str = ".sidewalk-push-";

/// Makes a folder for its owner alone, with those above it.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    if !path.is_dir() {
        fs::create_dir_all(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Makes a file that is removed unless it gets a name.
pub(crate) fn temporary_in(folder: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(TEMPORARY)
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(folder)
}

/// Whether a file is one that is being written, or was by a tool that was killed.
pub(crate) fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with(TEMPORARY))
}
