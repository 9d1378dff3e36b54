//! `cargo xtask picture`: each workload in its steady phase, recorded from the start and by an
//! attach.
//!
//! Prints how far the hottest methods' shares differ between the two, and how much of the attached
//! recording is unknown or broken. A short form of it is a test (`attach.rs`).

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use testkit::{Machine, Needs, Workload};

use xtask::build::{BuildProfile, build};
use xtask::setup;

const USAGE: &str = "usage: cargo xtask picture [--seconds N] [--runtime VERSION] [PROGRAM…]";

/// Methods that are compared.
const HOTTEST: usize = 20;

/// Seconds after which a compiler and a web server have been compiled.
const STEADY_AFTER: u32 = 40;

pub(crate) fn run(arguments: &[&str], roots: &[PathBuf]) -> Result<()> {
    let mut seconds = 4;
    let mut only: Option<&str> = None;
    let mut programs = Vec::new();
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        let mut value = || rest.next().copied().context(USAGE);
        match argument {
            "--seconds" => seconds = value()?.parse().context(USAGE)?,
            "--runtime" => only = Some(value()?),
            option if option.starts_with('-') => bail!("{USAGE}"),
            program => programs.push(program.to_owned()),
        }
    }
    let setup = crate::set_up(setup::Scope::Workloads, roots)?;
    build(BuildProfile::Release, false)?;
    if programs.is_empty() {
        programs = testkit::attached_programs()?;
        programs.extend(["roslyn", "webserver"].map(str::to_owned));
    }
    let machine = Machine::exclusive();
    for runtime in setup.of_version(only) {
        println!(
            "\n.NET {}\n\n| workload | samples, from the start and attached | farthest of the {HOTTEST} hottest methods, points | two from the start | unknown | broken | lost |\n\
             | --- | --: | --- | --: | --: | --: | --: |",
            runtime.version
        );
        for program in &programs {
            let workload = Workload::at(program);
            if !workload.runs_on(runtime) {
                continue;
            }
            // Thousands of methods, whose last tiers come late.
            let warm = match workload.needs() {
                Needs::Core31 | Needs::Net8 => 1,
                Needs::AspNetCore | Needs::Roslyn => STEADY_AFTER,
            };
            let [found, noise] = testkit::compare_shares_in_turn(runtime, program, warm, seconds);
            let farthest = found.farthest(HOTTEST);
            let farthest = farthest.context("no method was sampled")?;
            let noise = noise
                .farthest(HOTTEST)
                .map_or(0.0, testkit::CpuShare::apart);
            println!(
                "| {program} | {} {} | {:.2} {} | {noise:.2} | {:.3} % | {:.3} % | {:.3} % |",
                found.samples.0,
                found.samples.1,
                farthest.apart(),
                farthest.name,
                found.unknown(),
                found.attached.percent("broken"),
                found.attached.percent("lost"),
            );
        }
    }
    drop(machine);
    Ok(())
}
