//! Determines whether and how a running process can be recorded, or why not.
//!
//! The process is not changed.
//! Invariant: a refusal states what to do. It is returned before any command that could change the
//! process.

use std::time::Duration;

use crate::socket::connect_to_newest;
use crate::survey::{Profiler, Survey, release};
use crate::{Diagnostics, Error, ProcessInfo, Target};

/// How a process can be recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordingRoute {
    /// Our agent is loaded and listens on its control socket.
    ControlSocket,
    /// The runtime loads the agent by an attach.
    Attach,
    /// The runtime loads the agent as a second profiler.
    Beside(Profiler),
}

/// Why a process cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The process has no CLR.
    #[error(
        "process {pid} runs no .NET (no CoreCLR is loaded in it); sidewalk list shows those that do"
    )]
    NoDotnet {
        /// The process.
        pid: u32,
    },
    /// The program is compiled ahead of time.
    #[error(
        "process {pid} is a native AOT program: it has no runtime that could load a profiler; \
         perf record can sample it"
    )]
    NativeAot {
        /// The process.
        pid: u32,
    },
    /// It cannot be attached to.
    #[error(
        ".NET {version} in process {pid} is too old: .NET Core 3.1 is the first one that works"
    )]
    TooOld {
        /// The process.
        pid: u32,
        /// The version of its runtime.
        version: String,
    },
    /// The process has no socket, because of a setting in its environment.
    #[error(
        "the diagnostics of process {pid} are switched off ({setting}), so nothing can be attached \
         to it; start it without that, or start it with sidewalk record -- COMMAND"
    )]
    DiagnosticsOff {
        /// The process.
        pid: u32,
        /// `NAME=VALUE`.
        setting: String,
    },
    /// The runtime is suspended at its start.
    #[error(
        "the runtime of process {pid} waits to be resumed ({setting}): it runs nothing yet; resume it \
         with the tool that was meant to connect to it, or start it without that"
    )]
    Suspended {
        /// The process.
        pid: u32,
        /// `NAME=VALUE`.
        setting: String,
    },
    /// The runtime supports one profiler only, and has another one.
    #[error(
        "the profiler {} is in process {pid}, and .NET before 6 supports only one; start the \
         program without it", profiler.library
    )]
    ProfilerTaken {
        /// The process.
        pid: u32,
        /// The other profiler.
        profiler: Profiler,
    },
    /// Our agent was loaded at the start and does not listen.
    #[error(
        "process {pid} was started by sidewalk record, and its agent does not listen: it is of \
         another version, or the descriptor limit is below 256 and it listens after the recording"
    )]
    AgentUnreachable {
        /// The process.
        pid: u32,
    },
    /// An agent in the process would not accept this user.
    #[error(
        "process {pid} is in a user namespace to which this user is a stranger: an agent in it would \
         accept only the user of process {pid} and the namespace's root; run sidewalk inside the \
         container, or as that root: nsenter --user --target {pid} sidewalk"
    )]
    UserNamespace {
        /// The process.
        pid: u32,
    },
    /// The process may not be examined, has ended, or does not reply.
    #[error(transparent)]
    Unreachable(#[from] Error),
}

impl Refusal {
    /// The reason in a word or two, for a table.
    pub fn short(&self) -> &'static str {
        match self {
            Refusal::NoDotnet { .. } => "no .NET",
            Refusal::NativeAot { .. } => "native AOT",
            Refusal::TooOld { .. } => "too old",
            Refusal::DiagnosticsOff { .. } => "diagnostics off",
            Refusal::Suspended { .. } => "waits to be resumed",
            Refusal::ProfilerTaken { .. } => "another profiler",
            Refusal::AgentUnreachable { .. } => "agent does not listen",
            Refusal::UserNamespace { .. } => "user namespace",
            Refusal::Unreachable(error) => match error {
                Error::NoProcess { .. } | Error::Ending { .. } => "ended",
                Error::Ended { goes_on: false, .. } => "ended",
                Error::Denied { .. } | Error::Privileged { .. } => "not permitted",
                Error::NoSocket { .. } | Error::Stale { .. } => "no socket",
                Error::NoAnswer { .. } => "no answer",
                _ => "unreachable",
            },
        }
    }
}

/// The facts about a process that may be recorded.
#[derive(Debug)]
pub struct Reach {
    /// The facts found about the process, if it could be surveyed.
    pub survey: Option<Survey>,
    /// The reply of its runtime, if it was queried and new enough.
    pub info: Option<ProcessInfo>,
    /// How the process can be recorded.
    pub route: Result<RecordingRoute, Refusal>,
}

impl Reach {
    /// Examines a process and queries its runtime, for `wait` at most.
    pub fn of(target: &Target, wait: Duration) -> Self {
        let survey = match Survey::of(target) {
            Ok(survey) => survey,
            Err(error) => {
                return Self {
                    survey: None,
                    info: None,
                    route: Err(error.into()),
                };
            }
        };
        let mut info = None;
        let route = recording_route(target, &survey, wait, &mut info);
        Self {
            survey: Some(survey),
            info,
            route,
        }
    }

    /// The runtime's version: as the runtime reports it, else by its path.
    pub fn version(&self) -> Option<&str> {
        let reported_version = self.info.as_ref().and_then(|info| info.version.as_deref());
        reported_version.or_else(|| self.survey.as_ref().and_then(Survey::version))
    }
}

fn recording_route(
    target: &Target,
    survey: &Survey,
    wait: Duration,
    info: &mut Option<ProcessInfo>,
) -> Result<RecordingRoute, Refusal> {
    let pid = target.pid();
    refuse_by_survey(pid, survey)?;
    refuse_by_user(target)?;
    // The listener there reports its version too, but it is optional.
    let asked = Diagnostics::new(target, wait).process_info();
    let has_agent = has_listening_agent(target, wait);
    if let Ok(reported_version) = &asked {
        info.clone_from(reported_version);
    }
    if has_agent {
        return Ok(RecordingRoute::ControlSocket);
    }
    if survey.is_recorded_from_its_start {
        return Err(Refusal::AgentUnreachable { pid });
    }
    if let Err(error) = asked {
        return Err(match (error, &survey.diagnostics_off) {
            // A socket that an earlier process of the same id left behind does not count.
            (
                Error::NoSocket { .. } | Error::Stale { .. } | Error::Impostor { .. },
                Some(setting),
            ) => Refusal::DiagnosticsOff {
                pid,
                setting: setting.clone(),
            },
            (error, _) => error.into(),
        });
    }
    let reported_version = info.as_ref().and_then(|info| info.version.as_deref());
    let version = reported_version.or_else(|| survey.version());
    if let Some(setting) = &survey.suspended_at_start
        && version.and_then(release) >= Some((6, 0))
        && target.has_thread(FINALIZER) != Some(true)
    {
        return Err(Refusal::Suspended {
            pid,
            setting: setting.clone(),
        });
    }
    match &survey.profiler {
        Some(profiler) if version.and_then(release) < Some((6, 0)) => Err(Refusal::ProfilerTaken {
            pid,
            profiler: profiler.clone(),
        }),
        Some(profiler) => Ok(RecordingRoute::Beside(profiler.clone())),
        None => Ok(RecordingRoute::Attach),
    }
}

/// Refuses a process for reasons that need no reply of its runtime.
fn refuse_by_survey(pid: u32, survey: &Survey) -> Result<(), Refusal> {
    if survey.is_native_aot {
        return Err(Refusal::NativeAot { pid });
    }
    if survey.runtimes.is_empty() {
        return Err(Refusal::NoDotnet { pid });
    }
    match survey.version() {
        Some(version) if release(version).is_some_and(|release| release < (3, 1)) => {
            Err(Refusal::TooOld {
                pid,
                version: version.to_owned(),
            })
        }
        _ => Ok(()),
    }
}

/// Refuses a process whose agent would refuse us.
fn refuse_by_user(target: &Target) -> Result<(), Refusal> {
    if target.accepts_us() {
        return Ok(());
    }
    if target.shares_our_users() {
        return Err(target
            .denied("its agent accepts its own user and root")
            .into());
    }
    Err(Refusal::UserNamespace { pid: target.pid() })
}

/// Name, from .NET 6 on, of the thread that a runtime starts right after the point where it waits
/// to be resumed (`EEStartupHelper` in ceemain.cpp).
const FINALIZER: &str = ".NET Finalizer";

/// Whether an agent listens on its control socket, `sidewalk-PID-START.sock` beside the runtime's.
fn has_listening_agent(target: &Target, wait: Duration) -> bool {
    let prefix = format!("sidewalk-{}-", target.pid_inside());
    let is_it = |name: &str| name.starts_with(&prefix) && name.ends_with(".sock");
    connect_to_newest(target, wait, is_it).is_ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::survey::LoadedRuntime;

    fn with(version: Option<&str>) -> Survey {
        Survey {
            runtimes: vec![LoadedRuntime {
                library: "/x/libcoreclr.so".into(),
                version: version.map(str::to_owned),
            }],
            ..Survey::default()
        }
    }

    /// Covers processes that cannot be made here: musl, a native AOT compiler and old runtimes are
    /// not available.
    #[test]
    fn what_can_be_seen_is_refused_before_it_is_asked() {
        let refused = |survey: &Survey| refuse_by_survey(7, survey).unwrap_err();
        let aot = Survey {
            is_native_aot: true,
            ..Survey::default()
        };
        assert!(matches!(refused(&aot), Refusal::NativeAot { pid: 7 }));
        for old in ["2.1.30", "3.0.3"] {
            let refused = refused(&with(Some(old)));
            assert!(matches!(refused, Refusal::TooOld { .. }), "{refused}");
            assert!(refused.to_string().contains(old));
        }
        for new in [Some("3.1.0"), Some("10.0.0-rc.1"), Some("dev"), None] {
            assert!(refuse_by_survey(7, &with(new)).is_ok());
        }
    }

    /// Root here has no number in another user's namespace. Others can make only their own, whose
    /// root they are.
    #[test]
    fn a_stranger_of_a_user_namespace_is_refused() {
        let is_stranger = nix::unistd::geteuid().is_root();
        let mut child = match is_stranger {
            true => Command::new("setpriv"),
            false => Command::new("env"),
        };
        if is_stranger {
            child.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        }
        let mut child = child
            .args(["unshare", "--user", "--map-root-user"])
            .args(["sh", "-c", "echo ready; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        let answer = refuse_by_user(&Target::new(child.id()).unwrap());
        drop(child.stdin.take());
        child.wait().unwrap();
        if !is_stranger {
            return answer.unwrap();
        }
        let refused = answer.unwrap_err();
        assert_eq!(refused.short(), "user namespace", "{refused}");
        assert!(refused.to_string().contains("nsenter --user"), "{refused}");
    }

    #[test]
    fn a_process_without_dotnet_is_refused() {
        let own = Target::new(std::process::id()).unwrap();
        let reach = Reach::of(&own, Duration::from_secs(1));
        assert!(matches!(reach.route, Err(Refusal::NoDotnet { .. })));
        assert_eq!(reach.version(), None);
    }
}
