//! `cargo xtask sabotage`: breaks a copy of the sources, one place at a time, and demands that a
//! test fails.
//!
//! It measures the test tiers: most breaks must be caught by the default tier alone. It belongs to
//! no tier, because each break is a build. Invariants: the sources are never written to. Each test
//! passes in the unbroken copy first, so its failure is due to the break. A break whose text does
//! not occur exactly once in its file, or that does not compile, is an error and does not count as
//! caught.

mod breaks;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use testkit::Setup;
use xtask::build::{BuildProfile, cargo};
use xtask::process::{run as run_command, run_quietly};
use xtask::{failed, nextest_in, setup, tiers};

use breaks::{BREAKS, Break, Test, TestTier};

const USAGE: &str = "usage: cargo xtask sabotage [--only WORD]… [--list] [--runtimes DIR…]";

/// How many breaks the default tier must catch by itself.
const DEFAULT_AT_LEAST: usize = 23;

/// The acceptance tests, which run programs with the agent and the tool.
const ACCEPTANCE: &str = "testkit::acceptance";

/// Exit codes of nextest: a test failed; no test has such a name.
const TEST_FAILED: i32 = 100;
const NO_TEST: i32 = 4;

/// Outcome of a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BreakOutcome {
    Caught(TestTier),
    NotCaught,
}

impl BreakOutcome {
    fn text(self) -> &'static str {
        match self {
            BreakOutcome::Caught(TestTier::Default) => "default tier",
            BreakOutcome::Caught(TestTier::Full) => "full tier",
            BreakOutcome::NotCaught => "NOT CAUGHT",
        }
    }
}

/// Breaks each place in turn. An error where no test sees it, or the default tier sees too few.
pub(crate) fn run(options: &[&str], roots: &[PathBuf]) -> Result<()> {
    let (mut only, mut is_list) = (Vec::new(), false);
    let mut rest = options.iter();
    while let Some(&option) = rest.next() {
        match option {
            "--only" => only.push(*rest.next().context(USAGE)?),
            "--list" => is_list = true,
            other => bail!("unknown option {other}\n{USAGE}"),
        }
    }
    let chosen: Vec<&Break> = BREAKS
        .iter()
        .filter(|one| only.is_empty() || only.iter().any(|word| one.what.contains(word)))
        .collect();
    ensure!(!chosen.is_empty(), "no break has such a word; see --list");
    if is_list {
        chosen.iter().for_each(|one| list(one));
        return Ok(());
    }
    let start = Instant::now();
    let setup = setup::run(setup::Scope::Tests, roots)?;
    let copy = SourceCopy::update(&setup)?;
    for one in &chosen {
        copy.broken(one)?;
    }
    copy.check_unbroken(&chosen)?;
    println!("all tests pass unbroken; {} s", start.elapsed().as_secs());
    let mut outcomes = Vec::new();
    for (at, one) in chosen.iter().enumerate() {
        let begin = Instant::now();
        let (outcome, by) = copy.try_out(one)?;
        println!(
            "{:>2}/{}  {:<12}  {:>3} s  {}{}",
            at + 1,
            chosen.len(),
            outcome.text(),
            begin.elapsed().as_secs(),
            one.what,
            by.iter()
                .map(|name| format!("\n{:27}{name}", ""))
                .collect::<String>(),
        );
        outcomes.push(outcome);
    }
    let count = |wanted| outcomes.iter().filter(|one| **one == wanted).count();
    let by_default = count(BreakOutcome::Caught(TestTier::Default));
    let not_caught = count(BreakOutcome::NotCaught);
    println!(
        "{} breaks: {by_default} caught by the default tier, {} by the full tier only, {not_caught} not caught; {} s",
        chosen.len(),
        count(BreakOutcome::Caught(TestTier::Full)),
        start.elapsed().as_secs()
    );
    ensure!(not_caught == 0, "no test caught {not_caught} breaks");
    ensure!(
        !only.is_empty() || by_default >= DEFAULT_AT_LEAST,
        "the default tier must catch {DEFAULT_AT_LEAST} breaks by itself, and caught {by_default}"
    );
    Ok(())
}

fn list(one: &Break) {
    println!("{}\n    {}", one.what, one.file);
    for test in one.tests {
        let tier = BreakOutcome::Caught(test.tier).text();
        println!("    {tier}: {} {}", test.binary, test.name);
    }
}

/// The copy of the sources, and where it is built.
struct SourceCopy<'a> {
    setup: &'a Setup,
    tree: PathBuf,
    built: PathBuf,
}

impl<'a> SourceCopy<'a> {
    /// Brings the copy up to date with the sources. Files that are the same keep their times, so
    /// that cargo builds the rest only.
    fn update(setup: &'a Setup) -> Result<SourceCopy<'a>> {
        let folder = testkit::target_dir().join("sabotage");
        let copy = SourceCopy {
            setup,
            tree: folder.join("tree"),
            built: folder.join("target"),
        };
        for folder in [&copy.tree, &copy.built] {
            fs::create_dir_all(folder)?;
        }
        let mut git = Command::new("git");
        git.args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(testkit::repository());
        let names = run_quietly(&mut git)?;
        let mut wanted = BTreeSet::new();
        for name in names.split_terminator('\0') {
            // A file that was deleted and is not committed yet is still listed.
            let Ok(text) = fs::read(testkit::repository().join(name)) else {
                continue;
            };
            let place = copy.tree.join(name);
            if fs::read(&place).ok().as_ref() != Some(&text) {
                fs::create_dir_all(place.parent().context("a file in a folder")?)?;
                fs::write(&place, text)?;
            }
            wanted.insert(place);
        }
        remove_others(&copy.tree, &wanted)?;
        // Tests look for both in cargo's target folder.
        for name in ["setup.json", "workloads"] {
            let link = copy.built.join(name);
            fs::remove_file(&link).ok();
            symlink(testkit::target_dir().join(name), &link)?;
        }
        Ok(copy)
    }

    /// The file of a break as it is, and broken.
    fn broken(&self, one: &Break) -> Result<(String, String)> {
        let text = fs::read_to_string(self.tree.join(one.file))
            .with_context(|| format!("{}: {}", one.what, one.file))?;
        let count = text.matches(one.from).count();
        ensure!(
            count == 1,
            "{}: its text is {count} times in {}:\n{}",
            one.what,
            one.file,
            one.from
        );
        let broken = text.replace(one.from, one.to);
        Ok((text, broken))
    }

    /// Runs all tests of these breaks once, binary by binary as they are run later.
    fn check_unbroken(&self, chosen: &[&Break]) -> Result<()> {
        let all: BTreeSet<&Test> = chosen.iter().flat_map(|one| one.tests).collect();
        for (binary, tests) in by_binary(all) {
            let output = self.test(binary, &tests)?;
            let text = text_of(&output);
            ensure!(
                output.status.success(),
                "a test of {binary} fails with nothing broken:\n{text}"
            );
            for test in tests {
                let has_run = text.lines().any(|line| {
                    line.trim_start().starts_with("PASS ")
                        && line.ends_with(&format!(" {}", test.name))
                });
                ensure!(
                    has_run,
                    "{binary} {}: the {} has no such test",
                    test.name,
                    BreakOutcome::Caught(test.tier).text()
                );
            }
        }
        Ok(())
    }

    /// Breaks one place, runs its tests and mends it again. Answers with the tests that failed.
    fn try_out(&self, one: &Break) -> Result<(BreakOutcome, Vec<String>)> {
        let (text, broken) = self.broken(one)?;
        let file = self.tree.join(one.file);
        fs::write(&file, broken)?;
        let found = self.find_catch(one);
        fs::write(&file, text)?;
        found
    }

    fn find_catch(&self, one: &Break) -> Result<(BreakOutcome, Vec<String>)> {
        for tier in [TestTier::Default, TestTier::Full] {
            let of_tier = one.tests.iter().filter(|test| test.tier == tier);
            for (binary, tests) in by_binary(of_tier) {
                let output = self.test(binary, &tests)?;
                let text = text_of(&output);
                match output.status.code() {
                    Some(0) => {}
                    Some(TEST_FAILED) => return Ok((BreakOutcome::Caught(tier), failed(&text))),
                    Some(NO_TEST) => bail!("{}: {binary} has no such test\n{text}", one.what),
                    _ => bail!("{}: {binary} cannot be built or run\n{text}", one.what),
                }
            }
        }
        Ok((BreakOutcome::NotCaught, Vec::new()))
    }

    /// Builds one test binary in the copy and runs tests of it.
    fn test(&self, binary: &str, tests: &[&Test]) -> Result<Output> {
        if binary == ACCEPTANCE {
            let mut build = cargo(&["build", "--quiet"]);
            for package in ["sidewalk", "libsidewalk", "native-threads"] {
                build.args(["--package", package]);
            }
            run_command(
                build
                    .current_dir(&self.tree)
                    .env("CARGO_TARGET_DIR", &self.built),
            )?;
        }
        let mut nextest = nextest_in(&self.tree, self.setup, BuildProfile::Development)?;
        // As nextest names them: a package for its unit tests, else the file's name behind it.
        let target: &[&str] = match binary.split_once("::") {
            None => &["--package", binary, "--lib"],
            Some((package, name)) => &["--package", package, "--test", name],
        };
        nextest
            .args(target)
            .args(["-E", &self.filter(binary, tests)])
            .args(["--status-level", "pass", "--final-status-level", "fail"])
            .args(["--color", "never", "--cargo-quiet"])
            .env("CARGO_TARGET_DIR", &self.built)
            .env(
                "SIDEWALK_BIN_DIR",
                self.built.join(BuildProfile::Development.folder()),
            )
            .env("INSTA_UPDATE", "no")
            .stdin(Stdio::null());
        nextest.output().context("cannot run cargo-nextest")
    }

    /// These tests by name. Acceptance tests of the default tier only where that tier has them.
    fn filter(&self, binary: &str, tests: &[&Test]) -> String {
        let default_tier = tiers::default(self.setup);
        let one = |test: &&Test| match (binary, test.tier) {
            (ACCEPTANCE, TestTier::Default) => format!("test(={}) & ({default_tier})", test.name),
            _ => format!("test(={})", test.name),
        };
        let each: Vec<String> = tests.iter().map(one).collect();
        each.iter()
            .map(|filter| format!("({filter})"))
            .collect::<Vec<_>>()
            .join(" | ")
    }
}

fn by_binary<'t>(
    tests: impl IntoIterator<Item = &'t Test>,
) -> BTreeMap<&'static str, Vec<&'t Test>> {
    let mut binaries: BTreeMap<&str, Vec<&Test>> = BTreeMap::new();
    for test in tests {
        binaries.entry(test.binary).or_default().push(test);
    }
    binaries
}

fn text_of(output: &Output) -> String {
    let part = |bytes| String::from_utf8_lossy(bytes).into_owned();
    part(&output.stdout) + &part(&output.stderr)
}

/// Removes files of the copy that are not among the sources: what failed tests have left there.
fn remove_others(folder: &Path, wanted: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_others(&entry.path(), wanted)?;
        } else if !wanted.contains(&entry.path()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_break_is_one_place_of_the_sources_and_has_a_test() {
        let mut names = BTreeSet::new();
        for one in BREAKS {
            assert!(names.insert(one.what), "{} twice", one.what);
            assert!(!one.tests.is_empty(), "{}", one.what);
            let text = fs::read_to_string(testkit::repository().join(one.file)).unwrap();
            assert_eq!(text.matches(one.from).count(), 1, "{}", one.what);
            assert_ne!(one.from, one.to, "{}", one.what);
        }
    }

    #[test]
    fn enough_breaks_are_for_the_default_tier() {
        let of_default = BREAKS
            .iter()
            .filter(|one| one.tests.iter().any(|test| test.tier == TestTier::Default));
        assert!(of_default.count() >= DEFAULT_AT_LEAST);
    }
}
