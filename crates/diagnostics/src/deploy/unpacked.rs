//! The embedded agent library, unpacked into a file that this user's programs can load.
//!
//! Files for other users and for containers are in the module above. Its invariants hold here too.
//! Invariant: only this user and root can change the folder and the folders on the way to it. So
//! the file that a program loads later is the one that the tool wrote.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;

use nix::fcntl::open;
use nix::sys::stat::Mode;

use super::*;

/// An unpacked library. The file is not removed while this value lives, nor while a process maps it
/// or names it in its environment.
#[derive(Debug)]
pub struct UnpackedLibrary {
    library: PathBuf,
    /// Holds a shared lock.
    _lock: File,
}

/// No folder to unpack the library into.
#[derive(Debug, thiserror::Error)]
#[error(
    "there is no folder for the agent: {}; set XDG_CACHE_HOME to one of your own, on a file system \
     without noexec",
    list_of_folders(tried)
)]
pub struct UnpackLibraryError {
    /// The folders that were tried, with the error of each.
    pub tried: Vec<(PathBuf, &'static str)>,
}

impl UnpackedLibrary {
    /// Unpacks a library whose [`hash_of`] is `hash` where programs of this user can load it,
    /// unless the file exists. Removes other versions that are no longer needed, but not those
    /// whose hashes are in `kept`.
    ///
    /// # Errors
    /// No folder is both loadable from and writable by this user alone.
    pub fn new(content: &[u8], hash: &str, kept: &[&str]) -> Result<Self, UnpackLibraryError> {
        in_first_usable(&own_folders(), |place| {
            Self::below(place, content, hash, kept)
        })
    }

    fn below(
        place: &Path,
        content: &[u8],
        hash: &str,
        kept: &[&str],
    ) -> Result<Self, &'static str> {
        let (path, folder) = private_folder(place)?;
        let loader = Loader::current().ok_or("cannot be checked without /proc")?;
        loader.check(&folder)?;
        let name = file_name_for(hash);
        let lock = write_and_lock(&folder, &name, content, &loader, FolderAccess::Private)?;
        let kept = kept.iter().copied().chain([hash]).map(file_name_for);
        sweep(&folder, &kept.collect::<Vec<_>>());
        Ok(Self {
            library: path.join(name),
            _lock: lock,
        })
    }

    /// The library.
    pub fn library(&self) -> &Path {
        &self.library
    }
}

/// Returns what `make` makes in the first place where it can.
pub(super) fn in_first_usable<Made>(
    places: &[PathBuf],
    make: impl Fn(&Path) -> Result<Made, &'static str>,
) -> Result<Made, UnpackLibraryError> {
    let mut tried = Vec::new();
    for place in places {
        match make(place) {
            Ok(made) => return Ok(made),
            Err(why) => tried.push((place.clone(), why)),
        }
    }
    Err(UnpackLibraryError { tried })
}

/// Candidate folders of this user.
pub(super) fn own_folders() -> Vec<PathBuf> {
    candidate_folders(|name| std::env::var_os(name))
}

/// Candidate folders, the best first: the usual folders for caches, then folders for the tool's
/// socket and folders that containers leave writable.
fn candidate_folders(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let folder = |name: &str| {
        let path = variable(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let own = format!("sidewalk-{}", own_uid());
    let shared = ["XDG_RUNTIME_DIR", "TMPDIR"].map(folder).into_iter();
    let shared = shared
        .flatten()
        .chain(FOLDERS.map(PathBuf::from))
        .map(|folder| folder.join(&own));
    let caches = [
        folder("XDG_CACHE_HOME"),
        // Programs that root starts as another user cannot enter root's home directory.
        (own_uid() == 0).then(|| PathBuf::from("/var/cache")),
        folder("HOME").map(|home| home.join(".cache")),
    ];
    let caches = caches.into_iter().flatten();
    let caches = caches.map(|folder| folder.join("sidewalk/agents"));
    let mut places: Vec<PathBuf> = Vec::new();
    for place in caches.chain(shared) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// Returns the mode of our folders, which determines who may read them. Programs that root starts
/// may run as any user (`sudo -u`), and must find the agent.
pub(super) fn folder_mode() -> u32 {
    if own_uid() == 0 { 0o755 } else { 0o700 }
}

/// Makes a folder, unless it exists, that only this user can change. Its path has no links.
pub(super) fn private_folder(place: &Path) -> Result<(PathBuf, Folder), &'static str> {
    let parent = place.parent().ok_or("is no folder for this")?;
    let mut make = DirBuilder::new();
    make.mode(folder_mode());
    make.recursive(true)
        .create(parent)
        .map_err(|error| error_meaning(&error))?;
    let parent = fs::canonicalize(parent).map_err(|error| error_meaning(&error))?;
    for folder in parent.ancestors() {
        let found = fs::metadata(folder).map_err(|error| error_meaning(&error))?;
        let is_shared = found.mode() & 0o022 != 0;
        let is_sticky = found.mode() & 0o1000 != 0;
        if found.uid() != own_uid() && found.uid() != 0 {
            return Err("is below a folder of another user");
        }
        if is_shared && !is_sticky {
            return Err("is below a folder that other users may change");
        }
    }
    let path = parent.join(place.file_name().ok_or("is no folder for this")?);
    let made = make.recursive(false).create(&path);
    if let Err(error) = made
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error_meaning(&error));
    }
    // Another user can make a link or a folder here only if everyone may write to the parent.
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = open(&path, flags, Mode::empty()).map_err(|error| error_meaning(&error.into()))?;
    let folder = Folder::from(folder);
    let found = fs::metadata(folder.path()).map_err(|error| error_meaning(&error))?;
    if found.uid() != own_uid() {
        return Err("belongs to another user");
    }
    if found.mode() & 0o022 != 0 {
        return Err("lets others write to it");
    }
    Ok((path, folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn unpack(place: &Path, content: &[u8]) -> Result<UnpackedLibrary, &'static str> {
        UnpackedLibrary::below(place, content, &hash_of(content), &[])
    }

    fn names(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).unwrap().flatten();
        let mut names: Vec<_> = entries.map(|entry| name_of(&entry.path())).collect();
        names.sort();
        names
    }

    #[test]
    fn a_library_is_written_once_into_a_folder_of_our_own() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join(".cache/sidewalk/agents");
        let first = unpack(&place, b"content").unwrap();
        let inode = fs::metadata(first.library()).unwrap().ino();
        let folder = fs::metadata(&place).unwrap();
        assert_eq!(folder.mode() & 0o777, folder_mode());
        assert_eq!(fs::read(first.library()).unwrap(), b"content");
        let again = unpack(&place, b"content").unwrap();
        assert_eq!(again.library(), first.library());
        assert_eq!(fs::metadata(again.library()).unwrap().ino(), inode);
        assert_eq!(names(&place).len(), 1);
    }

    #[test]
    fn what_was_changed_is_replaced_and_never_written_into() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("agents");
        let first = unpack(&place, b"content").unwrap();
        let library = first.library().to_owned();
        fs::write(&library, b"contents").unwrap();
        let changed = fs::metadata(&library).unwrap().ino();
        let held = File::open(&library).unwrap();
        unpack(&place, b"content").unwrap();
        assert_ne!(fs::metadata(&library).unwrap().ino(), changed);
        assert_eq!(fs::read(&library).unwrap(), b"content");
        let mut text = String::new();
        (&held).read_to_string(&mut text).unwrap();
        assert_eq!(text, "contents");
    }

    #[test]
    fn what_a_crash_of_the_machine_has_left_out_is_written_again() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("agents");
        let content: Vec<u8> = (0..1u32 << 20).map(|at| (at % 251) as u8 + 1).collect();
        let library = unpack(&place, &content).unwrap().library().to_owned();
        for missing in [0..4096, 300_000..400_000, (1 << 20) - 4096..1 << 20] {
            let mut lost = content.clone();
            lost[missing].fill(0);
            fs::write(&library, &lost).unwrap();
            unpack(&place, &content).unwrap();
            assert!(fs::read(&library).unwrap() == content);
        }
        fs::write(&library, &content[..9000]).unwrap();
        unpack(&place, &content).unwrap();
        assert!(fs::read(&library).unwrap() == content);
    }

    #[test]
    fn what_another_tool_is_about_to_remove_is_written_again() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("agents");
        let library = unpack(&place, b"content").unwrap().library().to_owned();
        let going = File::open(&library).unwrap();
        going.lock().unwrap();
        let again = unpack(&place, b"content").unwrap();
        assert!(!is_same_file(&going, again.library()));
        // A third tool takes the new one.
        let third = unpack(&place, b"content").unwrap();
        assert!(is_same_file(
            &File::open(again.library()).unwrap(),
            third.library()
        ));
    }

    #[test]
    fn other_versions_go_when_nobody_needs_them() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("agents");
        let used = unpack(&place, b"used by a tool").unwrap();
        let named = {
            let unpacked = unpack(&place, b"in an environment").unwrap();
            unpacked.library().to_owned()
        };
        let mut child = std::process::Command::new("cat")
            .env("CORECLR_PROFILER_PATH", &named)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // A reply of this child means that it runs a new program, without our environment.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let last = unpack(&place, b"another").unwrap();
        assert_eq!(names(&place).len(), 3);
        drop(child.stdin.take());
        child.wait().unwrap();
        unpack(&place, b"another").unwrap();
        let mut left = [used.library(), last.library()].map(name_of);
        left.sort();
        assert_eq!(names(&place), left);
        drop(used);
        unpack(&place, b"another").unwrap();
        assert_eq!(names(&place), [name_of(last.library())]);
    }

    #[test]
    fn libraries_of_one_tool_leave_each_other() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("agents");
        let contents: [&[u8]; 2] = [b"for glibc", b"for musl"];
        let hashes = contents.map(hash_of);
        let kept = hashes.each_ref().map(String::as_str);
        let inode = |at: usize| {
            UnpackedLibrary::below(&place, contents[at], kept[at], &kept).unwrap();
            let unpacked = place.join(file_name_for(kept[at]));
            fs::metadata(unpacked).unwrap().ino()
        };
        let first = [0, 1].map(inode);
        assert_eq!([0, 1].map(inode), first);
        // They go with the tool.
        unpack(&place, b"newer").unwrap();
        assert_eq!(names(&place).len(), 1);
    }

    #[test]
    fn a_folder_that_others_may_have_prepared_is_not_used() {
        let shared = tempfile::tempdir().unwrap();
        let place = shared.path().join("sidewalk-0");
        // A link to a folder of this user.
        let own = shared.path().join("own");
        fs::create_dir(&own).unwrap();
        std::os::unix::fs::symlink(&own, &place).unwrap();
        assert_eq!(unpack(&place, b"x").unwrap_err(), "is not there");
        assert!(names(&own).is_empty());
        fs::remove_file(&place).unwrap();
        fs::create_dir(&place).unwrap();
        mode(&place, 0o777);
        assert_eq!(unpack(&place, b"x").unwrap_err(), "lets others write to it");
        mode(&place, 0o700);
        mode(shared.path(), 0o777);
        assert_eq!(
            unpack(&place, b"x").unwrap_err(),
            "is below a folder that other users may change"
        );
        mode(shared.path(), 0o1777);
        unpack(&place, b"x").unwrap();
        if own_uid() == 0 {
            std::os::unix::fs::chown(&place, Some(65_534), None).unwrap();
            assert_eq!(unpack(&place, b"x").unwrap_err(), "belongs to another user");
            std::os::unix::fs::chown(&place, Some(0), None).unwrap();
            std::os::unix::fs::chown(shared.path(), Some(65_534), None).unwrap();
            assert_eq!(
                unpack(&place, b"x").unwrap_err(),
                "is below a folder of another user"
            );
        }
    }

    /// Not even root can make a folder in `/proc`.
    #[test]
    fn the_next_place_is_taken_where_one_cannot_be_written_to() {
        let shared = tempfile::tempdir().unwrap();
        let file = shared.path().join("file");
        fs::write(&file, "").unwrap();
        let places = [
            PathBuf::from("/proc/.cache/sidewalk"),
            file.join("sidewalk"),
            shared.path().join("sidewalk-0"),
        ];
        let unpack_first =
            |places: &[PathBuf]| in_first_usable(places, |place| unpack(place, b"x"));
        let unpacked = unpack_first(&places).unwrap();
        assert_eq!(
            unpacked.library().parent(),
            Some(&*fs::canonicalize(&places[2]).unwrap())
        );
        let none = unpack_first(&places[..2]).unwrap_err();
        let text = none.to_string();
        assert!(
            text.starts_with(
                "there is no folder for the agent: /proc/.cache/sidewalk is not there, "
            ) && text.contains("set XDG_CACHE_HOME"),
            "{text}"
        );
    }

    #[test]
    fn caches_come_first_and_no_variable_need_be_set() {
        let set = |name: &str| match name {
            "HOME" => Some("/home/u".into()),
            "XDG_RUNTIME_DIR" => Some("/run/user/7".into()),
            "TMPDIR" => Some("relative".into()),
            _ => None,
        };
        let own = format!("sidewalk-{}", own_uid());
        let root: &[&str] = if own_uid() == 0 {
            &["/var/cache/sidewalk/agents"]
        } else {
            &[]
        };
        let starts_with = |variable: &dyn Fn(&str) -> Option<OsString>, expected: &[&str]| {
            let found = candidate_folders(variable);
            let expected: Vec<_> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(found[..expected.len()], expected);
        };
        let home = "/home/u/.cache/sidewalk/agents";
        let (run, tmp) = (format!("/run/user/7/{own}"), format!("/tmp/{own}"));
        starts_with(&set, &[root, &[home, &run, &tmp]].concat());
        starts_with(&|_| None, &[root, &[&tmp]].concat());
        let own_cache = |name: &str| match name {
            "XDG_CACHE_HOME" => Some("/c".into()),
            other => set(other),
        };
        starts_with(&own_cache, &["/c/sidewalk/agents"]);
    }
}
