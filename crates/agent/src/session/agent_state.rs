//! The agent's state: one instance per process, used by sessions and callbacks.
//!
//! It is passed as an argument. No global variable refers to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use corprof::AgentCx;
use sampler::Sampler;

use super::control_socket::ControlSocket;
use super::phases::Phases;
use crate::base::waker::Waker;
use crate::clr::{Registry, Runtimes};
use crate::events::Events;
use crate::hooks::ShadowStacks;
use crate::model::phase::PhaseReader;
use crate::model::{Settings, WalkerKind};
use crate::program::Program;
use crate::trace::Trace;

/// The agent's state in a process. It lives as long as the process.
pub struct AgentState {
    /// Facts about the program.
    pub program: Program,
    /// The CLRs.
    pub registry: Registry,
    /// Events that are not sampled by time.
    pub events: Events,
    /// Traced methods.
    pub(crate) trace: Trace,
    /// Shadow stacks, if the first session uses them: a CLR accepts hooks only when it starts.
    pub(crate) shadow: Option<ShadowStacks>,
    /// Reads the process's present phase.
    pub phase: PhaseReader,
    /// Changes the phase.
    pub phases: Phases,
    /// Wakes the agent thread.
    pub waker: &'static Waker,
    /// The socket on which the tool connects.
    pub(crate) control_socket: ControlSocket,
    /// Whether the program was started with the agent. CLRs may then load it at any time.
    started: AtomicBool,
    /// Whether an agent thread exists. It ends when no CLR is left; a later CLR starts another one.
    pub(crate) runs: Mutex<bool>,
    settings: Mutex<Arc<Settings>>,
    /// Name of the recording client, for replies to other clients.
    recorded_by: Mutex<String>,
    /// The sampler of all sessions, set by the first. Its handler stays installed.
    sampler: OnceLock<&'static Sampler>,
}

impl AgentState {
    /// Creates the state of a process whose first session has these settings.
    pub fn new(settings: Settings) -> &'static AgentState {
        let waker: &'static Waker = Box::leak(Box::new(Waker::new()));
        let (phases, phase) = Phases::new();
        let shadow =
            (settings.walker == WalkerKind::Shadow).then(|| ShadowStacks::new(&settings, phase));
        Box::leak(Box::new(AgentState {
            program: Program::new(phase, waker),
            registry: Registry::new(phase),
            events: Events::new(phase, waker),
            trace: Trace::new(waker),
            shadow,
            phase,
            phases,
            waker,
            control_socket: ControlSocket::default(),
            started: AtomicBool::new(false),
            runs: Mutex::default(),
            settings: Mutex::new(Arc::new(settings)),
            recorded_by: Mutex::default(),
            sampler: OnceLock::new(),
        }))
    }

    /// Returns the settings of the running or last session.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Notes that the agent thread will not call this CLR again, so that the CLR's shutdown stops
    /// waiting.
    pub(super) fn release_runtime(&self, number: u8) {
        let known = self.registry.known();
        let found = known.iter().find(|known| known.number == number);
        if let Some((_, runtime)) = found.and_then(|known| known.reach.as_ref()) {
            self.program.threads.pins.forget_runtime(runtime.index());
        }
        self.program.threads.runtime_ended(number);
        self.events.remove(number);
        self.trace.remove(number);
        self.registry.acknowledge(number);
    }

    /// Runs the catch-up of newly attached CLRs (queries their existing code, modules and threads).
    /// Agent thread. Returns these CLRs.
    pub(super) fn catch_up(&self, cx: &mut AgentCx) -> Vec<u8> {
        let arrived = self.registry.take_newly_attached();
        if !arrived.is_empty() {
            let known = self.registry.known();
            let mut runtimes = Runtimes::new(cx, &self.registry, &known);
            for number in &arrived {
                runtimes.with(*number, |clr, cx| clr.catch_up(&self.program, cx));
            }
        }
        arrived
    }

    /// Returns the sampler whose handler is installed, from the first session on.
    pub(super) fn sampler(&self) -> Option<&'static Sampler> {
        self.sampler.get().copied()
    }

    pub(super) fn set_sampler(&self, sampler: &'static Sampler) {
        let _same_in_all_sessions = self.sampler.set(sampler);
    }

    /// Whether the program was started with the agent.
    pub(crate) fn is_started(&self) -> bool {
        self.started.load(Ordering::Relaxed)
    }

    pub(crate) fn set_started(&self) {
        self.started.store(true, Ordering::Relaxed);
    }

    /// Returns the recording client, or the last one.
    pub(crate) fn recorded_by(&self) -> String {
        let who = self.recorded_by.lock();
        who.unwrap_or_else(|e| e.into_inner()).clone()
    }

    pub(crate) fn set_recorded_by(&self, who: String) {
        *self.recorded_by.lock().unwrap_or_else(|e| e.into_inner()) = who;
    }

    pub(super) fn set_settings(&self, settings: Arc<Settings>) {
        *self.settings.lock().unwrap_or_else(|e| e.into_inner()) = settings;
    }
}
