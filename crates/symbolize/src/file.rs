//! Reading parts of a file without mapping it.
//!
//! If another process truncates a mapped file, the reader gets SIGBUS; a read merely fails. Paths
//! come from recordings and PE files and are not trusted: only regular files are opened, because
//! opening a FIFO or a device can block or have effects.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::Path;

use object::read::{ReadCache, ReadCacheRange};

/// The path of the vDSO, the code that the kernel maps into every process.
const VDSO: &str = "[vdso]";
/// Maximum size of the vDSO in bytes. It has a few pages.
const LARGEST_VDSO: u64 = 1 << 20;

/// A source of bytes.
pub(crate) enum ByteSource {
    File(File),
    Memory(Cursor<Vec<u8>>),
}

/// A regular file, read in pieces that are cached until it is dropped.
pub(crate) struct PartialFile {
    cache: ReadCache<ByteSource>,
    start: u64,
    length: u64,
}

impl PartialFile {
    /// Opens `path` from byte `start` on. `[vdso]` is the vDSO of the running kernel.
    ///
    /// # Errors
    /// The file cannot be opened, is not a regular file, or ends before `start`.
    pub(crate) fn open(path: &Path, start: u64) -> io::Result<Self> {
        if path == Path::new(VDSO) {
            let bytes = vdso()?;
            return Ok(Self {
                start: 0,
                length: bytes.len() as u64,
                cache: ReadCache::new(ByteSource::Memory(Cursor::new(bytes))),
            });
        }
        let file = open_regular(path)?;
        let whole = file.metadata()?.len();
        let length = whole
            .checked_sub(start)
            .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "file is too short"))?;
        Ok(Self {
            cache: ReadCache::new(ByteSource::File(file)),
            start,
            length,
        })
    }

    /// Returns the source of bytes for the parsers of `object`.
    pub(crate) fn range(&self) -> ReadCacheRange<'_, ByteSource> {
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

impl Read for ByteSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Memory(bytes) => bytes.read(buffer),
        }
    }
}

impl Seek for ByteSource {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::File(file) => file.seek(to),
            Self::Memory(bytes) => bytes.seek(to),
        }
    }
}

/// This process has the same vdso as any other that the kernel runs.
fn vdso() -> io::Result<Vec<u8>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let range = maps
        .lines()
        .find(|line| line.ends_with(VDSO))
        .and_then(|line| line.split(' ').next()?.split_once('-'))
        .and_then(|(start, end)| {
            let parse = |text| u64::from_str_radix(text, 16).ok();
            Some(parse(start)?..parse(end)?)
        })
        .ok_or(io::ErrorKind::NotFound)?;
    let mut memory = File::open("/proc/self/mem")?;
    memory.seek(SeekFrom::Start(range.start))?;
    let length = range.end.saturating_sub(range.start).min(LARGEST_VDSO);
    let mut bytes = Vec::new();
    memory.take(length).read_to_end(&mut bytes)?;
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
