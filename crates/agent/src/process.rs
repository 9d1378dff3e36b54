//! The agent's state in one process, from the first CLR that loads the agent to the process's end.
//!
//! Composition only: creates the state, begins the first session of a program that was started with
//! the agent, starts the agent thread, and creates the callbacks of each CLR. The static with the
//! agent's state is here; the other modules get their state as arguments.
//!
//! Invariants: the state is created at most once, even if the agent detaches and attaches again. At
//! most one agent thread runs. On failure the CLR gets a refusal and runs without the agent. Code
//! and state are never freed, because a late signal may still arrive.

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

/// Whether the tool named in the environment records this process. Determined once.
static STARTED: OnceLock<bool> = OnceLock::new();

/// Whether a CLR of this process has loaded the agent as its main profiler. The environment of a
/// recorded command also names the agent as a notification profiler, for programs that replace the
/// main one. A CLR creates the main profiler first (`InitializeProfiling`,
/// src/coreclr/vm/profilinghelper.cpp).
static IS_MAIN: AtomicBool = AtomicBool::new(false);

/// Sidewalk's library: its agent thread, and no function to call at compilations.
pub const SIDEWALK: Library = Library {
    main: agent_thread::main,
    compiling: None,
};

/// Result of an attach if a seccomp filter forbids a system call that the agent needs. The filter
/// would end the program at that call. The runtime has no such code: the value has the bit of
/// customer-defined codes.
const FILTERED: Hresult = Hresult::from_bits(0xa053_0001);

struct Process {
    agent: &'static AgentState,
    pid: u32,
}

/// Returns the process's state, created at the first call with `settings` of the first session.
fn process(settings: Settings) -> &'static Process {
    PROCESS.get_or_init(|| {
        // Panics are caught at the agent's boundary and counted; nothing is printed into the
        // program's output. The hook belongs to the agent's own copy of the standard library.
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

/// Creates the callbacks of one CLR (`CreateInstance`).
///
/// # Errors
/// `CORPROF_E_PROFILER_CANCEL_ACTIVATION`: this process or this CLR is not recorded. `FILTERED`: an
/// attach that a seccomp filter makes impossible.
pub fn create(
    request: &ClassRequest,
    library: &'static Library,
) -> corprof::Result<Box<dyn corprof::Callbacks>> {
    let (arrival, slot) = LoadMode::from_last_byte(request.clsid.data4[7]);
    let beside = slot == ProfilerSlot::Notification;
    // Before the first system call that the program itself does not make.
    syscalls::refresh();
    if syscalls::first_fatal().is_some() {
        return Err(match arrival {
            LoadMode::Attached => FILTERED,
            // The runtime prints any other result to the program's standard error.
            LoadMode::Startup => Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION,
        });
    }
    if arrival == LoadMode::Attached {
        // The CLR's number is set in `InitializeForAttach`. A runtime that already has a profiler
        // does not call that, and never releases the object made here.
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
        // This CLR has installed its activation signal handler nevertheless.
        signal::install_on_top(agent);
        return Err(refused);
    };
    let clr = Clr::started(number, beside);
    Ok(Box::new(ClrCallbacks::new(agent, library, clr)))
}

/// Begins the session of the tool that started this program. Returns false if this process is not
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
        // The agent attached to another CLR of this process earlier; its session records this CLR
        // too.
        return true;
    }
    let Ok(begun) = begin::begin(agent, settings) else {
        return false;
    };
    agent.set_started();
    *runs = arrival::spawn(agent, library, Some((begun, channel)));
    *runs
}

/// For `atexit`: runs before the destructors of libcoreclr, which was loaded earlier. Ends CLRs
/// that a host did not shut down.
extern "C" fn process_exits() {
    let ended = std::panic::catch_unwind(|| {
        let Some(process) = PROCESS.get() else {
            return;
        };
        // A forked child has this memory but not the agent thread.
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
