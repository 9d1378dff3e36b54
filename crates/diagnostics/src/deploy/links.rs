//! Links by which one path leads each C library's loader to the library that it can load.
//!
//! Programs inherit a path by their environment, whichever C library they run on. In such a path
//! glibc's loader replaces `$LIB` (ld.so(8), dynamic string tokens); musl's takes it as it stands
//! (`load_library` of ldso/dynlink.c). So the links to the two libraries lie in a folder of that
//! very name, and in folders of the names that glibc puts there.
//! The invariant of the unpacked libraries holds here too: only this user and root can change the
//! links. They last no longer than the recording, and a runtime that does not find its profiler
//! goes on without one.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, symlink};

use tempfile::TempDir;

use super::unpacked::{folder_mode, in_first_usable, own_folders, private_folder};
use super::*;

/// The folder that musl's loader takes `$LIB` for.
const MUSL: &str = "$LIB";
/// Folders that glibc's loader may put for it on x86-64: the last part of the folder that it was
/// built for (elf/Makefile, `DL_DST_LIB`), or all of that on Debian.
const GLIBC: [&str; 4] = ["lib64", "lib", "lib/x86_64-linux-gnu", "x86_64-linux-gnu"];
const NAME: &str = "libsidewalk.so";
const PREFIX: &str = "links-";

/// The links. They are removed when this is dropped.
#[derive(Debug)]
pub struct LibraryLinks {
    folder: TempDir,
    /// Holds a shared lock.
    _lock: File,
}

impl LibraryLinks {
    /// Makes links to a library for programs on glibc and one for those on musl, and removes those
    /// of tools that were killed.
    ///
    /// # Errors
    /// No folder is writable by this user alone.
    pub fn new(glibc: &Path, musl: &Path) -> Result<Self, UnpackLibraryError> {
        in_first_usable(&own_folders(), |place| Self::below(place, glibc, musl))
    }

    fn below(place: &Path, glibc: &Path, musl: &Path) -> Result<Self, &'static str> {
        let (path, folder) = private_folder(place)?;
        remove_left(&folder);
        Self::within(&path, glibc, musl).map_err(|error| error_meaning(&error))
    }

    fn within(path: &Path, glibc: &Path, musl: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(folder_mode()))
            .tempdir_in(path)?;
        let lock = File::open(folder.path())?;
        let _ = lock.try_lock_shared();
        let mut make = DirBuilder::new();
        make.mode(folder_mode()).recursive(true);
        let all = GLIBC.map(|name| (name, glibc)).into_iter();
        for (name, library) in all.chain([(MUSL, musl)]) {
            let inside = folder.path().join(name);
            make.create(&inside)?;
            symlink(fs::canonicalize(library)?, inside.join(NAME))?;
        }
        Ok(Self {
            folder,
            _lock: lock,
        })
    }

    /// The path for an environment. No file has it: it is for loaders.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(MUSL).join(NAME)
    }
}

/// Removes links that no tool holds.
fn remove_left(folder: &Folder) {
    let Ok(entries) = fs::read_dir(folder.path()) else {
        return;
    };
    let entries = entries.flatten().map(|entry| entry.path());
    for path in entries.filter(|path| name_of(path).starts_with(PREFIX)) {
        let flags = (OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW).bits();
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&path);
        if let Ok(opened) = opened
            && opened.metadata().is_ok_and(|found| !is_new(&found))
            && opened.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{libc_of_machine, loader};

    fn names(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).unwrap().flatten();
        entries.map(|entry| name_of(&entry.path())).collect()
    }

    #[test]
    fn each_loader_finds_its_library_by_one_path() {
        let home = tempfile::tempdir().unwrap();
        let folder = fs::canonicalize(home.path()).unwrap();
        let [glibc, musl] = ["glibc.so", "musl.so"].map(|name| folder.join(name));
        for library in [&glibc, &musl] {
            fs::write(library, name_of(library)).unwrap();
        }
        let place = folder.join("agents");
        let links = LibraryLinks::below(&place, &glibc, &musl).unwrap();
        let path = links.path();
        // The path as it stands is that of musl.
        assert_eq!(fs::read_to_string(&path).unwrap(), "musl.so");
        let (start, end) = path.to_str().unwrap().split_once("$LIB").unwrap();
        for name in GLIBC {
            let path = format!("{start}{name}{end}");
            assert_eq!(fs::read_to_string(path).unwrap(), "glibc.so");
        }
        drop(links);
        assert!(names(&place).is_empty());
    }

    /// The machine's loader puts one of the names above.
    #[test]
    fn the_machines_loader_knows_the_path() {
        let home = tempfile::tempdir().unwrap();
        let maps = fs::read("/proc/self/maps").unwrap();
        let files = mapped_files(&maps);
        let library = files
            .iter()
            .find(|file| name_of(file).starts_with("libgcc_s"));
        let library = library.expect("tests have unwinding");
        let links = LibraryLinks::below(&home.path().join("agents"), library, library).unwrap();
        let linker = loader(libc_of_machine());
        let listed = Command::new(linker)
            .arg("--list")
            .arg(std::env::current_exe().unwrap())
            .env("LD_PRELOAD", links.path())
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let folder = links.folder.path().to_str().unwrap();
        assert!(listed.contains(folder), "{listed}");
    }

    #[test]
    fn links_of_a_killed_tool_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join("agents");
        let library = Path::new("/proc/self/exe");
        let make = || LibraryLinks::below(&place, library, library).unwrap();
        let (held, left, new) = (make(), make(), make());
        for links in [&held, &left] {
            let past = SystemTime::now() - 2 * UNFINISHED_AGE;
            links._lock.set_modified(past).unwrap();
        }
        let [left, new] = [left, new].map(|links| links.folder.keep());
        let last = make();
        let mut expected = [held.folder.path(), &new, last.folder.path()].map(name_of);
        expected.sort();
        let mut found = names(&place);
        found.sort();
        assert_eq!(found, expected, "without {left:?}");
    }
}
