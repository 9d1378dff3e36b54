//! The toolchain for musl: Rust with the sources of its standard library, and zig as the linker.
//!
//! Rust's own builds for musl are in no registry of packages, so the standard library is built with
//! ours, by Debian's compiler (the one for browsers, which is new). Packages are unpacked into the
//! cache; nothing is installed. The invariant: what is used is what the pins below name.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use testkit::{Runtime, Setup, cache_dir, musl_dir, repository, target_dir};

use crate::build::{DOUBLES, cargo};
use crate::fetch::{Cache, check, only_file};
use crate::process::{on_path, run, run_quietly};
use crate::zig::Zig;

/// The target's name for cargo.
pub const TARGET: &str = "x86_64-unknown-linux-musl";

/// A package of Debian's: name, version, SHA-256.
type Package = (&'static str, &'static str, &'static str);

/// The compiler with its libraries; cargo is ours.
const RUST: [Package; 6] = [
    (
        "rustc-web",
        "1.96.0+dfsg1-1~deb12u2",
        "8fefe1d6377fe4082f5a9d2a47e095e2d20319eaab9754bd2f0275155c9adf90",
    ),
    (
        "libstd-rust-web-dev",
        "1.96.0+dfsg1-1~deb12u2",
        "e38dbeaaad673fc63fb47c5140cf34da271ac71c3ecafc828b762c2fb01fe77a",
    ),
    (
        "libstd-rust-web-1.96",
        "1.96.0+dfsg1-1~deb12u2",
        "3755f30434ae29574c91b0beb86632bee401607b0ac35c3e52810f9a53fae0d1",
    ),
    (
        "rust-web-src",
        "1.96.0+dfsg1-1~deb12u2",
        "9de8597c464d0a9283672973ed7e50092b49a92b95861429043fe8b57468a208",
    ),
    (
        "libllvm22",
        "1:22.1.8-1~deb12u1",
        "729ec3e943d320515c2bbdc96acfffd7ce34861e62bd5c42726bf586d644dfe2",
    ),
    (
        "libz3-4",
        "4.8.12-3.1",
        "6221ca25ad5abcfbe1965801029d85a88b4775320384b4b716de8fab7a4d2f7a",
    ),
];

/// A shell and small programs that need no C library.
const BUSYBOX: Package = (
    "busybox-static",
    "1:1.35.0-4+deb12u1+b1",
    "3d3fdbe91d4660c873e14b092c213fe81c1da6362daa236eb25d0171eb108744",
);

/// The program that runs tests so that their programs see no glibc.
const IN_ROOT: &str = "in-musl-root";

/// The place of musl's loader, which is also its C library.
pub const LOADER: &str = "/lib/ld-musl-x86_64.so.1";

impl Cache {
    /// Packages of Debian's, unpacked into one folder.
    fn debian(&self, folder: &str, what: &str, packages: &[Package]) -> Result<PathBuf> {
        self.folder(folder, |scratch| {
            if on_path("apt-get").is_none() || on_path("dpkg-deb").is_none() {
                bail!("{what} comes as packages of Debian 12: apt-get and dpkg-deb are not here");
            }
            eprintln!("fetching {what}: {} packages of Debian's", packages.len());
            let unpacked = scratch.join("unpacked");
            for (name, version, sha256) in packages {
                let place = scratch.join(name);
                std::fs::create_dir_all(&place)?;
                let mut apt = Command::new("apt-get");
                apt.args(["download", "--quiet"]).current_dir(&place);
                run_quietly(apt.arg(format!("{name}={version}"))).with_context(|| {
                    format!(
                        "Debian serves no {name} {version}: run apt-get update, or pin the version \
                         that it has now (xtask/src/musl.rs)"
                    )
                })?;
                let file = only_file(&place)?;
                check(&file, sha256)?;
                let mut dpkg = Command::new("dpkg-deb");
                run_quietly(dpkg.arg("--extract").args([&file, &unpacked]))?;
            }
            Ok(unpacked)
        })
    }

    /// The toolchain.
    ///
    /// # Errors
    /// A package cannot be had.
    pub fn musl(&self) -> Result<Musl> {
        Ok(Musl {
            rust: self.debian("rust-1.96.0-src", "Rust 1.96.0 with its sources", &RUST)?,
            zig: self.zig()?,
        })
    }
}

/// A toolchain that builds for musl.
pub struct Musl {
    rust: PathBuf,
    zig: Zig,
}

/// How a build for musl gets its C library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linking {
    /// A library, which uses the one of the program that loads it.
    Library,
    /// A program that has it inside and runs on every Linux.
    Static,
}

impl Musl {
    /// Returns the folder of its compiler and of the standard library's sources.
    pub fn rust(&self) -> &Path {
        &self.rust
    }

    /// Returns the command that builds packages, with further flags for the compiler. Their results
    /// are in `TARGET/release` below `target_dir`.
    pub fn build(
        &self,
        target_dir: &Path,
        packages: &[&str],
        linking: Linking,
        flags: &[String],
    ) -> Command {
        let usr = self.rust.join("usr");
        let linking: &[&str] = match linking {
            Linking::Library => &["-Ctarget-feature=-crt-static"],
            // Debian's compiler has no start files for musl; zig has them.
            Linking::Static => &["-Ctarget-feature=+crt-static", "-Clink-self-contained=no"],
        };
        let flags: Vec<&str> = linking
            .iter()
            .copied()
            .chain(flags.iter().map(String::as_str))
            .collect();
        let mut command = self.zig.build(TARGET, target_dir, packages);
        command
            .arg("-Zbuild-std=std,panic_unwind")
            .env("RUSTC", usr.join("bin/rustc"))
            // It is linked against libraries of its packages.
            .env("LD_LIBRARY_PATH", usr.join("lib/x86_64-linux-gnu"))
            // Cargo's `build-std` is not stable.
            .env("RUSTC_BOOTSTRAP", "1")
            // The form in which a flag may have blanks.
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        command
    }
}

/// Builds the agent for musl, `target/musl/libsidewalk.so`, and the tool that runs on every Linux
/// and carries both agents, `target/musl/sidewalk`.
///
/// # Errors
/// The toolchain cannot be had, or a build fails.
pub fn build() -> Result<()> {
    // No other process gets anything from the cache while it is open.
    let musl = Cache::open()?.musl()?;
    run(&mut musl.build(&musl_dir(), &["libsidewalk"], Linking::Library, &[]))?;
    let agent = take("libsidewalk.so")?;
    let on_glibc = target_dir().join("release/libsidewalk.so");
    run(cargo(&["build", "--release"]).args(["--package", "libsidewalk"]))?;
    let mut tool = musl.build(&musl_dir(), &["sidewalk"], Linking::Static, &[]);
    tool.env("SIDEWALK_CARRY", on_glibc);
    run(tool.env("SIDEWALK_CARRY_MUSL", agent))?;
    take("sidewalk").map(drop)
}

/// Builds the same, and into the same folder what else programs on musl load in tests.
///
/// # Errors
/// The toolchain cannot be had, or a build fails.
pub fn build_for_tests() -> Result<()> {
    build()?;
    let musl = Cache::open()?.musl()?;
    // `runsxs` loads runtimes, so it is no static program, and finds their libraries beside it.
    let flags = ["-Clink-arg=-dynamic", "-Clink-arg=-Wl,-rpath,$ORIGIN"].map(str::to_owned);
    let packages = [&DOUBLES[..], &["runsxs"]].concat();
    run(&mut musl.build(&musl_dir(), &packages, Linking::Library, &flags))?;
    take("runsxs")?;
    run(&mut musl.build(&musl_dir(), &["testkit"], Linking::Static, &[]))?;
    take(IN_ROOT)?;
    for library in DOUBLES {
        take(&format!("lib{}.so", library.replace('-', "_")))?;
    }
    Ok(())
}

/// Returns the command that runs tests in such a way that the programs that they start on musl, and
/// the tool, see a root with musl, the runtimes and a static busybox, and no glibc.
///
/// # Errors
/// The busybox cannot be had.
pub(crate) fn in_root(tests: &Command, setup: &Setup) -> Result<Command> {
    let busybox = Cache::open()?.debian("busybox-1.35.0", "a static busybox", &[BUSYBOX])?;
    let runtimes = setup.runtimes.iter().filter(|runtime| runtime.is_musl());
    let mut command = Command::new(musl_dir().join(IN_ROOT));
    command
        .args([Path::new(LOADER), &busybox.join("bin/busybox")])
        .args([repository(), &target_dir(), &cache_dir()])
        .args(runtimes.clone().map(Runtime::root))
        .arg("--")
        .args(["sidewalk", "runsxs"].map(|file| musl_dir().join(file)))
        .args(runtimes.map(|runtime| &runtime.dotnet))
        .arg("--")
        .arg(tests.get_program())
        .args(tests.get_args());
    for (name, value) in tests.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Ok(command)
}

/// Links the libraries that runtimes need and the machine lacks into the folder of what is built.
pub(crate) fn link(libraries: &Path) -> Result<()> {
    std::fs::create_dir_all(musl_dir())?;
    for entry in std::fs::read_dir(libraries)? {
        let library = entry?.path();
        let link = musl_dir().join(library.file_name().unwrap_or_default());
        if std::fs::canonicalize(&link).ok() != std::fs::canonicalize(&library).ok() {
            std::fs::remove_file(&link).ok();
            std::os::unix::fs::symlink(&library, link)?;
        }
    }
    Ok(())
}

/// Copies what has been built out of cargo's folder, and returns the copy.
fn take(file: &str) -> Result<PathBuf> {
    let taken = musl_dir().join(file);
    // Programs that have the one before it mapped go on.
    let new = taken.with_extension("new");
    std::fs::copy(musl_dir().join(TARGET).join("release").join(file), &new)?;
    std::fs::rename(new, &taken)?;
    eprintln!("built {}", taken.display());
    Ok(taken)
}
