//! `cargo xtask soak`: random runs for hours. Recording must not change what a program does.
//!
//! A run is a program of `workloads/`, settings of its runtime, options of `sidewalk record` and
//! circumstances, all chosen by the seed and the run's number; it is made bare and recorded, and
//! the two are compared. docs/reliability.md has what was soaked for how long.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use testkit::Setup;

use crate::soak_plan::{Choices, Plan, shell};
use crate::soak_run::{SoakOutcome, run as run_plan};
use xtask::build::{BuildProfile, build};
use xtask::setup;

const USAGE: &str = "usage: cargo xtask soak [--hours N | --runs N] [--seed S] [--only RUN [--times N]] [--plan] \
                     [--runtimes DIR…] [PROGRAM…]";

struct SoakOptions {
    time: Duration,
    /// So many runs, however long they take.
    runs: Option<u64>,
    seed: u64,
    /// One run, so many times.
    only: Option<u64>,
    times: u64,
    /// Print the commands of the run and start nothing.
    is_plan: bool,
    programs: Vec<String>,
}

fn options(arguments: &[&str]) -> Result<SoakOptions> {
    let mut options = SoakOptions {
        time: Duration::from_secs(3600),
        runs: None,
        seed: 1,
        only: None,
        times: 1,
        is_plan: false,
        programs: Vec::new(),
    };
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        let mut value = || rest.next().copied().context(USAGE);
        match argument {
            "--hours" => {
                let hours: f64 = value()?.parse().context(USAGE)?;
                options.time = Duration::try_from_secs_f64(hours * 3600.0).context(USAGE)?;
            }
            "--runs" => {
                options.runs = Some(value()?.parse().context(USAGE)?);
                options.time = Duration::MAX;
            }
            "--seed" => options.seed = value()?.parse().context(USAGE)?,
            "--only" => options.only = Some(value()?.parse().context(USAGE)?),
            "--times" => options.times = value()?.parse().context(USAGE)?,
            "--plan" => options.is_plan = true,
            option if option.starts_with('-') => bail!("{USAGE}"),
            program => options.programs.push(program.to_owned()),
        }
    }
    Ok(options)
}

/// Soaks as told, prints a table, and fails if anything differed.
pub(crate) fn run(arguments: &[&str], roots: &[PathBuf]) -> Result<()> {
    let options = options(arguments)?;
    let setup = crate::set_up(setup::Scope::Tests, roots)?;
    build(BuildProfile::Release, false)?;
    soak(&setup, &options, roots)
}

fn soak(setup: &Setup, options: &SoakOptions, roots: &[PathBuf]) -> Result<()> {
    let choices = Choices::new(setup, &options.programs)?;
    let start = Instant::now();
    let mut table = SoakTable::default();
    let numbers = match options.only {
        Some(number) => number..number + 1,
        None => 0..options.runs.unwrap_or(u64::MAX),
    };
    for number in numbers {
        if options.only.is_none() && start.elapsed() >= options.time {
            break;
        }
        for _ in 0..options.times {
            let folder = folder(options.seed, number)?;
            let plan = Plan::new(&choices, options.seed, number, &folder)?;
            if options.is_plan {
                println!("{}", commands(&plan, &folder));
                continue;
            }
            let outcome = run_plan(&plan, &folder)?;
            print_outcome(&plan, &outcome, options, roots, &folder);
            if outcome.differences.is_empty() {
                // It is not there any more if it was removed meanwhile.
                fs::remove_dir_all(&folder).ok();
            }
            table.add(&plan, &outcome);
        }
    }
    if options.is_plan {
        return Ok(());
    }
    println!("{}", table.text(options.seed, start.elapsed()));
    ensure!(
        table.differing.is_empty(),
        "{} of {} runs differ: {:?}",
        table.differing.len(),
        table.all.runs,
        table.differing
    );
    ensure!(table.all.compared() > 0, "no run could be compared");
    Ok(())
}

/// An empty folder for what a run writes.
fn folder(seed: u64, number: u64) -> Result<PathBuf> {
    let name = format!("{seed}-{number}-{}", std::process::id());
    let folder = testkit::target_dir().join("soak").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// The two command lines, for a shell.
fn commands(plan: &Plan, folder: &Path) -> String {
    let recorded = plan.recorded(&folder.join("recording.swk"));
    format!(
        "  bare: {}\n  recorded: {}",
        shell(&plan.bare()),
        shell(&recorded)
    )
}

/// Prints what became of a run, and how to have it again.
fn print_outcome(
    plan: &Plan,
    outcome: &SoakOutcome,
    options: &SoakOptions,
    roots: &[PathBuf],
    folder: &Path,
) {
    let head = format!(
        "run {}: {} on {}; {}",
        plan.number, plan.program, plan.runtime, plan.title
    );
    if let Some(why) = &outcome.bare_failed {
        eprintln!("{head}\n  not compared, without us {why}");
    } else if outcome.differences.is_empty() {
        eprintln!(
            "{head}\n  the same; {} samples, {} broken, {:.1} s",
            outcome.samples,
            outcome.broken,
            outcome.took.as_secs_f64()
        );
    } else {
        let mut again = format!(
            "cargo xtask soak --seed {} --only {}",
            options.seed, plan.number
        );
        for program in &options.programs {
            let _ = write!(again, " {program}");
        }
        if !roots.is_empty() {
            let roots: Vec<String> = roots.iter().map(|r| r.display().to_string()).collect();
            let _ = write!(again, " --runtimes {}", shell(&roots));
        }
        println!(
            "{head}\n  DIFFERENT: {}\n  again: {again}\n{}\n  kept: {}",
            outcome.differences.join("; "),
            commands(plan, folder),
            folder.display()
        );
    }
}

/// Sums of runs.
#[derive(Clone, Copy, Default)]
struct SoakRow {
    runs: u64,
    not_compared: u64,
    differing: u64,
    samples: u64,
    broken: u64,
    time: Duration,
}

impl SoakRow {
    fn add(&mut self, outcome: &SoakOutcome) {
        self.runs += 1;
        self.not_compared += u64::from(outcome.bare_failed.is_some());
        self.differing += u64::from(!outcome.differences.is_empty());
        self.samples += outcome.samples;
        self.broken += outcome.broken;
        self.time += outcome.took;
    }

    fn compared(&self) -> u64 {
        self.runs - self.not_compared
    }

    fn text(&self, name: &str) -> String {
        format!(
            "| {name} | {} | {:.3} | {} | {} | {} | {} |\n",
            self.runs,
            self.time.as_secs_f64() / 3600.0,
            self.samples,
            self.broken,
            self.not_compared,
            self.differing
        )
    }
}

#[derive(Default)]
struct SoakTable {
    all: SoakRow,
    programs: BTreeMap<String, SoakRow>,
    runtimes: BTreeMap<String, SoakRow>,
    /// Numbers of the runs that differ.
    differing: Vec<u64>,
}

impl SoakTable {
    fn add(&mut self, plan: &Plan, outcome: &SoakOutcome) {
        self.all.add(outcome);
        let program = if plan.program.contains(" + ") {
            "two programs in one process"
        } else {
            &plan.program
        };
        self.programs
            .entry(program.to_owned())
            .or_default()
            .add(outcome);
        self.runtimes
            .entry(plan.runtime.clone())
            .or_default()
            .add(outcome);
        if !outcome.differences.is_empty() {
            self.differing.push(plan.number);
        }
    }

    fn text(&self, seed: u64, took: Duration) -> String {
        let mut text = format!(
            "\nSoaked for {:.3} h with seed {seed}.\n",
            took.as_secs_f64() / 3600.0
        );
        for (title, rows) in [("program", &self.programs), ("runtime", &self.runtimes)] {
            let _ = writeln!(
                text,
                "\n| {title} | runs | hours | samples | broken | not compared | different |\n\
                 | --- | --: | --: | --: | --: | --: | --: |"
            );
            for (name, row) in rows {
                text += &row.text(name);
            }
            text += &self.all.text("**all**");
        }
        text
    }
}
