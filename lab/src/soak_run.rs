//! One run of the soak: the program bare, then recorded, and what differs.
//!
//! A recording must be readable and have samples where some are due, few of them broken; its
//! contents are not compared. Invariant: a run always ends; a hanging program is inspected, killed
//! and reported.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use testkit::{Machine, sidewalk};

use crate::soak_plan::Plan;

/// How long a program of two seconds may take: by itself, and at most with hooks in every call, a
/// processor that it shares with four others, and a tick each 100 µs.
const BARE_LIMIT: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(180);

/// How often a program that a signal has ended runs without us, to see whether it ends so by
/// itself: one that does so in a tenth of its runs shows it in all but one of 500 such series.
const AGAIN: u32 = 60;

/// Keys of a workload's measurements: different in each run.
const MEASURED: [&str; 6] = ["measured", "share", "allocated", "line", "phase", "timed"];

/// The output.
pub(crate) struct SoakOutcome {
    /// Faults of the run; empty for none.
    pub(crate) differences: Vec<String>,
    /// Why nothing can be compared: the program fails without us.
    pub(crate) bare_failed: Option<String>,
    pub(crate) samples: u64,
    pub(crate) broken: u64,
    /// Of both runs.
    pub(crate) took: Duration,
}

/// A command that has ended.
struct FinishedCommand {
    /// As a shell says it: 128 + n where signal n killed it; none if it hung.
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs a plan, leaving all that it wrote in `folder`.
pub(crate) fn run(plan: &Plan, folder: &Path) -> Result<SoakOutcome> {
    let start = Instant::now();
    let recording = folder.join("recording.swk");
    let machine = Machine::exclusive();
    let burners = Burners::start(plan.burners);
    let bare = ended(&plan.bare(), &folder.join("bare"), BARE_LIMIT)?;
    let fails = bare_failure(plan, &bare);
    let recorded = match fails {
        None => Some(ended(
            &plan.recorded(&recording),
            &folder.join("recorded"),
            LIMIT,
        )?),
        Some(_) => None,
    };
    let by_itself = match &recorded {
        Some(recorded)
            if recorded.code.is_some_and(|code| code > 128) && recorded.code != bare.code =>
        {
            times_ended_so(plan, recorded, folder)?
        }
        _ => 0,
    };
    drop(burners);
    drop(machine);
    let mut outcome = SoakOutcome {
        differences: Vec::new(),
        bare_failed: fails,
        samples: 0,
        broken: 0,
        took: start.elapsed(),
    };
    if let Some(code) = recorded.as_ref().and_then(|ended| ended.code)
        && by_itself > 0
    {
        let why = format!("it ends with {code} in {by_itself} of {AGAIN} more runs");
        outcome.bare_failed = Some(why);
    } else if let Some(recorded) = recorded {
        let unrecorded = compare(plan, &bare, &recorded, &mut outcome.differences);
        if !unrecorded && recorded.code.is_some() {
            check_recording(plan, &recording, &mut outcome);
        }
    }
    Ok(outcome)
}

/// In how many of [`AGAIN`] runs without us the program ends as it did with us: runtimes have
/// faults of their own, which not every run meets.
fn times_ended_so(plan: &Plan, recorded: &FinishedCommand, folder: &Path) -> Result<u32> {
    let mut times = 0;
    for _ in 0..AGAIN {
        let again = ended(&plan.bare(), &folder.join("bare-again"), BARE_LIMIT)?;
        times += u32::from(again.code == recorded.code);
    }
    Ok(times)
}

/// Why the program's own run is no measure.
fn bare_failure(plan: &Plan, bare: &FinishedCommand) -> Option<String> {
    let ends_by_exception = plan.program.contains("crash");
    match bare.code {
        None => Some("it hangs".to_owned()),
        Some(0) => None,
        // SIGABRT is how the runtime ends by an exception.
        Some(134) if ends_by_exception => None,
        Some(code) => {
            let why = bare.stderr.lines().find(|line| !line.trim().is_empty());
            Some(format!("it ends with {code}: {}", why.unwrap_or_default()))
        }
    }
}

/// Differences in the program's behaviour; whether it is right that there is no recording.
fn compare(
    plan: &Plan,
    bare: &FinishedCommand,
    recorded: &FinishedCommand,
    differences: &mut Vec<String>,
) -> bool {
    let counted_lines = |ended: &FinishedCommand| {
        let mut lines: Vec<String> = ended
            .stdout
            .lines()
            .filter(|line| {
                let key = line.split(' ').next().unwrap_or_default();
                !MEASURED.contains(&key)
            })
            .map(str::to_owned)
            .collect();
        // Two programs at once share one output.
        lines.sort();
        lines
    };
    let nothing = recorded.code == Some(1) && recorded.stderr.contains("nothing was recorded");
    if nothing && bare.code == Some(0) {
        if plan.is_sampled {
            differences.push(format!("nothing was recorded: {}", recorded.stderr.trim()));
        }
        return true;
    }
    if recorded.code.is_none() {
        differences.push("it hung: see hang.txt".to_owned());
    } else if recorded.code != bare.code {
        differences.push(format!(
            "exit code {} for {}",
            recorded.code.unwrap_or(-1),
            bare.code.unwrap_or(-1)
        ));
    }
    let (expected, found) = (counted_lines(bare), counted_lines(recorded));
    if expected != found {
        let first = expected
            .iter()
            .zip(&found)
            .find(|(expected, found)| expected != found)
            .map_or_else(
                || format!("{} lines for {}", found.len(), expected.len()),
                |(expected, found)| format!("`{found}` for `{expected}`"),
            );
        differences.push(format!("other output: {first}"));
    }
    false
}

/// Whether the recording is as it should be.
fn check_recording(plan: &Plan, recording: &Path, outcome: &mut SoakOutcome) {
    let mut inspect = Command::new(sidewalk());
    inspect.args(["inspect", "--json"]).arg(recording);
    let inspected = match json_of(&mut inspect) {
        Ok(inspected) => inspected,
        Err(error) => {
            let what = format!("the recording cannot be opened: {error:#}");
            outcome.differences.push(what);
            return;
        }
    };
    let number = |name: &str| inspected[name].as_u64().unwrap_or_default();
    outcome.samples = number("samples");
    outcome.broken = number("broken");
    if outcome.samples == 0 && plan.is_sampled && !has_reason(&inspected) {
        let lost = &inspected["lost_reasons"];
        let what = format!("no sample; lost: {lost}; notes: {}", inspected["notes"]);
        outcome.differences.push(what);
    }
    // Few are chance: threads that start or end, code that is on its way.
    let limit = 3 + outcome.samples / if plan.has_core31 { 100 } else { 500 };
    if outcome.broken > limit {
        let reasons = &inspected["broken_reasons"];
        let what = format!(
            "{} of {} samples are broken: {reasons}",
            outcome.broken, outcome.samples
        );
        outcome.differences.push(what);
    }
    if outcome.samples > 0 {
        let mut report = Command::new(sidewalk());
        report
            .args(["report", "--json", "--top", "10"])
            .arg(recording);
        if let Err(error) = json_of(&mut report) {
            let what = format!("there is no report of it: {error:#}");
            outcome.differences.push(what);
        }
    }
}

fn json_of(command: &mut Command) -> Result<Value> {
    let output = command.stdin(Stdio::null()).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}: {stderr}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs a command to its end, its output in files beside `place`.
fn ended(words: &[String], place: &Path, limit: Duration) -> Result<FinishedCommand> {
    let (stdout, stderr) = (place.with_extension("out"), place.with_extension("err"));
    let (first, rest) = words.split_first().context("an empty command")?;
    let mut child = Command::new(first)
        .args(rest)
        .stdin(Stdio::null())
        .stdout(File::create(&stdout)?)
        .stderr(File::create(&stderr)?)
        // Of its own, so that all that it starts can be killed.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {first}"))?;
    let group = child.id();
    let (sender, receiver) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let status = child.wait();
        // The other end may have given up.
        sender.send(()).ok();
        status
    });
    let in_time = receiver.recv_timeout(limit).is_ok();
    if !in_time {
        fs::write(place.with_file_name("hang.txt"), threads_of(group))?;
        Command::new("kill")
            .args(["-KILL", "--", &format!("-{group}")])
            .status()?;
    }
    let status = waiter
        .join()
        .map_err(|_| anyhow::anyhow!("waiting for {first} failed"))??;
    let text = |path: &Path| -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
    };
    Ok(FinishedCommand {
        code: in_time.then(|| code_of(status)),
        stdout: text(&stdout)?,
        stderr: text(&stderr)?,
    })
}

fn code_of(status: ExitStatus) -> i32 {
    let by_signal = || 128 + status.signal().unwrap_or_default();
    status.code().unwrap_or_else(by_signal)
}

/// State of each thread of a process group, as far as the kernel tells.
fn threads_of(group: u32) -> String {
    let mut text = String::new();
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    for process in entries(Path::new("/proc")) {
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // PID (COMMAND) STATE PPID GROUP …
        let own = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(2)?.parse::<u32>().ok());
        if own != Some(group) {
            continue;
        }
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let _ = writeln!(text, "{} {command}", process.file_name().display());
        for thread in entries(&process.path().join("task")) {
            let read =
                |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let status = read("status");
            let kept = status.lines().filter(|line| {
                ["Name", "State", "SigPnd", "SigBlk", "ShdPnd"]
                    .iter()
                    .any(|key| line.starts_with(key))
            });
            let status: Vec<String> = kept.map(|line| line.replace('\t', " ")).collect();
            let _ = writeln!(
                text,
                "  {} {}; {}; syscall {}",
                thread.file_name().display(),
                status.join(", "),
                read("wchan"),
                read("syscall").trim()
            );
        }
    }
    text
}

/// Threads of ours that take processor time from the program.
struct Burners {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Burners {
    fn start(count: usize) -> Burners {
        let over = Arc::new(AtomicBool::new(false));
        let burn = |over: Arc<AtomicBool>| {
            move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        Burners {
            threads: (0..count)
                .map(|_| std::thread::spawn(burn(Arc::clone(&over))))
                .collect(),
            over,
        }
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It does nothing that could fail.
            thread.join().ok();
        }
    }
}

/// Whether a recording without samples names what stood in the way of nearly all: the user's queue
/// of signals is shared with whatever else runs on the machine.
fn has_reason(inspected: &Value) -> bool {
    let due = inspected["due_ns"].as_u64().unwrap_or_default();
    let reasons = inspected["unseen_reasons"].as_object();
    let named = reasons.into_iter().flatten();
    let named = named.filter(|(reason, _)| *reason != "unknown");
    let named: u64 = named.filter_map(|(_, ns)| ns.as_u64()).sum();
    // By the wall clock nothing is due that could be named.
    let refused = inspected["lost_reasons"]["signal queue full"].as_u64();
    named > 0 && named >= due / 10 * 8 || due == 0 && refused.is_some_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32, stdout: &str, stderr: &str) -> FinishedCommand {
        FinishedCommand {
            code: (code >= 0).then_some(code),
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
        }
    }

    fn differences(bare: &FinishedCommand, recorded: &FinishedCommand) -> Vec<String> {
        let mut differences = Vec::new();
        compare(&Plan::of("leaf"), bare, recorded, &mut differences);
        differences
    }

    #[test]
    fn what_a_program_measures_may_differ() {
        let bare = ended(0, "result sum 5\nmeasured rounds 7\nshare A 50.1\n", "");
        let same = ended(0, "measured rounds 8\nshare A 50.2\nresult sum 5\n", "");
        assert_eq!(differences(&bare, &same), [""; 0]);
    }

    #[test]
    fn another_result_a_signal_a_missing_line_and_a_hang_are_differences() {
        let bare = ended(0, "result sum 5\nresult last 1\n", "");
        for (recorded, expected) in [
            (
                ended(0, "result sum 6\nresult last 1\n", ""),
                "`result sum 6` for `result sum 5`",
            ),
            (ended(0, "result last 1\n", ""), "1 lines for 2"),
            (
                ended(139, "result sum 5\nresult last 1\n", ""),
                "exit code 139 for 0",
            ),
            (ended(-1, "result sum 5\nresult last 1\n", ""), "it hung"),
            (
                ended(1, "", "error: nothing was recorded: why"),
                "nothing was recorded",
            ),
        ] {
            let found = differences(&bare, &recorded).join("; ");
            assert!(found.contains(expected), "{expected}: {found}");
        }
    }

    #[test]
    fn a_program_that_fails_by_itself_is_no_measure() {
        let plan = Plan::of("leaf");
        assert!(bare_failure(&plan, &ended(0, "", "")).is_none());
        assert!(bare_failure(&plan, &ended(134, "", "")).is_some());
        assert!(bare_failure(&plan, &ended(-1, "", "")).is_some());
        let crash = Plan::of("exceptions crash");
        assert!(bare_failure(&crash, &ended(134, "", "")).is_none());
        assert!(bare_failure(&crash, &ended(139, "", "")).is_some());
    }

    #[test]
    fn a_program_that_hangs_is_looked_at_and_killed_with_all_that_it_started() {
        let folder = std::env::temp_dir().join(format!("sidewalk-hang-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let words = ["sh", "-c", "sleep 1000 & echo $!; wait"].map(str::to_owned);
        let ended = super::ended(&words, &folder.join("recorded"), Duration::from_secs(2));
        let ended = ended.unwrap();
        let hang = fs::read_to_string(folder.join("hang.txt")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(ended.code, None);
        assert!(
            hang.contains("sleep 1000") && hang.contains("SigBlk"),
            "{hang}"
        );
        // It is gone, or its exit status was not collected yet; a killed process takes a moment to
        // die.
        let path = format!("/proc/{}/stat", ended.stdout.trim());
        let is_over = || {
            let stat = fs::read_to_string(&path).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        while !is_over() {
            std::thread::yield_now();
        }
    }
}
