//! Reads methods' IL, adds probes, and keeps the new bodies until the runtime requests them.
//!
//! Runs on the ReJIT thread only (see `requests`). Invariants: a method that is traced again gets
//! the same body. A method that is not rewritten has a recorded reason. Of an async method both
//! halves (kickoff and `MoveNext`) are rewritten, or the kickoff alone as an ordinary method.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;

use corprof::context::RejitThread;
use corprof::il::{
    Body, Caution, LocalSignature, MethodSignature, Probe, ProbeCall, Probes, Type, probe_signature,
};
use corprof::{
    Cx, Hresult, Info, MetadataEmit, MetadataImport, ModuleFlags, ModuleId, ModuleKey,
    PreparedBodies, PreparedBody, Token,
};

use super::asyncs::{self, Kickoff};
use super::requests::RequestContext;
use super::table::{self, NEVER};
use super::{MatchedMethod, ModuleAge, Trace, callers, describe_error, probes};
use crate::clr::Clr;
use crate::clr::async_types::IS_RUNTIME_ASYNC;

/// Maximum size of IL, bytes. Larger bodies are not rewritten.
const MAX_IL: usize = 1 << 20;
/// Maximum number of methods that a note names.
const MAX_NAMED: usize = 10;
/// First major version whose JIT compiles async versions of methods that return tasks.
const ASYNC_VERSIONS: u16 = 11;

/// Bodies with probes.
pub(super) struct Bodies<'a> {
    /// The requested bodies. The runtime also requests those of methods into which a traced method
    /// was inlined; these stay unchanged.
    pub(super) asked: &'a PreparedBodies,
    ready: HashMap<ReadyBody, PreparedBody>,
    /// The `MoveNext` of async methods, or the reason why there is none.
    seconds: HashMap<(ModuleKey, Token), Result<Option<Token>, String>>,
    /// Modules with traced methods of which runtime-async callers may contain inlined copies.
    pub(super) may_be_inlined: HashSet<ModuleKey>,
}

/// Key of a prepared body.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct ReadyBody {
    module: ModuleKey,
    token: Token,
    /// Whether its own calls are counted, and the number of the method whose end it reports.
    counts: bool,
    ends: Option<i32>,
}

impl<'a> Bodies<'a> {
    pub(super) fn new(asked: &'a PreparedBodies) -> Bodies<'a> {
        Bodies {
            asked,
            ready: HashMap::new(),
            seconds: HashMap::new(),
            may_be_inlined: HashSet::new(),
        }
    }
}

/// A method to request.
pub(super) struct MethodRequest {
    pub(super) token: Token,
    /// Index among the session's methods, and its number. `None` for a method that only reports the
    /// end of another one.
    pub(super) counts: Option<(usize, i32)>,
}

/// A body as in the module.
struct ReadBody {
    body: Body,
    /// The return type is that of the code: the awaited type for a method compiled with runtime
    /// async.
    signature: MethodSignature,
    locals: LocalSignature,
    is_runtime_async: bool,
}

/// A `MoveNext`, the second half of an async method.
struct SecondHalf {
    /// Number of the kickoff.
    number: i32,
    /// The body with probes at its completion, if it had to be made for this check.
    made: Option<ReadBody>,
}

/// A module whose methods are prepared.
pub(super) struct PreparedModule<'rt> {
    info: Info<'rt>,
    pub(super) key: ModuleKey,
    pub(super) id: ModuleId<'rt>,
    import: MetadataImport<'rt>,
    emit: MetadataEmit<'rt>,
    signatures: BodySignatures,
    runtime: u16,
    age: ModuleAge,
    is_precompiled: bool,
    /// State machines that report the ends of the methods with these numbers.
    halves: BTreeMap<Token, i32>,
    /// Runtime-async methods of this module that contain inlined copies of traced methods; and
    /// whether any of them may.
    callers: BTreeSet<Token>,
    any_may_call: bool,
    /// Number of methods whose inlined copies are not requested.
    pub(super) without_inliners: usize,
    /// Methods that return a task whose end is not observed, by reason.
    to_first_await: BTreeMap<String, Vec<String>>,
}

/// The probes' signatures, as tokens of one module.
struct BodySignatures {
    enter: Token,
    leave: Token,
    asyncs: asyncs::AsyncSignatures,
}

impl BodySignatures {
    fn new(emit: &MetadataEmit<'_>) -> corprof::Result<BodySignatures> {
        const LONG: Type = Type::INT64;
        const INT: Type = Type::INT32;
        let calli = |returns, parameters: &[Type]| {
            emit.calli(&probe_signature(ProbeCall::C, returns, parameters.to_vec()))
        };
        Ok(BodySignatures {
            enter: calli(LONG, &[INT])?,
            leave: calli(Type::VOID, &[LONG, INT])?,
            asyncs: asyncs::AsyncSignatures {
                left: calli(Type::VOID, &[LONG, INT, INT])?,
                completes: calli(Type::VOID, &[INT, INT, INT])?,
            },
        })
    }
}

impl<'rt> PreparedModule<'rt> {
    /// # Errors
    /// The runtime's error.
    pub(super) fn open(
        cx: &mut Cx<'rt, RejitThread>,
        key: ModuleKey,
        age: ModuleAge,
    ) -> corprof::Result<PreparedModule<'rt>> {
        let info = cx.info();
        let unknown = Hresult::CORPROF_E_DATAINCOMPLETE;
        let id = info.id(key).ok_or(unknown)?;
        // Writing first: it changes the form of the metadata.
        let emit = info.get_module_meta_data_emit(cx, id)?.ok_or(unknown)?;
        let import = info.get_module_meta_data(cx, id)?.ok_or(unknown)?;
        Ok(PreparedModule {
            info,
            key,
            id,
            import,
            signatures: BodySignatures::new(&emit)?,
            emit,
            runtime: info.get_runtime_information(cx)?.major,
            age,
            is_precompiled: info
                .get_module_info2(cx, id)?
                .is_some_and(|about| about.flags.contains(ModuleFlags::NGEN)),
            halves: BTreeMap::new(),
            callers: BTreeSet::new(),
            any_may_call: false,
            without_inliners: 0,
            to_first_await: BTreeMap::new(),
        })
    }

    fn metadata(&self) -> asyncs::ModuleMetadata<'_, 'rt> {
        asyncs::ModuleMetadata {
            import: &self.import,
            emit: &self.emit,
        }
    }

    /// Returns the notes for users on the requested methods.
    pub(super) fn notes(&self) -> Vec<String> {
        let copies = (self.is_precompiled && self.without_inliners > 0).then(|| {
            format!(
                "{} of them may have copies inlined into precompiled code, whose calls are not counted (.NET before 7)",
                self.without_inliners
            )
        });
        let note = |(why, methods): (&String, &Vec<String>)| {
            let mut named = methods.get(..MAX_NAMED).unwrap_or(methods).join(", ");
            if let more @ 1.. = methods.len().saturating_sub(MAX_NAMED) {
                named += &format!(" and {more} more");
            }
            format!("timed until they return, which may be before they complete: {named} ({why})")
        };
        self.to_first_await.iter().map(note).chain(copies).collect()
    }

    /// Prepares bodies with probes for methods, and for the state machines that report the ends of
    /// async ones. Failures are recorded per method.
    pub(super) fn prepare(
        &mut self,
        cx: &mut Cx<'rt, RejitThread>,
        task: &RequestContext,
        bodies: &mut Bodies<'_>,
        methods: Vec<(usize, MatchedMethod)>,
    ) -> Vec<MethodRequest> {
        let (trace, clr) = (task.trace, &task.clr);
        let mut seconds: BTreeMap<Token, SecondHalf> = BTreeMap::new();
        let mut firsts = Vec::new();
        for (index, wanted) in methods {
            match self.first(cx, trace, bodies, &wanted, &mut seconds) {
                Ok((number, read)) => firsts.push((index, wanted, number, read)),
                Err(why) => task.record_outcome(index, Err(why)),
            }
        }
        // `MoveNext` first: a call of a running method that began with probes then also ends with
        // them.
        let mut asked = Vec::new();
        let mut own = Vec::new();
        for (index, wanted, number, read) in firsts {
            let known = self.halves.get(&wanted.token);
            let known = known.map(|number| SecondHalf {
                number: *number,
                made: None,
            });
            let second = seconds.remove(&wanted.token).or(known);
            match self.own(cx, clr, bodies, &wanted, number, (read, second)) {
                Ok(body) => {
                    bodies.asked.insert(self.key, wanted.token, body);
                    if let Some(method) = table::method(number) {
                        method.min_ns.store(wanted.min_ns.min(NEVER - 1), Relaxed);
                    }
                    if self.may_be_inlined(&wanted.signature) {
                        self.any_may_call = true;
                        bodies.may_be_inlined.insert(self.key);
                        trace.may_be_inlined(&wanted);
                    }
                    own.push(MethodRequest {
                        token: wanted.token,
                        counts: Some((index, number)),
                    });
                }
                Err(why) => task.record_outcome(index, Err(why)),
            }
        }
        for (token, second) in seconds {
            let number = second.number;
            if let Ok(body) = self.second(cx, clr, bodies, token, second) {
                bodies.asked.insert(self.key, token, body);
                self.halves.insert(token, number);
                asked.push(MethodRequest {
                    token,
                    counts: None,
                });
            }
        }
        asked.extend(own);
        asked
    }

    /// Returns the number of a method, its body if that had to be read, and its `MoveNext`, if any.
    fn first(
        &mut self,
        cx: &mut Cx<'rt, RejitThread>,
        trace: &Trace,
        bodies: &mut Bodies<'_>,
        wanted: &MatchedMethod,
        seconds: &mut BTreeMap<Token, SecondHalf>,
    ) -> Result<(i32, Option<ReadBody>), String> {
        let key = (self.key, wanted.token);
        let full = || {
            format!(
                "{} methods have been traced in this process",
                table::MAX_METHODS
            )
        };
        let known = bodies.seconds.get(&key).cloned();
        let (read, number, second, made) = match known {
            Some(second) => {
                let (number, _) = trace.number_of(self.key, wanted).ok_or_else(full)?;
                (None, number, second, None)
            }
            None => {
                let read = self.read(cx, wanted.token)?;
                if let Some(refusal) = read.body.refusal(&read.signature) {
                    return Err(refusal.text().to_owned());
                }
                if read.body.cautions().contains(&Caution::NeverReturns) {
                    // Callers are compiled for that.
                    return Err("it never returns, and callers are compiled for that".to_owned());
                }
                let (number, _) = trace.number_of(self.key, wanted).ok_or_else(full)?;
                let (second, made) = match self.kickoff(&read) {
                    None => (Ok(None), None),
                    Some(Err(why)) => (Err(why), None),
                    Some(Ok(kickoff)) => match self.completing(cx, &kickoff, number) {
                        Ok(made) => (Ok(Some(kickoff.move_next)), Some(made)),
                        Err(why) => (Err(why), None),
                    },
                };
                bodies.seconds.insert(key, second.clone());
                (Some(read), number, second, made)
            }
        };
        match second {
            Ok(None) => {}
            Ok(Some(token)) => {
                seconds.insert(token, SecondHalf { number, made });
            }
            Err(why) => {
                let name = format!("{}.{}", wanted.type_name, wanted.name);
                self.to_first_await.entry(why).or_default().push(name);
            }
        }
        Ok((number, read))
    }

    /// Whether runtime-async callers that were compiled before may hold inlined copies of a method.
    ///
    /// From .NET 11 on the JIT makes an async version of each method that returns a task, for
    /// callers that await it, and may inline that version. ReJIT looks callers up by the method
    /// itself, not by this version (`UpdateJitInlinerActiveILVersions`,
    /// `src/coreclr/vm/rejit.cpp`), so it does not find them.
    fn may_be_inlined(&self, signature: &[u8]) -> bool {
        self.runtime >= ASYNC_VERSIONS
            && self.age == ModuleAge::Loaded
            && MethodSignature::read(signature)
                .is_ok_and(|signature| asyncs::is_task(&self.import, &signature.return_type))
    }

    /// Finds runtime-async methods of this module that contain inlined copies of requested methods
    /// and that ReJIT does not find: precompiled ones, and see [`PreparedModule::may_be_inlined`].
    pub(super) fn look_for_callers(
        &mut self,
        cx: &mut Cx<'rt, RejitThread>,
        asked: &[MethodRequest],
    ) {
        if self.runtime < ASYNC_VERSIONS || !self.is_precompiled {
            return;
        }
        let (info, id) = (self.info, self.id);
        for method in asked {
            let found =
                info.enum_ngen_module_methods_inlining_this_method(cx, id, id, method.token);
            match found {
                Ok(Some((inliners, true))) => self
                    .callers
                    .extend(inliners.iter().map(|inliner| Token(inliner.method_id))),
                // An attached profiler is refused.
                _ => self.any_may_call = true,
            }
        }
    }

    /// Returns these callers for all requested methods.
    pub(super) fn async_callers(&mut self) -> BTreeSet<Token> {
        let mut callers = std::mem::take(&mut self.callers);
        match self.any_may_call {
            true => callers::runtime_async(&self.import).collect(),
            false => {
                callers.retain(|token| callers::is_runtime_async(&self.import, *token));
                callers
            }
        }
    }

    /// Returns the async method of which a body is the kickoff.
    fn kickoff(&self, read: &ReadBody) -> Option<Result<Kickoff, String>> {
        if read.is_runtime_async {
            // It is a single method, without a state machine.
            return None;
        }
        if read.returns_iterator(&self.import) {
            return Some(Err(
                "they return iterators, which continue after the call".to_owned()
            ));
        }
        asyncs::kickoff(&self.import, &read.body, self.runtime)
    }

    /// Returns the `MoveNext` of a method, with probes at its completion.
    fn completing(
        &self,
        cx: &mut Cx<'rt, RejitThread>,
        kickoff: &Kickoff,
        number: i32,
    ) -> Result<ReadBody, String> {
        let mut read = self.read(cx, kickoff.move_next)?;
        let signatures = self.signatures.asyncs;
        let (body, locals) = (&mut read.body, &mut read.locals);
        kickoff.complete(self.metadata(), body, locals, signatures, number)?;
        Ok(read)
    }

    /// Prepares a method whose calls are counted, and which may also report the end of another one.
    fn own(
        &self,
        cx: &mut Cx<'rt, RejitThread>,
        clr: &Clr,
        bodies: &mut Bodies<'_>,
        wanted: &MatchedMethod,
        number: i32,
        (read, second): (Option<ReadBody>, Option<SecondHalf>),
    ) -> Result<PreparedBody, String> {
        let key = ReadyBody {
            module: self.key,
            token: wanted.token,
            counts: true,
            ends: second.as_ref().map(|second| second.number),
        };
        if let Some(ready) = bodies.ready.get(&key) {
            return Ok(ready.clone());
        }
        let read = match (second, read) {
            (Some(second), _) => self.made(cx, bodies, wanted.token, second)?,
            (None, Some(read)) => read,
            (None, None) => self.read(cx, wanted.token)?,
        };
        let is_async = matches!(
            bodies.seconds.get(&(self.key, wanted.token)),
            Some(Ok(Some(_)))
        );
        let kickoff = match is_async {
            true => self.kickoff(&read).and_then(Result::ok),
            false => None,
        };
        let body = self.wrapped(read, kickoff.as_ref(), number)?;
        clr.rewrites(self.id.raw(), wanted.token.0, &body.map);
        bodies.ready.insert(key, body.clone());
        Ok(body)
    }

    /// Prepares a method that only reports the end of another one.
    fn second(
        &self,
        cx: &mut Cx<'rt, RejitThread>,
        clr: &Clr,
        bodies: &mut Bodies<'_>,
        token: Token,
        second: SecondHalf,
    ) -> Result<PreparedBody, String> {
        let key = ReadyBody {
            module: self.key,
            token,
            counts: false,
            ends: Some(second.number),
        };
        if let Some(ready) = bodies.ready.get(&key) {
            return Ok(ready.clone());
        }
        let ReadBody {
            mut body, locals, ..
        } = self.made(cx, bodies, token, second)?;
        body.locals = Some(self.emit.locals(&locals).map_err(describe_error)?);
        body.fat_header = true;
        let body = written(&body)?;
        clr.rewrites(self.id.raw(), token.0, &body.map);
        bodies.ready.insert(key, body.clone());
        Ok(body)
    }

    /// Returns the body of a `MoveNext`. Makes it again if it was used up.
    fn made(
        &self,
        cx: &mut Cx<'rt, RejitThread>,
        bodies: &Bodies<'_>,
        token: Token,
        second: SecondHalf,
    ) -> Result<ReadBody, String> {
        if let Some(made) = second.made {
            return Ok(made);
        }
        let gone = || "its first half is not known any more".to_owned();
        let is_it = |found: &Result<Option<Token>, String>| *found == Ok(Some(token));
        let mut firsts = bodies.seconds.iter();
        let first = firsts.find(|((module, _), found)| *module == self.key && is_it(found));
        let ((_, first), _) = first.ok_or_else(gone)?;
        let read = self.read(cx, *first)?;
        let kickoff = self.kickoff(&read).ok_or_else(gone)??;
        self.completing(cx, &kickoff, second.number)
    }

    /// Reads a method's unchanged body.
    fn read(&self, cx: &mut Cx<'rt, RejitThread>, token: Token) -> Result<ReadBody, String> {
        let il = self.info.get_il_function_body(cx, self.id, token);
        let il = il
            .map_err(describe_error)?
            .ok_or("the runtime has no IL of it yet")?;
        if il.len() > MAX_IL {
            return Err(format!("its code is larger than {MAX_IL} bytes"));
        }
        let unread = |error: corprof::il::ReadError| format!("its code is not understood: {error}");
        let body = Body::read(&il).map_err(unread)?;
        let props = self
            .import
            .get_method_props(token)
            .map_err(describe_error)?;
        let mut signature = MethodSignature::read(&props.signature).map_err(unread)?;
        let is_runtime_async = props.implementation & IS_RUNTIME_ASYNC != 0;
        if is_runtime_async {
            signature.return_type = asyncs::awaited(&self.import, &signature.return_type).ok_or(
                "it is compiled with runtime async, and returns no task of the framework's",
            )?;
        }
        let locals = match body.locals {
            Some(token) => {
                let bytes = self
                    .import
                    .get_sig_from_token(token)
                    .map_err(describe_error)?;
                LocalSignature::read(&bytes).map_err(unread)?
            }
            None => LocalSignature::default(),
        };
        Ok(ReadBody {
            body,
            signature,
            locals,
            is_runtime_async,
        })
    }

    /// Returns a body with probes around it.
    fn wrapped(
        &self,
        read: ReadBody,
        kickoff: Option<&Kickoff>,
        number: i32,
    ) -> Result<PreparedBody, String> {
        let ReadBody {
            body,
            signature,
            locals,
            is_runtime_async,
        } = read;
        let tokens = &self.signatures;
        let ends = |function: extern "C" fn(i64, i32)| {
            Probe::calli(1, &[number], function as usize, tokens.leave)
        };
        // The local with the start time survives suspensions, as the method's own locals do, and a
        // resumption continues behind the enter probe. So each probe runs once per call.
        let (enter, leave, fault): (extern "C" fn(i32) -> i64, _, _) = match is_runtime_async {
            false => (probes::enter, ends(probes::leave), ends(probes::fault)),
            true => (
                probes::enter_async,
                ends(probes::leave_async),
                ends(probes::fault_async),
            ),
        };
        let probes = Probes {
            enter: Probe::calli(0, &[number], enter as usize, tokens.enter),
            leave,
            fault,
            token: Some(Type::INT64),
        };
        let wrapped = match kickoff {
            None => body.wrap(&signature, &locals, &probes),
            Some(kickoff) => {
                let returns = &signature.return_type;
                let outcome = kickoff.outcome(self.metadata(), returns, tokens.asyncs, number)?;
                body.wrap_asking(&signature, &locals, &probes, &outcome)
            }
        };
        let wrapped = wrapped.map_err(|refusal| refusal.text().to_owned())?;
        let token = match wrapped.locals() {
            Some(locals) => self.emit.locals(locals).map_err(describe_error)?,
            None => Token(0),
        };
        written(&wrapped.with_locals(token))
    }
}

fn written(body: &Body) -> Result<PreparedBody, String> {
    let written = body.write();
    let written = written.map_err(|error| format!("its code cannot be written: {error}"))?;
    Ok(PreparedBody::new(written))
}

impl ReadBody {
    /// Whether it returns the type of an async iterator.
    fn returns_iterator(&self, import: &MetadataImport<'_>) -> bool {
        let Type::Generic { definition, .. } = &self.signature.return_type else {
            return false;
        };
        let definition = definition.token();
        if definition.table() != Token::TYPE_REF {
            return false;
        }
        import
            .get_type_ref_props(definition)
            .is_ok_and(|props| props.name == "System.Collections.Generic.IAsyncEnumerable`1")
    }
}
