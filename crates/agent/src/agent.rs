//! What the process has one of: sampler, code map, threads, agent thread, and the list of CLRs.
//!
//! The seeds call it the global profiler manager. It is made when the first CLR initialises the
//! agent, and lives until the process ends: code and state stay, whatever the CLRs do, because a
//! late signal may still arrive.
//!
//! Invariants: made at most once; starts one thread; refuses a CLR rather than fail it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use corprof::{AgentCx, ClassRequest, Runtime, ThreadPins};
use recording::{Event, ProcessKey};
use sampler::{EngineChoice, Sampler};
use stackwalk::{CodeMap, ModuleChange, NativeModule};

use crate::bodies::Births;
use crate::channel::Channel;
use crate::clr::Clr;
use crate::config::{self, Config};
use crate::drain::Drain;
use crate::events::Events;
use crate::hijacks;
use crate::outlet::Outlet;
use crate::proc;
use crate::registry::Registry;
use crate::resolve::EndCode;
use crate::shadow::{self, ShadowWalker};
use crate::threads::Threads;
use crate::version;
use crate::walkers::agree::{Agree, Costs};

/// Which code is where. Static, because the handler must find it without a lock.
static CODE_MAP: CodeMap = CodeMap::new();
static AGENT: OnceLock<Option<&'static Agent>> = OnceLock::new();

/// The eventfd of [`Agent::wake`] for the handler, -1 before there is one.
static WAKE_FD: AtomicI32 = AtomicI32::new(-1);
/// The handler met code that nobody knows and has woken the agent thread.
static STRANGE: AtomicBool = AtomicBool::new(false);

/// A native module came or went.
#[derive(Clone, Debug)]
pub(crate) enum NativeNews {
    /// Under this number.
    Loaded(u32, NativeModule),
    Unloaded(NativeModule),
}

/// The agent of this process.
pub(crate) struct Agent {
    pub(crate) config: Config,
    pub(crate) map: &'static CodeMap,
    pub(crate) sampler: &'static Sampler,
    pub(crate) threads: Threads,
    /// What walks of the oracle's cost.
    pub(crate) costs: Costs,
    /// Managed threads that are alive, and which of them are being walked by the agent thread.
    pub(crate) pins: ThreadPins,
    pub(crate) births: Births,
    pub(crate) events: Events,
    /// The walker `shadow`, where it is wanted.
    pub(crate) shadow: Option<ShadowWalker>,
    /// Native modules that came and went, for the agent thread to write down.
    natives: Mutex<Vec<NativeNews>>,
    /// Numbers of modules in the recording, native and managed.
    next_module: AtomicU32,
    pub(crate) registry: Registry,
    serial: AtomicU64,
    pid: u32,
    /// An eventfd on which the agent thread waits.
    wake: OwnedFd,
}

impl Agent {
    /// The agent of this process, started if this is the first call. `None`: this process is not
    /// to be recorded.
    pub(crate) fn get() -> Option<&'static Agent> {
        *AGENT.get_or_init(Agent::start)
    }

    fn start() -> Option<&'static Agent> {
        // A panic is caught where it would leave us, and counted; nothing is printed into the
        // program's output. The hook is that of our own copy of the standard library.
        std::panic::set_hook(Box::new(|_| {}));
        let socket = std::env::var("SIDEWALK_SOCKET").ok()?;
        let channel = Channel::connect(&socket)?;
        let config = Config::parse(&std::env::var("SIDEWALK_CONFIG").unwrap_or_default());
        let (cpu, wall) = (
            config.events.has(Event::Cpu),
            config.events.has(Event::Wall),
        );
        let by_signal = !matches!(
            config.walker,
            config::Walker::Suspend | config::Walker::Seeded | config::Walker::Agree
        );
        let settings = sampler::Config {
            // Threads that are walked by the agent thread need no timers of their own.
            engine: match (cpu && by_signal, config.engine.as_str()) {
                // Its clock is the agent thread's, which lets it stand where no time is sampled.
                (false, _) => EngineChoice::Wall,
                (true, "perf") => EngineChoice::Perf,
                (true, "timer") => EngineChoice::Timer,
                (true, _) => EngineChoice::Auto,
            },
            interval_ns: config.interval_ns,
            wall_interval_ns: if wall && by_signal {
                config.interval_ns
            } else {
                0
            },
            max_depth: config.max_depth,
            scratch_len: u32::try_from(size_of::<Scratch>() - size_of::<sampler::Scratch>())
                .ok()?,
            walk_alternate_stack: true,
            trace: matches!(
                config.walker,
                config::Walker::Seeded | config::Walker::Agree
            )
            .then_some(trace as sampler::WalkFn),
            ..sampler::Config::default()
        };
        let registry = Registry::new(config.runtimes.clone());
        let shadow = (config.walker == config::Walker::Shadow).then(|| ShadowWalker::new(&config));
        let walk = if shadow.is_some() { shadow_walk } else { walk };
        let (sampler, reader) = Sampler::start(settings, walk).ok()?;
        let wake = eventfd()?;
        let events = Events::new(&config, &CODE_MAP, wake.as_raw_fd());
        let agent: &'static Agent = Box::leak(Box::new(Agent {
            config,
            map: &CODE_MAP,
            sampler,
            threads: Threads::default(),
            costs: Costs::default(),
            pins: ThreadPins::new(),
            births: Births::default(),
            events,
            shadow,
            natives: Mutex::default(),
            next_module: AtomicU32::new(0),
            registry,
            serial: AtomicU64::new(1),
            pid: std::process::id(),
            wake,
        }));
        WAKE_FD.store(agent.wake_fd(), Ordering::Release);
        // SAFETY: the function stays loaded (the library is linked with -z nodelete) and takes no
        // arguments.
        unsafe { libc::atexit(process_exits) };
        // Before the first sample: the stack above us is native code.
        agent.refresh_natives();
        corprof::spawn_agent_thread("sidewalk", move |cx: &mut AgentCx| {
            // Whatever goes wrong in there, the program goes on and nobody waits for us.
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                if agent.config.walker == config::Walker::Agree {
                    Agree::new(agent, reader, channel).run(cx);
                } else {
                    let outlet = Outlet::new(process_key(), channel);
                    Drain::new(agent, reader, outlet).run(cx);
                }
            }));
            agent.sampler.stop();
            if let Some(shadow) = &agent.shadow {
                shadow.stop();
            }
            agent.registry.end();
            agent.births.close();
            if let Err(panic) = ran {
                // Dropping a panic's payload may panic again.
                std::mem::forget(panic);
            }
        })
        .ok()?;
        Some(agent)
    }

    /// The descriptor by which the agent thread is woken.
    pub(crate) fn wake_fd(&self) -> i32 {
        self.wake.as_raw_fd()
    }

    fn wake(&self) {
        ring(self.wake.as_raw_fd());
    }

    /// No more samples ever, by any walker: the recording is over. Agent thread only; what waits in
    /// rings and queues can still be taken.
    pub(crate) fn stop(&self) {
        if let Some(shadow) = &self.shadow {
            shadow.stop();
        }
        self.events.end();
        self.threads.end_all(self.sampler);
        self.sampler.stop();
    }

    /// Sleeps until the tool says something, the sampler calls (where `rings` is its reader's
    /// descriptor), somebody wakes the agent thread, or the time is over. Takes note of the waking:
    /// the next call sleeps again. Agent thread only.
    pub(crate) fn wait(&self, tool: RawFd, rings: Option<RawFd>, timeout: Duration) {
        // The kernel passes over a negative descriptor.
        let mut fds = [self.wake_fd(), tool, rings.unwrap_or(-1)].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: three pollfds and a timeout, alive during the call; no signal mask.
        unsafe { libc::ppoll(fds.as_mut_ptr(), 3, &raw const timeout, std::ptr::null()) };
        let mut drop_count = 0u64;
        // SAFETY: reads at most the eight bytes of `drop_count`; the eventfd does not block.
        unsafe { libc::read(self.wake_fd(), (&raw mut drop_count).cast(), 8) };
    }

    /// A number that this process has not seen.
    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a module of the recording.
    pub(crate) fn next_module(&self) -> u32 {
        self.next_module.fetch_add(1, Ordering::Relaxed)
    }

    /// Looks whether native modules came or went. Cheap when none did, so that callbacks call it
    /// too: a module is known before much of its code has run.
    pub(crate) fn refresh_natives(&self) {
        self.map.refresh_native(&mut |change| {
            let (news, number) = match change {
                ModuleChange::Loaded { module } => {
                    let number = self.next_module();
                    (NativeNews::Loaded(number, module.clone()), number)
                }
                ModuleChange::Unloaded { module } => (NativeNews::Unloaded(module.clone()), 0),
            };
            let mut natives = self.natives.lock().unwrap_or_else(|e| e.into_inner());
            natives.push(news);
            u64::from(number)
        });
    }

    /// What [`Agent::refresh_natives`] found since the last call.
    pub(crate) fn take_natives(&self) -> Vec<NativeNews> {
        std::mem::take(&mut *self.natives.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Lists a CLR, and says whether it is to be recorded.
    pub(crate) fn admit(&self, clr: &Arc<Clr>, runtime: Runtime, version: &str) -> bool {
        let begin = || self.threads.resume();
        self.registry.admit(clr, runtime, version.to_owned(), begin)
    }

    /// Registers the calling thread, before the runtime has told of any.
    pub(crate) fn register_own_thread(&self) {
        self.threads
            .native_started(self.sampler, proc::own_tid(), proc::own_stack());
    }

    /// The process exits, with CLRs that nobody has shut down: a host may do so. They end here.
    fn process_ends(&self) {
        // A forked child has our memory but not our thread.
        if std::process::id() != self.pid {
            return;
        }
        for index in self.registry.running() {
            self.runtime_ends(index);
        }
    }

    /// A CLR ends: waits until the agent thread has named and written what it needs of it, and
    /// will not call it again.
    pub(crate) fn runtime_ends(&self, index: u8) {
        self.registry.ends(index, || self.wake());
    }
}

/// For `atexit`: runs before the destructors of libcoreclr, which was loaded earlier.
extern "C" fn process_exits() {
    let ended = std::panic::catch_unwind(|| {
        if let Some(agent) = AGENT.get().copied().flatten() {
            agent.process_ends();
        }
    });
    if let Err(panic) = ended {
        std::mem::forget(panic);
    }
}

fn eventfd() -> Option<OwnedFd> {
    // SAFETY: no preconditions; the descriptor is new and nobody else's.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// Makes the callbacks of one CLR.
pub(crate) fn create(request: &ClassRequest) -> corprof::Result<Box<dyn corprof::Callbacks>> {
    let refused = corprof::Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION;
    let agent = Agent::get().ok_or(refused)?;
    let index = u8::try_from(request.runtime.0).map_err(|_| refused)?;
    if !agent.registry.claim(index, version::of_caller) {
        return Err(refused);
    }
    Ok(Box::new(crate::clr::ClrCallbacks(Arc::new(Clr::new(
        agent, index,
    )))))
}

/// Unique for each process that a recording may hold: pid and the moment.
fn process_key() -> ProcessKey {
    ProcessKey(u64::from(std::process::id()) << 32 | (proc::unix_ns() / 1000) & 0xffff_ffff)
}

/// The walker's memory for one thread, in the sampler's keeping.
#[repr(C)]
struct Scratch {
    head: sampler::Scratch,
    /// [`READY`] once `walker` has been made; the sampler hands out zeroed memory.
    ready: u64,
    walker: stackwalk::Scratch,
}

const READY: u64 = 0x7363_7261_7463_6831;
const _: () = assert!(align_of::<Scratch>() <= 64);

/// Wakes the agent thread to look for new modules. Runs in the signal handler; the sampler keeps
/// errno.
fn call_for_help() {
    if !STRANGE.swap(true, Ordering::Relaxed) {
        ring(WAKE_FD.load(Ordering::Acquire));
    }
}

/// Makes an eventfd readable. Async-signal-safe, but for errno.
pub(crate) fn ring(eventfd: i32) {
    let one = 1u64;
    // SAFETY: reads eight bytes of `one`; the descriptor is the agent's, which is never closed and
    // does not block, or -1, which is an error without effect.
    unsafe { libc::write(eventfd, (&raw const one).cast(), 8) };
}

/// Takes back the handler's call for help.
pub(crate) fn hear_call() {
    STRANGE.store(false, Ordering::Relaxed);
}

/// Walks the interrupted thread's stack. Runs in the signal handler.
///
/// # Safety
/// The sampler's contract ([`sampler::WalkFn`]): `context` is the interrupted context of the calling
/// thread, everything from its stack pointer to `stack_end` is its stack, `scratch` is this
/// thread's block of `scratch_len` bytes, `out` has room for `cap` words.
unsafe extern "C" fn walk(
    context: *const libc::ucontext_t,
    stack_end: u64,
    scratch: *mut sampler::Scratch,
    out: *mut u64,
    cap: usize,
) -> sampler::WalkResult {
    // SAFETY: the contract above. The block is zeroed or holds what this function left there, is
    // aligned to 64 bytes and as large as `Scratch`; nobody else touches it while the handler runs.
    unsafe {
        let scratch = prepared(scratch);
        let (regs, stack) = interrupted(context, stack_end);
        let out = std::slice::from_raw_parts_mut(out, cap);
        let cold = (*scratch).walker.cold;
        let walk = stackwalk::walk(&CODE_MAP, regs, &stack, &mut (*scratch).walker, out);
        // Code without a rule may be a library that has just been loaded. Only a walk that met
        // something new can have met that.
        if (*scratch).walker.cold != cold
            && (walk.end == stackwalk::End::Broken(stackwalk::Reason::UnknownCode)
                || out
                    .iter()
                    .take(walk.depth)
                    .any(|word| word & stackwalk::BY_FRAME_POINTER != 0))
        {
            call_for_help();
        }
        walked(walk.depth, walk.end)
    }
}

/// As [`walk`], with the stack and frame pointer of each frame.
///
/// # Safety
/// As [`walk`], but `out` has room for `cap` frames of three words.
unsafe extern "C" fn trace(
    context: *const libc::ucontext_t,
    stack_end: u64,
    scratch: *mut sampler::Scratch,
    out: *mut u64,
    cap: usize,
) -> sampler::WalkResult {
    // SAFETY: the contract above; `Traced` is three words, `repr(C)`.
    let walk = unsafe {
        let scratch = prepared(scratch);
        let (regs, stack) = interrupted(context, stack_end);
        let out = std::slice::from_raw_parts_mut(out.cast::<stackwalk::Traced>(), cap);
        stackwalk::trace(&CODE_MAP, regs, &stack, &mut (*scratch).walker, out)
    };
    walked(walk.depth, walk.end)
}

const _: () = assert!(size_of::<stackwalk::Traced>() == 24);

/// What the sampler is told of a walk: ours refuse none. Async-signal-safe.
fn walked(depth: usize, end: stackwalk::End) -> sampler::WalkResult {
    sampler::WalkResult {
        depth: u32::try_from(depth).unwrap_or(0),
        end: EndCode::of(end),
        reason: 0,
    }
}

/// The walker's memory, made ready for the interrupted thread.
///
/// # Safety
/// As for `scratch` of [`walk`].
unsafe fn prepared(scratch: *mut sampler::Scratch) -> *mut Scratch {
    let scratch = scratch.cast::<Scratch>();
    // SAFETY: the block is zeroed or holds what this function left there, is aligned to 64 bytes
    // and as large as `Scratch`; nobody else touches it while the handler runs.
    unsafe {
        if (*scratch).ready != READY {
            (&raw mut (*scratch).walker).write(stackwalk::Scratch::new());
            (*scratch).ready = READY;
        }
        (*scratch).walker.hijacks = hijacks::of_interrupted((*scratch).head.slot);
    }
    scratch
}

/// Where an interrupted thread was, and its stacks.
///
/// # Safety
/// `context` is the context of the signal being handled.
unsafe fn interrupted(
    context: *const libc::ucontext_t,
    stack_end: u64,
) -> (stackwalk::Regs, stackwalk::Stack) {
    // SAFETY: the caller's promise.
    let (regs, alt) = unsafe { stackwalk::regs_from_ucontext(context) };
    let stack = stackwalk::Stack {
        low: 0,
        end: stack_end,
        alt,
    };
    (regs, stack)
}

/// What the interrupted thread runs by its shadow stack: one word. Runs in the signal handler.
///
/// # Safety
/// The sampler's contract ([`sampler::WalkFn`]): `out` has room for `cap` words.
unsafe extern "C" fn shadow_walk(
    _context: *const libc::ucontext_t,
    _stack_end: u64,
    _scratch: *mut sampler::Scratch,
    out: *mut u64,
    cap: usize,
) -> sampler::WalkResult {
    if cap > 0 {
        // SAFETY: there is room for a word.
        unsafe { out.write(shadow::own_word()) };
    }
    walked(1, stackwalk::End::Root)
}
