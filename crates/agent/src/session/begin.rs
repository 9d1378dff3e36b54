//! Begins and ends a session for the whole process: starts and stops all that a session needs.
//!
//! No other module does this. The agent thread's part of a session is `session::Session`.

use std::sync::Arc;

use recording::Event;
use sampler::{EngineChoice, Reader, Sampler};

use super::{AgentState, signal};
use crate::clr::Clr;
use crate::handler;
use crate::model::chain::CHAIN_WORDS;
use crate::model::{Settings, WalkerKind};
use crate::program::chains;

/// A session that has begun; samples may already arrive. The agent thread runs it.
#[derive(Debug)]
pub struct Begun {
    /// Settings of the session.
    pub settings: Arc<Settings>,
    /// Reads the ring buffers.
    pub reader: Reader,
    pub(super) sampler: &'static Sampler,
    /// CLRs that have ended. Their numbers may be reused, so their code must be removed.
    pub(super) forgotten: Vec<Arc<Clr>>,
    /// CLRs that run already. A CLR that starts later sets its own event mask for the session.
    pub(super) running: Vec<u8>,
}

/// Reason why no session begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotBegun {
    /// A session runs, or the agent thread has ended.
    Busy,
    /// The sampler failed.
    Sampler(sampler::Error),
}

/// Begins a session. CLRs may be recorded from here on; threads are sampled once a CLR is recorded.
///
/// # Errors
/// See [`NotBegun`]. On error nothing has changed.
pub fn begin(agent: &'static AgentState, settings: Settings) -> Result<Begun, NotBegun> {
    if !agent.phases.begin() {
        return Err(NotBegun::Busy);
    }
    let settings = Arc::new(settings);
    let walk = if settings.walker == WalkerKind::Shadow && agent.shadow.is_some() {
        handler::shadow_walk
    } else if settings.has_chains() {
        handler::walk_with_chain
    } else {
        handler::walk
    };
    // Before the session enumerates the existing code. Callbacks report later code.
    chains::set_wanted(settings.has_chains());
    let started = Sampler::start(sampling(&settings), walk);
    let (sampler, reader) = match started {
        Ok(started) => started,
        Err(error) => {
            chains::set_wanted(false);
            agent.phases.drain();
            agent.phases.over();
            return Err(NotBegun::Sampler(error));
        }
    };
    agent.set_settings(Arc::clone(&settings));
    let forgotten = agent.registry.begin(settings.runtimes.clone());
    agent.events.begin(&settings);
    agent.trace.begin(&agent.program, &agent.events, &settings);
    if let Some(shadow) = &agent.shadow {
        shadow.begin(&settings);
    }
    agent.set_sampler(sampler);
    agent.program.threads.begin(sampler);
    agent
        .program
        .threads
        .allow_short_lived_sampling(settings.allows_short_lived_sampling());
    // Before the first sample: the callers on this stack are native code.
    agent.program.natives.refresh();
    agent.program.natives.announce_all();
    let running = agent.registry.running();
    if !running.is_empty() {
        // CLRs held the signal before.
        signal::install_on_top(agent);
    }
    if agent.registry.is_any_recorded() {
        agent.phases.runtime_starts();
    }
    Ok(Begun {
        settings,
        reader,
        sampler,
        forgotten,
        running,
    })
}

/// Ends sampling by all walkers. Agent thread only. Ring buffers and queues can still be drained.
pub fn stop(agent: &AgentState) {
    agent.phases.drain();
    let sampler = agent.program.threads.sampler();
    agent.program.threads.end();
    if let Some(sampler) = sampler {
        sampler.stop();
    }
}

/// Drops the state of a session that has ended, however it ended. Agent thread only.
pub(super) fn forget(agent: &AgentState) {
    agent.program.threads.forget_session();
    agent.program.natives.forget_changes();
    chains::set_wanted(false);
    agent.events.forget_session();
    agent.phases.over();
}

/// Additional stack for reading a chain, bytes. The search for the awaiter of a completed task
/// needs most (4,064 from `AsyncFrameFinder::look` to the return of the system call).
fn chain_room(settings: &Settings) -> u32 {
    if settings.has_chains() { 4608 } else { 0 }
}

/// Additional words for a chain behind the frames, up to the sampler's limit.
fn chain_words(settings: &Settings) -> u32 {
    const MOST: u32 = 32_768;
    let words = u32::try_from(CHAIN_WORDS).unwrap_or(u32::MAX);
    if settings.has_chains() {
        words.min(MOST.saturating_sub(settings.max_depth))
    } else {
        0
    }
}

/// Returns the sampler's configuration.
fn sampling(settings: &Settings) -> sampler::Config {
    let (cpu, wall) = (
        settings.events.has(Event::Cpu),
        settings.events.has(Event::Wall),
    );
    let by_signal = settings.is_by_signal();
    sampler::Config {
        // Threads that are walked by the agent thread need no timers of their own.
        engine: match (cpu && by_signal, settings.engine.as_str()) {
            (false, _) if by_signal && !wall => EngineChoice::None,
            (false, _) => EngineChoice::Wall,
            (true, "perf") => EngineChoice::Perf,
            (true, "timer") => EngineChoice::Timer,
            (true, "clocks") => EngineChoice::Clock,
            (true, _) => EngineChoice::Auto,
        },
        interval_ns: settings.interval_ns,
        wall_interval_ns: if wall && by_signal {
            settings.interval_ns
        } else {
            0
        },
        max_depth: settings.max_depth + chain_words(settings),
        scratch_len: u32::try_from(handler::SCRATCH_LEN).unwrap_or(u32::MAX),
        shared_stack_room: chain_room(settings),
        walk_alternate_stack: true,
        trace: (settings.walker == WalkerKind::Seeded).then_some(handler::trace as sampler::WalkFn),
        wait: (wall && settings.walker == WalkerKind::Signal)
            .then_some(handler::wait_walk as sampler::WalkFn),
        ..sampler::Config::default()
    }
}
