//! Finds .NET processes of the command that are not recorded, and the reason for each.
//!
//! Their agent was never loaded, so they do not connect. So `/proc` is searched, but only if a
//! process or thread has started since the last search (`/proc/loadavg` has the newest id). A
//! process without .NET is checked at growing intervals.
//! Invariants: no process is changed or queried. A search costs nothing if nothing was started.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use diagnostics::{Libc, Survey, Target, release};
use procfs::process::Stat;

use super::environment;
use crate::console::escaped;
use crate::running;

/// Time until the second check of a process. It doubles with each check …
const FIRST_CHECK: Duration = Duration::from_millis(10);
/// … up to this interval: a runtime may be loaded late.
const LAST_CHECK: Duration = Duration::from_secs(2);
/// Time between two reads of `/proc/loadavg`.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The processes started by the command.
pub(super) struct Descendants {
    loadavg: Option<File>,
    /// The newest process or thread id at the last search.
    newest: Option<u32>,
    /// The socket that our agents connect to. `None` if the command was started without one.
    socket: Option<OsString>,
    /// The C library for which alone they have an agent. `None` if they have both agents.
    libc: Option<Libc>,
    /// Processes that were there before, or are not the command's.
    foreign_pids: BTreeSet<u32>,
    /// The command's processes. Each is checked until it is known whether it is recorded.
    watched_pids: HashMap<u32, Option<CheckSchedule>>,
    /// Processes with a runtime whose agent had not connected when they were checked.
    unrecorded: Vec<Unrecorded>,
    servers: Option<Vec<BuildServer>>,
    due: Instant,
}

struct CheckSchedule {
    interval: Duration,
    at: Instant,
}

/// A .NET process whose agent has not connected yet.
struct Unrecorded {
    pid: u32,
    command: String,
    why: String,
}

/// A build server that ran before the command.
struct BuildServer {
    pid: u32,
    started: u64,
    command: String,
    /// CPU time, in the system's clock ticks.
    used: u64,
}

impl Descendants {
    /// Begins with `root`, whose agents, those for `libc` or for each C library, are to connect to
    /// `socket`, if they have one.
    pub(super) fn of(root: u32, socket: Option<&PathBuf>, libc: Option<Libc>) -> Self {
        let now = Instant::now();
        let mut found = Self {
            loadavg: File::open("/proc/loadavg").ok(),
            newest: None,
            socket: socket.map(Into::into),
            libc,
            foreign_pids: BTreeSet::new(),
            watched_pids: HashMap::new(),
            unrecorded: Vec::new(),
            servers: None,
            due: now,
        };
        found.watch(root, now);
        found
    }

    /// Time at which [`Descendants::check_due`] must be called at the latest.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Runs the checks that are due. A settled process needs no reason.
    pub(super) fn check_due(&mut self, now: Instant, is_settled: &dyn Fn(u32) -> bool) {
        if now < self.due {
            return;
        }
        let newest = self.read_newest();
        if newest.is_none() || newest != self.newest {
            self.newest = newest;
            self.find_new(now);
        }
        let pids: Vec<u32> = self.watched_pids.keys().copied().collect();
        for pid in pids {
            self.check_process(pid, now, is_settled);
        }
        let watched = self.watched_pids.values().flatten();
        let next = watched.map(|watched| watched.at).min();
        let ask = now + POLL_INTERVAL;
        self.due = next.map_or(ask, |next| next.max(now + FIRST_CHECK).min(ask));
    }

    /// The processes whose agents have not connected, each with the reason.
    pub(super) fn unrecorded(&self, is_settled: &dyn Fn(u32) -> bool) -> Vec<String> {
        let missing = self.unrecorded.iter();
        let missing = missing.filter(|found| !is_settled(found.pid));
        missing
            .map(|found| format!("{} ({}): {}", found.pid, found.command, found.why))
            .collect()
    }

    /// The build servers that ran before the command and have used CPU time since.
    pub(super) fn busy_servers(&self) -> Vec<String> {
        let per_second = procfs::ticks_per_second() as f64;
        let busy = self.servers.iter().flatten().filter_map(|server| {
            let stat = stat_of(server.pid)?;
            let used = cpu_ticks(&stat).saturating_sub(server.used);
            (stat.starttime == server.started && used > 0).then(|| {
                let seconds = used as f64 / per_second;
                format!("{} ({}): {seconds:.2} s of CPU", server.pid, server.command)
            })
        });
        busy.collect()
    }

    fn read_newest(&self) -> Option<u32> {
        let mut text = [0; 128];
        let length = self.loadavg.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(text.get(..length)?).ok()?;
        text.split_whitespace().last()?.parse().ok()
    }

    fn watch(&mut self, pid: u32, now: Instant) {
        let watched = Some(CheckSchedule {
            interval: FIRST_CHECK,
            at: now,
        });
        self.watched_pids.insert(pid, watched);
    }

    fn find_new(&mut self, now: Instant) {
        let Ok(there) = running::pids() else {
            return;
        };
        // Process ids are reused.
        self.watched_pids.retain(|pid, _| there.contains(pid));
        self.foreign_pids.retain(|pid| there.contains(pid));
        let is_first = self.foreign_pids.is_empty();
        // In order of ids: a parent usually has a lower id than its children.
        for pid in there {
            if self.watched_pids.contains_key(&pid) || self.foreign_pids.contains(&pid) {
                continue;
            }
            let parent = stat_of(pid).and_then(|stat| u32::try_from(stat.ppid).ok());
            let is_ours = parent.is_some_and(|parent| self.watched_pids.contains_key(&parent))
                // An orphan has another parent, so its environment is checked. Processes that
                // existed before the command are not checked.
                || (!is_first && self.has_our_socket(pid));
            if is_ours {
                self.watch(pid, now);
            } else {
                self.foreign_pids.insert(pid);
            }
        }
    }

    fn has_our_socket(&self, pid: u32) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables
            .any(|variable| variable.strip_prefix(b"SIDEWALK_SOCKET=") == Some(socket.as_bytes()))
    }

    fn check_process(&mut self, pid: u32, now: Instant, is_settled: &dyn Fn(u32) -> bool) {
        let watched = self.watched_pids.get_mut(&pid).and_then(Option::as_mut);
        let Some(watched) = watched.filter(|watched| watched.at <= now) else {
            return;
        };
        watched.at = now + watched.interval;
        watched.interval = (watched.interval * 2).min(LAST_CHECK);
        let settled = is_settled(pid);
        // A runtime always has several threads.
        if !settled && stat_of(pid).is_none_or(|stat| stat.num_threads < 2) {
            return;
        }
        let Ok(target) = Target::new(pid) else {
            return;
        };
        let command = running::command(&target);
        if self.servers.is_none() && is_build_command(&command) {
            let watched_pids = &self.watched_pids;
            let others = build_servers().filter(|server| !watched_pids.contains_key(&server.pid));
            self.servers = Some(others.collect());
        }
        let why = if settled {
            None
        } else {
            match Survey::of(&target) {
                Ok(survey) if survey.is_native_aot => None,
                Ok(survey) if survey.runtimes.is_empty() => return,
                Ok(survey) => Some(self.reason(&target, &survey)),
                Err(_) => return,
            }
        };
        if let Some(why) = why {
            let command = short_command(command);
            self.unrecorded.push(Unrecorded { pid, command, why });
        }
        self.watched_pids.insert(pid, None);
    }

    /// The reason to report if no agent ever connects from the process.
    fn reason(&self, target: &Target, survey: &Survey) -> String {
        let variable = |name: &str| target.variable(name);
        let version = survey.version().unwrap_or_default();
        let number = release(version);
        if number.is_some_and(|number| number < (3, 1)) {
            return format!(".NET {version} is too old: .NET Core 3.1 is the first one that works");
        }
        let Some(socket) = &self.socket else {
            return "it started after --start-after was over, or attaching to it failed".to_owned();
        };
        if let (Some(ours), Some(its)) = (self.libc, survey.libc)
            && (ours == Libc::Musl) != (its == Libc::Musl)
        {
            let (name, variable) = match its {
                Libc::Musl => ("musl", "SIDEWALK_AGENT_MUSL"),
                Libc::Glibc(_) => ("glibc", "SIDEWALK_AGENT"),
            };
            return format!(
                "it runs on {name}, the command does not, and this sidewalk has no agent for {name}: \
                 {variable} names one"
            );
        }
        if let Some(reason) = environment::why_not_loaded(&variable, number) {
            return reason;
        }
        let Some(named) = variable("SIDEWALK_SOCKET") else {
            return "its environment was cleared, and with it the variables by which the runtime \
                    finds the agent"
                .to_owned();
        };
        if named != *socket {
            return "another sidewalk record records it".to_owned();
        }
        if !target.path_from_here(Path::new(&named)).exists() {
            return format!(
                "it has a root or a /tmp of its own, and cannot reach {} there",
                escaped(&named)
            );
        }
        "its runtime did not load the agent, or it ended before; sidewalk doctor tries that"
            .to_owned()
    }
}

/// Whether a command line is an SDK command that passes work to build servers.
fn is_build_command(command: &[String]) -> bool {
    const VERBS: [&str; 11] = [
        "build",
        "build-server",
        "format",
        "msbuild",
        "pack",
        "publish",
        "restore",
        "run",
        "test",
        "vstest",
        "watch",
    ];
    let name = profile::names::process(command).unwrap_or_default();
    match name.strip_prefix("dotnet ") {
        // A verb, or a file-based app.
        Some(verb) => VERBS.contains(&verb) || verb.ends_with(".cs"),
        None => name == "MSBuild",
    }
}

/// The running build servers.
fn build_servers() -> impl Iterator<Item = BuildServer> {
    let processes = procfs::process::all_processes().into_iter().flatten();
    processes.flatten().filter_map(|process| {
        let words = process.cmdline().ok()?;
        let name = profile::names::process(&words)?;
        let is_server = name == "VBCSCompiler" || name.starts_with("MSBuild ");
        let stat = process.stat().ok().filter(|_| is_server)?;
        Some(BuildServer {
            pid: u32::try_from(process.pid()).ok()?,
            started: stat.starttime,
            command: short_command(words),
            used: cpu_ticks(&stat),
        })
    })
}

/// A command line with only the file name of the program.
fn short_command(mut words: Vec<String>) -> String {
    if let Some(program) = words.first_mut()
        && let Some((_, name)) = program.rsplit_once('/')
    {
        *program = name.to_owned();
    }
    formats::command_line(&words)
}

fn stat_of(pid: u32) -> Option<Stat> {
    let process = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?;
    process.stat().ok()
}

fn cpu_ticks(stat: &Stat) -> u64 {
    stat.utime + stat.stime
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A program that looks like .NET from outside until its input ends: it has a mapping of that
    /// name, and a thread.
    const LIKE_DOTNET: &str = "
import mmap, sys, threading
runtime = open('libcoreclr.so', 'r+b')
mapped = mmap.mmap(runtime.fileno(), 0, access=mmap.ACCESS_READ)
thread = threading.Thread(target=sys.stdin.read)
thread.start()
print('ready', flush=True)
thread.join()
";

    #[test]
    fn a_process_without_an_agent_is_named_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libcoreclr.so"), "x").unwrap();
        let socket = folder.path().join("agents");
        let mut found = Descendants::of(std::process::id(), Some(&socket), None);
        found.check_due(Instant::now(), &|_| false);
        let mut reasons = Vec::new();
        for (variables, socket, libc) in [
            (
                &[
                    ("CORECLR_PROFILER", "{X}"),
                    ("CORECLR_ENABLE_PROFILING", "1"),
                ][..],
                Some(&socket),
                Some(Libc::Glibc(None)),
            ),
            (&[], Some(&socket), None),
            (&[], None, None),
            // The program is on glibc.
            (&[], Some(&socket), Some(Libc::Musl)),
        ] {
            found.socket = socket.map(Into::into);
            found.libc = libc;
            let mut python = Command::new("/usr/bin/env");
            let mut child = python
                .args(["python3", "-c", LIKE_DOTNET])
                .current_dir(folder.path())
                .env_clear()
                .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
                .envs(variables.iter().copied())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap())
                .read_line(&mut line)
                .unwrap();
            // After the latest due time of the next check.
            let now = found.due() + LAST_CHECK;
            found.check_due(now, &|_| false);
            let all = found.unrecorded(&|pid| pid != child.id());
            assert_eq!(
                found.unrecorded(&|pid| pid == child.id()).len(),
                reasons.len()
            );
            reasons.extend(all);
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        assert!(
            reasons[0].ends_with("it has another profiler (CORECLR_PROFILER={X})"),
            "{reasons:?}"
        );
        assert!(reasons[0].contains("(python3 -c "), "{reasons:?}");
        assert!(
            reasons[1].contains("its environment was cleared"),
            "{reasons:?}"
        );
        assert!(reasons[2].contains("--start-after"), "{reasons:?}");
        assert!(reasons[3].contains("no agent for glibc"), "{reasons:?}");
    }

    /// A shell whose command line begins with another name, killed on drop.
    struct Shell(Child);

    impl Shell {
        fn start(name: &str, arguments: &[&str]) -> Self {
            let mut shell = Command::new("/bin/sh");
            shell.arg0(name).args(arguments).stdin(Stdio::piped());
            Self(shell.spawn().unwrap())
        }

        fn pid(&self) -> u32 {
            self.0.id()
        }

        fn used(&self) -> u64 {
            cpu_ticks(&stat_of(self.pid()).unwrap())
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_build_server_that_worked_for_the_command_is_named_with_its_time() {
        const WAITS: [&str; 2] = ["-c", "read line"];
        let idle = Shell::start("VBCSCompiler", &WAITS);
        // It has used CPU time to start.
        while stat_of(idle.pid()).unwrap().state != 'S' {
            std::thread::yield_now();
        }
        let busy = Shell::start("VBCSCompiler", &["-c", "while :; do :; done"]);
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("build");
        std::fs::write(&script, "read line").unwrap();
        let command = Shell::start("dotnet", &[script.to_str().unwrap()]);
        let mut found = Descendants::of(command.pid(), None, None);
        found.check_due(Instant::now(), &|_| true);
        let before = busy.used();
        while busy.used() < before + 2 {
            std::thread::yield_now();
        }
        let own = |shell: &Shell| {
            let servers = found.busy_servers().into_iter();
            let begin = format!("{} (", shell.pid());
            servers
                .filter(move |server| server.starts_with(&begin))
                .collect::<Vec<_>>()
        };
        assert_eq!(own(&idle).len(), 0);
        let named = own(&busy);
        assert_eq!(named.len(), 1, "{named:?}");
        let time = named[0]
            .strip_suffix(" s of CPU")
            .and_then(|text| text.split(": ").last());
        let seconds: f64 = time.unwrap().parse().unwrap();
        assert!(
            named[0].contains("(VBCSCompiler -c ") && seconds > 0.0,
            "{named:?}"
        );
    }

    #[test]
    fn commands_that_hand_work_to_build_servers() {
        for (words, expected) in [
            (&["dotnet", "build", "x.sln"][..], true),
            (
                &["/usr/bin/dotnet", "/sdk/10.0.1/MSBuild.dll", "x.proj"],
                true,
            ),
            (&["dotnet", "app.cs"], true),
            (&["dotnet", "app.dll", "build"], false),
            (&["dotnet"], false),
            (&["./build"], false),
            (&[], false),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(is_build_command(&words), expected, "{words:?}");
        }
    }
}
