//! What the process has one of, for sessions and callbacks to work with. It is passed, never reached for.

use std::sync::{Arc, Mutex, OnceLock};

use sampler::Sampler;

use super::phases::Phases;
use crate::base::wake::Wake;
use crate::clr::Registry;
use crate::events::Events;
use crate::hooks::ShadowStacks;
use crate::model::phase::PhaseReader;
use crate::model::{Settings, WalkerKind};
use crate::target::Target;

/// The parts of a process. They live as long as it does.
pub struct Parts {
    /// What is known of the program.
    pub target: Target,
    /// The CLRs.
    pub registry: Registry,
    /// Events that are not sampled by time.
    pub events: Events,
    /// Shadow stacks, where the first session wants them: hooks can be had only when a CLR starts.
    pub(crate) shadow: Option<ShadowStacks>,
    /// What the process does now.
    pub phase: PhaseReader,
    /// Moves it.
    pub phases: Phases,
    /// Wakes the agent thread.
    pub wake: &'static Wake,
    settings: Mutex<Arc<Settings>>,
    /// The sampler of all sessions, from the first on: its handler stays.
    sampler: OnceLock<&'static Sampler>,
}

impl Parts {
    /// Of a process whose first session has these settings.
    pub fn new(settings: Settings) -> &'static Parts {
        let wake: &'static Wake = Box::leak(Box::new(Wake::new()));
        let (phases, phase) = Phases::new();
        let shadow =
            (settings.walker == WalkerKind::Shadow).then(|| ShadowStacks::new(&settings, phase));
        Box::leak(Box::new(Parts {
            target: Target::new(phase, wake),
            registry: Registry::new(phase),
            events: Events::new(phase, wake),
            shadow,
            phase,
            phases,
            wake,
            settings: Mutex::new(Arc::new(settings)),
            sampler: OnceLock::new(),
        }))
    }

    /// The settings in force: those of the session, or of the last one.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// The agent thread will not call this CLR again: whoever waits for that in its shutdown goes on.
    pub(super) fn let_go(&self, number: u8) {
        self.target.threads.runtime_ended(number);
        self.events.remove(number);
        self.registry.acknowledge(number);
    }

    /// Whose handler has the signal, from the first session on.
    pub(super) fn sampler(&self) -> Option<&'static Sampler> {
        self.sampler.get().copied()
    }

    pub(super) fn set_sampler(&self, sampler: &'static Sampler) {
        let _same_in_all_sessions = self.sampler.set(sampler);
    }

    pub(super) fn set_settings(&self, settings: Arc<Settings>) {
        *self.settings.lock().unwrap_or_else(|e| e.into_inner()) = settings;
    }
}
