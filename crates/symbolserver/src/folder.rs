//! Folder in which downloaded files are kept.
//!
//! It is the folder of debuginfod's own client, so debuggers and Sidewalk share the files.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The folder, by the environment that `variable` reads: `DEBUGINFOD_CACHE_PATH`, else
/// `~/.debuginfod_client_cache` where there is one, else `debuginfod_client` in the user's cache.
#[must_use]
pub fn find(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| {
        let value = variable(name).filter(|value| !value.is_empty())?;
        Some(PathBuf::from(value))
    };
    if let Some(variable_value) = path("DEBUGINFOD_CACHE_PATH") {
        return Some(variable_value);
    }
    let home = path("HOME");
    let old = home
        .as_ref()
        .map(|home| home.join(".debuginfod_client_cache"));
    if let Some(old) = old.filter(|old| old.is_dir()) {
        return Some(old);
    }
    let cache = path("XDG_CACHE_HOME").or_else(|| Some(home?.join(".cache")))?;
    Some(cache.join("debuginfod_client"))
}

/// Makes the folder with what is above it; others may not write into it.
pub(crate) fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_folder_is_that_of_debuginfods_client() {
        let home = tempfile::tempdir().unwrap();
        let find = |set: &[(&str, &str)]| {
            let value = |name: &str| {
                let home = (name == "HOME").then(|| home.path().as_os_str().to_owned());
                let variable_value = set.iter().find(|(known, _)| *known == name);
                variable_value
                    .map(|(_, value)| OsString::from(value))
                    .or(home)
            };
            super::find(value).unwrap()
        };
        assert_eq!(find(&[]), home.path().join(".cache/debuginfod_client"));
        let elsewhere = [("XDG_CACHE_HOME", "/c")];
        assert_eq!(find(&elsewhere), Path::new("/c/debuginfod_client"));
        let old = home.path().join(".debuginfod_client_cache");
        fs::create_dir(&old).unwrap();
        assert_eq!(find(&elsewhere), old);
        assert_eq!(find(&[("DEBUGINFOD_CACHE_PATH", "/d")]), Path::new("/d"));
        assert_eq!(super::find(|_| None), None);
    }
}
