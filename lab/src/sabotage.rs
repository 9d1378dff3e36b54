//! `cargo xtask sabotage`: breaks the agent in a copy of the sources, one thing at a time, and demands that a test on real
//! CLRs goes red by it.
//!
//! Not part of `cargo xtask test`: each break is a build. Invariants: the sources themselves are never touched; the same tests pass
//! with the agent of an unbroken copy first, so red means the break; a break whose text is not in the sources any more is an error.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use xtask::build::{Profile, build, cargo};
use xtask::process::run as run_command;
use xtask::setup;

/// One thing to break.
struct Break {
    what: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// The test that must see it, and what it says then.
    test: &'static str,
    says: &'static str,
}

const CHAINS: &str = "async_chains::chains::net8";
const STRESS: &str = "stress::async_stacks_while_everything_moves";

const BREAKS: [Break; 4] = [
    Break {
        what: "a wrong GcInfo version",
        file: "crates/stackwalk/src/gc_info/mod.rs",
        from: "            2..=8 => Some(Version::V2),\n            9 =>",
        to: "            2..=8 => Some(Version::V4),\n            9 =>",
        test: CHAINS,
        says: "samples have exactly their chain",
    },
    Break {
        what: "a field eight bytes off",
        file: "crates/agent/src/clr/async_types.rs",
        from: "    u16::try_from(found.offset).ok()\n",
        to: "    u16::try_from(found.offset + 8).ok()\n",
        test: CHAINS,
        says: "samples have exactly their chain",
    },
    Break {
        what: "a home of the state machine eight bytes off",
        file: "crates/agent/src/clr/async_types.rs",
        from: "            from_bp: home.offset,\n",
        to: "            from_bp: home.offset + 8,\n",
        test: CHAINS,
        says: "samples have exactly their chain",
    },
    Break {
        what: "a gate that never closes",
        file: "crates/agent/src/target/chains/gate.rs",
        from: "        self.closed.store(true, Ordering::SeqCst);\n        self.closings",
        to: "        self.closings",
        test: STRESS,
        says: "no gate was closed",
    },
];

/// What the copy has of the repository.
const COPIED: [&str; 5] = [
    "Cargo.toml",
    "Cargo.lock",
    "crates",
    "xtask",
    "rustfmt.toml",
];

/// Breaks each thing in turn. An error where no test sees it.
pub(crate) fn run(_options: &[&str], roots: &[PathBuf]) -> Result<()> {
    setup::run(setup::Scope::Tests, roots)?;
    build(Profile::Release, false)?;
    let folder = testkit::target_dir().join("sabotage");
    let (tree, built, bin) = (
        folder.join("tree"),
        folder.join("target"),
        folder.join("bin"),
    );
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    for made in [&tree, &bin] {
        fs::create_dir_all(made).with_context(|| format!("cannot make {}", made.display()))?;
    }
    for name in COPIED {
        let from = testkit::repository().join(name);
        // With its times, so that what did not change is not built again.
        run_command(Command::new("cp").arg("-a").arg(from).arg(&tree))?;
    }
    let built_in = |tree: &Path| build_agent(tree, &built, &bin);
    built_in(&tree)?;
    for name in [CHAINS, STRESS] {
        let (passes, output) = test(name, &bin)?;
        ensure!(passes, "{name} fails with nothing broken:\n{output}");
    }
    let mut unseen = Vec::new();
    for own in &BREAKS {
        let file = tree.join(own.file);
        let text = fs::read_to_string(&file)?;
        ensure!(
            text.matches(own.from).count() == 1,
            "{}: {} is not there once: {}",
            own.what,
            own.from,
            own.file
        );
        fs::write(&file, text.replace(own.from, own.to))?;
        built_in(&tree)?;
        let (passes, output) = test(own.test, &bin)?;
        fs::write(&file, text)?;
        let is_seen = !passes && output.contains(own.says);
        println!(
            "{}: {} {}",
            own.what,
            own.test,
            if is_seen {
                "goes red"
            } else {
                "DOES NOT SEE IT"
            }
        );
        if !is_seen {
            println!("{output}");
            unseen.push(own.what);
        }
    }
    if !unseen.is_empty() {
        bail!("no test saw {}", unseen.join(", "));
    }
    Ok(())
}

/// Builds the agent of a copy, quickly, and puts it beside the tool.
fn build_agent(tree: &Path, built: &Path, bin: &Path) -> Result<()> {
    let mut command = cargo(&["build", "--release", "--quiet", "--package", "libsidewalk"]);
    command
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", built)
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_INCREMENTAL", "true");
    run_command(&mut command)?;
    for (from, name) in [
        (testkit::sidewalk(), "sidewalk"),
        (built.join("release/libsidewalk.so"), "libsidewalk.so"),
    ] {
        // Not over one that may be loaded.
        let place = bin.join(name);
        if place.exists() {
            fs::remove_file(&place)?;
        }
        fs::copy(&from, &place).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

/// Whether a test passes with what is in `bin`, and what it printed.
fn test(name: &str, bin: &Path) -> Result<(bool, String)> {
    let mut command = cargo(&["test", "--package", "testkit", "--test", "acceptance", "--"]);
    command.args(["--exact", "--nocapture", name]);
    let output = command.env("SIDEWALK_BIN_DIR", bin).output()?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(
        text.contains("running 1 test"),
        "there is no test {name}:\n{text}"
    );
    Ok((output.status.success(), text.into_owned()))
}
