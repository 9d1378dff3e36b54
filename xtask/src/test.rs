//! `cargo xtask test`: everything that CI runs.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use testkit::Setup;

use crate::fetch::Cache;
use crate::process::run;
use crate::{setup, soak};

/// What users get: the commands and the agent.
const RELEASED: [&str; 3] = ["sidewalk", "libsidewalk", "runsxs"];

/// What only tests load: the old profiler, the oracle, and what plays other machines and programs.
const DOUBLES: [&str; 4] = ["v2-agent", "oracle", "tight-stacks", "native-threads"];

/// Builds what users get, optimised.
pub(crate) fn build() -> Result<()> {
    build_optimised(&RELEASED)
}

/// Builds also what only tests load. In one go: the agent's crates are built once for all of it, as the
/// doubles alone would ask for other features of what these depend on, and one thread's linking is
/// another's time to compile.
fn build_with_doubles() -> Result<()> {
    build_optimised(&[&RELEASED[..], &DOUBLES[..]].concat())
}

fn build_optimised(packages: &[&str]) -> Result<()> {
    let named = packages.iter().flat_map(|name| ["--package", name]);
    run(cargo(&["build", "--release"]).args(named))
}

/// The same, unless the caller brings what has been built (`SIDEWALK_BIN_DIR`); `doubles`: what only tests load too.
pub(crate) fn build_unless_brought(doubles: bool) -> Result<()> {
    if std::env::var_os("SIDEWALK_BIN_DIR").is_some() {
        return Ok(());
    }
    if doubles {
        build_with_doubles()
    } else {
        build()
    }
}

/// Sets up, builds, checks and tests. Stops at the first thing that fails.
pub(crate) fn all(roots: &[PathBuf]) -> Result<()> {
    let start = Instant::now();
    let setup = setup::run(true, roots)?;
    let nextest = Cache::open()?.nextest()?;
    step("cargo fmt");
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    step("cargo clippy");
    run(&mut cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    step("release build");
    build_with_doubles()?;
    step("documentation");
    let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
    run(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    run(&mut cargo(&["test", "--workspace", "--doc", "--quiet"]))?;
    step("a minute of soak");
    soak::short(&setup, roots)?;
    // Last, so that its summary closes the output.
    step("tests");
    let mut tests = Command::new(nextest);
    tests
        .args(["nextest", "run", "--workspace", "--no-fail-fast"])
        .current_dir(testkit::repository());
    let native = ["libcoreclr.so", "libclrjit.so", "libSystem.Native.so"];
    let mut elf = files(&setup, &native);
    elf.extend(
        setup
            .tools
            .iter()
            .map(|tools| tools.app10.executable.clone()),
    );
    tests.env("SIDEWALK_TEST_ELF", std::env::join_paths(elf)?);
    let images = files(&setup, &["System.Private.CoreLib.dll"]);
    tests.env("SIDEWALK_TEST_R2R", std::env::join_paths(images)?);
    run(&mut tests)?;
    eprintln!("everything passed in {} s", start.elapsed().as_secs());
    Ok(())
}

/// These files of each runtime's shared framework: what stackwalk's tests hold its unwind rules
/// against.
fn files(setup: &Setup, names: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for runtime in &setup.runtimes {
        let framework = runtime.framework_dir();
        files.extend(names.iter().map(|name| framework.join(name)));
    }
    files.retain(|file| file.exists());
    files
}

/// The acceptance tests that run for so long each, at 5,000 Hz.
pub(crate) fn stress(seconds: f64, roots: &[PathBuf]) -> Result<()> {
    setup::run(true, roots)?;
    stress_tests("stress::", seconds)
}

/// Three programs with every event, by every walker, on each runtime: so many minutes in all.
pub(crate) fn stress_events(minutes: f64, roots: &[PathBuf]) -> Result<()> {
    const RUNS: f64 = 3.0 * 5.0;
    let runtimes = setup::run(true, roots)?.runtimes.len() as f64;
    stress_tests("stress::events_", minutes * 60.0 / (RUNS * runtimes))
}

/// Chains of async methods while objects move and code goes, on each runtime with three collectors: so many minutes in all.
pub(crate) fn stress_async(minutes: f64, roots: &[PathBuf]) -> Result<()> {
    const COLLECTORS: f64 = 3.0;
    let runtimes = setup::run(true, roots)?.runtimes.len() as f64;
    stress_tests("stress::async_", minutes * 60.0 / (COLLECTORS * runtimes))
}

/// Several CLRs in one process, every order so many times.
pub(crate) fn stress_side_by_side(runs: u32, roots: &[PathBuf]) -> Result<()> {
    setup::run(true, roots)?;
    stress_tests_with("side_by_side::", "SIDEWALK_SXS_RUNS", runs.to_string())
}

/// Attach, record, leave, so many times on one process.
pub(crate) fn stress_attach(rounds: u32, roots: &[PathBuf]) -> Result<()> {
    setup::run(true, roots)?;
    stress_tests_with(
        "attach::rounds_",
        "SIDEWALK_ATTACH_ROUNDS",
        rounds.to_string(),
    )
}

/// The tool and the program killed at each step of coming and leaving, on each runtime.
pub(crate) fn stress_steps(roots: &[PathBuf]) -> Result<()> {
    setup::run(true, roots)?;
    stress_tests_with("steps::", "SIDEWALK_STEPS", "all".to_owned())
}

/// Chains of async methods in each setting, on each runtime.
pub(crate) fn stress_chains(roots: &[PathBuf]) -> Result<()> {
    setup::run(true, roots)?;
    stress_tests_with("async_chains::", "SIDEWALK_CHAINS", "all".to_owned())
}

fn stress_tests(filter: &str, seconds: f64) -> Result<()> {
    stress_tests_with(filter, "SIDEWALK_STRESS_SECONDS", seconds.to_string())
}

fn stress_tests_with(filter: &str, variable: &str, value: String) -> Result<()> {
    build()?;
    let mut test = cargo(&[
        "test",
        "--package",
        "testkit",
        "--test",
        "acceptance",
        "--",
        "--nocapture",
        filter,
    ]);
    run(test.env(variable, value))
}

fn step(name: &str) {
    eprintln!("\n== {name}");
}

/// The cargo that runs us, in the repository.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(testkit::repository());
    command
}
