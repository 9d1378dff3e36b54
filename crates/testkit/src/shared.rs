//! Cache of program runs and recordings that several tests of one test run need.
//!
//! nextest runs each test in its own process, so the results are files in a folder of the test run
//! (`NEXTEST_RUN_ID`, or the process id without nextest). The first test that needs a result makes
//! it, and the others wait. Invariant: a result is complete or absent.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output};
use std::time::Duration;

use crate::layout::target_dir;

/// Age at which folders of earlier test runs are removed.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Files of a result. The status is written last.
const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";
const STATUS: &str = "status";

/// Returns the result for `key` and its folder. Calls `make` with the folder on the first use in
/// this test run.
///
/// # Panics
/// When the folder cannot be used, or `make` panics.
pub(crate) fn once(key: &str, make: impl FnOnce(&Path) -> Output) -> (Output, PathBuf) {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let folder = run_folder().join(format!("{:016x}", hasher.finish()));
    expect(fs::create_dir_all(&folder), &folder);
    let lock = expect(File::create(folder.join("lock")), &folder);
    expect(lock.lock(), &folder);
    let status = folder.join(STATUS);
    if !status.exists() {
        let output = make(&folder);
        expect(fs::write(folder.join(STDOUT), &output.stdout), &folder);
        expect(fs::write(folder.join(STDERR), &output.stderr), &folder);
        let text = output.status.into_raw().to_string();
        expect(fs::write(&status, text), &folder);
    }
    let text = expect(fs::read_to_string(&status), &status);
    let output = Output {
        status: ExitStatus::from_raw(text.parse().expect("it was written above")),
        stdout: expect(fs::read(folder.join(STDOUT)), &folder),
        stderr: expect(fs::read(folder.join(STDERR)), &folder),
    };
    (output, folder)
}

/// Returns the folder of this test run. The first call of a run removes old folders.
fn run_folder() -> PathBuf {
    let all = target_dir().join("acceptance").join("shared");
    let run = std::env::var("NEXTEST_RUN_ID");
    let folder = all.join(run.unwrap_or_else(|_| std::process::id().to_string()));
    if !folder.exists() {
        for entry in fs::read_dir(&all).into_iter().flatten().flatten() {
            let age = entry.metadata().and_then(|found| found.modified());
            if age.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > KEPT)) {
                fs::remove_dir_all(entry.path()).ok();
            }
        }
    }
    folder
}

fn expect<T>(result: std::io::Result<T>, path: &Path) -> T {
    result.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
