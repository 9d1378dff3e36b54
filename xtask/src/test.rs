//! `cargo xtask test`: the tiers of tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use testkit::{Runtime, Setup};

use crate::build::{BuildProfile, build, cargo};
use crate::fetch::Cache;
use crate::process::run;
use crate::{musl, musl_tables, setup, tiers};

const USAGE: &str =
    "usage: cargo xtask test [--full] [--part K/N] [--runtime V] [--runtimes DIR…] [NAME…]
       cargo xtask test --libc musl [--full] --runtimes DIR… [NAME…]";

/// Options of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct TestOptions {
    is_full: bool,
    /// The K-th of N parts of the matrix.
    part: Option<(u32, u32)>,
    /// The beginning of a runtime's version.
    runtime: Option<String>,
    /// Whether to test on .NET for musl.
    is_on_musl: bool,
    /// Parts of the tests' names.
    names: Vec<String>,
}

fn options(arguments: &[&str]) -> Result<TestOptions> {
    let mut options = TestOptions::default();
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        match argument {
            "--full" => options.is_full = true,
            "--part" => {
                let part = rest.next().and_then(|text| text.split_once('/'));
                let (part, of) = part.context(USAGE)?;
                let (part, of) = (part.parse().context(USAGE)?, of.parse().context(USAGE)?);
                ensure!(part >= 1 && part <= of, "--part {part}/{of}: {USAGE}");
                options.part = Some((part, of));
            }
            "--libc" => {
                ensure!(rest.next() == Some(&"musl"), "{USAGE}");
                options.is_on_musl = true;
            }
            "--runtime" => options.runtime = Some((*rest.next().context(USAGE)?).to_owned()),
            option if option.starts_with('-') => bail!("unknown option {option}\n{USAGE}"),
            name => options.names.push(name.to_owned()),
        }
    }
    ensure!(
        !(options.is_full && options.part.is_some()),
        "--part is a part of what --full adds: give one of them\n{USAGE}"
    );
    Ok(options)
}

/// Runs the tests that the options name: the default tier where there are none.
///
/// # Errors
/// A check or a test fails.
pub fn run_tests(arguments: &[&str], roots: &[PathBuf]) -> Result<()> {
    let options = options(arguments)?;
    let start = Instant::now();
    if options.is_on_musl {
        on_musl(&options, roots)?;
    } else if !options.names.is_empty() || options.runtime.is_some() {
        chosen(&options, roots)?;
    } else if let Some(part) = options.part {
        matrix_part(part, roots)?;
    } else {
        tier(options.is_full, roots)?;
    }
    eprintln!("everything passed in {} s", start.elapsed().as_secs());
    Ok(())
}

/// Checks, builds, documentation and the tests of the default or the full tier. Stops at the first
/// step that fails; the tests are the last one, and all of them run.
fn tier(is_full: bool, roots: &[PathBuf]) -> Result<()> {
    let profile = match is_full {
        true => BuildProfile::Release,
        false => BuildProfile::Development,
    };
    let lab: &[&str] = if is_full { &[] } else { &NO_LAB };
    step("format");
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    step("set-up");
    let setup = setup::run(setup::Scope::Tests, roots)?;
    step("lints");
    let mut clippy = cargo(&["clippy", "--workspace", "--all-targets"]);
    run(clippy.args(lab).args(["--", "-D", "warnings"]))?;
    step("dependencies");
    // No other process gets anything from the cache while it is open.
    let checks = Cache::open()?.dependency_checks()?;
    for mut check in checks {
        run(check.current_dir(testkit::repository()))?;
    }
    step("documentation");
    let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
    run(doc.args(lab).env("RUSTDOCFLAGS", "-D warnings"))?;
    step("build");
    build_tests(lab)?;
    if profile == BuildProfile::Release {
        build(profile, true)?;
    }
    step("examples in documentation");
    run(cargo(&["test", "--workspace", "--doc", "--quiet"]).args(lab))?;
    if is_full {
        step("a minute of soak");
        let soak = ["soak", "--seed", "11", "--runs", "24"];
        run(cargo(&["run", "--quiet", "--package", "lab", "--"])
            .args(soak)
            .arg("--runtimes")
            .args(roots_of(&setup))
            .env("SIDEWALK_PROFILE", profile.folder()))?;
    }
    // Last: its summary closes the output.
    step("tests");
    let mut tests = match is_full {
        true => nextest_full(&setup, profile)?,
        false => nextest_default(&setup)?,
    };
    run(tests.args(lab))
}

/// A part of what the full tier adds to the default one, by the development build.
fn matrix_part((part, of): (u32, u32), roots: &[PathBuf]) -> Result<()> {
    eprintln!(
        "part {part} of {of} of the full tier; to repeat it: cargo xtask test --part {part}/{of}"
    );
    step("set-up");
    let setup = setup::run(setup::Scope::Tests, roots)?;
    step("lab");
    run(&mut cargo(&[
        "clippy",
        "--package",
        "lab",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    step("build");
    build_tests(&NO_LAB)?;
    step("tests");
    let partition = format!("hash:{part}/{of}");
    run(nextest_full(&setup, BuildProfile::Development)?
        .args(NO_LAB)
        .args(["-E", &tiers::matrix(&setup), "--partition", &partition]))
}

/// The tests whose names contain one of the words, on some runtimes, by the build of the tier.
fn chosen(options: &TestOptions, roots: &[PathBuf]) -> Result<()> {
    let setup = setup::run(setup::Scope::Tests, roots)?;
    let profile = match options.is_full {
        true => BuildProfile::Release,
        false => BuildProfile::Development,
    };
    let packages: &[&str] = if options.is_full { &[] } else { &NO_LAB };
    build_tests(packages)?;
    if profile == BuildProfile::Release {
        build(profile, true)?;
    }
    let mut tests = nextest_full(&setup, profile)?;
    tests.args(packages);
    if let Some(version) = &options.runtime {
        ensure!(
            setup.of_version(Some(version)).next().is_some(),
            "--runtime {version}: set-up knows no such runtime (name its root by --runtimes DIR)"
        );
        tests.args(["-E", &tiers::of_version(&setup, version)]);
    }
    run(tests.args(&options.names))
}

/// The tests of programs on musl, by what `cargo xtask musl` builds: the acceptance tests of the
/// default tier or of the full one, and those that are of musl alone.
fn on_musl(options: &TestOptions, roots: &[PathBuf]) -> Result<()> {
    ensure!(
        Path::new(musl::LOADER).exists(),
        "{} is not here: install musl (Debian: apt-get install musl)",
        musl::LOADER
    );
    step("set-up");
    let setup = setup::run(setup::Scope::Tests, roots)?;
    ensure!(
        setup.runtimes.iter().any(Runtime::is_musl),
        "--libc musl needs dotnet roots for musl, which no registry of packages here has: name them \
         by --runtimes DIR…; libraries that the machine lacks may lie in a folder musl-libs beside \
         them"
    );
    step("build");
    build_tests(&NO_LAB)?;
    musl::build_for_tests()?;
    let built = testkit::musl_dir();
    let with_tables = musl_tables::build(&built.join("with-tables"))?;
    let tests = |filter: &str| -> Result<Command> {
        let mut tests = match options.is_full {
            true => nextest_full(&setup, BuildProfile::Development)?,
            false => nextest(&setup, BuildProfile::Development)?,
        };
        tests
            .args(NO_LAB)
            .args(["--no-tests", "pass", "-E", filter]);
        tests.env("SIDEWALK_BIN_DIR", &built);
        // Tests look for the file of the agent in what a program has mapped.
        tests.env("SIDEWALK_AGENT_MUSL", built.join("libsidewalk.so"));
        tests.env("SIDEWALK_TEST_ROWS", std::env::join_paths(&with_tables)?);
        tests.args(&options.names);
        Ok(tests)
    };
    step("tests of musl alone");
    let rows = "binary_id(stackwalk) & test(rows_say_what_tables_say)";
    run(&mut tests(&format!("binary_id(testkit::musl) + ({rows})"))?)?;
    step("tests in a root without glibc");
    let acceptance = tests(&tiers::on_musl(&setup, options.is_full))?;
    run(&mut musl::in_root(&acceptance, &setup)?)
}

/// All crates but `lab`.
pub(crate) const NO_LAB: [&str; 2] = ["--exclude", "lab"];

/// Builds all tests, and the programs and libraries that they load, in one go: each crate is
/// compiled once for all of them.
pub(crate) fn build_tests(packages: &[&str]) -> Result<()> {
    let targets = ["--lib", "--bins", "--tests", "--examples"];
    run(cargo(&["build", "--workspace"])
        .args(targets)
        .args(packages))
}

/// The tests of the default tier, on the oldest and the newest runtime.
pub(crate) fn nextest_default(setup: &Setup) -> Result<Command> {
    let mut tests = nextest(setup, BuildProfile::Development)?;
    tests
        .args(["-E", &tiers::default(setup)])
        .env("SIDEWALK_RUNTIMES", tiers::smoke_runtimes(setup).join(","));
    Ok(tests)
}

/// Tests as the full tier runs them: those that measure have the machine to themselves.
fn nextest_full(setup: &Setup, profile: BuildProfile) -> Result<Command> {
    let mut tests = nextest(setup, profile)?;
    tests.args(["--profile", "full"]);
    Ok(tests)
}

/// `cargo nextest run` of the workspace, with all that tests look for in the environment.
fn nextest(setup: &Setup, profile: BuildProfile) -> Result<Command> {
    let mut tests = nextest_in(testkit::repository(), setup, profile)?;
    tests.arg("--workspace");
    Ok(tests)
}

/// `cargo nextest run` in a checkout or a copy of it, with all that tests look for in the
/// environment. The caller chooses the packages.
///
/// # Errors
/// The runner cannot be fetched.
pub fn nextest_in(tree: &Path, setup: &Setup, profile: BuildProfile) -> Result<Command> {
    let mut tests = Command::new(Cache::open()?.nextest()?);
    tests
        .args(["nextest", "run", "--no-fail-fast"])
        .current_dir(tree)
        .env("SIDEWALK_PROFILE", profile.folder());
    let native = ["libcoreclr.so", "libclrjit.so", "libSystem.Native.so"];
    let mut elf = files(setup, &native);
    let app = setup.tools.iter().map(|tools| &tools.app10.executable);
    elf.extend(app.cloned());
    tests.env("SIDEWALK_TEST_ELF", std::env::join_paths(elf)?);
    let images = files(setup, &["System.Private.CoreLib.dll"]);
    tests.env("SIDEWALK_TEST_R2R", std::env::join_paths(images)?);
    Ok(tests)
}

/// These files of each runtime's shared framework: stackwalk's tests hold its unwind rules against
/// them.
fn files(setup: &Setup, names: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for runtime in &setup.runtimes {
        let framework = runtime.framework_dir();
        files.extend(names.iter().map(|name| framework.join(name)));
    }
    files.retain(|file| file.exists());
    files
}

/// The dotnet roots of a set-up.
fn roots_of(setup: &Setup) -> Vec<&Path> {
    setup
        .runtimes
        .iter()
        .map(|runtime| runtime.root())
        .collect()
}

fn step(name: &str) {
    eprintln!("\n== {name}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_read_or_refused_with_the_usage() {
        let read = |line: &str| options(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(read("").unwrap(), TestOptions::default());
        let part = read("--part 2/5").unwrap();
        assert_eq!(part.part, Some((2, 5)));
        let chosen = read("shares --runtime 8 deep").unwrap();
        assert_eq!(chosen.runtime.as_deref(), Some("8"));
        assert_eq!(chosen.names, ["shares", "deep"]);
        for wrong in [
            "--part",
            "--part 6/5",
            "--part 0/5",
            "--full --part 1/5",
            "--fast",
        ] {
            let error = format!("{:#}", read(wrong).unwrap_err());
            assert!(error.contains("usage: "), "{wrong}: {error}");
        }
    }
}
