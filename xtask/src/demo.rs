//! `cargo xtask demo`: from a fresh checkout to a flame graph.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};

use crate::build::{BuildProfile, build_command};
use crate::process::run;
use crate::setup;

/// How long the sample program runs, in seconds.
const SECONDS: &str = "4";

/// Records the sample program and shows what it did.
///
/// Uses the development build: the release build takes minutes to link.
///
/// # Errors
/// A download, the build or the recording fails.
pub fn run_demo(roots: &[PathBuf]) -> Result<()> {
    eprintln!(
        "1 of 3: building sidewalk, and meanwhile fetching .NET and compiling the sample program \
         (the first time about two minutes)"
    );
    let setup = thread::scope(|scope| {
        let setup = scope.spawn(|| setup::run(setup::Scope::Demo, roots));
        run(&mut build_command(BuildProfile::Development, false))?;
        setup.join().map_err(|_| anyhow!("set-up panicked"))?
    })?;
    let runtime = setup.runtimes.first().context("set-up found no runtime")?;
    let sidewalk = testkit::sidewalk();
    let folder = testkit::target_dir().join("demo");
    fs::create_dir_all(&folder)?;
    let recording = folder.join("shares.swk");
    let picture = folder.join("shares.html");

    eprintln!(
        "\n2 of 3: recording the sample program for {SECONDS} s, on .NET {}:\n",
        runtime.version
    );
    let mut record = Command::new(&sidewalk);
    record
        .args(["record", "--frequency", "499", "--output"])
        .arg(&recording);
    record.arg("--output").arg(&picture).arg("--");
    runtime.add_to(&mut record, &testkit::workload(setup::DEMO).dll);
    run(record.arg(SECONDS))?;
    ensure!(picture.is_file(), "sidewalk wrote no {}", picture.display());

    eprintln!("\n3 of 3: the shares above are what the program measured itself. Sidewalk saw:\n");
    run(Command::new(&sidewalk)
        .args(["report", "--top", "10"])
        .arg(&recording))?;
    println!("\nThe flame graph, for any browser: {}", picture.display());
    println!(
        "Next, your own program: {} record -o profile.html -- dotnet YourApp.dll",
        sidewalk.display()
    );
    Ok(())
}
