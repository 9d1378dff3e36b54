//! `cargo xtask`: the commands of newcomers, CI and releases.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use xtask::build::{BuildProfile, cargo};
use xtask::process::run as run_command;
use xtask::{musl, run_demo, run_flakes, run_tests, runtimes, setup};

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  demo            record a sample program and write its flame graph
  test            the default tier of tests (CONTRIBUTING.md has the table of tiers)
                  [NAME…]         only the tests whose names contain one of these, of all tiers
                  [--runtime V]   on the runtimes whose version begins so
                  [--full]        the whole matrix on every runtime, with the release build
                  [--libc musl]   programs on musl, of the roots of --runtimes (a folder
                                  musl-libs beside them: what these need and is not installed)
                  [--part K/N]    of the matrix without the default tier, the K-th of N parts
  flakes          the default tier many times beside busy loops; prints each test that failed
                  [--runs N] [--load N] [NAME…]
  musl            the tool for every Linux with both agents, and the agent for musl
                  (Alpine), in target/musl, by a toolchain of its own
  setup [--all]   find or fetch the .NET runtimes and compile workloads/
                  (--all: what only tests need too)

Long runs, by the release build:

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
  sabotage        break the sources in a copy, one thing at a time: a test must go red
                  [--only WORD]… [--list] (docs/testing.md)
  soak            random programs, settings, options and circumstances, each run bare
                  and recorded, for an hour unless told otherwise (docs/reliability.md)
                  [--hours N | --runs N] [--seed S] [--only RUN [--times N]]
                  [--plan] [PROGRAM…]
  faults          programs that throw NullReferenceExceptions under each kind and rate of
                  tick, on signal stacks as they are and as small as can be; goes on where
                  it stopped (docs/reliability.md)
                  [--runs N] [--minutes M] [--only WORD]… [--again]
  fleet           an hour's worth of profiles pushed to an OpenTelemetry Collector, built from
                  Go modules: what arrives equals the local recordings (docs/fleet.md)
                  [--seconds N] [--runtime VERSION]
  bench           what recording costs: time, memory, bytes, nanoseconds a walk
                  [--pairs N] [--seconds N] [--runtime VERSION] [--only ROW]
                  [--write] (docs/measurements)
  dist [--try]    what users download, in target/dist: the same bytes from the same commit
                  (--try: installs each of them where nothing else is, and records with it)

Long runs but sabotage and dist take --libc musl: on the runtimes for musl alone,
by what the command musl builds.
Each takes --runtimes DIR… too: dotnet roots, whose runtimes are used beside
those that setup finds (DOTNET_ROOT, dotnet on PATH) or fetches.

Everything that is fetched is kept in a cache (SIDEWALK_CACHE, else
~/.cache/sidewalk), so only the first run needs the network.
";

/// The commands of the `lab` crate.
const LAB: [&str; 9] = [
    "agree", "bench", "dist", "faults", "fleet", "picture", "sabotage", "soak", "stress",
];

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
    if arguments.first().is_some_and(|name| LAB.contains(&&**name)) {
        return run_lab(arguments);
    }
    let mut arguments = arguments.to_vec();
    let roots: Vec<PathBuf> = runtimes::take_roots(&mut arguments)?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["setup"] => setup::run(setup::Scope::Workloads, &roots).map(drop),
        ["setup", "--all"] => setup::run(setup::Scope::Tests, &roots).map(drop),
        ["demo"] => run_demo(&roots),
        ["musl"] => musl::build(),
        ["test", options @ ..] => run_tests(options, &roots),
        ["flakes", options @ ..] => run_flakes(options, &roots),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        [] => bail!("no command given\n\n{USAGE}"),
        [command, ..] => bail!("unknown command or option: {command}\n\n{USAGE}"),
    }
}

/// Builds `lab` and runs it with these arguments.
fn run_lab(arguments: &[String]) -> Result<()> {
    let mut lab = cargo(&["run", "--quiet", "--package", "lab", "--"]);
    // The folder is the caller's: paths among the arguments are relative to it.
    lab.current_dir(std::env::current_dir()?)
        .env("SIDEWALK_PROFILE", BuildProfile::Release.folder());
    let mut arguments = arguments.to_vec();
    if let Some(at) = arguments.iter().position(|word| word == "--libc") {
        let value = arguments.drain(at..arguments.len().min(at + 2)).nth(1);
        ensure!(
            value.as_deref() == Some("musl"),
            "--libc musl is the only one that can be named"
        );
        musl::build_for_tests()?;
        lab.env("SIDEWALK_BIN_DIR", testkit::musl_dir());
    }
    run_command(lab.args(arguments))
}
