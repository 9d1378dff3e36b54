//! Build script: embeds the agent in the binary, through `carried.rs`, which `main.rs` includes.
//!
//! Cargo does not build another package's library file for a package. So this script runs a second
//! cargo for `libsidewalk`, in a target folder of its own.
//! `SIDEWALK_CARRY` overrides this. `no` embeds nothing (set in the repository's
//! `.cargo/config.toml`, because each `cargo build` would build the agent twice). A path names an
//! agent that is already built (`cargo xtask dist`).

use std::env::{self, var_os};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const VARIABLE: &str = "SIDEWALK_CARRY";
const MUSL: &str = "SIDEWALK_CARRY_MUSL";

fn main() {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-env-changed={MUSL}");
    println!("cargo::rerun-if-changed=build.rs");
    let choice = env::var(VARIABLE).unwrap_or_default();
    let agent = match choice.as_str() {
        "no" => None,
        "" | "yes" => Some(build()),
        path => {
            println!("cargo::rerun-if-changed={path}");
            Some(PathBuf::from(path))
        }
    };
    let musl = var_os(MUSL).map(PathBuf::from);
    if let Some(path) = musl.as_deref().and_then(Path::to_str) {
        println!("cargo::rerun-if-changed={path}");
    }
    let text = format!(
        "/// The agents.\nconst CARRIED: sidewalk_cli::EmbeddedAgents = sidewalk_cli::EmbeddedAgents {{\n    \
         glibc: {},\n    musl: {},\n}};\n",
        carried(agent.as_deref(), "agent.so"),
        carried(musl.as_deref(), "agent-musl.so")
    );
    let folder = PathBuf::from(var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(folder.join("carried.rs"), text).expect("the folder is ours to write to");
}

/// The expression for an agent. It is copied, so that the binary is what this run saw, and no path
/// of this machine is in it.
fn carried(agent: Option<&Path>, name: &str) -> String {
    let Some(agent) = agent else {
        return "None".to_owned();
    };
    let copied = PathBuf::from(var_os("OUT_DIR").expect("cargo sets it")).join(name);
    if let Err(error) = fs::copy(agent, &copied) {
        panic!("cannot read the agent {agent:?}: {error}");
    }
    let hash = hash_of(&copied);
    format!(
        "Some(sidewalk_cli::EmbeddedAgent {{\n        content: include_bytes!(\"{name}\"),\n        \
         hash: \"{hash}\",\n    }})"
    )
}

/// Builds the agent as this package is built: same compiler, target, flags, and profile.
fn build() -> PathBuf {
    let get = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let here = PathBuf::from(get("CARGO_MANIFEST_DIR"));
    let package = here.join("../libsidewalk/Cargo.toml");
    assert!(
        package.is_file(),
        "there are no sources of the agent, {package:?}: build in a whole checkout, or set {VARIABLE} to an \
         agent that was built"
    );
    let (target, out) = (get("TARGET"), PathBuf::from(get("OUT_DIR")).join("agent"));
    let mut cargo = Command::new(get("CARGO"));
    cargo
        .args(["build", "--target", &target, "--target-dir"])
        .arg(&out)
        .arg("--manifest-path")
        .arg(&package)
        // The agent is built with this package's flags. Target folders that are set for this
        // package do not apply to it.
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("CARGO_BUILD_TARGET_DIR");
    let profile = get("PROFILE");
    if profile == "release" {
        // The agent's frames need names, but no line numbers.
        cargo.args([
            "--release",
            "--config",
            "profile.release.strip=\"debuginfo\"",
        ]);
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "the agent does not build: {status}");
    let built = out.join(&target).join(profile);
    for source in sources(&built.join("libsidewalk.d")) {
        println!("cargo::rerun-if-changed={source}");
    }
    let lock = here.join("../../Cargo.lock");
    println!("cargo::rerun-if-changed={}", lock.to_string_lossy());
    built.join("libsidewalk.so")
}

/// The hash in the name of the agent's unpacked file: the first digits of its SHA-256, as in
/// `diagnostics::hash_of`.
fn hash_of(agent: &Path) -> String {
    use sha2::{Digest, Sha256};
    let content = fs::read(agent).expect("it was just copied");
    let digits = Sha256::digest(content);
    let mut hash: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
    hash.truncate(16);
    hash
}

/// Returns the source files of the library, as listed by cargo. Blanks in names are escaped with a
/// backslash.
fn sources(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).expect("cargo writes it beside the library");
    let (_, sources) = text.split_once(": ").unwrap_or_default();
    let sources = sources.replace("\\ ", "\0");
    let sources = sources.split_whitespace();
    sources.map(|name| name.replace('\0', " ")).collect()
}
