//! `cargo xtask`: what a newcomer, CI and a release need to run, in one place.
//!
//! Not a build system: cargo builds. Every command does the set-up that it
//! needs by itself, so that each works as the first one in a fresh checkout.

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
mod demo;
mod dist;
mod faults;
mod fetch;
mod picture;
mod process;
mod runtimes;
mod sabotage;
mod setup;
mod soak;
mod soak_plan;
mod soak_run;
mod test;
mod visual_basic;
mod workloads;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  demo            record a sample program and write its flame graph
  test            everything that CI runs
  stress [SECONDS]  the stress tests, for a minute each unless told otherwise
  stress --minutes N  those with events only, every walker, in N minutes
  stress --async [MINUTES]  chains of async methods while objects move and code goes, on
                  each runtime, in so many minutes (10)
  stress --attach [ROUNDS]  attach, record, leave, so often (1000)
  stress --steps  kill the tool and the program at each step of attach and leave, on each runtime
  stress --chains  chains of async methods in each setting of the runtime, on each runtime
  stress --side-by-side [RUNS]  several CLRs in one process, each order so often (50)
  agree           hold the walkers against each other on every workload
                  [--attach] [--walks N] [--runtime VERSION] [--random-seeds N] [PROGRAM…]
                  (--attach: in programs that have run for a while)
  picture         record workloads from their start and by an attach, and compare
                  [--seconds N] [--runtime VERSION] [PROGRAM…] (docs/attach.md)
  sabotage        break the agent in a copy of the sources, one thing at a time: a test on
                  real CLRs must see it
  soak            random programs, settings, options and circumstances, each run bare
                  and recorded, for an hour unless told otherwise (docs/reliability.md)
                  [--hours N | --runs N] [--seed S] [--only RUN [--times N]]
                  [--plan] [PROGRAM…]
  faults          programs that throw NullReferenceExceptions under each kind and rate of
                  tick, on signal stacks as they are and as small as can be; goes on where
                  it stopped (docs/reliability.md)
                  [--runs N] [--minutes M] [--only WORD]… [--again]
  bench           what recording costs: time, memory, bytes, nanoseconds a walk
                  [--pairs N] [--seconds N] [--runtime VERSION] [--only ROW]
                  [--write] (docs/overhead.md)
  dist [--try]    what users download, in target/dist: the same bytes from the same commit
                  (--try: installs each of them where nothing else is, and records with it)
  setup [--all]   find or fetch the .NET runtimes and compile workloads/
                  (--all: what only tests need too)

Each takes --runtimes DIR… too: dotnet roots, whose runtimes are used beside
those that setup finds (DOTNET_ROOT, dotnet on PATH) or fetches.

Everything that is fetched is kept in a cache (SIDEWALK_CACHE, else
~/.cache/sidewalk), so only the first run needs the network.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let mut arguments = arguments.to_vec();
    let roots = runtimes::take(&mut arguments)?;
    let roots = roots.as_slice();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["setup"] => setup::run(false, roots).map(drop),
        ["setup", "--all"] => setup::run(true, roots).map(drop),
        ["demo"] => demo::run_demo(roots),
        ["test"] => test::all(roots),
        ["dist"] => dist::run(),
        ["dist", "--try"] => dist::try_out(),
        ["stress"] => test::stress(60.0, roots),
        ["stress", "--minutes", minutes] => match minutes.parse() {
            Ok(minutes) => test::stress_events(minutes, roots),
            Err(_) => bail!("not a number of minutes: {minutes}"),
        },
        ["stress", "--async"] => test::stress_async(10.0, roots),
        ["stress", "--async", minutes] => match minutes.parse() {
            Ok(minutes) => test::stress_async(minutes, roots),
            Err(_) => bail!("not a number of minutes: {minutes}"),
        },
        ["stress", "--side-by-side"] => test::stress_side_by_side(50, roots),
        ["stress", "--side-by-side", runs] => match runs.parse() {
            Ok(runs) => test::stress_side_by_side(runs, roots),
            Err(_) => bail!("not a number of runs: {runs}"),
        },
        ["stress", "--steps"] => test::stress_steps(roots),
        ["stress", "--chains"] => test::stress_chains(roots),
        ["stress", "--attach"] => test::stress_attach(1000, roots),
        ["stress", "--attach", rounds] => match rounds.parse() {
            Ok(rounds) => test::stress_attach(rounds, roots),
            Err(_) => bail!("not a number of rounds: {rounds}"),
        },
        ["stress", seconds] => match seconds.parse() {
            Ok(seconds) => test::stress(seconds, roots),
            Err(_) => bail!("not a number of seconds: {seconds}"),
        },
        ["sabotage"] => sabotage::all(roots),
        ["agree", options @ ..] => agree::run(options, roots),
        ["picture", options @ ..] => picture::run(options, roots),
        ["soak", options @ ..] => soak::run(options, roots),
        ["faults", options @ ..] => faults::run(options, roots),
        ["bench", options @ ..] => bench::run(options, roots),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        [] => bail!("no command given\n\n{USAGE}"),
        [command, ..] => bail!("unknown command or option: {command}\n\n{USAGE}"),
    }
}
