//! The thread that asks a CLR for methods to be compiled again, with probes or as they were.
//!
//! One for each CLR in which something is traced, from the first session that traces to the CLR's
//! end: a request makes its thread one of the runtime's, so it is neither the agent thread nor one
//! of the program. It sleeps in between. A request takes locks of the runtime that the program
//! needs too, and may take long: for a method of a generic type the runtime looks through all types
//! of all assemblies (`LoadedMethodDescIterator`, `src/coreclr/vm/loaderallocator.cpp`). So there
//! are many small ones, with pauses (`pace`), beside sampling. Invariants: a body is ready before
//! it is asked for; who waits for the thread does so for a bounded time, and holds no lock; what a
//! module waits for that is being loaded comes first, methods get their own code back last.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use control::Arrival;
use corprof::context::{Callback, Context, MayTriggerGc, RejitThread};

use corprof::{
    Cx, FunctionControl, ModuleId, ModuleKey, PreparedBodies, RejitCx, RejitFlags, Token,
    enable_rejit,
};

use super::bodies::{Asked, Bodies, Module};
use super::callers;
use super::pace::{Kind, Pace};
use super::table::{self, NEVER};
use super::{ModuleAge, Trace, Wanted, answered, lock, why_not};
use crate::clr::Clr;
use crate::events::{EventNews, Events};

/// How long a thread of a program that was started with us waits until the methods of a module that
/// it loads are traced. It takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same, where others rely on a program that ran before we came.
const PATIENCE_OF_A_SERVER: Duration = Duration::from_secs(1);
/// How long the agent thread waits, at the end of a session, until methods are as they were.
const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// The same, for the end of the thread in a CLR's shutdown.
const FAREWELL: Duration = Duration::from_secs(1);

/// A CLR's own state for tracing.
#[derive(Debug, Default)]
pub(crate) struct ClrTrace {
    bodies: Arc<PreparedBodies>,
    commands: Mutex<Option<Sender<Command>>>,
}

enum Command {
    /// A module is being loaded, and its thread waits.
    Trace(Box<Meant>, SyncSender<()>),
    /// A session begins, and these modules are there.
    Begin(Task, Vec<ModuleKey>),
    /// A method is called too often.
    LeaveOut(ModuleKey, Token),
    /// A session ends.
    Revert(SyncSender<Option<String>>),
    End(SyncSender<()>),
}

/// For whom something is done.
#[derive(Clone)]
pub(super) struct Task {
    pub(super) trace: &'static Trace,
    pub(super) events: &'static Events,
    pub(super) clr: Arc<Clr>,
    pub(super) session: u32,
}

/// Methods of a module that are to be traced.
pub(super) struct Meant {
    pub(super) task: Task,
    pub(super) module: ModuleKey,
    pub(super) age: ModuleAge,
    pub(super) path: Arc<str>,
    pub(super) methods: Vec<(usize, Wanted)>,
}

impl Meant {
    fn file(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
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

    /// Waits until the methods of a module that is being loaded are traced.
    pub(super) fn trace(&self, meant: Meant) {
        let patience = match meant.task.clr.arrival() {
            Arrival::Attached => PATIENCE_OF_A_SERVER,
            _ => PATIENCE,
        };
        let events = meant.task.events;
        let file = meant.file().to_owned();
        let told = self.tell(patience, |done| Command::Trace(Box::new(meant), done));
        if told.is_none() {
            events.tell(EventNews::Note(format!(
                "methods of {file} were not traced from their first call on: that took more than {} s",
                patience.as_secs()
            )));
        }
    }

    /// Has the methods of modules traced that were loaded before the session. Nothing waits for
    /// that.
    pub(super) fn begin(&self, task: Task, modules: Vec<ModuleKey>) {
        if let Some(commands) = lock(&self.commands).as_ref() {
            // Without the thread the runtime ends.
            let _sent = commands.send(Command::Begin(task, modules));
        }
    }

    /// Has a method take its own code back. False: there is no thread left to do it.
    pub(super) fn leave_out(&self, (module, method): (ModuleKey, Token)) -> bool {
        let commands = lock(&self.commands);
        let sent = |commands: &Sender<_>| commands.send(Command::LeaveOut(module, method));
        commands
            .as_ref()
            .is_some_and(|commands| sent(commands).is_ok())
    }

    /// Waits until nothing is traced any more.
    pub(super) fn revert(&self, events: &Events) {
        if !self.can_trace() {
            return;
        }
        match self.tell(LAST_PATIENCE, Command::Revert) {
            Some(Some(note)) => events.tell(EventNews::Note(note)),
            Some(None) => {}
            None => events.tell(EventNews::Note(
                "traced methods have not all got their code back yet, which goes on after the recording; they \
                 count nothing any more"
                    .to_owned(),
            )),
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
    fn tell<T>(
        &self,
        patience: Duration,
        command: impl FnOnce(SyncSender<T>) -> Command,
    ) -> Option<T> {
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
    rejit.enter(|cx| {
        let mut work = Work::new(bodies);
        loop {
            let pause = work.step(cx);
            let command = match pause {
                Some(pause) => commands.recv_timeout(pause),
                None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match command {
                Ok(Command::End(done)) => {
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

/// A method that was asked for.
#[derive(Clone, Copy)]
struct Changed {
    method: (ModuleKey, Token),
    kind: Kind,
    /// Its number, if it counts.
    number: Option<i32>,
}

impl Changed {
    /// Nothing is counted for it from here on.
    fn stop(&self) {
        if let Some(method) = self.number.and_then(table::method) {
            method.min_ns.store(NEVER, Relaxed);
        }
    }
}

/// Pending jobs, and the methods that have probes.
struct Work<'a, 'rt> {
    bodies: Bodies<'a>,
    /// Of modules that are being loaded.
    urgent: VecDeque<Job<'rt>>,
    calm: VecDeque<Calm<'rt>>,
    changed: Vec<Changed>,
    /// Methods that are to have their own code back soon, and those that have time for it.
    leaving: VecDeque<Changed>,
    reverts: VecDeque<Changed>,
    /// How many did not get their own code back, and who waits for that.
    not_reverted: usize,
    reverted: Option<SyncSender<Option<String>>>,
    pace: Pace,
}

/// Work for which no thread waits.
enum Calm<'rt> {
    /// A module whose methods are held against the patterns.
    Look(Task, ModuleKey),
    Trace(Box<Job<'rt>>),
    /// Callers in these modules, which were loaded before the session, may hold inlined copies of
    /// what is traced.
    FindCallers(Task, Vec<ModuleKey>),
    Recompile(Task, Callers),
}

type Callers = VecDeque<(ModuleKey, Token)>;

/// A module whose methods are being traced.
struct Job<'rt> {
    meant: Meant,
    /// Those that are left; first what is asked for fast, and state machines behind what they are
    /// of.
    left: VecDeque<(usize, Wanted)>,
    module: Option<Module<'rt>>,
    /// Found when nothing else is left.
    callers: Option<Callers>,
    done: Option<SyncSender<()>>,
}

impl<'rt> Job<'rt> {
    fn new(mut meant: Meant, done: Option<SyncSender<()>>) -> Job<'rt> {
        let mut left = std::mem::take(&mut meant.methods);
        left.sort_by_key(|(_, wanted)| (Kind::of(wanted), wanted.is_state_machine()));
        Job {
            meant,
            left: left.into(),
            module: None,
            callers: None,
            done,
        }
    }
}

impl<'a, 'rt> Work<'a, 'rt> {
    fn new(bodies: &'a PreparedBodies) -> Work<'a, 'rt> {
        Work {
            bodies: Bodies::new(bodies),
            urgent: VecDeque::new(),
            calm: VecDeque::new(),
            changed: Vec::new(),
            leaving: VecDeque::new(),
            reverts: VecDeque::new(),
            not_reverted: 0,
            reverted: None,
            pace: Pace::default(),
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Trace(meant, done) => self.urgent.push_back(Job::new(*meant, Some(done))),
            Command::Begin(task, modules) => {
                let looks = modules.iter();
                self.calm
                    .extend(looks.map(|key| Calm::Look(task.clone(), *key)));
                self.calm.push_back(Calm::FindCallers(task, modules));
            }
            Command::LeaveOut(module, token) => {
                let is_it = |changed: &mut Changed| changed.method == (module, token);
                let leaving: Vec<Changed> = self.changed.extract_if(.., is_it).collect();
                leaving.iter().for_each(Changed::stop);
                self.leaving.extend(leaving.first());
            }
            Command::Revert(done) => {
                // The waiting threads go on.
                self.urgent.clear();
                self.calm.clear();
                self.bodies.may_be_inlined.clear();
                self.changed.iter().for_each(Changed::stop);
                // A module that was reported twice is asked for twice, and reverted once.
                let mut seen: HashSet<_> = self.reverts.iter().map(|one| one.method).collect();
                self.changed.sort_by_key(|changed| changed.kind);
                let changed = self.changed.drain(..);
                self.reverts
                    .extend(changed.filter(|one| seen.insert(one.method)));
                self.not_reverted = 0;
                self.reverted = Some(done);
                self.settle_reverts();
            }
            // The loop sees to it.
            Command::End(_) => {}
        }
    }

    /// Does the next small piece of work. How long to pause then; `None`: until there is a command.
    fn step(&mut self, cx: &mut Cx<'rt, RejitThread>) -> Option<Duration> {
        if let Some(mut job) = self.urgent.pop_front() {
            match self.trace(cx, &mut job) {
                false => self.urgent.push_front(job),
                // Dropped: who waits goes on.
                true => drop(job.done.take().map(|done| done.send(()))),
            }
            return Some(Duration::ZERO);
        }
        if !self.leaving.is_empty() {
            self.revert(cx);
        } else if let Some(calm) = self.calm.pop_front() {
            let trace = calm.task().trace;
            if let Some(rest) = self.go_on(cx, calm) {
                self.calm.push_front(rest);
            }
            if self.calm.is_empty() {
                trace.settled();
            }
        } else if !self.reverts.is_empty() {
            self.revert(cx);
        } else {
            return None;
        }
        Some(self.pace.pause())
    }

    /// Does a piece of the work for which no thread waits. Returns what is left of it.
    fn go_on(&mut self, cx: &mut Cx<'rt, RejitThread>, calm: Calm<'rt>) -> Option<Calm<'rt>> {
        match calm {
            Calm::Look(task, key) => {
                let module = cx.info().id(key)?;
                let meant = task.trace.meant(&task, cx, (module, ModuleAge::Loaded))?;
                Some(Calm::Trace(Box::new(Job::new(meant, None))))
            }
            Calm::Trace(mut job) => match self.trace(cx, &mut job) {
                false => Some(Calm::Trace(job)),
                true => None,
            },
            Calm::FindCallers(task, mut modules) => {
                modules.retain(|key| task.can_read(cx, *key));
                let inlined = std::mem::take(&mut self.bodies.may_be_inlined);
                match callers::of(cx, &inlined, &modules) {
                    Ok(found) => Some(Calm::Recompile(task, found.into())),
                    Err(error) => {
                        task.say(format!("callers of traced methods: {}", answered(error)));
                        None
                    }
                }
            }
            Calm::Recompile(task, mut callers) => {
                if let Err(error) = self.recompile(cx, &mut callers) {
                    task.say(format!("callers of traced methods: {}", answered(error)));
                    return None;
                }
                (!callers.is_empty()).then_some(Calm::Recompile(task, callers))
            }
        }
    }

    /// Traces some methods of a module. True: all is done.
    fn trace(&mut self, cx: &mut Cx<'rt, RejitThread>, job: &mut Job<'rt>) -> bool {
        if !job.meant.task.is_in_force() {
            return true;
        }
        match self.try_trace(cx, job) {
            Ok(false) => false,
            Ok(true) => {
                let notes = job.module.as_ref().map(Module::notes);
                let notes = notes.unwrap_or_default().join("; ");
                if !notes.is_empty() {
                    let note = format!("methods of {}: {notes}", job.meant.file());
                    job.meant.task.say(note);
                }
                true
            }
            Err(error) => {
                for (index, _) in job.left.drain(..) {
                    job.meant.task.became(index, Err(answered(error)));
                }
                let note = format!("methods of {}: {}", job.meant.file(), answered(error));
                job.meant.task.say(note);
                true
            }
        }
    }

    fn try_trace(
        &mut self,
        cx: &mut Cx<'rt, RejitThread>,
        job: &mut Job<'rt>,
    ) -> corprof::Result<bool> {
        let module = match &mut job.module {
            Some(module) => module,
            none => none.insert(Module::open(cx, job.meant.module, job.meant.age)?),
        };
        let kinds = job.left.iter().map(|(_, wanted)| Kind::of(wanted));
        if let Some((kind, count)) = self.pace.next(kinds) {
            let some = job.left.drain(..count).collect();
            let began = Instant::now();
            self.request(cx, &job.meant.task, module, kind, some);
            self.pace.after(kind, count, began.elapsed());
            return Ok(false);
        }
        let callers = match &mut job.callers {
            Some(callers) => callers,
            none => {
                let found = module.async_callers().into_iter();
                none.insert(found.map(|token| (job.meant.module, token)).collect())
            }
        };
        self.recompile(cx, callers)?;
        Ok(callers.is_empty())
    }

    /// Prepares some methods and asks for them.
    ///
    /// `ApplyMetaData` is not called: bodies need signatures and references to members only, whose
    /// tokens code may use at once, and on .NET 11.0.0 the call makes precompiled code of the
    /// module fail.
    fn request(
        &mut self,
        cx: &mut Cx<'rt, RejitThread>,
        task: &Task,
        module: &mut Module<'rt>,
        kind: Kind,
        methods: Vec<(usize, Wanted)>,
    ) {
        let info = cx.info();
        let asked = module.prepare(cx, task, &mut self.bodies, methods);
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for asked in &asked {
            let id = (module.id, asked.token);
            match info.inliners_are_safe(cx, module.id, asked.token) {
                Ok(true) => with.push(id),
                _ => without.push(id),
            }
        }
        // Their bodies are new again.
        let tokens: HashSet<Token> = asked.iter().map(|asked| asked.token).collect();
        let key = module.key;
        self.reverts
            .retain(|Changed { method, .. }| method.0 != key || !tokens.contains(&method.1));
        let requested: corprof::Result<()> = (|| {
            if !with.is_empty() {
                // A method that is itself one of those that another one was inlined into is bound
                // twice in one request, and the second time counts: so the runtime is to ask for
                // the bodies of inliners too.
                let flags = RejitFlags::BLOCK_INLINING | RejitFlags::INLINING_CALLBACKS;
                info.request_rejit_with_inliners(cx, flags, &with)?;
            }
            if !without.is_empty() {
                info.request_rejit(cx, &without)?;
            }
            Ok(())
        })();
        module.look_for_callers(cx, &asked);
        module.without_inliners += without.len();
        for Asked { token, counts } in asked {
            let number = counts.map(|(_, number)| number);
            self.changed.push(Changed {
                method: (key, token),
                kind,
                number,
            });
            if let Some((index, number)) = counts {
                let answer = requested.map(|()| number);
                task.became(index, answer.map_err(answered));
            }
        }
    }

    /// Asks for some callers of what is traced, with their own IL, as nothing is prepared for them:
    /// what is traced is not inlined again.
    fn recompile(
        &mut self,
        cx: &mut Cx<'rt, RejitThread>,
        callers: &mut Callers,
    ) -> corprof::Result<()> {
        let kind = Kind::Plain;
        let count = callers.len().min(self.pace.size(kind));
        // Methods that have probes have been compiled again.
        let asked = self.bodies.asked;
        let some = callers.drain(..count);
        let some: Vec<_> = some
            .filter(|(module, token)| !asked.contains(*module, *token))
            .collect();
        let info = cx.info();
        let methods = some.iter();
        let methods = methods.filter_map(|(module, token)| Some((info.id(*module)?, *token)));
        let methods: Vec<_> = methods.collect();
        if methods.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        info.request_rejit(cx, &methods)?;
        self.pace.after(kind, count, began.elapsed());
        self.changed.extend(some.into_iter().map(|method| Changed {
            method,
            kind,
            number: None,
        }));
        Ok(())
    }

    /// Takes probes out of some of those that have them.
    fn revert(&mut self, cx: &mut Cx<'rt, RejitThread>) {
        let queue = match self.leaving.is_empty() {
            false => &mut self.leaving,
            true => &mut self.reverts,
        };
        let Some((kind, count)) = self.pace.next(queue.iter().map(|changed| changed.kind)) else {
            return;
        };
        let info = cx.info();
        let mut methods = Vec::with_capacity(count);
        for (module, token) in queue.drain(..count).map(|changed| changed.method) {
            self.bodies.asked.remove(module, token);
            methods.extend(info.id(module).map(|module| (module, token)));
        }
        if !methods.is_empty() {
            let began = Instant::now();
            self.not_reverted += match info.request_revert(cx, &methods) {
                Ok(answers) => answers.iter().filter(|answer| answer.is_err()).count(),
                Err(_) => methods.len(),
            };
            self.pace.after(kind, count, began.elapsed());
        }
        self.settle_reverts();
    }

    /// Answers who waits, where all have their own code back.
    fn settle_reverts(&mut self) {
        if !self.reverts.is_empty() {
            return;
        }
        let failed = std::mem::take(&mut self.not_reverted);
        if let Some(done) = self.reverted.take() {
            let _nobody_waits = done.send((failed > 0).then(|| {
                format!(
                    "{failed} traced methods did not get their code back; they count nothing any more"
                )
            }));
        }
    }
}

impl Calm<'_> {
    fn task(&self) -> &Task {
        match self {
            Calm::Trace(job) => &job.meant.task,
            Calm::Look(task, _) | Calm::FindCallers(task, _) | Calm::Recompile(task, _) => task,
        }
    }
}

impl Task {
    /// Whether its session is there.
    fn is_in_force(&self) -> bool {
        self.trace.session() == self.session
    }

    /// Records the outcome of one of the session's methods.
    pub(super) fn became(&self, index: usize, outcome: Result<i32, String>) {
        self.trace.became(self.session, index, outcome);
    }

    /// Looks at a module that is loaded. Returns its file, and why nothing of it is traced, if so;
    /// nothing where it is not known, or its file is cut short.
    pub(super) fn look_at<'rt, C: MayTriggerGc>(
        &self,
        cx: &Cx<'rt, C>,
        module: ModuleId<'rt>,
    ) -> Option<(Arc<str>, Option<&'static str>)> {
        let facts = self.clr.module(module.raw())?;
        if facts.is_cut_short() {
            // The runtime would read what is not there any more.
            return None;
        }
        let about = cx.info().get_module_info2(cx, module).ok()??;
        Some((
            facts.path.as_str().into(),
            why_not(&facts.path, about.flags),
        ))
    }

    /// Whether a module is one that stays, and whose metadata is there and does not change.
    fn can_read<'rt>(&self, cx: &Cx<'rt, RejitThread>, key: ModuleKey) -> bool {
        cx.info().id(key).is_some_and(|module| {
            let looked_at = self.clr.while_loaded(module, || self.look_at(cx, module));
            matches!(looked_at, Some(Some((_, None))))
        })
    }

    fn say(&self, note: String) {
        if self.is_in_force() {
            self.events.tell(EventNews::Note(note));
        }
    }
}
