//! `cargo xtask demo`: from a fresh checkout to a flame graph.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::run;
use crate::{setup, test};

/// How long the sample program runs, in seconds.
const SECONDS: &str = "4";

/// Records the sample program and shows what it did.
pub(crate) fn run_demo(roots: &[PathBuf]) -> Result<()> {
    let setup = setup::run(false, roots)?;
    test::build()?;
    let runtime = setup.runtimes.first().context("set-up found no runtime")?;
    let sidewalk = testkit::sidewalk();
    let folder = testkit::target_dir().join("demo");
    fs::create_dir_all(&folder)?;
    let recording = folder.join("shares.swk");
    let picture = folder.join("shares.html");

    eprintln!(
        "\nrecording the sample program for {SECONDS} s, on .NET {}:\n",
        runtime.version
    );
    let mut record = Command::new(&sidewalk);
    record
        .args(["record", "--frequency", "499", "--output"])
        .arg(&recording);
    record.arg("--output").arg(&picture).arg("--");
    runtime.add_to(&mut record, &testkit::workload("shares").dll);
    run(record.arg(SECONDS))?;
    ensure!(picture.is_file(), "sidewalk wrote no {}", picture.display());

    println!("\nThe shares above are what the program measured itself. Sidewalk saw:\n");
    run(Command::new(&sidewalk)
        .args(["report", "--top", "10"])
        .arg(&recording))?;
    println!("\nThe flame graph, for any browser: {}", picture.display());
    Ok(())
}
