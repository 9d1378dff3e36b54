//! Doctor's checks of one process: requirements for attaching to it.
//!
//! The process is examined and its runtime queried. A copy of the agent is put where the process
//! could load it, and removed again. Nothing is attached.

use std::time::{Duration, Instant};

use diagnostics::{DeployedLibrary, Libc, Reach, RecordingRoute, Survey, Target};

use control::keys;
use nix::sys::signal::Signal;

use super::Check;
use super::machine::check_headroom;
use crate::console::escaped;
use crate::list::agent_state;
use crate::record::{AgentLibrary, EmbeddedAgents};
use crate::tested::newer_than_tested;

const WAIT: Duration = Duration::from_secs(5);

/// Runs the checks of process `pid`.
pub(super) fn checks(pid: u32, embedded: EmbeddedAgents) -> Vec<Check> {
    let target = match Target::new(pid) {
        Ok(target) => target,
        Err(error) => return vec![Check::not_ok("process", error.to_string())],
    };
    let started = Instant::now();
    let reach = Reach::of(&target, WAIT);
    let answer_time = started.elapsed();
    let mut checks = vec![process(&target, &reach), recording(&reach, answer_time)];
    if let Some(survey) = &reach.survey
        && reach.route.is_ok()
    {
        checks.push(library(&target, survey, embedded));
        checks.push(fault_handlers(&target, &reach));
        checks.extend(limits(&target));
    }
    checks
}

fn process(target: &Target, reach: &Reach) -> Check {
    const WHAT: &str = "process";
    let pid = target.pid();
    if reach.survey.is_none() {
        // The refusal reports the same, with more detail.
        return Check::limited(WHAT, format!("process {pid} cannot be examined"));
    }
    let version = match (reach.version(), reach.survey.as_ref()) {
        (Some(version), _) => format!(".NET {version}"),
        (None, Some(survey)) if !survey.runtimes.is_empty() => ".NET of unknown version".to_owned(),
        _ => "no .NET".to_owned(),
    };
    let view = match (target.pid_inside(), target.shares_our_files()) {
        (_, true) => String::new(),
        (inside, false) => format!(", in a PID namespace of its own (process {inside} there)"),
    };
    let text = format!("process {pid}: {version}{view}");
    match reach.version().and_then(newer_than_tested) {
        Some(newer) => Check::limited(WHAT, format!("{text} ({newer})")),
        None => Check::ok(WHAT, text),
    }
}

fn recording(reach: &Reach, answer_time: Duration) -> Check {
    const WHAT: &str = "reach";
    match &reach.route {
        Ok(RecordingRoute::Attach) => Check::ok(
            WHAT,
            format!(
                "by attaching; its runtime answered within {} ms",
                answer_time.as_millis()
            ),
        ),
        Ok(RecordingRoute::ControlSocket) => Check::ok(WHAT, "by the agent that is already loaded"),
        Ok(RecordingRoute::Beside(profiler)) => Check::ok(
            WHAT,
            format!("by attaching, beside the profiler {}", profiler.library),
        ),
        Err(refusal) => Check::not_ok(WHAT, refusal.to_string()),
    }
}

fn library(target: &Target, survey: &Survey, embedded: EmbeddedAgents) -> Check {
    const WHAT: &str = "agent in it";
    let agent = match AgentLibrary::find(embedded, survey.libc.unwrap_or(Libc::Glibc(None))) {
        Ok(agent) => agent,
        Err(error) => return Check::not_ok(WHAT, format!("{error:#}")),
    };
    match DeployedLibrary::new(target, survey, agent.path()) {
        Ok(deployed) => {
            let place = escaped(deployed.library());
            let check = if deployed.is_copy() {
                Check::ok(WHAT, format!("it can load a copy, as {place}"))
            } else {
                Check::ok(WHAT, format!("it can load {place}"))
            };
            deployed.clean_up();
            check
        }
        Err(error) => Check::not_ok(WHAT, error.to_string()),
    }
}

/// Checks the handlers of faults, of which only an agent in the process can tell.
fn fault_handlers(target: &Target, reach: &Reach) -> Check {
    let state = match &reach.route {
        Ok(RecordingRoute::ControlSocket) => agent_state(target),
        _ => None,
    };
    let set = |key| state.as_ref()?.get(key)?.parse().ok();
    of_faults(set(keys::MASKED_FAULTS).zip(set(keys::OPEN_FAULTS)))
}

/// Checks `(masked, open)`, sets of signals as the agent reports them.
fn of_faults(known: Option<(u64, u64)>) -> Check {
    const WHAT: &str = "its fault handlers";
    match known {
        None => Check::ok(
            WHAT,
            "known once an agent is in the process: while it is recorded, or after record --stay",
        ),
        Some((0, 0)) => Check::ok(WHAT, "all hold off the runtime's signal while they run"),
        Some((masked, 0)) => Check::ok(
            WHAT,
            format!(
                "the handler of {} (a crash handler) does not hold off the runtime's signal; the agent adds \
                 the signal to its mask",
                names(masked)
            ),
        ),
        Some((_, open)) => Check::limited(
            WHAT,
            format!(
                "the handler of {} does not hold off the runtime's signal and has SA_NODEFER, so the mask \
                 stays as it is: managed threads are not sampled, and the report says so",
                names(open)
            ),
        ),
    }
}

/// Returns the names of a set of signals.
fn names(set: u64) -> String {
    let signals = (1..=64).filter(|signal| set >> (signal - 1) & 1 != 0);
    let names = signals.map(|signal| match Signal::try_from(signal) {
        Ok(known) => known.as_str().to_owned(),
        Err(_) => format!("signal {signal}"),
    });
    names.collect::<Vec<_>>().join(", ")
}

fn limits(target: &Target) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Ok(status) = target.process().status() {
        checks.push(pending_signals(status.sigq, status.threads));
        // In a .NET program nothing else handles SIGURG.
        const SIGURG: u32 = 23;
        if status.sigcgt >> (SIGURG - 1) & 1 != 0 {
            checks.push(Check::limited(
                "its handlers",
                "SIGURG is handled (as by Go): if its library moved the runtime's signal to the \
                 alternate stack, managed threads are not sampled, and the report says so",
            ));
        }
        if status.seccomp == Some(2) {
            checks.push(Check::limited(
                "its system calls",
                "are filtered (seccomp): the agent tries its calls in a child process and works \
                 without forbidden ones, which the recording lists; so does sidewalk doctor inside \
                 the container",
            ));
        }
    }
    let open = target.process().fd_count();
    let most = target
        .process()
        .limits()
        .map(|limits| limits.max_open_files.soft_limit);
    if let (Ok(open), Ok(procfs::process::LimitValue::Value(most))) = (open, most) {
        // The agent needs a handful.
        let check = check_headroom(
            "its descriptors",
            (open as u64, most),
            16,
            "the agent needs some; raise it with ulimit -n before the program starts",
        );
        checks.push(check);
    }
    checks
}

/// Checks the free pending signals of the process, by `(queued, most)`, for this many threads.
fn pending_signals((queued, most): (u64, u64), threads: u64) -> Check {
    const WHAT: &str = "its signals";
    if queued >= most {
        return Check::not_ok(
            WHAT,
            format!(
                "all {most} pending signals are in use: no thread can be sampled or dumped; raise the limit with prlimit \
                 --sigpending, or with ulimit -i before the program starts"
            ),
        );
    }
    check_headroom(
        WHAT,
        (queued, most),
        threads,
        "each thread with a timer takes one, the others are sampled by their clocks",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Finding;

    #[test]
    fn a_process_that_has_ended_is_told() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let checks = checks(child.id(), EmbeddedAgents::default());
        let [
            Check {
                finding: Finding::NotOk(why),
                ..
            },
        ] = &checks[..]
        else {
            panic!("{checks:?}");
        };
        assert!(why.contains("there is no process"), "{why}");
    }

    #[test]
    fn no_pending_signals_promise_no_samples() {
        assert!(matches!(
            pending_signals((0, 0), 5).finding,
            Finding::NotOk(_)
        ));
        assert!(matches!(
            pending_signals((7, 7), 5).finding,
            Finding::NotOk(_)
        ));
        assert!(matches!(
            pending_signals((0, 3), 5).finding,
            Finding::Limited(_)
        ));
        assert!(matches!(pending_signals((0, 9), 5).finding, Finding::Ok(_)));
    }

    #[test]
    fn handlers_of_faults_are_told_by_the_names_of_their_signals() {
        let (segv, bus) = (1 << (11 - 1), 1 << (7 - 1));
        for (known, text) in [
            (None, "known once an agent"),
            (Some((0, 0)), "all hold off"),
            (
                Some((segv | bus, 0)),
                "the handler of SIGBUS, SIGSEGV (a crash",
            ),
        ] {
            let Finding::Ok(found) = of_faults(known).finding else {
                panic!("{known:?}");
            };
            assert!(found.contains(text), "{found}");
        }
        let Finding::Limited(found) = of_faults(Some((bus, segv))).finding else {
            panic!("a handler that cannot be changed");
        };
        assert!(found.contains("the handler of SIGSEGV does"), "{found}");
    }

    #[test]
    fn a_process_without_dotnet_is_told() {
        let checks = checks(std::process::id(), EmbeddedAgents::default());
        let [
            _,
            Check {
                finding: Finding::NotOk(why),
                ..
            },
        ] = &checks[..]
        else {
            panic!("{checks:?}");
        };
        assert!(why.contains("runs no .NET"), "{why}");
    }
}
