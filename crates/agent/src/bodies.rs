//! Which method an address belonged to, at the time of the sample.
//!
//! The handler's code map answers how to unwind an address now; this index answers, on the agent
//! thread, what it was when the sample was taken. Callbacks [`Births::push`] a body before its
//! code can run and report its end; the agent thread absorbs both when it drains.
//!
//! Invariant: a body that was unloaded stays in the index until every sample taken before its
//! end has been drained, so memory that is used again never gives a sample the name of the newer
//! body (rules: `ICorProfilerCallback9::DynamicMethodUnloaded`, `ModuleUnloadStarted`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use recording::{MethodKind, Tier};

use crate::clr::ModuleFacts;

/// One contiguous piece of JITted code.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    /// Addresses.
    pub(crate) range: Range<u64>,
    /// Index of the runtime.
    pub(crate) runtime: u8,
    /// FunctionID.
    pub(crate) function: usize,
    /// Address at which the runtime knows this body (hot part's start).
    pub(crate) code_start: u64,
    /// IL, dynamic or stub.
    pub(crate) kind: MethodKind,
    /// How far compiled.
    pub(crate) tier: Tier,
    /// CLOCK_MONOTONIC when it appeared.
    pub(crate) birth_ns: u64,
    /// Facts taken at birth. Some for code that may be unloaded (dynamic methods, collectible
    /// modules): the runtime must not be asked about it later.
    pub(crate) taken: Option<Arc<Taken>>,
}

/// What is known of unloadable code from the start.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    /// Its names; none where the runtime had none.
    pub(crate) names: Option<Names>,
    /// Its map to IL.
    pub(crate) il_map: IlMap,
}

/// A body's map from native code to IL: native start offset, IL offset; sorted.
pub(crate) type IlMap = Box<[(u32, u32)]>;

/// A method's names as metadata has them.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// Its module, where it has one.
    pub(crate) module: Option<Arc<ModuleFacts>>,
    /// MethodDef token, 0 where there is none.
    pub(crate) token: u32,
    /// Namespace and type.
    pub(crate) type_name: String,
    /// Method.
    pub(crate) name: String,
}

/// Something the callbacks tell the agent thread.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// A body appeared.
    Born(Body),
    /// All bodies that start inside the range are gone.
    Gone { range: Range<u64>, at_ns: u64 },
}

/// Changes waiting for the agent thread.
#[derive(Debug, Default)]
pub(crate) struct Births {
    queue: Mutex<Vec<Change>>,
    /// The agent thread has ended: nobody takes anything any more.
    closed: AtomicBool,
}

impl Births {
    /// Adds a change. Called in callbacks; the lock is held for a push only, and never while the
    /// CLR is called (rule 20 of the seeds).
    pub(crate) fn push(&self, change: Change) {
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        let mut queue = self.queue.lock().unwrap_or_else(|e| e.into_inner());
        queue.push(change);
    }

    /// Keeps nothing from now on: the CLRs go on compiling after the recording.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.take();
    }

    fn take(&self) -> Vec<Change> {
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(|e| e.into_inner()))
    }
}

#[derive(Debug)]
struct Dead {
    body: Body,
    end_ns: u64,
}

/// The index; the agent thread's own.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    live: BTreeMap<u64, Body>,
    dead: Vec<Dead>,
}

impl Bodies {
    /// Takes in what the callbacks told. Answers whether anything changed.
    pub(crate) fn absorb(&mut self, births: &Births) -> bool {
        let changes = births.take();
        let any = !changes.is_empty();
        for change in changes {
            match change {
                Change::Born(body) => {
                    self.bury(body.range.clone(), body.birth_ns);
                    self.live.insert(body.range.start, body);
                }
                Change::Gone { range, at_ns } => self.bury(range, at_ns),
            }
        }
        any
    }

    /// Moves every live body that overlaps `range` to the dead.
    fn bury(&mut self, range: Range<u64>, end_ns: u64) {
        // A body may begin before the range and reach into it; only the nearest one can, as live
        // bodies do not overlap.
        let before = self
            .live
            .range(..range.start)
            .next_back()
            .filter(|(_, body)| body.range.end > range.start)
            .map(|(start, _)| *start);
        let inside: Vec<u64> = before
            .into_iter()
            .chain(self.live.range(range).map(|(start, _)| *start))
            .collect();
        for start in inside {
            if let Some(body) = self.live.remove(&start) {
                self.dead.push(Dead { body, end_ns });
            }
        }
    }

    /// The body that held `address` at `time_ns`.
    pub(crate) fn at(&self, address: u64, time_ns: u64) -> Option<&Body> {
        let dead = self.dead.iter().find(|dead| {
            dead.body.range.contains(&address)
                && time_ns < dead.end_ns
                && time_ns >= dead.body.birth_ns
        });
        if let Some(dead) = dead {
            return Some(&dead.body);
        }
        self.live
            .range(..=address)
            .next_back()
            .map(|(_, body)| body)
            .filter(|body| body.range.contains(&address))
    }

    /// Whether what an address means depends on the time: a dead body held it.
    pub(crate) fn is_contested(&self, address: u64) -> bool {
        self.dead
            .iter()
            .any(|dead| dead.body.range.contains(&address))
    }

    /// Forgets the bodies that ended before `drained_ns`, once everything taken before that has
    /// been drained. Answers them, so that what was cached for them can be forgotten too.
    pub(crate) fn forget_dead(&mut self, drained_ns: u64) -> Vec<Body> {
        let mut gone = Vec::new();
        let mut kept = Vec::new();
        for dead in self.dead.drain(..) {
            if dead.end_ns < drained_ns {
                gone.push(dead.body);
            } else {
                kept.push(dead);
            }
        }
        self.dead = kept;
        gone
    }

    /// A runtime that has a live body starting in the range.
    pub(crate) fn any_in(&self, range: Range<u64>) -> Option<u8> {
        let (_, body) = self.live.range(range).next()?;
        Some(body.runtime)
    }

    /// Number of live bodies.
    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(range: Range<u64>, function: usize, birth_ns: u64) -> Body {
        Body {
            code_start: range.start,
            range,
            runtime: 0,
            function,
            kind: MethodKind::Il,
            tier: Tier::Unknown,
            birth_ns,
            taken: None,
        }
    }

    #[test]
    fn memory_used_again_keeps_old_samples_with_the_old_body() {
        let births = Births::default();
        let mut bodies = Bodies::default();
        births.push(Change::Born(body(100..200, 1, 10)));
        births.push(Change::Gone {
            range: 100..200,
            at_ns: 50,
        });
        births.push(Change::Born(body(80..150, 2, 60)));
        assert!(bodies.absorb(&births));
        let at = |bodies: &Bodies, address, time| bodies.at(address, time).map(|b| b.function);
        assert_eq!(at(&bodies, 120, 40), Some(1));
        assert_eq!(at(&bodies, 120, 70), Some(2));
        assert_eq!(at(&bodies, 190, 40), Some(1));
        assert_eq!(at(&bodies, 190, 70), None);
        assert!(bodies.is_contested(190));
        assert!(bodies.forget_dead(50).is_empty());
        assert_eq!(bodies.forget_dead(51).len(), 1);
        assert_eq!(at(&bodies, 120, 40), Some(2));
        assert!(!bodies.is_contested(190));
    }

    #[test]
    fn nothing_is_kept_after_the_end() {
        let births = Births::default();
        births.push(Change::Born(body(100..200, 1, 10)));
        births.close();
        births.push(Change::Born(body(200..300, 1, 10)));
        assert!(births.take().is_empty());
    }

    #[test]
    fn a_body_that_overlaps_one_never_reported_gone_replaces_it() {
        let births = Births::default();
        let mut bodies = Bodies::default();
        births.push(Change::Born(body(100..200, 1, 10)));
        births.push(Change::Born(body(150..160, 2, 20)));
        bodies.absorb(&births);
        assert_eq!(bodies.at(155, 30).map(|b| b.function), Some(2));
        assert_eq!(bodies.at(155, 15).map(|b| b.function), Some(1));
        assert!(bodies.at(110, 30).is_none());
    }
}
