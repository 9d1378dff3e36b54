//! Files to write: which format, whether they can be written, and writing them whole.
//!
//! The invariant: a file that was there before is replaced by a whole new one or left as it was;
//! what is no regular file (a FIFO, /dev/stdout) is written to as it is.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use formats::Format;

use crate::console::shown;

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The recording itself.
    Recording,
    /// Made from it.
    Converted(Format),
}

/// A file that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Destination {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
}

/// Ending of recordings.
const RECORDING: &str = ".swk";

impl Destination {
    /// Reads the format from the ending; for clap.
    pub(crate) fn parse(path: OsString) -> Result<Self, String> {
        let path = PathBuf::from(path);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let kind = if name.len() > RECORDING.len() && name.to_lowercase().ends_with(RECORDING) {
            Kind::Recording
        } else if let Some(format) = Format::from_path(&path) {
            Kind::Converted(format)
        } else {
            let endings: Vec<_> = Format::ALL.iter().map(|f| f.ending()).collect();
            return Err(format!(
                "the ending says the format: {} or {RECORDING}",
                endings.join(", ")
            ));
        };
        Ok(Self { path, kind })
    }

    /// Finds out whether the file can be written, and leaves no trace.
    ///
    /// # Errors
    /// It cannot; the text says why.
    pub(crate) fn check_writable(&self) -> Result<()> {
        let check = || {
            let is_fifo = fs::metadata(&self.path).is_ok_and(|m| m.file_type().is_fifo());
            if is_fifo && self.kind == Kind::Recording {
                bail!("it is a FIFO, and a recording is read back");
            }
            check_writable(&self.path)
        };
        check().with_context(|| format!("cannot write {}", shown(&self.path)))
    }
}

fn check_writable(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(existing) if existing.is_dir() => bail!("it is a folder"),
        // Opening a FIFO would wait for its reader.
        Ok(existing) if !existing.is_file() => Ok(()),
        Ok(_) => {
            OpenOptions::new().write(true).open(path)?;
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = folder_of(path);
            if !folder.is_dir() {
                bail!("there is no folder {}", shown(folder));
            }
            // Not `path` itself: somebody may be waiting for that name to appear.
            tempfile::Builder::new()
                .prefix(".sidewalk-")
                .tempfile_in(folder)?;
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// The folder that `path` lies in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Permissions of outputs; the umask takes its bits off.
pub(crate) const USUAL: u32 = 0o666;
/// Permissions of recordings.
pub(crate) const PRIVATE: u32 = 0o600;

/// Writes the file at `path` whole, through a temporary file beside it. A file that was there keeps
/// its permissions if `mode` is [`USUAL`].
///
/// # Errors
/// Those of the file system and of `content`.
pub(crate) fn write_whole(
    path: &Path,
    mode: u32,
    content: impl FnOnce(&mut BufWriter<&File>) -> Result<()>,
) -> Result<()> {
    let fill = |file: &File| -> Result<()> {
        let mut out = BufWriter::with_capacity(1 << 16, file);
        content(&mut out)?;
        out.flush()?;
        Ok(())
    };
    // Behind a symbolic link lies what is to be replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let is_special = fs::metadata(&target).is_ok_and(|existing| !existing.is_file());
    if is_special {
        return fill(&OpenOptions::new().write(true).open(&target)?);
    }
    let temporary = tempfile::Builder::new()
        .prefix(".sidewalk-")
        .permissions(fs::Permissions::from_mode(mode))
        .tempfile_in(folder_of(&target));
    match temporary {
        Ok(temporary) => {
            fill(temporary.as_file())?;
            if mode == USUAL
                && let Ok(old) = fs::metadata(&target)
            {
                temporary.as_file().set_permissions(old.permissions())?;
            }
            temporary.persist(&target).map_err(|error| error.error)?;
            Ok(())
        }
        // A file that may be written in a folder that may not.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            fill(&File::create(&target)?)
        }
        Err(error) => Err(error.into()),
    }
}
