//! Brings the agent into the binary: `carried.rs`, which `main.rs` includes.
//!
//! Cargo builds no package for its library's file on behalf of another one, so this runs another
//! cargo for `libsidewalk`, in a target folder of its own. `SIDEWALK_CARRY` says otherwise: `no`
//! (the repository's `.cargo/config.toml`, where each `cargo build` would build the agent twice),
//! or the path of an agent that was built (`cargo xtask dist`). `SIDEWALK_CARRY_MUSL` is the path
//! of one for musl, which has a toolchain of its own; without it there is none.

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
        // Frames of the agent have names. Its line numbers are not needed here.
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

/// The hash that the agent's file is named by when it is unpacked: the first digits of its SHA-256,
/// as `diagnostics::hash_of` has it.
fn hash_of(agent: &Path) -> String {
    use sha2::{Digest, Sha256};
    let content = fs::read(agent).expect("it was just copied");
    let digits = Sha256::digest(content);
    let mut hash: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
    hash.truncate(16);
    hash
}

/// Returns the files that the library was made of, as cargo lists them. Blanks in names are written
/// with a backslash.
fn sources(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).expect("cargo writes it beside the library");
    let (_, sources) = text.split_once(": ").unwrap_or_default();
    let sources = sources.replace("\\ ", "\0");
    let sources = sources.split_whitespace();
    sources.map(|name| name.replace('\0', " ")).collect()
}
