//! Example profiler: counts calls of methods and how they end, by ReJIT with probes, and reverts.
//!
//! ```sh
//! cargo build -p corprof --example counts
//! CORECLR_ENABLE_PROFILING=1 \
//! CORECLR_PROFILER={DB64E7B8-0E80-4F2E-9E87-6B0C2FB6DA21} \
//! CORECLR_PROFILER_PATH=$PWD/target/debug/examples/libcounts.so \
//! COUNTS_MODULE=app.dll COUNTS_METHOD=App.Cart.Checkout COUNTS_OUT=/tmp/counts.txt dotnet app.dll
//! ```
//!
//! - `COUNTS_METHOD`: `Namespace.Type.Method`; if unset, all methods of the module.
//! - `COUNTS_REVERT_AFTER`: total number of calls after which the original code is restored.
//! - `COUNTS_AGAIN`: number of times that the probes are then removed and inserted again.
//! - `COUNTS_CALL`: calling convention of the probes: `c` (default), `no-transition` (.NET 6 on) or
//!   `managed`. `count-only` increments a counter in IL, without a call.
//! - `COUNTS_INLINERS`: also recompiles the methods into which these are inlined, if that is safe.
//! - `COUNTS_BESIDE`: loads as a notification profiler, and reports that it cannot use ReJIT.
//!
//! Output: one line `method NAME ENTERED RETURNED THREW` for each method, and `refused NAME REASON`
//! for each method that cannot be wrapped.

use std::env;
use std::ffi::OsString;
use std::io::Write as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use corprof::context::{Callback, RejitThread, Startup};
use corprof::il::{
    Body, LocalSignature, MethodSignature, Probe, ProbeCall, Probes, Type, TypeToken,
    probe_signature,
};
use corprof::{
    Callbacks, ClassRequest, Cx, EventMaskHigh, EventMaskLow, FunctionControl, FunctionId, Guid,
    Hresult, MetadataEmit, MetadataImport, ModuleId, ModuleKey, PreparedBodies, PreparedBody,
    RejitCx, RejitFlags, Result, Token, enable_rejit,
};

const CLSID: Guid = Guid::new("DB64E7B8-0E80-4F2E-9E87-6B0C2FB6DA21");

corprof::export_profiler!(create);

fn create(request: &ClassRequest) -> Result<Box<dyn Callbacks>> {
    if request.clsid != CLSID {
        return Err(Hresult::CLASS_E_CLASSNOTAVAILABLE);
    }
    Ok(Box::new(Counts::default()))
}

/// Counts of one method. Its address is a constant in the method's code, so it is never freed.
#[derive(Default)]
struct Method {
    name: String,
    entered: AtomicU64,
    returned: AtomicU64,
    threw: AtomicU64,
}

/// All methods, by the number that the enter probe gets. Lock-free, because probes that are called
/// without a transition may take no lock.
static METHODS: [AtomicPtr<Method>; 1 << 16] = [const { AtomicPtr::new(null_mut()) }; 1 << 16];
/// Number of methods.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Calls of all methods, and the number of calls after which the code is reverted.
static CALLS: AtomicU64 = AtomicU64::new(0);
static REVERT_AFTER: OnceLock<u64> = OnceLock::new();
static COMMANDS: OnceLock<Sender<Command>> = OnceLock::new();

/// The method with this number.
fn method(number: usize) -> Option<&'static Method> {
    let method = METHODS.get(number)?.load(Ordering::Acquire); // pairs with `add`
    // SAFETY: null, or a method that `add` put there and that is never freed.
    unsafe { method.as_ref() }
}

/// Stores a method and returns its number; `None` if there are too many.
fn add(method: Method) -> Option<(i32, &'static Method)> {
    let number = COUNT.load(Ordering::Relaxed);
    let place = METHODS.get(number)?;
    let method = Box::into_raw(Box::new(method));
    place.store(method, Ordering::Release); // pairs with `method`
    COUNT.store(number + 1, Ordering::Relaxed);
    method.expose_provenance();
    // SAFETY: just created, and never freed.
    Some((i32::try_from(number).ok()?, unsafe { &*method }))
}

/// The enter probe. Its result, the token, is passed to the other probes.
extern "C" fn enter(number: i32) -> i64 {
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    let Some(method) = method(index) else {
        return 0;
    };
    method.entered.fetch_add(1, Ordering::Relaxed);
    let calls = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    if REVERT_AFTER.get() == Some(&calls)
        && let Some(commands) = COMMANDS.get()
    {
        // In the default convention a probe may block, as a P/Invoke may.
        let (done, wait) = sync_channel(0);
        if commands.send(Command::Revert(done)).is_ok() {
            let _ = wait.recv();
        }
    }
    core::ptr::from_ref(method).addr() as i64
}

/// The method of a token; `None` for 0, the token of a call that was not counted.
fn method_of(token: i64) -> Option<&'static Method> {
    let method = core::ptr::with_exposed_provenance::<Method>(token as usize);
    // SAFETY: `enter` returned the address of a method, which is never freed, or 0.
    unsafe { method.as_ref() }
}

/// The leave probe.
extern "C" fn leave(token: i64) {
    if let Some(method) = method_of(token) {
        method.returned.fetch_add(1, Ordering::Relaxed);
    }
}

/// The fault probe.
extern "C" fn fault(token: i64) {
    if let Some(method) = method_of(token) {
        method.threw.fetch_add(1, Ordering::Relaxed);
    }
}

/// Commands to the request thread, which signals the end of each.
enum Command {
    Module(ModuleKey, SyncSender<()>),
    Revert(SyncSender<()>),
    End,
}

#[derive(Default)]
struct Counts {
    bodies: Arc<PreparedBodies>,
    commands: OnceLock<Sender<Command>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    errors: AtomicU64,
    seen: AtomicBool,
}

impl Counts {
    fn tell(&self, command: Command) -> Result<()> {
        let commands = self.commands.get().ok_or(Hresult::E_UNEXPECTED)?;
        commands.send(command).map_err(|_| Hresult::E_UNEXPECTED)
    }
}

impl Callbacks for Counts {
    fn load_as_notification_only(&self) -> Result<bool> {
        Ok(env::var_os("COUNTS_BESIDE").is_some())
    }

    fn initialize<'rt>(&self, cx: &mut Cx<'rt, Startup>) -> Result<()> {
        let rejit = enable_rejit(
            cx,
            EventMaskLow::MONITOR_MODULE_LOADS,
            EventMaskHigh::empty(),
        )
        .map_err(|reason| {
            say(&format!("no-rejit {reason:?}"));
            Hresult::E_FAIL
        })?;
        let after = env::var("COUNTS_REVERT_AFTER").ok();
        if let Some(after) = after.and_then(|after| after.parse().ok()) {
            let _ = REVERT_AFTER.set(after);
        }
        let (sender, receiver) = channel();
        let _ = COMMANDS.set(sender.clone());
        self.commands
            .set(sender)
            .map_err(|_| Hresult::E_UNEXPECTED)?;
        let bodies = Arc::clone(&self.bodies);
        let thread = rejit
            .spawn("counts", move |rejit| requests(rejit, &bodies, &receiver))
            .map_err(|_| Hresult::E_FAIL)?;
        *self.thread.lock().map_err(|_| Hresult::E_FAIL)? = Some(thread);
        Ok(())
    }

    fn module_load_finished<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        status: Hresult,
    ) -> Result<()> {
        let info = cx.info();
        let Some(about) = info.get_module_info2(cx, module)? else {
            return Ok(());
        };
        let wanted = env::var("COUNTS_MODULE").map_err(|_| Hresult::E_INVALIDARG)?;
        let name = about.path.rsplit('/').next().unwrap_or_default();
        if status.is_err() || name != wanted || self.seen.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // No method of the module runs before this callback returns, so no call is missed.
        let (done, wait) = sync_channel(0);
        self.tell(Command::Module(info.key(module), done))?;
        wait.recv().map_err(|_| Hresult::E_FAIL)
    }

    fn get_rejit_parameters<'rt>(
        &self,
        cx: &mut Cx<'rt, Callback>,
        module: ModuleId<'rt>,
        method: Token,
        control: FunctionControl<'rt>,
    ) -> Result<()> {
        self.bodies.answer(cx, module, method, &control).map(drop)
    }

    fn rejit_error<'rt>(
        &self,
        _: &mut Cx<'rt, Callback>,
        _: ModuleId<'rt>,
        _: Token,
        _: Option<FunctionId<'rt>>,
        _: Hresult,
    ) -> Result<()> {
        self.errors.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn shutdown<'rt>(&self, _: &mut Cx<'rt, Callback>) -> Result<()> {
        self.tell(Command::End)?;
        let thread = self.thread.lock().map_err(|_| Hresult::E_FAIL)?.take();
        if let Some(thread) = thread {
            thread.join().map_err(|_| Hresult::E_FAIL)?;
        }
        let errors = self.errors.load(Ordering::Relaxed);
        say(&format!("errors {errors}"));
        for method in (0..).map_while(method) {
            let [entered, returned, threw] = [&method.entered, &method.returned, &method.threw]
                .map(|count| count.load(Ordering::Relaxed));
            say(&format!(
                "method {} {entered} {returned} {threw}",
                method.name
            ));
        }
        Ok(())
    }
}

/// Writes a line.
fn say(line: &str) {
    static PATH: OnceLock<Option<OsString>> = OnceLock::new();
    let Some(path) = PATH.get_or_init(|| env::var_os("COUNTS_OUT")) else {
        return;
    };
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path);
    if let Ok(mut file) = file {
        let _ = writeln!(file, "{line}");
    }
}

/// The thread for requests.
fn requests(rejit: &mut RejitCx, bodies: &PreparedBodies, commands: &Receiver<Command>) {
    let mut traced: Vec<(ModuleKey, Token)> = Vec::new();
    for command in commands {
        match command {
            Command::End => return,
            Command::Module(module, done) => {
                let requested = rejit.enter(|cx| request(cx, bodies, module));
                match requested {
                    Ok(tokens) => traced.extend(tokens.into_iter().map(|token| (module, token))),
                    Err(error) => say(&format!("failed {error}")),
                }
                let _ = done.send(());
            }
            Command::Revert(done) => {
                let again = env::var("COUNTS_AGAIN").ok();
                for _ in 0..again.and_then(|times| times.parse().ok()).unwrap_or(0) {
                    let again = rejit.enter(|cx| {
                        revert(cx, &traced)?;
                        // Their new bodies are still prepared.
                        let ids = ids(cx, &traced);
                        request_all(cx, &ids)
                    });
                    say(&format!("again {}", again.is_ok()));
                }
                if env::var_os("COUNTS_AGAIN").is_some() {
                    let _ = done.send(());
                    continue;
                }
                let reverted = rejit.enter(|cx| revert(cx, &traced));
                match reverted {
                    Ok(answers) => {
                        let good = answers.iter().filter(|answer| answer.is_ok()).count();
                        say(&format!("reverted {good} of {}", answers.len()));
                    }
                    Err(error) => say(&format!("failed {error}")),
                }
                // No detach is possible after ReJIT, even if everything was reverted.
                let detached = rejit.enter(|cx| {
                    let info = cx.info();
                    info.request_profiler_detach(cx, Duration::from_millis(100))
                });
                if let Err(error) = detached {
                    say(&format!("detach {error}"));
                }
                let _ = done.send(());
            }
        }
    }
}

fn ids<'rt>(
    cx: &Cx<'rt, RejitThread>,
    traced: &[(ModuleKey, Token)],
) -> Vec<(ModuleId<'rt>, Token)> {
    let info = cx.info();
    let ids = traced.iter();
    ids.filter_map(|(module, token)| Some((info.id(*module)?, *token)))
        .collect()
}

fn revert<'rt>(
    cx: &mut Cx<'rt, RejitThread>,
    traced: &[(ModuleKey, Token)],
) -> Result<Vec<Hresult>> {
    let ids = ids(cx, traced);
    cx.info().request_revert(cx, &ids)
}

/// Requests all prepared methods at once.
fn request_all<'rt>(
    cx: &mut Cx<'rt, RejitThread>,
    methods: &[(ModuleId<'rt>, Token)],
) -> Result<()> {
    let info = cx.info();
    let mut safe = env::var_os("COUNTS_INLINERS").is_some();
    for (module, token) in methods {
        safe = safe && info.inliners_are_safe(cx, *module, *token)?;
    }
    say(&format!("inliners {safe}"));
    if safe {
        // Requested methods may be inlined into each other.
        let flags = RejitFlags::BLOCK_INLINING | RejitFlags::INLINING_CALLBACKS;
        info.request_rejit_with_inliners(cx, flags, methods)
    } else {
        info.request_rejit(cx, methods)
    }
}

/// Prepares every selected method and requests all of them at once.
fn request<'rt>(
    cx: &mut Cx<'rt, RejitThread>,
    bodies: &PreparedBodies,
    key: ModuleKey,
) -> Result<Vec<Token>> {
    let info = cx.info();
    let module = info.id(key).ok_or(Hresult::E_INVALIDARG)?;
    // First open for writing, because that changes the form of the metadata.
    let emit = info.get_module_meta_data_emit(cx, module)?;
    let emit = emit.ok_or(Hresult::CORPROF_E_DATAINCOMPLETE)?;
    let import = info.get_module_meta_data(cx, module)?;
    let import = import.ok_or(Hresult::CORPROF_E_DATAINCOMPLETE)?;
    let signatures = Signatures::new(&emit)?;
    info.apply_meta_data(cx, module)?;
    let wanted = env::var("COUNTS_METHOD").ok();
    let mut tokens = Vec::new();
    for class in import.enum_type_defs()? {
        let class_name = import.get_type_def_props(class)?.name;
        for token in import.enum_methods(class)? {
            let props = import.get_method_props(token)?;
            let name = format!("{class_name}.{}", props.name);
            if wanted.as_ref().is_some_and(|wanted| *wanted != name) {
                continue;
            }
            let il = match info.get_il_function_body(cx, module, token) {
                Ok(Some(il)) => il,
                Ok(None) | Err(Hresult::CORPROF_E_FUNCTION_NOT_IL) => continue,
                Err(error) => return Err(error),
            };
            match signatures.wrap(&il, &props.signature, (&import, &emit), &name) {
                Ok(body) => {
                    bodies.insert(key, token, body);
                    tokens.push(token);
                }
                Err(reason) => say(&format!("refused {name} {reason}")),
            }
        }
    }
    if !tokens.is_empty() {
        let methods: Vec<_> = tokens.iter().map(|token| (module, *token)).collect();
        request_all(cx, &methods)?;
    }
    Ok(tokens)
}

/// The probes' signatures, as tokens of one module.
struct Signatures {
    enter: Token,
    leave: Token,
}

impl Signatures {
    fn new(emit: &MetadataEmit<'_>) -> Result<Self> {
        let call = match env::var("COUNTS_CALL").as_deref() {
            Ok("managed") => ProbeCall::Managed,
            Ok("no-transition") => ProbeCall::CWithoutTransition(modifier(emit)?),
            _ => ProbeCall::C,
        };
        let enter = probe_signature(call, Type::INT64, vec![Type::INT32]);
        let leave = probe_signature(call, Type::VOID, vec![Type::INT64]);
        Ok(Self {
            enter: emit.calli(&enter)?,
            leave: emit.calli(&leave)?,
        })
    }

    /// Makes a method's new body, or returns why it cannot.
    fn wrap(
        &self,
        il: &[u8],
        signature: &[u8],
        (import, emit): (&MetadataImport<'_>, &MetadataEmit<'_>),
        name: &str,
    ) -> std::result::Result<PreparedBody, Box<dyn std::error::Error>> {
        let body = Body::read(il)?;
        let signature = MethodSignature::read(signature)?;
        let locals = match body.locals {
            Some(token) => LocalSignature::read(&import.get_sig_from_token(token)?)?,
            None => LocalSignature::default(),
        };
        if let Some(refusal) = body.refusal(&signature) {
            return Err(refusal.into());
        }
        let (number, method) = add(Method {
            name: name.to_owned(),
            ..Method::default()
        })
        .ok_or("there are too many methods")?;
        if env::var("COUNTS_CALL").as_deref() == Ok("count-only") {
            let entered = method.entered.as_ptr().expose_provenance();
            let counted = body.with_enter(&Probe::count_at(entered));
            return Ok(PreparedBody::new(counted.write()?));
        }
        let function = |function: extern "C" fn(i64)| function as usize;
        let probes = Probes {
            enter: Probe::calli(
                0,
                &[number],
                enter as extern "C" fn(i32) -> i64 as usize,
                self.enter,
            ),
            leave: Probe::calli(1, &[], function(leave), self.leave),
            fault: Probe::calli(1, &[], function(fault), self.leave),
            token: Some(Type::INT64),
        };
        let wrapped = body.wrap(&signature, &locals, &probes)?;
        let token = match wrapped.locals() {
            Some(locals) => emit.locals(locals)?,
            None => Token(0),
        };
        Ok(PreparedBody::new(wrapped.with_locals(token).write()?))
    }
}

/// Makes a reference to the type that marks a call as one without a transition. The module may
/// refer to no assembly that defines the type (`netstandard` does not), so an assembly reference is
/// added.
fn modifier(emit: &MetadataEmit<'_>) -> Result<TypeToken> {
    const KEY: [u8; 8] = [0x7c, 0xec, 0x85, 0xd7, 0xbe, 0xa7, 0x79, 0x8e];
    let core = emit.define_assembly_ref("System.Private.CoreLib", [4, 0, 0, 0], KEY)?;
    let name = "System.Runtime.CompilerServices.CallConvSuppressGCTransition";
    let token = emit.define_type_ref_by_name(core, name)?;
    TypeToken::new(token).ok_or(Hresult::E_UNEXPECTED)
}
