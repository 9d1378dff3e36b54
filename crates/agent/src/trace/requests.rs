//! The thread that asks a CLR for methods to be compiled again, with probes or as they were.
//!
//! One for each CLR in which something is traced, from the first session that traces to the CLR's end: a request makes its
//! thread one of the runtime's, so it is neither the agent thread nor one of the program. It sleeps in between. Invariants:
//! a body is ready before it is asked for; who waits for the thread does so for a bounded time, and holds no lock.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use corprof::context::{Callback, Context, RejitThread};

use corprof::{
    Cx, FunctionControl, ModuleId, ModuleKey, PreparedBodies, RejitCx, RejitFlags, Token,
    enable_rejit,
};

use super::bodies::{Bodies, Module};
use super::callers;
use super::table::{self, NEVER};
use super::{ModuleAge, Trace, Wanted, answered, lock};
use crate::clr::Clr;
use crate::events::{EventNews, Events};

/// How long a program's thread waits until the methods of a module that it loads are traced, and the agent thread until they
/// are as they were. It takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same, for the end of the thread in a CLR's shutdown.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a CLR has of its own for tracing.
#[derive(Debug, Default)]
pub(crate) struct ClrTrace {
    bodies: Arc<PreparedBodies>,
    commands: Mutex<Option<Sender<Command>>>,
}

enum Command {
    Trace {
        trace: &'static Trace,
        clr: Arc<Clr>,
        module: (ModuleKey, ModuleAge),
        methods: Vec<(usize, Wanted)>,
        done: SyncSender<Option<String>>,
    },
    RecompileCallers {
        modules: Vec<ModuleKey>,
        done: SyncSender<Option<String>>,
    },
    Revert(SyncSender<Option<String>>),
    End(SyncSender<Option<String>>),
}

impl ClrTrace {
    /// Makes the runtime allow ReJIT, and starts the thread. Once; it is said why not.
    pub(super) fn enable<C: Context>(&self, cx: &Cx<'_, C>, beside: bool) -> Result<(), String> {
        let mut commands = lock(&self.commands);
        if commands.is_some() {
            return Ok(());
        }
        if beside {
            return Err(
                "another profiler is its main one, and only that can rewrite methods".into(),
            );
        }
        let info = cx.info();
        let (low, high) = info
            .get_event_mask2(cx)
            .map_err(|error| error.to_string())?;
        let rejit = enable_rejit(cx, low, high).map_err(|refused| refused.to_string())?;
        let (sender, receiver) = channel();
        let bodies = Arc::clone(&self.bodies);
        // It ends by itself when the sender goes.
        rejit
            .spawn("sidewalk-trace", move |rejit| {
                run(rejit, &bodies, &receiver)
            })
            .map_err(|error| format!("there is no thread for it ({error})"))?;
        *commands = Some(sender);
        Ok(())
    }

    /// Whether it is enabled.
    pub(super) fn can_trace(&self) -> bool {
        lock(&self.commands).is_some()
    }

    /// Waits until these methods are traced.
    pub(super) fn trace(
        &self,
        (trace, clr): (&'static Trace, &Arc<Clr>),
        events: &Events,
        module: (ModuleKey, ModuleAge),
        path: Arc<str>,
        methods: Vec<(usize, Wanted)>,
    ) {
        let told = self.tell(PATIENCE, |done| Command::Trace {
            trace,
            clr: Arc::clone(clr),
            module,
            methods,
            done,
        });
        let file = path.rsplit('/').next().unwrap_or_default();
        match told {
            Some(Some(note)) => events.tell(EventNews::Note(format!("methods of {file}: {note}"))),
            Some(None) => {}
            None => events.tell(EventNews::Note(format!(
                "methods of {file} were not traced from their first call on: that took more than {} s",
                PATIENCE.as_secs()
            ))),
        }
    }

    /// Waits until callers in these modules, which were loaded before the session, hold no inlined copies of
    /// what is traced.
    pub(crate) fn recompile_callers(&self, events: &Events, modules: Vec<ModuleKey>) {
        if !self.can_trace() {
            return;
        }
        match self.tell(PATIENCE, |done| Command::RecompileCallers { modules, done }) {
            Some(Some(note)) => events.tell(EventNews::Note(note)),
            Some(None) => {}
            None => events.tell(EventNews::Note(format!(
                "callers of traced methods were not compiled again within {} s",
                PATIENCE.as_secs()
            ))),
        }
    }

    /// Waits until nothing is traced any more.
    pub(super) fn revert(&self, events: &Events) {
        if !self.can_trace() {
            return;
        }
        match self.tell(PATIENCE, Command::Revert) {
            Some(Some(note)) => events.tell(EventNews::Note(note)),
            Some(None) => {}
            None => events.tell(EventNews::Note(format!(
                "traced methods did not get their code back within {} s; they count nothing any more",
                PATIENCE.as_secs()
            ))),
        }
    }

    /// The CLR ends: no more requests.
    pub(crate) fn end(&self) {
        if self.can_trace() {
            self.tell(FAREWELL, Command::End);
            *lock(&self.commands) = None;
        }
    }

    /// Says something to the thread, and waits for its answer.
    fn tell(
        &self,
        patience: Duration,
        command: impl FnOnce(SyncSender<Option<String>>) -> Command,
    ) -> Option<Option<String>> {
        let (done, answer) = sync_channel(1);
        lock(&self.commands).as_ref()?.send(command(done)).ok()?;
        answer.recv_timeout(patience).ok()
    }

    /// The runtime asks for a method's new body, on a thread of the program.
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

/// The thread.
fn run(rejit: &mut RejitCx, bodies: &PreparedBodies, commands: &Receiver<Command>) {
    let mut bodies = Bodies::new(bodies);
    // What has probes now, and the numbers of those that count.
    let mut traced: Vec<(ModuleKey, Token, Option<i32>)> = Vec::new();
    for command in commands {
        match command {
            Command::Trace {
                trace,
                clr,
                module,
                methods,
                done,
            } => {
                let note = rejit.enter(|cx| {
                    let indices: Vec<_> = methods.iter().map(|(index, _)| *index).collect();
                    let asked =
                        request(cx, (trace, &clr), &mut bodies, module, methods, &mut traced);
                    asked.unwrap_or_else(|error| {
                        for index in indices {
                            trace.became(index, Err(answered(error)));
                        }
                        Some(answered(error))
                    })
                });
                let _nobody_waits = done.send(note);
            }
            Command::RecompileCallers { modules, done } => {
                let note = rejit.enter(|cx| {
                    let asked = recompile_callers(cx, &mut bodies, &modules, &mut traced);
                    asked
                        .err()
                        .map(|error| format!("callers of traced methods: {}", answered(error)))
                });
                let _nobody_waits = done.send(note);
            }
            Command::Revert(done) => {
                let note = rejit.enter(|cx| revert(cx, &bodies, &std::mem::take(&mut traced)));
                let _nobody_waits = done.send(note);
            }
            Command::End(done) => {
                let _nobody_waits = done.send(None);
                return;
            }
        }
    }
}

/// Takes probes out of all that has them. What did not go, for users.
fn revert<'rt>(
    cx: &mut Cx<'rt, RejitThread>,
    bodies: &Bodies<'_>,
    traced: &[(ModuleKey, Token, Option<i32>)],
) -> Option<String> {
    let info = cx.info();
    let mut methods = Vec::with_capacity(traced.len());
    let mut seen = HashSet::with_capacity(traced.len());
    for (module, token, number) in traced {
        if let Some(method) = number.and_then(table::method) {
            method.min_ns.store(NEVER, Relaxed);
        }
        // A module that was reported twice is requested twice, and reverted once.
        if !seen.insert((*module, *token)) {
            continue;
        }
        bodies.asked.remove(*module, *token);
        methods.extend(info.id(*module).map(|module| (module, *token)));
    }
    if methods.is_empty() {
        return None;
    }
    let failed = match info.request_revert(cx, &methods) {
        Ok(answers) => answers.iter().filter(|answer| answer.is_err()).count(),
        Err(_) => methods.len(),
    };
    (failed > 0).then(|| {
        format!("{failed} traced methods did not get their code back; they count nothing any more")
    })
}

/// Asks for callers in other modules than those of the traced methods, as they are: see [`callers`].
fn recompile_callers<'rt>(
    cx: &mut Cx<'rt, RejitThread>,
    bodies: &mut Bodies<'_>,
    modules: &[ModuleKey],
    traced: &mut Vec<(ModuleKey, Token, Option<i32>)>,
) -> corprof::Result<()> {
    let inlined = std::mem::take(&mut bodies.may_be_inlined);
    let mut found = callers::of(cx, &inlined, modules)?;
    // What has probes has been compiled again.
    let has_probes: HashSet<_> = traced
        .iter()
        .map(|(module, token, _)| (*module, *token))
        .collect();
    found.retain(|caller| !has_probes.contains(caller));
    let info = cx.info();
    let methods: Vec<_> = found
        .iter()
        .filter_map(|(module, token)| Some((info.id(*module)?, *token)))
        .collect();
    if !methods.is_empty() {
        info.request_rejit(cx, &methods)?;
        traced.extend(
            found
                .into_iter()
                .map(|(module, token)| (module, token, None)),
        );
    }
    Ok(())
}

/// Prepares each method and asks for all of them at once. What else a user should know.
///
/// `ApplyMetaData` is not called: bodies need signatures and references to members only, whose tokens
/// code may use at once, and on .NET 11.0.0 the call makes precompiled code of the module fail.
fn request<'rt>(
    cx: &mut Cx<'rt, RejitThread>,
    (trace, clr): (&Trace, &Clr),
    bodies: &mut Bodies<'_>,
    (key, age): (ModuleKey, ModuleAge),
    methods: Vec<(usize, Wanted)>,
    traced: &mut Vec<(ModuleKey, Token, Option<i32>)>,
) -> corprof::Result<Option<String>> {
    let info = cx.info();
    let mut module = Module::open(cx, key, age)?;
    let asked = module.prepare(cx, (trace, clr), bodies, methods);
    let about = info.get_module_info2(cx, module.id)?;
    let precompiled = about.is_some_and(|about| about.flags.contains(corprof::ModuleFlags::NGEN));
    let async_callers = module.async_callers(cx, &asked, precompiled);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for asked in &asked {
        let id = (module.id, asked.token);
        match info.inliners_are_safe(cx, module.id, asked.token) {
            Ok(true) => with.push(id),
            _ => without.push(id),
        }
    }
    let requested: corprof::Result<()> = (|| {
        if !with.is_empty() {
            // A method that is itself one of those that another one was inlined into is bound twice in one request, and the
            // second time counts: so the runtime is to ask for the bodies of inliners too.
            let flags = RejitFlags::BLOCK_INLINING | RejitFlags::INLINING_CALLBACKS;
            info.request_rejit_with_inliners(cx, flags, &with)?;
        }
        if !without.is_empty() {
            info.request_rejit(cx, &without)?;
        }
        if !async_callers.is_empty() {
            // With their own IL, as nothing is prepared for them: what is traced is not inlined again.
            let callers = async_callers.iter().map(|token| (module.id, *token));
            info.request_rejit(cx, &callers.collect::<Vec<_>>())?;
        }
        Ok(())
    })();
    traced.extend(async_callers.into_iter().map(|token| (key, token, None)));
    for asked in asked {
        let number = asked.counts.map(|(_, number)| number);
        traced.push((key, asked.token, number));
        if let Some((index, number)) = asked.counts {
            let answer = requested.map(|()| number);
            trace.became(index, answer.map_err(answered));
        }
    }
    let mut notes = module.notes();
    if precompiled && !without.is_empty() {
        notes.push(format!(
            "{} of them may have copies inlined into precompiled code, whose calls are not counted (.NET before 7)",
            without.len()
        ));
    }
    Ok((!notes.is_empty()).then(|| notes.join("; ")))
}
