//! Work queue of the ReJIT thread, and the list of methods that have probes.
//!
//! See `requests` for the thread. Invariants: a body is ready before it is requested. Each step
//! examines one module or makes about one request. A module that is being loaded comes first, since
//! a thread waits for it; reverting methods to their own IL comes last.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use corprof::context::RejitThread;
use corprof::{Cx, Hresult, ModuleKey, PreparedBodies, RejitFlags, Token};

use super::bodies::{Bodies, MethodRequest, PreparedModule};
use super::inlining::Inlining;
use super::pace::{RequestKind, RequestPace};
use super::requests::{ModuleMatches, RequestContext, TraceCommand};
use super::table::{self, NEVER};
use super::{MatchedMethod, ModuleAge, callers, describe_error};

/// Maximum wait for compilations under way before a request.
const COMPILATION_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two looks at them.
const COMPILATION_PAUSE: Duration = Duration::from_millis(1);

/// A method that was requested.
#[derive(Clone, Copy)]
struct ChangedMethod {
    method: (ModuleKey, Token),
    kind: RequestKind,
    /// Its number, if its calls are counted.
    number: Option<i32>,
}

impl ChangedMethod {
    /// Stops counting its calls.
    fn stop(&self) {
        if let Some(method) = self.number.and_then(table::method) {
            method.min_ns.store(NEVER, Relaxed);
        }
    }
}

/// The queued jobs, and the methods that have probes.
pub(super) struct TraceWork<'a, 'rt> {
    bodies: Bodies<'a>,
    inlining: &'a Inlining,
    /// Start of the wait for compilations under way, if there is one.
    waits_since: Option<Instant>,
    /// Jobs of modules that are being loaded.
    urgent: VecDeque<ModuleJob<'rt>>,
    background: VecDeque<BackgroundWork<'rt>>,
    changed: Vec<ChangedMethod>,
    /// Methods to revert to their own IL soon, and those to revert when nothing else is queued.
    leaving: VecDeque<ChangedMethod>,
    reverts: VecDeque<ChangedMethod>,
    /// Number of methods that could not be reverted, and the receiver of the result.
    not_reverted: usize,
    reverted: Option<SyncSender<Option<String>>>,
    pace: RequestPace,
}

/// Work for which no thread waits.
enum BackgroundWork<'rt> {
    /// Match the methods of a module against the patterns.
    Look(RequestContext, ModuleKey),
    Trace(Box<ModuleJob<'rt>>),
    /// Find callers in these modules, which were loaded before the session, that may contain
    /// inlined copies of traced methods.
    FindCallers(RequestContext, Vec<ModuleKey>),
    Recompile(RequestContext, Callers),
}

type Callers = VecDeque<(ModuleKey, Token)>;

/// A module whose methods are being traced.
struct ModuleJob<'rt> {
    matches: ModuleMatches,
    /// Remaining methods: state machines after their kickoffs, those with code first, as they may
    /// be called often, and those with fast requests first.
    left: VecDeque<(usize, MatchedMethod)>,
    module: Option<PreparedModule<'rt>>,
    /// Whether it has come after the first methods of all modules.
    has_given_way: bool,
    /// Searched when no methods are left.
    callers: Option<Callers>,
    done: Option<SyncSender<()>>,
}

impl<'rt> ModuleJob<'rt> {
    fn new(mut matches: ModuleMatches, done: Option<SyncSender<()>>) -> ModuleJob<'rt> {
        let mut left = std::mem::take(&mut matches.methods);
        left.sort_by_key(|(_, wanted)| {
            let is_state_machine = wanted.is_state_machine();
            let has_code = matches.has_code(wanted);
            (is_state_machine, !has_code, RequestKind::of(wanted))
        });
        ModuleJob {
            matches,
            left: left.into(),
            module: None,
            has_given_way: false,
            callers: None,
            done,
        }
    }

    /// Whether other modules come first now, as its methods with code are done.
    fn gives_way(&self) -> bool {
        let next = self.left.front();
        !self.has_given_way && next.is_some_and(|(_, wanted)| !self.matches.has_code(wanted))
    }

    /// Wakes the waiting thread.
    fn end(self) {
        if let Some(done) = self.done {
            let _nobody_waits = done.send(());
        }
    }
}

impl<'a, 'rt> TraceWork<'a, 'rt> {
    pub(super) fn new(bodies: &'a PreparedBodies, inlining: &'a Inlining) -> TraceWork<'a, 'rt> {
        TraceWork {
            bodies: Bodies::new(bodies),
            inlining,
            waits_since: None,
            urgent: VecDeque::new(),
            background: VecDeque::new(),
            changed: Vec::new(),
            leaving: VecDeque::new(),
            reverts: VecDeque::new(),
            not_reverted: 0,
            reverted: None,
            pace: RequestPace::default(),
        }
    }

    pub(super) fn take(&mut self, command: TraceCommand) {
        match command {
            TraceCommand::Trace(matches, done) => {
                self.urgent.push_back(ModuleJob::new(*matches, Some(done)))
            }
            TraceCommand::Begin(task, modules) => {
                let looks = modules.iter();
                self.background
                    .extend(looks.map(|key| BackgroundWork::Look(task.clone(), *key)));
                self.background
                    .push_back(BackgroundWork::FindCallers(task, modules));
            }
            TraceCommand::LeaveOut(module, token) => {
                let is_it = |changed: &mut ChangedMethod| changed.method == (module, token);
                let leaving: Vec<ChangedMethod> = self.changed.extract_if(.., is_it).collect();
                leaving.iter().for_each(ChangedMethod::stop);
                self.leaving.extend(leaving.first());
            }
            TraceCommand::Revert(done) => {
                self.urgent.drain(..).for_each(ModuleJob::end);
                self.background.clear();
                self.allow_inlining();
                self.bodies.may_be_inlined.clear();
                self.changed.iter().for_each(ChangedMethod::stop);
                // A module that was reported twice is requested twice, and reverted once.
                let mut seen: HashSet<_> = self.reverts.iter().map(|one| one.method).collect();
                self.changed.sort_by_key(|changed| changed.kind);
                let changed = self.changed.drain(..);
                self.reverts
                    .extend(changed.filter(|one| seen.insert(one.method)));
                self.not_reverted = 0;
                self.reverted = Some(done);
                self.settle_reverts();
            }
            // The loop handles it.
            TraceCommand::End(_) => {}
        }
    }

    /// Does the next small part of the work. Returns the pause after it, or `None` to wait for a
    /// command.
    pub(super) fn step(&mut self, cx: &mut Cx<'rt, RejitThread>) -> Option<Duration> {
        if let Some(mut job) = self.urgent.pop_front() {
            match self.trace(cx, &mut job) {
                false => self.urgent.push_front(job),
                true => job.end(),
            }
            return Some(Duration::ZERO);
        }
        if !self.leaving.is_empty() {
            self.revert(cx);
        } else if let Some(background) = self.background.pop_front() {
            let (trace, session) = (background.task().trace, background.task().session);
            if background.makes_requests() && !self.inlining.refuse() {
                let since = *self.waits_since.get_or_insert_with(Instant::now);
                if since.elapsed() < COMPILATION_TIMEOUT {
                    self.background.push_front(background);
                    return Some(COMPILATION_PAUSE);
                }
                background.give_up();
            } else if let Some(rest) = self.go_on(cx, background) {
                self.background.push_front(rest);
            }
            self.allow_inlining();
            if self.background.is_empty() {
                trace.settled(session);
            }
        } else if !self.reverts.is_empty() {
            self.revert(cx);
        } else {
            return None;
        }
        Some(self.pace.pause())
    }

    /// Lets compilations inline again, after a request.
    fn allow_inlining(&mut self) {
        self.waits_since = None;
        self.inlining.allow();
    }

    /// Does a part of the work for which no thread waits. Returns the rest.
    fn go_on(
        &mut self,
        cx: &mut Cx<'rt, RejitThread>,
        background: BackgroundWork<'rt>,
    ) -> Option<BackgroundWork<'rt>> {
        match background {
            BackgroundWork::Look(task, key) => {
                task.trace.searched(task.session);
                let module = cx.info().id(key)?;
                let matches = task
                    .trace
                    .matched_methods(&task, cx, (module, ModuleAge::Loaded))?;
                Some(BackgroundWork::Trace(Box::new(ModuleJob::new(
                    matches, None,
                ))))
            }
            BackgroundWork::Trace(mut job) if job.gives_way() => {
                job.has_given_way = true;
                // Callers are found last, when all methods have been requested.
                let last = self.background.len().saturating_sub(1);
                self.background.insert(last, BackgroundWork::Trace(job));
                None
            }
            BackgroundWork::Trace(mut job) => match self.trace(cx, &mut job) {
                false => Some(BackgroundWork::Trace(job)),
                true => None,
            },
            BackgroundWork::FindCallers(task, mut modules) => {
                modules.retain(|key| task.can_read(cx, *key));
                let inlined = std::mem::take(&mut self.bodies.may_be_inlined);
                match callers::of(cx, &inlined, &modules) {
                    Ok(found) => Some(BackgroundWork::Recompile(task, found.into())),
                    Err(error) => {
                        task.report(format!(
                            "callers of traced methods: {}",
                            describe_error(error)
                        ));
                        None
                    }
                }
            }
            BackgroundWork::Recompile(task, mut callers) => {
                if let Err(error) = self.recompile(cx, &mut callers) {
                    task.report(format!(
                        "callers of traced methods: {}",
                        describe_error(error)
                    ));
                    return None;
                }
                (!callers.is_empty()).then_some(BackgroundWork::Recompile(task, callers))
            }
        }
    }

    /// Traces some methods of a module. Returns true when all are done.
    fn trace(&mut self, cx: &mut Cx<'rt, RejitThread>, job: &mut ModuleJob<'rt>) -> bool {
        if !job.matches.task.is_in_force() {
            return true;
        }
        match self.try_trace(cx, job) {
            Ok(false) => false,
            Ok(true) => {
                let notes = job.module.as_ref().map(PreparedModule::notes);
                let notes = notes.unwrap_or_default().join("; ");
                if !notes.is_empty() {
                    let note = format!("methods of {}: {notes}", job.matches.file());
                    job.matches.task.report(note);
                }
                true
            }
            Err(error) => {
                for (index, _) in job.left.drain(..) {
                    job.matches
                        .task
                        .record_outcome(index, Err(describe_error(error)));
                }
                let note = format!(
                    "methods of {}: {}",
                    job.matches.file(),
                    describe_error(error)
                );
                job.matches.task.report(note);
                true
            }
        }
    }

    fn try_trace(
        &mut self,
        cx: &mut Cx<'rt, RejitThread>,
        job: &mut ModuleJob<'rt>,
    ) -> corprof::Result<bool> {
        let module = match &mut job.module {
            Some(module) => module,
            none => {
                let ModuleMatches {
                    task, module, age, ..
                } = &job.matches;
                let id = cx.info().id(*module);
                if id.is_some_and(|id| task.clr.may_be_updated(cx, id)) {
                    return Err(Hresult::CORPROF_E_MODULE_IS_ENC);
                }
                none.insert(PreparedModule::open(cx, *module, *age)?)
            }
        };
        let kinds = job.left.iter().map(|(_, wanted)| RequestKind::of(wanted));
        if let Some((kind, count)) = self.pace.next(kinds) {
            let some = job.left.drain(..count).collect();
            let began = Instant::now();
            self.request(cx, &job.matches.task, module, kind, some);
            self.pace.after(kind, count, began.elapsed());
            return Ok(false);
        }
        let callers = match &mut job.callers {
            Some(callers) => callers,
            none => {
                let found = module.async_callers().into_iter();
                none.insert(found.map(|token| (job.matches.module, token)).collect())
            }
        };
        self.recompile(cx, callers)?;
        Ok(callers.is_empty())
    }

    /// Prepares some methods and requests them.
    ///
    /// `ApplyMetaData` is not called: bodies need signatures and references to members only, whose
    /// tokens code may use at once, and on .NET 11.0.0 the call makes precompiled code of the
    /// module fail.
    fn request(
        &mut self,
        cx: &mut Cx<'rt, RejitThread>,
        task: &RequestContext,
        module: &mut PreparedModule<'rt>,
        kind: RequestKind,
        methods: Vec<(usize, MatchedMethod)>,
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
        // Their bodies are prepared again.
        let tokens: HashSet<Token> = asked.iter().map(|asked| asked.token).collect();
        let key = module.key;
        self.reverts
            .retain(|ChangedMethod { method, .. }| method.0 != key || !tokens.contains(&method.1));
        let requested: corprof::Result<()> = (|| {
            if !with.is_empty() {
                // A method into which another requested method was inlined is bound twice in one
                // request, and the second binding counts. So the runtime must also request the
                // bodies of inliners.
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
        for MethodRequest { token, counts } in asked {
            let number = counts.map(|(_, number)| number);
            self.changed.push(ChangedMethod {
                method: (key, token),
                kind,
                number,
            });
            if let Some((index, number)) = counts {
                let answer = requested.map(|()| number);
                task.record_outcome(index, answer.map_err(describe_error));
            }
        }
    }

    /// Requests some callers of traced methods. They keep their own IL, as no body is prepared for
    /// them, and traced methods are not inlined again.
    fn recompile(
        &mut self,
        cx: &mut Cx<'rt, RejitThread>,
        callers: &mut Callers,
    ) -> corprof::Result<()> {
        let kind = RequestKind::Plain;
        let count = callers.len().min(self.pace.size(kind));
        let some = callers.drain(..count);
        // Methods of this session have been recompiled already.
        let done: HashSet<_> = self.changed.iter().map(|changed| changed.method).collect();
        let some: Vec<_> = some.filter(|method| !done.contains(method)).collect();
        let info = cx.info();
        let mut methods = Vec::with_capacity(some.len());
        for (module, token) in &some {
            // One that still waits for its revert from the last session loses its probes here.
            self.bodies.asked.remove(*module, *token);
            methods.extend(info.id(*module).map(|module| (module, *token)));
        }
        if methods.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        info.request_rejit(cx, &methods)?;
        self.pace.after(kind, count, began.elapsed());
        self.reverts
            .retain(|ChangedMethod { method, .. }| !some.contains(method));
        self.changed
            .extend(some.into_iter().map(|method| ChangedMethod {
                method,
                kind,
                number: None,
            }));
        Ok(())
    }

    /// Reverts some of the methods with probes.
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

    /// Replies to the waiting thread, once all methods have their own code.
    fn settle_reverts(&mut self) {
        if !self.reverts.is_empty() {
            return;
        }
        let failed = std::mem::take(&mut self.not_reverted);
        if let Some(done) = self.reverted.take() {
            let _nobody_waits = done.send((failed > 0).then(|| {
                format!(
                    "{failed} traced methods did not get their own code back; they no longer count \
                     calls"
                )
            }));
        }
    }
}

impl BackgroundWork<'_> {
    /// Whether its next step may request ReJIT of methods that may be inlined.
    fn makes_requests(&self) -> bool {
        matches!(
            self,
            BackgroundWork::Trace(_) | BackgroundWork::Recompile(..)
        )
    }

    /// Records that it was not done, because a compilation under way did not end.
    fn give_up(self) {
        const WHY: &str = "a compilation that may inline it did not end; record again";
        match self {
            BackgroundWork::Trace(mut job) => {
                for (index, _) in job.left.drain(..) {
                    job.matches.task.record_outcome(index, Err(WHY.into()));
                }
            }
            rest => rest
                .task()
                .report(format!("callers of traced methods: {WHY}")),
        }
    }

    fn task(&self) -> &RequestContext {
        match self {
            BackgroundWork::Trace(job) => &job.matches.task,
            BackgroundWork::Look(task, _)
            | BackgroundWork::FindCallers(task, _)
            | BackgroundWork::Recompile(task, _) => task,
        }
    }
}
