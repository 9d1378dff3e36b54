//! `cargo xtask flakes`: the default tier many times beside busy loops.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::setup;
use crate::test::{NO_LAB, build_tests, nextest_default};

const USAGE: &str = "usage: cargo xtask flakes [--runs N] [--load N] [--runtimes DIR…] [NAME…]";

/// Endless loops that share the processors with the tests; they end with this value.
struct BusyLoops(Vec<Child>);

impl BusyLoops {
    fn start(loops: u32) -> Result<BusyLoops> {
        let mut load = BusyLoops(Vec::new());
        for _ in 0..loops {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]);
            let child = shell.stdin(Stdio::null()).spawn();
            load.0.push(child.context("cannot run sh")?);
        }
        Ok(load)
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Runs the default tier, or its tests of these names, so many times, and prints how often each
/// test failed.
///
/// # Errors
/// A test failed at least once.
pub fn run_flakes(arguments: &[&str], roots: &[PathBuf]) -> Result<()> {
    let (mut runs, mut load, mut names) = (20u32, 0u32, Vec::new());
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        let mut number = || {
            rest.next()
                .and_then(|text| text.parse().ok())
                .context(USAGE)
        };
        match argument {
            "--runs" => runs = number()?,
            "--load" => load = number()?,
            option if option.starts_with('-') => bail!("unknown option {option}\n{USAGE}"),
            name => names.push(name),
        }
    }
    let setup = setup::run(setup::Scope::Tests, roots)?;
    build_tests(&NO_LAB)?;
    let _load = BusyLoops::start(load)?;
    let mut failures: BTreeMap<String, u32> = BTreeMap::new();
    let mut green = 0;
    for number in 1..=runs {
        let start = Instant::now();
        let mut tests = nextest_default(&setup)?;
        tests
            .args(NO_LAB)
            .args(["--status-level", "none", "--final-status-level", "fail"])
            .args(["--color", "never", "--success-output", "never"])
            .args(&names);
        let output = tests.stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        let failed = failed(&text);
        green += u32::from(output.status.success());
        println!(
            "run {number} of {runs}: {}, {} s",
            match output.status.success() {
                true => "green".to_owned(),
                false => format!("{} failed: {}", failed.len(), failed.join(", ")),
            },
            start.elapsed().as_secs()
        );
        if !output.status.success() {
            let log = testkit::target_dir().join(format!("flakes-{number}.log"));
            std::fs::write(&log, text.as_bytes())?;
            println!("    {}", log.display());
        }
        for name in failed {
            *failures.entry(name).or_default() += 1;
        }
    }
    println!("{green} of {runs} runs are green beside {load} busy loops");
    for (name, times) in &failures {
        println!("{times:>4} of {runs}  {name}");
    }
    if green < runs {
        bail!("{} of {runs} runs failed", runs - green);
    }
    Ok(())
}

/// The tests that nextest's last lines name as failed, each once.
pub fn failed(text: &str) -> Vec<String> {
    let summary = text.rsplit_once("Summary [").map_or(text, |(_, end)| end);
    let mut names: Vec<String> = summary
        .lines()
        .filter_map(|line| {
            let line = line.trim_start();
            let is_failure = ["FAIL ", "TIMEOUT ", "SIG", "ABORT ", "LEAK-FAIL "];
            if !is_failure.iter().any(|word| line.starts_with(word)) {
                return None;
            }
            // FAIL [   0.012s] (1/2) crate::binary module::test
            let (_, name) = line.rsplit_once([']', ')'])?;
            Some(name.trim().to_owned())
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_read_from_the_summary() {
        let text = "\
        FAIL [   0.1s] before::summary a
────────────
     Summary [   3.2s] 5 tests run: 2 passed, 3 failed, 0 skipped
        FAIL [   0.012s] (1/5) sampler::wall a_test
     TIMEOUT [ 600.000s] (2/5) testkit::acceptance shares::shares::net8
     SIGILL [   0.4s] sampler::rude late
error: test run failed
";
        assert_eq!(
            failed(text),
            [
                "sampler::rude late",
                "sampler::wall a_test",
                "testkit::acceptance shares::shares::net8"
            ]
        );
    }
}
