//! Finds an installed CLR on disk, by version or by folder.
//!
//! [`find`] only searches; `host` loads and starts the CLR.
//!
//! Invariant: the returned folder contains libcoreclr.so.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub(crate) const LIBRARY: &str = "libcoreclr.so";
const FRAMEWORK: &str = "shared/Microsoft.NETCore.App";

/// A CLR on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstalledRuntime {
    /// The folder of libcoreclr.so, absolute.
    pub(crate) folder: PathBuf,
    /// Display name: the folder's name if that is a version, otherwise the folder's path.
    pub(crate) name: String,
    /// Major and minor version, if the name contains them.
    pub(crate) band: Option<(u32, u32)>,
}

/// Finds the CLR that `wanted` names.
///
/// # Errors
/// No such CLR; the message lists the searched places.
pub(crate) fn find(wanted: &OsStr) -> Result<InstalledRuntime> {
    let text = wanted.to_string_lossy();
    if is_version(&text) && !Path::new(wanted).is_dir() {
        let places = places();
        return newest(&text, &places).with_context(|| {
            let list: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
            format!(
                "no .NET runtime {text} is installed (looked in {}). Install it, name its folder, \
                 or run `cargo xtask setup` in Sidewalk's checkout for 3.1 and 8.0",
                list.join(", ")
            )
        });
    }
    in_folder(Path::new(wanted))
}

fn in_folder(folder: &Path) -> Result<InstalledRuntime> {
    let shown = folder.display();
    let folder = folder
        .canonicalize()
        .with_context(|| format!("{shown} is neither a version nor a folder"))?;
    if folder.join(LIBRARY).is_file() {
        return Ok(InstalledRuntime::at(folder));
    }
    match newest("", std::slice::from_ref(&folder)) {
        Some(found) => Ok(found),
        None => bail!("there is no {LIBRARY} in {shown}, nor a {FRAMEWORK}/VERSION with one"),
    }
}

impl InstalledRuntime {
    fn at(folder: PathBuf) -> InstalledRuntime {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let parts = version(&name);
        let (name, band) = match parts.as_slice() {
            [major, minor, ..] => (name.into_owned(), Some((*major, *minor))),
            _ => (folder.display().to_string(), None),
        };
        InstalledRuntime { name, band, folder }
    }
}

/// The newest CLR of these installations whose version begins with `wanted`.
fn newest(wanted: &str, places: &[PathBuf]) -> Option<InstalledRuntime> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = Vec::new();
    for place in places {
        let Ok(versions) = fs::read_dir(place.join(FRAMEWORK)) else {
            continue;
        };
        for entry in versions.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let fits = name
                .strip_prefix(wanted)
                .is_some_and(|rest| wanted.is_empty() || rest.is_empty() || rest.starts_with('.'));
            if fits && entry.path().join(LIBRARY).is_file() {
                found.push((version(&name), entry.path()));
            }
        }
    }
    // Stable sort: for equal versions the first place wins.
    found.sort_by(|a, b| b.0.cmp(&a.0));
    let (_, folder) = found.into_iter().next()?;
    Some(InstalledRuntime::at(folder.canonicalize().ok()?))
}

/// Existing installations of .NET, the user's choice first.
fn places() -> Vec<PathBuf> {
    let set = |name: &str| {
        let value = env::var_os(name).filter(|value| !value.is_empty())?;
        Some(PathBuf::from(value))
    };
    let mut places: Vec<PathBuf> = set("DOTNET_ROOT").into_iter().collect();
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path)
        .map(|folder| folder.join("dotnet"))
        .find(|program| program.is_file())
        .and_then(|program| program.canonicalize().ok());
    places.extend(on_path.and_then(|program| program.parent().map(Path::to_path_buf)));
    let home = set("HOME");
    places.extend(home.as_ref().map(|home| home.join(".dotnet")));
    places.extend(["/usr/share/dotnet", "/usr/lib/dotnet", "/usr/lib64/dotnet"].map(PathBuf::from));
    // Downloaded by `cargo xtask setup` (testkit::cache_dir).
    let cache = set("SIDEWALK_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("sidewalk")))
        .or_else(|| home.map(|folder| folder.join(".cache/sidewalk")));
    let fetched = cache.and_then(|cache| fs::read_dir(cache).ok());
    let mut fetched: Vec<PathBuf> = fetched
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    fetched.sort();
    places.extend(fetched);
    places.retain(|place| place.join(FRAMEWORK).is_dir());
    places
}

fn is_version(text: &str) -> bool {
    !text.contains('/') && !version(text).is_empty()
}

/// The numbers of `8.0.4` or `9.0.0-preview.1`; empty for a text that is not a version.
fn version(text: &str) -> Vec<u32> {
    let numbers = text.split_once('-').map_or(text, |(numbers, _)| numbers);
    let parts: Option<Vec<u32>> = numbers.split('.').map(|part| part.parse().ok()).collect();
    parts.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(root: &Path, versions: &[&str]) {
        for version in versions {
            let folder = root.join(FRAMEWORK).join(version);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(LIBRARY), "").unwrap();
        }
    }

    #[test]
    fn the_newest_version_that_fits() {
        let place = tempfile::tempdir().unwrap();
        let (one, two) = (place.path().join("one"), place.path().join("two"));
        install(&one, &["3.1.9", "3.1.23", "8.0.4"]);
        install(&two, &["8.0.4", "8.0.10", "10.0.1"]);
        fs::create_dir_all(two.join(FRAMEWORK).join("8.0.99")).unwrap();
        let places = [one.clone(), two];
        for (wanted, name) in [
            ("3.1", Some("3.1.23")),
            ("3.1.9", Some("3.1.9")),
            ("8", Some("8.0.10")),
            ("8.0.4", Some("8.0.4")),
            ("1", None),
            ("8.0.99", None),
            ("", Some("10.0.1")),
        ] {
            let found = newest(wanted, &places);
            assert_eq!(found.as_ref().map(|f| f.name.as_str()), name, "{wanted}");
        }
        let first = newest("8.0.4", &places).unwrap();
        assert!(first.folder.starts_with(one.canonicalize().unwrap()));
        assert_eq!(first.band, Some((8, 0)));
        assert_eq!(in_folder(&one).unwrap().name, "8.0.4");
        assert_eq!(in_folder(&first.folder).unwrap(), first);
        let other = place.path().join("built");
        fs::create_dir(&other).unwrap();
        assert!(in_folder(&other).unwrap_err().to_string().contains(LIBRARY));
        fs::write(other.join(LIBRARY), "").unwrap();
        assert_eq!(in_folder(&other).unwrap().band, None);
    }
}
