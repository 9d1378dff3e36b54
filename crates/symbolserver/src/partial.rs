//! Partly downloaded file: its bytes so far, its address, and the version that they belong to.
//!
//! The file is locked, so one process at a time uses it. Invariant: bytes of two versions are never
//! mixed. A download resumes only if the server confirms the version (`If-Range` with its
//! validator); without a validator it starts again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Longer notes are not ours.
const MAX_NOTE: u64 = 16 << 10;

/// A file that is coming.
pub(crate) struct PartialDownload {
    file: File,
    path: PathBuf,
    length: u64,
    origin: Option<DownloadOrigin>,
}

/// Origin of the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DownloadOrigin {
    /// The address that was asked.
    pub(crate) address: String,
    /// Version: an entity tag or a date. Empty where there is none.
    pub(crate) mark: String,
    /// Length of the whole, where it is known.
    pub(crate) total: Option<u64>,
}

impl PartialDownload {
    /// Opens the one beside `place`, where the file will lie when it is whole.
    pub(crate) fn open(place: &Path) -> Result<Self, Failure> {
        let mut name = std::ffi::OsString::from(".");
        name.push(place.file_name().unwrap_or_default());
        name.push(".partial");
        let path = place.with_file_name(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // Somebody else's link would lead what we write elsewhere, a FIFO would hold us up.
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
            .map_err(Failure::Disk)?;
        file.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => Failure::Busy,
            fs::TryLockError::Error(error) => Failure::Disk(error),
        })?;
        let found = file.metadata().map_err(Failure::Disk)?;
        if !found.is_file() {
            return Err(Failure::Disk(io::Error::other("no regular file")));
        }
        // Another process may have renamed it just now.
        let is_there = fs::symlink_metadata(&path).is_ok_and(|there| there.ino() == found.ino());
        if !is_there {
            return Err(Failure::Busy);
        }
        let origin = read_note(&note_path(&path));
        Ok(Self {
            length: found.len(),
            file,
            path,
            origin,
        })
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that are there.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Origin of the bytes, where they can be continued from this address.
    pub(crate) fn resume_at(&self, address: &str) -> Option<&DownloadOrigin> {
        let origin = self.origin.as_ref()?;
        let fits = origin.address == address && !origin.mark.is_empty() && self.length > 0;
        fits.then_some(origin)
    }

    /// Throws away what is there and begins with another file, or version.
    pub(crate) fn begin(&mut self, origin: DownloadOrigin) -> io::Result<()> {
        self.clear()?;
        let total = origin
            .total
            .map_or(String::new(), |total| total.to_string());
        let note = format!("{}\n{}\n{total}\n", origin.address, origin.mark);
        // A new file, for the same reason as above.
        let path = note_path(&self.path);
        let _ = fs::remove_file(&path);
        let new = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        new?.write_all(note.as_bytes())?;
        self.origin = Some(origin);
        Ok(())
    }

    /// Throws away what is there.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        (self.length, self.origin) = (0, None);
        Ok(())
    }

    /// Adds bytes at the end.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.length))?;
        self.file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Gives it its name: it is whole.
    pub(crate) fn keep_as(self, place: &Path) -> io::Result<()> {
        fs::rename(&self.path, place)?;
        let _ = fs::remove_file(note_path(&self.path));
        Ok(())
    }

    /// Removes it: it is not worth going on with.
    pub(crate) fn remove(self) {
        let _ = fs::remove_file(note_path(&self.path));
        let _ = fs::remove_file(&self.path);
    }
}

fn note_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".from");
    PathBuf::from(name)
}

fn read_note(path: &Path) -> Option<DownloadOrigin> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    let mut text = String::new();
    file.take(MAX_NOTE).read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    Some(DownloadOrigin {
        address: lines.next()?.to_owned(),
        mark: lines.next()?.to_owned(),
        total: lines.next()?.parse().ok(),
    })
}
