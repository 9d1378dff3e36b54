//! Starts the agent thread, at the first load of the agent and at each attach after a detach.
//!
//! Invariant: [`AgentState::runs`] is locked from the moment in which a CLR is listed until an
//! agent thread serves it. So an agent thread that has no CLR left cannot end in between.

use std::path::Path;
use std::sync::PoisonError;

use corprof::{AgentCx, Hresult};

use super::{AgentEnd, AgentState, Begun, Library, agent_thread};
use crate::model::Phase;
use crate::record::Channel;

/// Starts the agent thread. The caller holds `runs`. Returns whether it was started.
pub(crate) fn spawn(
    agent: &'static AgentState,
    library: &'static Library,
    first: Option<(Begun, Channel)>,
) -> bool {
    let spawned = corprof::spawn_agent_thread("sidewalk", move |cx: &mut AgentCx| {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (library.main)(agent, first, cx)
        }));
        match ran {
            Ok(AgentEnd::Away) => {}
            Ok(AgentEnd::Over) => agent_thread::clean_up(agent),
            Err(panic) => {
                agent_thread::clean_up(agent);
                // Dropping a panic's payload may panic again.
                std::mem::forget(panic);
            }
        }
    });
    spawned.is_ok()
}

/// Handles an accepted `InitializeForAttach`: opens the control socket at `socket`, and ensures
/// that a thread serves it. `admit` lists the CLR. It is called with `runs` locked, so that the
/// agent thread cannot end meanwhile.
///
/// # Errors
/// The control socket could not be served, or `admit` failed.
pub(crate) fn arrive<R>(
    agent: &'static AgentState,
    library: &'static Library,
    socket: &Path,
    admit: impl FnOnce() -> corprof::Result<R>,
) -> corprof::Result<R> {
    let refused = Hresult::CORPROF_E_PROFILER_CANCEL_ACTIVATION;
    let mut runs = agent.runs.lock().unwrap_or_else(PoisonError::into_inner);
    if agent.phase.get() == Phase::Left {
        return Err(refused);
    }
    let admitted = admit()?;
    if agent.control_socket.open(socket).is_err() {
        return Err(refused);
    }
    if !*runs {
        *runs = spawn(agent, library, None);
    }
    if *runs { Ok(admitted) } else { Err(refused) }
}
