//! Resolves a path given by the user without following links that another user has planted.
//!
//! In a folder where everyone may write (`/tmp`), any user can make a symbolic link with the name
//! of a later output, so that the tool overwrites another file of its user. Linux refuses to follow
//! such a link if `fs.protected_symlinks` is set. The setting may be off, and code that resolves
//! links by hand bypasses it. So this module applies the kernel's rule (proc(5), `may_follow_link`
//! in fs/namei.c).
//! Invariant: a returned path has passed no link that the rule forbids.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};

use crate::console::escaped;

/// Maximum number of links, as in the kernel.
const MAX_LINKS: usize = 40;

/// The destination of an output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ResolvedPath {
    /// Our own standard output: `-`, `/dev/stdout` or a link to it.
    Stdout,
    /// This path, which is not a link. The file may not exist.
    File(PathBuf),
    /// A file that a process has open (`/proc/7/fd/3`). It cannot be resolved as a link, or
    /// replaced.
    Open(PathBuf),
}

/// Follows the links of `path`, even if its last component does not exist.
///
/// # Errors
/// A link in a folder where everyone may write belongs to another user, there are too many links,
/// or a folder may not be read.
pub(crate) fn resolve(path: &Path) -> Result<ResolvedPath> {
    if path == Path::new("-") {
        return Ok(ResolvedPath::Stdout);
    }
    let absolute = std::path::absolute(path)?;
    let mut left: Vec<OsString> = words(&absolute);
    let mut done = PathBuf::from("/");
    let mut links = 0;
    while let Some(word) = left.pop() {
        if word == ".." {
            // After a link this is the parent of the link's target, as in the kernel.
            done.pop();
            continue;
        }
        let next = done.join(&word);
        let found = match fs::symlink_metadata(&next) {
            Ok(found) => found,
            // The component does not exist, so no link has to be followed. Opening it will report
            // the error.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                done = next;
                done.extend(left.iter().rev());
                return Ok(ResolvedPath::File(done));
            }
            Err(error) => return Err(error.into()),
        };
        if !found.is_symlink() {
            done = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            bail!("it leads through too many symbolic links");
        }
        if let Some(descriptor) = open_file(&next)
            && left.is_empty()
        {
            return Ok(match descriptor {
                1 => ResolvedPath::Stdout,
                _ => ResolvedPath::Open(next),
            });
        }
        let folder = fs::symlink_metadata(&done)?;
        if !may_follow(&found, &folder, rustix::process::geteuid().as_raw()) {
            bail!(
                "{} is a symbolic link of another user in a folder where everyone may write, and \
                 is not followed",
                escaped(&next)
            );
        }
        let leads = fs::read_link(&next)?;
        if leads.is_absolute() {
            done = PathBuf::from("/");
        }
        left.extend(words(&leads));
    }
    Ok(ResolvedPath::File(done))
}

/// The components of a path, last first.
fn words(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    let named = parts.filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    named.collect()
}

/// The N of `/proc/self/fd/N` (by this process's own id: `/proc/self` is a link). `u32::MAX` for a
/// file that another process has open.
fn open_file(path: &Path) -> Option<u32> {
    let words: Vec<String> = words(path)
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let [number, folder, .., root] = &words[..] else {
        return None;
    };
    if folder != "fd" || root != "proc" {
        return None;
    }
    let own = words.get(2) == Some(&std::process::id().to_string());
    let number = number.parse().ok()?;
    Some(if own { number } else { u32::MAX })
}

/// The kernel's rule: in a sticky folder where everyone may write, only links of the user and of
/// the folder's owner are followed.
fn may_follow(link: &Metadata, folder: &Metadata, us: u32) -> bool {
    allows(link.uid(), folder.uid(), folder.mode(), us)
}

fn allows(link_owner: u32, folder_owner: u32, folder_mode: u32, us: u32) -> bool {
    const STICKY_FOR_ALL: u32 = 0o1002;
    link_owner == us || folder_mode & STICKY_FOR_ALL != STICKY_FOR_ALL || folder_owner == link_owner
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn whose_links_are_followed() {
        let (me, she, root) = (1000, 1001, 0);
        for (link, folder, mode, follows) in [
            (me, root, 0o1777, true),
            (she, root, 0o1777, false),
            (root, root, 0o1777, true),
            (she, she, 0o1777, true),
            (she, root, 0o0777, true),
            (she, root, 0o1755, true),
            (she, me, 0o1777, false),
        ] {
            assert_eq!(allows(link, folder, mode, me), follows, "{link} {mode:o}");
        }
    }

    #[test]
    fn own_links_are_followed_to_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink("a/b", root.join("to-b")).unwrap();
        symlink("../../file", root.join("a/b/up")).unwrap();
        symlink("to-b/up", root.join("chain")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        symlink("nothing/there", root.join("dangling")).unwrap();
        for (path, end) in [
            ("file", "file"),
            ("to-b/x", "a/b/x"),
            ("chain", "file"),
            ("to-b/../x", "a/x"),
            ("dangling", "nothing/there"),
            ("./a/./b", "a/b"),
        ] {
            let resolved = resolve(&root.join(path)).unwrap();
            assert_eq!(resolved, ResolvedPath::File(root.join(end)), "{path}");
        }
        assert!(resolve(&root.join("loop")).is_err());
    }

    #[test]
    fn standard_output_and_open_files() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("/dev/stdout", &link).unwrap();
        for path in [Path::new("-"), Path::new("/dev/stdout"), &link] {
            assert_eq!(resolve(path).unwrap(), ResolvedPath::Stdout);
        }
        let open = resolve(Path::new("/dev/stderr")).unwrap();
        assert!(matches!(open, ResolvedPath::Open(_)), "{open:?}");
    }
}
