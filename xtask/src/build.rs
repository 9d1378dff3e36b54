//! Builds by cargo: the development build for tests and demo, and the release build for users.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::process::run;

/// Commands and agent: what users get.
const RELEASED: [&str; 3] = ["sidewalk", "libsidewalk", "runsxs"];

/// Libraries that only tests load: an old profiler, the oracle, and doubles of other machines and
/// programs.
pub(crate) const DOUBLES: [&str; 6] = [
    "v2-agent",
    "oracle",
    "tight-stacks",
    "fast-clocks",
    "native-threads",
    "watched-malloc",
];

/// Build of commands and agent to run (`SIDEWALK_PROFILE`, see `testkit::profile_dir`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildProfile {
    /// `target/debug`: quick to build, with debug assertions.
    Development,
    /// `target/release`: as users get it.
    Release,
}

impl BuildProfile {
    /// The name of its folder below cargo's target folder.
    pub fn folder(self) -> &'static str {
        match self {
            BuildProfile::Development => "debug",
            BuildProfile::Release => "release",
        }
    }

    /// The options of cargo that select it.
    fn options(self) -> &'static [&'static str] {
        match self {
            BuildProfile::Development => &[],
            BuildProfile::Release => &["--release"],
        }
    }
}

/// Builds commands and agent; `doubles` adds the libraries that only tests load.
///
/// Does nothing where the caller brings a build of its own (`SIDEWALK_BIN_DIR`).
///
/// # Errors
/// The build fails.
pub fn build(profile: BuildProfile, doubles: bool) -> Result<()> {
    if std::env::var_os("SIDEWALK_BIN_DIR").is_some() {
        return Ok(());
    }
    run(&mut build_command(profile, doubles))
}

/// The command of [`build`].
pub(crate) fn build_command(profile: BuildProfile, doubles: bool) -> Command {
    let mut command = cargo(&["build"]);
    command.args(profile.options());
    let doubles = if doubles { &DOUBLES[..] } else { &[] };
    for name in RELEASED.iter().chain(doubles) {
        command.args(["--package", name]);
    }
    command
}

/// The cargo that runs us, in the repository.
pub fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(PathBuf::from(cargo));
    command.args(arguments).current_dir(testkit::repository());
    command
}
