//! Refuses inlining while ReJIT is requested, in runtimes before .NET 9.
//!
//! When such a runtime inlines a method that was requested after `canInline` had allowed it, it
//! crashes or deadlocks: `CEEInfo::reportInliningDecision` then requests the caller, with a wrong
//! module and under a lock (dotnet/runtime#95653 and #97771, `src/coreclr/vm/jitinterface.cpp`).
//! So inlining is refused first (`JITInlining`), and the request is made when the compilations that
//! were under way have ended. `canInline` itself refuses methods that have been requested.
//!
//! Invariant: at a request, no compilation under way has been allowed to inline since its start.
//! Not covered: a compilation that was under way at an attach is unknown.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use super::lock;
use crate::base::proc;
use crate::walkers::here::stack_pointer;

/// First major version without the fault.
const FIXED: u16 = 9;

/// The compilations of a CLR that are under way, and whether they may inline.
#[derive(Debug, Default)]
pub(crate) struct Inlining {
    /// Whether the runtime has the fault.
    is_needed: AtomicBool,
    is_refused: AtomicBool,
    compilations: Mutex<Compilations>,
}

#[derive(Debug, Default)]
struct Compilations {
    under_way: Vec<Compilation>,
    /// Number of the next one.
    next: u64,
    /// Number of the first one that began while inlining was refused, if it is.
    refused_from: Option<u64>,
}

#[derive(Debug)]
struct Compilation {
    number: u64,
    function: usize,
    thread: u32,
    /// Stack pointer at its start.
    stack: u64,
}

impl Inlining {
    /// Sets the runtime's major version. Called before the first compilation is reported.
    pub(crate) fn set_major(&self, major: u16) {
        self.is_needed.store(major < FIXED, Relaxed);
    }

    fn compilations(&self) -> Option<MutexGuard<'_, Compilations>> {
        let is_needed = self.is_needed.load(Relaxed);
        is_needed.then(|| lock(&self.compilations))
    }

    /// Adds a compilation that begins on the calling thread.
    pub(crate) fn started(&self, function: usize) {
        if let Some(mut compilations) = self.compilations() {
            compilations.start(function, proc::own_tid(), stack_pointer());
        }
    }

    /// Removes a compilation that has ended on the calling thread.
    pub(crate) fn finished(&self, function: usize) {
        if let Some(mut compilations) = self.compilations() {
            compilations.finish(function, proc::own_tid());
        }
    }

    /// Whether a method may be inlined now.
    pub(crate) fn is_allowed(&self) -> bool {
        !self.is_refused.load(Relaxed)
    }

    /// Refuses inlining from now on. Returns true when each compilation under way began after
    /// that, so ReJIT may be requested.
    pub(super) fn refuse(&self) -> bool {
        let Some(mut compilations) = self.compilations() else {
            return true;
        };
        // A compilation that takes the lock after this sees the flag.
        self.is_refused.store(true, Relaxed);
        compilations.have_ended()
    }

    /// Allows inlining again.
    pub(super) fn allow(&self) {
        if let Some(mut compilations) = self.compilations() {
            compilations.refused_from = None;
            self.is_refused.store(false, Relaxed);
        }
    }
}

impl Compilations {
    fn start(&mut self, function: usize, thread: u32, stack: u64) {
        // A compilation that throws is never reported as finished. An inner one has a lower stack
        // pointer than the one that it interrupts.
        self.under_way
            .retain(|one| one.thread != thread || one.stack > stack);
        self.under_way.push(Compilation {
            number: self.next,
            function,
            thread,
            stack,
        });
        self.next += 1;
    }

    fn finish(&mut self, function: usize, thread: u32) {
        let is_it = |one: &Compilation| one.thread == thread && one.function == function;
        let at = self.under_way.iter().rposition(is_it);
        at.map(|at| self.under_way.remove(at));
    }

    /// Whether all that began before the first call have ended.
    fn have_ended(&mut self) -> bool {
        let from = *self.refused_from.get_or_insert(self.next);
        self.under_way.iter().all(|one| one.number >= from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_compilations_that_began_before() {
        let mut all = Compilations::default();
        all.start(0x10, 1, 900);
        assert!(!all.have_ended());
        all.start(0x20, 2, 900);
        assert!(!all.have_ended(), "the first one has not ended");
        all.finish(0x10, 1);
        assert!(all.have_ended(), "the second one may not inline");
        all.refused_from = None;
        assert!(!all.have_ended(), "now the second one may inline");
    }

    #[test]
    fn an_inner_compilation_keeps_the_outer_one() {
        let mut all = Compilations::default();
        all.start(0x10, 1, 900);
        all.start(0x10, 1, 500);
        all.finish(0x10, 1);
        assert!(!all.have_ended());
        all.finish(0x10, 1);
        assert!(all.have_ended());
    }

    #[test]
    fn a_compilation_that_threw_is_dropped_at_the_next_of_its_thread() {
        let mut all = Compilations::default();
        all.start(0x10, 1, 900);
        all.start(0x20, 1, 900);
        all.finish(0x20, 1);
        assert!(all.have_ended());
    }

    #[test]
    fn only_runtimes_with_the_fault_refuse_inlining() {
        for (major, refuses) in [(4, true), (8, true), (9, false), (11, false)] {
            let inlining = Inlining::default();
            inlining.set_major(major);
            assert!(inlining.is_allowed());
            inlining.started(0x10);
            assert_eq!(inlining.refuse(), !refuses, "{major}");
            assert_eq!(inlining.is_allowed(), !refuses, "{major}");
            inlining.finished(0x10);
            assert!(inlining.refuse(), "{major}");
            inlining.allow();
            assert!(inlining.is_allowed(), "{major}");
        }
    }
}
