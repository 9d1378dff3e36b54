//! A target process as `/proc` shows it: its ids, environment and files in its own view.
//!
//! The runtimes in the process are in `survey`.
//! Invariants: everything read here belongs to the process that [`Target::new`] found, even if it
//! has ended and its id was reused. If the target has another root, none of its paths is opened as
//! a path of ours.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use procfs::ProcError;
use procfs::process::{Process, Status};

use crate::Error;

/// The process that a command is for.
#[derive(Debug)]
pub struct Target {
    process: Process,
    pid: u32,
    pid_inside: u32,
    /// Prefix of the target's absolute paths in our view. `/` if both have the same root.
    root: PathBuf,
}

impl Target {
    /// Opens process `pid`. For a thread's id, opens its process.
    ///
    /// # Errors
    /// No such process exists, or it is a zombie.
    pub fn new(pid: u32) -> Result<Self, Error> {
        let gone = || Error::NoProcess { pid };
        let number = i32::try_from(pid).map_err(|_| gone())?;
        let mut process = Process::new(number).map_err(|error| failed(pid, error))?;
        let mut status = process.status().map_err(|error| failed(pid, error))?;
        if status.tgid != number {
            process = Process::new(status.tgid).map_err(|error| failed(pid, error))?;
            status = process.status().map_err(|error| failed(pid, error))?;
        }
        if status.state.starts_with(['Z', 'X']) {
            return Err(gone());
        }
        let pid = u32::try_from(status.tgid).map_err(|_| gone())?;
        Ok(Self {
            root: root_of(pid),
            pid_inside: pid_inside(&status).unwrap_or(pid),
            process,
            pid,
        })
    }

    /// The process id in our namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The process id in its own pid namespace.
    pub fn pid_inside(&self) -> u32 {
        self.pid_inside
    }

    /// Time since its start, to some hundredths of a second. `None` if it has ended.
    pub fn uptime(&self) -> Option<Duration> {
        let started =
            self.process.stat().ok()?.starttime as f64 / procfs::ticks_per_second() as f64;
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        Duration::try_from_secs_f64((uptime - started).max(0.0)).ok()
    }

    /// Its directory in `/proc`.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Whether the process has the same root in the same file system as we do.
    pub fn shares_our_files(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Whether the process is in our user namespace, so that its rights apply to our files too.
    pub(crate) fn shares_our_users(&self) -> bool {
        let target_namespace = Path::new("/proc").join(self.pid.to_string());
        namespace(&target_namespace, "user").is_some_and(|target_namespace| {
            namespace(Path::new("/proc/self"), "user") == Some(target_namespace)
        })
    }

    /// Whether an agent in the process would accept this process as its peer: its own user, or root
    /// of its user namespace (`control::Listener::accept`). True if that cannot be read.
    pub(crate) fn accepts_us(&self) -> bool {
        let own = nix::unistd::geteuid().as_raw();
        let Ok(status) = self.process.status() else {
            return true;
        };
        if status.euid == own {
            return true;
        }
        if self.shares_our_users() {
            return own == 0;
        }
        let map = self.process.open_relative("uid_map");
        let map = map.and_then(|file| Ok(io::read_to_string(file)?));
        map.map_or(true, |map| root_of_users(&map) == Some(own))
    }

    /// Maps a path of the target to our view. A relative path is below its working directory.
    pub fn path_from_here(&self, path: &Path) -> PathBuf {
        match path.strip_prefix("/") {
            Ok(below) => self.root.join(below),
            Err(_) => Path::new("/proc")
                .join(self.pid.to_string())
                .join("cwd")
                .join(path),
        }
    }

    /// Opens a folder of the target by its own path. Links are resolved inside the target's root,
    /// so a container cannot redirect us into a folder of ours.
    ///
    /// # Errors
    /// Those of the kernel's `openat2`: the folder does not exist, or may not be entered.
    pub fn open_folder(&self, path: &Path) -> io::Result<Folder> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        if self.shares_our_files() {
            let folder = open(&self.path_from_here(path), flags, Mode::empty())?;
            return Ok(Folder(folder));
        }
        let (start, path) = match path.strip_prefix("/") {
            Ok(below) => (self.root.clone(), below),
            Err(_) => (self.path_from_here(Path::new("")), path),
        };
        let start = open(&start, flags, Mode::empty())?;
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let how = OpenHow::new()
            .flags(flags)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        Ok(Folder(openat2(&start, path, how)?))
    }

    /// A variable of the environment at the process's start. Also `None` if the environment may not
    /// be read.
    pub fn variable(&self, name: &str) -> Option<OsString> {
        let mut environment = self.process.environ().ok()?;
        environment.remove(OsStr::new(name))
    }

    /// Its folder for temporary files, in its own view, as the runtime finds it (`GetTempPathA` of
    /// its PAL).
    pub fn temporary_folder(&self) -> PathBuf {
        let given = self.variable("TMPDIR").filter(|path| !path.is_empty());
        given.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)
    }

    /// The error for an operation that the process does not permit.
    pub(crate) fn denied(&self, what: &'static str) -> Error {
        denied(self.pid, what)
    }

    /// Its command line, in bytes.
    pub(crate) fn command_length(&self) -> usize {
        let mut bytes = Vec::new();
        let file = self.process.open_relative("cmdline");
        // An unreadable command line counts as empty.
        let _ = file.map(|mut file| file.read_to_end(&mut bytes));
        bytes.len()
    }

    /// Whether any thread has this name. The kernel keeps 15 bytes of a name. `None` if threads
    /// cannot be listed.
    pub(crate) fn has_thread(&self, name: &str) -> Option<bool> {
        let tasks = self.process.tasks().ok()?.flatten();
        let mut names = tasks
            .filter_map(|task| task.stat().ok())
            .map(|stat| stat.comm);
        Some(names.any(|known| known == name))
    }

    /// Why the process does not run just now, in words. `None` if it runs, or the state is unknown.
    pub fn stopped_reason(&self) -> Option<&'static str> {
        let state = self.process.stat().ok()?.state;
        match state {
            'T' => Some("stopped by a signal (SIGSTOP, Ctrl-Z); kill -CONT lets it go on"),
            't' => Some("stopped by a debugger or tracer"),
            _ => self
                .is_frozen()
                .then_some("frozen by its control group (a paused container)"),
        }
    }

    /// Whether its control group is frozen.
    fn is_frozen(&self) -> bool {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        roots
            .iter()
            .any(|root| is_group_frozen(Path::new(root), &groups))
    }
}

/// Whether the group of version 2 among a process's control groups is frozen (cgroups(7)).
fn is_group_frozen(root: &Path, groups: &str) -> bool {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let Some(group) = group else { return false };
    let events = fs::read_to_string(root.join(group).join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "frozen 1")
}

/// An open folder.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// A path to the folder for this process, valid while it is open. Short, however long its own
    /// path is.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

impl From<OwnedFd> for Folder {
    fn from(folder: OwnedFd) -> Self {
        Self(folder)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The error for an operation that a process does not permit.
pub(crate) fn denied(pid: u32, what: &'static str) -> Error {
    // The `/proc` files of a process with privileges of its own belong to root, but everyone can
    // read `status`.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let real = users.and_then(|users| users.split_whitespace().next()?.parse().ok());
    let ours = nix::unistd::getuid().as_raw();
    match real == Some(ours) && ours != 0 {
        true => Error::Privileged { pid, what },
        false => Error::Denied { pid, what },
    }
}

/// Returns the error for a failure of reading `/proc/PID`.
pub(crate) fn failed(pid: u32, error: ProcError) -> Error {
    match error {
        ProcError::NotFound(_) => Error::NoProcess { pid },
        ProcError::PermissionDenied(_) => denied(pid, "its files in /proc may not be read"),
        // The error of reading a file of an ended process.
        ProcError::Io(error, _) if error.raw_os_error() == Some(nix::libc::ESRCH) => {
            Error::NoProcess { pid }
        }
        ProcError::Io(source, _) => Error::Os {
            what: format!("cannot read of process {pid}"),
            source,
        },
        other => Error::Os {
            what: format!("cannot read of process {pid}"),
            source: std::io::Error::other(other.to_string()),
        },
    }
}

/// The number that root of a user namespace has outside, by `/proc/PID/uid_map` (first number
/// inside, first number as the reader sees it, how many).
fn root_of_users(map: &str) -> Option<u32> {
    let mut lines = map.lines().map(str::split_whitespace);
    let mut line = lines.find(|line| line.clone().next() == Some("0"))?;
    line.nth(1)?.parse().ok()
}

/// The last number is that of the innermost namespace.
fn pid_inside(status: &Status) -> Option<u32> {
    let numbers = status.nspid.as_ref()?;
    u32::try_from(*numbers.last()?).ok()
}

/// Returns a namespace of a process in `/proc`. `None` if it may not be read.
fn namespace(process: &Path, kind: &str) -> Option<(u64, u64)> {
    let found = fs::metadata(process.join("ns").join(kind)).ok()?;
    Some((found.dev(), found.ino()))
}

/// The root of a process's file system in our view. A root that may not be read counts as ours,
/// because then it may not be entered either.
fn root_of(pid: u32) -> PathBuf {
    let folder = Path::new("/proc").join(pid.to_string());
    let ours = namespace(Path::new("/proc/self"), "mnt");
    let target_namespace = namespace(&folder, "mnt");
    let root = fs::read_link(folder.join("root")).ok();
    let same = target_namespace.is_none() || target_namespace == ours;
    if same && root.is_none_or(|root| root == Path::new("/")) {
        PathBuf::from("/")
    } else {
        folder.join("root")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_sees_what_it_sees() {
        let target = Target::new(std::process::id()).unwrap();
        assert!(target.shares_our_files());
        assert_eq!(target.pid(), target.pid_inside());
        assert_eq!(
            target.path_from_here(Path::new("/tmp/x")),
            Path::new("/tmp/x")
        );
        let here = target.path_from_here(Path::new("Cargo.toml"));
        assert_eq!(
            fs::canonicalize(here).unwrap(),
            fs::canonicalize("Cargo.toml").unwrap()
        );
    }

    #[test]
    fn a_threads_number_leads_to_its_process() {
        let tid = nix::unistd::gettid().as_raw().cast_unsigned();
        assert_ne!(
            tid,
            std::process::id(),
            "a test runs on a thread of its own"
        );
        assert_eq!(Target::new(tid).unwrap().pid(), std::process::id());
    }

    #[test]
    fn a_process_that_a_signal_has_stopped_says_so() {
        use nix::sys::signal::{Signal, kill};
        use nix::sys::wait::{WaitPidFlag, waitpid};
        let mut child = std::process::Command::new("sleep")
            .arg("inf")
            .spawn()
            .unwrap();
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        let target = Target::new(child.id()).unwrap();
        assert_eq!(target.stopped_reason(), None);
        kill(pid, Signal::SIGSTOP).unwrap();
        waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        let why = target.stopped_reason().unwrap();
        assert!(
            why.contains("SIGSTOP") && why.contains("kill -CONT"),
            "{why}"
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_group_that_is_frozen_is_known_by_its_events() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("system.slice/app");
        fs::create_dir_all(&group).unwrap();
        let groups = "1:name=systemd:/x\n0::/system.slice/app\n";
        assert!(!is_group_frozen(root.path(), groups));
        for (events, frozen) in [
            ("populated 1\nfrozen 0\n", false),
            ("populated 1\nfrozen 1\n", true),
        ] {
            fs::write(group.join("cgroup.events"), events).unwrap();
            assert_eq!(is_group_frozen(root.path(), groups), frozen);
        }
        assert!(!is_group_frozen(
            root.path(),
            "1:name=systemd:/system.slice/app\n"
        ));
    }

    #[test]
    fn an_agent_accepts_its_own_user_and_its_root() {
        assert!(Target::new(std::process::id()).unwrap().accepts_us());
        for (map, root) in [
            ("         0          0 4294967295\n", Some(0)),
            ("         0     100000      65536\n", Some(100_000)),
            ("1000 1000 1\n0 165536 1000\n", Some(165_536)),
            ("1000 1000 1\n", None),
            ("", None),
        ] {
            assert_eq!(root_of_users(map), root, "{map}");
        }
    }

    #[test]
    fn what_has_ended_is_no_process() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let options = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
        let id = nix::sys::wait::Id::Pid(nix::unistd::Pid::from_raw(pid.cast_signed()));
        // A zombie still has its entry.
        nix::sys::wait::waitid(id, options).unwrap();
        assert!(matches!(Target::new(pid), Err(Error::NoProcess { .. })));
        child.wait().unwrap();
        assert!(matches!(Target::new(pid), Err(Error::NoProcess { .. })));
        assert!(matches!(
            Target::new(u32::MAX),
            Err(Error::NoProcess { .. })
        ));
    }
}
