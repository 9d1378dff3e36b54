//! The long-running commands of `cargo xtask`: `agree`, `bench`, `dist`, `faults`, `fleet`,
//! `picture`, `sabotage`, `soak` and `stress`.
//!
//! `cargo xtask` builds and starts this crate on demand, and has its help. The default test tier
//! does not build it.

mod agree;
mod bench;
mod bench_attach;
mod bench_events;
mod bench_perf;
mod bench_programs;
mod bench_server;
mod bench_shadow;
mod bench_switch;
mod bench_traced;
mod bench_walkers;
mod bench_ways;
mod dist;
mod faults;
mod fleet;
mod picture;
mod sabotage;
mod soak;
mod soak_plan;
mod soak_run;
mod stress;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use testkit::{Runtime, Setup};
use xtask::{runtimes, setup};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Sets up what a command needs. Its runtimes are those for musl alone where these are meant.
fn set_up(scope: setup::Scope, roots: &[PathBuf]) -> Result<Setup> {
    let mut setup = setup::run(scope, roots)?;
    if testkit::is_on_musl() {
        setup.runtimes.retain(Runtime::is_musl);
        ensure!(
            !setup.runtimes.is_empty(),
            "--libc musl: name dotnet roots for musl by --runtimes DIR…"
        );
    }
    Ok(setup)
}

fn run(mut arguments: Vec<String>) -> Result<()> {
    let roots = runtimes::take_roots(&mut arguments)?;
    let roots = roots.as_slice();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["agree", options @ ..] => agree::run(options, roots),
        ["bench", options @ ..] => bench::run(options, roots),
        ["dist"] => dist::run(),
        ["dist", "--try"] => dist::try_out(),
        ["faults", options @ ..] => faults::run(options, roots),
        ["fleet", options @ ..] => fleet::run(options, roots),
        ["picture", options @ ..] => picture::run(options, roots),
        ["sabotage", options @ ..] => sabotage::run(options, roots),
        ["soak", options @ ..] => soak::run(options, roots),
        ["stress", options @ ..] => stress::run(options, roots),
        other => bail!("unknown command or option: {other:?}; see `cargo xtask help`"),
    }
}
