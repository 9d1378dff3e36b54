//! The way to ask the CLRs: on the agent thread, one at a time, only while they can be asked.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::JoinHandle;

use corprof::context::AgentThread;
use corprof::{AgentCx, Cx, Runtime, RuntimeIndex};

use super::Clr;
use super::registry::{KnownClr, Registry};
use crate::program::Program;

/// The CLRs, for the agent thread to ask.
#[derive(Debug)]
pub struct Runtimes<'a> {
    cx: &'a mut AgentCx,
    registry: &'a Registry,
    known: &'a [KnownClr],
    /// The list of now, once a CLR was met that is not in `known`: it started after that was made.
    newer: Vec<KnownClr>,
}

impl<'a> Runtimes<'a> {
    /// Those that are `known`, and from `registry` those that start meanwhile.
    pub fn new(cx: &'a mut AgentCx, registry: &'a Registry, known: &'a [KnownClr]) -> Runtimes<'a> {
        Runtimes {
            cx,
            registry,
            known,
            newer: Vec::new(),
        }
    }

    /// The CLRs that are recorded and can be asked.
    pub fn recorded(&self) -> Vec<u8> {
        self.known
            .iter()
            .filter(|clr| clr.recorded && clr.reach.is_some() && !clr.ending)
            .map(|clr| clr.number)
            .collect()
    }

    /// Learns of code at an address that no callback has reported, if a CLR knows it. Answers
    /// whether one does.
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

    /// The CLR of a process that has one, recorded.
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

    /// Asks one CLR; `None` where it has ended.
    pub fn with<R>(
        &mut self,
        runtime: u8,
        ask: impl for<'rt> FnOnce(&Arc<Clr>, &mut Cx<'rt, AgentThread>) -> R,
    ) -> Option<R> {
        let (cx, clr, runtime) = self.enter(runtime)?;
        Some(cx.enter(runtime, |cx| ask(clr, cx)))
    }

    /// The same on a thread that lives for this alone, for calls that make their thread one of the
    /// runtime's: the agent's must never be. A thread of the runtime's that looks up a method may
    /// wait for a collection with the lock held for which the collector waits (.NET 8:
    /// `ExecutionManager::DeleteRange`, from `CleanupCodeHeaps`, and the reader's lock of
    /// `GetFunctionFromIP`).
    ///
    /// # Errors
    /// The operating system's, when it makes no thread: then nothing has been asked.
    pub fn on_own_thread<R: Send + 'static>(
        &mut self,
        runtime: u8,
        ask: impl for<'rt> FnOnce(&mut Cx<'rt, AgentThread>) -> R + Send + 'static,
    ) -> Option<io::Result<R>> {
        let thread =
            self.spawn_runtime_thread(runtime, move |cx, runtime| cx.enter(runtime, ask))?;
        // A panic of it is one of ours: whoever catches those catches this one.
        Some(thread.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))))
    }

    /// A thread of its own for such calls, again and again: whoever starts it ends it before the
    /// CLR may go.
    ///
    /// # Errors
    /// The operating system's, when it makes no thread.
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

    /// A CLR that can be asked, and the proof with which it is.
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
