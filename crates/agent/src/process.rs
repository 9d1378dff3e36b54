//! The process: it begins with the first CLR that lets us in and stays until the process ends.
//!
//! Composition only: it makes the parts, begins the first session, starts the agent thread, and gives
//! each CLR its callbacks. The one `OnceLock` of the agent is here; everything below is passed what it
//! needs. Invariants: made at most once; starts one thread; refuses a CLR rather than fail it; code and
//! state stay, whatever the CLRs do, because a late signal may still arrive.

use std::sync::OnceLock;

use corprof::{AgentCx, ClassRequest};

use crate::callbacks::ClrCallbacks;
use crate::clr::version;
use crate::model::Settings;
use crate::record::Channel;
use crate::session::{Library, Parts, agent_thread, begin, signal};

static PROCESS: OnceLock<Option<Process>> = OnceLock::new();

/// Sidewalk.
pub const SIDEWALK: Library = Library {
    main: agent_thread::main,
    compiling: None,
};

struct Process {
    parts: &'static Parts,
    pid: u32,
}

/// Makes the callbacks of one CLR (`CreateInstance`), and with the first one the process.
///
/// # Errors
/// `CORPROF_E_PROFILER_CANCEL_ACTIVATION`: this process, or this CLR, is not to be recorded.
pub fn create(
    _request: &ClassRequest,
    library: &'static Library,
) -> corprof::Result<Box<dyn corprof::Callbacks>> {
    let refused = corprof::Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION;
    let process = PROCESS.get_or_init(|| start(library)).as_ref();
    let parts = process.ok_or(refused)?.parts;
    let Some(number) = parts.registry.claim(version::of_caller) else {
        // It has taken the signal for itself all the same.
        signal::settle(parts);
        return Err(refused);
    };
    Ok(Box::new(ClrCallbacks::new(parts, library, number)))
}

/// `None`: this process is not to be recorded.
fn start(library: &'static Library) -> Option<Process> {
    // A panic is caught where it would leave us, and counted; nothing is printed into the
    // program's output. The hook is that of our own copy of the standard library.
    std::panic::set_hook(Box::new(|_| {}));
    let socket = std::env::var("SIDEWALK_SOCKET").ok()?;
    let channel = Channel::connect(&socket)?;
    let settings = Settings::parse(&std::env::var("SIDEWALK_CONFIG").unwrap_or_default());
    let parts = Parts::new(settings.clone());
    let begun = begin::begin(parts, settings).ok()?;
    parts.wake.serve_handler();
    // SAFETY: the function stays loaded (the library is linked with -z nodelete) and takes no
    // arguments.
    unsafe { libc::atexit(process_exits) };
    corprof::spawn_agent_thread("sidewalk", move |cx: &mut AgentCx| {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (library.main)(parts, begun, channel, cx);
        }));
        agent_thread::ended(parts);
        if let Err(panic) = ran {
            // Dropping a panic's payload may panic again.
            std::mem::forget(panic);
        }
    })
    .ok()?;
    Some(Process {
        parts,
        pid: std::process::id(),
    })
}

/// For `atexit`: runs before the destructors of libcoreclr, which was loaded earlier. CLRs that nobody
/// has shut down, as a host may leave them, end here.
extern "C" fn process_exits() {
    let ended = std::panic::catch_unwind(|| {
        let Some(process) = PROCESS.get().and_then(Option::as_ref) else {
            return;
        };
        // A forked child has our memory but not our thread.
        if std::process::id() != process.pid {
            return;
        }
        let parts = process.parts;
        for number in parts.registry.running() {
            parts.registry.ends(number, || parts.wake.ring());
        }
    });
    if let Err(panic) = ended {
        std::mem::forget(panic);
    }
}
