//! Finds the processes that `sidewalk agent` records, and attaches to them.
//!
//! Invariants: a process that no rule wants is not touched. Attaching, which may take ten seconds,
//! happens in [`THREADS`] threads of its own, whatever the number of processes. A process that
//! cannot be recorded is tried again ever more seldom, and named once for each reason.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use diagnostics::{Error, Survey, Target};

use super::super::agent_library::EmbeddedAgents;
use super::super::attach::{self, RecordingRequest};
use super::config::AgentConfig;
use super::facts::ProcessFacts;
use super::service;
use crate::console::Console;
use crate::running;

/// Number of threads that attach.
const THREADS: usize = 4;
/// Time between two looks at the list of processes.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two looks at processes that are being attached to.
const SHORT_LOOK: Duration = Duration::from_millis(50);
/// Shortest and longest time between two looks at a process without a runtime: it may load one.
const UNTIL_DOTNET: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(32));
/// Shortest and longest time until a process that could not be recorded is tried again.
const UNTIL_RETRY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// The processes of the machine.
pub(in super::super) struct Finder {
    config: Arc<AgentConfig>,
    processes: HashMap<u32, Process>,
    /// `None` once no more processes are attached to.
    requests: Option<Sender<Request>>,
    answers: Receiver<Answer>,
    threads: Vec<JoinHandle<()>>,
    next_look: Instant,
}

/// The state of a process.
enum Process {
    /// It has no runtime yet, or could not be recorded: the time of the next look, and the pause
    /// before the one after that.
    Later {
        at: Instant,
        pause: Duration,
        said: Option<String>,
    },
    /// No rule wants it, or it cannot be looked at.
    LeftOut,
    /// It is being attached to; the reason why that failed before.
    Joining(Option<String>),
    Recorded(Target),
}

/// A process to attach to.
struct Request {
    target: Target,
    name: String,
    configuration: Arc<str>,
}

/// An attempt to attach.
struct Answer {
    target: Target,
    name: String,
    stream: Result<UnixStream>,
}

impl Finder {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(super) fn start(config: Arc<AgentConfig>, embedded: EmbeddedAgents) -> Result<Finder> {
        let (requests, received) = channel();
        let received = Arc::new(Mutex::new(received));
        let (sender, answers) = channel();
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let (received, sender) = (Arc::clone(&received), sender.clone());
            let thread = std::thread::Builder::new().name("attach".into());
            let thread = thread.spawn(move || answer(&received, &sender, embedded));
            threads.push(thread.context("cannot start a thread")?);
        }
        Ok(Finder {
            config,
            processes: HashMap::new(),
            requests: Some(requests),
            answers,
            threads,
            next_look: Instant::now(),
        })
    }

    /// The time of the next turn.
    pub(in super::super) fn due(&self) -> Instant {
        let is_joining = |process: &Process| matches!(process, Process::Joining(_));
        match self.processes.values().any(is_joining) {
            false => self.next_look,
            true => self.next_look.min(Instant::now() + SHORT_LOOK),
        }
    }

    /// Looks for processes if it is time. Returns the streams of those that were attached to, with
    /// their process ids.
    pub(in super::super) fn turn(&mut self, console: &Console) -> Vec<(UnixStream, u32)> {
        let now = Instant::now();
        if now >= self.next_look {
            self.next_look = now + LOOK;
            let is_first = self.processes.is_empty();
            self.look(now);
            if is_first {
                service::ready();
            }
            let recorded = self.processes.values();
            let recorded = recorded.filter(|one| matches!(one, Process::Recorded(_)));
            service::alive(recorded.count());
        }
        self.take_answers(now, console)
    }

    /// A stream has ended. If its process goes on, it is recorded again.
    pub(in super::super) fn disconnected(&mut self, pid: u32) {
        let (pause, _) = UNTIL_RETRY;
        let later = Process::Later {
            at: Instant::now() + pause,
            pause,
            said: None,
        };
        self.processes.insert(pid, later);
    }

    /// Stops attaching. Returns all processes that the agent was loaded into.
    pub(super) fn finish(mut self, console: &Console) -> Vec<Target> {
        self.requests = None;
        for thread in self.threads.drain(..) {
            // One that failed has attached to nothing more.
            let _ended = thread.join();
        }
        // Streams that come now end at once.
        drop(self.take_answers(Instant::now(), console));
        let recorded = self.processes.into_values();
        recorded
            .filter_map(|one| match one {
                Process::Recorded(target) => Some(target),
                _ => None,
            })
            .collect()
    }

    fn take_answers(&mut self, now: Instant, console: &Console) -> Vec<(UnixStream, u32)> {
        let mut streams = Vec::new();
        while let Ok(answer) = self.answers.try_recv() {
            let Answer {
                target,
                name,
                stream,
            } = answer;
            let pid = target.pid();
            let said = match self.processes.remove(&pid) {
                Some(Process::Joining(said)) => said,
                _ => None,
            };
            let process = match stream {
                Ok(stream) => {
                    let name = formats::visible(&name);
                    console.note(format_args!("recording process {pid} ({name})"));
                    streams.push((stream, pid));
                    Process::Recorded(target)
                }
                // It has ended meanwhile.
                Err(_) if Target::new(pid).is_err() => continue,
                Err(error) => {
                    let text = format!("{error:#}");
                    if said.as_ref() != Some(&text) {
                        console.warning(format_args!("process {pid} is not recorded: {text}"));
                    }
                    let (shortest, longest) = UNTIL_RETRY;
                    let pause = match said {
                        None => shortest,
                        Some(_) => longest,
                    };
                    Process::Later {
                        at: now + pause,
                        pause: longest,
                        said: Some(text),
                    }
                }
            };
            self.processes.insert(pid, process);
        }
        streams
    }

    fn look(&mut self, now: Instant) {
        let Ok(there) = running::pids() else {
            return;
        };
        // Process ids are used again. Those that are recorded are forgotten when their streams end.
        self.processes
            .retain(|pid, process| there.contains(pid) || matches!(process, Process::Joining(_)));
        for pid in there {
            let process = self.processes.remove(&pid);
            let process = match process {
                None => self.examine(pid, UNTIL_DOTNET.0, None, now),
                Some(Process::Later { at, pause, said }) if at <= now => {
                    self.examine(pid, pause, said, now)
                }
                Some(process) => process,
            };
            self.processes.insert(pid, process);
        }
    }

    /// Looks at a process. `pause` is the time until the next look, if it has no runtime.
    fn examine(&self, pid: u32, pause: Duration, said: Option<String>, now: Instant) -> Process {
        let later = |said| Process::Later {
            at: now + pause,
            pause: (pause * 2).min(UNTIL_DOTNET.1),
            said,
        };
        let Ok(target) = Target::new(pid) else {
            return later(said);
        };
        // A runtime always has several threads.
        let stat = target.process().stat();
        if stat.is_ok_and(|stat| stat.num_threads < 2) {
            return later(said);
        }
        match Survey::of(&target) {
            Ok(survey) if survey.is_native_aot => return Process::LeftOut,
            Ok(survey) if survey.runtimes.is_empty() => return later(said),
            Ok(_) => {}
            Err(Error::Denied { .. } | Error::Privileged { .. }) => return Process::LeftOut,
            Err(_) => return later(said),
        }
        let facts = ProcessFacts::of(&target);
        let rule = self.config.rule_for(&facts);
        let configuration = rule.and_then(|(_, rule)| rule.configuration.clone());
        match (configuration, &self.requests) {
            (Some(configuration), Some(requests)) => {
                let request = Request {
                    target,
                    name: facts.name,
                    configuration,
                };
                match requests.send(request) {
                    Ok(()) => Process::Joining(said),
                    // The threads have ended.
                    Err(_) => later(said),
                }
            }
            _ => Process::LeftOut,
        }
    }
}

/// Attaches to one process after the other.
fn answer(requests: &Mutex<Receiver<Request>>, answers: &Sender<Answer>, embedded: EmbeddedAgents) {
    loop {
        let next = requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        let Ok(Request {
            target,
            name,
            configuration,
        }) = next
        else {
            return;
        };
        let request = RecordingRequest {
            configuration: &configuration,
            stay: false,
            walks_heap: false,
            done: "recorded",
        };
        let stream = attach::begin_recording(&target, embedded, &request);
        let answer = Answer {
            target,
            name,
            stream,
        };
        if answers.send(answer).is_err() {
            return;
        }
    }
}
