//! Output files: determines the format, checks that they can be written, and writes them.
//!
//! Invariants: an existing file is replaced by a complete new one or left unchanged. A file that is
//! not regular (a FIFO, /dev/stdout) is written to in place. Only its owner can read a new file. No
//! link of another user is followed ([`crate::resolved_path`]).

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use formats::Format;

use crate::console::escaped;
use crate::resolved_path::{self, ResolvedPath};

/// The content of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OutputKind {
    /// The recording.
    Recording,
    /// A format made from the recording.
    Converted(Format),
}

/// A requested output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Destination {
    pub(crate) path: PathBuf,
    pub(crate) kind: OutputKind,
}

/// The word for our standard output.
const STDOUT: &str = "-";
/// File name ending of recordings.
const RECORDING: &str = ".swk";

impl Destination {
    /// Determines the format from the ending, including that of recordings. A clap value parser.
    pub(crate) fn parse(path: OsString) -> Result<Self, String> {
        Self::with_endings(path, true)
    }

    /// As [`Self::parse`], but without recordings.
    pub(crate) fn parse_converted(path: OsString) -> Result<Self, String> {
        Self::with_endings(path, false)
    }

    fn with_endings(path: OsString, recording: bool) -> Result<Self, String> {
        let path = PathBuf::from(path);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let kind = if path == Path::new(STDOUT) {
            OutputKind::Converted(Format::Collapsed)
        } else if name.len() > RECORDING.len() && name.to_lowercase().ends_with(RECORDING) {
            OutputKind::Recording
        } else if let Some(format) = Format::from_path(&path) {
            OutputKind::Converted(format)
        } else {
            let endings: Vec<_> = Format::ALL.iter().map(|f| f.ending()).collect();
            let or = if recording { " or .swk" } else { "" };
            return Err(format!(
                "the ending must be that of a format: {}{or}",
                endings.join(", ")
            ));
        };
        if kind == OutputKind::Recording && !recording {
            return Err("it would be a copy of the recording; convert writes other formats".into());
        }
        Ok(Self { path, kind })
    }

    /// The ending that selects its kind, with its dot.
    pub(crate) fn ending(&self) -> &'static str {
        match self.kind {
            OutputKind::Recording => RECORDING,
            OutputKind::Converted(format) => format.ending(),
        }
    }

    /// Whether the output was requested as `-`.
    pub(crate) fn is_stdout(&self) -> bool {
        self.path == Path::new(STDOUT)
    }

    /// Checks whether the file can be written, and leaves no trace.
    ///
    /// # Errors
    /// It cannot be written; the text has the reason.
    pub(crate) fn check_writable(&self) -> Result<()> {
        let check = || {
            let target = match resolved_path::resolve(&self.path)? {
                ResolvedPath::File(target) => target,
                _ if self.kind == OutputKind::Recording => {
                    bail!("a recording is read back: it needs a file")
                }
                ResolvedPath::Stdout => {
                    let is_text = self.kind != OutputKind::Converted(Format::Pprof);
                    if io::stdout().is_terminal() && !is_text {
                        bail!("the format is binary, and stdout is a terminal");
                    }
                    return Ok(());
                }
                ResolvedPath::Open(_) => return Ok(()),
            };
            let is_fifo = fs::metadata(&target).is_ok_and(|m| m.file_type().is_fifo());
            if is_fifo && self.kind == OutputKind::Recording {
                bail!("it is a FIFO, and a recording is read back");
            }
            check_writable(&target, folder_of(&self.path))
        };
        check().with_context(|| format!("cannot write {}", escaped(&self.path)))
    }
}

/// Whether a resolved path can be written. `given_folder` is its folder as the user gave it.
fn check_writable(path: &Path, given_folder: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(existing) if existing.is_dir() => bail!("it is a folder"),
        // Opening a FIFO would block until it has a reader.
        Ok(existing) if !existing.is_file() => Ok(()),
        Ok(_) => {
            open_resolved(path, false)?;
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = folder_of(path);
            if !folder.is_dir() {
                bail!("there is no folder {}", escaped(given_folder));
            }
            // A temporary name, because another program may be waiting for `path` to appear.
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

/// Permissions of all written files, because they contain command lines and names.
const PRIVATE: u32 = 0o600;

/// The permissions of a replaced file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExistingMode {
    /// Kept, because the user may have made the file readable for others.
    Kept,
    /// Private, because the file is a recording.
    Replaced,
}

/// Writes the file at `path` as a whole, through a temporary file beside it.
///
/// # Errors
/// Those of the file system and of `content`.
pub(crate) fn write_whole(
    path: &Path,
    old: ExistingMode,
    content: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let target = match resolved_path::resolve(path)? {
        ResolvedPath::Stdout => {
            let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
            content(&mut out)?;
            return Ok(out.flush()?);
        }
        ResolvedPath::Open(path) => {
            return fill(&OpenOptions::new().write(true).open(path)?, content);
        }
        ResolvedPath::File(path) => path,
    };
    let existing = fs::symlink_metadata(&target);
    if existing.as_ref().is_ok_and(|existing| !existing.is_file()) {
        return fill(&open_resolved(&target, false)?, content);
    }
    let temporary = tempfile::Builder::new()
        .prefix(".sidewalk-")
        .permissions(fs::Permissions::from_mode(PRIVATE))
        .tempfile_in(folder_of(&target));
    match temporary {
        Ok(temporary) => {
            fill(temporary.as_file(), content)?;
            if let (ExistingMode::Kept, Ok(existing)) = (old, existing) {
                temporary
                    .as_file()
                    .set_permissions(existing.permissions())?;
            }
            temporary.persist(&target).map_err(|error| error.error)?;
            Ok(())
        }
        // The file may be writable although its folder is not.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            fill(&open_resolved(&target, true)?, content)
        }
        Err(error) => Err(error.into()),
    }
}

fn fill(file: &File, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, file);
    content(&mut out)?;
    out.flush()?;
    Ok(())
}

/// Opens the file at a resolved path for writing. A link that was put there since is not followed.
pub(crate) fn open_resolved(target: &Path, truncate: bool) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .truncate(truncate)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(target)
}
