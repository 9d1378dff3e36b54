//! `sidewalk list`: prints the visible .NET processes and how each can be recorded.
//!
//! No process is changed.
//! Invariants: each query of a process that is stuck or stopped ends after a second, and several
//! processes are queried at once. Names of processes cannot control the terminal.

mod container;

use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use control::Message;
use diagnostics::{Error, Reach, RecordingRoute, Refusal, Target, connect_to_newest};
use formats::visible;
use serde::Serialize;

use crate::args::ListArgs;
use crate::console::Console;
use crate::running;
use crate::tested::newer_than_tested;

/// Timeout of a query.
const WAIT: Duration = Duration::from_secs(1);
/// Number of processes queried at the same time.
const CONCURRENT_REQUESTS: usize = 16;

/// One listed process.
#[derive(Serialize, Debug)]
struct ProcessRow {
    pid: u32,
    /// The process id in its own namespace.
    pid_inside: u32,
    /// Versions of its CLRs. A CLR without a known version is `unknown`.
    runtimes: Vec<String>,
    /// Whether a CLR is newer than any that recording was tested on.
    is_newer_than_tested: bool,
    uptime_s: f64,
    uid: u32,
    user: String,
    /// Its container's id, or which views of files or processes it has of its own.
    container: Option<String>,
    command: Vec<String>,
    /// `attach`, `control socket`, `beside another profiler`. `None` if it cannot be recorded.
    record: Option<&'static str>,
    /// The state of the agent in it: `idle`, `recording`.
    agent: Option<String>,
    /// The tool that records it.
    recorded_by: Option<String>,
    /// The other profiler's library.
    profiler: Option<String>,
    /// Why it cannot be recorded, and what to do.
    why_not: Option<String>,
    #[serde(skip)]
    short: String,
}

/// Runs the verb.
pub(crate) fn run(args: &ListArgs, console: &Console) -> Result<()> {
    let rows = rows()?;
    let mut text = Vec::new();
    if args.json {
        formats::write_json(&mut text, &as_object(&rows))?;
        text.push(b'\n');
    } else {
        text.extend_from_slice(table(&rows, terminal_width()).as_bytes());
    }
    let mut out = io::stdout().lock();
    out.write_all(&text)?;
    out.flush()?;
    if rows.is_empty() {
        console.note(if rustix::process::geteuid().is_root() {
            "no .NET process runs here"
        } else {
            "no .NET process can be seen; root sees those of all users"
        });
    }
    Ok(())
}

/// The rows as a JSON object, which can get more fields later.
fn as_object(rows: &[ProcessRow]) -> impl Serialize {
    #[derive(Serialize)]
    struct Processes<'a> {
        processes: &'a [ProcessRow],
    }
    Processes { processes: rows }
}

/// Returns the rows of all processes, ordered by process id.
fn rows() -> Result<Vec<ProcessRow>> {
    let targets = running::targets()?;
    let mut rows = running::at_once(targets, CONCURRENT_REQUESTS, |target| row(&target));
    rows.sort_by_key(|row| row.pid);
    Ok(rows)
}

/// Returns the row of a process. `None` if it has ended meanwhile.
fn row(target: &Target) -> Option<ProcessRow> {
    let reach = Reach::of(target, WAIT);
    let state = match &reach.route {
        Ok(RecordingRoute::ControlSocket) => agent_state(target),
        _ => None,
    };
    let value_of = |key| state.as_ref().and_then(|state| state.get(key));
    let agent = value_of(control::keys::PHASE).map(str::to_owned);
    // An idle agent reports who recorded last.
    let recorded_by = value_of(control::keys::BY).filter(|_| agent.as_deref() == Some("recording"));
    let recorded_by = recorded_by.map(str::to_owned);
    let (record, profiler, why_not, short) = match &reach.route {
        Ok(RecordingRoute::Attach) => (Some("attach"), None, None, "attach".to_owned()),
        Ok(RecordingRoute::ControlSocket) => {
            let short = match &recorded_by {
                Some(by) => format!("recorded by {by}"),
                None => "control socket".to_owned(),
            };
            (Some("control socket"), None, None, short)
        }
        Ok(RecordingRoute::Beside(profiler)) => {
            let name = Path::new(&profiler.library).file_name().unwrap_or_default();
            (
                Some("beside another profiler"),
                Some(profiler.library.clone()),
                None,
                format!("beside {}", name.to_string_lossy()),
            )
        }
        Err(Refusal::Unreachable(
            Error::NoProcess { .. } | Error::Ending { .. } | Error::Ended { goes_on: false, .. },
        )) => return None,
        Err(refusal) => (
            None,
            None,
            Some(refusal.to_string()),
            format!("no: {}", refusal.short()),
        ),
    };
    let uid = target.process().uid().ok()?;
    let runtimes = versions(&reach);
    Some(ProcessRow {
        pid: target.pid(),
        pid_inside: target.pid_inside(),
        is_newer_than_tested: runtimes.iter().any(|one| newer_than_tested(one).is_some()),
        runtimes,
        uptime_s: target.uptime()?.as_secs_f64(),
        uid,
        user: running::user_name(uid),
        container: container::container_of(target),
        command: running::command(target),
        record,
        agent,
        recorded_by,
        profiler,
        why_not,
        short,
    })
}

/// Returns the state that the agent in a process reports.
pub(crate) fn agent_state(target: &Target) -> Option<Message> {
    let prefix = format!("sidewalk-{}-", target.pid_inside());
    let is_it = |name: &str| name.starts_with(&prefix) && name.ends_with(".sock");
    let deadline = Instant::now() + WAIT;
    let stream = connect_to_newest(target, WAIT, is_it).ok()?;
    stream.set_write_timeout(Some(WAIT)).ok()?;
    let request =
        Message::new(control::verb::STATE).with(control::keys::PROTOCOL, control::PROTOCOL);
    control::send(&stream, &request).ok()?;
    control::receive(DeadlineReader { stream, deadline }).ok()
}

/// Reads until a deadline, so that a slow trickle of bytes cannot extend it.
struct DeadlineReader {
    stream: UnixStream,
    deadline: Instant,
}

impl Read for DeadlineReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(into)
    }
}

/// The versions of all CLRs. The CLR on the diagnostics socket reports its own version best.
fn versions(reach: &Reach) -> Vec<String> {
    let value_of = reach.info.as_ref().and_then(|info| info.version.clone());
    let seen = reach.survey.iter().flat_map(|survey| &survey.runtimes);
    let seen: Vec<Option<String>> = seen.map(|runtime| runtime.version.clone()).collect();
    let mut versions: Vec<String> = match &seen[..] {
        [_] | [] => vec![reach.version().map(str::to_owned)],
        _ => seen,
    }
    .into_iter()
    .map(|version| version.unwrap_or_else(|| "unknown".to_owned()))
    .collect();
    if let Some(value_of) = value_of
        && !versions.contains(&value_of)
    {
        versions.push(value_of);
    }
    versions.dedup();
    versions
}

/// Width of the terminal that stdout is, in columns.
fn terminal_width() -> Option<usize> {
    let out = io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&out).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Formats the table. Columns are as wide as needed; the last one is cut at the terminal's width.
fn table(rows: &[ProcessRow], width: Option<usize>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let has_containers = rows.iter().any(|row| row.container.is_some());
    let mut lines = vec![cells(has_containers, |name| name.to_owned())];
    for row in rows {
        lines.push(cells(has_containers, |name| match name {
            "PID" => row.pid.to_string(),
            ".NET" if row.is_newer_than_tested => {
                format!("{} (newer than tested)", cell_text(&row.runtimes.join(" ")))
            }
            ".NET" => cell_text(&row.runtimes.join(" ")),
            "UPTIME" => duration(row.uptime_s),
            "USER" => cell_text(&row.user),
            "CONTAINER" => cell_text(row.container.as_deref().unwrap_or("-")),
            "RECORD" => cell_text(&row.short),
            _ => formats::command_line(&row.command),
        }));
    }
    let columns = lines.first().map_or(0, Vec::len);
    let width_of = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width_of).collect();
    let mut text = String::new();
    for line in &lines {
        let mut shown = String::new();
        for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
            if at + 1 == columns {
                shown.push_str(cell);
            } else if at == 0 {
                shown.push_str(&format!("{cell:>width$}  "));
            } else {
                shown.push_str(&format!("{cell:<width$}  "));
            }
        }
        match width {
            Some(width) => text.extend(shown.chars().take(width)),
            None => text.push_str(&shown),
        }
        text.push('\n');
    }
    text
}

fn cells(has_containers: bool, cell: impl Fn(&str) -> String) -> Vec<String> {
    let names = [
        "PID",
        ".NET",
        "UPTIME",
        "USER",
        "CONTAINER",
        "RECORD",
        "COMMAND",
    ];
    let names = names
        .iter()
        .filter(|name| has_containers || **name != "CONTAINER");
    names.map(|name| cell(name)).collect()
}

fn cell_text(text: &str) -> String {
    visible(text).into_owned()
}

/// Formats a time as `45s`, `12m`, `3h05m`, `2d04h`.
fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if days > 0 {
        format!("{days}d{:02}h", hours % 24)
    } else if hours > 0 {
        format!("{hours}h{:02}m", minutes % 60)
    } else if minutes > 0 {
        format!("{minutes}m")
    } else {
        format!("{seconds}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(pid: u32, command: &[&str]) -> ProcessRow {
        ProcessRow {
            pid,
            pid_inside: 1,
            runtimes: vec!["8.0.4".to_owned()],
            is_newer_than_tested: false,
            uptime_s: 4000.0,
            uid: 0,
            user: "root".to_owned(),
            container: None,
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            record: Some("attach"),
            agent: None,
            recorded_by: None,
            profiler: None,
            why_not: None,
            short: "attach".to_owned(),
        }
    }

    #[test]
    fn a_table() {
        let mut inside = example(12345, &["dotnet", "app.dll", "a b"]);
        inside.container = Some("0123456789ab".to_owned());
        let rows = [example(7, &["./server"]), inside];
        insta::assert_snapshot!(table(&rows, None), @r"
          PID  .NET   UPTIME  USER  CONTAINER     RECORD  COMMAND
            7  8.0.4  1h06m   root  -             attach  ./server
        12345  8.0.4  1h06m   root  0123456789ab  attach  dotnet app.dll a b
        ");
        let cut = table(&rows[..1], Some(40));
        assert!(cut.lines().all(|line| line.len() <= 40), "{cut}");
        assert!(!cut.contains("CONTAINER"), "{cut}");
    }

    #[test]
    fn a_hostile_process_acts_on_no_terminal() {
        let mut row = example(7, &["\x1b[2J\u{202e}x\ny"]);
        row.user = "\u{9b}0m".to_owned();
        row.short = "beside \x1b]0;x\x07".to_owned();
        let text = table(&[row], None);
        assert!(
            text.chars()
                .all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'),
            "{text:?}"
        );
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn durations() {
        for (seconds, shown) in [
            (0.4, "0s"),
            (59.9, "59s"),
            (60.0, "1m"),
            (3_600.0, "1h00m"),
            (187_200.0, "2d04h"),
        ] {
            assert_eq!(duration(seconds), shown);
        }
    }

    /// Each byte is in time, but the whole reply is not.
    #[test]
    fn an_agent_that_trickles_is_not_waited_for() {
        let (stream, mut other) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || while other.write_all(b"x").is_ok() {});
        let deadline = Instant::now() + Duration::from_millis(50);
        let mut until = DeadlineReader { stream, deadline };
        let error = io::copy(&mut until, &mut io::sink()).unwrap_err();
        let late = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(late.contains(&error.kind()), "{error}");
        drop(until);
        thread.join().unwrap();
    }
}
