//! Doctor's checks of this machine: requirements of the tool and of programs that it starts.
//!
//! Started programs inherit the tool's limits, seccomp filter and view of files. So a check that
//! succeeds here also holds for them.

use std::path::Path;
use std::process::Command;

use nix::sys::utsname::uname;
use rustix::process::{Resource, getrlimit};
use syscalls::{Call, Verdict};

use super::{Check, Finding, trial};
use crate::console::escaped;
use crate::record::{self, CommandAgents, EmbeddedAgents};

/// Name of the check that does not apply to a process that already runs.
pub(super) const ENVIRONMENT: &str = "environment";

/// Minimum number of free descriptors. With fewer, recording a handful of processes uses them up.
const FEW_DESCRIPTORS: u64 = 64;
/// Minimum number of free pending signals. With fewer, some threads of a program get no timer.
const FEW_SIGNALS: u64 = 256;

/// The checks, in the order in which recording needs them.
pub(super) fn checks(embedded: EmbeddedAgents) -> Vec<Check> {
    // A seccomp filter may kill a process that makes a call that the filter does not list.
    syscalls::refresh();
    vec![
        kernel(),
        agent(embedded),
        environment(),
        socket(),
        timer(),
        sending(),
        signals(),
        descriptors(),
        memory(),
        perf(),
        containers(),
        seccomp(),
    ]
}

fn kernel() -> Check {
    const WHAT: &str = "kernel";
    match uname() {
        Ok(name) if name.machine() == "x86_64" => Check::ok(
            WHAT,
            format!("Linux {}, x86-64", name.release().to_string_lossy()),
        ),
        Ok(name) => Check::not_ok(
            WHAT,
            format!(
                "the processor is {}; sidewalk records on x86-64 only",
                name.machine().to_string_lossy()
            ),
        ),
        Err(error) => Check::not_ok(WHAT, format!("cannot read its version: {error}")),
    }
}

/// Loads the agent with the dynamic linker as a runtime would: with its dependencies, from its
/// path.
fn agent(embedded: EmbeddedAgents) -> Check {
    const WHAT: &str = "agent";
    let libc = diagnostics::libc_of_machine();
    let agents = match CommandAgents::find(embedded, libc) {
        Ok(agents) => agents,
        Err(error) => return Check::not_ok(WHAT, format!("{error:#}")),
    };
    let (own, linker) = (agents.own().path(), diagnostics::loader(libc));
    let check = loadable(WHAT, own, linker);
    if let (Finding::Ok(_), None) = (&check.finding, agents.only())
        && !is_found_by_links(own, &agents.path(), linker)
    {
        return Check::not_ok(
            WHAT,
            format!(
                "the C library's loader does not find it by {}: it puts an unknown folder for $LIB \
                 ({linker} --list-diagnostics says which); please report that, and record by --pid",
                escaped(agents.path())
            ),
        );
    }
    check
}

/// Whether the linker finds a library by the path for both C libraries.
fn is_found_by_links(library: &Path, path: &Path, linker: &str) -> bool {
    // It expands the path as for `dlopen`; these characters separate paths.
    let is_usable = !escaped(path).contains([' ', ':']);
    let folder = path.parent().and_then(Path::parent).map(escaped);
    let mut list = Command::new(linker);
    list.arg("--list").arg(library).env("LD_PRELOAD", path);
    let listed = list
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    let listed = String::from_utf8_lossy(&listed);
    !is_usable || folder.is_some_and(|folder| listed.contains(&folder))
}

/// Whether a program here could load the library, by the linker of the library's C library.
fn loadable(what: &'static str, path: &Path, linker: &str) -> Check {
    let listed = Command::new(linker).arg("--list").arg(path).output();
    match listed {
        Ok(output) if output.status.success() => {
            Check::ok(what, format!("{} loads", escaped(path)))
        }
        Ok(output) => {
            let linker_message = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            let why = linker_message
                .lines()
                .find(|line| !line.trim().is_empty())
                .unwrap_or("no reason given");
            Check::not_ok(
                what,
                format!(
                    "{} does not load: {why}; install what is missing, or put sidewalk on a file system \
                     that is not mounted noexec",
                    escaped(path)
                ),
            )
        }
        Err(error) => Check::not_ok(
            what,
            format!(
                "the C library's loader does not run here ({linker}: {error}), and the agent needs it; \
                 use an image based on glibc or musl"
            ),
        ),
    }
}

fn environment() -> Check {
    match record::check_environment() {
        Ok(()) => Check::ok(
            ENVIRONMENT,
            "no other profiler is set, and profilers are allowed",
        ),
        Err(error) => Check::not_ok(ENVIRONMENT, format!("{error:#}")),
    }
}

fn socket() -> Check {
    const WHAT: &str = "socket";
    match record::try_socket() {
        Ok(path) => Check::ok(
            WHAT,
            format!("an agent reaches the tool, in {}", escaped(path)),
        ),
        Err(error) => Check::not_ok(
            WHAT,
            format!("{error:#}; set TMPDIR to a folder that can be written to, with a short path"),
        ),
    }
}

fn timer() -> Check {
    const WHAT: &str = "timers";
    match trial::timer() {
        Ok(()) => Check::ok(WHAT, "timer_create on a thread's CPU clock"),
        Err(error) => Check::limited(
            WHAT,
            format!(
                "timer_create: {error}; the agent looks at threads' clocks instead; a container's \
                 seccomp profile can allow timer_create"
            ),
        ),
    }
}

fn sending() -> Check {
    const WHAT: &str = "signals";
    match (trial::signal(), trial::timer()) {
        (Ok(()), _) => Check::ok(WHAT, "rt_tgsigqueueinfo to a thread"),
        (Err(error), Ok(())) => Check::limited(
            WHAT,
            format!(
                "rt_tgsigqueueinfo: {error}; the agent sends signals by timers instead; a container's seccomp \
                 profile can allow rt_tgsigqueueinfo"
            ),
        ),
        (Err(error), Err(_)) => Check::not_ok(
            WHAT,
            format!(
                "rt_tgsigqueueinfo: {error}, and there are no timers: no thread can be sampled; a container's \
                 seccomp profile can allow rt_tgsigqueueinfo and timer_create"
            ),
        ),
    }
}

fn signals() -> Check {
    let what = "pending signals";
    let queued = procfs::process::Process::myself().and_then(|process| process.status());
    match queued {
        Ok(status) if status.sigq.0 >= status.sigq.1 => Check::limited(
            what,
            format!(
                "all {} pending signals are in use: no thread can be sampled; raise the limit with \
                 ulimit -i",
                status.sigq.1
            ),
        ),
        Ok(status) => check_headroom(
            what,
            status.sigq,
            FEW_SIGNALS,
            "each thread with a timer takes one; raise it with ulimit -i",
        ),
        Err(error) => Check::limited(what, format!("cannot be read: {error}")),
    }
}

/// Checks whether enough of a limit is left: `(used, most)`.
pub(super) fn check_headroom(
    what: &'static str,
    (used, most): (u64, u64),
    few: u64,
    advice: &str,
) -> Check {
    let left = most.saturating_sub(used);
    if left >= few {
        Check::ok(what, format!("{left} of {most} left"))
    } else {
        Check::limited(what, format!("only {left} of {most} left; {advice}"))
    }
}

fn descriptors() -> Check {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let used = std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64);
    check_headroom(
        "descriptors",
        (used, most),
        FEW_DESCRIPTORS,
        "the tool takes one for each process, and --engine perf one for each thread; raise it with ulimit -n",
    )
}

fn memory() -> Check {
    const WHAT: &str = "process_vm_readv";
    match trial::read_own_memory() {
        Ok(()) => Check::ok(WHAT, "the agent reads memory that may be unmapped"),
        Err(error) => Check::limited(
            WHAT,
            format!(
                "{error}; some stacks will be incomplete; a container's seccomp profile can allow it"
            ),
        ),
    }
}

fn perf() -> Check {
    const WHAT: &str = "perf events";
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let paranoid = paranoid.map_or("unknown".to_owned(), |text| text.trim().to_owned());
    match (trial::perf_event(false), trial::perf_event(true)) {
        (Ok(()), _) => Check::ok(WHAT, "for --engine perf"),
        (Err(_), Ok(())) => Check::limited(
            WHAT,
            format!(
                "--engine perf sees user time only (perf_event_paranoid is {paranoid}); other engines \
                 need none; as root: sysctl kernel.perf_event_paranoid=1"
            ),
        ),
        (Err(error), Err(_)) => Check::limited(
            WHAT,
            format!(
                "{error}: --engine perf does not work (perf_event_paranoid is {paranoid}); other engines \
                 need none; as root: sysctl kernel.perf_event_paranoid=1, and a container needs \
                 --cap-add PERFMON"
            ),
        ),
    }
}

fn containers() -> Check {
    const WHAT: &str = "containers";
    match trial::open_in_root() {
        Ok(()) => Check::ok(WHAT, "openat2: the agent can be carried into one"),
        Err(error) => Check::limited(
            WHAT,
            format!(
                "openat2: {error}; programs in containers can only be recorded from inside; Linux 5.6 \
                 has it"
            ),
        ),
    }
}

fn seccomp() -> Check {
    const WHAT: &str = "seccomp";
    const TRIED: &str =
        "system calls are filtered (seccomp); those of the agent were tried in a child process";
    if !syscalls::is_filtered() {
        return Check::ok(WHAT, "system calls are not filtered");
    }
    let words = |call: Call| match syscalls::verdict(call) {
        Verdict::Refused(errno) => Some(format!("{} is refused (errno {errno})", call.name())),
        Verdict::Ends => Some(format!("{} ends the program", call.name())),
        Verdict::Untried => Some(format!("{} could not be tried", call.name())),
        Verdict::Unfiltered | Verdict::LetThrough => None,
    };
    let found: Vec<String> = Call::all().filter_map(words).collect();
    if let Some(call) = syscalls::first_fatal() {
        return Check::not_ok(
            WHAT,
            format!(
                "{TRIED}: {}; without {} the agent cannot reach a program; let the filter allow it \
                 or return an error",
                found.join(", "),
                call.name(),
            ),
        );
    }
    if found.is_empty() {
        return Check::ok(WHAT, format!("{TRIED}: all are allowed"));
    }
    Check::limited(
        WHAT,
        format!("{TRIED}: {}; the agent works without", found.join(", ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_does_not_load_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libsidewalk.so");
        std::fs::write(&path, "no library").unwrap();
        let linker = diagnostics::loader(diagnostics::libc_of_machine());
        let Finding::NotOk(why) = loadable("agent", &path, linker).finding else {
            panic!("it loads");
        };
        assert!(why.contains("libsidewalk.so does not load"), "{why}");
    }

    #[test]
    fn a_path_that_the_linker_does_not_find() {
        let linker = diagnostics::loader(diagnostics::libc_of_machine());
        let program = std::env::current_exe().unwrap();
        let is_found = |path: &str| is_found_by_links(&program, Path::new(path), linker);
        assert!(!is_found("/no/such/$LIB/libsidewalk.so"));
        // That one cannot be tried.
        assert!(is_found("/no such/$LIB/libsidewalk.so"));
    }

    #[test]
    fn what_is_left_of_a_limit() {
        assert_eq!(
            check_headroom("x", (3, 10), 7, "y").finding,
            Finding::Ok("7 of 10 left".into())
        );
        assert!(matches!(
            check_headroom("x", (4, 10), 7, "y").finding,
            Finding::Limited(_)
        ));
        assert!(matches!(
            check_headroom("x", (11, 10), 7, "y").finding,
            Finding::Limited(_)
        ));
    }
}
