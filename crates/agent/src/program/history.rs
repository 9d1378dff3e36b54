//! The method that an address belonged to, at the time of the sample.
//!
//! The handler's code map answers how to unwind an address now; this answers, on the agent thread,
//! what it was when the sample was taken. It learns of bodies from [`CodeIndex`], in order, and
//! lives as long as the process. It does not know code that stays as long as its runtime: of that
//! the map itself says all there is, whenever the sample was taken
//! ([`permanent_body`](super::code::permanent_body)).
//!
//! Invariant: a body that was removed stays in the history until every sample taken before its
//! end has been drained, so memory that is used again never gives a sample the name of the newer
//! body (rules: `ICorProfilerCallback9::DynamicMethodUnloaded`, `ModuleUnloadStarted`).

use std::collections::BTreeMap;
use std::ops::Range;

use super::code::{CodeChange, CodeIndex, ROOM};
use crate::base::proc;
use crate::model::CodeBody;
use crate::model::method::UNKNOWN_NS;

#[derive(Debug)]
struct RemovedBody {
    body: CodeBody,
    end_ns: u64,
}

/// The history; the agent thread's own.
#[derive(Debug, Default)]
pub struct CodeHistory {
    live: BTreeMap<u64, CodeBody>,
    /// By start, and a number that tells bodies with the same start apart.
    removed: BTreeMap<(u64, u64), RemovedBody>,
    next_removed: u64,
    /// Length of the longest body in `removed`: no address is further from the start of its own.
    longest: u64,
    /// The memory of changes that were taken in, for the next.
    emptied: Vec<CodeChange>,
}

impl CodeHistory {
    /// Takes in what has happened. Answers whether anything did.
    pub fn absorb(&mut self, code: &CodeIndex) -> bool {
        let mut changes = code.take_changes(std::mem::take(&mut self.emptied));
        let any = !changes.is_empty();
        if changes.len() < ROOM {
            // Nothing is kept for a program that does not compile any more.
            changes.shrink_to(ROOM);
        }
        for change in changes.drain(..) {
            match change {
                CodeChange::Added(body) => {
                    let end_ns = match body.added_ns {
                        UNKNOWN_NS => proc::now_ns(),
                        known => known,
                    };
                    self.remove(body.range.clone(), end_ns);
                    self.live.insert(body.range.start, body);
                }
                CodeChange::Removed { range, at_ns } => self.remove(range, at_ns),
            }
        }
        self.emptied = changes;
        any
    }

    /// Takes in bodies that are about to go without having been queued.
    pub fn learn(&mut self, bodies: Vec<CodeBody>) {
        for body in bodies {
            self.live.insert(body.range.start, body);
        }
    }

    /// Ends every live body that overlaps `range`.
    fn remove(&mut self, range: Range<u64>, end_ns: u64) {
        // The last first: a body may begin before the range and reach into it, and only the nearest
        // one can, as live bodies do not overlap.
        while let Some((&start, body)) = self.live.range(..range.end).next_back()
            && body.range.end > range.start
            && let Some(body) = self.live.remove(&start)
        {
            self.longest = self.longest.max(body.range.end - body.range.start);
            let number = self.next_removed;
            self.removed
                .insert((start, number), RemovedBody { body, end_ns });
            self.next_removed += 1;
        }
    }

    /// A runtime has ended or been left: its code is no more. Answers the addresses, for
    /// [`CodeIndex::removed`].
    pub fn of_runtime(&self, runtime: u8) -> Vec<Range<u64>> {
        let live = self.live.values();
        live.filter(|body| body.runtime == runtime)
            .map(|body| body.range.clone())
            .collect()
    }

    /// Removed bodies that held `address`.
    fn removed_at(&self, address: u64) -> impl Iterator<Item = &RemovedBody> {
        let first = address.saturating_sub(self.longest);
        self.removed
            .range((first, 0)..=(address, u64::MAX))
            .map(|(_, removed)| removed)
            .filter(move |removed| removed.body.range.contains(&address))
    }

    /// The body that held `address` at `time_ns`.
    pub fn at(&self, address: u64, time_ns: u64) -> Option<&CodeBody> {
        let removed = self
            .removed_at(address)
            .filter(|removed| time_ns < removed.end_ns && time_ns >= removed.body.added_ns)
            // One after the other had the address, and not of all is known since when.
            .min_by_key(|removed| removed.end_ns);
        if let Some(removed) = removed {
            return Some(&removed.body);
        }
        self.live
            .range(..=address)
            .next_back()
            .map(|(_, body)| body)
            .filter(|body| body.range.contains(&address))
    }

    /// Whether what an address means depends on the time: a removed body held it.
    pub fn is_contested(&self, address: u64) -> bool {
        self.removed_at(address).next().is_some()
    }

    /// Whether what some address means depends on the time.
    pub fn is_any_contested(&self) -> bool {
        !self.removed.is_empty()
    }

    /// Forgets the bodies that ended before `drained_ns`, once everything taken before that has
    /// been drained. Answers them, so that what was cached for them can be forgotten too.
    pub fn forget_removed(&mut self, drained_ns: u64) -> Vec<CodeBody> {
        let gone: Vec<CodeBody> = self
            .removed
            .extract_if(.., |_, removed| removed.end_ns < drained_ns)
            .map(|(_, removed)| removed.body)
            .collect();
        if self.removed.is_empty() {
            self.longest = 0;
        }
        gone
    }

    /// Every body that is there now.
    pub fn live(&self) -> impl Iterator<Item = &CodeBody> {
        self.live.values()
    }

    /// Bytes held, about.
    pub fn memory(&self) -> u64 {
        ((self.live.len() + self.removed.len()) * (size_of::<CodeBody>() + 16)) as u64
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::base::waker::Waker;
    use crate::model::phase::new_phase;
    use recording::{MethodKind, Tier};

    pub(crate) fn body(range: Range<u64>, function: usize, added_ns: u64) -> CodeBody {
        CodeBody {
            code_start: range.start,
            range,
            runtime: 0,
            function,
            kind: MethodKind::Il,
            tier: Tier::Unknown,
            added_ns,
            collectible: None,
        }
    }

    /// An index without a runtime.
    pub(crate) fn index() -> CodeIndex {
        let (_writer, phase) = new_phase();
        CodeIndex::new(phase, Box::leak(Box::new(Waker::new())))
    }

    #[test]
    fn memory_used_again_keeps_old_samples_with_the_old_body() {
        let index = index();
        let mut history = CodeHistory::default();
        index.push([
            CodeChange::Added(body(100..200, 1, 10)),
            CodeChange::Removed {
                range: 100..200,
                at_ns: 50,
            },
            CodeChange::Added(body(80..150, 2, 60)),
        ]);
        assert!(history.absorb(&index));
        let at =
            |history: &CodeHistory, address, time| history.at(address, time).map(|b| b.function);
        assert_eq!(at(&history, 120, 40), Some(1));
        assert_eq!(at(&history, 120, 70), Some(2));
        assert_eq!(at(&history, 190, 40), Some(1));
        assert_eq!(at(&history, 190, 70), None);
        assert!(history.is_contested(190));
        assert!(history.forget_removed(50).is_empty());
        assert_eq!(history.forget_removed(51).len(), 1);
        assert_eq!(at(&history, 120, 40), Some(2));
        assert!(!history.is_contested(190));
    }

    #[test]
    fn a_body_that_overlaps_one_never_reported_gone_replaces_it() {
        let index = index();
        let mut history = CodeHistory::default();
        index.push([
            CodeChange::Added(body(100..200, 1, 10)),
            CodeChange::Added(body(150..160, 2, 20)),
        ]);
        history.absorb(&index);
        assert_eq!(history.at(155, 30).map(|b| b.function), Some(2));
        assert_eq!(history.at(155, 15).map(|b| b.function), Some(1));
        assert!(history.at(110, 30).is_none());
    }

    #[test]
    fn an_address_is_found_among_removed_bodies_of_any_length() {
        let index = index();
        let mut history = CodeHistory::default();
        // A long body around short ones, each at another time, and ten thousand elsewhere.
        let changes = [
            (1000..9000, 1, 10),
            (2000..2010, 2, 20),
            (2000..2020, 3, 30),
        ];
        for (range, function, at) in changes {
            index.push([
                CodeChange::Added(body(range.clone(), function, at)),
                CodeChange::Removed {
                    range,
                    at_ns: at + 5,
                },
            ]);
        }
        for at in 0..10_000 {
            let range = 100_000 + at * 16..100_008 + at * 16;
            index.push([
                CodeChange::Added(body(range.clone(), 9, 40)),
                CodeChange::Removed { range, at_ns: 41 },
            ]);
        }
        history.absorb(&index);
        let at = |time| history.at(2005, time).map(|b| b.function);
        assert_eq!(
            (at(12), at(22), at(32), at(36)),
            (Some(1), Some(2), Some(3), None)
        );
        assert_eq!(history.removed_at(100_005).count(), 1);
        assert_eq!(history.forget_removed(41).len(), 3);
        assert_eq!(history.forget_removed(42).len(), 10_000);
        assert_eq!(history.longest, 0);
    }
}
