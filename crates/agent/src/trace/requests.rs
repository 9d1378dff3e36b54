//! The thread that asks a CLR for methods to be compiled again, with probes or as they were.
//!
//! One for each CLR in which something is traced, from the first session that traces to the CLR's end: a request makes its
//! thread one of the runtime's, so it is neither the agent thread nor one of the program. It sleeps in between. Invariants:
//! a body is ready before it is asked for; who waits for the thread does so for a bounded time, and holds no lock.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use corprof::context::{Callback, Context, RejitThread};

use corprof::il::{
    Body, Caution, LocalSignature, MethodSignature, Probe, ProbeCall, Probes, Type, probe_signature,
};

use corprof::{
    Cx, FunctionControl, Info, MetadataEmit, MetadataImport, ModuleId, ModuleKey, PreparedBodies,
    PreparedBody, RejitCx, RejitFlags, Token, enable_rejit,
};

use super::table::{self, NEVER};
use super::{Trace, Wanted, lock, probes};
use crate::clr::Clr;
use crate::events::{EventNews, Events};

/// How long a program's thread waits until the methods of a module that it loads are traced, and the agent thread until they
/// are as they were. It takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same, for the end of the thread in a CLR's shutdown.
const FAREWELL: Duration = Duration::from_secs(1);
/// Larger bodies are left alone.
const MAX_IL: usize = 1 << 20;

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
        module: ModuleKey,
        methods: Vec<(usize, Wanted)>,
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
        module: ModuleKey,
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
    let mut bodies = Bodies {
        asked: bodies,
        ready: HashMap::new(),
    };
    // What has probes now.
    let mut traced: Vec<(ModuleKey, Token, i32)> = Vec::new();
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
                            trace.became(index, Err(format!("the runtime answers {error}")));
                        }
                        Some(format!("the runtime answers {error}"))
                    })
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

/// Bodies with probes.
struct Bodies<'a> {
    /// Those that were asked for: the runtime also asks for those of methods that what is traced was inlined into, which are to
    /// stay as they are.
    asked: &'a PreparedBodies,
    /// All that there are: what is traced again has the body that it had.
    ready: HashMap<(ModuleKey, Token), PreparedBody>,
}

/// Takes probes out of all that has them. What did not go, for users.
fn revert<'rt>(
    cx: &mut Cx<'rt, RejitThread>,
    bodies: &Bodies<'_>,
    traced: &[(ModuleKey, Token, i32)],
) -> Option<String> {
    let info = cx.info();
    let mut methods = Vec::with_capacity(traced.len());
    for (module, token, number) in traced {
        if let Some(method) = table::method(*number) {
            method.min_ns.store(NEVER, Relaxed);
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

/// Prepares each method and asks for all of them at once. What else a user should know.
fn request<'rt>(
    cx: &mut Cx<'rt, RejitThread>,
    (trace, clr): (&Trace, &Clr),
    bodies: &mut Bodies<'_>,
    key: ModuleKey,
    methods: Vec<(usize, Wanted)>,
    traced: &mut Vec<(ModuleKey, Token, i32)>,
) -> corprof::Result<Option<String>> {
    let info = cx.info();
    let unknown = corprof::Hresult::CORPROF_E_DATAINCOMPLETE;
    let module = info.id(key).ok_or(unknown)?;
    // Writing first: it changes the form of the metadata.
    let emit = info.get_module_meta_data_emit(cx, module)?.ok_or(unknown)?;
    let import = info.get_module_meta_data(cx, module)?.ok_or(unknown)?;
    let module = Module {
        info,
        key,
        module,
        import,
        signatures: Signatures::new(&emit)?,
        emit,
    };
    let mut asked = Vec::new();
    for (index, wanted) in methods {
        match module.prepare(cx, (trace, clr), bodies, &wanted) {
            Ok(number) => asked.push((index, wanted.token, number)),
            Err(why) => trace.became(index, Err(why)),
        }
    }
    info.apply_meta_data(cx, module.module)?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for (_, token, _) in &asked {
        let id = (module.module, *token);
        match info.inliners_are_safe(cx, module.module, *token) {
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
        Ok(())
    })();
    for (index, token, number) in asked {
        traced.push((key, token, number));
        trace.became(
            index,
            match requested {
                Ok(()) => Ok(number),
                Err(error) => Err(format!("the runtime answers {error}")),
            },
        );
    }
    let precompiled = info.get_module_info2(cx, module.module)?;
    let precompiled =
        precompiled.is_some_and(|about| about.flags.contains(corprof::ModuleFlags::NGEN));
    Ok((precompiled && !without.is_empty()).then(|| {
        format!(
            "{} of them may have copies inlined into precompiled code, whose calls are not counted (.NET before 7)",
            without.len()
        )
    }))
}

/// A module whose methods are prepared.
struct Module<'rt> {
    info: Info<'rt>,
    key: ModuleKey,
    module: ModuleId<'rt>,
    import: MetadataImport<'rt>,
    emit: MetadataEmit<'rt>,
    signatures: Signatures,
}

/// The probes' signatures, as tokens of one module.
struct Signatures {
    enter: Token,
    leave: Token,
}

impl Signatures {
    fn new(emit: &MetadataEmit<'_>) -> corprof::Result<Signatures> {
        let enter = probe_signature(ProbeCall::C, Type::INT64, vec![Type::INT32]);
        let leave = probe_signature(ProbeCall::C, Type::VOID, vec![Type::INT64, Type::INT32]);
        Ok(Signatures {
            enter: emit.calli(&enter)?,
            leave: emit.calli(&leave)?,
        })
    }
}

impl<'rt> Module<'rt> {
    /// Has a body with probes ready for a method. Answers its number, or why there is none.
    fn prepare(
        &self,
        cx: &mut Cx<'rt, RejitThread>,
        (trace, clr): (&Trace, &Clr),
        bodies: &mut Bodies<'_>,
        wanted: &Wanted,
    ) -> Result<i32, String> {
        let key = (self.key, wanted.token);
        let ready = bodies.ready.get(&key).cloned();
        let wrapped = match ready {
            Some(_) => None,
            None => Some(self.wrapped(cx, wanted)?),
        };
        let full = || {
            format!(
                "{} methods have been traced in this process",
                table::MAX_METHODS
            )
        };
        let (number, method) = trace.number_of(self.key, wanted).ok_or_else(full)?;
        let body = match (ready, wrapped) {
            (Some(ready), _) => ready,
            (None, Some(finish)) => {
                let body = finish(self, number)?;
                clr.rewrites(self.module.raw(), wanted.token.0, &body.map);
                bodies.ready.insert(key, body.clone());
                body
            }
            (None, None) => return Err("there is no body for it".to_owned()),
        };
        bodies.asked.insert(self.key, wanted.token, body);
        method.min_ns.store(wanted.min_ns.min(NEVER - 1), Relaxed);
        Ok(number)
    }

    /// What makes a method's body, once it has a number; or why that is not done.
    fn wrapped(
        &self,
        cx: &mut Cx<'rt, RejitThread>,
        wanted: &Wanted,
    ) -> Result<impl FnOnce(&Module<'rt>, i32) -> Result<PreparedBody, String> + use<'rt>, String>
    {
        let text = |error: corprof::Hresult| format!("the runtime answers {error}");
        let il = self
            .info
            .get_il_function_body(cx, self.module, wanted.token);
        let il = il.map_err(text)?.ok_or("the runtime has no IL of it yet")?;
        if il.len() > MAX_IL {
            return Err(format!("its code is larger than {MAX_IL} bytes"));
        }
        let unread = |error: corprof::il::ReadError| format!("its code is not understood: {error}");
        let body = Body::read(&il).map_err(unread)?;
        let signature = MethodSignature::read(&wanted.signature).map_err(unread)?;
        if let Some(refusal) = body.refusal(&signature) {
            return Err(refusal.text().to_owned());
        }
        if body.cautions().contains(&Caution::NeverReturns) {
            // Callers are compiled for that.
            return Err("it never returns, and callers are compiled for that".to_owned());
        }
        let locals = match body.locals {
            Some(token) => {
                let bytes = self.import.get_sig_from_token(token).map_err(text)?;
                LocalSignature::read(&bytes).map_err(unread)?
            }
            None => LocalSignature::default(),
        };
        Ok(move |module: &Module<'rt>, number: i32| {
            let tokens = &module.signatures;
            let ends = |function: extern "C" fn(i64, i32)| {
                Probe::calli(1, &[number], function as usize, tokens.leave)
            };
            let enter = probes::enter as extern "C" fn(i32) -> i64;
            let probes = Probes {
                enter: Probe::calli(0, &[number], enter as usize, tokens.enter),
                leave: ends(probes::leave),
                fault: ends(probes::fault),
                token: Some(Type::INT64),
            };
            let wrapped = body
                .wrap(&signature, &locals, &probes)
                .map_err(|refusal| refusal.text().to_owned())?;
            let token = match wrapped.locals() {
                Some(locals) => module.emit.locals(locals).map_err(text)?,
                None => Token(0),
            };
            let written = wrapped.with_locals(token).write();
            let written =
                written.map_err(|error| format!("its code cannot be written: {error}"))?;
            Ok(PreparedBody::new(written))
        })
    }
}
