//! Folder of profiles with limits.
//!
//! Invariants: a file gets its name when it is whole. Only files that were pushed here are removed:
//! those named `sidewalk-<name>-<time><ending>`. The newest file is kept, whatever the limits.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::private::{is_temporary, make_private, temporary_in};
use crate::stamp::{stamp_in, utc_stamp};

/// Limits of a folder. Those that are given all hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FolderLimits {
    /// Number of files.
    pub files: Option<usize>,
    /// Bytes of all files together.
    pub bytes: Option<u64>,
    /// Time since the begin of a profile.
    pub age: Option<Duration>,
}

/// Bytes of a folder without other limits.
const DEFAULT_BYTES: u64 = 1 << 30;
/// Age at which such a file is left over from a tool that was killed.
const LEFT_OVER: Duration = Duration::from_secs(3600);

/// A folder to push to.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    limits: FolderLimits,
}

/// A pushed file.
struct Pushed {
    /// Sorts by time.
    stamp: String,
    name: OsString,
    bytes: u64,
}

impl Folder {
    /// The folder at `path`. It is made if it does not exist, for its owner alone.
    ///
    /// # Errors
    /// It cannot be made, or not be written.
    pub fn open(path: &Path, limits: FolderLimits) -> io::Result<Folder> {
        make_private(path)?;
        // Leaves nothing.
        temporary_in(path)?;
        let limits = match limits == FolderLimits::default() {
            true => FolderLimits {
                bytes: Some(DEFAULT_BYTES),
                ..limits
            },
            false => limits,
        };
        Ok(Folder {
            path: path.to_owned(),
            limits,
        })
    }

    /// Writes a profile that began at `unix_ns`, and removes the oldest beyond the limits. Returns
    /// its path.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn push(
        &self,
        name: &str,
        unix_ns: u64,
        ending: &str,
        content: &[u8],
    ) -> io::Result<PathBuf> {
        let stamp = utc_stamp(unix_ns);
        let name = name.strip_prefix("sidewalk-").unwrap_or(name);
        let path = self.path.join(format!("sidewalk-{name}-{stamp}{ending}"));
        // Room is made first: a full disk is why there are limits.
        self.prune(content.len() as u64, ending)?;
        let mut file = temporary_in(&self.path)?;
        file.write_all(content)?;
        file.persist(&path).map_err(|error| error.error)?;
        Ok(path)
    }

    /// Removes the oldest files until one more of this size fits.
    fn prune(&self, more: u64, ending: &str) -> io::Result<()> {
        let mut all = self.pushed(ending)?;
        all.sort_by(|a, b| b.stamp.cmp(&a.stamp));
        let oldest = self.limits.age.and_then(|age| {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let since = since.ok()?.saturating_sub(age);
            Some(utc_stamp(u64::try_from(since.as_nanos()).ok()?))
        });
        let (mut files, mut bytes) = (1, more);
        let mut is_full = false;
        for one in all {
            files += 1;
            bytes = bytes.saturating_add(one.bytes);
            is_full |= self.limits.files.is_some_and(|most| files > most)
                || self.limits.bytes.is_some_and(|most| bytes > most)
                || oldest.as_ref().is_some_and(|oldest| one.stamp < *oldest);
            if is_full {
                remove(&self.path.join(one.name))?;
            }
        }
        Ok(())
    }

    /// The pushed files with this ending, and removes what a killed tool has left.
    fn pushed(&self, ending: &str) -> io::Result<Vec<Pushed>> {
        let mut pushed = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            // It may have been removed by another tool.
            let (Some(text), Ok(facts)) = (name.to_str(), entry.metadata()) else {
                continue;
            };
            if !facts.is_file() {
                continue;
            }
            if is_temporary(&entry.path()) {
                let age = facts.modified()?.elapsed().unwrap_or_default();
                if age > LEFT_OVER {
                    remove(&entry.path())?;
                }
                continue;
            }
            let stem = text.strip_suffix(ending);
            let stamp = stem.filter(|stem| stem.starts_with("sidewalk-"));
            if let Some(stamp) = stamp.and_then(stamp_in) {
                pushed.push(Pushed {
                    stamp: stamp.to_owned(),
                    bytes: facts.len(),
                    name,
                });
            }
        }
        Ok(pushed)
    }
}

/// Removes a file, unless another tool did.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn now_ns() -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        u64::try_from(now.unwrap().as_nanos()).unwrap()
    }

    /// Pushes profiles of these sizes, a minute apart, the last one now. Returns the sizes that are
    /// left.
    fn left(limits: FolderLimits, sizes: &[usize]) -> Vec<u64> {
        let home = tempfile::tempdir().unwrap();
        let folder = Folder::open(home.path(), limits).unwrap();
        let now = now_ns();
        for (at, size) in sizes.iter().enumerate() {
            let ago = (sizes.len() - 1 - at) as u64 * 60 * SECOND;
            let pushed = folder.push("app-7", now - ago, ".pb.gz", &vec![1; *size]);
            assert_eq!(fs::metadata(pushed.unwrap()).unwrap().len(), *size as u64);
        }
        let names = names(home.path());
        let sizes = names
            .iter()
            .map(|name| fs::metadata(home.path().join(name)).unwrap().len());
        sizes.collect()
    }

    #[test]
    fn the_oldest_go_first() {
        let none = FolderLimits::default();
        let files = |n| FolderLimits {
            files: Some(n),
            ..none
        };
        let bytes = |n| FolderLimits {
            bytes: Some(n),
            ..none
        };
        let age = |minutes: u64| FolderLimits {
            age: Some(Duration::from_secs(minutes * 60 + 30)),
            ..none
        };
        let sizes = [10, 20, 30, 40];
        assert_eq!(left(none, &sizes), [10, 20, 30, 40]);
        assert_eq!(left(files(4), &sizes), [10, 20, 30, 40]);
        assert_eq!(left(files(2), &sizes), [30, 40]);
        assert_eq!(left(bytes(90), &sizes), [20, 30, 40]);
        assert_eq!(left(bytes(89), &sizes), [30, 40]);
        assert_eq!(left(age(1), &sizes), [30, 40]);
        let both = FolderLimits {
            bytes: Some(90),
            ..files(2)
        };
        assert_eq!(left(both, &sizes), [30, 40]);
        // The newest stays.
        assert_eq!(left(bytes(1), &sizes), [40]);
        assert_eq!(left(files(0), &sizes), [40]);
    }

    #[test]
    fn other_files_stay() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("made/here");
        let limits = FolderLimits {
            files: Some(1),
            ..FolderLimits::default()
        };
        let folder = Folder::open(&path, limits).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let theirs = [
            ".sidewalk-push-being-written",
            "notes.pb.gz",
            "sidewalk-app-7.pb.gz",
            "sidewalk-app-20261129T003407.125Z.html",
        ];
        for name in theirs {
            fs::write(path.join(name), "x").unwrap();
        }
        fs::create_dir(path.join("sidewalk-app-20261129T003407.125Z.pb.gz")).unwrap();
        for second in 0..3 {
            folder
                .push("sidewalk-app-7", second * SECOND, ".pb.gz", b"x")
                .unwrap();
        }
        let mut expected = theirs.map(str::to_owned).to_vec();
        expected.push("sidewalk-app-20261129T003407.125Z.pb.gz".into());
        expected.push("sidewalk-app-7-19700101T000002.000Z.pb.gz".into());
        expected.sort();
        assert_eq!(names(&path), expected);
    }

    #[test]
    fn a_folder_that_cannot_be_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(Folder::open(&file, FolderLimits::default()).is_err());
    }
}
