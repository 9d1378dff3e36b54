//! Cost of recording from perf's samples: part of `cargo xtask bench --only switch --perf`.
//!
//! On a shared machine the CPU time of the same work varies by a fifth between moments, so no ratio
//! of two moments shows a hundredth. But a disturbance slows managed code and everything else
//! alike, and the managed work is the same with a recording and without. So the measure is all
//! samples of a moment divided by those in managed code. It leaves out the effect of recording on
//! the caches of managed code. Invariant: a moment with next to no samples in managed code is an
//! error.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Samples a second: no multiple of what recordings and the kernel's tick do.
const FREQUENCY: &str = "1997";
/// Fewer samples of managed code tell nothing: 3 % by chance.
const FEWEST: u64 = 1000;

/// perf at work on a moment of a process.
pub(crate) struct PerfSession {
    perf: Child,
    file: PathBuf,
}

impl PerfSession {
    /// Samples a process, for a little less than the moment.
    pub(crate) fn start(pid: u32, moment: Duration, folder: &Path) -> Result<PerfSession> {
        let file = folder.join(format!("moment-{pid}.data"));
        let mut command = Command::new("perf");
        command
            .args(["record", "--quiet", "-e", "cpu-clock", "-F", FREQUENCY])
            .args(["-p", &pid.to_string(), "-o"])
            .arg(&file)
            .args(["--", "sleep"])
            .arg(format!("{:.1}", moment.as_secs_f64() * 0.94))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let perf = command.spawn().context("--perf needs perf on the PATH")?;
        Ok(PerfSession { perf, file })
    }

    /// All samples of the moment ÷ those in managed code.
    pub(crate) fn end(mut self) -> Result<f64> {
        let status = self.perf.wait()?;
        ensure!(status.success(), "perf record ended with {status}");
        let mut report = Command::new("perf");
        report
            .args(["report", "--stdio", "--show-nr-samples", "--sort", "dso"])
            .arg("-i")
            .arg(&self.file);
        let output = report.output()?;
        let (all, managed) = samples(&String::from_utf8_lossy(&output.stdout));
        ensure!(
            managed >= FEWEST,
            "perf has {managed} samples in managed code, of {all}: {}",
            self.file.display()
        );
        #[expect(clippy::cast_precision_loss, reason = "some ten thousand")]
        Ok(all as f64 / managed as f64)
    }
}

/// Samples of all rows of perf's report by library, and of those that are managed code.
fn samples(report: &str) -> (u64, u64) {
    let rows = report.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let share = words.next()?.strip_suffix('%')?;
        share.parse::<f64>().ok()?;
        let samples: u64 = words.next()?.parse().ok()?;
        Some((words.next().unwrap_or_default(), samples))
    });
    rows.fold((0, 0), |(all, managed), (library, samples)| {
        let own = if is_managed(library) { samples } else { 0 };
        (all + samples, managed + own)
    })
}

/// Precompiled code, or compiled code: in the runtime's memory that is mapped twice, or (without
/// W^X) in anonymous memory.
fn is_managed(library: &str) -> bool {
    library.ends_with(".dll")
        || library.contains("doublemapper")
        || library.starts_with("//anon")
        || library.starts_with("[JIT]")
        || (library.starts_with("perf-") && library.ends_with(".map"))
}

#[cfg(test)]
mod tests {
    use super::samples;

    #[test]
    fn managed_code_is_told_from_the_rest() {
        let report = "\
# To display the perf.data header info, please use --header/--header-only options.
# Overhead       Samples  Shared Object
# ........  ............  .............
#
    51.00%          5100  memfd:doublemapper (deleted)
    20.50%          2050  [kernel.kallsyms]
    10.00%          1000  System.Private.CoreLib.dll
     9.50%           950  libcoreclr.so
     5.00%           500  perf-4711.map
     3.00%           300  [JIT] tid 4711
     1.00%           100  libsidewalk.so
";
        assert_eq!(samples(report), (10_000, 6_900));
        assert_eq!(samples("no samples"), (0, 0));
    }
}
