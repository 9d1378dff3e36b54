//! Carrying a library to where a process can load it: into its container, or out of a home that it
//! may not enter.
//!
//! Not the attach itself. The invariants: a file that may be mapped is never written to (a reader
//! of it would crash), so each content has a name of its own, is written under another one and
//! renamed. The loaded file is the one that we wrote, so nothing is put, or found, where another
//! user could have put it. And a file is removed only while no process maps it and no tool is about
//! to attach it.

use std::fs::{self, File, OpenOptions, Permissions};
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

/// Where a process may load from, after its own TMPDIR.
const FOLDERS: [&str; 3] = ["/tmp", "/dev/shm", "/var/tmp"];
const PREFIX: &str = "libsidewalk-";
const UNFINISHED: &str = ".libsidewalk-";
/// Digits of the hash in a name.
const DIGITS: usize = 16;
/// A file that is being written is not older.
const UNFINISHED_AGE: Duration = Duration::from_secs(60);

/// A library that a process can load. It is not removed as long as this is there.
#[derive(Debug)]
pub struct DeployedLibrary {
    library: PathBuf,
    /// Where it was put, if it was.
    copied: Option<Copied>,
}

#[derive(Debug)]
struct Copied {
    folder: Folder,
    /// Locked, shared: whoever removes needs it for himself.
    _lock: File,
}

/// Why a library cannot be brought to a process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeployError {
    /// Ours.
    #[error("cannot read the library {}: {source}", path.display())]
    Unreadable {
        /// The library.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its C library is older than ours.
    #[error(
        "process {pid} has glibc {}.{}, and the agent needs {}.{}; use an image with a newer glibc, or \
         build sidewalk on an older one", has.0, has.1, needs.0, needs.1
    )]
    OldLibc {
        /// The process.
        pid: u32,
        /// Its version.
        has: (u32, u32),
        /// Ours.
        needs: (u32, u32),
    },
    /// No place for it.
    #[error(
        "there is no folder from which process {pid} could load the agent: {}; mount a tmpfs in it \
         without noexec (docker run --tmpfs /tmp:exec), or start it with a TMPDIR that can be written to",
        list_of_folders(tried)
    )]
    NoFolder {
        /// The process.
        pid: u32,
        /// The folders that were tried, by its view, and their faults.
        tried: Vec<(PathBuf, &'static str)>,
    },
    /// The process cannot be looked at, or has ended.
    #[error(transparent)]
    Target(#[from] Error),
}

impl DeployedLibrary {
    /// Makes `library` loadable for a process: as it is where the process can, else a copy.
    ///
    /// # Errors
    /// It cannot be.
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
                    sweep(&folder, Some(&name));
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
        // It may be that it has ended.
        Target::new(pid)?;
        Err(DeployError::NoFolder { pid, tried })
    }

    /// The library, as the process sees it.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Whether it is a copy that was made for the process.
    pub fn is_copy(&self) -> bool {
        self.copied.is_some()
    }

    /// Removes the copy, and older ones, unless a process maps them. A process that an agent has
    /// left still maps its library; then the next deployment removes it.
    pub fn clean_up(self) {
        if let Some(Copied { folder, _lock }) = self.copied {
            drop(_lock);
            sweep(&folder, None);
        }
    }
}

/// The hash by which a library of that content is named.
pub fn hash_of(content: &[u8]) -> String {
    let digits = Sha256::digest(content);
    let mut hash: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
    hash.truncate(DIGITS);
    hash
}

/// The name of a library whose content has that hash.
fn file_name_for(hash: &str) -> String {
    format!("{PREFIX}{hash}.so")
}

/// Kind of a folder, by the users that may put files into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FolderAccess {
    /// This user and root.
    Private,
    /// Others too.
    Shared,
}

/// Folders that were tried, and what is wrong with each.
fn list_of_folders(tried: &[(PathBuf, &'static str)]) -> String {
    let each = tried.iter();
    let each = each.map(|(folder, why)| format!("{} {why}", folder.display()));
    each.collect::<Vec<_>>().join(", ")
}

/// Returns the meaning of an error of a folder.
fn error_meaning(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "is not there",
        io::ErrorKind::PermissionDenied => "may not be written to",
        io::ErrorKind::ReadOnlyFilesystem => "is read-only",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "is full",
        _ => "cannot be used",
    }
}

/// Puts the content under the name, unless it is there, and locks it.
fn write_and_lock(
    folder: &Folder,
    name: &str,
    content: &[u8],
    loader: &Loader,
    access: FolderAccess,
) -> Result<File, &'static str> {
    let path = folder.path().join(name);
    // Another tool may remove what is there, after we have looked and before we have locked.
    for _ in 0..3 {
        if let Some(file) = find_trusted(&path, content, loader, access) {
            // A program that holds an exclusive lock on it only keeps us from being sure that it
            // stays.
            let _ = file.try_lock_shared();
            if is_same_file(&file, &path) {
                return Ok(file);
            }
        }
        write(folder, &path, content).map_err(|error| error_meaning(&error))?;
    }
    Err("changes while it is used")
}

/// Returns a file of that content that no other user could have changed, or can.
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
            // It has the name since it was whole.
            FolderAccess::Private => pieces(content).all(|piece| has_part(&file, content, piece)),
            FolderAccess::Shared => has_part(&file, content, 0..content.len()),
        };
    (is_it && loader.has_permission(&metadata, READ)).then_some(file)
}

/// Some of a content, from its beginning to its end: what is not on the disk after the machine has
/// crashed is missing in whole blocks, most of them behind one another.
fn pieces(content: &[u8]) -> impl Iterator<Item = Range<usize>> {
    const PIECES: usize = 16;
    const SIZE: usize = 256;
    let last = content.len().saturating_sub(SIZE);
    (0..=PIECES).map(move |piece| {
        let start = last * piece / PIECES;
        start..(start + SIZE).min(start + content.len())
    })
}

/// Whether the file has that part of the content where the content has it.
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

/// Removes files of ours in a folder that no process maps, nor has in its environment.
fn sweep(folder: &Folder, but: Option<&str>) {
    let Ok(entries) = fs::read_dir(folder.path()) else {
        return;
    };
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let ours = names.filter(|name| {
        let is_whole = name.starts_with(PREFIX) && name.ends_with(".so");
        Some(&**name) != but && (is_whole || name.starts_with(UNFINISHED))
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
    let age = metadata
        .modified()
        .ok()
        .and_then(|made| SystemTime::now().duration_since(made).ok());
    let may_be_written = is_unfinished && age.is_none_or(|age| age < UNFINISHED_AGE);
    if !metadata.is_file() || metadata.uid() != own_uid() || may_be_written {
        return;
    }
    // A tool that is about to attach it has locked it; a tool that comes now sees that it is gone.
    // And a tool that has attached it since the mappings were read has let go of it after it was
    // mapped.
    if file.try_lock().is_ok()
        && !needed_names().contains(&name_of(path))
        && is_same_file(&file, path)
    {
        let _ = fs::remove_file(path);
    }
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Names of our libraries that any process maps, or will load: its environment names one, and a
/// program that it starts inherits that. What we may not look at we have not attached to, nor
/// started.
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

/// Names of our libraries in an environment; other text around them ends them.
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

/// The process that loads the library: its right to read.
#[derive(Debug)]
struct Loader {
    uid: u32,
    groups: Vec<u32>,
    /// It may read and enter everything.
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

    /// Whether it runs files of that user anyhow.
    fn trusts(&self, uid: u32) -> bool {
        uid == self.uid || uid == 0
    }

    /// By the mode alone; lists of access are not looked at.
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

    /// Whether a file of the common view can be loaded where it is.
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

    /// Whether it could load from this folder a file that we, and no other user, put there.
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

mod unpacked;
pub use unpacked::{UnpackLibraryError, UnpackedLibrary};

#[cfg(test)]
mod tests;
