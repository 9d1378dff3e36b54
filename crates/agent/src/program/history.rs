//! Maps an address and a time to the method body that held the address at that time.
//!
//! The handler's code map unwinds the code that is at an address now. This table, on the agent
//! thread, resolves the address of an earlier sample. It receives bodies from [`CodeIndex`], in
//! order, and lives as long as the process. Code that lives as long as its runtime is not in it:
//! the code map describes such code at any time ([`permanent_body`](super::code::permanent_body)).
//!
//! Invariant: a removed body stays in the history until every sample taken before its end has been
//! drained. So a sample never gets the name of a newer body in reused memory (rules:
//! `ICorProfilerCallback9::DynamicMethodUnloaded`, `ModuleUnloadStarted`).

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

/// The history. Owned by the agent thread.
#[derive(Debug, Default)]
pub struct CodeHistory {
    live: BTreeMap<u64, CodeBody>,
    /// By start, and a number that distinguishes bodies with the same start.
    removed: BTreeMap<(u64, u64), RemovedBody>,
    next_removed: u64,
    /// Length of the longest body in `removed`: the maximum distance of an address from the start
    /// of its body.
    longest: u64,
    /// Memory of the last changes, reused for the next.
    emptied: Vec<CodeChange>,
}

impl CodeHistory {
    /// Applies the queued changes. Returns whether there were any.
    pub fn absorb(&mut self, code: &CodeIndex) -> bool {
        let mut changes = code.take_changes(std::mem::take(&mut self.emptied));
        let any = !changes.is_empty();
        if changes.len() < ROOM {
            // Memory is released for a program that has stopped compiling.
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

    /// Adds bodies that were never queued and are about to be removed.
    pub fn learn(&mut self, bodies: Vec<CodeBody>) {
        for body in bodies {
            self.live.insert(body.range.start, body);
        }
    }

    /// Ends every live body that overlaps `range`.
    fn remove(&mut self, range: Range<u64>, end_ns: u64) {
        // The last first: only the nearest body before the range can reach into it, as live bodies
        // do not overlap.
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

    /// Returns the address ranges of the code of a runtime that has ended or been detached, for
    /// [`CodeIndex::removed`].
    pub fn of_runtime(&self, runtime: u8) -> Vec<Range<u64>> {
        let live = self.live.values();
        live.filter(|body| body.runtime == runtime)
            .map(|body| body.range.clone())
            .collect()
    }

    /// Returns the removed bodies that held `address`.
    fn removed_at(&self, address: u64) -> impl Iterator<Item = &RemovedBody> {
        let first = address.saturating_sub(self.longest);
        self.removed
            .range((first, 0)..=(address, u64::MAX))
            .map(|(_, removed)| removed)
            .filter(move |removed| removed.body.range.contains(&address))
    }

    /// Returns the body that held `address` at `time_ns`.
    pub fn at(&self, address: u64, time_ns: u64) -> Option<&CodeBody> {
        let removed = self
            .removed_at(address)
            .filter(|removed| time_ns < removed.end_ns && time_ns >= removed.body.added_ns)
            // Several bodies held the address one after the other, and the start of some is
            // unknown.
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

    /// Whether the body at an address depends on the time, as a removed body held it.
    pub fn is_contested(&self, address: u64) -> bool {
        self.removed_at(address).next().is_some()
    }

    /// Whether the body at any address depends on the time.
    pub fn is_any_contested(&self) -> bool {
        !self.removed.is_empty()
    }

    /// Drops the bodies that ended before `drained_ns`, once all samples taken before that have
    /// been drained. Returns them, so that cache entries for them can be dropped too.
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

    /// Returns all live bodies.
    pub fn live(&self) -> impl Iterator<Item = &CodeBody> {
        self.live.values()
    }

    /// Returns the approximate number of bytes held.
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
