//! `cargo xtask stress`: acceptance tests that run for longer, or more often, than in the tiers.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, bail};
use xtask::build::{BuildProfile, build, cargo};
use xtask::process::run as run_command;
use xtask::setup;

/// Walkers and programs of `stress::events_*` on each runtime.
const EVENT_RUNS: f64 = 3.0 * 5.0;
/// Collectors of `stress::async_*` on each runtime.
const COLLECTORS: f64 = 3.0;

/// Runs the stress tests that the options name.
pub(crate) fn run(options: &[&str], roots: &[PathBuf]) -> Result<()> {
    let runtimes = crate::set_up(setup::Scope::Tests, roots)?.runtimes.len() as f64;
    let seconds =
        |filter, seconds: f64| tests(filter, "SIDEWALK_STRESS_SECONDS", &seconds.to_string());
    match options {
        [] => seconds("stress::", 60.0),
        ["--minutes", minutes] => {
            let all = 60.0 * number::<f64>(minutes)?;
            seconds("stress::events_", all / (EVENT_RUNS * runtimes))
        }
        ["--async", rest @ ..] => {
            let all = 60.0 * number_or(rest, 10.0)?;
            seconds("stress::async_", all / (COLLECTORS * runtimes))
        }
        ["--attach", rest @ ..] => {
            let rounds = number_or(rest, 1000u32)?.to_string();
            tests("attach::rounds_", "SIDEWALK_ATTACH_ROUNDS", &rounds)
        }
        ["--side-by-side", rest @ ..] => {
            let runs = number_or(rest, 50u32)?.to_string();
            tests("side_by_side::", "SIDEWALK_SXS_RUNS", &runs)
        }
        ["--steps"] => tests("steps::", "SIDEWALK_STEPS", "all"),
        ["--chains"] => tests("async_chains::", "SIDEWALK_CHAINS", "all"),
        [only] => seconds("stress::", number(only)?),
        _ => bail!("unknown options of stress: {options:?}; see `cargo xtask help`"),
    }
}

fn number<T: FromStr>(text: &str) -> Result<T> {
    text.parse().or_else(|_| bail!("not a number: {text}"))
}

fn number_or<T: FromStr>(rest: &[&str], usual: T) -> Result<T> {
    match rest {
        [] => Ok(usual),
        [one] => number(one),
        _ => bail!("one number, not {rest:?}"),
    }
}

/// Runs the acceptance tests whose names contain `filter`, one after the other, with a variable
/// set.
fn tests(filter: &str, variable: &str, value: &str) -> Result<()> {
    build(BuildProfile::Release, true)?;
    let mut test = cargo(&["test", "--package", "testkit", "--test", "acceptance", "--"]);
    test.args(["--nocapture", "--test-threads", "1", filter]);
    run_command(test.env(variable, value))
}
