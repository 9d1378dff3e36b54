//! Builds by cargo with zig's linker, which has the symbols of each glibc, and musl.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::build::cargo;
use crate::fetch::{Cache, ZIG, ZIGBUILD};

/// Zig, and the cargo command that links by it.
pub struct Zig {
    zig: PathBuf,
    zigbuild: PathBuf,
}

impl Cache {
    /// Returns zig, fetched where it is not in the cache yet.
    ///
    /// # Errors
    /// A package cannot be had.
    pub fn zig(&self) -> Result<Zig> {
        Ok(Zig {
            zig: self.wheel(&ZIG)?.join(ZIG.executable),
            zigbuild: self.wheel(&ZIGBUILD)?.join(ZIGBUILD.executable),
        })
    }
}

impl Zig {
    /// Returns the command of its C compiler, for musl.
    pub fn cc(&self) -> Command {
        let mut command = Command::new(&self.zig);
        command.args(["cc", "-target", "x86_64-linux-musl"]);
        command
    }

    /// Returns the folder of the sources of musl that it carries.
    pub fn musl(&self) -> PathBuf {
        self.zig.with_file_name("lib/libc/musl")
    }

    /// Returns the command of a release build of packages of this workspace, into `target_dir`.
    pub fn build(&self, target: &str, target_dir: &Path, packages: &[&str]) -> Command {
        // Cargo-zigbuild is called as cargo calls it, with the same cargo behind it.
        let mut command = Command::new(&self.zigbuild);
        command.args(["zigbuild", "--release", "--locked", "--target", target]);
        command.arg("--target-dir").arg(target_dir);
        for package in packages {
            command.args(["--package", package]);
        }
        command
            .current_dir(testkit::repository())
            .env("CARGO", cargo(&[]).get_program())
            .env("CARGO_ZIGBUILD_ZIG_PATH", &self.zig)
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
            .env("CARGO_INCREMENTAL", "0");
        command
    }
}
