//! The ReJIT thread of a CLR: requests recompilation of methods, with probes or with their own IL.
//!
//! Each CLR in which methods are traced has one, from the first session that traces to the CLR's
//! end. The runtime registers a requesting thread as its own, so neither the agent thread nor a
//! thread of the program can make requests. A request takes locks of the runtime that the program
//! needs too, and may take long: for a method of a generic type the runtime searches all types of
//! all assemblies (`LoadedMethodDescIterator`, `src/coreclr/vm/loaderallocator.cpp`). So requests
//! are small, with pauses (`work`, `pace`), while sampling continues. Invariant: a thread waits for
//! the ReJIT thread for a bounded time, and holds no lock meanwhile.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use control::LoadMode;
use corprof::context::{Callback, Context, MayTriggerGc, RejitThread};

use corprof::{
    Cx, FunctionControl, ModuleId, ModuleKey, PreparedBodies, RejitCx, Token, enable_rejit,
};

use super::inlining::Inlining;
use super::work::TraceWork;
use super::{MatchedMethod, ModuleAge, Trace, lock, refusal_of};
use crate::clr::Clr;
use crate::events::{EventAnnouncement, Events};

/// Maximum time that a thread waits until the methods of a module that it loads are traced, in a
/// program started with the agent. Tracing takes milliseconds.
const LOAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The same after an attach, since other programs may depend on this one.
const ATTACHED_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time that the agent thread waits at the end of a session until methods have their own
/// IL.
const REVERT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum wait for the end of the thread in a CLR's shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Tracing state of a CLR.
#[derive(Debug, Default)]
pub(crate) struct ClrTrace {
    bodies: Arc<PreparedBodies>,
    inlining: Arc<Inlining>,
    commands: Mutex<Option<Sender<TraceCommand>>>,
}

/// A command from another thread to the ReJIT thread.
pub(super) enum TraceCommand {
    /// Trace a module that is being loaded. The loading thread waits.
    Trace(Box<ModuleMatches>, SyncSender<()>),
    /// Begin a session. The modules are already loaded.
    Begin(RequestContext, Vec<ModuleKey>),
    /// Stop tracing a method that is called too often.
    LeaveOut(ModuleKey, Token),
    /// End a session: give methods their own IL back.
    Revert(SyncSender<Option<String>>),
    End(SyncSender<()>),
}

/// The CLR and session of a request.
#[derive(Clone)]
pub(super) struct RequestContext {
    pub(super) trace: &'static Trace,
    pub(super) events: &'static Events,
    pub(super) clr: Arc<Clr>,
    pub(super) session: u32,
    /// Methods that had compiled code when the session began.
    pub(super) compiled: Arc<HashSet<(ModuleKey, Token)>>,
}

/// Methods of a module to trace.
pub(super) struct ModuleMatches {
    pub(super) task: RequestContext,
    pub(super) module: ModuleKey,
    pub(super) age: ModuleAge,
    pub(super) path: Arc<str>,
    pub(super) methods: Vec<(usize, MatchedMethod)>,
}

impl ModuleMatches {
    pub(super) fn file(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Whether one of its methods had compiled code when the session began.
    pub(super) fn has_code(&self, method: &MatchedMethod) -> bool {
        self.task.compiled.contains(&(self.module, method.token))
    }
}

impl ClrTrace {
    /// Enables ReJIT in the runtime, and starts the thread, once. A failure is written with its
    /// reason.
    pub(super) fn enable<C: Context>(&self, cx: &Cx<'_, C>, beside: bool) -> Result<(), String> {
        let mut commands = lock(&self.commands);
        if commands.is_some() {
            return Ok(());
        }
        if beside {
            return Err(
                "another profiler is its main profiler, and only that one can rewrite methods"
                    .into(),
            );
        }
        let info = cx.info();
        let (low, high) = info
            .get_event_mask2(cx)
            .map_err(|error| error.to_string())?;
        let rejit = enable_rejit(cx, low, high).map_err(|refused| refused.to_string())?;
        let (sender, receiver) = channel();
        let bodies = Arc::clone(&self.bodies);
        let inlining = Arc::clone(&self.inlining);
        // It ends by itself when the sender is dropped.
        rejit
            .spawn("sidewalk-trace", move |rejit| {
                run(rejit, &bodies, &inlining, &receiver)
            })
            .map_err(|error| format!("no thread could be started for that ({error})"))?;
        *commands = Some(sender);
        Ok(())
    }

    /// Returns the compilations under way, and whether they may inline.
    pub(crate) fn inlining(&self) -> &Inlining {
        &self.inlining
    }

    /// Whether it is enabled.
    pub(super) fn can_trace(&self) -> bool {
        lock(&self.commands).is_some()
    }

    /// Waits until the methods of a module that is being loaded are traced.
    pub(super) fn trace(&self, matches: ModuleMatches) {
        let timeout = match matches.task.clr.arrival() {
            LoadMode::Attached => ATTACHED_TIMEOUT,
            _ => LOAD_TIMEOUT,
        };
        let events = matches.task.events;
        let file = matches.file().to_owned();
        let traced_sent = self.send(timeout, |done| TraceCommand::Trace(Box::new(matches), done));
        if traced_sent.is_none() {
            events.announce(EventAnnouncement::Note(format!(
                "methods of {file} were not traced from their first call on: that took more than {} s",
                timeout.as_secs()
            )));
        }
    }

    /// Traces the methods of modules that were loaded before the session. No thread waits for that.
    pub(super) fn begin(&self, task: RequestContext, modules: Vec<ModuleKey>) {
        if let Some(commands) = lock(&self.commands).as_ref() {
            // If the thread has ended, the runtime is ending.
            let _sent = commands.send(TraceCommand::Begin(task, modules));
        }
    }

    /// Reverts a method to its own code. Returns false if the thread has ended.
    pub(super) fn leave_out(&self, (module, method): (ModuleKey, Token)) -> bool {
        let commands = lock(&self.commands);
        let sent = |commands: &Sender<_>| commands.send(TraceCommand::LeaveOut(module, method));
        commands
            .as_ref()
            .is_some_and(|commands| sent(commands).is_ok())
    }

    /// Waits until all methods are reverted.
    pub(super) fn revert(&self, events: &Events) {
        if !self.can_trace() {
            return;
        }
        match self.send(REVERT_TIMEOUT, TraceCommand::Revert) {
            Some(Some(note)) => events.announce(EventAnnouncement::Note(note)),
            Some(None) => {}
            None => events.announce(EventAnnouncement::Note(
                "some traced methods do not have their own code back yet; that continues after the \
                 recording, and they no longer count calls"
                    .to_owned(),
            )),
        }
    }

    /// Ends the thread, as the CLR ends.
    pub(crate) fn end(&self) {
        if self.can_trace() {
            self.send(SHUTDOWN_TIMEOUT, TraceCommand::End);
            *lock(&self.commands) = None;
        }
    }

    /// Sends a command to the thread, and waits for its reply.
    fn send<T>(
        &self,
        timeout: Duration,
        command: impl FnOnce(SyncSender<T>) -> TraceCommand,
    ) -> Option<T> {
        let (done, answer) = sync_channel(1);
        lock(&self.commands).as_ref()?.send(command(done)).ok()?;
        answer.recv_timeout(timeout).ok()
    }

    /// Returns a method's new body to the runtime. Called on a thread of the program.
    pub(crate) fn parameters<'rt>(
        &self,
        cx: &Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        method: Token,
        control: &FunctionControl<'rt>,
    ) -> corprof::Result<()> {
        self.bodies.answer(cx, module, method, control).map(drop)
    }
}

/// Body of the ReJIT thread.
fn run(
    rejit: &mut RejitCx,
    bodies: &PreparedBodies,
    inlining: &Inlining,
    commands: &Receiver<TraceCommand>,
) {
    rejit.enter(|cx| {
        let mut work = TraceWork::new(bodies, inlining);
        loop {
            let pause = work.step(cx);
            let command = match pause {
                Some(pause) => commands.recv_timeout(pause),
                None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match command {
                Ok(TraceCommand::End(done)) => {
                    // Its references to the runtime are dropped first.
                    drop(work);
                    let _nobody_waits = done.send(());
                    return;
                }
                Ok(command) => work.take(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
}

impl RequestContext {
    /// Whether its session is there.
    pub(super) fn is_in_force(&self) -> bool {
        self.trace.session() == self.session
    }

    /// Records the outcome of one of the session's methods.
    pub(super) fn record_outcome(&self, index: usize, outcome: Result<i32, String>) {
        self.trace.record_outcome(self.session, index, outcome);
    }

    /// Examines a loaded module. Returns its file, and the reason if it cannot be traced. `None` if
    /// it is unknown, or its file is truncated.
    pub(super) fn inspect_module<'rt, C: MayTriggerGc>(
        &self,
        cx: &Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) -> Option<(Arc<str>, Option<&'static str>)> {
        let facts = self.clr.module(module.raw())?;
        if facts.is_cut_short() {
            // The runtime would read memory that no longer exists.
            return None;
        }
        let about = cx.info().get_module_info2(cx, module).ok()??;
        Some((
            facts.path.as_str().into(),
            refusal_of(&facts.path, about.flags),
        ))
    }

    /// Whether a module is never unloaded, and has metadata that does not change.
    pub(super) fn can_read<'rt>(&self, cx: &Cx<'rt, RejitThread>, key: ModuleKey) -> bool {
        cx.info().id(key).is_some_and(|module| {
            let looked_at = self
                .clr
                .while_loaded(module, || self.inspect_module(cx, module));
            matches!(looked_at, Some(Some((_, None))))
        })
    }

    pub(super) fn report(&self, note: String) {
        if self.is_in_force() {
            self.events.announce(EventAnnouncement::Note(note));
        }
    }
}
