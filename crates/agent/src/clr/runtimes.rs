//! Calls into the CLRs: on the agent thread, one CLR at a time, only while it can be called.
//!
//! A CLR can be called from its admission until the agent thread has confirmed its end
//! (`registry`). Calls that would register their thread with the runtime run on a separate thread.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::JoinHandle;

use corprof::context::AgentThread;
use corprof::{AgentCx, Cx, Runtime, RuntimeIndex};

use super::Clr;
use super::registry::{KnownClr, Registry};
use crate::program::Program;

/// The CLRs that the agent thread can call.
#[derive(Debug)]
pub struct Runtimes<'a> {
    cx: &'a mut AgentCx,
    registry: &'a Registry,
    known: &'a [KnownClr],
    /// A newer list, read once a CLR is used that started after `known` was made.
    newer: Vec<KnownClr>,
}

impl<'a> Runtimes<'a> {
    /// Creates the list from `known`; `registry` has CLRs that start meanwhile.
    pub fn new(cx: &'a mut AgentCx, registry: &'a Registry, known: &'a [KnownClr]) -> Runtimes<'a> {
        Runtimes {
            cx,
            registry,
            known,
            newer: Vec::new(),
        }
    }

    /// Returns the recorded CLRs that can be called.
    pub fn recorded(&self) -> Vec<u8> {
        self.known
            .iter()
            .filter(|clr| clr.recorded && clr.reach.is_some() && !clr.ending)
            .map(|clr| clr.number)
            .collect()
    }

    /// Registers unreported code at an address, if a CLR knows it. Returns whether one does.
    pub fn discover(&mut self, program: &Program, address: u64) -> bool {
        let unreported = |known: &&KnownClr| {
            let reach = known.reach.as_ref().filter(|_| !known.ending);
            reach.is_some_and(|(clr, _)| clr.has_unreported_code())
        };
        let numbers: Vec<u8> = self
            .known
            .iter()
            .filter(unreported)
            .map(|known| known.number)
            .collect();
        numbers.into_iter().any(|number| {
            self.with(number, |clr, cx| clr.discover(program, cx, address))
                .unwrap_or(false)
        })
    }

    /// Returns the CLR of a process that has exactly one, if it is recorded.
    pub fn only_recorded(&self) -> Option<u8> {
        match self.known {
            [clr] if clr.recorded => Some(clr.number),
            _ => None,
        }
    }

    /// Returns corprof's index of the CLR of this number; `None` where it has ended.
    pub fn index_of(&mut self, runtime: u8) -> Option<RuntimeIndex> {
        Some(self.enter(runtime)?.2.index())
    }

    /// Runs `f` with one CLR; `None` if it has ended.
    pub fn with<R>(
        &mut self,
        runtime: u8,
        ask: impl for<'rt> FnOnce(&Arc<Clr>, &mut Cx<'rt, AgentThread>) -> R,
    ) -> Option<R> {
        let (cx, clr, runtime) = self.enter(runtime)?;
        Some(cx.enter(runtime, |cx| ask(clr, cx)))
    }

    /// Runs as [`Runtimes::with`], on a thread created for this call. For calls that register their
    /// thread with the runtime, which must never happen to the agent thread. A registered thread
    /// that looks up a method may wait for a collection while it holds a lock that the collector
    /// waits for (.NET 8: `ExecutionManager::DeleteRange`, from `CleanupCodeHeaps`, and the
    /// reader's lock of `GetFunctionFromIP`).
    ///
    /// # Errors
    /// The operating system's, if it creates no thread. No call was made then.
    pub fn on_own_thread<R: Send + 'static>(
        &mut self,
        runtime: u8,
        ask: impl for<'rt> FnOnce(&mut Cx<'rt, AgentThread>) -> R + Send + 'static,
    ) -> Option<io::Result<R>> {
        let thread =
            self.spawn_runtime_thread(runtime, move |cx, runtime| cx.enter(runtime, ask))?;
        // A panic of the thread is the agent's own; the caller's handler catches it.
        Some(thread.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))))
    }

    /// Starts a thread for repeated calls of that kind. The caller ends it before the CLR may end.
    ///
    /// # Errors
    /// The operating system's, if it creates no thread.
    pub fn spawn_runtime_thread<R: Send + 'static>(
        &mut self,
        runtime: u8,
        run: impl FnOnce(&mut AgentCx, &Runtime) -> R + Send + 'static,
    ) -> Option<io::Result<JoinHandle<R>>> {
        let runtime = self.enter(runtime)?.2.clone();
        let name = "sidewalk-events";
        Some(corprof::spawn_agent_thread(name, move |cx| {
            run(cx, &runtime)
        }))
    }

    /// Returns a CLR that can be called, and the proof for the call.
    fn enter(&mut self, number: u8) -> Option<(&mut AgentCx, &Arc<Clr>, &Runtime)> {
        let is_it = |clr: &&KnownClr| clr.number == number;
        if !self.known.iter().chain(&self.newer).any(|clr| is_it(&clr)) {
            self.newer = self.registry.known();
        }
        let known = self.known.iter().chain(&self.newer).find(is_it)?;
        let (clr, runtime) = known.reach.as_ref()?;
        Some((self.cx, clr, runtime))
    }
}
