//! `cargo xtask agree`: compares the walkers' stacks on every workload.
//!
//! `DoStackSnapshot` uses the garbage collector's stack walker, so it is the reference for our own.
//! docs/walkers.md explains each remaining class of difference. With `--attach` the oracle is
//! attached to running programs, as by `record --pid`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use testkit::{Agreement, Machine, Runtime};

use xtask::build::{BuildProfile, build};
use xtask::setup;

const USAGE: &str = "usage: cargo xtask agree [--attach] [--walks N] [--runtime VERSION] [--random-seeds N] [PROGRAM…]";

/// Walks each workload on each runtime until `--walks` in all were compared on each runtime.
pub(crate) fn run(arguments: &[&str], roots: &[PathBuf]) -> Result<()> {
    let mut walks = 20_000u64;
    let mut random_seeds = 0;
    let mut only: Option<&str> = None;
    let mut attach = false;
    let mut programs = Vec::new();
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        let mut value = || rest.next().copied().context(USAGE);
        match argument {
            "--attach" => attach = true,
            "--walks" => walks = value()?.parse().context(USAGE)?,
            "--random-seeds" => random_seeds = value()?.parse().context(USAGE)?,
            "--runtime" => only = Some(value()?),
            option if option.starts_with('-') => bail!("{USAGE}"),
            program => programs.push(program.to_owned()),
        }
    }
    let setup = crate::set_up(setup::Scope::Workloads, roots)?;
    build(BuildProfile::Release, true)?;
    let agree: fn(&Runtime, &str, u64, u64) -> Agreement = if attach {
        testkit::agree_attached
    } else {
        testkit::agree
    };
    if programs.is_empty() {
        programs = if attach {
            testkit::attached_programs()?
        } else {
            testkit::oracle_programs()?
        };
    }
    let machine = Machine::exclusive();
    for runtime in setup.of_version(only) {
        let each = walks.div_ceil(programs.len() as u64);
        let mut all = Agreement::default();
        for program in &programs {
            let found = agree(runtime, program, each, random_seeds);
            eprintln!(
                "{program} on {}: {:.3} % of {}, explained ones counted {:.3} %",
                runtime.version,
                found.suspend.percent(),
                found.suspend.walks,
                found.suspend.percent_explained()
            );
            all.merge(found);
        }
        println!("\n.NET {}\n{}", runtime.version, all.text());
    }
    drop(machine);
    Ok(())
}
