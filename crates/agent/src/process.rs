//! The process: it begins with the first CLR that lets us in and stays until the process ends.
//!
//! Composition only: it makes the parts, begins the first session of a program that was started
//! with us, starts the agent thread, and gives each CLR its callbacks. The one `OnceLock` of the
//! agent is here; everything below is passed what it needs. Invariants: made at most once, however
//! often we come and leave; at most one agent thread; refuses a CLR rather than fail it; code and
//! state stay, whatever the CLRs do, because a late signal may still arrive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, PoisonError};

use control::{LoadMode, ProfilerSlot};
use corprof::{ClassRequest, Hresult};

use crate::callbacks::ClrCallbacks;
use crate::clr::{Clr, version};
use crate::model::Settings;
use crate::record::Channel;
use crate::session::{AgentState, Library, agent_thread, arrival, begin, signal};

static PROCESS: OnceLock<Process> = OnceLock::new();

/// Whether the tool that the environment names records this process. It is asked once.
static STARTED: OnceLock<bool> = OnceLock::new();

/// A CLR of this process has asked for us as its main profiler. The environment of a recorded
/// command has us beside that one, too, for programs that put another one in our place; a CLR asks
/// for the main one first (`InitializeProfiling`, src/coreclr/vm/profilinghelper.cpp).
static IS_MAIN: AtomicBool = AtomicBool::new(false);

/// Sidewalk.
pub const SIDEWALK: Library = Library {
    main: agent_thread::main,
    compiling: None,
};

/// The runtime's answer to an attaching tool, where a filter forbids a needed system call. The
/// filter would end the program for one that the agent cannot do without. It is no value of the
/// runtime's: it has the bit for customers' codes.
const FILTERED: Hresult = Hresult::from_bits(0xa053_0001);

struct Process {
    agent: &'static AgentState,
    pid: u32,
}

/// The process's parts, made by who comes first: for the settings of its session, where it brings
/// one.
fn process(settings: Settings) -> &'static Process {
    PROCESS.get_or_init(|| {
        // A panic is caught where it would leave us, and counted; nothing is printed into the
        // program's output. The hook is that of our own copy of the standard library.
        std::panic::set_hook(Box::new(|_| {}));
        let agent = AgentState::new(settings);
        agent.waker.register_for_handler();
        // SAFETY: the function stays loaded (the library is linked with -z nodelete) and takes no
        // arguments.
        unsafe { libc::atexit(process_exits) };
        Process {
            agent,
            pid: std::process::id(),
        }
    })
}

/// Makes the callbacks of one CLR (`CreateInstance`).
///
/// # Errors
/// `CORPROF_E_PROFILER_CANCEL_ACTIVATION`: this process, or this CLR, is not to be recorded.
pub fn create(
    request: &ClassRequest,
    library: &'static Library,
) -> corprof::Result<Box<dyn corprof::Callbacks>> {
    let (arrival, slot) = LoadMode::from_last_byte(request.clsid.data4[7]);
    let beside = slot == ProfilerSlot::Notification;
    // Before the first system call that the program does not make itself.
    syscalls::refresh();
    if syscalls::first_fatal().is_some() {
        return Err(match arrival {
            LoadMode::Attached => FILTERED,
            // Another answer a runtime writes to the program's standard error.
            LoadMode::Startup => Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION,
        });
    }
    if arrival == LoadMode::Attached {
        // Its number comes in `InitializeForAttach`: a runtime whose place is taken does not get so
        // far, and keeps what we make here.
        let agent = process(Settings::default()).agent;
        let clr = Clr::attached(beside);
        return Ok(Box::new(ClrCallbacks::new(agent, library, clr)));
    }
    let refused = Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION;
    if beside {
        if IS_MAIN.load(Ordering::Relaxed) {
            return Err(refused);
        }
    } else {
        IS_MAIN.store(true, Ordering::Relaxed);
    }
    if !*STARTED.get_or_init(|| start(library)) {
        return Err(refused);
    }
    let agent = PROCESS.get().ok_or(refused)?.agent;
    let Some(number) = agent.registry.claim(version::of_caller) else {
        // It has taken the signal for itself all the same.
        signal::install_on_top(agent);
        return Err(refused);
    };
    let clr = Clr::started(number, beside);
    Ok(Box::new(ClrCallbacks::new(agent, library, clr)))
}

/// Begins the session of the tool that started this program. False: this process is not to be
/// recorded.
fn start(library: &'static Library) -> bool {
    let Some(channel) = std::env::var("SIDEWALK_SOCKET")
        .ok()
        .and_then(|socket| Channel::connect(&socket))
    else {
        return false;
    };
    let settings = Settings::parse(&std::env::var("SIDEWALK_CONFIG").unwrap_or_default());
    let agent = process(settings.clone()).agent;
    let mut runs = agent.runs.lock().unwrap_or_else(PoisonError::into_inner);
    if *runs {
        // Another CLR of this process was attached to before this one began: who did that records
        // it too.
        return true;
    }
    let Ok(begun) = begin::begin(agent, settings) else {
        return false;
    };
    agent.set_started();
    *runs = arrival::spawn(agent, library, Some((begun, channel)));
    *runs
}

/// For `atexit`: runs before the destructors of libcoreclr, which was loaded earlier. CLRs that
/// were not shut down, as a host may leave them, end here.
extern "C" fn process_exits() {
    let ended = std::panic::catch_unwind(|| {
        let Some(process) = PROCESS.get() else {
            return;
        };
        // A forked child has our memory but not our thread.
        if std::process::id() != process.pid {
            return;
        }
        let agent = process.agent;
        for number in agent.registry.running() {
            agent.registry.ends(number, || agent.waker.wake());
        }
        agent.control_socket.close();
    });
    if let Err(panic) = ended {
        std::mem::forget(panic);
    }
}
