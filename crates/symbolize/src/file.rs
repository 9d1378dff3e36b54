//! Reading a part of a file without mapping it.
//!
//! A mapped file that somebody truncates kills the reader with SIGBUS; a read only fails. Paths
//! come from recordings and from PE files, that is, from strangers: only regular files are opened,
//! because opening a FIFO or a device can block or act.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use object::read::{ReadCache, ReadCacheRange};

/// A regular file, read in pieces that are kept until it is dropped.
pub(crate) struct PartialFile {
    cache: ReadCache<File>,
    start: u64,
    length: u64,
}

impl PartialFile {
    /// Opens `path` from byte `start` on.
    ///
    /// # Errors
    /// The file cannot be opened, is not a regular file, or ends before `start`.
    pub(crate) fn open(path: &Path, start: u64) -> io::Result<Self> {
        let file = open_regular(path)?;
        let whole = file.metadata()?.len();
        let length = whole
            .checked_sub(start)
            .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "file is too short"))?;
        Ok(Self {
            cache: ReadCache::new(file),
            start,
            length,
        })
    }

    /// What the parsers of `object` read from.
    pub(crate) fn range(&self) -> ReadCacheRange<'_, File> {
        self.cache.range(self.start, self.length)
    }
}

/// Reads a whole regular file of at most `limit` bytes.
///
/// # Errors
/// The file cannot be read, is not a regular file, or is larger than `limit`.
pub(crate) fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    if file.metadata()?.len() > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "file is too large",
        ));
    }
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn open_regular(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    File::open(path)
}
