//! `cargo xtask picture`: each workload in its steady phase, recorded from the start and by an attach, side by side.
//!
//! A table of how far the hottest methods are apart, and of what of the attached recording is unknown or broken. It
//! measures; a short form of it is a test (`attach.rs`).

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use testkit::{Machine, Needs, Workload};

use crate::{setup, test};

const USAGE: &str = "usage: cargo xtask picture [--seconds N] [--runtime VERSION] [PROGRAM…]";

/// Methods that are compared.
const HOTTEST: usize = 20;

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
    let setup = setup::run(false, roots)?;
    test::build_unless_brought(false)?;
    if programs.is_empty() {
        programs = testkit::attached_programs()?;
    }
    let machine = Machine::alone();
    for runtime in setup.of_version(only) {
        println!(
            "\n.NET {}\n\n| workload | samples, from the start and attached | farthest of the {HOTTEST} hottest methods, points | unknown | broken | lost |\n\
             | --- | --: | --- | --: | --: | --: |",
            runtime.version
        );
        for program in &programs {
            let workload = Workload::at(program);
            if workload.needs() == Needs::AspNetCore || !workload.runs_on(runtime) {
                continue;
            }
            let found = testkit::same_picture(runtime, program, seconds);
            let farthest = found.farthest(HOTTEST);
            let farthest = farthest.context("no method was sampled")?;
            println!(
                "| {program} | {} {} | {:.2} {} | {:.3} % | {:.3} % | {:.3} % |",
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
