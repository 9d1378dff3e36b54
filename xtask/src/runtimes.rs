//! .NET runtimes that a command uses: those that set-up found or fetched, and those of the roots
//! that `--runtimes` names.
//!
//! Nothing is fetched or started here. Invariant: each root that the user names has at least one
//! supported runtime, or the command ends before it does anything.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use testkit::Runtime;

use crate::musl;
use crate::process::on_path;

/// The oldest runtime that Sidewalk knows.
const OLDEST: [u64; 2] = [3, 1];

/// Where runtimes lie below a dotnet root.
const FRAMEWORK: &str = "shared/Microsoft.NETCore.App";
const ASPNETCORE: &str = "shared/Microsoft.AspNetCore.App";

/// A folder beside a root for musl with the libraries that the runtime needs and this machine
/// lacks: libstdc++, libgcc_s and OpenSSL, for musl.
const LIBRARIES: &str = "musl-libs";

/// Takes `--runtimes DIR…` out of a command line: all words up to the next option are folders.
pub fn take_roots(arguments: &mut Vec<String>) -> Result<Vec<PathBuf>> {
    let mut roots = Vec::new();
    while let Some(at) = arguments.iter().position(|word| word == "--runtimes") {
        let folders = arguments[at + 1..]
            .iter()
            .take_while(|word| !word.starts_with('-'))
            .count();
        ensure!(
            folders > 0,
            "--runtimes wants folders: `--runtimes DIR…`, each with `dotnet` and `{FRAMEWORK}` in it"
        );
        roots.extend(
            arguments
                .drain(at..=at + folders)
                .skip(1)
                .map(PathBuf::from),
        );
    }
    Ok(roots)
}

/// The user's own .NET: `DOTNET_ROOT`, and the folder of `dotnet` on PATH.
pub fn own_roots() -> Vec<PathBuf> {
    let variable = std::env::var_os("DOTNET_ROOT")
        .filter(|root| !root.is_empty())
        .map(|root| PathBuf::from(root).join("dotnet"));
    let mut roots = Vec::new();
    for dotnet in variable.into_iter().chain(on_path("dotnet")) {
        // PATH often has a link.
        let Ok(dotnet) = dotnet.canonicalize() else {
            continue;
        };
        if let Some(root) = dotnet.parent()
            && dotnet.is_file()
            && !roots.iter().any(|known| known == root)
        {
            roots.push(root.to_owned());
        }
    }
    roots
}

/// The runtimes of a root that the user named, oldest first.
pub fn of_named(root: &Path) -> Result<Vec<Runtime>> {
    let shown = root.display();
    ensure!(root.is_dir(), "--runtimes: {shown} is no folder");
    let root = root
        .canonicalize()
        .with_context(|| format!("--runtimes: {shown}"))?;
    ensure!(
        root.join("dotnet").is_file(),
        "--runtimes: {shown} is no dotnet root: it has no `dotnet`"
    );
    let all = versions(&root.join(FRAMEWORK), "libcoreclr.so");
    ensure!(
        !all.is_empty(),
        "--runtimes: {shown} holds no runtime: there is no {FRAMEWORK}/VERSION/libcoreclr.so in it"
    );
    let (known, old): (Vec<_>, Vec<_>) = all.into_iter().partition(|v| is_known(v));
    if known.is_empty() {
        bail!(
            "--runtimes: {shown} holds {} only; Sidewalk needs .NET Core {}.{} or later",
            old.join(", "),
            OLDEST[0],
            OLDEST[1]
        );
    }
    for version in old {
        eprintln!("runtime {version} of {shown} is left out: it is too old");
    }
    Ok(known.iter().map(|v| at(&root, v)).collect())
}

/// The runtimes of the user's own .NET that we support, oldest first.
pub fn of_own(root: &Path) -> Vec<Runtime> {
    let all = versions(&root.join(FRAMEWORK), "libcoreclr.so");
    let known = all.iter().filter(|version| is_known(version));
    known.map(|version| at(root, version)).collect()
}

/// The newest runtime of a band (`8.0.`) in a root.
pub fn newest(root: &Path, band: &str) -> Option<Runtime> {
    let all = of_own(root);
    all.into_iter()
        .rev()
        .find(|runtime| runtime.version.starts_with(band) && !runtime.version.contains('-'))
}

fn at(root: &Path, version: &str) -> Runtime {
    // The last part may differ: ASP.NET Core is released with the runtime, but counted on its own.
    let band = version.rsplit_once('.').map_or(version, |(band, _)| band);
    let web = versions(&root.join(ASPNETCORE), "Microsoft.AspNetCore.dll");
    let same = web.iter().find(|web| *web == version);
    let near = || web.iter().rev().find(|web| web.starts_with(band));
    let libc = if is_for_musl(root) { "musl" } else { "net" };
    let beside = root.with_file_name(LIBRARIES);
    Runtime {
        name: format!(
            "{libc}{}",
            version.replace(|c: char| !c.is_alphanumeric(), "_")
        ),
        version: version.to_owned(),
        dotnet: root.join("dotnet"),
        aspnetcore: same.or_else(near).cloned(),
        runtime_async: false,
        dumps: false,
        libraries: (libc == "musl" && beside.is_dir()).then_some(beside),
    }
}

/// Whether the programs of a root are for musl: its `dotnet` names musl's loader.
fn is_for_musl(root: &Path) -> bool {
    let dotnet = fs::read(root.join("dotnet")).unwrap_or_default();
    let mut places = dotnet.windows(musl::LOADER.len());
    places.any(|text| text == musl::LOADER.as_bytes())
}

/// The versions of a framework that are whole: have this file. Oldest first.
fn versions(framework: &Path, file: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(framework) else {
        return Vec::new();
    };
    let mut versions: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().join(file).is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    versions.sort_by(|a, b| by_age(a, b));
    versions
}

fn numbers(version: &str) -> Vec<u64> {
    let parts = version.split(['.', '-']);
    parts.map_while(|part| part.parse().ok()).collect()
}

/// Older first; a preview is older than what it was the preview of.
pub fn by_age(a: &str, b: &str) -> Ordering {
    let key = |version: &str| (numbers(version), !version.contains('-'));
    key(a).cmp(&key(b)).then_with(|| a.cmp(b))
}

fn is_known(version: &str) -> bool {
    numbers(version) >= OLDEST.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// A folder that looks like a dotnet root with these files below it.
    fn root(name: &str, files: &[&str]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("sidewalk-{name}-{}", std::process::id()));
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    fn refused(root: &Path) -> String {
        let error = of_named(root).unwrap_err();
        fs::remove_dir_all(root).ok();
        format!("{error:#}")
    }

    #[test]
    fn folders_end_at_the_next_option() {
        let mut line = words("agree mixed --runtimes a b --walks 7 --runtimes c");
        let roots = take_roots(&mut line).unwrap();
        assert_eq!(roots, ["a", "b", "c"].map(PathBuf::from));
        assert_eq!(line, words("agree mixed --walks 7"));
    }

    #[test]
    fn no_folder_is_refused() {
        assert!(take_roots(&mut words("test --runtimes")).is_err());
        assert!(take_roots(&mut words("test --runtimes --walks 7")).is_err());
    }

    #[test]
    fn a_folder_that_is_not_there_is_refused() {
        let error = refused(Path::new("/nowhere/at/all"));
        assert!(error.contains("/nowhere/at/all is no folder"), "{error}");
    }

    #[test]
    fn a_root_without_a_runtime_is_refused() {
        let error = refused(&root("empty", &["dotnet"]));
        assert!(error.contains("holds no runtime"), "{error}");
        let error = refused(&root(
            "other",
            &["shared/Microsoft.NETCore.App/8.0.1/libcoreclr.so"],
        ));
        assert!(error.contains("has no `dotnet`"), "{error}");
    }

    #[test]
    fn a_runtime_that_is_too_old_is_refused() {
        let old = "shared/Microsoft.NETCore.App/2.1.30/libcoreclr.so";
        let error = refused(&root("old", &["dotnet", old]));
        assert!(error.contains("holds 2.1.30 only"), "{error}");
        assert!(error.contains("3.1 or later"), "{error}");
    }

    #[test]
    fn every_runtime_of_a_root_counts_and_says_whether_it_serves_the_web() {
        let framework = |version: &str| format!("{FRAMEWORK}/{version}/libcoreclr.so");
        let files = [
            "dotnet".to_owned(),
            framework("10.0.1"),
            framework("9.0.22"),
            framework("10.0.0-rc.1"),
            framework("2.1.30"),
            // Not whole.
            format!("{FRAMEWORK}/8.0.0/System.dll"),
            format!("{ASPNETCORE}/9.0.21/Microsoft.AspNetCore.dll"),
        ];
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let root = root("several", &files);
        let found = of_named(&root).unwrap();
        let newest = newest(&root, "10.0.").map(|runtime| runtime.name);
        fs::remove_dir_all(&root).unwrap();
        let versions_found: Vec<_> = found
            .iter()
            .map(|runtime| (runtime.name.as_str(), runtime.aspnetcore.as_deref()))
            .collect();
        assert_eq!(
            versions_found,
            [
                ("net9_0_22", Some("9.0.21")),
                ("net10_0_0_rc_1", None),
                ("net10_0_1", None),
            ]
        );
        assert_eq!(newest.as_deref(), Some("net10_0_1"));
    }
}
