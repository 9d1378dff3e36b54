//! Copies a library to a folder from which a target process can load it.
//!
//! A copy is needed for a process in a container, or one that may not enter the home directory with
//! the library. Attaching is the caller's part.
//! Invariants: a file that may be mapped is never written to, because that crashes the process that
//! maps it. So each content has a name of its own, is written under a temporary name and renamed.
//! The loaded file is the one that the tool wrote: no copy is put, or reused, in a place where
//! another user could have written it.
//! A copy is removed only while no process maps it and no tool is about to attach it.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::fcntl::OFlag;
use nix::sys::statvfs::{FsFlags, fstatvfs};
use procfs::process::Status;
use sha2::{Digest, Sha256};

use crate::survey::{Libc, Survey, mapped_files, newest_glibc};
use crate::target::Folder;
use crate::{Error, Target};

/// Folders to load from, after the process's own TMPDIR.
const FOLDERS: [&str; 3] = ["/tmp", "/dev/shm", "/var/tmp"];
const PREFIX: &str = "libsidewalk-";
const UNFINISHED: &str = ".libsidewalk-";
/// Number of hash digits in a file name.
const DIGITS: usize = 16;
/// Maximum age of a file that is still being written.
const UNFINISHED_AGE: Duration = Duration::from_secs(60);

/// A library that a process can load. The file is not removed while this value lives.
#[derive(Debug)]
pub struct DeployedLibrary {
    library: PathBuf,
    /// Path of the copy, if one was made.
    copied: Option<Copied>,
}

#[derive(Debug)]
struct Copied {
    folder: Folder,
    /// Holds a shared lock. Removing the file needs an exclusive one.
    _lock: File,
}

/// Why no file can be given to a process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeployError {
    /// Our library cannot be read.
    #[error("cannot read the library {}: {source}", path.display())]
    Unreadable {
        /// The library.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The C library of the process is older than ours.
    #[error(
        "process {pid} has glibc {}.{}, and the agent needs {}.{}; use an image with a newer glibc, or \
         build sidewalk on an older one", has.0, has.1, needs.0, needs.1
    )]
    OldLibc {
        /// The process.
        pid: u32,
        /// Its version.
        has: (u32, u32),
        /// The version that our library needs.
        needs: (u32, u32),
    },
    /// No folder is suitable.
    #[error(
        "there is no folder from which process {pid} could load the agent: {}; mount a tmpfs in it \
         without noexec (docker run --tmpfs /tmp:exec), or start it with a TMPDIR that can be written to",
        list_of_folders(tried)
    )]
    NoFolder {
        /// The process.
        pid: u32,
        /// The folders that were tried, in the process's view, with the error of each.
        tried: Vec<(PathBuf, &'static str)>,
    },
    /// The process has ended, or may not be examined.
    #[error(transparent)]
    Target(#[from] Error),
}

impl DeployedLibrary {
    /// Makes `library` loadable for a process: in place if the process can load it there, else as a
    /// copy.
    ///
    /// # Errors
    /// See [`DeployError`].
    pub fn new(target: &Target, survey: &Survey, library: &Path) -> Result<Self, DeployError> {
        let unreadable = |source| DeployError::Unreadable {
            path: library.to_owned(),
            source,
        };
        if let (Some(Libc::Glibc(Some(has))), Some(needs)) = (survey.libc, newest_glibc(library))
            && has < needs
        {
            let pid = target.pid();
            return Err(DeployError::OldLibc { pid, has, needs });
        }
        let loader = Loader::of(target)?;
        let library = fs::canonicalize(library).map_err(unreadable)?;
        if target.shares_our_files() && loader.can_load(&library) {
            return Ok(Self {
                library,
                copied: None,
            });
        }
        let content = fs::read(&library).map_err(unreadable)?;
        Self::copy(target, &loader, &content)
    }

    fn copy(target: &Target, loader: &Loader, content: &[u8]) -> Result<Self, DeployError> {
        let name = file_name_for(&hash_of(content));
        let mut tried = Vec::new();
        let own = Some(target.temporary_folder()).filter(|folder| folder.is_absolute());
        for path in own.into_iter().chain(FOLDERS.map(PathBuf::from)) {
            if tried.iter().any(|(folder, _)| *folder == path) {
                continue;
            }
            let put = target
                .open_folder(&path)
                .map_err(|error| error_meaning(&error))
                .and_then(|folder| loader.check(&folder).map(|()| folder))
                .and_then(|folder| {
                    let lock =
                        write_and_lock(&folder, &name, content, loader, FolderAccess::Shared)?;
                    Ok((folder, lock))
                });
            match put {
                Ok((folder, lock)) => {
                    sweep(&folder, std::slice::from_ref(&name));
                    return Ok(Self {
                        library: path.join(&name),
                        copied: Some(Copied {
                            folder,
                            _lock: lock,
                        }),
                    });
                }
                Err(why) => tried.push((path, why)),
            }
        }
        let pid = target.pid();
        // The process may have ended.
        Target::new(pid)?;
        Err(DeployError::NoFolder { pid, tried })
    }

    /// Path of the library in the process's view.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Whether the library is a copy made for the process.
    pub fn is_copy(&self) -> bool {
        self.copied.is_some()
    }

    /// Removes the copy, and older ones, unless a process maps them. A process still maps the
    /// library after the agent has detached; the next deployment removes that copy.
    pub fn clean_up(self) {
        if let Some(Copied { folder, _lock }) = self.copied {
            drop(_lock);
            sweep(&folder, &[]);
        }
    }
}

/// The hash of a library's content, for its file name.
pub fn hash_of(content: &[u8]) -> String {
    let digits = Sha256::digest(content);
    let mut hash: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
    hash.truncate(DIGITS);
    hash
}

/// The file name of a library whose content has that hash.
fn file_name_for(hash: &str) -> String {
    format!("{PREFIX}{hash}.so")
}

/// The users who may put files into a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FolderAccess {
    /// Only this user and root.
    Private,
    /// Other users too.
    Shared,
}

/// Folders that were tried, with the error of each.
fn list_of_folders(tried: &[(PathBuf, &'static str)]) -> String {
    let each = tried.iter();
    let each = each.map(|(folder, why)| format!("{} {why}", folder.display()));
    each.collect::<Vec<_>>().join(", ")
}

/// Returns the description of a folder's error.
fn error_meaning(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "is not there",
        io::ErrorKind::PermissionDenied => "may not be written to",
        io::ErrorKind::ReadOnlyFilesystem => "is read-only",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "is full",
        _ => "cannot be used",
    }
}

/// Writes the content under the name, unless the file exists, and locks it.
fn write_and_lock(
    folder: &Folder,
    name: &str,
    content: &[u8],
    loader: &Loader,
    access: FolderAccess,
) -> Result<File, &'static str> {
    let path = folder.path().join(name);
    // Another tool may remove the file after it was checked and before it is locked.
    for _ in 0..3 {
        if let Some(file) = find_trusted(&path, content, loader, access) {
            // A tool that holds it alone is about to remove it. Where there are no locks, only the
            // certainty that the file stays is lost.
            let goes = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
            if !goes && is_same_file(&file, &path) {
                return Ok(file);
            }
        }
        write(folder, &path, content).map_err(|error| error_meaning(&error))?;
    }
    Err("changes while it is used")
}

/// Opens a file of that content, if no other user could have changed it or can change it.
fn find_trusted(
    path: &Path,
    content: &[u8],
    loader: &Loader,
    access: FolderAccess,
) -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(path)
        .ok()?;
    let metadata = file.metadata().ok()?;
    let is_trusted = metadata.uid() == own_uid() || loader.trusts(metadata.uid());
    if !metadata.is_file() || !is_trusted || metadata.mode() & 0o022 != 0 {
        return None;
    }
    let is_it = metadata.len() == content.len() as u64
        && match access {
            // The file got this name when it was complete.
            FolderAccess::Private => pieces(content).all(|piece| has_part(&file, content, piece)),
            FolderAccess::Shared => has_part(&file, content, 0..content.len()),
        };
    (is_it && loader.has_permission(&metadata, READ)).then_some(file)
}

/// Samples of a content, from its beginning to its end. Content that a machine crash lost is
/// missing in whole blocks, most of them consecutive.
fn pieces(content: &[u8]) -> impl Iterator<Item = Range<usize>> {
    const PIECES: usize = 16;
    const SIZE: usize = 256;
    let last = content.len().saturating_sub(SIZE);
    (0..=PIECES).map(move |piece| {
        let start = last * piece / PIECES;
        start..(start + SIZE).min(start + content.len())
    })
}

/// Whether the file has this part of the content at the same offset.
fn has_part(file: &File, content: &[u8], part: Range<usize>) -> bool {
    let start = part.start as u64;
    let Some(expected) = content.get(part) else {
        return false;
    };
    let mut read = vec![0; expected.len()];
    file.read_exact_at(&mut read, start).is_ok() && read == expected
}

fn is_same_file(file: &File, path: &Path) -> bool {
    let at = fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()));
    let ours = file.metadata().map(|found| (found.dev(), found.ino()));
    at.is_ok_and(|at| ours.is_ok_and(|ours| at == ours))
}

fn write(folder: &Folder, path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix(UNFINISHED)
        .tempfile_in(folder.path())?;
    file.write_all(content)?;
    file.as_file()
        .set_permissions(Permissions::from_mode(0o755))?;
    file.persist(path)?;
    Ok(())
}

/// Removes our files from a folder, unless they are to be kept, or a process maps them or names
/// them in its environment.
fn sweep(folder: &Folder, kept: &[String]) {
    let Ok(entries) = fs::read_dir(folder.path()) else {
        return;
    };
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let ours = names.filter(|name| {
        let is_whole = name.starts_with(PREFIX) && name.ends_with(".so");
        !kept.contains(name) && (is_whole || name.starts_with(UNFINISHED))
    });
    let ours: Vec<String> = ours.collect();
    if ours.is_empty() {
        return;
    }
    let needed = needed_names();
    for name in ours.iter().filter(|name| !needed.contains(*name)) {
        remove(&folder.path().join(name), name.starts_with(UNFINISHED));
    }
}

fn remove(path: &Path, is_unfinished: bool) {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else {
        return;
    };
    let Ok(metadata) = file.metadata() else {
        return;
    };
    let may_be_written = is_unfinished && is_new(&metadata);
    if !metadata.is_file() || metadata.uid() != own_uid() || may_be_written {
        return;
    }
    // A tool that is about to attach the file holds a lock on it. A tool that comes later finds it
    // removed. A tool that has attached it since the mappings were read has released its lock after
    // the file was mapped.
    if file.try_lock().is_ok()
        && !needed_names().contains(&name_of(path))
        && is_same_file(&file, path)
    {
        let _ = fs::remove_file(path);
    }
}

/// Whether a file or folder may still be in the making.
fn is_new(metadata: &fs::Metadata) -> bool {
    let made = metadata.modified().ok();
    let age = made.and_then(|made| SystemTime::now().duration_since(made).ok());
    age.is_none_or(|age| age < UNFINISHED_AGE)
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Names of our libraries that any process maps or will load. A process loads what its environment
/// names, and its children inherit that environment. A process that may not be read was neither
/// attached to nor started by us.
fn needed_names() -> Vec<String> {
    let Ok(processes) = procfs::process::all_processes() else {
        return Vec::new();
    };
    let mut names = Vec::new();
    for process in processes.flatten() {
        let read = |file: &str| {
            let mut content = Vec::new();
            let mut file = process.open_relative(file).ok()?;
            file.read_to_end(&mut content).ok().map(|_| content)
        };
        if let Some(maps) = read("maps") {
            let mapped = mapped_files(&maps);
            let ours = mapped.iter().map(|file| name_of(file));
            names.extend(ours.filter(|name| name.starts_with(PREFIX)));
        }
        if let Some(environment) = read("environ") {
            names.extend(names_in_environment(&environment));
        }
    }
    names
}

/// Names of our libraries in an environment. Any other text ends a name.
fn names_in_environment(environment: &[u8]) -> impl Iterator<Item = String> {
    let words = environment.split(|&byte| !byte.is_ascii_alphanumeric() && !b"-.".contains(&byte));
    let words = words.filter_map(|word| std::str::from_utf8(word).ok());
    words
        .filter(|word| word.starts_with(PREFIX))
        .map(str::to_owned)
}

fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

const READ: u32 = 4;
const ENTER: u32 = 1;

/// The process that loads the library, with its permissions.
#[derive(Debug)]
struct Loader {
    uid: u32,
    groups: Vec<u32>,
    /// The process may read and enter everything.
    overrides: bool,
}

impl Loader {
    fn current() -> Option<Self> {
        Target::new(std::process::id())
            .and_then(|us| Self::of(&us))
            .ok()
    }

    fn of(target: &Target) -> Result<Self, Error> {
        let status = target
            .process()
            .status()
            .map_err(|error| crate::target::failed(target.pid(), error))?;
        Ok(Self::by(&status, target.shares_our_users()))
    }

    fn by(status: &Status, shares_our_users: bool) -> Self {
        const DAC_OVERRIDE: u64 = 1 << 1;
        const DAC_READ_SEARCH: u64 = 1 << 2;
        let mut groups: Vec<u32> = status.groups.clone();
        groups.push(status.fgid);
        Self {
            uid: status.fuid,
            groups,
            overrides: shares_our_users && status.capeff & (DAC_OVERRIDE | DAC_READ_SEARCH) != 0,
        }
    }

    /// Whether the process runs that user's files in any case.
    fn trusts(&self, uid: u32) -> bool {
        uid == self.uid || uid == 0
    }

    /// By the mode alone, without access control lists.
    fn has_permission(&self, metadata: &fs::Metadata, what: u32) -> bool {
        let shift = if metadata.uid() == self.uid {
            6
        } else if self.groups.contains(&metadata.gid()) {
            3
        } else {
            0
        };
        self.overrides || metadata.mode() >> shift & what == what
    }

    /// Whether a file of the common file system view can be loaded in place.
    fn can_load(&self, library: &Path) -> bool {
        let Ok(file) = File::open(library) else {
            return false;
        };
        let enters = |folder: &Path| {
            fs::metadata(folder).is_ok_and(|found| self.has_permission(&found, ENTER))
        };
        flags(&file).is_some_and(|flags| !flags.contains(FsFlags::ST_NOEXEC))
            && file
                .metadata()
                .is_ok_and(|found| self.has_permission(&found, READ))
            && library.ancestors().skip(1).all(enters)
    }

    /// Whether the process can load a file from this folder that we, and no other user, put there.
    fn check(&self, folder: &Folder) -> Result<(), &'static str> {
        let Ok(metadata) = fs::metadata(folder.path()) else {
            return Err("may not be examined");
        };
        let Some(flags) = flags(folder) else {
            return Err("may not be examined");
        };
        let is_shared = metadata.mode() & 0o022 != 0;
        let is_sticky = metadata.mode() & 0o1000 != 0;
        if flags.contains(FsFlags::ST_NOEXEC) {
            Err("is mounted noexec")
        } else if flags.contains(FsFlags::ST_RDONLY) {
            Err("is read-only")
        } else if !self.has_permission(&metadata, ENTER) {
            Err("may not be entered by it")
        } else if is_shared && !is_sticky {
            Err("lets other users replace files in it")
        } else if !self.trusts(metadata.uid()) && metadata.uid() != own_uid() {
            Err("belongs to another user")
        } else {
            Ok(())
        }
    }
}

fn flags(file: &impl AsFd) -> Option<FsFlags> {
    fstatvfs(file.as_fd()).ok().map(|found| found.flags())
}

mod links;
mod unpacked;
pub use links::LibraryLinks;
pub use unpacked::{UnpackLibraryError, UnpackedLibrary};

#[cfg(test)]
mod tests;
